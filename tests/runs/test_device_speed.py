"""The calibrated device is measured once, kept, and refused where what is kept is broken."""

import json
import math
import shutil

import pytest

import labkit as lab
from labkit import units
from labkit.machine import hardware
from labkit.runs import calibration
from labkit.runs.calibration import FILE
from labkit.settings import Settings, vary

SMALL = {"input_px": 64, "batch_size": 4, "num_workers": 0, "images": 8, "cache": "as found"}


def run(photos, results, **changes):
    base = Settings(data=str(photos), device="emulated", **{**SMALL, **changes})
    variants = vary(base, pin_memory=[True, False])
    experiment = lab.Experiment("device", question="?", variants=variants, baseline="True")
    return lab.run(experiment, blocks=1, results=results, progress=False)


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


def test_all_runs_take_the_device_that_is_kept_and_name_it(calibrated, photos):
    device, results = calibrated
    found = run(photos, results)
    calibration = found.info["calibration"]
    assert calibration["device_images_per_s"] == pytest.approx(device.device_images_per_s)
    assert calibration["calibrated"] == str(device)
    load = calibration["load_images_per_s"]
    assert calibration["x"] == pytest.approx(device.device_images_per_s / load)
    speeds = {trial.settings["device_speed"] for trial in found.trials}
    assert speeds == {device.device_images_per_s}


def test_another_machine_and_another_input_size_are_measured_anew(calibrated, photos, tmp_path):
    device, results = calibrated
    (kept,) = json.loads((results / FILE).read_text())
    elsewhere = [{**kept, "machine_id": "another"}, {**kept, "input_px": 128}]
    (tmp_path / FILE).write_text(json.dumps(elsewhere))
    run(photos, tmp_path)
    *others, own = json.loads((tmp_path / FILE).read_text())
    assert others == elsewhere
    assert own["machine_id"] == hardware.provenance()["machine_id"]
    assert own["measured_utc"] >= device.measured_utc


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
        "{", "{}", "[1]", '[{"input_px": 64}]',
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
    with pytest.raises(ValueError, match=f"{FILE} must be what `labkit calibrate` writes"):
        lab.calibrate(str(photos), 64, results=tmp_path, progress=False)
    assert (tmp_path / FILE).read_text() == content


@pytest.mark.parametrize("speed", [0, -1, math.nan, math.inf, "fast"])
def test_a_device_speed_is_a_number_above_0(speed):
    with pytest.raises(ValueError, match=r"device_speed must be a number( of images/s above 0)?,"):
        Settings(device_speed=speed)
