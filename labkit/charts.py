"""A summary as a picture: bars of normalized time, every trial's dot, and the document's figure.

    Summary -> chart() -> matplotlib Figure -> figures.save() -> .png .svg .pdf

Main trap: cut axes made the documents' gains look four times as large, so the axis starts
at 0.  What every chart has in common is in `figures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit import captions, units
from labkit.figures import BAR_IN, DOT, EDGE, INK, row_figure
from labkit.summary import Row, Summary

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

    def draw(axes: Axes, middles_in: Sequence[float]) -> list[Artist]:
        limit = _limit(summary.rows)
        axes.set_xlim(0, limit)
        axes.set_xlabel("normalized epoch time (lower is better)")
        axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=2.5)
        for row, y in zip(summary.rows, middles_in):
            if row.normalized_time is not None:
                _draw_row(axes, row, y, limit, is_baseline=row.variant == summary.baseline)
        return _legend(summary)

    return row_figure(summary, captions.describe(summary), draw)


def _limit(rows: Sequence[Row]) -> float:
    """Choose where the axis ends: behind every dot; a very long whisker is cut off."""
    known = [1.0, *(ratio for row in rows for ratio in row.ratios)]
    known += [row.published for row in rows if row.published is not None]
    highs = [row.ci_high for row in rows if row.ci_high is not None]
    return 1.06 * max(*known, min(max(highs, default=0), 1.5 * max(known)))


def _draw_row(axes: Axes, row: Row, y: float, limit: float, *, is_baseline: bool) -> None:
    look = "baseline" if is_baseline else row.verdict if row.verdict in LOOKS else "other"
    color, hatch = LOOKS[look]
    axes.barh(y, row.normalized_time, height=BAR_IN, color=color, hatch=hatch, zorder=2, **EDGE)
    # The document's figure, the interval and the dots lie on three lanes, to hide nothing.
    above, below = y - 0.13, y + 0.12
    n = len(row.ratios)
    spread = [below + 0.08 * (i / max(1, n - 1) - 0.5) for i in range(n)]
    for places, mark in ((set(range(n)) - set(row.outliers), DOT), (row.outliers, OUTLIER)):
        at = sorted(places)
        axes.plot([row.ratios[i] for i in at], [spread[i] for i in at], zorder=4, **mark)
    if row.ci_low is not None:
        cut = row.ci_high > limit
        end = limit if cut else row.ci_high
        axes.plot([row.ci_low, end], [y, y], zorder=5, solid_capstyle="butt", **WHISKER)
        axes.plot([row.ci_low], [y], "|", color=INK, markersize=8, zorder=5)
        axes.plot([end], [y], ">" if cut else "|", color=INK, markersize=8, zorder=5, clip_on=False)
    if row.published is not None and not is_baseline:  # the baseline's is 1 by definition
        axes.plot([row.published], [above], zorder=6, **PUBLISHED)
    interval = "" if row.ci_low is None else units.interval(row.ci_low, row.ci_high)
    beside, under = (interval, row.verdict) if row.verdict else ("", interval)
    lift_pt = 7 if under else 0
    _write_value(axes, y, 8, lift_pt, units.normalized(row.normalized_time), weight="bold")
    _write_value(axes, y, 48, lift_pt, beside, size=9)
    _write_value(axes, y, 8, -lift_pt, under, size=9)


def _write_value(
    axes: Axes, y: float, right_pt: float, up_pt: float, text: str, **font: object
) -> None:
    axes.annotate(
        text, (1, y), (right_pt, up_pt), xycoords=axes.get_yaxis_transform(),
        textcoords="offset points", va="center", annotation_clip=False, **font,
    )  # fmt: skip


def _legend(summary: Summary) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    measured = [row for row in summary.rows if row.normalized_time is not None]
    if not measured:
        return []
    color, hatch = LOOKS["baseline"]
    handles = [
        Patch(facecolor=color, hatch=hatch, edgecolor=EDGE["edgecolor"], label="baseline"),
        Line2D([], [], label="one trial", **DOT),
    ]
    if any(row.outliers for row in measured):
        handles.append(Line2D([], [], label="outlier", **OUTLIER))
    if any(row.ci_low is not None for row in measured):
        handles.append(Line2D([], [], label="95 % interval", marker="|", markersize=8, **WHISKER))
    if any(row.published is not None for row in measured if row.variant != summary.baseline):
        handles.append(Line2D([], [], label="published", **PUBLISHED))
    return handles
