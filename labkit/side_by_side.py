"""Runs of one experiment as small multiples: a panel each, one axis for all, rows in line.

    head: question, what all have in common
              │ quick mode · 3 blocks  │ full mode · 10 blocks
              │ 2 cores, no GPU        │ 16 cores, H200
    original  │ ▨▨▨▨▨▨▨▨▨▨ 1.000       │ ▨▨▨▨▨▨▨▨▨▨ 1.000
    simplified│ ▇▇▇▇▇▇▇   0.694        │ – not in this run
    foot: axis, legend, where the numbers come from

Every panel is divided by its own baseline, and names its machine, mode and stand-ins: bars of two
machines are not to be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import captions, units
from labkit.charts import axis_limit, draw_rows, legend, write_beside
from labkit.comparison import (
    ABSENT,
    APART,
    Compared,
    all_variants,
    compare,
    describe_compared,
    in_common,
)
from labkit.figures import (
    INK,
    LINE_IN,
    PAD_IN,
    SMALL_LINE_IN,
    SOFT_INK,
    WARNING_INK,
    WIDE,
    Sheet,
    fit_head,
    page,
)
from labkit.results import Run
from labkit.row_words import reason
from labkit.summary import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Fit = Callable[..., str]

NAME_IN = 1.5  # longest line of a variant's name
VALUE_IN = 1.25  # ratio, interval and verdict beside a bar
MOST_IN_LINE = 3
ROW_IN = 0.6
TICKS_IN = 0.45
TICK_IN = 0.35  # at least that much axis for each tick
GAP_IN = 0.12  # between the words over a panel and the panel


def side_by_side(runs: Sequence[Run], sheet: Sheet = WIDE) -> Figure:
    """Draw runs of one experiment side by side, each against its own baseline.

    Args:
        runs: one to six of the same experiment, of any machine and mode.
        sheet: `figures.COLUMN` for a column of a paper, where they stand one below the other.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.

    Raises:
        ValueError: as `comparison.compare` does.
    """
    compared = compare(runs)
    names = all_variants(compared)
    most = 1 if sheet.is_narrow else MOST_IN_LINE
    lines = -(-len(compared) // most)
    columns = -(-len(compared) // lines)  # four are two and two
    with page(describe_compared(compared), sheet) as drawn:
        fit = drawn.fit
        panel_in = (sheet.width_in - 2 * PAD_IN - NAME_IN) / columns
        rows = _fit_rows(compared, names, fit, panel_in)
        titles = [_title(one, compared, fit, panel_in - PAD_IN) for one in compared]
        titles_in = [
            max(map(_title_in, titles[i : i + columns])) for i in range(0, len(titles), columns)
        ]
        origins = "\n".join(dict.fromkeys(one.origin for one in compared))
        panels_in = sum(titles_in) + lines * (GAP_IN + rows.height_in + TICKS_IN)
        bottom_in, height_in = drawn.frame(
            fit_head(_head(compared), fit, sheet),
            origins,
            panels_in + PAD_IN,
            legend([one.summary for one in compared], sheet),
            "normalized epoch time, lower is better",
        )
        top_in = bottom_in + panels_in

        def at(x_in: float, y_in: float) -> tuple[float, float]:
            return x_in / sheet.width_in, y_in / height_in

        limit = axis_limit([row for one in compared for row in one.summary.rows])
        for i, (one, title) in enumerate(zip(compared, titles)):
            line, column = divmod(i, columns)
            left_in = PAD_IN + NAME_IN + column * panel_in
            _write_title(drawn.figure, title, lambda y, x=left_in, t=top_in: at(x, t - y), sheet)
            bottom_in = top_in - titles_in[line] - GAP_IN - rows.height_in
            size = at(panel_in - VALUE_IN, rows.height_in)
            axes = drawn.figure.add_axes((*at(left_in, bottom_in), *size))
            _draw_panel(axes, one, i, rows, limit, sheet, is_first=column == 0)
            if column == columns - 1:
                top_in = bottom_in - TICKS_IN
    return drawn.figure


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Where the rows of all panels lie, in inches from the top, and what is written in them."""

    names: Sequence[str]
    """Broken into lines."""
    middles_in: dict[str, float]
    """Variant -> the middle of its bar."""
    height_in: float
    values: Sequence[dict[str, list[tuple[str, float, str]]]]
    """For each run: variant -> lines beside its bar: (text, size, weight)."""
    gaps: Sequence[dict[str, str]]
    """For each run: variant -> why there is no bar."""


def _fit_rows(
    compared: Sequence[Compared], names: Sequence[str], fit: Fit, panel_in: float
) -> _Rows:
    fitted = [fit(name, NAME_IN - PAD_IN) for name in names]
    values = [{name: _value(row, fit) for name, row in one.rows.items()} for one in compared]
    gaps = [
        {
            name: fit(_gap(one.rows.get(name)), panel_in - 2 * PAD_IN, 9, slant="italic")
            for name in names
            if name not in one.rows or one.rows[name].normalized_time is None
        }
        for one in compared
    ]
    middles_in, top_in = {}, 0.0
    for name, text in zip(names, fitted):
        most = max(
            _lines(text) * LINE_IN,
            *(LINE_IN * len(of_run.get(name, ())) for of_run in values),
            *(SMALL_LINE_IN * _lines(of_run[name]) for of_run in gaps if name in of_run),
        )
        height_in = max(ROW_IN, most + PAD_IN)
        middles_in[name] = top_in + height_in / 2
        top_in += height_in
    return _Rows(names=fitted, middles_in=middles_in, height_in=top_in, values=values, gaps=gaps)


def _value(row: Row, fit: Fit) -> list[tuple[str, float, str]]:
    if row.normalized_time is None:
        return []
    said = [(units.normalized(row.normalized_time), 10, "bold")]
    if row.ci_low is not None:
        said.append((units.interval(row.ci_low, row.ci_high), 9, "normal"))
    words = fit(row.verdict, VALUE_IN - PAD_IN, 9) if row.verdict else ""
    return said + [(line, 9, "normal") for line in words.split("\n") if line]


def _gap(row: Row | None) -> str:
    return f"{units.UNKNOWN} {ABSENT}" if row is None else reason(row)


def _head(compared: Sequence[Compared]) -> list[tuple[str, float, str, str]]:
    lines = [(compared[0].summary.question, 13, "bold", INK)]
    if common := in_common([captions.stand_ins(one.summary) for one in compared]):
        lines.append((" · ".join(common), 10, "bold", WARNING_INK))
    said = [APART, *in_common([[one.machine] for one in compared])]
    said += in_common([captions.plain_labels(one.summary) for one in compared])
    if source := compared[0].summary.source:
        said.append(f"document: {source}")
    lines.append((" · ".join(filter(None, said)), 9, "normal", SOFT_INK))
    return lines


def _title(
    one: Compared, compared: Sequence[Compared], fit: Fit, width_in: float
) -> list[tuple[str, str, str]]:
    """Write what stands over a panel, each line (text, weight, colour): all that differs."""

    def own(say: Callable[[Compared], Sequence[str]]) -> list[str]:
        common = in_common([say(other) for other in compared])
        return [text for text in say(one) if text and text not in common]

    soft = [
        one.minute,
        *own(lambda x: [x.machine]),
        *own(lambda x: captions.plain_labels(x.summary)),
    ]
    soft += own(lambda x: [f"baseline: {x.summary.baseline}"])
    warned = own(lambda x: captions.stand_ins(x.summary))
    texts = [(one.title, "bold", INK), (" · ".join(filter(None, soft)), "normal", SOFT_INK)]
    texts.append((" · ".join(warned), "bold", WARNING_INK))
    return [
        (line, weight, ink)
        for text, weight, ink in texts
        for line in fit(text, width_in, 9, weight).split("\n")
        if line
    ]


def _title_in(title: Sequence[object]) -> float:
    return SMALL_LINE_IN * len(title)


def _write_title(
    figure: Figure, title: Sequence[tuple[str, str, str]],
    at: Callable[[float], tuple[float, float]], sheet: Sheet,
) -> None:  # fmt: skip
    for i, (text, weight, ink) in enumerate(title):
        figure.text(
            *at(SMALL_LINE_IN * i), text, size=9 * sheet.scale, weight=weight, color=ink, va="top"
        )  # fmt: skip


def _draw_panel(
    axes: Axes, one: Compared, i: int, rows: _Rows, limit: float, sheet: Sheet, *, is_first: bool
) -> None:
    """Draw the i-th run."""
    from matplotlib.ticker import MaxNLocator

    axes.set(xlim=(0, limit), ylim=(rows.height_in, 0))
    axes.set_yticks(list(rows.middles_in.values()), rows.names if is_first else [])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8.5 * sheet.scale)
    width_in = axes.get_position().width * sheet.width_in
    axes.xaxis.set_major_locator(MaxNLocator(max(3, int(width_in / TICK_IN)), steps=[1, 2, 5, 10]))
    draw_rows(axes, one.summary, [rows.middles_in[name] for name in one.rows], limit, sheet)
    for name, lines in rows.values[i].items():
        first = rows.middles_in[name] - LINE_IN * (len(lines) - 1) / 2
        for number, (text, size, weight) in enumerate(lines):
            at = first + LINE_IN * number
            write_beside(axes, at, (8, 0), text, sheet, size=size, weight=weight)
    for name, why in rows.gaps[i].items():
        axes.text(
            limit * 0.02, rows.middles_in[name], why, va="center", size=9 * sheet.scale,
            color=SOFT_INK, style="italic",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip


def _lines(text: str) -> int:
    return 1 + text.count("\n")
