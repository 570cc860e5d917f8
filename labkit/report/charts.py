"""The charts of a run, of several runs, and of a timeline.

Every axis of times starts at 0: cut axes made the documents' gains look four times as large.  The
exception are the times of look-ups, from 1 µs to 30 ms: their axis is logarithmic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, cycle, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import units
from labkit.analysis.describe import epoch_bars
from labkit.analysis.roofline import Pipeline, pipelines
from labkit.analysis.rows import Row
from labkit.analysis.simulated import beside_the_loader, simulated_hardware, warnings
from labkit.analysis.summary import Summary
from labkit.analysis.utilization import busy_over_time
from labkit.analysis.winner import winner
from labkit.diagnosis.timeline import Band, Timeline
from labkit.records import EPOCHS
from labkit.report import words
from labkit.report.bars import (
    AXIS_IN,
    INK,
    LOOKS,
    SOFT_INK,
    WARNING_INK,
    Bar,
    BarRow,
    Line,
    describe_rows,
    draw_rows,
    frame,
    height_in,
    legend_of,
    page,
    wrap,
    write_beside,
)
from labkit.runs.operation_trials import SAMPLE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.runs.store import StoredRun

NORMALIZED = "epoch time ÷ the baseline's (0.8 = 20 % shorter)"
SHOWN = f"{NORMALIZED}, with its 95 % confidence interval"
LINE_OF_NO_CHANGE: dict[str, Any] = {
    "color": INK,
    "linewidth": 1,
    "linestyle": (0, (4, 3)),
    "zorder": 2.5,
}


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
    if summary.kind == "roofline":
        return {"roofline": roofline}
    caches = {settings.cache for settings in summary.info.variants.values()}
    draw_functions: dict[str, Callable[[Summary], Figure]] = {"times": times}
    if _compared_devices(summary):
        draw_functions["utilization"] = utilization
    if len(summary.at_speeds) > 1:
        draw_functions = {"speeds": speeds, **draw_functions}
    if {"cold", "warm"} <= caches:
        draw_functions["epochs"] = epochs
    if find_series(summary):
        draw_functions["curve"] = curve
    elif find_sizes(summary):
        draw_functions["curve"] = curve_of_sizes
    return draw_functions


# --- utilization ----------------------------------------------------------------------------

UTILIZATION_S, BIN_S = 30.0, 0.25  # drawn of each variant; one bin of it


def utilization(summary: Summary) -> Figure:
    """Draw how busy the GPU is over 30 seconds of training, with the baseline and with the fix.

    Of several speeds of the device, the fastest is drawn.  Epochs follow one another.

    Returns:
        A figure that shows itself in a notebook; its label holds the mean of each variant.
    """
    drawn = _compared_devices(summary)
    lines, caption = title_and_caption(summary)
    means = [f"{shares.mean():.0%} of the time with {row.name}" for row, (_, shares) in drawn]
    lines[0] = replace(lines[0], text=f"The GPU computes {', '.join(means)}")
    with page() as figure:
        panels = figure.subplots(len(drawn), sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (row, (ends_s, shares)) in zip(panels, drawn):
            axes.fill_between(ends_s, 100 * shares, step="pre", color=LOOKS["faster"][0])
            axes.plot(ends_s, 100 * shares, drawstyle="steps-pre", color=INK, linewidth=0.8)
            axes.set_title(row.name, loc="left", size=9)
            axes.set(ylim=(0, 105), yticks=[0, 50, 100], ylabel="GPU, %")
        panels[-1].set_xlabel("seconds of training")
        panels[-1].set_xlim(0, max(ends_s[-1] for _, (ends_s, _) in drawn))
        frame(figure, lines, caption, 1.5 * len(drawn) + AXIS_IN, shown=means)
    return figure


def _compared_devices(
    summary: Summary,
) -> list[tuple[Row, tuple[np.ndarray, np.ndarray]]]:
    """Return the baseline and the fastest other variant, with the device's shares over time."""
    if summary.at_speeds:
        summary = summary.at_speeds[max(summary.at_speeds)]
    if summary.kind != EPOCHS or summary.has_groups:
        return []
    base, *others = summary.rows
    known = [row for row in others if row.normalized_time is not None]
    if base.normalized_time is None or not known:
        return []
    best = winner(summary) or min(known, key=lambda row: row.normalized_time)
    how = {"seconds": UTILIZATION_S, "bin_s": BIN_S}
    drawn = [(row, busy_over_time(row.of_epochs, **how)) for row in (base, best)]
    return drawn if all(len(ends_s) > 1 for _, (ends_s, _) in drawn) else []


# --- normalized times -----------------------------------------------------------------------


def times(summary: Summary) -> Figure:
    """Draw the normalized times of a run.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    if summary.has_groups:
        return _times_of_groups(summary)
    rows = [_times_row(row) for row in summary.rows]
    return _on_one_axis(rows, summary.rows, *title_and_caption(summary))


def _on_one_axis(
    rows: Sequence[BarRow],
    measured: Sequence[Row],
    title: Sequence[Line],
    caption: str,
    **value_font: object,
) -> Figure:
    handles = _times_legend(rows)
    with page() as figure:
        axes = figure.add_subplot()
        _draw_times(axes, rows, _axis_end(measured), **value_font)
        axes.set_xlabel(NORMALIZED)
        shown = [SHOWN, *describe_rows(rows)]
        frame(figure, title, caption, height_in(rows) + AXIS_IN, handles, shown=shown)
    return figure


def _times_of_groups(summary: Summary) -> Figure:
    """Draw axes per group: an operation at 640 × 480 is in the column 640×480.

    Each has its own axis, as groups are not compared; the time is beside each bar.
    """
    from matplotlib.ticker import MaxNLocator

    groups = summary.groups()
    places = [_place_of_group(summary, group, rows) for group, rows in groups.items()]
    names, columns = (list(dict.fromkeys(part)) for part in zip(*places))
    divided = NORMALIZED.removeprefix("epoch ") if summary.kind == "operation" else NORMALIZED
    drawn, shown = [], [f"{divided}, with its 95 % confidence interval"]
    with page() as figure:
        most = dict.fromkeys(names, 0)
        for (name, _), rows in zip(places, groups.values()):
            most[name] = max(most[name], len(rows))
        grid = figure.add_gridspec(len(names), len(columns), height_ratios=list(most.values()))
        for (name, column), (group, rows) in zip(places, groups.items()):
            axes = figure.add_subplot(grid[names.index(name), columns.index(column)])
            bars = [_row_of_group(row) for row in rows]
            _draw_times(axes, bars, _axis_end(rows), size=9)
            # A long name would reach into the next column's.
            wrapped = wrap(group, 24) if column == columns[0] else column
            axes.set_title(wrapped, loc="left", size=9, weight="bold")
            axes.tick_params(axis="x", labelsize=8)
            axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
            if column != columns[0]:
                axes.tick_params(labelleft=False)
            drawn += bars
            texts = describe_rows([_times_row(row) for row in rows])
            shown += [
                text if row.normalized_time is None else f"{text}, {units.seconds(row.time_s)}"
                for text, row in zip(texts, rows)
            ]
        # Not below the axes: there is one label for all of them.
        title = title_and_caption(summary, [divided, words.conditions(summary)])
        content_in = 0.24 * sum(most.values()) + 0.5 * len(names)
        frame(figure, *title, content_in, _times_legend(drawn), shown=shown)
    return figure


def _place_of_group(summary: Summary, group: str, rows: Sequence[Row]) -> tuple[str, str]:
    """Return the row and the column of a group: an operation and the size of its pictures."""
    task = summary.info.tasks.get(rows[0].variant, {})
    if "width_px" not in task:
        return group, ""  # one column
    return str(task["operation"]), f"{task['width_px']}×{task['height_px']}"


def _times_row(row: Row) -> BarRow:
    if row.normalized_time is None:
        return BarRow(name=row.variant, reason=words.reason(row))
    interval = None if row.ci_low is None else (row.ci_low, row.ci_high)
    notes = [units.interval(*interval)] if interval else []
    bar = Bar(
        length=row.normalized_time,
        look="baseline" if row.is_baseline else row.verdict if row.verdict in LOOKS else "other",
        dots=row.ratios,
        outliers=row.outliers,
        interval=interval,
        published=None if row.is_baseline else row.published,  # the baseline's is 1 by definition
        value=units.normalized(row.normalized_time),
        notes=[*notes, row.verdict] if row.verdict else notes,
    )
    return BarRow(name=row.variant, bars=(bar,))


def _row_of_group(row: Row) -> BarRow:
    """Show the time in place of the normalized one, and no reasons: there is no room."""
    drawn = _times_row(row)
    bars = [replace(bar, value=units.seconds(row.time_s), notes=()) for bar in drawn.bars]
    return BarRow(name=row.name, bars=bars, reason="" if bars else row.status)


def _axis_end(rows: Sequence[Row]) -> float:
    """Return where the axis ends: behind every dot; a very long interval is cut off."""
    known = [1.0, *(ratio for row in rows for ratio in row.ratios)]
    known += [row.published for row in rows if row.published is not None]
    highs = [row.ci_high for row in rows if row.ci_high is not None]
    return 1.06 * max(*known, min(max(highs, default=0), 1.5 * max(known)))


def _draw_times(axes: Axes, rows: Sequence[BarRow], end: float, **value_font: object) -> None:
    axes.axvline(1, **LINE_OF_NO_CHANGE)
    draw_rows(axes, rows, end, **(value_font or {"weight": "bold"}))


def _times_legend(rows: Sequence[BarRow]) -> list[Artist]:
    return legend_of(rows, {"baseline": "baseline"}, "one trial")


# --- several runs -------------------------------------------------------------------------


def overview(summaries: Sequence[Summary]) -> Figure | None:
    """Draw every variant with a published figure, whichever its run, along one axis.

    Returns:
        As `times`; None where no variant has one.
    """
    with_published = words.beside_the_documents(summaries)
    if not with_published:
        return None
    rows = []
    simulated_here: dict[str, Any] = {}
    for summary, row in with_published:
        drawn = _times_row(row)
        word = words.agreement(summary, row)
        # The verdict is in the words already, or is the same word.
        words_beside = [word or row.verdict or "no verdict"]
        value = words.normalized(row) if drawn.bars else ""
        bars = [
            replace(bar, dots=(), outliers=(), value=value, notes=words_beside)
            for bar in drawn.bars
        ]
        experiment = summary.info.experiment
        rows.append(replace(drawn, name=f"{experiment}: {row.variant}", bars=bars))
        x = beside_the_loader([row])
        for name, details in simulated_hardware([row]).items():
            beside = f" ({x})" if x and name == "simulated GPU" else ""
            what = f"{name}, {details}".rstrip(", ")
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
    return _on_one_axis(rows, [row for _, row in with_published], title, "", size=9)


# --- runs side by side ----------------------------------------------------------------------


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
    rows, measured = [], []
    for number, summary in enumerate((run.summary for run in runs), 1):
        simulated_here = warnings(summary)
        conditions = " · ".join([*words.how_measured(summary), *simulated_here])
        ink = WARNING_INK if simulated_here else INK
        title.append(Line(f"Run {number}: {conditions}", weight="bold", color=ink))
        about = filter(None, [words.origin(summary), *words.plain_labels(summary)])
        title.append(Line(" · ".join(about), color=SOFT_INK))
        for row in summary.rows:
            rows.append(replace(_times_row(row), name=f"{number}: {row.variant}"))
            measured.append(row)
    return _on_one_axis(rows, measured, title, "")


# --- epochs ---------------------------------------------------------------------------------

# What was measured of a variant's bytes: heading, and its distance from the axis in points. A
# time alone does not show whether a disk or the page cache was fast.
COLUMNS = (
    ("in memory\nbefore epoch 1", 66),
    ("bytes from disk,\nall epochs", 164),
    ("pages\nswapped", 246),
)


def epochs(summary: Summary) -> Figure:
    """Draw the seconds of each variant's first and later epochs, and where their bytes came from.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    looks = {"first epoch": "epoch 1", "later epochs": ""}
    rows, later = [], set()
    for row in summary.rows:
        row_bars = epoch_bars(row)
        # Variants may differ in their number of epochs: "epoch 2 / epochs 2 to 3 (mean)".
        later |= {bar.name for bar in row_bars[1:]}
        bars = [
            Bar(
                length=x.mean_s, name=x.name, look=look, dots=x.all_s, value=units.seconds(x.mean_s)
            )
            for x, look in zip(row_bars, looks)
        ]
        rows.append(BarRow(name=row.variant, bars=bars, reason=words.reason(row)))
    looks["later epochs"] = " / ".join(sorted(later))
    ends = [max(bar.dots) for row in rows for bar in row.bars]
    with page() as figure:
        axes = figure.add_subplot()
        draw_rows(axes, rows, 1.06 * max(ends, default=1.0), size=9)
        axes.set_xlabel("seconds per epoch (lower is better)")
        shown = [axes.get_xlabel()]
        if ends:
            for heading, right_pt in COLUMNS:
                write_beside(axes, -0.5, (right_pt, 14), heading, size=8.5, color=SOFT_INK)
        for y, (row, description) in enumerate(zip(summary.rows, describe_rows(rows))):
            proof = list(zip(COLUMNS, words.proof(row))) if rows[y].bars else []
            for (heading, right_pt), text in proof:
                write_beside(axes, y, (right_pt, 0), text, size=9)
                description += f"; {heading}: {text}".replace("\n", " ")
            shown.append(description)
        handles = legend_of(rows, looks, "one epoch of one trial")
        frame(
            figure,
            *title_and_caption(summary),
            height_in(rows) + AXIS_IN + 0.4,
            handles,
            shown=shown,
        )
    return figure


# --- speeds of the device -------------------------------------------------------------------

PUBLISHED_LINE: dict[str, Any] = {"linewidth": 1.2, "linestyle": (0, (1, 2)), "zorder": 1.8}


def speeds(summary: Summary) -> Figure:
    """Draw normalized time over the speed of the device, a line per variant.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    compared = summary.at_speeds
    shown = [SHOWN]
    for one in compared.values():
        shown += describe_rows([_times_row(row) for row in one.rows])
    with page() as figure:
        handles = _draw_speeds(figure.add_subplot(), compared)
        title = title_and_caption(summary)
        frame(figure, *title, 3.9, handles, shown=shown, columns=3)
    return figure


def _draw_speeds(axes: Axes, compared: Mapping[float, Summary]) -> list[Artist]:
    axes.set_xlabel("speed of the GPU ÷ the baseline's loading rate (x)")
    axes.set_ylabel("epoch time ÷ the baseline's")
    places = {x: place for place, x in enumerate(compared)}  # each is twice the last
    axes.set_xticks(list(places.values()), [f"{x:g}" for x in places])
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.grid(axis="y")
    axes.axhline(1, **LINE_OF_NO_CHANGE)
    points: dict[str, list[tuple[float, Row]]] = {}
    for x, summary in compared.items():
        for row in summary.rows:
            if row.normalized_time is not None and not row.is_baseline:
                points.setdefault(row.name, []).append((x, row))
    every = [row for series in points.values() for _, row in series]
    highest = max([1.0, *(row.normalized_time for row in every)])
    axes.set_ylim(0, 1.2 * highest)  # a very long interval is cut off
    handles: list[Artist] = []
    for i, (name, series) in enumerate(points.items()):
        marker, dashes, color = SERIES_LOOKS[i % len(SERIES_LOOKS)]
        # Beside each other, or equal points would hide one another.
        shift = GROUP / 2 / len(points) * (i - (len(points) - 1) / 2)
        at = [places[x] + shift for x, _ in series]
        times = [row.normalized_time for _, row in series]
        look: dict[str, Any] = {"color": color, "linewidth": 1.4, "markersize": 6, "marker": marker}
        published = next((row.published for _, row in series if row.published is not None), None)
        label = name if published is None else f"{name} (published: {units.normalized(published)})"
        handles += axes.plot(at, times, linestyle=dashes, label=wrap(label, 34), **look)
        for place, (_, row) in zip(at, series):
            if row.ci_low is not None:
                axes.vlines(place, row.ci_low, row.ci_high, color=color)
        if published is not None:
            axes.axhline(published, color=color, **PUBLISHED_LINE)
    return handles


# --- curve -----------------------------------------------------------------------------------

NEGLIGIBLE, NEGLIGIBLE_SAID = 0.01, "less than 1 % from"
GROUP = 0.84  # width of the points and the advice at one position, in positions
BASELINE: dict[str, Any] = {
    "color": INK, "marker": "o", "markersize": 6, "markerfacecolor": "white",
    "linestyle": (0, (4, 3)),
}  # fmt: skip
RING: dict[str, Any] = {
    "marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgecolor": INK,
    "markeredgewidth": 1.2, "linestyle": "none",
}  # fmt: skip
# Marker, dashes and colour: apart without any colour.
SERIES_LOOKS = (
    ("o", "-", "#08519c"), ("s", (0, (5, 2)), "#d94801"), ("^", (0, (1, 1.5)), "#1a1a1a"),
    ("D", (0, (5, 2, 1, 2)), "#6a51a3"), ("v", "-", "#737373"), ("P", (0, (5, 2)), "#238b45"),
    ("X", (0, (1, 1.5)), "#7a0177"), ("<", (0, (5, 2, 1, 2)), "#0570b0"), (">", "-", "#a65628"),
)  # fmt: skip


# Steps between two events, and what was measured; the most frequent first.
Points = list[tuple[int, Row]]


def find_series(summary: Summary) -> dict[str, Points]:
    """Group the measured variants that differ only in the number of steps between two events.

    Returns:
        What else differs from the baseline, as "checkpoint_writer thread" -> points; nothing
        where the experiment has no x axis, or its baseline has a place on it.
    """
    x_axis = summary.info.x_axis
    if not x_axis:
        return {}
    base = summary.info.settings_of(summary.baseline)
    series: dict[str, Points] = {}
    for row in summary.rows:
        settings = summary.info.settings_of(row.variant)
        steps: Any = settings.get(x_axis.setting)
        if not steps or row.variant == summary.baseline or row.normalized_time is None:
            continue
        apart = [
            f"{name} {units.text_of(value)}"
            for name, value in settings.items()
            if name != x_axis.setting and value != base.get(name)
        ]
        if not apart and base.get(x_axis.setting):
            return {}
        series.setdefault(", ".join(apart), []).append((steps, row))
    return {name: sorted(points, key=itemgetter(0)) for name, points in series.items()}


def curve(summary: Summary) -> Figure:
    """Draw normalized time over the number of steps between two events.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    series = find_series(summary)
    shown = [SHOWN]
    shown += describe_rows([_times_row(row) for _, row in chain(*series.values())])
    for points in series.values():
        if limit := _negligible_from(points):
            cheap = next(row.variant for steps, row in points if steps == limit)
            shown.append(f"{NEGLIGIBLE_SAID} {cheap}")
    with page() as figure:
        handles = _draw_over_steps(figure.add_subplot(), summary, series)
        frame(figure, *title_and_caption(summary), 3.9, handles, shown=shown, columns=3)
    return figure


def _draw_over_steps(axes: Axes, summary: Summary, series: Mapping[str, Points]) -> list[Artist]:
    from matplotlib.lines import Line2D

    chosen, advice = summary.info.x_axis, summary.info.x_axis.advice
    every = [*chain(*series.values())]
    steps = sorted({n for n, _ in every} | ({advice} if advice else set()))
    places = {n: place for place, n in enumerate(steps)}  # 1, 10, 100 lie equally far apart
    axes.set_xticks(range(len(steps) + 1), [units.count(n) for n in steps] + ["never"])
    axes.set_xlim(-0.5, len(steps) + 0.5)
    axes.set_xlabel(f"every N steps ({chosen.setting})")
    axes.set_ylabel("epoch time ÷ the baseline's")
    highest = max([1.0, *(row.normalized_time for _, row in every)])
    axes.set_ylim(0, 1.2 * highest)  # a very long interval is cut off
    axes.grid(axis="y")
    axes.axhline(1, **LINE_OF_NO_CHANGE)
    handles: list[Artist] = []
    if summary.rows[0].normalized_time is not None:
        axes.plot([len(steps)], [1], zorder=3, **BASELINE)
        handles.append(Line2D([], [], label=f"{summary.baseline} (baseline)", **BASELINE))
    if advice:
        place, label = places[advice], f"{chosen.source}: every {advice} steps"
        band = (place - GROUP / 2, place + GROUP / 2)
        handles.append(axes.axvspan(*band, color="#e6e6e6", zorder=0, label=label))
    limits = [_negligible_from(points) for points in series.values()]
    for i, ((name, points), limit) in enumerate(zip(series.items(), limits)):
        marker, dashes, color = SERIES_LOOKS[i % len(SERIES_LOOKS)]
        # Beside each other, or equal points would hide one another.
        shift = GROUP / len(series) * (i - (len(series) - 1) / 2)
        xs = [places[n] + shift for n, _ in points]
        ys = [row.normalized_time for _, row in points]
        look: dict[str, Any] = {"color": color, "linewidth": 1.4, "markersize": 6, "marker": marker}
        label = wrap(name or "every N steps", 28)
        handles += axes.plot(xs, ys, linestyle=dashes, label=label, **look)
        for x, (n, row) in zip(xs, points):
            if row.ci_low is not None:
                axes.vlines(x, row.ci_low, row.ci_high, color=color)
            if n == limit:
                axes.plot([x], [row.normalized_time], **RING)
    if any(limits):
        handles.append(Line2D([], [], label=f"{NEGLIGIBLE_SAID} here", **RING))
    return handles


def _negligible_from(points: Points) -> int | None:
    """Return the fewest steps from which on every interval ends below `NEGLIGIBLE`."""
    least = None
    for steps, row in reversed(points):
        if row.ci_high is None or row.ci_high > 1 + NEGLIGIBLE:
            break
        least = steps
    return least


# --- curve of sizes --------------------------------------------------------------------------

SHARE_LINE = {"color": SOFT_INK, "linewidth": 1, "linestyle": (0, (1, 2))}


def find_sizes(summary: Summary) -> dict[str, dict[str, Points]]:
    """Group the measured operations whose inputs are made from one number, by that number.

    Returns:
        "label, by names" -> way to do it -> points of the number and what was measured.
    """
    tasks = summary.info.tasks
    sizes: dict[str, dict[str, Points]] = {}
    for row in summary.rows:
        task = tasks.get(row.variant, {})
        numbers = {name: n for name, n in task.items() if isinstance(n, int)}
        if len(numbers) == 1 and row.time_s:
            ((name, number),) = numbers.items()
            ways = sizes.setdefault(f"{task['operation']}, by {name}", {})
            ways.setdefault(row.name, []).append((number, row))
    return sizes


def curve_of_sizes(summary: Summary) -> Figure:
    """Draw the time per image over the size of what is looked up, beside a sample's.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    from matplotlib.ticker import EngFormatter, FuncFormatter

    sizes, looks = find_sizes(summary), cycle(SERIES_LOOKS)
    shown = ["Time per image, lower is better"]
    handles: dict[str, Artist] = {}
    with page() as figure:
        panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        for axes, (title, ways) in zip(panels, sizes.items()):
            for name, points in ways.items():
                marker, dashes, color = next(looks)
                look = {"color": color, "marker": marker, "linestyle": dashes, "markersize": 6}
                numbers, times_s = zip(*((n, row.time_s) for n, row in points))
                handles |= {name: axes.plot(numbers, times_s, label=name, **look)[0]}
                shown += [f"{row.variant}: {units.seconds(row.time_s)}" for _, row in points]
            axes.set(xscale="log", yscale="log")
            axes.set_title(title, loc="left", size=9, weight="bold")
            axes.set_xticks(numbers)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
            axes.minorticks_off()
            axes.grid(axis="y")
            for row in summary.rows:
                if row.group == SAMPLE and row.time_s:
                    whole = f"{row.variant}, {units.seconds(row.time_s)}"
                    part, part_s = "1 % of that", NEGLIGIBLE * row.time_s
                    handles |= {
                        whole: axes.axhline(
                            row.time_s, label=whole, **{"color": INK, "linewidth": 1.2}
                        ),
                        part: axes.axhline(part_s, label=part, **SHARE_LINE),
                    }
        panels[0].set_ylabel("time per image")
        panels[0].yaxis.set_major_formatter(EngFormatter("s"))
        frame(figure, *title_and_caption(summary), 3.6, [*handles.values()], shown=shown, columns=3)
    return figure


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
FAR = 4  # times as fast as the fastest measured device, or as slow as the slowest
# Between two pipelines at one speed of the GPU, and between the first and the last of them.
BESIDE_PT, ALL_BESIDE_PT = 5, 24
INSIDE: dict[str, Any] = {"clip_on": True, "in_layout": False}
END_CHARS = 30  # of a line of a name at the end of a line
NAME_LINE = 0.05  # height of a line of a name at the end of a line, as a share of the axis


def roofline(summary: Summary) -> Figure:
    """Draw training speed over the device's speed, a line per pipeline.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    measured_pipelines = pipelines(summary)
    measured = [*words.how_measured(summary), *words.plain_labels(summary)]
    lines, caption = title_and_caption(summary, measured)
    lines += [Line(why, color=SOFT_INK) for why in words.not_measured(summary)]
    with page() as figure:
        axes = figure.add_subplot()
        handles = _draw_roofline(axes, summary, measured_pipelines)
        shown = [f"{axes.get_ylabel()}, over the {axes.get_xlabel()}"]
        shown += map(_describe_pipeline, measured_pipelines)
        frame(figure, lines, caption, 4.6, handles, shown=shown, columns=2)
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

    axes.set_xlabel("speed of the GPU: images/s that it trains with the model alone")
    axes.set_ylabel("steady training speed, images/s")
    every = [point for pipeline in curves for point in pipeline.points]
    if not every:
        return []
    devices = [point.device_images_per_s for point in every]
    own, own_name = words.own_device(summary)
    speeds = [point.images_per_s for point in every]
    left, right = min(devices) / 1.15, max(devices) * 1.15
    if own:  # the dots must not be crowded by a device that is far from them
        left = min(left, max(own / 1.15, left / FAR))
        right = max(right, min(own * 1.15, right * FAR))
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
    start = 1.05 * max(left, low)
    axes.text(
        start, start * (high / low) ** 0.025, "the GPU is the limit", size=9, rotation=45,
        va="bottom", rotation_mode="anchor", transform_rotates_text=True, **INSIDE,
    )  # fmt: skip
    loading = curves[0].loading
    if loading is not None and (bend := loading.images_per_s) < right:
        axes.axvspan(bend, right, color=GROUND, zorder=0)
        label_text = wrap(
            f"the loader is the limit: a faster GPU does not help “{curves[0].name}”", 38
        )
        box = {"facecolor": GROUND, "edgecolor": "none", "pad": 1}
        place = 1.05 * max(bend, left), 1.05 * low
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
        beside_pt = min(BESIDE_PT, ALL_BESIDE_PT / len(curves)) * (i - (len(curves) - 1) / 2)
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
    return [
        Line2D(
            [], [], label="measured at the gray lines, with 95 % confidence interval", **MEASURED
        ),
        Line2D([], [], color=INK, label="ideal: the GPU or loading alone, the slower", **IDEAL),
    ]


def _write_ends(axes: Axes, measured: Sequence[Pipeline]) -> None:
    """Write each pipeline's name and last speed right of the axes, none over another."""
    from scipy.optimize import isotonic_regression

    low, high = map(math.log, axes.get_ylim())
    ends = []
    for pipeline, (_, _, color) in zip(measured, cycle(SERIES_LOOKS)):
        if pipeline.points:
            last = pipeline.points[-1]
            label = wrap(f"{pipeline.name}: {last.images_per_s:,.0f}", END_CHARS)
            ends.append((last, label, color))
    ends.sort(key=lambda end: end[0].images_per_s)
    heights = [(math.log(last.images_per_s) - low) / (high - low) for last, _, _ in ends]
    # The places closest to the lines' ends that are this far apart.
    half = [NAME_LINE * (1 + label.count("\n")) / 2 for _, label, _ in ends]
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
CURVE_IN, LANE_IN, CORE_IN = 0.62, 0.2, 0.16
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
    lines += [Line(why, color=SOFT_INK, style="italic") for why in missing]
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
        panels.append((title, CURVE_IN, partial(_draw_curve, values=scaled, unit=unit, top=top)))

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
        height_in = min(max(CORE_IN * n, low), high)
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
