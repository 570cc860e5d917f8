"""A run along its dial: normalized time over the steps between two times, and the advice.

    Summary, DIALS -> dial_chart() -> matplotlib Figure

Main trap: most of these costs are small, and a cut axis would make them look large; so the axis
starts at 0, and every point says its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from labkit import captions, units
from labkit.dials import Dial, Series, find_series, say
from labkit.figures import (
    INK,
    LEGEND_LINE_IN,
    PAD_IN,
    WIDE,
    Sheet,
    count_legend_columns,
    draw_foot,
    draw_head,
    fit_foot,
    fit_head,
    fitter,
    foot_height_in,
    head,
    head_height_in,
    mimebundle,
    style,
)
from labkit.summary import Summary

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN, AXIS_IN, LEFT_IN = 3.0, 0.62, 0.75
NEVER = "never"
# Apart without any colour: mark, dashes, shade.
LOOKS = (
    ("o", "-", "#08519c"), ("s", (0, (5, 2)), "#d94801"), ("^", (0, (1, 1.5)), "#1a1a1a"),
    ("D", (0, (5, 2, 1, 2)), "#6a51a3"), ("v", "-", "#737373"), ("P", (0, (5, 2)), "#238b45"),
    ("X", (0, (1, 1.5)), "#7a0177"), ("<", (0, (5, 2, 1, 2)), "#0570b0"), (">", "-", "#a65628"),
)  # fmt: skip


def dial_chart(
    info: Mapping[str, object], summary: Summary, dial: Dial, sheet: Sheet = WIDE
) -> Figure:
    """Draw the normalized times of one run along its dial.

    Args:
        info: what `run.json` holds.
        summary: of the same run.
        dial: what its experiment turns; see `dials.DIALS`.
        sheet: `figures.COLUMN` for a column of a paper.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = find_series(info, summary, dial)
    with style(sheet):
        figure = Figure()
        canvas = FigureCanvasAgg(figure)
        figure.set_label(_describe(summary, found))
        fit = fitter(figure)
        said = [
            (f"{sentence[0].upper()}{sentence[1:]}.", 9, "normal", INK)
            for sentence in map(say, found)
        ]
        lines = head(summary, fit, sheet) + fit_head(said, fit, sheet)
        foot = fit_foot(summary.origin, fit, sheet)
        axes = figure.add_subplot()
        handles = _draw(axes, summary, found, dial, sheet)
        columns = count_legend_columns(figure, handles, sheet)
        legend_in = LEGEND_LINE_IN * -(-len(handles) // columns) + PAD_IN
        bottom_in = foot_height_in(foot) + legend_in + AXIS_IN
        height_in = bottom_in + PANEL_IN + 2 * PAD_IN + head_height_in(lines)
        figure.set_size_inches(sheet.width_in * sheet.scale, height_in * sheet.scale)
        left, bottom = (PAD_IN + LEFT_IN) / sheet.width_in, bottom_in / height_in
        axes.set_position((left, bottom, 1 - left - PAD_IN / sheet.width_in, PANEL_IN / height_in))
        figure.legend(
            handles=handles, loc="lower left", ncols=columns, borderaxespad=0, borderpad=0,
            bbox_to_anchor=(
                PAD_IN / sheet.width_in, (foot_height_in(foot) + PAD_IN / 2) / height_in
            ),
        )  # fmt: skip
        draw_head(figure, lines, sheet)
        draw_foot(figure, foot, sheet)
        canvas.draw()
    # Figures made without pyplot do not show themselves; IPython looks for this name.
    figure._repr_mimebundle_ = lambda **_: mimebundle(figure)
    return figure


def _draw(
    axes: Axes, summary: Summary, found: list[Series], dial: Dial, sheet: Sheet
) -> list[Artist]:
    from matplotlib.lines import Line2D

    steps = sorted({n for series in found for n, _ in series.points} | {dial.advice or 1})
    places = {n: place for place, n in enumerate(steps)}  # 1, 10, 100 lie equally far apart
    axes.set_xticks(range(len(steps) + 1), [units.count(n) for n in steps] + [NEVER])
    axes.set_xlim(-0.35, len(steps) + 0.35)
    axes.set_xlabel(f"steps between two times ({dial.setting})")
    axes.set_ylabel("normalized epoch time")
    highs = [row.ci_high or row.normalized_time for s in found for _, row in s.points]
    tops = [row.normalized_time for s in found for _, row in s.points]
    top = max([1.0, *tops])
    axes.set_ylim(0, 1.15 * max(top, min(max(highs, default=1.0), 1.5 * top)))
    axes.grid(axis="y")
    axes.axhline(1, linestyle=(0, (4, 3)), **sheet.mark({"color": INK, "linewidth": 1}))
    look = {"color": INK, "marker": "o", "markerfacecolor": "white", "linestyle": (0, (4, 3))}
    label = f"{summary.baseline} (baseline)"
    axes.plot([len(steps)], [1], zorder=3, **sheet.mark({**look, "markersize": 6}))
    handles = [Line2D([], [], label=label, **sheet.mark({**look, "markersize": 6}))]
    if dial.advice:
        handles.append(_draw_advice(axes, places[dial.advice], dial, sheet))
    for i, series in enumerate(found):
        handles.append(_draw_series(axes, series, places, i, len(found), sheet))
    return handles


def _draw_advice(axes: Axes, place: int, dial: Dial, sheet: Sheet) -> Artist:
    return axes.axvline(
        place, zorder=0, label=f"{dial.source}: every {dial.advice} steps",
        **sheet.mark({"color": "#bdbdbd", "linewidth": 7}),
    )  # fmt: skip


def _draw_series(
    axes: Axes, series: Series, places: Mapping[int, int], i: int, n: int, sheet: Sheet
) -> Artist:
    marker, dashes, color = LOOKS[i % len(LOOKS)]
    # Beside each other, or intervals of equal points would hide one another.
    shift = 0.36 * ((i + 0.5) / n - 0.5)
    xs = [places[steps] + shift for steps, _ in series.points]
    ys = [row.normalized_time for _, row in series.points]
    look = sheet.mark({"color": color, "linewidth": 1.4, "markersize": 6})
    (line,) = axes.plot(
        xs, ys, marker=marker, linestyle=dashes, label=series.name or "every N steps", **look
    )
    for (_, row), x, y in zip(series.points, xs, ys):
        if row.ci_low is not None:
            axes.plot([x, x], [row.ci_low, row.ci_high], clip_on=True, **{**look, "linewidth": 1})
        axes.annotate(
            units.normalized(y), (x, y), (0, 7 * sheet.scale), textcoords="offset points",
            ha="center", size=8 * sheet.scale, color=color,
        )  # fmt: skip
    return line


def _describe(summary: Summary, found: list[Series]) -> str:
    sentences = [summary.question, *captions.stand_ins(summary), captions.conditions(summary)]
    sentences.append(f"Normalized epoch time along the dial; {summary.baseline} is 1")
    for series in found:
        for _, row in series.points:
            sentences.append(f"{row.variant}: {captions.describe_row(summary, row)}")
        sentences.append(say(series))
    return captions.join_sentences(sentences)
