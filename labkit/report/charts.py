"""The charts of a run, of several runs, and of a timeline.

    a run or several ─▶ frames.py: one tidy DataFrame ─┬─▶ dots: a row per variant
                                                       └─▶ lines: over a number
    roofline, utilization and timeline draw what no such table holds

Times are marks with their intervals, not bars: a normalized time means its distance from 1, so its
axis shows 1 and what was measured.  An axis of seconds starts at 0 or is logarithmic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, cycle, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import units
from labkit.analysis.roofline import Pipeline, pipelines
from labkit.analysis.rows import Row
from labkit.analysis.simulated import beside_the_loader, simulated_hardware, warnings
from labkit.analysis.summary import Summary
from labkit.analysis.thresholds import NEGLIGIBLE_SHARE
from labkit.analysis.utilization import busy_over_time
from labkit.analysis.winner import winner
from labkit.diagnosis.timeline import Band, Timeline
from labkit.records import EPOCHS, OPERATION, ROOFLINE
from labkit.report import words
from labkit.report.figures import AXIS_IN, INK, SOFT_INK, WARNING_INK, Line, frame, page, wrap
from labkit.report.frames import (
    Axis,
    are_costs,
    epochs_frame,
    find_axis,
    mark,
    negligible_from,
    over_axis,
    tidy,
    times_frame,
)
from labkit.report.thresholds import (
    LOGARITHMIC_AXIS_RATIO,
    MAX_INTERVAL_END_RATIO,
    MAX_OWN_SPEED_RATIO,
)  # fmt: skip
from labkit.runs.operation_trials import SAMPLE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.runs.store import StoredRun

NORMALIZED = "epoch time ÷ the baseline's (0.8 = 20 % shorter)"
WITH_INTERVAL = "{}, with its 95 % confidence interval"
# Width of the points at one number, in distances between numbers.
GROUP = 0.84
# Marker, dashes and colour: apart without any colour.
SERIES_LOOKS: tuple[tuple[str, Any, str], ...] = (
    ("o", "-", "#08519c"), ("s", (0, (5, 2)), "#d94801"), ("^", (0, (1, 1.5)), "#1a1a1a"),
    ("D", (0, (5, 2, 1, 2)), "#6a51a3"), ("v", "-", "#737373"), ("P", (0, (5, 2)), "#238b45"),
    ("X", (0, (1, 1.5)), "#7a0177"), ("<", (0, (5, 2, 1, 2)), "#0570b0"), (">", "-", "#a65628"),
)  # fmt: skip
LINE_OF_NO_CHANGE: dict[str, Any] = {
    "color": INK, "linewidth": 1, "linestyle": (0, (4, 3)), "zorder": 2.5,
}  # fmt: skip
TRIAL: dict[str, Any] = {
    "marker": "o", "markersize": 3.5, "color": "#8c8c8c", "linestyle": "none", "zorder": 3,
}  # fmt: skip
# Larger and open, so that the mark under it shows.
OUTLIER: dict[str, Any] = {
    "marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgecolor": INK,
    "markeredgewidth": 1.2, "linestyle": "none", "zorder": 4,
}  # fmt: skip
PUBLISHED: dict[str, Any] = {
    "marker": "D", "markersize": 7, "markerfacecolor": "white", "markeredgecolor": "#7a0177",
    "markeredgewidth": 1.6, "linestyle": "none", "zorder": 4.5,
}  # fmt: skip
PUBLISHED_LINE: dict[str, Any] = {"linewidth": 1.2, "linestyle": (0, (1, 2)), "zorder": 1.8}
IDEAL_LINE: dict[str, Any] = {"color": SOFT_INK, "linewidth": 1, "linestyle": (0, (1, 2))}
RING: dict[str, Any] = {**OUTLIER, "markersize": 12}
# Last in a legend, in this order.
INTERVAL, ONE_TRIAL = "95 % confidence interval", "one trial"
BASELINE_OF_ROW = "open: the baseline of its row"
MARKS = (BASELINE_OF_ROW, "published", INTERVAL, ONE_TRIAL, "outlier")


def title_and_caption(summary: Summary, conditions: Sequence[str] = ()) -> tuple[list[Line], str]:
    """Return the lines above a run's chart, its answer first, and the caption below it."""
    answer, simulated_here = words.headline(summary), " · ".join(warnings(summary))
    conditions = [*(conditions or [words.conditions(summary)]), *words.other_images(summary)]
    title = [
        Line(answer or summary.question, 13, "bold"),
        *([Line(summary.question, 10)] if answer else []),
        *([Line(simulated_here, 9, color=WARNING_INK)] if simulated_here else []),
        Line(" · ".join(conditions), color=SOFT_INK),
    ]
    return title, words.origin(summary)


def kinds(summary: Summary) -> dict[str, Callable[[Summary], Figure]]:
    """Return the charts that a run has, by name: what draws each."""
    if summary.kind == ROOFLINE:
        return {"roofline": roofline}
    draw_functions: dict[str, Callable[[Summary], Figure]] = {"dots": dots}
    if find_axis(summary):
        draw_functions = {"lines": lines}
    if _compared_devices(summary):
        draw_functions["utilization"] = utilization
    if {"cold", "warm"} <= {settings.cache for settings in summary.info.variants.values()}:
        draw_functions["epochs"] = epochs
    return draw_functions


# --- utilization ----------------------------------------------------------------------------


def utilization(summary: Summary) -> Figure:
    """Draw how busy the GPU is over time, with the baseline and with the fix.

    Of several speeds of the device, the fastest is drawn.  Epochs follow one another, for at most
    30 seconds, and as long as both variants were measured.

    Returns:
        A figure that shows itself in a notebook; its label holds the mean of each variant.
    """
    drawn = _compared_devices(summary)
    lines, caption = title_and_caption(summary)
    means = [
        f"{units.whole_percent(shares.mean())} of the time {words.using(row)}"
        for row, (_, shares) in drawn
    ]
    answer = ", ".join([means[0], *(mean.replace(" of the time", "") for mean in means[1:])])
    lines[0] = replace(lines[0], text=f"The GPU computes {answer}")
    with page() as figure:
        panels = figure.subplots(len(drawn), sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (row, (ends_s, shares)) in zip(panels, drawn):
            axes.fill_between(ends_s, 100 * shares, step="pre", color="#6baed6")
            axes.plot(ends_s, 100 * shares, drawstyle="steps-pre", color=INK, linewidth=0.8)
            axes.set_title(row.name, loc="left", size=9)
            axes.set(ylim=(0, 105), yticks=[0, 50, 100], ylabel="GPU, %")
        panels[-1].set_xlabel("seconds of training")
        panels[-1].set_xlim(0, drawn[0][1][0][-1])
        frame(figure, lines, caption, 1.5 * len(drawn) + AXIS_IN, shown=means)
    return figure


def _compared_devices(
    summary: Summary,
) -> list[tuple[Row, tuple[np.ndarray, np.ndarray]]]:
    """Return the baseline and the fastest comparable variant, with the shares of the device."""
    if summary.at_speeds:
        summary = summary.at_speeds[max(summary.at_speeds)]
    if summary.kind != EPOCHS or summary.has_groups:
        return []
    base, known = summary.rows[0], words.comparable(summary)
    if base.normalized_time is None or not known:
        return []
    best = winner(summary) or min(known, key=lambda row: row.normalized_time)
    how = {"seconds": 30.0, "bin_s": 0.25}
    shares = [busy_over_time(row.of_epochs, **how) for row in (base, best)]
    count = min(len(ends_s) for ends_s, _ in shares)
    cut = [(ends_s[:count], of_time[:count]) for ends_s, of_time in shares]
    return list(zip((base, best), cut)) if count > 1 else []


# --- dots: a row per variant ------------------------------------------------------------------


def dots(summary: Summary) -> Figure:
    """Draw the normalized times of a run; of groups, a row each, with a mark per variant.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    label = NORMALIZED.removeprefix("epoch ") if summary.kind == OPERATION else NORMALIZED
    title, caption = title_and_caption(summary)
    return _draw_dots(times_frame(summary), label, title, caption, footer=_missing(summary))


def epochs(summary: Summary) -> Figure:
    """Draw the seconds of each variant's first and later epochs, and where their bytes were.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    title, caption = title_and_caption(summary)
    label = "seconds per epoch"
    return _draw_dots(
        epochs_frame(summary), label, title, caption, footer=_missing(summary), from_0=True
    )


def overview(summaries: Sequence[Summary]) -> Figure | None:
    """Draw every variant with a published figure, whichever its run, along one axis.

    Returns:
        As `dots`; None where no variant has one.
    """
    with_published = words.beside_the_documents(summaries)
    if not with_published:
        return None
    records = []
    simulated_here: dict[str, Any] = {}
    missing = []
    for summary, row in with_published:
        experiment = summary.info.experiment
        name = f"{experiment}: {row.variant}"
        if row.normalized_time is None:
            missing.append(f"{name}: {words.reason(row)}")
            continue
        word = summary.agreement(row) or row.verdict or "no verdict"
        note = f"{words.normalized(row)}\n{word}"
        records.append(mark(row, name, trials=(), outliers=(), note=note))
        records[-1]["text"] += f", {word}"
        x = beside_the_loader([row])
        for hardware, details in simulated_hardware([row]).items():
            beside = f" ({x})" if x and hardware == "simulated GPU" else ""
            what = f"{hardware}, {details}".rstrip(", ")
            simulated_here.setdefault(what, {})[f"{experiment}{beside}"] = None
    answer = words.answer(summaries).removesuffix(".")
    title = [
        Line(answer or "Nothing measured of what was published", 13, "bold"),
        Line("Published and measured: each variant against its run's baseline", color=SOFT_INK),
    ]
    for what, experiments in simulated_here.items():
        title.append(
            Line(f"{what[0].upper()}{what[1:]}: {', '.join(experiments)}", color=WARNING_INK)
        )
    kinds = dict.fromkeys(summary.info.data.kind for summary, _ in with_published)
    data = f"data: {', '.join(filter(None, kinds))}" if any(kinds) else ""
    return _draw_dots(tidy(records), NORMALIZED, title, data, footer=missing)


def compare(runs: Sequence[StoredRun]) -> Figure:
    """Draw runs of one experiment along one axis, each against its own baseline.

    Runs differ in mode, machine and simulated hardware: nothing is computed across them, and what
    differs is written with each.

    Args:
        runs: of the same experiment, of any machine and mode.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.

    Raises:
        ValueError: there are none, they belong to several experiments, or their variants are in
            groups.

    Examples:
        >>> lab.compare([run, run]).savefig("compare.png")
    """
    names = list(dict.fromkeys(run.info.experiment for run in runs))
    if len(names) != 1 or any(run.info.groups for run in runs):
        raise ValueError(
            "runs must be of one experiment without groups, got "
            f"{len(runs)} of {', '.join(names) or 'none'}; show others one by one: lab.chart(run)"
        )
    apart = "each run against its own baseline; no run is divided by another"
    title = [Line(runs[0].summary.question, 13, "bold"), Line(apart, color=SOFT_INK)]
    records, missing = [], []
    for number, summary in enumerate((run.summary for run in runs), 1):
        simulated_here = warnings(summary)
        conditions = " · ".join([*words.how_measured(summary), *simulated_here])
        ink = WARNING_INK if simulated_here else INK
        title.append(Line(f"Run {number}: {conditions}", weight="bold", color=ink))
        about = filter(None, [words.origin(summary), *words.plain_labels(summary)])
        title.append(Line(" · ".join(about), color=SOFT_INK))
        measured = [row for row in summary.rows if row.normalized_time is not None]
        records += [mark(row, f"{number}: {row.variant}") for row in measured]
        missing += [f"{number}: {text}" for text in _missing(summary)]
    return _draw_dots(tidy(records), NORMALIZED, title, "", footer=missing)


def _missing(summary: Summary) -> list[str]:
    """Return the variants without numbers and why, a line for each reason."""
    names_by_reason: dict[str, dict[str, None]] = {}
    for row in summary.rows:
        if why := words.reason(row):
            # An operation's library, once for all operations.
            name = row.name if summary.kind == OPERATION else row.variant
            names_by_reason.setdefault(why, {})[name] = None
    return [f"{', '.join(names)}: {why}" for why, names in names_by_reason.items()]


def _draw_dots(
    table: pd.DataFrame,
    label: str,
    title: Sequence[Line],
    caption: str,
    *,
    footer: Sequence[str],
    from_0: bool = False,
) -> Figure:
    """Draw a row for each row of the table, from the top down; panels share both axes."""
    if table.empty:
        with page() as figure:
            frame(figure, title, caption, 0, footer=footer)
        return figure
    rows, series = [*dict.fromkeys(table.row)], [*dict.fromkeys(table.series)]
    panels = [*dict.fromkeys(table.panel)]
    names = [wrap(name, chars=26) for name in rows]
    handles: dict[str, Artist] = {}
    with page() as figure:
        drawn = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        low, high = _limits(table, from_0=from_0)
        is_logarithmic = not from_0 and high / low > LOGARITHMIC_AXIS_RATIO
        for axes, panel in zip(drawn, panels):
            axes.set_title(panel, loc="left", size=9, weight="bold")
            axes.set(xlim=(low, high), ylim=(len(rows) - 0.5, -0.5))
            if is_logarithmic:
                _make_logarithmic(axes)
            if not from_0:
                axes.axvline(1, **LINE_OF_NO_CHANGE)
            axes.tick_params(axis="y", length=0)
            for between in range(1, len(rows) if len(series) > 1 else 0):
                axes.axhline(between - 0.5, color="#e4e4e4", linewidth=0.8, zorder=0.5)
            for one in table[table.panel == panel].itertuples():
                place = series.index(one.series)
                look = _look(place, one) if len(series) > 1 else _look(0, one)
                y = rows.index(one.row) + 0.6 * (place - (len(series) - 1) / 2) / len(series)
                handles |= _draw_mark(axes, one, y, look, len(series))
                if one.note and panel == panels[-1]:
                    _write_note(axes, rows.index(one.row), one.note, is_value=not from_0)
        drawn[0].set_yticks(range(len(rows)), names)
        label += ", logarithmic axis" if is_logarithmic else ""
        if len(panels) == 1:
            drawn[0].set_xlabel(label)
        else:  # one label for all
            title = [*title, Line(label)]
        lines_of = max(text.count("\n") + 1 for text in [*names, *table.note])
        row_in = max(0.2 + 0.06 * len(series), 0.42, 0.17 * lines_of + 0.08)
        content_in = row_in * len(rows) + AXIS_IN + 0.25 * any(panels)
        shown = [WITH_INTERVAL.format(label), *table.text]
        frame(figure, title, caption, content_in, _in_order(handles), footer=footer, shown=shown)
    return figure


def _in_order(handles: Mapping[str, Artist]) -> list[Artist]:
    """Return what a legend explains: first what was compared, then the marks."""
    compared = [handle for text, handle in handles.items() if text not in MARKS]
    return compared + [handles[text] for text in MARKS if text in handles]


def _look(place: int, one: Any) -> dict[str, Any]:
    marker, _, color = SERIES_LOOKS[place % len(SERIES_LOOKS)]
    fill = "white" if one.is_baseline else color
    return {
        "marker": marker, "markersize": 7, "color": color, "markerfacecolor": fill,
        "markeredgewidth": 1.4, "linestyle": "none", "zorder": 5,
    }  # fmt: skip


def _draw_mark(
    axes: Axes, one: Any, y: float, look: Mapping[str, Any], series: int
) -> dict[str, Artist]:
    """Draw a record of the table; return what the legend needs, by its texts."""
    from matplotlib.lines import Line2D

    low, high = axes.get_xlim()
    lane = 0.3 / series
    explained: dict[str, dict[str, Any]] = {}
    axes.plot([one.value], [y], **look)
    name = one.series or ("baseline" if one.is_baseline else "measured")
    explained[name] = dict(look)
    if one.series and one.is_baseline:
        explained[name]["markerfacecolor"] = look["color"]
        explained[BASELINE_OF_ROW] = {**look, "color": INK, "marker": "o"}
    if one.low == one.low:  # not NaN
        ends = max(one.low, low), min(one.high, high)
        line = {"color": look["color"], "linewidth": 1.8, "zorder": 4.2}
        axes.plot(ends, [y, y], solid_capstyle="butt", **line)
        # An interval that leaves the axis ends in an arrow.
        for end, is_cut, arrow in ((low, one.low < low, "<"), (high, one.high > high, ">")):
            if is_cut:
                axes.plot([end], [y], marker=arrow, color=look["color"], clip_on=False)
        explained[INTERVAL] = {**line, "color": INK}
    if series <= 2:
        for place, value in enumerate(one.trials):
            is_outlier = place in one.outliers
            axes.plot([value], [y + lane], **TRIAL)
            explained[ONE_TRIAL] = TRIAL
            if is_outlier:
                axes.plot([value], [y + lane], **OUTLIER)
                explained["outlier"] = OUTLIER
    if one.published == one.published:
        axes.plot([one.published], [y - lane], **PUBLISHED)
        explained["published"] = PUBLISHED
    return {text: Line2D([], [], label=text, **mark) for text, mark in explained.items()}


def _write_note(axes: Axes, y: float, note: str, *, is_value: bool) -> None:
    """Write right of the axes; a value, which is the first line, in bold."""
    beside: dict[str, Any] = {
        "xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "center",
        "annotation_clip": False, "size": 9,
    }  # fmt: skip
    if not is_value:
        axes.annotate(note, (1, y), (8, 0), **beside)
        return
    value, _, rest = note.partition("\n")
    lines_below = rest.count("\n") + 1 if rest else 0
    axes.annotate(value, (1, y), (8, 6 * lines_below), weight="bold", **beside)
    axes.annotate(rest, (1, y), (8, -6), **beside)


def _limits(table: pd.DataFrame, *, from_0: bool = False) -> tuple[float, float]:
    """Return the ends of an axis of times; a very long interval is cut off."""
    trials = [value for values in table.trials for value in values]
    known = [*table.value, *trials, *table.published.dropna(), *([] if from_0 else [1.0])]
    low, high = min(known), max(known)
    if table.low.notna().any():
        low = min(low, max(low / MAX_INTERVAL_END_RATIO, table.low.min()))
        high = max(high, min(high * MAX_INTERVAL_END_RATIO, table.high.max()))
    if from_0:
        return 0.0, 1.06 * high
    if high / low > LOGARITHMIC_AXIS_RATIO:
        return low / 1.15, high * 1.15
    # Noise must not fill the axis, so it spans at least 0.1.
    more = max(0.06 * (high - low), (0.1 - (high - low)) / 2)
    return max(0.0, low - more), high + more


def _make_logarithmic(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 150 else (1,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


# --- lines: over a number -----------------------------------------------------------------------


def lines(summary: Summary) -> Figure:
    """Draw times over the number that the variants vary, a line per series.

    Numbers lie equally far apart, in their order; what has no number is right of them.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    axis = find_axis(summary)
    if axis is None:
        raise ValueError("summary must vary a number, got none; draw it with: dots")
    table = over_axis(summary, axis)
    title, caption = title_and_caption(summary)
    label = "epoch time ÷ the baseline's"
    if axis.in_seconds:
        label = f"time of {units.count(summary.epochs, 'epoch')}"
    if summary.kind == OPERATION:
        label = "time per image, logarithmic axis"
    handles: dict[str, Artist] = {}
    shown = [WITH_INTERVAL.format(label), *table.text]
    with page() as figure:
        panels = [*dict.fromkeys(table.panel)]
        if panels:
            drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
            drawn[0].set_ylabel(label)
            _scale_y(drawn[0], table, summary, axis)
            for axes, panel in zip(drawn, panels):
                axes.set_title(panel, loc="left", size=9, weight="bold")
                axes.set_xlabel(axis.labels[panel])
                handles |= _draw_panel(axes, table[table.panel == panel], summary, axis)
        shown += [f"{row.variant}: {units.seconds(row.time_s)}" for row in _samples(summary)]
        if summary.info.x_axis and are_costs(table):
            shown += _describe_negligible(table)
        content_in = 3.9 if panels else 0
        frame(
            figure, title, caption, content_in, _in_order(handles), footer=_missing(summary),
            shown=shown,
        )  # fmt: skip
    return figure


def _scale_y(axes: Axes, table: pd.DataFrame, summary: Summary, axis: Axis) -> None:
    from matplotlib.ticker import EngFormatter

    if summary.kind == OPERATION:
        axes.set_yscale("log")
    else:
        drawn = table.assign(trials=[_ideal(table, axis)] * len(table))
        axes.set_ylim(*_limits(drawn, from_0=axis.in_seconds))
    if axis.in_seconds:
        axes.yaxis.set_major_formatter(EngFormatter("s"))
        axes.minorticks_off()


def _ideal(table: pd.DataFrame, axis: Axis) -> list[float]:
    """Return the normalized times of several GPUs that share the work of the baseline's."""
    bases = {*table.x[table.is_baseline.astype(bool)]}
    if axis.setting != "ranks" or len(bases) != 1:
        return []
    (base,) = bases
    return [base / x for x in sorted({x for x in table.x if not isinstance(x, str)})]


def _draw_panel(axes: Axes, table: pd.DataFrame, summary: Summary, axis: Axis) -> dict[str, Artist]:
    """Draw the lines of a panel; return what the legend needs, by its texts."""
    from matplotlib.lines import Line2D

    handles: dict[str, Artist] = {}
    x_axis = summary.info.x_axis
    numbers = {x for x in table.x if not isinstance(x, str)}
    numbers |= {x_axis.advice} if x_axis and x_axis.advice else set()
    xs = [*sorted(numbers), *dict.fromkeys(x for x in table.x if isinstance(x, str))]
    places = {x: place for place, x in enumerate(xs)}
    texts = [x if isinstance(x, str) else f"{x:,.3g}" if x < 1 else f"{x:,.6g}" for x in xs]
    axes.set_xticks(range(len(xs)), [wrap(text, max(8, 84 // len(xs))) for text in texts])
    axes.set_xlim(-0.5, len(xs) - 0.5)
    axes.grid(axis="y")
    if x_axis and x_axis.advice:
        at, text = places[x_axis.advice], f"{x_axis.source}: every {x_axis.advice} steps"
        handles[text] = axes.axvspan(
            at - GROUP / 2, at + GROUP / 2, color="#e6e6e6", zorder=0, label=text
        )
    if ideal := _ideal(table, axis):
        text = "ideal: twice the GPUs take half the time"
        handles[text] = axes.plot(range(len(ideal)), ideal, label=text, **IDEAL_LINE)[0]
    names = [*dict.fromkeys(axis.series.values())]  # of all panels, so that looks differ
    present = [name for name in names if name in {*table.series}]
    for i, name in enumerate(present):
        # Beside each other, or equal points would hide one another; of few numbers, which lie far
        # apart, not so far that a point seems to be at another number.
        step = 0.0 if axis.in_seconds else min(0.12 * min(len(xs) / 5, 1), GROUP / len(present))
        shift = step * (i - (len(present) - 1) / 2)
        points = table[table.series == name]
        points = points.assign(at=[places[x] + shift for x in points.x]).sort_values("at")
        text = name or ("measured" if len(present) == 1 else "as the baseline")
        look = SERIES_LOOKS[names.index(name) % len(SERIES_LOOKS)]
        is_cost = bool(x_axis) and are_costs(table)
        handles |= _draw_line(axes, points, text, look, axis, is_cost=is_cost)
    if not axis.in_seconds:
        axes.axhline(1, **LINE_OF_NO_CHANGE)
        text = f"{summary.rows[0].name} (baseline)"
        base: dict[str, Any] = {"color": INK, "marker": "o", "markersize": 6}
        handles[text] = Line2D(
            [], [], label=text, markerfacecolor="white", linestyle=(0, (4, 3)), **base
        )
    for sample in _samples(summary):
        text = f"{sample.variant}, {units.seconds(sample.time_s)}"
        handles[text] = axes.axhline(sample.time_s, label=text, color=INK, linewidth=1.2)
        text = f"{units.limit(NEGLIGIBLE_SHARE)} of that"
        handles[text] = axes.axhline(NEGLIGIBLE_SHARE * sample.time_s, label=text, **IDEAL_LINE)
    return handles


def _draw_line(
    axes: Axes,
    points: pd.DataFrame,
    name: str,
    series_look: tuple[str, Any, str],
    axis: Axis,
    *,
    is_cost: bool,
) -> dict[str, Artist]:
    """Draw a series, whose points lie at `at`; return what the legend needs, by its texts."""
    from matplotlib.lines import Line2D

    marker, dashes, color = series_look
    look: dict[str, Any] = {"color": color, "linewidth": 1.4, "markersize": 6, "marker": marker}
    is_number = points.x.map(lambda x: not isinstance(x, str))
    on_line, apart = points[is_number], points[~is_number]
    axes.plot(on_line["at"], on_line.value, linestyle=dashes, **look)
    axes.plot(apart["at"], apart.value, linestyle="none", **look)
    explained: dict[str, dict[str, Any]] = {}
    published = points.published.dropna()
    if len(published) and not axis.setting:  # the same at every speed of the GPU
        name += f" (published: {units.normalized(published.iloc[0])})"
        axes.axhline(published.iloc[0], color=color, **PUBLISHED_LINE)
    elif len(published):
        axes.plot(points["at"], points.published, **PUBLISHED)
        explained["published"] = PUBLISHED
    explained[name] = {"linestyle": dashes, **look}
    if points.low.notna().any():
        axes.vlines(points["at"], points.low, points.high, color=color, linewidth=1.4)
        explained[INTERVAL] = {"color": INK, "linewidth": 1.4}
    if not axis.in_seconds:
        bases = points[points.is_baseline.astype(bool)]
        hollow = {**look, "markerfacecolor": "white", "linestyle": "none", "zorder": 3}
        axes.plot(bases["at"], bases.value, **hollow)
    if is_cost and (limit := negligible_from(on_line)) is not None:
        least = on_line[on_line.x == limit]
        axes.plot(least["at"], least.value, **RING)
        explained[f"less than {units.limit(NEGLIGIBLE_SHARE)} from here"] = RING
    return {text: Line2D([], [], label=text, **mark) for text, mark in explained.items()}


def _samples(summary: Summary) -> list[Row]:
    """Return the rows of whole samples, beside which look-ups are drawn."""
    return [row for row in summary.rows if row.group == SAMPLE and row.time_s]


def _describe_negligible(table: pd.DataFrame) -> list[str]:
    """Return from how many steps on the cost of each series is negligible, for screen readers."""
    described = []
    for _, points in table.groupby("series", sort=False):
        on_line = points[[not isinstance(x, str) for x in points.x]].sort_values("x")
        if (limit := negligible_from(on_line)) is not None:
            (variant,) = on_line[on_line.x == limit].variant
            described.append(f"less than {units.limit(NEGLIGIBLE_SHARE)} from {variant}")
    return described


# --- roofline -------------------------------------------------------------------------------

DIAGONAL: dict[str, Any] = {"color": INK, "linewidth": 1.2, "zorder": 1.5}
IDEAL: dict[str, Any] = {"linewidth": 1.2, "zorder": 1.6}
MEASURED: dict[str, Any] = {
    "color": INK,
    "marker": "o",
    "markersize": 6,
    "linestyle": "none",
    "zorder": 3,
}
MEASURED_AT: dict[str, Any] = {"color": "#d0d0d0", "linewidth": 0.8, "zorder": 0.5}
OWN_DEVICE: dict[str, Any] = {"color": INK, "linewidth": 0.9, "zorder": 1.8}
GROUND = "#efefef"
INSIDE: dict[str, Any] = {"clip_on": True, "in_layout": False}


def roofline(summary: Summary) -> Figure:
    """Draw training speed over the device's speed, a line per pipeline.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    measured_pipelines = pipelines(summary)
    measured = [*words.how_measured(summary), *words.plain_labels(summary)]
    title, caption = title_and_caption(summary, measured)
    title[2:2] = [
        Line(text) for text in [words.with_this_device(summary, measured_pipelines)] if text
    ]
    with page() as figure:
        axes = figure.add_subplot()
        handles = _draw_roofline(axes, summary, measured_pipelines)
        shown = [f"{axes.get_ylabel()}, over the {axes.get_xlabel()}"]
        shown += map(_describe_pipeline, measured_pipelines)
        footer = words.not_measured(summary)
        frame(figure, title, caption, 4.6, handles, footer=footer, shown=shown)
    return figure


def _describe_pipeline(pipeline: Pipeline) -> str:
    points = [
        f"{one.images_per_s:,.0f} at {one.device_images_per_s:,.0f}" for one in pipeline.points
    ]
    alone = [f"loading alone {pipeline.loading.images_per_s:,.0f}"] if pipeline.loading else []
    return f"{pipeline.name}: {', '.join([*points, *alone])}"


def _draw_roofline(axes: Axes, summary: Summary, curves: Sequence[Pipeline]) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
    from matplotlib.transforms import offset_copy

    axes.set_xlabel("GPU speed without data loading, images/s (logarithmic axis)")
    axes.set_ylabel("training speed, images/s (logarithmic axis)")
    every = [point for pipeline in curves for point in pipeline.points]
    if not every:
        return []
    devices = [point.device_images_per_s for point in every]
    own, own_name = words.own_device(summary)
    speeds = [point.images_per_s for point in every]
    left, right = min(devices) / 1.15, max(devices) * 1.15
    if own:
        left = min(left, max(own / 1.15, left / MAX_OWN_SPEED_RATIO))
        right = max(right, min(own * 1.15, right * MAX_OWN_SPEED_RATIO))
    ideals = [pipeline.ideal_images_per_s(right) or 0.0 for pipeline in curves]
    lows = [point.low or point.images_per_s for point in every]
    highs = [point.high or point.images_per_s for point in every]
    # A very long interval leaves the axes; where all is alike, noise must not fill them.
    low = max(min(lows), min(speeds) / 2) / 1.5
    high = 1.2 * max(*ideals, min(max(highs), 2 * max(speeds)), 3 * low)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high))
    spans = right / left, high / low
    for axis, span in zip((axes.xaxis, axes.yaxis), spans):
        digits = (1, 2, 3, 5, 7) if span < 20 else (1, 2, 5) if span < 150 else (1,)
        axis.set_major_locator(LogLocator(subs=digits))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(visible=False)
    for device in {*devices}:
        axes.axvline(device, **MEASURED_AT)
    axes.plot([low, high], [low, high], **DIAGONAL)
    axes.text(
        0.015, 0.98, "the GPU\nis the limit", size=9, va="top", transform=axes.transAxes, **INSIDE
    )
    loading = curves[0].loading
    if loading is not None and (bend := loading.images_per_s) < right:
        axes.axvspan(bend, right, color=GROUND, zorder=0)
        label_text = wrap(
            f"the loader is the limit: a faster GPU does not help “{curves[0].name}”", 38
        )
        box = {"facecolor": GROUND, "edgecolor": "none", "pad": 1}
        start = max(bend, left)
        if own and own / start < right / own:  # beside the line of the own device, not over it
            start = max(own, start)
        place = 1.05 * start, 1.05 * low
        axes.text(*place, label_text, size=9, va="bottom", bbox=box, **INSIDE)
    if own:
        at, label_text = min(max(own, left), right), f"{own_name}: {own:,.0f}"
        label_text = (
            f"← {label_text}" if own < left else f"{label_text} →" if own > right else label_text
        )
        axes.axvline(at, **OWN_DEVICE)
        axes.annotate(
            label_text, (at, 1), (0, 3), axes.get_xaxis_transform(), "offset points", ha="center",
            size=9, annotation_clip=False,
        )  # fmt: skip
    for i, (pipeline, (marker, dashes, color)) in enumerate(zip(curves, cycle(SERIES_LOOKS))):
        # Beside one another, or equal speeds would hide one another.
        beside_pt = min(5, 24 / len(curves)) * (i - (len(curves) - 1) / 2)
        figure: Any = axes.figure
        beside = offset_copy(axes.transData, figure, x=beside_pt, y=0, units="points")
        xs = [point.device_images_per_s for point in pipeline.points]
        ys = [point.images_per_s for point in pipeline.points]
        look = {**MEASURED, "color": color, "marker": marker}
        axes.plot(xs, ys, **look, transform=beside)
        for x, point in zip(xs, pipeline.points):
            if point.low is not None:
                ends = point.low, point.high
                axes.plot([x, x], ends, color=color, linewidth=1.6, zorder=3, transform=beside)
        if pipeline.loading is not None:
            ideal = [(x, pipeline.ideal_images_per_s(x)) for x in np.geomspace(left, right, 201)]
            below = [(x, y) for x, y in ideal if y and y < 0.99 * x]  # above it is the diagonal
            axes.plot(*zip(*below), color=color, linestyle=dashes, **IDEAL)
    _write_ends(axes, curves)
    handles: list[Artist] = [
        Line2D([], [], label=pipeline.name, marker=marker, color=color, linestyle=dashes, **IDEAL)
        for pipeline, (marker, dashes, color) in zip(curves, cycle(SERIES_LOOKS))
    ]
    texts = {
        "measured at the gray lines, side by side": MEASURED,
        "upper bound: the slower of GPU and loader": {"color": INK, **IDEAL},
    }
    if any(point.low is not None for point in every):
        texts[INTERVAL] = {"color": INK, "linewidth": 1.6}
    return handles + [Line2D([], [], label=text, **look) for text, look in texts.items()]


def _write_ends(axes: Axes, measured: Sequence[Pipeline]) -> None:
    """Write each pipeline's name and last speed right of the axes, none over another."""
    from scipy.optimize import isotonic_regression

    low, high = map(math.log, axes.get_ylim())
    ends = []
    for pipeline, (_, _, color) in zip(measured, cycle(SERIES_LOOKS)):
        if pipeline.points:
            last = pipeline.points[-1]
            label = wrap(f"{pipeline.name}: {last.images_per_s:,.0f}", chars=30)
            ends.append((last, label, color))
    ends.sort(key=lambda end: end[0].images_per_s)
    heights = [(math.log(last.images_per_s) - low) / (high - low) for last, _, _ in ends]
    # The places closest to the lines' ends that are so far apart: 0.05 of the axis for each line of
    # a name.
    half = [0.05 * (1 + label.count("\n")) / 2 for _, label, _ in ends]
    apart = list(accumulate((a + b for a, b in pairwise(half)), initial=0))
    fitted = isotonic_regression([y - gap for y, gap in zip(heights, apart)]).x if ends else []
    for (last, label, color), place, gap in zip(ends, fitted, apart):
        end, at = (last.device_images_per_s, last.images_per_s), (1.02, place + gap)
        # The line by itself, as it would count as the text's extent.
        axes.annotate(
            "", end, at, textcoords="axes fraction", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.7, "shrinkB": 4},
        )  # fmt: skip
        axes.annotate(
            label, at, (0, 0), "axes fraction", "offset points", va="center", size=9,
            weight="bold", color=color, annotation_clip=False,
        )  # fmt: skip


# --- timeline -------------------------------------------------------------------------------

GPU_UTIL = (
    "GPU-Util is the share of NVML's sampling period (1/6 to 1 s) in which some kernel ran. It "
    "does not show how much of the GPU worked: one small kernel on one multiprocessor reads "
    "100 %. Waits that are shorter than the period are not visible."
)
SIMULATED = (
    "There is no GPU-Util here: the bands are when the simulated GPU computed. A real "
    "GPU's GPU-Util would be their average over 1/6 to 1 s, and would not show shorter waits."
)
LANE_IN = 0.2
CORES_IN = (0.34, 1.3)  # height of all cores: at least, at most
# Fill and hatch of a lane.
LANE_LOOKS = (("#fdd0a2", "////"), ("#6baed6", ""), ("#c7c7c7", "xxxx"), ("#e5e5e5", "...."))


def timeline(seen: Timeline, title: str = "Use of device, cores, disk and host") -> Figure:
    """Draw device, memory, cores, disk and host above one another along one axis of time.

    Args:
        seen: what `record_timeline` returned.
        title: above all.

    Returns:
        A figure that shows itself in a notebook; its label holds the titles of all panels.
    """
    panels, missing = _panels(seen)
    titles = [wrap(panel_title, 100) for panel_title, _, _ in panels]
    heights_in = [height_in for _, height_in, _ in panels]
    lines = [Line(title, 13, "bold")]
    if seen.device is not None:
        lines.append(Line("Simulated GPU", 10, "bold", WARNING_INK))
    lines += [Line(why, color=SOFT_INK) for why in missing]
    lines.append(Line(GPU_UTIL if seen.device is None else SIMULATED, color=SOFT_INK))
    with page() as figure:
        content_in = sum(heights_in) + sum(
            0.36 + 0.17 * panel_title.count("\n") for panel_title in titles
        )
        if panels:
            content_in += AXIS_IN
            ratios = {"height_ratios": heights_in}
            drawn = figure.subplots(len(panels), sharex=True, squeeze=False, gridspec_kw=ratios)
            for axes, panel_title, (_, _, draw) in zip(drawn[:, 0], titles, panels):
                axes.set_title(panel_title, loc="left", size=9)
                draw(axes)
            axes.set_xlim(0, seen.duration_s or 1.0)
            axes.set_xlabel("seconds")
        frame(figure, lines, "", content_in, shown=[panel_title for panel_title, _, _ in panels])
    return figure


def _panels(seen: Timeline) -> tuple[list[tuple[str, float, Callable]], list[str]]:
    """Return title, height and drawing of every panel, and why the others are missing."""
    panels: list[tuple[str, float, Callable]] = []
    missing: list[str] = []
    measured = seen.samples.dropna(axis="columns", how="all")
    cores = measured.filter(like="core ")

    def add_curve(title: str, name: str, scale: float, unit: str, top: float = 0) -> None:
        scaled = scale * measured[name]
        panels.append((title, 0.62, partial(_draw_curve, values=scaled, unit=unit, top=top)))

    if seen.device is not None:
        share = units.percent(_share(seen.device, seen.duration_s))
        title = f"device computing, {share} of the time: {seen.device_label}"
        draw = partial(_draw_lanes, lanes={"busy": seen.device}, looks=LANE_LOOKS[1:2])
        panels.append((title, LANE_IN, draw))
    elif "gpu_util" in measured:
        mean = units.percent(measured["gpu_util"].mean())
        add_curve(f"GPU-Util as NVML reports it, {mean} on average", "gpu_util", 100, "%", 100)
    else:
        missing.append(f"device: neither GPU-Util nor GPU memory: {seen.why_no_gpu}")
    if "gpu_memory_bytes" in measured:
        most = units.count_bytes(measured["gpu_memory_bytes"].max())
        title = f"GPU memory in use by all programs, at most {most}"
        add_curve(title, "gpu_memory_bytes", 1e-9, "GB")
    if n := cores.shape[1]:
        tinted = "; tinted: not counted" if cores.isna().any(axis=None) else ""
        title = f"CPU per core, all programs (white idle, black busy{tinted}): on average "
        title += f"{cores.mean().sum():.1f} of {units.count(n, 'core')} busy"
        low, high = CORES_IN
        height_in = min(max(0.16 * n, low), high)
        panels.append((title, height_in, partial(_draw_cores, cores=cores)))
    else:
        missing.append("CPU per core: this platform does not count its cores' time")
    if "read_bytes_per_s" in measured:
        most = measured["read_bytes_per_s"].max()
        title = "read from disks by this process and its workers, without the page cache: "
        title += f"at most {units.count_bytes(most)}/s" if most else "nothing"
        add_curve(title, "read_bytes_per_s", 1e-6, "MB/s")
    else:
        missing.append("read from disks: this platform does not tell what a process fetched")
    if seen.host:
        shares = [
            f"{name} {units.percent(_share(bands, seen.duration_s))}"
            for name, bands in seen.host.items()
        ]
        draw = partial(_draw_lanes, lanes=seen.host, looks=LANE_LOOKS)
        panels.append((f"host, of the time: {', '.join(shares)}", LANE_IN * len(shares), draw))
    else:
        missing.append("host: nothing was marked")
    return panels, missing


def _draw_curve(axes: Axes, values: pd.Series, unit: str, top: float) -> None:
    edges_s = [0.0, *values.index]  # a value holds from the sample before to its own
    axes.stairs(values, edges_s, fill=True, color="#c6dbef", linewidth=0)
    axes.stairs(values, edges_s, baseline=None, color="#08519c", linewidth=1.2)
    axes.set_ylim(0, top or 1.05 * values.max() or 1.0)
    axes.set_ylabel(unit)
    axes.locator_params(axis="y", nbins=2)


def _draw_cores(axes: Axes, cores: pd.DataFrame) -> None:
    n = cores.shape[1]
    axes.set_facecolor("#fbe3cf")  # a sample without counts; a white core was idle
    axes.grid(visible=False)
    # As a picture: an .svg of 100,000 squares would be of no use.
    axes.pcolormesh(
        [0.0, *cores.index], range(n + 1), cores.T, cmap="Greys", vmin=0, vmax=1, rasterized=True
    )
    axes.set_ylim(n, 0)
    axes.set_yticks([0.5] if n == 1 else [0.5, n - 0.5], ["1"] if n == 1 else ["1", str(n)])
    axes.set_ylabel("core")


def _draw_lanes(
    axes: Axes, lanes: Mapping[str, Sequence[Band]], looks: Sequence[tuple[str, str]]
) -> None:
    axes.set_ylim(len(lanes), 0)
    axes.set_yticks([i + 0.5 for i in range(len(lanes))], list(lanes))
    axes.tick_params(axis="y", length=0)
    for i, bands in enumerate(lanes.values()):
        color, hatch = looks[i % len(looks)]
        # No edges: of bands thinner than a pixel nothing else would be seen.
        axes.broken_barh(
            [(start_s, end_s - start_s) for start_s, end_s in bands], (i + 0.1, 0.8),
            facecolor=color, hatch=hatch, edgecolor=SOFT_INK, linewidth=0,
        )  # fmt: skip


def _share(bands: Sequence[Band], duration_s: float) -> float | None:
    if not duration_s:
        return None
    return sum(min(end_s, duration_s) - start_s for start_s, end_s in bands) / duration_s
