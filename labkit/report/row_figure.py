"""A figure with one row per variant: names, bars, what stands beside them, reasons.

    head
    variant │ what draw() draws
    variant │
    axis, legend, foot

Names, reasons and questions may be of any length: every row is as high as its own texts need, and
nothing is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.analysis.summary import Summary
from labkit.report import captions, row_words
from labkit.report.bars import (
    LINE_IN,
    PAD_IN,
    SOFT_INK,
    WIDTH_IN,
    head,
    page,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_IN = 0.62
BAR_IN = 0.42
LABEL_IN = 2.0  # longest line of a variant's name beside its bar
AXIS_IN = 0.5  # ticks and axis label


def row_figure(
    summary: Summary,
    alt: str,
    draw: Callable[[Axes, Sequence[float]], Sequence[Artist]],
) -> Figure:
    """Draw a figure with one row per variant; those without a number get their reason.

    Args:
        summary: what `summary.summarize` returns.
        alt: all that the picture shows, in words.
        draw: draws the measured rows, given the axes and the middle of every row, in inches
            from the top; also sets the x axis, and returns what the legend explains.

    Returns:
        A figure that shows itself in a notebook; its label is `alt`.
    """
    with page(alt) as drawn:
        rows = fit_rows(summary, drawn.fit)
        axes = drawn.figure.add_subplot()
        axes.set_ylim(rows.height_in, 0)
        axes.set_yticks(rows.middles_in, rows.names)
        axes.tick_params(axis="y", length=0)
        handles = draw(axes, rows.middles_in)

        left_in, right_in, over_in = overhang_in(drawn.figure, axes)
        content_in = AXIS_IN + rows.height_in + over_in + PAD_IN / 2
        lines = head(summary, drawn.fit)
        bottom_in, height_in = drawn.frame(
            lines, captions.origin(summary.info), content_in, handles
        )
        left, bottom = (PAD_IN + left_in) / WIDTH_IN, (bottom_in + AXIS_IN) / height_in
        width = 1 - left - (PAD_IN + right_in) / WIDTH_IN
        axes.set_position((left, bottom, width, rows.height_in / height_in))

        rows.write_reasons(axes)
    return drawn.figure


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The texts of all rows, broken into lines, and where the rows lie, in inches from the top."""

    names: Sequence[str]
    reasons: Sequence[str]
    middles_in: Sequence[float]
    height_in: float
    """Of all rows."""

    def write_reasons(self, axes: Axes) -> None:
        """Write why a row has no bar in its place."""
        for y, reason in zip(self.middles_in, self.reasons):
            if reason:
                axes.text(
                    axes.get_xlim()[1] * 0.01, y, reason, va="center", color=SOFT_INK,
                    style="italic", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
                )  # fmt: skip


def fit_rows(summary: Summary, fit: Callable[..., str]) -> Rows:
    """Break the texts of all rows into lines, and lay the rows out."""
    reason_in = WIDTH_IN - 4 * PAD_IN - LABEL_IN
    names = [fit(row.variant, LABEL_IN) for row in summary.rows]
    reasons = [fit(row_words.reason(row), reason_in, slant="italic") for row in summary.rows]
    middles_in, top_in = [], 0.0
    for name, reason in zip(names, reasons):
        row_in = max(ROW_IN, max(_lines(name), _lines(reason)) * LINE_IN + PAD_IN)
        middles_in.append(top_in + row_in / 2)
        top_in += row_in
    return Rows(names=names, reasons=reasons, middles_in=middles_in, height_in=top_in)


def overhang_in(figure: Figure, axes: Axes) -> tuple[float, float, float]:
    """Measure how far what is written beside the axes reaches left, right and above."""
    renderer, box = figure.canvas.get_renderer(), axes.get_window_extent()
    boxes = [text.get_window_extent(renderer) for text in axes.texts if text.get_text()]
    names = axes.yaxis.get_tightbbox(renderer)
    left = box.x0 - names.x0 if names else 0
    right = max((b.x1 for b in boxes), default=box.x1) - box.x1
    over = max((b.y1 for b in boxes), default=box.y1) - box.y1
    return tuple(max(0.0, px / figure.dpi) for px in (left, right, over))


def _lines(text: str) -> int:
    return 1 + text.count("\n")
