"""The rate is the settled one; the calibrated device is measured once, kept, and checked."""

import itertools
import json
import math
import shutil
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fakes import fake_info
from small import compare

import labkit as lab
from labkit import units
from labkit.contracts import Skip
from labkit.machine import hardware
from labkit.parts.devices import EmulatedDevice
from labkit.parts.prefetching import PREFETCHERS
from labkit.parts.training import Step
from labkit.resolve import gather_facts
from labkit.runs import calibration
from labkit.runs.calibration import FILE, calibrate_run, device_of, time_arrivals
from labkit.settings import MODES, Settings
from labkit.steady_rate import SteadyRate, steady_rate
from tests.fake_clock import FakeClock
from tests.parts.test_devices import PROFILE


class Source:
    """As many images as the steps need."""

    def __init__(self, images):
        self.images, self.order = images, SimpleNamespace(epoch=0)

    def __len__(self):
        return self.images


def pipeline(clock, gaps_s, *, workers, compute_s=1.5):
    """Four images a batch, and a time before each; ten times as long before the first ones."""
    batch = {"sample_id": torch.zeros(4, dtype=torch.uint8)}
    device = EmulatedDevice(PROFILE, clock)

    def load():
        for step, gap_s in enumerate(gaps_s):
            clock.sleep(gap_s * (10 if step < max(workers, 1) else 1))
            yield batch

    return SimpleNamespace(
        device=device,
        loader=None,
        source=Source(4 * len(gaps_s)),
        settings=SimpleNamespace(batch_size=4, num_workers=workers),
        step=Step(forward=None, backward=None, loss=None),
        forward=lambda batch: device.run(compute_s),
        batches=lambda loader, device: PREFETCHERS["none"](load(), device, pinned=True),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_batches_do_not_count(workers):
    clock = FakeClock()
    chosen = pipeline(clock, [0.5] * 10, workers=workers)
    rate = time_arrivals(chosen, clock, seconds=24.0).images_per_s
    # Load 0.5 s, copy 4 bytes at 2 bytes/s, compute 1.5 s: four images in 4 s.
    assert rate == 1.0


@pytest.mark.parametrize("gaps_s", [[0.0, 10.0], [10.0, 0.0]], ids=["together", "in turn"])
def test_workers_that_deliver_at_once_are_counted_over_whole_rounds(gaps_s):
    clock = FakeClock()
    chosen = pipeline(clock, gaps_s * 20, workers=2, compute_s=0.0)
    # 10 s and two copies of 2 s: eight images in 14 s.
    rate = time_arrivals(chosen, clock, seconds=15.0).images_per_s
    assert rate == pytest.approx(8 / 14)


@pytest.mark.parametrize(("workers", "fewest"), [(0, 6), (2, 6), (4, 12)])
def test_epochs_with_less_than_three_rounds_have_no_rate_and_a_reason(workers, fewest):
    clock = FakeClock()
    found = time_arrivals(pipeline(clock, [0.5] * (fewest - 1), workers=workers), clock, 30.0)
    assert found.images_per_s is None
    assert f"at least {fewest} batches with {workers} workers, got {fewest - 1}" in found.reason
    short = time_arrivals(pipeline(clock, [0.5] * fewest, workers=workers), clock, 30.0)
    assert short.images_per_s == 1.0


# --- the length of an epoch -----------------------------------------------------------------


class FakeRun:
    """What calibration asks of a run whose loader and devices have these rates."""

    def __init__(self, variants, *, loading, training, images=10_000):
        self.remaining = self.variants = variants
        self.baseline = next(iter(variants.values()))
        self.baseline_facts = gather_facts(vars(self.baseline))
        self.mode, self.images_looked_at = MODES["quick"], images
        self.info = fake_info([*variants], data={"images": images})
        self.progress = SimpleNamespace(say=lambda line: None)
        self.notes, self.note = [], lambda line: self.notes.append(line)
        self.rates = {"nothing": loading, "classifier": min(loading, training)}

    def ask(self, job, *, settings, **more):
        assert job == "measure_rate" and settings.ranks == 1
        return steady_rate([([n / self.rates[settings.step] for n in range(100)], 1)], 0)

    def save(self, **facts):
        self.info = replace(self.info, **facts)


def calibrated_run(**changes):
    rates = {name: changes.pop(name) for name in ("loading", "training")}
    base = {"device": "cpu", "step": "classifier", "num_workers": 2, "batch_size": 8}
    variants = {
        label: Settings(**{**base, **one}) for label, one in changes.pop("variants").items()
    }
    run = FakeRun(variants, **rates, **changes)
    calibrate_run(run, 1.0)
    return run.info.calibration


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (1000.0, 100.0),  # all workers of the machine load 100 images/s, for however many GPUs
        (30.0, 60.0),  # two GPUs of 30 images/s
        (80.0, 100.0),
    ],
)
def test_ranks_share_the_workers_and_have_a_device_each(training, expected):
    variants = {"two": {"ranks": 2}}
    found = calibrated_run(variants=variants, loading=100.0, training=training)
    assert found.images_per_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("workers", "rate", "steps"),
    [
        ([2, 4], 40.0, 12),  # quick mode's own
        ([2, 8], 80.0, 24),  # three rounds of the variant with most workers: 2.4 s
        ([8, 2], 80.0, 24),
        ([2, 32], 80.0, 12),  # 96 batches would take 10 s
        ([2, 16], 1000.0, 125),  # a second's worth is enough
    ],
)
def test_a_quick_epoch_has_three_rounds_of_workers_unless_it_gets_too_long(workers, rate, steps):
    variants = {str(count): {"num_workers": count} for count in workers}
    found = calibrated_run(variants=variants, loading=rate, training=rate)
    assert found.images == steps * 8


# --- the calibrated device ------------------------------------------------------------------

EMULATED = {"device": "emulated", "step": None}


@pytest.fixture(scope="module")
def calibrated(photos, tmp_path_factory, beside_others):
    """A results folder in which this machine is calibrated."""
    results = tmp_path_factory.mktemp("calibrated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_reference_rates", beside_others)
        return lab.calibrate(str(photos), 64, results=results, progress=False), results


def test_the_device_trains_twice_as_fast_as_the_reference_loads(calibrated):
    device, results = calibrated
    assert device.device_images_per_s == 2 * device.reference_images_per_s
    assert device.low <= device.reference_images_per_s <= device.high
    (kept,) = json.loads((results / FILE).read_text())
    assert kept["device_images_per_s"] == device.device_images_per_s
    assert units.rate(device.device_images_per_s) in str(device)


def test_data_that_cannot_be_in_memory_end_it_with_a_sentence(
    photos, tmp_path, monkeypatch, beside_others
):
    monkeypatch.setattr(calibration, "_reference_rates", beside_others)

    def ask(job, **arguments):
        if job == "find_bad_images":
            return [], ""
        raise Skip("warm data must have at least 98.0 % in memory")

    reason = "cannot be calibrated here: warm data must have .*; or set its speed, such as --device"
    with pytest.raises(RuntimeError, match=reason):
        device_of(Settings(data=str(photos), input_px=64), tmp_path, ask=ask, progress=False)


@pytest.mark.parametrize(
    ("rates", "processes", "is_near"),
    [
        ([100, 101], 5, True),
        ([80, 120] + [100] * 20, 21, True),
        ([80, 120], 30, False),
    ],
    ids=["steady", "settling", "noisy"],
)
def test_the_reference_is_measured_until_the_interval_is_narrow_or_a_minute_has_passed(
    rates, processes, is_near, photos, tmp_path, monkeypatch, beside_others
):
    clock, given = FakeClock(), itertools.cycle(rates)

    def ask(job, **arguments):
        if job == "find_bad_images":
            return [], []
        clock.sleep(2.0)
        return SteadyRate(images_per_s=next(given))

    monkeypatch.setattr(calibration, "_reference_rates", beside_others)
    monkeypatch.setattr(calibration, "LEAST_PROCESSES", 5)
    monkeypatch.setattr(calibration, "LONGEST_S", 60.0)
    monkeypatch.setattr("time.monotonic", clock.now)
    settings = Settings(data=str(photos), input_px=64)
    said = []
    found = device_of(settings, tmp_path, ask=ask, say=said.append, progress=False)
    assert found.processes == processes
    # A line for each process from the second on, for a form.
    assert [line.split(",")[0] for line in said[1:]] == [
        f"calibrating the simulated GPU: {2 * n} s of at most 60 s" for n in range(2, processes + 1)
    ]
    assert ("not within 3 %" in str(found)) is not is_near


def test_all_runs_take_the_device_that_is_kept_and_name_it(calibrated, photos):
    device, results = calibrated
    found = compare(photos, results, {"a": {}}, base={**EMULATED, "num_workers": 1, "images": 24})
    calibration = found.info.calibration
    assert calibration.device_images_per_s == pytest.approx(device.device_images_per_s)
    assert calibration.calibrated == str(device)
    rate = found.summary.rows[0].steady_images_per_s
    assert found.summary.x == pytest.approx(device.device_images_per_s / rate)
    speeds = {trial.settings["gpu_images_per_s"] for trial in found.trials}
    assert speeds == {device.device_images_per_s}


def test_another_machine_and_another_input_size_are_measured_anew(calibrated, photos, tmp_path):
    device, results = calibrated
    (kept,) = json.loads((results / FILE).read_text())
    elsewhere = [{**kept, "machine_id": "another"}, {**kept, "input_px": 128}]
    (tmp_path / FILE).write_text(json.dumps(elsewhere))
    compare(photos, tmp_path, {"a": {}}, base=EMULATED)
    *others, own = json.loads((tmp_path / FILE).read_text())
    assert others == elsewhere
    assert own["machine_id"] == hardware.provenance().machine_id
    assert own["measured_utc"] >= device.measured_utc


def test_speeds_of_another_machine_are_said_not_to_be_used(calibrated, photos, tmp_path):
    _, results = calibrated
    (kept,) = json.loads((results / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps([{**kept, "machine_id": "another"}]))
    settings, said = Settings(data=str(photos), input_px=64), []
    device_of(settings, tmp_path, ask=print, say=said.append, progress=False)
    assert f"{FILE} also holds speeds of other machines, which are not used here" in said


def test_data_sets_without_a_manifest_are_told_apart(photos, tmp_path):
    for images in (8, 9):
        (tmp_path / str(images)).mkdir()
        for path in sorted(photos.glob("**/*.jpg"))[:images]:
            shutil.copy(path, tmp_path / str(images))
        lab.calibrate(str(tmp_path / str(images)), 64, results=tmp_path, progress=False)
    first, second = json.loads((tmp_path / FILE).read_text())
    assert first["manifest_hash"] != second["manifest_hash"]


@pytest.mark.parametrize(
    "content",
    [
        "{", "{}", "[1]", pytest.param("[" * 99_999, id="in depth"), '[{"input_px": 64}]',
        {"low": None}, {"high": math.inf}, {"high": 0.0}, {"measured_utc": 5},
        {"device_images_per_s": 5}, {"device_images_per_s": True},
        {"device_images_per_s": 0, "reference_images_per_s": 0, "low": 0},
    ],
    ids=str,
)  # fmt: skip
def test_a_broken_file_is_refused_before_anything_is_measured(
    content, calibrated, photos, tmp_path
):
    if isinstance(content, dict):
        (kept,) = json.loads((calibrated[1] / FILE).read_text())
        content = json.dumps([{**kept, **content}])
    (tmp_path / FILE).write_text(content)
    experiment, how = lab.experiment("workers", data=str(photos)), {"results": tmp_path}
    for measures in (
        partial(lab.calibrate, str(photos), 64, **how), partial(lab.run, experiment, **how),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{FILE} must be what `labkit calibrate` writes"):
            measures(progress=False)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).read_text() == content


@pytest.mark.parametrize("speed", [0, -1, math.nan, math.inf, "-3"])
def test_the_speed_of_a_gpu_is_a_number_above_0(speed):
    with pytest.raises(ValueError, match=r"gpu_images_per_s must be a number above 0,"):
        Settings(gpu_images_per_s=speed)
