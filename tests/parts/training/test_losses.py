"""The loss in loops is the vectorized one: its number, its gradients, and not its calls.

Run: python -m pytest tests/parts/training/test_losses.py
"""

from __future__ import annotations

import re

import pytest
import torch
from training_batches import BATCH_SIZE, make_batch, random_prediction

from labkit.contracts import MAX_BOXES
from labkit.launches import count_launches, count_operators
from labkit.parts.training import LOOPS, LOSSES, STEPS, VECTORIZED, label
from labkit.parts.training.host_loss import count_calls, host_loss, mask_of
from labkit.settings import Settings

BOXES = [(3, 1), (4, 0), (0, 0), (128, 7)]


def with_holes(batch):
    """Boxes that left the crop leave their slots empty."""
    batch["mask"][:, ::2] = 0
    return batch


def loss_and_gradients(loss_of, batch, device="cpu"):
    prediction = [maps.to(device).requires_grad_() for maps in random_prediction()]
    loss = loss_of(*prediction, {name: tensor.to(device) for name, tensor in batch.items()})
    loss.backward()
    return [loss.detach().cpu(), *(maps.grad.cpu() for maps in prediction)]


def check_equal(name, batch, device="cpu"):
    expected = loss_and_gradients(LOSSES[VECTORIZED], batch)
    for found, wanted in zip(loss_and_gradients(LOSSES[name], batch, device), expected):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("boxes_per_image", BOXES)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loss_in_loops_has_the_vectorized_ones_number_and_gradients(name, boxes_per_image):
    check_equal(name, make_batch(boxes_per_image))
    check_equal(name, with_holes(make_batch(boxes_per_image, seed=5)))


@pytest.mark.needs_cuda
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_the_same_on_cuda(name):
    check_equal(name, make_batch((5, 0)), "cuda")


@pytest.mark.parametrize(
    ("name", "looks"),
    [
        ("loops", 1),
        ("threads", 1),
        # At the centers of every class's plane and at every slot of every image.
        ("loops_sync", BATCH_SIZE * (80 + MAX_BOXES)),
    ],
)
def test_a_stand_in_is_waited_for_before_every_look(name, looks):
    waits = []
    LOSSES[name](*random_prediction(), make_batch((3, 1)), wait=lambda: waits.append(1))
    assert len(waits) == looks


# --- counting -------------------------------------------------------------------------------


def test_operators_are_counted_forward_and_backward():
    x = torch.ones(3, requires_grad=True)
    assert count_operators(lambda: x * 2) == 1
    assert count_operators(lambda: (x * 2).sum().backward()) > 2
    assert count_operators(lambda: None) == 0


def test_loops_call_hundreds_of_times_as_many_operators_and_more_for_more_images():
    vectorized, _ = count_calls(LOSSES[VECTORIZED], 4, on_gpu=False)
    loops, _ = count_calls(LOSSES["loops"], 4, on_gpu=False)
    assert loops > 100 * vectorized
    assert count_calls(LOSSES[VECTORIZED], 8, on_gpu=False) == (vectorized, None)
    assert count_calls(LOSSES["loops"], 8, on_gpu=False)[0] > 1.9 * loops


def test_small_maps_take_as_many_calls_as_whole_ones():
    batch, prediction = make_batch((3, 1)), [x.requires_grad_() for x in random_prediction()]
    for loss_of in (LOSSES[VECTORIZED], LOSSES["loops"], LOSSES["loops_sync"]):
        work = host_loss(loss_of, BATCH_SIZE, seed=0)
        small = count_operators(lambda work=work: work(batch["mask"]))
        whole = count_operators(
            lambda loss_of=loss_of: torch.autograd.grad(loss_of(*prediction, batch), prediction)
        )
        # A backward pass may copy maps of one cell less often.
        assert small == pytest.approx(whole, rel=0.1)


def test_without_a_gpu_no_kernels_are_counted():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert count_launches(lambda: torch.ones(2) + 1) is None


@pytest.mark.needs_cuda
def test_on_cuda_kernels_are_counted_in_every_thread():
    x = torch.ones(1000, device="cuda")
    assert count_launches(lambda: x * 2) == 1
    _, vectorized = count_calls(LOSSES[VECTORIZED], 4, on_gpu=True)
    _, loops = count_calls(LOSSES["loops"], 4, on_gpu=True)
    _, threads = count_calls(LOSSES["threads"], 4, on_gpu=True)
    assert loops > 50 * vectorized
    assert threads == pytest.approx(loops, rel=0.02)


# --- on the emulated device -----------------------------------------------------------------


class Recorder:
    """An emulated device that writes down what it was asked for."""

    def __init__(self):
        self.calls = []

    def compute(self, images):
        self.calls.append(images)

    def synchronize(self):
        self.calls.append("wait")


@pytest.mark.parametrize(("name", "waits"), [("loops", 1), ("loops_sync", 2 * (80 + MAX_BOXES))])
def test_the_emulated_step_does_a_loops_work_between_forward_and_backward(name, waits):
    device = Recorder()
    STEPS["timed"](Settings(loss=name, batch_size=2), device).forward(make_batch((3, 1)))
    first, *between, last = device.calls
    assert between == ["wait"] * waits
    assert (first, last) == (pytest.approx(2 / 3), pytest.approx(4 / 3))  # of two images


def test_more_boxes_are_more_work_on_the_host():
    work = host_loss(LOSSES["loops"], BATCH_SIZE, seed=0)
    few, many = (make_batch((n, n))["mask"] for n in (1, 60))
    assert count_operators(lambda: work(many)) > 1.3 * count_operators(lambda: work(few))


def test_boxes_that_the_device_would_place_are_counted_too():
    batch = {"boxes_ragged_counts": torch.tensor([2, 0])}
    assert mask_of(batch).sum(1).tolist() == [2, 0]
    assert mask_of(batch).shape == (2, MAX_BOXES)
    whole = make_batch((3, 1))
    assert mask_of(whole) is whole["mask"]


# --- what a row says ------------------------------------------------------------------------

CALLS = r"[\d,]+ operator calls a step at 7 boxes an image \(vectorized: \d+\)"


@pytest.mark.parametrize("name", LOOPS)
def test_a_row_says_what_its_loss_calls_and_what_is_not_emulated(name):
    settings = Settings(loss=name, batch_size=2, device="cpu", step="detector")
    assert re.fullmatch(CALLS, label(settings, "cpu")["loss"])
    said = label(settings, "emulated(matched, 3 ms/image)")["loss"]
    assert said.endswith(", the host's cost only")


def test_plain_training_needs_no_label():
    assert label(Settings(step="detector", device="cpu"), "cpu") == {}
    assert label(Settings(step="nothing", loss="loops", batch_size=2), "cpu") == {}
