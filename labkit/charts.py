"""A summary as a picture: bars of normalized time, every block's dot, and the document's figure.

    Summary -> chart() -> matplotlib Figure -> save() -> .png .svg .pdf
            -> describe() -> the same for people who cannot see it

The axis starts at 0: cut axes made the documents' gains look four times as large.  Equal
summaries give equal bytes.  Main trap: pyplot keeps global state that breaks in the threads
a notebook runs, so figures are made through objects only, under one lock.
"""

from __future__ import annotations

import base64
import io
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import units
from labkit.statistics import Row, Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("labkit.mplstyle")
# Matplotlib's settings are global, also for figures made in other threads.
_LOCK = threading.RLock()

WIDTH_IN = 8.4
LINE_IN = 0.19  # one line of 10 pt text
ROW_IN = 0.46  # a row with one line
LABEL_IN = 2.1  # longest line of a variant's name
VALUE_IN = 1.75  # numbers and verdict at the right end
PAD_IN = 0.12
# Bar colour and hatch by verdict: blue and orange stay apart for every kind of colour
# vision, the hatches without any colour.
NEUTRAL = ("#9ecae1", "")
LOOKS = {
    "baseline": ("#d0d0d0", "////"),
    "faster": ("#6baed6", ""),
    "slower": ("#fdae6b", "xxxx"),
}
INK = "#1a1a1a"
WARNING_INK = "#a33b00"
# Tried in this order for letters that DejaVu Sans lacks.
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC",
    "WenQuanYi Micro Hei", "Microsoft YaHei", "SimHei", "PingFang SC", "Hiragino Sans GB",
    "Arial Unicode MS",
)  # fmt: skip


def chart(summary: Summary) -> Figure:
    """Draw the normalized times of one run.

    Args:
        summary: what `statistics.summarize` returns.

    Returns:
        A figure that shows itself in a notebook; its label is `describe(summary)`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(layout="constrained")
        canvas = FigureCanvasAgg(figure)
        figure.set_label(describe(summary))
        fit = _measurer(figure)
        bar_in = WIDTH_IN - 3 * PAD_IN - _label_in(summary, fit) - VALUE_IN
        names = [fit(row.variant, LABEL_IN) for row in summary.rows]
        reasons = [fit(_reason(row), bar_in + VALUE_IN) for row in summary.rows]
        tops, heights, total_in = _rows_in(names, reasons)
        head = _head(summary, fit)

        axes = figure.add_subplot()
        limit = _limit(summary.rows)
        axes.set(xlim=(0, limit), ylim=(total_in, 0))
        axes.set_xlabel(f"normalized epoch time: {summary.baseline} = 1, lower is better")
        axes.set_yticks([top + height / 2 for top, height in zip(tops, heights)], names)
        axes.tick_params(axis="y", length=0)
        axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=2.5)
        for row, top, height, reason in zip(summary.rows, tops, heights, reasons):
            _draw_row(axes, row, top + height / 2, reason, limit, baseline=summary.baseline)
        handles = _legend(summary.rows)
        if handles:
            figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))
        head_in = _draw_head(figure, axes, head)
        # Axis labels and legend take about 0.95 in.
        figure.set_size_inches(WIDTH_IN, total_in + head_in + 0.95)
        canvas.draw()  # settles the layout, so that every later drawing agrees with it
    # Figures made without pyplot do not show themselves; IPython looks for this name.
    figure._repr_mimebundle_ = lambda **_: _mimebundle(figure)
    return figure
