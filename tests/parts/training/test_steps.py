"""The steps do the work they name, from the same weights, and learn."""

from __future__ import annotations

import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from training_batches import BATCH_SIZE, INPUT_PX, make_batch, random_prediction

from labkit import contracts
from labkit.parts.training import STEPS
from labkit.parts.training.losses import detector_loss
from labkit.parts.training.models import Detector, build_classifier
from labkit.settings import Settings

CPU = SimpleNamespace(torch_device=torch.device("cpu"))
REAL_STEPS = [name for name in STEPS if name not in ("timed", "nothing")]


class EmulatedStandIn:
    def __init__(self) -> None:
        self.computed = []

    def compute(self, images: int) -> None:
        self.computed.append(images)


def naive_detector_loss(logits, size_wh, offset_xy, batch) -> float:
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


def losses_of(step, batch, steps) -> list[float]:
    found = []
    for _ in range(steps):
        step.backward(step.forward(batch))
        found.append(step.loss())
    return found


def test_the_classifier_has_the_published_number_of_parameters():
    parameters = sum(p.numel() for p in build_classifier(classes=1000).parameters())
    assert parameters == 11_689_512  # torchvision's resnet18, "11.69 M"


@pytest.mark.parametrize("input_px", [32, 64, 96])
def test_models_accept_any_multiple_of_32(input_px):
    image = torch.zeros(2, 3, input_px, input_px)
    cells = input_px // contracts.STRIDE
    heatmap, size_wh, offset_xy = Detector()(image)
    assert heatmap.shape == (2, contracts.CLASSES, cells, cells)
    assert size_wh.shape == offset_xy.shape == (2, 2, cells, cells)
    assert build_classifier()(image).shape == (2, contracts.CLASSES)


def test_an_untrained_detector_expects_background_nearly_everywhere():
    heatmap, _, _ = Detector()(torch.randn(2, 3, INPUT_PX, INPUT_PX))
    assert heatmap.sigmoid().mean().item() == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("boxes_per_image", [(3, 1), (4, 0), (0, 0), (128, 7)])
def test_the_detector_loss_equals_the_naive_loop(boxes_per_image):
    batch, prediction = make_batch(boxes_per_image), random_prediction()
    expected = naive_detector_loss(*prediction, batch)
    assert detector_loss(*prediction, batch).item() == pytest.approx(expected, rel=1e-4)


def test_a_perfect_prediction_has_nearly_no_loss():
    batch = make_batch((1, 1))
    heatmap_logits, size_wh, offset_xy = random_prediction()
    heatmap_logits = torch.where(batch["heatmap"] == 1, 15.0, -15.0)
    for i in range(BATCH_SIZE):
        cell = batch["cell"][i, 0]
        size_wh[i].view(2, -1)[:, cell] = batch["size_wh"][i, 0]
        offset_xy[i].view(2, -1)[:, cell] = batch["offset_xy"][i, 0]
    assert detector_loss(heatmap_logits, size_wh, offset_xy, batch).item() < 1e-6


def test_far_off_predictions_keep_a_finite_loss_and_a_gradient():
    batch, prediction = make_batch(), random_prediction()
    logits = (200 * torch.sign(0.5 - batch["heatmap"])).requires_grad_()  # wrong by far
    loss = detector_loss(logits, *prediction[1:], batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert (logits.grad[batch["heatmap"] == 1] < 0).all()


@pytest.mark.parametrize("name", REAL_STEPS)
def test_a_few_steps_on_one_batch_reduce_the_loss(name):
    step = STEPS[name](Settings(), CPU)
    found = losses_of(step, make_batch(), steps=6)
    assert found[-1] < 0.9 * found[0]


@pytest.mark.parametrize("name", REAL_STEPS)
def test_the_same_seed_and_batches_give_the_same_losses(name):
    batch = make_batch()
    first = losses_of(STEPS[name](Settings(seed=3), CPU), batch, steps=2)
    torch.rand(5)  # what others drew in between must not matter
    assert losses_of(STEPS[name](Settings(seed=3), CPU), batch, steps=2) == first
    assert losses_of(STEPS[name](Settings(seed=4), CPU), batch, steps=2) != first


@pytest.mark.parametrize("name", REAL_STEPS)
def test_building_a_step_leaves_the_callers_random_state_alone(name):
    before = torch.get_rng_state()
    STEPS[name](Settings(), CPU)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", REAL_STEPS)
def test_forward_and_backward_never_look_at_a_number(name):
    # Meta tensors have shapes but no numbers: `if count == 0` or `.item()` on one raises.
    meta = torch.device("meta")
    step = STEPS[name](Settings(), SimpleNamespace(torch_device=meta))
    step.backward(step.forward({key: value.to(meta) for key, value in make_batch().items()}))
    with pytest.raises(RuntimeError, match="meta"):
        step.loss()


@pytest.mark.parametrize("name", REAL_STEPS)
def test_a_step_names_a_known_batch_and_has_no_loss_before_it_ran(name):
    step = STEPS[name](Settings(), CPU)
    assert step.batch in contracts.BATCHES
    assert step.loss() is None


def test_timed_hands_the_number_of_images_to_the_emulated_device():
    device = EmulatedStandIn()
    step = STEPS["timed"](Settings(), device)
    step.forward(make_batch())
    assert device.computed == [BATCH_SIZE]
    assert (step.backward, step.loss(), step.batch) == (None, None, None)


def sizes(state):
    """Give the shapes and dtypes of a state's tensors, by their path."""
    if isinstance(state, torch.Tensor):
        return {(): (tuple(state.shape), state.dtype)}
    if not isinstance(state, dict):
        return {}
    return {(key, *path): one for key, each in state.items() for path, one in sizes(each).items()}


def test_what_an_emulated_device_saves_is_as_large_as_what_the_classifier_does():
    real = STEPS["classifier"](Settings(), CPU)
    losses_of(real, make_batch(), steps=1)  # makes the momentum
    saved = STEPS["timed"](Settings(), EmulatedStandIn()).state()
    assert sizes(saved) == sizes(real.state())
    assert len(sizes(saved["optimizer"])) == len(list(build_classifier().parameters()))


def test_timed_on_a_real_device_says_what_to_set():
    message = (
        "step must be detector or classifier on cpu, got 'timed'; "
        'set step="detector", or device="emulated"'
    )
    with pytest.raises(ValueError) as caught:
        STEPS["timed"](Settings(), CPU)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", REAL_STEPS)
def test_a_real_step_on_the_emulated_device_says_what_to_set(name):
    with pytest.raises(ValueError) as caught:
        STEPS[name](Settings(), EmulatedStandIn())
    assert str(caught.value) == (
        f"step must be timed on the emulated device, got {name!r}; "
        'set step="timed", or device="cuda" or "cpu"'
    )


def test_importing_the_steps_does_not_import_torch():
    code = "import sys, labkit.parts.training; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_step_that_does_nothing_takes_any_batch_and_any_device():
    step = STEPS["nothing"](Settings(), CPU)
    assert step.forward({"anything": None}) is None
    assert (step.backward, step.loss()) == (None, None)
