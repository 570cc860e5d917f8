"""The training loop's own stalls: each experiment turns its own knobs, and refuses what cannot be.

Run: python -m pytest tests/test_in_depth_training.py
"""

from dataclasses import replace

import pytest

import labkit as lab
from labkit.contracts import Skip
from labkit.machine import gpu
from labkit.machine.gpu import CudaState
from labkit.parts.training import LOSSES
from labkit.resolve import resolve
from labkit.settings import MODES, complete

KNOBS = {
    "loss": {"loss", "sync_every", "loader"},
    "precision": {"precision", "memory_format", "loader"},
}
SMALL = {"input_px": 64, "batch_size": 4, "images": 8, "num_workers": 0}


def completed(**settings):
    wanted = lab.Settings(**settings)
    step = lab.PREPROCESSORS[wanted.preprocessor].batch
    return complete(wanted, MODES["quick"], cores=2, has_cuda=False, can_fork=True, real_step=step)


@pytest.mark.parametrize("works", [False, True])
@pytest.mark.parametrize("name", KNOBS)
def test_an_experiment_turns_its_own_knobs_and_repeats_no_variant(monkeypatch, name, works):
    monkeypatch.setattr(gpu, "cuda", lambda: machine_with(works))
    chosen = lab.experiment(name)
    every = {**chosen.variants, **chosen.in_full}
    assert len(chosen.variants) == 4
    if name == "loss":
        assert {settings.loss for settings in chosen.variants.values()} == set(LOSSES)
    assert len(set(every.values())) == len(every) == len(chosen.variants) + len(chosen.in_full)
    base = chosen.variants[chosen.baseline]
    for settings in every.values():
        assert replace(settings, **{knob: getattr(base, knob) for knob in KNOBS[name]}) == base


def machine_with(works):
    return CudaState(works=works, reason="" if works else "no NVIDIA driver")


def test_without_a_gpu_precision_is_compared_on_the_cpu(monkeypatch):
    monkeypatch.setattr(gpu, "cuda", lambda: machine_with(False))
    small = lab.experiment("precision").variants["amp"]
    assert (small.device, small.preprocessor, small.input_px) == ("cpu", "classification", 64)
    assert lab.experiment("precision", device="emulated").variants["amp"].device == "emulated"
    monkeypatch.setattr(gpu, "cuda", lambda: machine_with(True))
    assert lab.experiment("precision").variants["amp"].device is None


@pytest.mark.parametrize(
    ("setting", "value", "plain"),
    [("precision", "amp", "fp32"), ("memory_format", "channels_last", "contiguous")],
)
def test_what_an_emulated_device_cannot_compute_is_left_out(setting, value, plain):
    message = (
        f"{setting} must be {plain} on the emulated device, which computes nothing, "
        f"got '{value}'; choose device cpu or cuda"
    )
    with pytest.raises(Skip) as caught:
        resolve(completed(**{setting: value}))
    assert str(caught.value) == message
    resolve(completed(**{setting: value}, device="cpu"))


def test_a_loop_on_the_emulated_device_costs_its_host_and_says_so(photos, tmp_path):
    base = lab.Settings(
        data=str(photos), device="emulated", profile="resnet50_h100", loss="loops", **SMALL
    )
    variants = {"loops": base, "all at once": replace(base, loss="vectorized")}
    experiment = lab.Experiment("test", question="?", variants=variants, baseline="loops")
    finished = lab.run(experiment, blocks=1, results=tmp_path, progress=False)
    cpu_s = {trial.variant: trial.cpu_s for trial in finished.trials}
    assert {trial.status for trial in finished.trials} == {"ok"}
    assert cpu_s["loops"] > cpu_s["all at once"]
    labels = {trial.variant: trial.labels.get("loss", "") for trial in finished.trials}
    assert "the host's cost only" in labels["loops"]
    assert labels["all at once"] == ""
    assert "operator calls a step" in str(lab.table(finished))
