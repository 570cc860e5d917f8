"""All losses have the same number and gradients; the loops call more operators, and wait.

Run: python -m pytest tests/parts/training/test_loss.py
"""

from __future__ import annotations

import math

import pytest
import torch
from training_batches import BATCH_SIZE, make_batch, random_prediction

from labkit.batches import MAX_BOXES
from labkit.parts.training import LOSSES, STEPS, label
from labkit.settings import Settings

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)]


def by_the_paper(logits, size_wh, offset_xy, batch) -> float:
    """The paper's formulas, cell by cell and box by box."""
    focal, centers = 0.0, 0
    for x, y in zip(logits.flatten().tolist(), batch["heatmap"].flatten().tolist()):
        p = 1 / (1 + math.exp(-x))
        if y == 1:
            centers += 1
            focal -= (1 - p) ** 2 * math.log(p)
        else:
            focal -= (1 - y) ** 4 * p**2 * math.log(1 - p)
    size = offset = 0.0
    boxes = 0
    width = logits.shape[-1]
    for i, slot in batch["mask"].nonzero().tolist():
        row, column = divmod(int(batch["cell"][i, slot]), width)
        boxes += 1
        for k in range(2):
            size += abs(float(size_wh[i, k, row, column] - batch["size_wh"][i, slot, k]))
            offset += abs(float(offset_xy[i, k, row, column] - batch["offset_xy"][i, slot, k]))
    per_value = max(2 * boxes, 1)
    return focal / max(centers, 1) + 0.1 * size / per_value + offset / per_value


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("boxes_per_image", [(3, 1), (4, 0), (0, 0), (30, 7)])
def test_every_loss_has_the_papers_number_and_the_same_gradients(boxes_per_image, device):
    batch = make_batch(boxes_per_image)
    batch["mask"][:, 1::2] = 0  # boxes that left the crop leave their slots empty
    expected = by_the_paper(*random_prediction(), batch)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    gradients = None
    for loss_of in LOSSES.values():
        prediction = [maps.to(device).requires_grad_() for maps in random_prediction()]
        loss = loss_of(*prediction, batch)
        loss.backward()
        assert loss.item() == pytest.approx(expected, rel=1e-4)
        gradients = gradients or [maps.grad for maps in prediction]
        for maps, wanted in zip(prediction, gradients):
            torch.testing.assert_close(maps.grad, wanted, rtol=1e-4, atol=1e-6)


class Recorder:
    """A simulated GPU that writes down what it was asked for."""

    def __init__(self):
        self.calls = []

    def compute(self, images, share=1.0):
        self.calls.append(images * share)

    def synchronize(self):
        self.calls.append("wait")


# loops_sync reads the centers of every class's plane and every slot of every image.
@pytest.mark.parametrize(
    ("name", "waits"), [("loops", 1), ("threads", 1), ("loops_sync", BATCH_SIZE * (80 + MAX_BOXES))]
)
def test_the_simulated_step_does_a_loops_work_between_forward_and_backward(name, waits):
    device = Recorder()
    STEPS["timed"](Settings(loss=name, batch_size=BATCH_SIZE), device).forward(make_batch((3, 1)))
    first, *between, last = device.calls
    assert between == ["wait"] * waits
    assert (first, last) == (pytest.approx(2 / 3), pytest.approx(4 / 3))  # of two images


def test_a_row_says_that_only_the_hosts_part_of_a_simulated_loss_is_real():
    simulated = Settings(loss="loops", device="simulated", step="timed")
    assert label(simulated) == {"loss": "in loops, the host's cost only"}
    assert label(Settings(loss="loops", device="cpu", step="detector")) == {}
