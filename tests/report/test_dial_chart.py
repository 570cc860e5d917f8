"""The chart of a dial: an honest axis, the advice, and from where on a cost is negligible.

Run: python -m pytest tests/test_dial_chart.py
"""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_dials import all_of, fake_dial
from fakes import fake_info, fake_trials
from figure_checks import check_that_all_texts_are_whole_and_apart, everything_written

import labkit as lab
from labkit.experiments.catalog import CATALOG
from labkit.report.dial_chart import dial_chart
from labkit.report.run import Run
from labkit.settings import Settings

LOGS = {"every step": 1.05, "every 10 steps": 1.004, "every 100 steps": 1.0}
DIALS = [name for name in CATALOG if CATALOG[name](Settings()).dial]
RING = 11  # size of the mark from which on a cost is negligible


def draw(name="logs", times=LOGS, **more):
    return dial_chart(*fake_dial(name, times, **more))


def series(figure):
    """Label -> heights, without intervals, rings, the baseline and the line at 1."""
    shown = {
        text.get_text() for text in figure.legends[0].get_texts() if "(base" not in text.get_text()
    }
    lines = figure.axes[0].lines
    return {line.get_label(): line for line in lines if line.get_label() in shown}


@pytest.mark.parametrize("name", DIALS)
def test_every_variant_of_a_dial_has_its_place_in_full_mode(name):
    times = all_of(name)
    drawn = series(draw(name, times))
    assert sum(len(line.get_ydata()) for line in drawn.values()) == len(times)
    assert all(list(line.get_ydata()) == sorted(line.get_ydata())[::-1] for line in drawn.values())


def test_points_are_as_high_as_their_times_and_the_axis_starts_at_zero():
    info, summary = fake_dial("logs", LOGS)
    figure = dial_chart(info, summary)
    low, high = figure.axes[0].get_ylim()
    assert low == 0
    (line,) = series(figure).values()
    expected = [row.normalized_time for row in summary.rows[1:]]
    assert list(line.get_ydata()) == pytest.approx(expected)
    assert max(expected) < high
    ticks = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert ticks == ["1", "10", "100", "never"]


def test_the_documents_advice_is_marked_where_it_gives_one():
    figure = draw(times={"every step": 1.2})  # also where nobody measured it
    (band,) = figure.axes[0].patches
    assert band.get_x() < 1 < band.get_x() + band.get_width()  # between 1 and never: 100
    assert "[001] 5.1: every 100 steps" in everything_written(figure)
    assert not draw("checkpoints", {"every 10 steps": 1.3}).axes[0].patches


@pytest.mark.parametrize(
    ("times", "more", "said"),
    [
        (LOGS, {}, "less than 1 % from every 10 steps on"),
        # A cheap point before a costly one is no place to stop.
        (
            {"every step": 1.0, "every 10 steps": 1.1, "every 100 steps": 1.0},
            {},
            "less than 1 % from every 100 steps on",
        ),
        ({"every 100 steps": 1.5}, {}, "more than 1 % (1.5"),
        ({"every 100 steps": 1.0}, {"noise": 0.1}, "not known to be below 1 %"),
        ({"every 100 steps": 1.0}, {"mode": "document", "blocks": 1}, "not known to be below 1 %"),
        (LOGS, {"mode": "quick", "blocks": 3, "noise": 0.02}, "Numbers, no verdict."),
        ({}, {"skipped": dict.fromkeys(LOGS, "no room")}, "No variant was measured"),
        ({}, {"skipped": dict.fromkeys(LOGS, "no room"), "blocks": 0}, "No variant was measured"),
    ],
)
def test_it_states_from_where_on_the_cost_is_negligible(times, more, said):
    figure = draw(times=times, **more)
    assert said in everything_written(figure)
    assert said in figure.get_label()
    rings = [line for line in figure.axes[0].lines if line.get_markersize() == RING]
    assert len(rings) == said.startswith("less")


def test_an_unstable_machine_gives_no_verdict():
    info, summary = fake_dial("logs", LOGS)
    figure = dial_chart(info, replace(summary, stable=False))
    assert "Numbers, no verdict." in everything_written(figure)


def test_where_the_baseline_turns_the_dial_itself_nothing_is_drawn():
    assert not series(draw(times={"every 100 steps": 0.9}, baseline="every step"))


AWKWARD = {
    "as it is": ("logs", LOGS, {}),
    "all series": ("logs", all_of("logs"), {}),
    "all series, equal": ("logs", dict.fromkeys(all_of("logs"), 1.0), {"noise": 0}),
    "many times as long": ("checkpoints", all_of("checkpoints", 1_234), {}),
    "much noise": ("metric_reports", all_of("metric_reports"), {"noise": 0.4, "blocks": 2}),
    "faster than never": ("logs", {"every step": 0.2, "every 10 steps": 0.6}, {}),
    "nothing measured": ("logs", {}, {"skipped": dict.fromkeys(LOGS, "no room"), "blocks": 0}),
}


@pytest.mark.parametrize(("name", "times", "more"), AWKWARD.values(), ids=AWKWARD.keys())
def test_no_text_is_clipped_and_no_two_texts_overlap(name, times, more):
    figure = draw(name, times, **more)
    check_that_all_texts_are_whole_and_apart(figure)


def test_an_experiment_of_ones_own_has_a_dial_too_and_others_are_refused():
    info, _ = fake_dial("logs", LOGS)
    run = Run(folder=Path("run"), info={**info, "experiment": "mine"}, trials=())
    assert lab.chart(run, "dial").axes[0].get_xlabel().endswith("(report_every)")
    info = fake_info(["original", "both"])
    trials = tuple(fake_trials({"original": 1.0, "both": 0.9}))
    with pytest.raises(ValueError, match="kind must be one of epochs, times, got 'dial'"):
        lab.chart(Run(folder=Path("run"), info=info, trials=trials), "dial")
