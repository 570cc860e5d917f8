"""Chart of a dial: normalized time over how often the training loop does something.

A dial is a setting that counts the steps between two events; see `experiment.Dial`.  Variants whose
labels differ only in "every N steps" are one series.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.summary import Row, Summary
from labkit.report import captions
from labkit.report.bars import INK, PAD_IN, WIDTH_IN, fit_head, head, page

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
BASELINE = {
    "color": INK, "marker": "o", "markersize": 6, "markerfacecolor": "white",
    "linestyle": (0, (4, 3)),
}  # fmt: skip
RING = {
    "marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgecolor": INK,
    "markeredgewidth": 1.2, "linestyle": "none",
}  # fmt: skip
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
    name = f"{series.name or 'cost'}: "
    if (least := stops_mattering(series)) is not None:
        return f"{name}less than {limit} from every {_steps(least)} on"
    steps, row = series.points[-1]
    cost = f"{units.normalized(row.normalized_time)} at every {_steps(steps)}"
    is_more = row.ci_low is not None and row.ci_low > 1 + STOPS_MATTERING
    return f"{name}{'more than' if is_more else 'not known to be below'} {limit} ({cost})"


def _steps(n: int) -> str:
    return "step" if n == 1 else f"{n} steps"


def dial_chart(info: Mapping[str, object], summary: Summary) -> Figure:
    """Draw the normalized times of one run along its dial.

    Args:
        info: what `run.json` holds.
        summary: of the same run.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.
    """
    dial = info["dial"]
    found = find_series(info, summary)
    with page(_describe(summary, found)) as drawn:
        said = [(sentence, 9, "normal", INK) for sentence in sentences(summary, found)]
        lines = head(summary, drawn.fit) + fit_head(said, drawn.fit)
        axes = drawn.figure.add_subplot()
        handles = _draw(axes, summary, found, dial)
        content_in = AXIS_IN + PANEL_IN + 2 * PAD_IN
        bottom_in, height_in = drawn.frame(
            lines, captions.origin(summary.info), content_in, handles
        )
        left, bottom = (PAD_IN + LEFT_IN) / WIDTH_IN, (bottom_in + AXIS_IN) / height_in
        axes.set_position((left, bottom, 1 - left - PAD_IN / WIDTH_IN, PANEL_IN / height_in))
    return drawn.figure


def _draw(
    axes: Axes, summary: Summary, found: list[Series], dial: Mapping[str, object]
) -> list[Artist]:
    from matplotlib.lines import Line2D

    advised = {dial["advice"]} if dial["advice"] else set()
    steps = sorted({n for series in found for n, _ in series.points} | advised)
    places = {n: place for place, n in enumerate(steps)}  # 1, 10, 100 lie equally far apart
    axes.set_xticks(range(len(steps) + 1), [units.count(n) for n in steps] + [NEVER])
    axes.set_xlim(-0.5, len(steps) + 0.5)
    axes.set_xlabel(f"every N steps ({dial['setting']})")
    axes.set_ylabel("normalized epoch time")
    times = [row.normalized_time for series in found for _, row in series.points]
    axes.set_ylim(0, 1.2 * max([1.0, *times]))  # a very long interval is cut off
    axes.grid(axis="y")
    axes.axhline(1, linestyle=(0, (4, 3)), **{"color": INK, "linewidth": 1})
    handles = []
    if summary.rows[0].normalized_time is not None:
        look = BASELINE
        axes.plot([len(steps)], [1], zorder=3, **look)
        handles.append(Line2D([], [], label=f"{summary.baseline} (baseline)", **look))
    if dial["advice"]:
        place, label = places[dial["advice"]], f"{dial['source']}: every {dial['advice']} steps"
        band = (place - GROUP / 2, place + GROUP / 2)
        handles.append(axes.axvspan(*band, color=ADVICE, zorder=0, label=label))
    for i, series in enumerate(found):
        marker, dashes, color = LOOKS[i % len(LOOKS)]
        # Beside each other, or equal points would hide one another.
        shift = GROUP / len(found) * (i - (len(found) - 1) / 2)
        look = {"color": color, "linewidth": 1.4, "markersize": 6}
        xs = [places[n] + shift for n, _ in series.points]
        ys = [row.normalized_time for _, row in series.points]
        name = series.name or "every N steps"
        handles += axes.plot(xs, ys, marker=marker, linestyle=dashes, label=name, **look)
        for x, (n, row) in zip(xs, series.points):
            if row.ci_low is not None:
                axes.vlines(x, row.ci_low, row.ci_high, color=color)
            if n == stops_mattering(series):
                axes.plot([x], [row.normalized_time], **RING)
    if any(stops_mattering(series) for series in found):
        label = f"from here on less than {units.limit(STOPS_MATTERING)}"
        handles.append(Line2D([], [], label=label, **RING))
    return handles


def _describe(summary: Summary, found: list[Series]) -> str:
    said = [summary.question, *captions.stand_ins(summary), captions.conditions(summary)]
    said.append(f"Normalized epoch time along the dial; {summary.baseline} is 1")
    for series in found:
        for _, row in series.points:
            said.append(f"{row.variant}: {captions.describe_row(summary, row)}")
    return captions.join_sentences([*said, *sentences(summary, found)])
