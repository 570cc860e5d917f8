"""Seconds and bytes once, against seconds saved in every epoch."""

import math
from pathlib import Path

import pytest
from fakes import fake_info, fake_trials

from labkit.report import costs as storing
from labkit.report.run import Run

DATA = {"images": 1000, "bytes": 100_000_000, "folder": "data/photos"}
TIMES = {"original": 1.0, "both": 0.5}


def made(pack_s, size_bytes=100_000_000, **more):
    return {"folder": "packs/x", "images": 1000, "bytes": size_bytes, "pack_s": pack_s, **more}


def costs(times, made_of, *, mode="full", blocks=10, noise=0.002, **info):
    """The baseline takes 2 s for two epochs of 100 images: 10 s for an epoch of all images."""
    told = fake_info(
        list(times), mode=mode, blocks=blocks, data=DATA, costs=made_of,
        calibration={"images": 100}, **info,
    )  # fmt: skip
    trials = fake_trials(times, blocks=blocks, noise=noise, drift=0)
    return storing.costs(Run(folder=Path("run"), info=told, trials=tuple(trials)))


def test_seconds_once_are_earned_back_by_seconds_saved_per_epoch_of_all_images():
    found = costs(
        {"original": 1.0, "both": 0.8, "mine": 0.5},
        {"both": made(7.0), "mine": made(50.0, 250_000_000)},
    )
    both, mine = found.loc["both"], found.loc["mine"]
    assert both["saved_s_per_epoch"] == pytest.approx(0.2 * 10, rel=0.05)
    assert both["earned_back_epochs"] == math.ceil(7.0 / both["saved_s_per_epoch"])
    assert mine["earned_back_epochs"] == math.ceil(50.0 / mine["saved_s_per_epoch"])
    assert (both["of_original"], mine["of_original"]) == (1.0, 2.5)
    assert math.isnan(found.loc["original", "saved_s_per_epoch"])


@pytest.mark.parametrize(
    ("time", "more"),
    [
        (1.0, {}),  # no practical difference
        (1.5, {}),  # slower
        (1.5, {"mode": "quick", "blocks": 3}),
        (0.9, {"noise": 0.5}),  # inconclusive
    ],
)
def test_what_gains_nothing_is_never_earned_back(time, more):
    found = costs({"original": 1.0, "both": time}, {"both": made(7.0)}, **more).loc["both"]
    assert math.isnan(found["earned_back_epochs"])
    assert found["made_s"] == 7.0


def test_quick_mode_has_numbers_without_a_verdict():
    found = costs(TIMES, {"both": made(7.0)}, mode="quick", blocks=3).loc["both"]
    assert found["earned_back_epochs"] == 2
    assert found["verdict"] == ""


def test_where_all_read_the_data_as_it_is_there_is_no_row():
    assert costs(TIMES, {}).empty
