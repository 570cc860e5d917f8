"""The chart of a dial: an honest axis, the advice, where it stops mattering, and nothing cut off.

Run: python -m pytest tests/test_dial_chart.py
"""

import itertools

import pytest
from fake_dials import all_of, fake_dial
from fakes import fake_trials
from figure_checks import check_that_all_texts_are_whole_and_apart, everything_written, texts

from labkit import captions
from labkit.dial_chart import LOOKS, RING, dial_chart
from labkit.dials import DIALS, find_series
from labkit.figures import COLUMN, WIDE, to_bytes
from labkit.summary import summarize

LOGS = {"every step": 1.05, "every 10 steps": 1.004, "every 100 steps": 1.0}
QUICK = {"mode": "quick", "blocks": 3, "noise": 0.02}


def draw(name="logs", times=LOGS, sheet=WIDE, **more):
    info, summary = fake_dial(name, times, **more)
    return dial_chart(info, summary, DIALS[name], sheet)


def lines(figure):
    """The lines of the series, without intervals, rings, the baseline and the line at 1."""
    shown = {"every N steps", *LABELS}
    return [line for line in figure.axes[0].lines if line.get_label() in shown]


LABELS = {
    series.name
    for name in DIALS
    for series in find_series(*fake_dial(name, all_of(name), blocks=1), DIALS[name])
    if series.name
}


def test_points_are_as_high_as_their_times_and_the_axis_starts_at_zero():
    info, summary = fake_dial("logs", LOGS)
    figure = dial_chart(info, summary, DIALS["logs"])
    low, high = figure.axes[0].get_ylim()
    assert low == 0
    (line,) = lines(figure)
    expected = [row.normalized_time for row in summary.rows[1:]]
    assert list(line.get_ydata()) == pytest.approx(expected)
    assert max(expected) < high
    assert list(line.get_xdata()) == [0, 1, 2]  # alone, in the middle of its positions
    ticks = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert ticks == ["1", "10", "100", "never"]


def test_a_very_long_interval_is_cut_off_and_no_time_is():
    figure = draw(times={"every step": 1.5, "every 100 steps": 1.0}, noise=1.5, blocks=2)
    (line,) = lines(figure)
    assert max(line.get_ydata()) < figure.axes[0].get_ylim()[1] < 3 * max(line.get_ydata())


def test_the_documents_advice_is_marked_where_it_gives_one():
    figure = draw(times={"every step": 1.2})  # also where nobody measured it
    (band,) = figure.axes[0].patches
    assert band.get_x() < 1 < band.get_x() + band.get_width()  # between 1 and never: 100
    assert "[001] 5.1: every 100 steps" in everything_written(figure)
    figure = draw("checkpoints", {"every 10 steps": 1.3})
    assert not figure.axes[0].patches


def test_where_it_stops_mattering_is_ringed_and_said():
    figure = draw()
    rings = [line for line in figure.axes[0].lines if line.get_markersize() == RING["markersize"]]
    assert [list(ring.get_xdata()) for ring in rings] == [[1]]
    written = everything_written(figure)
    assert "Every 10 steps costs less than 1 %." in written
    assert "from here on less than 1 %" in written
    written = everything_written(draw(times={"every 100 steps": 1.5}))
    assert "even every 100 steps costs more than 1 %" in written.lower()
    assert "from here on" not in written


def test_series_differ_without_colour():
    assert len({marker for marker, _, _ in LOOKS}) == len(LOOKS)
    drawn = lines(draw(times=all_of("logs")))
    assert len({line.get_marker() for line in drawn}) == len(drawn) == 6
    assert all(one[1] != other[1] for one, other in itertools.pairwise(LOOKS))


def test_equal_points_of_several_series_lie_beside_one_another():
    times = dict.fromkeys(all_of("logs"), 1.2)
    drawn = lines(draw(times=times, noise=0))
    places = sorted(x for line in drawn for x in line.get_xdata())
    assert min(b - a for a, b in itertools.pairwise(places)) > 0.1


def test_the_same_summary_gives_the_same_bytes_and_a_description_with_every_number():
    info, summary = fake_dial("logs", all_of("logs"))
    figure, again = (dial_chart(info, summary, DIALS["logs"]) for _ in range(2))
    for kind in ("svg", "png"):
        assert to_bytes(figure, kind) == to_bytes(again, kind)
    for row in summary.rows[1:]:
        assert f"{row.variant}: {captions.describe_row(summary, row)}" in figure.get_label()
    assert "Emulated accelerator" in figure.get_label()


def test_a_run_without_any_measured_variant_says_so():
    reason = dict.fromkeys(LOGS, "no room on the disk")
    for more in ({"skipped": reason}, {"skipped": reason, "blocks": 0}):
        figure = draw(times={}, **more)
        assert "No variant was measured along the dial." in everything_written(figure)
        assert lines(figure) == []
    # With nothing measured at all there is no time of the baseline either.
    assert "(baseline)" not in everything_written(figure)


LONG = "一个很长的名字 with_an_identifier_of_many_letters_without_any_space"
AWKWARD = {
    "as it is": ("logs", LOGS, {}),
    "in quick mode": ("logs", LOGS, QUICK),
    "six series": ("logs", all_of("logs"), {}),
    "six equal series": ("logs", dict.fromkeys(all_of("logs"), 1.0), {"noise": 0}),
    "many times as long": ("checkpoints", all_of("checkpoints", 1_234), {}),
    "much noise": ("metric_reports", all_of("metric_reports"), {"noise": 0.4, "blocks": 2}),
    "no interval": ("evaluation", all_of("evaluation"), {"mode": "document", "blocks": 1}),
    "faster than never": ("logs", {"every step": 0.2, "every 10 steps": 0.6}, {}),
    "a long question": ("logs", LOGS, {"question": f"Does {LONG} cost anything? " * 3}),
    "nothing measured": ("logs", {}, {"skipped": dict.fromkeys(LOGS, "no room"), "blocks": 0}),
}


@pytest.mark.parametrize(("name", "times", "more"), AWKWARD.values(), ids=AWKWARD.keys())
@pytest.mark.parametrize("sheet", [WIDE, COLUMN], ids=["wide", "column"])
def test_no_text_is_clipped_and_no_two_texts_overlap(name, times, more, sheet):
    figure = draw(name, times, sheet, **more)
    check_that_all_texts_are_whole_and_apart(figure, dpi=300 if sheet is COLUMN else None)
    assert min(t.get_fontsize() for t in texts(figure)) >= 5


@pytest.mark.parametrize("sheet", [WIDE, COLUMN], ids=["wide", "column"])
def test_as_many_series_as_there_are_looks_stay_apart(sheet):
    # A person's own experiment of a dial's name may have more than the catalog's.
    info, _ = fake_dial("logs", LOGS)
    settings = info["variants"]
    times, variants = {"never": 1.0}, {"never": settings["never"]}
    for i in range(len(LOOKS)):
        for label in LOGS:
            times[f"{label}, way {i}"] = 1.1
            variants[f"{label}, way {i}"] = settings[label]
    info = {**info, "variants": variants}
    figure = dial_chart(info, summarize(info, fake_trials(times)), DIALS["logs"], sheet)
    check_that_all_texts_are_whole_and_apart(figure, dpi=300)
    assert all(f"Way {i}: " in everything_written(figure) for i in range(len(LOOKS)))
