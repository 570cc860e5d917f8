"""Predictions of combined changes, against sums done by hand.

Run: python -m pytest tests/test_predictions.py
"""

import itertools
import math
from dataclasses import asdict

import pytest
from fakes import fake_info, fake_trial, fake_trials
from hypothesis import given
from hypothesis import strategies as st

from labkit import catalog, units
from labkit.predictions import (
    DOCUMENT_COMBINED,
    DOCUMENT_SINGLES,
    FACTORS,
    Prediction,
    document_predictions,
    inside,
    predict,
    predictions_table,
)
from labkit.summary import summarize

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


def measure(arms, *, noise=0.0, blocks=3, **info):
    """A run of (settings, time) by label, the baseline first, as info and summary."""
    times = {name: time for name, (_, time) in arms.items() if time is not None}
    variants = {name: settings for name, (settings, _) in arms.items()}
    info = {**fake_info(list(arms), **info), "variants": variants}
    trials = fake_trials(times, noise=noise, drift=0.0, blocks=blocks)
    return info, summarize(info, trials)


def predicted(arms, **info):
    return {p.variant: p for p in predict(*measure(arms, **info))}


# --- the models ---------------------------------------------------------------------------


def test_savings_add_up_in_one_model_and_multiply_in_the_other():
    p = predicted(factorial())["ssd prefetch_generator on_device"]
    assert p.changed == FACTORS
    assert p.additive == pytest.approx(1 - 0.1 - 0.05 - 0.3)
    assert p.multiplicative == pytest.approx(0.9 * 0.95 * 0.7)
    assert p.best_single == pytest.approx(0.7)
    assert p.measured == pytest.approx(p.multiplicative)
    assert p.remark == ""


def test_two_changes_are_predicted_from_just_those_two():
    p = predicted(factorial())["hdd data_prefetcher on_device"]
    assert p.changed == ("prefetcher", "preprocessor")
    assert p.additive == pytest.approx(1 - 0.02 - 0.3)
    assert p.multiplicative == pytest.approx(0.98 * 0.7)


def test_a_single_change_is_an_ingredient_and_only_the_max_model_predicts_it():
    p = predicted(factorial())["ssd none loops"]
    assert p.changed == ("storage",)
    assert (p.additive, p.multiplicative, p.best_single) == (None, None, None)
    # The baseline: max(0.6, 0.8) = 0.8, so 0.2 is not overlapped; here max(0.5, 0.8) + 0.2.
    assert p.max_model == pytest.approx(1.0)


def test_the_max_model_takes_the_longer_floor_and_adds_what_the_baseline_does_not_overlap():
    found = predicted(factorial())
    assert found["hdd none on_device"].max_model == pytest.approx(0.75 + 0.2)  # loading decides
    assert found["ssd none on_device"].max_model == pytest.approx(0.70 + 0.2)  # computing decides


def test_a_prefetcher_does_not_enter_the_max_model():
    found = predicted(factorial())
    names = ("none", "prefetch_generator", "data_prefetcher")
    assert len({found[f"ssd {name} on_device"].max_model for name in names}) == 1
    assert found["hdd data_prefetcher loops"].max_model == pytest.approx(1.0)


def test_a_floor_above_the_baseline_leaves_nothing_unoverlapped():
    arms = factorial()
    arms["load hdd loops"] = arms["load hdd loops"][0], 1.04  # noise
    assert predicted(arms)["ssd none on_device"].max_model == pytest.approx(0.7)


@given(times=st.lists(st.floats(0.05, 1), min_size=3, max_size=3))
def test_of_savings_the_sum_is_the_boldest_and_the_best_single_the_most_careful(times):
    arms = {
        "base": (arm(), 1.0), "s": (arm("ssd"), times[0]),
        "f": (arm(prefetcher="data_prefetcher"), times[1]),
        "p": (arm(preprocessor="on_device"), times[2]),
        "all": (arm("ssd", "data_prefetcher", "on_device"), 0.5),
    }  # fmt: skip
    p = predicted(arms)["all"]
    assert p.additive <= p.multiplicative + 1e-9 <= p.best_single + 2e-9


# --- roles --------------------------------------------------------------------------------


def test_roles_are_read_off_the_settings_never_off_the_labels():
    arms = factorial()
    renamed = dict(zip((f"v{i}" for i in range(len(arms))), arms.values()))
    found, again = predict(*measure(arms)), predict(*measure(renamed))
    assert len(found) == 11  # twelve combinations but for the baseline, no floor among them
    for p, q in zip(found, again):
        assert q.variant.startswith("v")
        assert (p.changed, p.additive, p.max_model) == (q.changed, q.additive, q.max_model)


def test_whatever_stands_in_for_the_hard_disk_is_the_baselines_storage():
    arms = {
        name: ({**settings, "storage": settings["storage"].replace("hdd", "modelled_hdd")}, time)
        for name, (settings, time) in factorial().items()
    }
    assert predicted(arms)["ssd none on_device"].additive == pytest.approx(1 - 0.1 - 0.3)


def test_a_variant_that_differs_in_more_than_the_factors_is_no_combination():
    arms = {**factorial(), "more workers": (arm("ssd", num_workers=8), 0.5)}
    found = predicted(arms)
    assert "more workers" not in found
    assert found["ssd none on_device"].additive == pytest.approx(1 - 0.1 - 0.3)


def test_loading_alone_with_a_prefetcher_is_not_the_floor():
    slow = arm("hdd", "prefetch_generator", "on_device", step="nothing")
    arms = {"hdd none loops": (arm(), 1.0), "odd": (slow, 5.0), **factorial()}
    assert predicted(arms)["hdd none on_device"].max_model == pytest.approx(0.75 + 0.2)


def test_the_catalogs_full_mode_has_every_arm_that_the_models_need():
    experiment = catalog.experiment("combined")
    variants = {**experiment.variants, **experiment.in_full}
    found = predicted({name: (asdict(settings), 0.9) for name, settings in variants.items()})
    assert len(found) == 11
    for p in found.values():
        assert p.remark == ""
        assert (p.additive is None) == (len(p.changed) == 1)
        assert p.max_model is not None


# --- what is missing ----------------------------------------------------------------------

QUICK = {
    "original": (arm(), 1.0),
    "best": (arm("ssd", "data_prefetcher", "on_device"), 0.6),
    "generator": (arm("ssd", "prefetch_generator", "on_device"), 0.62),
}


def test_a_quick_run_predicts_nothing_and_says_what_would():
    first, second = predict(*measure(QUICK))
    assert (first.variant, second.variant) == ("best", "generator")
    assert first.measured == pytest.approx(0.6)
    assert (first.additive, first.multiplicative, first.best_single, first.max_model) == (
        (None,) * 4
    )
    assert first.remark == (
        "full mode of combined measures each change alone, and loading and computing alone"
    )
    assert inside(first) == units.UNKNOWN


@pytest.mark.parametrize(
    ("lost", "predictions", "remark"),
    [
        ("ssd none loops", (None, 0.9), "no number for ssd none loops"),
        ("load ssd on_device", (0.6, None), "no number for load ssd on_device"),
        ("compute loops", (0.6, None), "no number for compute loops"),  # the baseline's floor
    ],
)
def test_an_arm_without_a_number_leaves_out_what_needs_it(lost, predictions, remark):
    arms = factorial()
    arms[lost] = arms[lost][0], None
    p = predicted(arms)["ssd none on_device"]
    assert (p.additive, p.max_model) == tuple(x and pytest.approx(x) for x in predictions)
    assert p.remark == remark


def test_a_combination_without_a_number_keeps_its_predictions_and_says_why():
    arms = factorial()
    arms["ssd none on_device"] = arms["ssd none on_device"][0], None
    skipped = {"ssd none on_device": "no such disk"}
    p = predicted(arms, skipped=skipped)["ssd none on_device"]
    assert (p.measured, p.ci_low) == (None, None)
    assert p.additive == pytest.approx(0.6)
    assert p.remark == "skipped: no such disk"


def test_without_a_baseline_nothing_is_predicted():
    info, _ = measure(factorial())
    trials = [fake_trial(name, 0, "", 1.0) for name in info["variants"]]
    for p in predict(info, summarize(info, trials)):
        assert p.measured is p.additive is p.multiplicative is p.max_model is None
        assert "no block in which this and the baseline are complete" in p.remark


def test_a_run_without_these_factors_has_no_predictions():
    arms = {"opencv": (arm(decoder="opencv"), 1.0), "pillow": (arm(decoder="pillow"), 0.9)}
    assert predict(*measure(arms)) == ()
    assert predictions_table(()).empty


# --- the document -------------------------------------------------------------------------


def test_the_documents_own_figures_make_bolder_predictions_than_it_reports():
    generator, side_stream = document_predictions()
    assert generator.additive == pytest.approx(0.415)  # 58.5 % saved
    assert generator.multiplicative == pytest.approx(0.508, abs=5e-4)
    assert generator.best_single == 0.661
    assert side_stream.additive == pytest.approx(0.412)
    assert side_stream.multiplicative == pytest.approx(0.860 * 0.891 * 0.661)
    for p in (generator, side_stream):
        assert p.measured == pytest.approx(1 - 0.39)
        assert p.additive < p.multiplicative < p.measured < p.best_single
        assert p.max_model is p.ci_low is None


def test_the_documents_figures_are_those_of_the_catalog():
    published = {
        name: value
        for experiment in ("prefetching", "storage", "preprocessing")
        for name, value in catalog.experiment(experiment).published.items()
    }
    assert DOCUMENT_SINGLES == {name: published[name] for name in DOCUMENT_SINGLES}
    assert DOCUMENT_COMBINED in catalog.experiment("combined").published.values()


# --- the table ----------------------------------------------------------------------------


def test_the_measured_interval_tells_which_model_holds():
    p = Prediction(
        variant="x", changed=FACTORS, measured=0.6, ci_low=0.55, ci_high=0.65,
        additive=0.41, multiplicative=0.551, best_single=0.66, max_model=0.649,
    )  # fmt: skip
    assert inside(p) == "multiplicative, max(load, compute)"
    alone = Prediction(
        variant="x", changed=FACTORS, measured=0.6, ci_low=0.55, ci_high=0.65, additive=0.41
    )
    assert inside(alone) == "none"


def test_a_table_of_a_full_run_has_every_combination_and_its_interval():
    info, summary = measure(factorial(), noise=0.02, blocks=6, mode="full")
    shown = predictions_table(predict(info, summary))
    assert shown.index.name == "variant"
    assert list(shown.columns) == [
        "measured [95 % interval]", "additive", "multiplicative", "best single",
        "max(load, compute)", "inside the interval", "remark",
    ]  # fmt: skip
    cells = shown.loc["ssd prefetch_generator on_device"]
    row = next(r for r in summary.rows if r.variant == cells.name)
    assert cells["measured [95 % interval]"] == (
        f"{units.normalized(row.normalized_time)} {units.interval(row.ci_low, row.ci_high)}"
    )
    assert "multiplicative" in cells["inside the interval"]  # how the run was made
    assert "additive" not in cells["inside the interval"].split(", ")


def test_a_quick_table_still_shows_the_documents_own_arithmetic():
    shown = predictions_table([*predict(*measure(QUICK)), *document_predictions()])
    assert len(shown) == 4
    assert shown.loc["best", "additive"] == units.UNKNOWN
    assert "full mode" in shown.loc["best", "remark"]
    document = shown.loc["[004]: ssd, prefetch_generator, simplified"]
    assert list(document[:6]) == ["0.610", "0.415", "0.508", "0.661", "–", "–"]
