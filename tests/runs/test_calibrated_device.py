"""The calibrated device is measured once, kept, and checked."""

import itertools
import json
import math
import re
import shutil
from functools import partial

import pytest
from small import compare

import labkit as lab
from labkit import units
from labkit.contracts import Skip
from labkit.machine import hardware, shared_memory
from labkit.runs import calibrated_device
from labkit.runs.calibrated_device import FILE, device_of
from labkit.runs.launcher import TrialFailed
from labkit.settings import Settings
from labkit.steady_rate import SteadyRate
from tests.fake_clock import FakeClock

SIMULATED = {"device": "simulated", "step": None}


@pytest.fixture(scope="module")
def calibrated(photos, tmp_path_factory, beside_others):
    """A results folder in which this machine is calibrated."""
    results = tmp_path_factory.mktemp("calibrated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrated_device, "_reference_rates", beside_others)
        return lab.calibrate(str(photos), 64, results=results, progress=False), results


def test_the_device_trains_twice_as_fast_as_the_reference_loads(calibrated):
    device, results = calibrated
    assert device.device_images_per_s == 2 * device.reference_images_per_s
    assert device.low <= device.reference_images_per_s <= device.high
    (kept,) = json.loads((results / FILE).read_text())
    assert kept["device_images_per_s"] == device.device_images_per_s
    assert units.rate(device.device_images_per_s) in str(device)


@pytest.mark.parametrize(
    "reason",
    [
        Skip("warm data must have at least 98.0 % in memory"),
        TrialFailed("/dev/shm must have room for the batches of all loader workers"),
    ],
    ids=["skipped", "failed"],
)
def test_a_reference_that_cannot_be_measured_ends_it_with_a_sentence(
    reason, photos, tmp_path, monkeypatch, beside_others
):
    monkeypatch.setattr(calibrated_device, "_reference_rates", beside_others)

    def ask(job, **arguments):
        if job == "find_bad_images":
            return [], ""
        raise reason

    message = f"cannot be calibrated here: {reason}; or set its speed, such as --gpu-images-per-s"
    with pytest.raises(RuntimeError, match=message):
        device_of(Settings(data=str(photos), input_px=64), tmp_path, ask=ask, progress=False)


def test_where_shared_memory_has_no_room_for_the_reference_its_advice_helps(
    photos, tmp_path, monkeypatch, beside_others
):
    """64 MB, as in a container; of 24 photographs six batches are made, of four each."""
    monkeypatch.setattr(calibrated_device, "_reference_rates", beside_others)
    room = shutil._ntuple_diskusage(64 << 20, 0, 64 << 20)
    monkeypatch.setattr(shared_memory, "usage", lambda: room)
    asked = []

    def ask(job, **arguments):
        asked.append(job)
        return [], ""

    with pytest.raises(RuntimeError) as error:
        settings = Settings(data=str(photos), input_px=512)
        device_of(settings, tmp_path, ask=ask, progress=False)
    assert re.search(
        r"must have room for 5 batches of 34 MB, got 67 MB free of 67 MB; use a smaller input_px, "
        r"or give a container more with: .*; or set its speed, such as --gpu-images-per-s",
        str(error.value),
    )
    assert asked == ["find_bad_images"]


@pytest.mark.parametrize(
    ("rates", "processes", "is_near"),
    [
        ([100, 101], 5, True),
        ([80, 120] + [100] * 20, 13, True),
        ([80, 120], 15, False),
    ],
    ids=["steady", "settling", "noisy"],
)
def test_the_reference_is_measured_until_the_interval_is_narrow_or_half_a_minute_has_passed(
    rates, processes, is_near, photos, tmp_path, monkeypatch, beside_others
):
    clock, given = FakeClock(), itertools.cycle(rates)

    def ask(job, **arguments):
        if job == "find_bad_images":
            return [], []
        clock.sleep(2.0)
        return SteadyRate(images_per_s=next(given))

    monkeypatch.setattr(calibrated_device, "_reference_rates", beside_others)
    monkeypatch.setattr(calibrated_device, "MIN_CALIBRATION_PROCESSES", 5)
    monkeypatch.setattr(calibrated_device, "MAX_CALIBRATION_S", 30.0)
    monkeypatch.setattr("time.monotonic", clock.now)
    settings = Settings(data=str(photos), input_px=64)
    said = []
    found = device_of(settings, tmp_path, ask=ask, say=said.append, progress=False)
    assert found.processes == processes
    # A line for each process from the second on, for a form.
    assert [line.split(",")[0] for line in said[1:]] == [
        f"calibrating the simulated GPU: {2 * n} s of at most 30 s" for n in range(2, processes + 1)
    ]
    assert ("not within 5 %" in str(found)) is not is_near


def test_all_runs_take_the_device_that_is_kept_and_name_it(calibrated, photos):
    device, results = calibrated
    found = compare(photos, results, {"a": {}}, base={**SIMULATED, "num_workers": 1, "images": 24})
    calibration = found.info.calibration
    assert calibration.device_images_per_s == pytest.approx(device.device_images_per_s)
    assert calibration.calibrated == str(device)
    rate = found.summary.rows[0].steady_images_per_s
    assert found.summary.x == pytest.approx(device.device_images_per_s / rate)
    speeds = {trial.settings["gpu_images_per_s"] for trial in found.trials}
    assert speeds == {device.device_images_per_s}


@pytest.fixture
def kept(calibrated):
    """The calibrated device as it is stored."""
    (stored,) = json.loads((calibrated[1] / FILE).read_text())
    return stored


def ask_for(photos, results, say=str):
    """The device that a run takes; nothing can be measured with the rates that conftest gives."""
    settings = Settings(data=str(photos), input_px=64)
    return device_of(settings, results, ask=print, say=say, progress=False)


def test_another_machine_other_cores_and_another_input_size_are_measured_anew(
    kept, photos, tmp_path
):
    changes = {"machine_id": "another"}, {"cores": kept["cores"] + 1}, {"input_px": 128}
    elsewhere, said = [{**kept, **change} for change in changes], []
    (tmp_path / FILE).write_text(json.dumps(elsewhere))
    ask_for(photos, tmp_path, said.append)
    *others, own = json.loads((tmp_path / FILE).read_text())
    assert others == elsewhere
    assert own["machine_id"] == hardware.provenance().machine_id
    assert own["measured_utc"] >= kept["measured_utc"]
    assert f"{FILE} also holds speeds of other machines, which are not used here" in said


def test_a_device_that_an_earlier_version_kept_is_used(calibrated, kept, photos, tmp_path):
    earlier = {"manifest_hash" if name == "data_hash" else name: x for name, x in kept.items()}
    (tmp_path / FILE).write_text(json.dumps([earlier]))
    assert ask_for(photos, tmp_path) == calibrated[0]


def test_data_sets_without_a_manifest_are_told_apart(photos, tmp_path):
    for images in (8, 9):
        (tmp_path / str(images)).mkdir()
        for path in sorted(photos.glob("**/*.jpg"))[:images]:
            shutil.copy(path, tmp_path / str(images))
        ask_for(tmp_path / str(images), tmp_path)
    first, second = json.loads((tmp_path / FILE).read_text())
    assert first["data_hash"] != second["data_hash"]


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
def test_a_broken_file_is_refused_before_anything_is_measured(content, kept, photos, tmp_path):
    if isinstance(content, dict):
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
