"""Predictions of combined changes, against sums done by hand.

Run: python -m pytest tests/test_predictions.py
"""

import itertools
import math
from pathlib import Path

import pytest
from fakes import fake_info, fake_trials

import labkit as lab
from labkit.report.predictions import DOCUMENT_COMBINED, DOCUMENT_SINGLES, MODELS, predictions
from labkit.report.run import Run

# Loading and computing alone, and single changes, as shares of the baseline's time.
LOADS = {("hdd", "loops"): 0.6, ("ssd", "loops"): 0.5, ("hdd", "on_device"): 0.75,
         ("ssd", "on_device"): 0.3}  # fmt: skip
COMPUTES = {"loops": 0.8, "on_device": 0.7}
SINGLES = {"ssd": 0.9, "prefetch_generator": 0.95, "data_prefetcher": 0.98, "on_device": 0.7}


def arm(storage="hdd", prefetcher="none", preprocessor="loops", **other):
    return {
        "storage": storage, "prefetcher": prefetcher, "preprocessor": preprocessor,
        "loader": "torch", "step": "timed", "num_workers": 2, **other,
    }  # fmt: skip


def factorial():
    """Every arm of full mode with its time; the combinations multiply, so that one is right."""
    arms = {}
    prefetchers = ("none", "prefetch_generator", "data_prefetcher")
    for values in itertools.product(("hdd", "ssd"), prefetchers, ("loops", "on_device")):
        time = math.prod(SINGLES.get(value, 1.0) for value in values)
        arms[" ".join(values)] = arm(*values), time
    for (storage, preprocessor), time in LOADS.items():
        name = f"load {storage} {preprocessor}"
        arms[name] = arm(storage, preprocessor=preprocessor, step="nothing"), time
    for preprocessor, time in COMPUTES.items():
        arms[f"compute {preprocessor}"] = arm(preprocessor=preprocessor, loader="resident"), time
    return arms


def made(arms, *, noise=0.0, blocks=3, **info):
    """A run of (settings, time) by label, the baseline first; no time: not measured."""
    times = {name: time for name, (_, time) in arms.items() if time is not None}
    variants = {name: settings for name, (settings, _) in arms.items()}
    info = {**fake_info(list(arms), **info), "variants": variants}
    trials = fake_trials(times, noise=noise, drift=0.0, blocks=blocks)
    return Run(folder=Path("run"), info=info, trials=tuple(trials))


def predicted(arms, variant, **info):
    row = predictions(made(arms, **info)).loc[variant]
    return [None if math.isnan(row[model]) else row[model] for model in MODELS]


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        (
            "ssd prefetch_generator on_device",
            (1 - 0.1 - 0.05 - 0.3, 0.9 * 0.95 * 0.7, 0.7, 0.7 + 0.2),
        ),
        ("hdd data_prefetcher on_device", (1 - 0.02 - 0.3, 0.98 * 0.7, 0.7, 0.75 + 0.2)),
        # The baseline's max(0.6, 0.8) leaves 0.2 that is not overlapped.
        ("ssd none loops", (None, None, None, 0.8 + 0.2)),
        ("hdd none on_device", (None, None, None, 0.75 + 0.2)),  # loading is longer
    ],
)
def test_each_model_predicts_as_its_sum_says(variant, expected):
    assert predicted(factorial(), variant) == [x and pytest.approx(x) for x in expected]


def test_a_variant_that_differs_in_more_than_the_factors_is_no_combination():
    arms = {**factorial(), "more workers": (arm("ssd", num_workers=8), 0.5)}
    assert "more workers" not in predictions(made(arms)).index
    assert predicted(arms, "ssd none on_device")[0] == pytest.approx(1 - 0.1 - 0.3)


def test_a_combination_without_a_number_keeps_its_predictions_and_its_reason():
    arms = factorial()
    arms["ssd none on_device"] = arms["ssd none on_device"][0], None
    run = made(arms, skipped={"ssd none on_device": "no such disk"})
    row = predictions(run).loc["ssd none on_device"]
    assert math.isnan(row["measured"])
    assert row["additive"] == pytest.approx(0.6)
    assert row["remark"] == "skipped: no such disk"


def test_a_quick_run_shows_what_was_measured_and_the_documents_own_sums():
    quick = {
        "original": (arm(), 1.0),
        "best": (arm("ssd", "data_prefetcher", "on_device"), 0.6),
    }
    shown = predictions(made(quick))
    assert shown.loc["best", "measured"] == pytest.approx(0.6)
    assert shown.loc["best", list(MODELS)].isna().all()
    assert shown.loc["best", "remark"] == "full mode measures the parts"
    document = shown.loc["[004]: ssd, prefetch_generator, simplified"]
    assert list(document[["measured", *MODELS[:3]]]) == pytest.approx(
        [0.61, 0.415, 0.860 * 0.894 * 0.661, 0.661]
    )


def test_the_measured_interval_tells_which_model_holds():
    shown = predictions(made(factorial(), noise=0.02, blocks=6, mode="full"))
    inside = shown.loc["ssd prefetch_generator on_device", "inside_interval"].split(", ")
    assert "multiplicative" in inside  # how the run was made
    assert "additive" not in inside


def test_the_documents_figures_are_those_of_the_catalog():
    published = {
        name: value
        for experiment in ("prefetching", "storage", "preprocessing")
        for name, value in lab.experiment(experiment).published.items()
    }
    assert DOCUMENT_SINGLES == {name: published[name] for name in DOCUMENT_SINGLES}
    assert DOCUMENT_COMBINED in lab.experiment("combined").published.values()
