"""The epochs of a run one by one, and beside them where their bytes came from.

    variant │ epoch 1 ▨▨▨▨▨▨▨▨▨▨●   2.05 s │ cold: 0.0 % │ 50.0 % │ 0
            │ epoch 2 ▨▨▨▨▨●        1.42 s │ in memory   │ read   │ pages swapped

A disk shows where data is read from it, so a medium's effect is in the first epoch of a cold
run, and what looks like swap or a fast disk may be the page cache.  Main trap: a time alone
does not say where the bytes came from, so every bar stands beside what was measured of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.summary import Row, Summary
from labkit.report import captions, row_words
from labkit.report.bars import DOT, EDGE, SOFT_INK
from labkit.report.charts import write_beside
from labkit.report.row_figure import row_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR_IN = 0.23
# Fill and hatch: the first epoch and the later ones, apart also without any colour.
FIRST = "epoch 1"
LOOKS = (("#7fa8c9", "////"), ("#e3edf5", ""))
# The columns right of the bars: heading and how far from the axis, in points.
SECONDS_PT = 6
COLUMNS = (
    ("in memory\nbefore epoch 1", 66),
    ("bytes from disk,\nall epochs", 164),
    ("pages\nswapped", 242),
)


def epoch_chart(summary: Summary) -> Figure:
    """Draw the seconds of each variant's first and later epochs.

    Args:
        summary: what `summary.summarize` returns.

    Returns:
        A figure that shows itself in a notebook; its label is
        `captions.describe_epochs(summary)`.
    """

    def draw(axes: Axes, middles_in: Sequence[float]) -> list[Artist]:
        bars = [row_words.epoch_bars(row) for row in summary.rows]
        limit = max((max(bar.all_s) for of_row in bars for bar in of_row), default=1.0)
        axes.set_xlim(0, 1.06 * limit)
        axes.set_xlabel("seconds per epoch (lower is better)")
        if any(bars):
            for heading, right_pt in COLUMNS:
                write_beside(axes, 0, (right_pt, 14), heading, size=8.5, color=SOFT_INK)
        for row, y, of_row in zip(summary.rows, middles_in, bars):
            if of_row:
                _draw_row(axes, row, y, of_row)
        return _legend([bar.name for of_row in bars for bar in of_row])

    return row_figure(summary, captions.describe_epochs(summary), draw)


def _draw_row(axes: Axes, row: Row, y: float, bars: Sequence[row_words.EpochBar]) -> None:
    for i, (bar, (color, hatch)) in enumerate(zip(bars, LOOKS)):
        middle = y + BAR_IN * (i - (len(bars) - 1) / 2)
        axes.barh(
            middle,
            bar.mean_s,
            height=BAR_IN,
            color=color,
            hatch=hatch,
            zorder=2,
            **EDGE,
        )
        n = len(bar.all_s)
        spread = [middle + 0.1 * (j / max(1, n - 1) - 0.5) for j in range(n)]
        axes.plot(bar.all_s, spread if n > 1 else [middle], zorder=4, **DOT)
        write_beside(axes, middle, (SECONDS_PT, 0), units.seconds(bar.mean_s), size=9)
    for (_, right_pt), text in zip(COLUMNS, row_words.proof(row)):
        write_beside(axes, y, (right_pt, 0), text, size=9)


def _legend(names: Sequence[str]) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not names:
        return []
    # Variants may have different numbers of epochs: "epoch 2 / epochs 2 to 3 (mean)".
    later = " / ".join(sorted(set(names) - {FIRST}))
    handles = [
        Patch(facecolor=color, hatch=hatch, label=name, **EDGE)
        for name, (color, hatch) in zip(filter(None, [FIRST, later]), LOOKS)
    ]
    return [*handles, Line2D([], [], label="one epoch of one trial", **DOT)]
