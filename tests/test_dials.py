"""Dials: which variants belong together, and from where on a cost is said to stop mattering.

Run: python -m pytest tests/test_dials.py
"""

from dataclasses import replace

import pytest
from fake_dials import all_of, fake_dial

from labkit.catalog import CATALOG
from labkit.dials import DIALS, Series, find_series, say, sentences, stops_mattering
from labkit.settings import Settings
from labkit.summary import Row


def series(*points, name=""):
    """Of (steps, normalized time, lower end, upper end); no ends: no interval."""
    rows = [
        (n, Row(variant=str(n), status="ok", normalized_time=time, ci_low=low, ci_high=high))
        for n, time, low, high in points
    ]
    return Series(name=name, points=tuple(rows))


def found(name, times, **info):
    run, summary = fake_dial(name, times, **info)
    return find_series(run, summary, DIALS[name])


def shape(found):
    return {series.name: [steps for steps, _ in series.points] for series in found}


# --- which variants belong together ------------------------------------------------------------


def test_variants_that_differ_in_the_dial_alone_are_a_series_the_most_frequent_first():
    times = {"every 100 steps": 1.0, "every 10 steps": 1.1, "every 10 steps, in a thread": 1.05}
    assert shape(found("checkpoints", times)) == {"": [10, 100], "in a thread": [10]}


def test_what_else_differs_may_stand_before_the_dial():
    times = {"loops, every step": 1.3, "vectorized, every step": 1.1, "loops, every 10 steps": 1.0}
    assert shape(found("evaluation", times)) == {"loops": [1, 10], "vectorized": [1]}


@pytest.mark.parametrize("name", DIALS)
def test_every_variant_of_the_catalogs_dials_has_its_place_in_full_mode(name):
    experiment = CATALOG[name](Settings())
    turned = found(name, all_of(name))
    assert all(steps == [1, 10, 100] for steps in shape(turned).values())
    placed = [row.variant for one in turned for _, row in one.points]
    labels = {*experiment.variants, *experiment.in_full} - {experiment.baseline}
    assert (len(placed), set(placed)) == (len(labels), labels)


@pytest.mark.parametrize("name", DIALS)
def test_the_advice_is_what_the_experiments_document_says(name):
    said = CATALOG[name](Settings()).source
    dial = DIALS[name]
    if dial.advice:
        assert f"every {dial.advice} steps" in said
        assert said.startswith(f"{dial.source}:")
    else:
        assert not dial.source
        assert said.endswith("no figure")


def test_what_was_not_measured_has_no_place():
    times = {"every step": 1.2}
    turned = found("logs", times, skipped={"every 10 steps": "no room"})
    assert shape(turned) == {"": [1]}
    assert found("logs", {}, skipped={"every step": "no room"}) == []
    assert found("logs", {}, blocks=0) == []


def test_where_the_baseline_turns_the_dial_itself_nothing_is_said_of_never():
    assert found("logs", {"every 100 steps": 0.9}, baseline="every step") == []


# --- what is said of a series --------------------------------------------------------------------

LESS = series((1, 1.2, 1.19, 1.21), (10, 1.004, 1.001, 1.008), (100, 1.001, 0.998, 1.004))
MORE = series((1, 1.2, 1.19, 1.21), (100, 1.05, 1.011, 1.09), name="in a thread")
NOISY = series((1, 1.2, 1.19, 1.21), (100, 1.002, 0.99, 1.011))


def test_it_stops_mattering_where_all_from_there_on_cost_less():
    assert stops_mattering(LESS) == 10
    assert say(LESS) == "every 10 steps costs less than 1 %"
    cheap = series((1, 1.0, 0.99, 1.01), name="loops")  # the limit itself is not above it
    assert say(cheap) == "loops: every step costs less than 1 %"


def test_a_cheap_point_before_a_costly_one_is_no_place_to_stop():
    odd = series((1, 1.0, 0.99, 1.005), (10, 1.1, 1.05, 1.2), (100, 1.0, 0.99, 1.005))
    assert stops_mattering(odd) == 100


def test_what_still_costs_more_at_its_rarest_says_how_much():
    assert stops_mattering(MORE) is None
    assert say(MORE) == "in a thread: even every 100 steps costs more than 1 % (1.050)"


@pytest.mark.parametrize(
    "last", [(1.002, 0.99, 1.011), (1.02, 1.01, 1.03), (1.002, None, None), (1.2, None, None)]
)
def test_an_interval_on_both_sides_of_the_limit_or_none_cannot_tell(last):
    noisy = series((10, 1.0, 0.999, 1.001), (100, *last))
    assert stops_mattering(noisy) is None
    expected = f"too noisy to tell whether every 100 steps costs less than 1 % ({last[0]:.3f})"
    assert say(noisy) == expected


def test_only_full_mode_speaks_verdicts():
    _, judged = fake_dial("logs", {"every step": 1.2})
    assert sentences(judged, [LESS, MORE]) == [
        "Every 10 steps costs less than 1 %.",
        "In a thread: even every 100 steps costs more than 1 % (1.050).",
    ]
    _, quick = fake_dial("logs", {"every step": 1.2}, mode="quick", blocks=3)
    assert sentences(quick, [NOISY])[1:] == ["Numbers, no verdict."]
    assert sentences(replace(judged, stable=False), [LESS])[1:] == ["Numbers, no verdict."]
    assert sentences(quick, []) == ["No variant was measured along the dial."]
