"""Chart of a dial: normalized time over how often the training loop does something.

A dial is a setting that counts the steps between two events; see `experiment.Dial`.  Variants whose
labels differ only in "every N steps" are one series.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from labkit import captions, units
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
from labkit.summary import Row, Summary

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN, AXIS_IN, LEFT_IN = 3.0, 0.62, 0.75
NEVER = "never"
STOPS_MATTERING = 0.01
_EVERY = re.compile(r"every (\d+ steps|step)")
# Of an axis' unit: what lies at one position side by side, and the advice behind it.
GROUP = 0.84
ADVICE = "#e6e6e6"
NUMBER_IN = (0.5, 0.13)  # length and height, with the space around
BASELINE = {
    "color": INK, "marker": "o", "markersize": 6, "markerfacecolor": "white",
    "linestyle": (0, (4, 3)),
}  # fmt: skip
RING = {
    "marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgecolor": INK,
    "markeredgewidth": 1.2, "linestyle": "none",
}  # fmt: skip
BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.9}
# Apart without any colour: mark, dashes, shade.
LOOKS = (
    ("o", "-", "#08519c"), ("s", (0, (5, 2)), "#d94801"), ("^", (0, (1, 1.5)), "#1a1a1a"),
    ("D", (0, (5, 2, 1, 2)), "#6a51a3"), ("v", "-", "#737373"), ("P", (0, (5, 2)), "#238b45"),
    ("X", (0, (1, 1.5)), "#7a0177"), ("<", (0, (5, 2, 1, 2)), "#0570b0"), (">", "-", "#a65628"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Series:
    """Variants that differ in the dial alone."""

    name: str
    points: tuple[tuple[int, Row], ...]
    """Steps between two events, and what was measured; the most frequent first."""


def find_series(info: Mapping[str, object], summary: Summary) -> list[Series]:
    """Group a run's measured variants by what else distinguishes them.

    Args:
        info: what `run.json` holds.
        summary: of the same run.

    Returns:
        Nothing where the experiment has no dial, or its baseline turns the dial itself.
    """
    if not info.get("dial"):
        return []
    setting = info["dial"]["setting"]
    found: dict[str, list[tuple[int, Row]]] = {}
    others = [row for row in summary.rows if row.variant != summary.baseline]
    for row in others if _name(summary.baseline) == summary.baseline else ():
        name = _name(row.variant)
        steps = info["variants"][row.variant].get(setting)
        if steps and name != row.variant and row.normalized_time is not None:
            found.setdefault(name, []).append((steps, row))
    return [
        Series(name=name, points=tuple(sorted(points, key=lambda point: point[0])))
        for name, points in found.items()
    ]


def _name(variant: str) -> str:
    # "loops, every 10 steps" -> "loops"
    return ", ".join(part for part in variant.split(", ") if not _EVERY.fullmatch(part))


def sentences(summary: Summary, found: Sequence[Series]) -> list[str]:
    """State for every series from where on its cost is negligible."""
    if not found:
        return ["No variant was measured along the dial."]
    said = [say(series) for series in found]
    return said if summary.judged and summary.stable else [*said, "Numbers, no verdict."]


def stops_mattering(series: Series) -> int | None:
    """Return the fewest steps from which on the upper end of every interval is below the limit."""
    least = None
    for steps, row in reversed(series.points):
        if row.ci_high is None or row.ci_high > 1 + STOPS_MATTERING:
            break
        least = steps
    return least


def say(series: Series) -> str:
    """State from how many steps on a series costs less than `STOPS_MATTERING`."""
    limit = units.limit(STOPS_MATTERING)
    name = f"{series.name}: " if series.name else ""
    if (least := stops_mattering(series)) is not None:
        return f"{name}less than {limit} from every {_steps(least)} on"
    steps, row = series.points[-1]
    cost = f"{units.normalized(row.normalized_time)} at every {_steps(steps)}"
    is_more = row.ci_low is not None and row.ci_low > 1 + STOPS_MATTERING
    return f"{name}{'more than' if is_more else 'not known to be below'} {limit} ({cost})"


def _steps(n: int) -> str:
    return "step" if n == 1 else f"{n} steps"


def dial_chart(info: Mapping[str, object], summary: Summary, sheet: Sheet = WIDE) -> Figure:
    """Draw the normalized times of one run along its dial.

    Args:
        info: what `run.json` holds.
        summary: of the same run.
        sheet: `figures.COLUMN` for a column of a paper.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    dial = info["dial"]
    found = find_series(info, summary)
    with style(sheet):
        figure = Figure()
        canvas = FigureCanvasAgg(figure)
        figure.set_label(_describe(summary, found))
        fit = fitter(figure)
        said = [(sentence, 9, "normal", INK) for sentence in sentences(summary, found)]
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
    figure._repr_mimebundle_ = partial(mimebundle, figure)
    return figure


def _draw(
    axes: Axes, summary: Summary, found: list[Series], dial: Mapping[str, object], sheet: Sheet
) -> list[Artist]:
    from matplotlib.lines import Line2D

    advised = {dial["advice"]} if dial["advice"] else set()
    steps = sorted({n for series in found for n, _ in series.points} | advised)
    places = {n: place for place, n in enumerate(steps)}  # 1, 10, 100 lie equally far apart
    axes.set_xticks(range(len(steps) + 1), [units.count(n) for n in steps] + [NEVER])
    axes.set_xlim(-0.5, len(steps) + 0.5)
    axes.set_xlabel(f"steps in between ({dial['setting']})")
    axes.set_ylabel("normalized epoch time")
    times = [row.normalized_time for series in found for _, row in series.points]
    highs = [row.ci_high for series in found for _, row in series.points if row.ci_high]
    top = max([1.0, *times])
    # A very long interval is cut off; above it is room for a number.
    top = max(top, min(max(highs, default=0), 1.5 * top))
    axes.set_ylim(0, top / (1 - NUMBER_IN[0] / PANEL_IN))
    axes.grid(axis="y")
    axes.axhline(1, linestyle=(0, (4, 3)), **sheet.mark({"color": INK, "linewidth": 1}))
    handles = []
    if summary.rows and summary.rows[0].normalized_time is not None:
        look = sheet.mark(BASELINE)
        axes.plot([len(steps)], [1], zorder=3, **look)
        handles.append(Line2D([], [], label=f"{summary.baseline} (baseline)", **look))
    if dial["advice"]:
        handles.append(_draw_advice(axes, places[dial["advice"]], dial))
    for i, series in enumerate(found):
        handles.append(_draw_series(axes, series, places, i, len(found), top, sheet))
    if any(stops_mattering(series) for series in found):
        label = f"from here on less than {units.limit(STOPS_MATTERING)}"
        handles.append(Line2D([], [], label=label, **sheet.mark(RING)))
    return handles


def _draw_advice(axes: Axes, place: int, dial: Mapping[str, object]) -> Artist:
    return axes.axvspan(
        place - GROUP / 2, place + GROUP / 2, color=ADVICE, zorder=0,
        label=f"{dial['source']}: every {dial['advice']} steps",
    )  # fmt: skip


def _draw_series(
    axes: Axes,
    series: Series,
    places: Mapping[int, int],
    i: int,
    n: int,
    top: float,
    sheet: Sheet,
) -> Artist:
    from matplotlib.markers import CARETUP

    marker, dashes, color = LOOKS[i % len(LOOKS)]
    # Beside each other, or equal points and their numbers would hide one another.
    apart = GROUP / n
    xs = [places[steps] + apart * (i - (n - 1) / 2) for steps, _ in series.points]
    ys = [row.normalized_time for _, row in series.points]
    look = sheet.mark({"color": color, "linewidth": 1.4, "markersize": 6})
    (line,) = axes.plot(
        xs, ys, marker=marker, linestyle=dashes, label=series.name or "every N steps", **look
    )
    apart_in = apart * (sheet.width_in - 2 * PAD_IN - LEFT_IN) / (len(places) + 1)
    for (steps, row), x, y in zip(series.points, xs, ys):
        if row.ci_low is not None:
            thin = {**look, "linewidth": look["linewidth"] / 2}
            axes.plot([x, x], [row.ci_low, min(row.ci_high, top)], **thin)
            if row.ci_high > top:  # it goes on
                axes.plot([x], [top], marker=CARETUP, **thin)
        if steps == stops_mattering(series):
            axes.plot([x], [y], **sheet.mark(RING))
        if apart_in > NUMBER_IN[1]:  # else the table has them
            axes.annotate(
                units.normalized(y), (x, min(row.ci_high or y, top)), (0, 8 * sheet.scale),
                textcoords="offset points", ha="center", va="bottom", size=8 * sheet.scale,
                color=color, rotation=0 if apart_in > NUMBER_IN[0] else 90, bbox=BEHIND, zorder=5,
            )  # fmt: skip
    return line


def _describe(summary: Summary, found: list[Series]) -> str:
    said = [summary.question, *captions.stand_ins(summary), captions.conditions(summary)]
    said.append(f"Normalized epoch time along the dial; {summary.baseline} is 1")
    for series in found:
        for _, row in series.points:
            said.append(f"{row.variant}: {captions.describe_row(summary, row)}")
    return captions.join_sentences([*said, *sentences(summary, found)])
