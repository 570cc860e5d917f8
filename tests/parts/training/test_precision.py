"""Mixed precision and channels_last change how a model computes, not what.

Run: python -m pytest tests/parts/training/test_precision.py
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from training_batches import make_batch

from labkit.parts.training import STEPS, label, real_step
from labkit.parts.training.models import build_classifier
from labkit.settings import Settings

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)]
OTHER = [
    {"precision": "amp"},
    {"memory_format": "channels_last"},
    {"precision": "amp", "memory_format": "channels_last"},
]


def on(name):
    return SimpleNamespace(torch_device=torch.device(name))


def trained(step, device, steps=4, **settings):
    """Train on one batch; the step, and its losses."""
    batch = {name: tensor.to(device) for name, tensor in make_batch().items()}
    made = STEPS[step](Settings(**settings), on(device))
    losses = []
    for _ in range(steps):
        made.backward(made.forward(batch))
        losses.append(made.loss())
    return made, losses


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("other", OTHER, ids=str)
@pytest.mark.parametrize("step", ["detector", "classifier"])
def test_other_numbers_start_at_the_same_loss_and_learn(step, other, device):
    plain, _ = trained(step, device, steps=1)
    made, losses = trained(step, device, steps=6, **other)
    assert made.first_loss() == losses[0] == pytest.approx(plain.first_loss(), rel=0.01)
    assert losses[-1] < 0.9 * losses[0]


def test_mixed_precision_rounds_and_the_loss_itself_is_in_float32():
    _, (plain,) = trained("detector", "cpu", steps=1)
    _, (mixed,) = trained("detector", "cpu", steps=1, precision="amp")
    assert mixed != plain
    made = STEPS["detector"](Settings(precision="amp"), on("cpu"))
    assert made.forward(make_batch()).dtype == torch.float32


def test_channels_last_reaches_the_weights():
    settings = Settings(memory_format="channels_last")
    weights = real_step.seeded(build_classifier, settings, on("cpu"))[0][4].body[0].weight
    assert weights.is_contiguous(memory_format=torch.channels_last)
    assert not weights.is_contiguous()


@pytest.mark.parametrize("device", DEVICES)
def test_float16_scales_its_loss(monkeypatch, device):
    monkeypatch.setattr(real_step, "_amp_dtype", lambda kind: torch.float16)
    scaled = []
    scale = torch.amp.GradScaler.scale
    monkeypatch.setattr(
        torch.amp.GradScaler, "scale", lambda self, x: scaled.append(1) or scale(self, x)
    )
    _, losses = trained("classifier", device, steps=6, precision="amp")
    assert len(scaled) == 6
    assert losses[-1] < losses[0]  # its first steps may overflow, and are then left out
    said = label(Settings(step="classifier", device=device, precision="amp"), device)
    assert said == {"precision": "amp (float16, loss scaled)"}


def test_a_row_says_in_what_it_computed():
    said = label(Settings(step="classifier", device="cpu", precision="amp"), "cpu")
    assert said == {"precision": "amp (bfloat16)"}


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_a_classifier_hands_out_its_last_scores_without_their_graph(precision):
    made = STEPS["classifier"](Settings(precision=precision), on("cpu"))
    assert made.logits() is None
    made.forward(make_batch())
    scores = made.logits()
    assert (scores.shape, scores.dtype) == ((2, 80), torch.float32)
    assert not scores.requires_grad


def test_a_detector_keeps_no_maps_and_an_emulated_step_draws_its_scores():
    made, _ = trained("detector", "cpu", steps=1)
    assert made.logits() is None
    emulated = SimpleNamespace(compute=None)
    first, second = (
        STEPS["timed"](Settings(batch_size=3, seed=seed), emulated).logits() for seed in (0, 1)
    )
    assert first.shape == (3, 80)
    assert not torch.equal(first, second)
