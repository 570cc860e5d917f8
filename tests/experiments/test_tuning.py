"""Tuning: which settings are taken by the numbers, in which words, and once for real."""

import math
import re
import threading
from dataclasses import replace

import pytest
from fakes import fake_trial

import labkit as lab
from labkit.analysis.compare import Comparison
from labkit.analysis.rows import Row
from labkit.contracts import Cancelled
from labkit.experiments import tuning
from labkit.experiments.tuning import DEFAULT, Tuned, choose
from labkit.settings import complete

BASE = complete(lab.Settings(), cores=4, has_cuda=False, can_fork=True)


def measured(**numbers):
    """default=(normalized time, CPU-seconds), and others as four=(…)."""
    return {label: tried(label, time, cpu_s) for label, (time, cpu_s) in numbers.items()}


def tried(label, time, cpu_s):
    trial = fake_trial(label, 0)
    trial = replace(trial, cpu_s=cpu_s * trial.images / 1000)
    compared = Comparison(log_ratios=(math.log(time),))
    return Row(variant=label, status="ok", trials=(trial,), compared=compared)


@pytest.mark.parametrize(
    ("numbers", "chosen"),
    [
        ({"default": (1, 5), "four": (0.8, 9), "eight": (0.79, 12)}, "four"),  # cheaper of equals
        ({"default": (1, 5), "four": (0.8, 9), "eight": (0.7, 12)}, "eight"),  # not equal
        ({"default": (1, 5), "one": (1.02, 3)}, "one"),  # as fast, and cheaper
        ({"default": (1, 5), "one": (1.02, 4.9)}, DEFAULT),  # next to nothing cheaper
        ({"default": (1, 5), "one": (1.04, 1)}, DEFAULT),  # slower
        ({"default": (1, 5), "four": (0.98, 5.1)}, DEFAULT),
        ({"default": (1, 5), "four": (0.96, 5.1)}, "four"),
    ],
)
def test_of_the_equally_fast_the_cheapest_is_taken(numbers, chosen):
    assert choose(measured(**numbers)) == chosen


@pytest.mark.parametrize(
    ("label", "title"),
    [(DEFAULT, "Keep the default: num_workers=2, prefetch_factor=2,"), ("four", "Take four: num_")],
)
def test_the_table_shows_what_was_chosen_and_every_number(label, title):
    found = measured(default=(1, 5), four=(0.8, 9))
    shown = Tuned(settings=BASE, label=label, measured=found, runs=(), is_whole=False)
    assert repr(shown).startswith(title)
    assert list(shown.table().loc["four"]) == pytest.approx([0.8, 9], rel=1e-12)
    assert "budget_s was too short" in shown._repr_html_()


def test_a_user_can_cancel_and_what_was_measured_stays(photos, tmp_path):
    cancel = threading.Event()
    cancel.set()
    settings = lab.Settings(data=str(photos), device="cpu")
    with pytest.raises(Cancelled, match=r"cancelled; .* holds what was measured"):
        lab.tune(settings, results=tmp_path, cancel=cancel, progress=False)
    assert [lab.find_run(run).info.status for run in lab.list_runs(tmp_path)] == ["cancelled"]


def test_a_budget_too_small_for_two_settings_is_refused(photos, tmp_path):
    message = "budget_s must leave time for two settings, got 0; "
    with pytest.raises(ValueError, match=re.escape(message)):
        lab.tune(lab.Settings(data=str(photos)), results=tmp_path, budget_s=0, progress=False)


def test_real_settings_are_tuned(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "FIRST_BLOCKS", 1)
    monkeypatch.setattr(tuning, "SECOND_BLOCKS", 1)
    given = lab.Settings(
        data=str(photos), images=16, batch_size=4, input_px=64, num_workers=0, epochs=1,
        loader="threads",
        cache="warm", gpu_images_per_s="resnet50_h100", device="simulated",
    )  # fmt: skip
    tuned = lab.tune(given, results=tmp_path, budget_s=1e4, progress=False)  # however slow
    assert tuned.is_whole
    assert [run.info.experiment for run in tuned.runs] == ["tune", "tune"]
    assert {DEFAULT, "num_workers=1"} <= set(tuned.measured)
    assert tuned.measured[DEFAULT].normalized_time == 1
    assert all(each.cpu_s_per_1000_images > 0 for each in tuned.measured.values())
    left = {name: getattr(given, name) for name in tuning.KNOBS}
    assert replace(tuned.settings, **left) == given  # nothing else is touched
    assert "Simulated GPU, 1,790 images/s, resnet50_h100" in repr(tuned)
    detail = lab.table(tuned.runs[0], detail=True)
    assert (detail["wait_p50_s"] <= detail["wait_p99_s"]).all()
