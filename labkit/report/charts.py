"""A summary as a picture: bars of normalized time, every trial's dot, and the document's figure.

    Summary -> chart() -> matplotlib Figure -> figures.save() -> .png .svg .pdf

Main trap: cut axes made the documents' gains look four times as large, so the axis starts
at 0.  What every chart has in common is in `figures`, its rows in `row_figure`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.summary import Row, Summary
from labkit.report import captions
from labkit.report.bars import (
    DOT,
    EDGE,
    INK,
    PAD_IN,
    SOFT_INK,
    WIDTH_IN,
    head,
    page,
)
from labkit.report.row_figure import BAR_IN, ROW_IN, row_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Fill and hatch of a bar by verdict: blue and orange stay apart for every kind of colour
# vision, the hatches without any colour.
LOOKS = {
    "baseline": ("#dcdcdc", "////"),
    "faster": ("#6baed6", ""),
    "slower": ("#fdae6b", "xxxx"),
    "other": ("#c6dbef", ""),
}
PANEL_IN = 0.5  # title and ticks of a group's panel
PANEL_ROW_IN = 0.24  # one of its rows
PANEL_NAME_IN, PANEL_VALUE_IN = 0.95, 0.65  # left and right of the bars
WHISKER = {"color": INK, "linewidth": 1.6}
# Far from the other trials of its variant: larger and open, so that one under it shows.
OUTLIER = {
    "marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgecolor": INK,
    "markeredgewidth": 1.3, "linestyle": "none", "clip_on": False,
}  # fmt: skip
PUBLISHED = {
    "marker": "D", "markersize": 8, "markerfacecolor": "white", "markeredgecolor": "#7a0177",
    "markeredgewidth": 1.6, "linestyle": "none", "clip_on": False,
}  # fmt: skip


def chart(summary: Summary) -> Figure:
    """Draw the normalized times of one run.

    Args:
        summary: what `summary.summarize` returns.

    Returns:
        A figure that shows itself in a notebook; its label is `captions.describe(summary)`.
    """
    if summary.has_groups:
        return _chart_groups(summary)

    def draw(axes: Axes, middles_in: Sequence[float]) -> list[Artist]:
        limit = axis_limit(summary.rows)
        axes.set_xlim(0, limit)
        axes.set_xlabel("normalized epoch time (lower is better)")
        draw_rows(axes, summary, middles_in, limit)
        for row, y in zip(summary.rows, middles_in):
            write_numbers(axes, row, y)
        return legend([summary])

    return row_figure(summary, captions.describe(summary), draw)


def _chart_groups(summary: Summary) -> Figure:
    """Draw a panel per group: "decode, 640×480" is in the row decode and the column 640×480.

    Each panel has its own axis, as groups are not compared; the time per image is beside each bar.
    """
    places = {group.rpartition(", ")[::2]: rows for group, rows in summary.groups().items()}
    columns = list(dict.fromkeys(column for _, column in places))
    bars: dict[str, int] = {}  # of each row of panels, the most
    for (name, _), rows in places.items():
        bars[name] = max(bars.get(name, 0), len(rows))
    with page(captions.describe(summary)) as drawn:
        lines = head(summary, drawn.fit)
        bars_in = PANEL_ROW_IN * sum(bars.values())
        content_in = bars_in + PANEL_IN * len(bars)
        handles = legend([summary])
        bottom_in, height_in = drawn.frame(
            lines, captions.origin(summary.info), content_in, handles
        )
        top_in = bottom_in + content_in
        width_in = (WIDTH_IN - 2 * PAD_IN - PANEL_NAME_IN) / len(columns) - PANEL_VALUE_IN
        panels = drawn.figure.subplots(
            len(bars), len(columns), squeeze=False,
            gridspec_kw={
                "height_ratios": list(bars.values()),
                "hspace": PANEL_IN / (bars_in / len(bars)),
                "wspace": PANEL_VALUE_IN / width_in,
                "left": (PAD_IN + PANEL_NAME_IN) / WIDTH_IN,
                "right": 1 - (PAD_IN + PANEL_VALUE_IN) / WIDTH_IN,
                "bottom": (bottom_in + PANEL_IN / 2) / height_in,
                "top": (top_in - PANEL_IN / 2) / height_in,
            },
        )  # fmt: skip
        for panel_row, name in zip(panels, bars):
            for axes, column in zip(panel_row, columns):
                if (name, column) not in places:
                    axes.set_axis_off()
                    continue
                _draw_panel(axes, summary, places[name, column])
                title = f"{name}, {column}" if name else column
                axes.set_title(title, loc="left", size=9, weight="bold")
                if axes is not panel_row[0]:
                    axes.set_yticklabels([])
    return drawn.figure


def _draw_panel(axes: Axes, summary: Summary, rows: Sequence[Row]) -> None:
    """Draw one group's rows."""
    from matplotlib.ticker import MaxNLocator

    middles_in = [ROW_IN * (i + 0.5) for i in range(len(rows))]
    limit = axis_limit(rows)
    axes.set(xlim=(0, limit), ylim=(ROW_IN * len(rows), 0))
    axes.set_yticks(middles_in, [row.name for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5)
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    draw_rows(axes, replace(summary, rows=tuple(rows)), middles_in, limit)
    for row, y in zip(rows, middles_in):
        if row.normalized_time is None:
            look = {"va": "center", "size": 8, "color": SOFT_INK, "style": "italic"}
            axes.text(limit * 0.02, y, row.status, **look)
        else:
            write_beside(axes, y, (6, 0), units.seconds(row.time_s), size=8)


def axis_limit(rows: Sequence[Row]) -> float:
    """Choose where the axis ends: behind every dot; a very long whisker is cut off."""
    known = [1.0, *(ratio for row in rows for ratio in row.ratios)]
    known += [row.published for row in rows if row.published is not None]
    highs = [row.ci_high for row in rows if row.ci_high is not None]
    return 1.06 * max(*known, min(max(highs, default=0), 1.5 * max(known)))


def draw_rows(
    axes: Axes, summary: Summary, middles_in: Sequence[float | None], limit: float
) -> None:
    """Draw the line of no change, and every measured row's bar, dots, interval and figure.

    Args:
        axes: whose y axis is in inches.
        summary: whose rows.
        middles_in: the middle of every row.
        limit: where the x axis ends.
    """
    line = {"color": INK, "linewidth": 1}
    axes.axvline(1, linestyle=(0, (4, 3)), zorder=2.5, **line)
    for row, y in zip(summary.rows, middles_in):
        if row.normalized_time is not None:
            _draw_row(axes, row, y, limit, is_baseline=summary.is_baseline(row))


def _draw_row(axes: Axes, row: Row, y: float, limit: float, *, is_baseline: bool) -> None:
    look = "baseline" if is_baseline else row.verdict if row.verdict in LOOKS else "other"
    color, hatch = LOOKS[look]
    axes.barh(
        y,
        row.normalized_time,
        height=BAR_IN,
        color=color,
        hatch=hatch,
        zorder=2,
        **EDGE,
    )
    # The document's figure, the interval and the dots lie on three lanes, to hide nothing.
    above, below = y - 0.13, y + 0.12
    n = len(row.ratios)
    spread = [below + 0.08 * (i / max(1, n - 1) - 0.5) for i in range(n)]
    for places, mark in ((set(range(n)) - set(row.outliers), DOT), (row.outliers, OUTLIER)):
        at = sorted(places)
        axes.plot([row.ratios[i] for i in at], [spread[i] for i in at], zorder=4, **mark)
    if row.ci_low is not None:
        draw_whisker(axes, (row.ci_low, row.ci_high), y, limit)
    if row.published is not None and not is_baseline:  # the baseline's is 1 by definition
        axes.plot([row.published], [above], zorder=6, **PUBLISHED)


def draw_whisker(axes: Axes, ends: tuple[float, float], y: float, limit: float) -> None:
    """Draw an interval; one that leaves the axis is cut off and ends in an arrow."""
    low, high = ends
    cut = high > limit
    end, cap = min(high, limit), {"color": INK, "markersize": 8, "zorder": 5}
    axes.plot([low, end], [y, y], zorder=5, solid_capstyle="butt", **WHISKER)
    axes.plot([low], [y], "|", **cap)
    axes.plot([end], [y], ">" if cut else "|", clip_on=False, **cap)


def write_numbers(axes: Axes, row: Row, y: float) -> None:
    """Write a row's ratio, interval and verdict beside its bar."""
    if row.normalized_time is None:
        return
    interval = "" if row.ci_low is None else units.interval(row.ci_low, row.ci_high)
    beside, under = (interval, row.verdict) if row.verdict else ("", interval)
    lift_pt = 7 if under else 0
    value = units.normalized(row.normalized_time)
    write_beside(axes, y, (8, lift_pt), value, weight="bold")
    write_beside(axes, y, (48, lift_pt), beside, size=9)
    write_beside(axes, y, (8, -lift_pt), under, size=9)


def write_beside(
    axes: Axes, y: float, offset_pt: tuple[float, float], text: str,
    size: float = 10, **font: object,
) -> None:  # fmt: skip
    """Write right of the axes, some points right of their end and above y."""
    axes.annotate(
        text, (1, y), offset_pt, size=size,
        xycoords=axes.get_yaxis_transform(), textcoords="offset points", va="center",
        annotation_clip=False, **font,
    )  # fmt: skip


def legend(summaries: Sequence[Summary]) -> list[Artist]:
    """Make what explains the marks of all these runs' rows; nothing where none is measured."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    measured = [row for s in summaries for row in s.rows if row.normalized_time is not None]
    if not measured:
        return []
    color, hatch = LOOKS["baseline"]
    handles = [
        Patch(facecolor=color, hatch=hatch, label="baseline", **EDGE),
        Line2D([], [], label="one trial", **DOT),
    ]
    if any(row.outliers for row in measured):
        handles.append(Line2D([], [], label="outlier", **OUTLIER))
    if any(row.ci_low is not None for row in measured):
        whisker = {"marker": "|", "markersize": 8, **WHISKER}
        handles.append(Line2D([], [], label="95 % interval", **whisker))
    others = [row for s in summaries for row in s.rows if not s.is_baseline(row)]
    if any(row.published is not None and row.normalized_time is not None for row in others):
        handles.append(Line2D([], [], label="published", **PUBLISHED))
    return handles
