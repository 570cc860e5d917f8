"""A sheet with one row per variant: names, bars, what stands beside them, reasons.

    wide                                    narrow
    head                                    head
    variant │ what draw() draws             variant, and what is said of it
    variant │                               │ what draw() draws
    axis, legend, foot                      axis, legend, foot

Names, reasons and questions may be of any length: every row is as high as its own texts need, and
nothing is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import row_words
from labkit.figures import (
    INK,
    LINE_IN,
    PAD_IN,
    SMALL_LINE_IN,
    SOFT_INK,
    WIDE,
    Sheet,
    head,
    page,
)
from labkit.summary import Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_IN = 0.62
NARROW_ROW_IN = 0.56
BAR_IN = 0.42
LABEL_IN = 2.0  # longest line of a variant's name beside its bar
AXIS_IN = 0.5  # ticks and axis label
NARROW_TICKS = 6


def row_figure(
    summary: Summary,
    alt: str,
    draw: Callable[[Axes, Sequence[float]], Sequence[Artist]],
    *,
    sheet: Sheet = WIDE,
    remarks: Sequence[str] = (),
) -> Figure:
    """Draw a sheet with one row per variant; those without a number get their reason.

    Args:
        summary: what `summary.summarize` returns.
        alt: all that the picture shows, in words.
        draw: draws the measured rows, given the axes and the middle of every row, in inches
            from the top; also sets the x axis, and returns what the legend explains.
        sheet: what to draw on.
        remarks: what a narrow sheet says of every row under its name; a wide one has room
            for it beside the bars, which is `draw`'s.

    Returns:
        A figure that shows itself in a notebook; its label is `alt`.
    """
    from matplotlib.ticker import MaxNLocator

    with page(alt, sheet) as drawn:
        rows = _fit_rows(summary, drawn.fit, sheet, remarks)
        axes = drawn.figure.add_subplot()
        axes.set_ylim(rows.height_in, 0)
        axes.set_yticks(rows.middles_in, [] if sheet.is_narrow else rows.names)
        axes.tick_params(axis="y", length=0)
        handles = draw(axes, rows.middles_in)
        if sheet.is_narrow:
            axes.xaxis.set_major_locator(MaxNLocator(NARROW_TICKS, steps=[1, 2, 5, 10]))

        left_in, right_in, over_in = _overhang_in(drawn.figure, axes, sheet)
        content_in = AXIS_IN + rows.height_in + over_in + PAD_IN / 2
        lines = head(summary, drawn.fit, sheet)
        bottom_in, height_in = drawn.frame(lines, summary.origin, content_in, handles)
        left, bottom = (PAD_IN + left_in) / sheet.width_in, (bottom_in + AXIS_IN) / height_in
        width = 1 - left - (PAD_IN + right_in) / sheet.width_in
        axes.set_position((left, bottom, width, rows.height_in / height_in))

        for y, reason in zip(rows.middles_in, rows.reasons):
            if reason:
                axes.text(
                    axes.get_xlim()[1] * 0.01, y, reason, va="center", color=SOFT_INK,
                    style="italic", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
                )  # fmt: skip
        if sheet.is_narrow:
            _write_above(axes, rows, sheet)
    return drawn.figure


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The texts of all rows, broken into lines, and where the rows lie, in inches from the top."""

    names: Sequence[str]
    remarks: Sequence[str]
    reasons: Sequence[str]
    tops_in: Sequence[float]
    middles_in: Sequence[float]
    """Of the bars."""
    height_in: float
    """Of all rows."""


def _fit_rows(
    summary: Summary, fit: Callable[..., str], sheet: Sheet, remarks: Sequence[str]
) -> _Rows:
    label_in = sheet.width_in - 2 * PAD_IN if sheet.is_narrow else LABEL_IN
    reason_in = sheet.width_in - 4 * PAD_IN - (0 if sheet.is_narrow else LABEL_IN)
    names = [fit(row.variant, label_in) for row in summary.rows]
    remarks = [fit(text, label_in, 9) if text else "" for text in remarks or [""] * len(names)]
    reasons = [fit(row_words.reason(row), reason_in, slant="italic") for row in summary.rows]
    above_in, heights_in = [], []
    for name, remark, reason in zip(names, remarks, reasons):
        remark_in = _lines(remark) * SMALL_LINE_IN if remark else 0
        above = _lines(name) * LINE_IN + remark_in + PAD_IN / 2 if sheet.is_narrow else 0
        beside = _lines(reason) if sheet.is_narrow else max(_lines(name), _lines(reason))
        least_in = NARROW_ROW_IN if sheet.is_narrow else ROW_IN
        above_in.append(above)
        heights_in.append(above + max(least_in, beside * LINE_IN + PAD_IN))
    tops_in = [sum(heights_in[:i]) for i in range(len(heights_in))]
    return _Rows(
        names=names,
        remarks=remarks,
        reasons=reasons,
        tops_in=tops_in,
        middles_in=[
            top + (above + height) / 2 for top, above, height in zip(tops_in, above_in, heights_in)
        ],
        height_in=sum(heights_in),
    )


def _overhang_in(figure: Figure, axes: Axes, sheet: Sheet) -> tuple[float, float, float]:
    """Measure how far what is written beside the axes reaches left, right and above."""
    renderer, box = figure.canvas.get_renderer(), axes.get_window_extent()
    boxes = [text.get_window_extent(renderer) for text in axes.texts if text.get_text()]
    names = axes.yaxis.get_tightbbox(renderer)
    left = box.x0 - names.x0 if names and not sheet.is_narrow else 0
    right = max((b.x1 for b in boxes), default=box.x1) - box.x1
    over = max((b.y1 for b in boxes), default=box.y1) - box.y1
    return tuple(max(0.0, px / figure.dpi / sheet.scale) for px in (left, right, over))


def _lines(text: str) -> int:
    return 1 + text.count("\n")


def _write_above(axes: Axes, rows: _Rows, sheet: Sheet) -> None:
    for top, name, remark in zip(rows.tops_in, rows.names, rows.remarks):
        under = top + PAD_IN / 2 + _lines(name) * LINE_IN
        for y, text, size, ink in ((top + PAD_IN / 2, name, 10, INK), (under, remark, 9, SOFT_INK)):
            if text:
                axes.text(
                    0, y, text, transform=axes.get_yaxis_transform(), va="top", color=ink,
                    size=size * sheet.scale,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
                )  # fmt: skip
