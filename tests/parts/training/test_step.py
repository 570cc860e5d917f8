"""The steps do the work they name, from the same weights, and learn; so do all precisions.

Run: python -m pytest tests/parts/training/test_step.py
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from training_batches import make_batch

from labkit.machine import hardware
from labkit.parts.training import STEPS, label, step
from labkit.parts.training.model import build_classifier
from labkit.settings import Settings

REAL_STEPS = ["detector", "classifier"]
PLAIN = {}
MIXED = {"precision": "amp", "memory_format": "channels_last"}
NO_COMPILER = hardware.why_no_compiler()


@pytest.fixture(autouse=True)
def one_thread():
    """Several threads wait for each other where other tests use the same cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def on(name):
    return SimpleNamespace(torch_device=torch.device(name))


def losses_of(made, batch, steps):
    found = []
    for _ in range(steps):
        made.backward(made.forward(batch))
        found.append(made.loss())
    return found


def test_the_classifier_has_the_published_number_of_parameters():
    parameters = sum(p.numel() for p in build_classifier(classes=1000).parameters())
    assert parameters == 11_689_512  # torchvision's resnet18, "11.69 M"


def test_a_repeated_step_trains_on_each_batch_as_often():
    batch, make = make_batch(), STEPS["small_classifier"]
    first, *_, last = losses_of(make(Settings(seed=3), on("cpu")), batch, steps=6)
    repeated = step.repeated(make(Settings(seed=3), on("cpu")), 3)
    assert losses_of(repeated, batch, steps=2)[-1] == last
    assert repeated.first_loss() == first


@pytest.mark.parametrize("name", REAL_STEPS)
def test_the_same_seed_and_batches_give_the_same_losses(name):
    batch, before = make_batch(), torch.get_rng_state()
    made = STEPS[name](Settings(seed=3), on("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
    assert made.loss() is None
    first = losses_of(made, batch, steps=2)
    assert losses_of(STEPS[name](Settings(seed=3), on("cpu")), batch, steps=2) == first
    assert losses_of(STEPS[name](Settings(seed=4), on("cpu")), batch, steps=1) != first[:1]


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("classifier", "cpu"),
        *(pytest.param(name, "cuda", marks=pytest.mark.needs_cuda) for name in REAL_STEPS),
    ],
)
def test_every_precision_starts_at_the_same_loss_and_learns(name, device):
    batch = {key: tensor.to(device) for key, tensor in make_batch().items()}
    first = []
    for other in (PLAIN, MIXED):
        made = STEPS[name](Settings(**other), on(device))
        losses = losses_of(made, batch, steps=3)
        assert made.first_loss() == losses[0]
        assert losses[-1] < losses[0]
        first.append(losses[0])
    assert first[1] == pytest.approx(first[0], rel=0.01)
    assert first[1] != first[0]  # rounded


@pytest.mark.skipif(bool(NO_COMPILER), reason=NO_COMPILER)
def test_a_compiled_model_trains_as_the_plain_one(monkeypatch):
    batch, losses, compiled_models, compile_model = make_batch(), {}, [], torch.compile

    def recording(model):
        compiled_models.append(model)
        return compile_model(model)

    monkeypatch.setattr(torch, "compile", recording)
    for compiled in (False, True):
        settings = Settings(seed=3, device="cpu", step="small_classifier", compile_model=compiled)
        made = STEPS["small_classifier"](settings, on("cpu"))
        losses[compiled] = losses_of(made, batch, steps=3)
        assert ("model" in label(settings)) is compiled
        assert len(compiled_models) == compiled
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)
    assert made.first_loss() == losses[True][0]


@pytest.mark.parametrize("name", REAL_STEPS)
def test_forward_and_backward_read_no_number(name):
    # Meta tensors have shapes but no numbers: `if count == 0` or `.item()` on one raises.
    made = STEPS[name](Settings(), on("meta"))
    made.backward(made.forward({key: value.to("meta") for key, value in make_batch().items()}))
    with pytest.raises(RuntimeError, match="meta"):
        made.loss()


@pytest.mark.parametrize(
    ("dtype", "said"),
    [(torch.bfloat16, "amp (bfloat16)"), (torch.float16, "amp (float16, loss scaled)")],
)
def test_a_row_names_its_precision(monkeypatch, dtype, said):
    monkeypatch.setattr(step, "_amp_dtype", lambda kind: dtype)
    settings = Settings(step="classifier", device="cpu", precision="amp")
    assert label(settings) == {"precision": said}


@pytest.fixture
def fp32_precision():
    """cuDNN's setting for convolutions, which torch 2.9 was the first to have."""
    conv = getattr(torch.backends.cudnn, "conv", None)
    if conv is None:
        pytest.skip("this torch has no fp32_precision")
    before = conv.fp32_precision
    yield conv
    conv.fp32_precision = before


@pytest.mark.parametrize(("precision", "labels"), [
    ("ieee", {}), ("tf32", {"precision": "fp32 (convolutions in TF32)"}),
])  # fmt: skip
def test_a_precision_set_for_convolutions_alone_is_read(
    monkeypatch, fp32_precision, precision, labels
):
    # torch then refuses to read `allow_tf32`, which holds for RNNs too.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    fp32_precision.fp32_precision = precision
    assert label(Settings(step="classifier", device="cuda")) == labels


@pytest.mark.needs_cuda
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_on_a_gpu_the_label_says_with_how_many_digits_it_convolves(fp32_precision, precision):
    fp32_precision.fp32_precision = precision
    torch.manual_seed(0)
    image, weight = (torch.randn(64, 64, 9, 9, device="cuda") for _ in range(2))
    exact = torch.nn.functional.conv2d(image.double(), weight.double())
    error = (torch.nn.functional.conv2d(image, weight) - exact).abs().max() / exact.abs().max()
    # TF32 has 10 bits of mantissa, float32 has 23.
    labels = {"precision": "fp32 (convolutions in TF32)"} if error > 1e-5 else {}
    assert label(Settings(step="classifier", device="cuda")) == labels


@pytest.mark.parametrize(("is_ampere", "said"), [(True, "TF32"), (False, "")])
def test_a_row_says_that_convolutions_are_in_tf32_where_cudnn_does_that(
    monkeypatch, is_ampere, said
):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: is_ampere)
    labels = label(Settings(step="classifier", device="cuda"))
    assert said in labels.get("precision", "")
    assert bool(labels) == is_ampere
