"""What is done beside the steps: when, on whose time, and what becomes of failures.

Steps are launched on the simulated GPU under a fake clock; checkpoints and reports are real.
"""

import contextlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from labkit.contracts import Skip
from labkit.parts.devices import CpuDevice, SimulatedGpu
from labkit.parts.training import STEPS
from labkit.parts.training.callbacks import (
    METRICS,
    Callback,
    Callbacks,
    Totals,
    open_callbacks,
)
from labkit.runs.launcher import Launcher
from labkit.runs.timing import time_epoch
from labkit.settings import Settings
from tests.fake_clock import FakeClock
from tests.parts.test_devices import PROFILE
from tests.runs.test_launcher import measure
from tests.runs.test_timing import pipeline


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    with Launcher(tmp_path_factory.mktemp("launcher") / "worker.log") as running:
        yield running


BATCH = {"sample_id": torch.arange(8), "label": torch.arange(8) % 3}


def test_their_time_and_what_is_waited_for_at_the_end_belong_to_the_epoch():
    clock = FakeClock()
    callbacks = Callbacks(
        Callback(
            every=2,
            call=lambda step, batch: clock.sleep(0.25),
            finish=lambda: clock.sleep(2),
        )
    )
    bare = pipeline(clock, CpuDevice(), forward=lambda batch: clock.sleep(0.125))
    (without, *_), (with_them, *_) = time_epoch(bare, clock), time_epoch(bare, clock, callbacks)
    assert with_them.callbacks_s == 2 * 0.25 + 2
    assert with_them.epoch_s == without.epoch_s + with_them.callbacks_s
    assert with_them.forward_s == without.forward_s
    assert with_them.sync_s == without.sync_s
    assert without.callbacks_s is None  # not asked for, so not measured


def opened(stack, tmp_path, device=None, step=None, **settings):
    settings = Settings(
        preprocessor="classification",
        batch_size=8,
        checkpoint_to=f"{tmp_path}/",
        step="timed",
        **settings,
    )
    device = device or SimulatedGpu(PROFILE, FakeClock())
    step = step or STEPS["timed"](settings, device)
    return open_callbacks(settings, device, step, stack)


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({"report_every": 1}, True),
        ({"report_every": 1, "report_to": "file_without_loss"}, False),
        ({"checkpoint_every": 1}, True),
        ({"metrics": "loops"}, True),
        ({"metrics": "vectorized"}, False),
        ({"progress_bar": "tqdm"}, False),
        ({"progress_bar": "tqdm_loss"}, True),
    ],
)
def test_who_needs_a_steps_result_waits_for_the_simulated_device(tmp_path, settings, waits):
    with contextlib.ExitStack() as stack:
        clock = FakeClock()
        device = SimulatedGpu(PROFILE, clock)  # a second per image
        callbacks = opened(stack, tmp_path, device, **settings)
        device.compute(2)
        launched_s = clock.now()
        callbacks.after_step(BATCH)
        assert clock.now() == (2.0 if waits else launched_s)
    simulated = "host's part real, device's part simulated"
    assert callbacks.label() == {"training loop": simulated}


@pytest.mark.parametrize("writer", ["sync", "thread"])
def test_checkpoints_hold_the_step_and_are_gone_afterwards(tmp_path, writer):
    before = set(threading.enumerate())
    with contextlib.ExitStack() as stack:
        callbacks = opened(stack, tmp_path, checkpoint_every=2, checkpoint_writer=writer)
        for _ in range(5):
            callbacks.after_step(BATCH)
        callbacks.finish()
        saved = torch.load(tmp_path / ".labkit-checkpoint.pth", weights_only=True)
        assert saved["step"] == 4
        momenta = saved["optimizer"]["state"]
        weights = [weight for name, weight in saved["model"].items() if "running" not in name]
        assert len(momenta) > 50
        assert sum(weight.numel() for weight in weights) > 11e6  # a ResNet-18
    assert list(tmp_path.iterdir()) == []
    assert set(threading.enumerate()) <= before


def test_a_report_names_the_step_and_the_loss_of_a_real_training(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    losses = iter([0.5, 0.25])
    step = STEPS["timed"](Settings(batch_size=8), SimulatedGpu(PROFILE, FakeClock()))
    step = SimpleNamespace(**{**vars(step), "loss": lambda: next(losses)})
    with contextlib.ExitStack() as stack:
        callbacks = opened(stack, tmp_path, CpuDevice(), step, report_every=2)
        for _ in range(5):
            callbacks.after_step(BATCH)
        (log,) = tmp_path.rglob("*.log")
        written = [line.split(" ", 2)[2] for line in log.read_text().splitlines()]
    assert written == ["step 2 loss 0.5000", "step 4 loss 0.2500"]
    assert list(tmp_path.iterdir()) == []


def test_a_real_training_saves_reports_evaluates_and_says_so_in_its_row(launcher, photos, tmp_path):
    how = {
        "device": "cpu", "step": "small_classifier", "preprocessor": "classification", "images": 8,
        "checkpoint_every": 2, "checkpoint_to": f"{tmp_path}/", "checkpoint_writer": "thread",
        "report_every": 1, "report_to": "terminal", "metrics": "vectorized",
        "progress_bar": "tqdm_loss",
    }  # fmt: skip
    trial = measure(launcher, photos, **how)
    for epoch in trial["epochs"]:
        assert 0 < epoch["callbacks_s"] < epoch["epoch_s"]
    assert "training loop" not in trial["labels"]  # on a real device all of it is real
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_a_reason_to_skip(launcher, photos, tmp_path):
    gone = tmp_path / "gone"
    with pytest.raises(Skip, match=f"checkpoint_to must be an existing folder, got {gone}"):
        measure(launcher, photos, checkpoint_every=1, checkpoint_to=f"{gone}/")


# --- metrics --------------------------------------------------------------------------------

CLASSES = 9
SAMPLES = 48
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)]


def batches(device="cpu"):
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(SAMPLES, CLASSES, generator=draw)
    labels = torch.randint(CLASSES - 1, (SAMPLES,), generator=draw)  # the last never occurs
    return list(zip(logits.to(device).split(16), labels.to(device).split(16)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    # loops read the scores and the label of every sample; all read the counts at the end.
    ("name", "waits"),
    [("loops", 2 * SAMPLES + 1), ("vectorized", 1)],
)
def test_metrics_are_what_their_names_say(name, waits, device):
    waited = []
    totals = Totals(wait=lambda: waited.append(1))
    for logits, labels in batches(device):
        METRICS[name](logits, labels, totals)
    predicted = np.concatenate([logits.numpy() for logits, _ in batches()]).argmax(1)
    labels = np.concatenate([labels.numpy() for _, labels in batches()])
    assert totals.accuracy() == pytest.approx((predicted == labels).mean())
    assert len(waited) == waits
    confusion = np.zeros((CLASSES, CLASSES), np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    np.testing.assert_array_equal(totals.confusion.cpu().numpy(), confusion)


def test_vectorized_reads_no_number():
    # Meta tensors have shapes but no numbers: `.item()` on one raises.
    totals = Totals()
    METRICS["vectorized"](*batches("meta")[0], totals)
    with pytest.raises(RuntimeError, match="meta"):
        totals.accuracy()
