"""Timed operations as a picture: a row of panels per operation, a column per size.

    rows -> operations_chart() -> matplotlib Figure -> figures.save() -> .png .svg .pdf

    decode        320×240        640×480
      pillow      ▇▇▇▇ 580 µs    ▇▇▇▇ 1.81 ms
      opencv      ▇▇▇  385 µs    ▇▇▇  1.36 ms

Every panel has its own axis, which starts at 0: on one axis for all sizes the bars of the
small ones would vanish.  Main trap: panels are compared within, never side by side; the time
is written beside every bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit import units
from labkit.charts import WHISKER
from labkit.figures import (
    DOT,
    EDGE,
    INK,
    PAD_IN,
    SOFT_INK,
    WIDTH_IN,
    draw_head,
    fitter,
    head_height_in,
    mimebundle,
    style,
)
from labkit.operations import MEANINGS
from labkit.operations_report import operations_conditions, problems, spell_size
from labkit.operations_summary import OperationRow, summarize_operations
from labkit.results import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME_IN = 0.95  # libraries' names
VALUE_IN = 0.72  # the time beside a bar
BAR_IN = 0.24  # a bar with its share of space
HEADING_IN = 0.3  # an operation's name
TICKS_IN = 0.3
SIZES_IN = 0.25  # line of sizes above the panels
FOOT_IN = 0.55  # legend
NOTE_IN = 0.17  # a line of 9 pt text
LONGEST_WHISKER = 1.5  # of the longest bar or dot; a longer one is cut off with an arrow
# Fill and hatch by library: apart without colours too.
LOOKS = {
    "pillow": ("#dcdcdc", "////"),
    "opencv": ("#6baed6", ""),
    "simplejpeg": ("#fdae6b", "xxxx"),
    "torch": ("#c7e9c0", "...."),
    "numpy": ("#fff2cc", "||||"),
}
OTHER_LOOK = ("#eeeeee", "++++")


def operations_chart(run: Run) -> Figure:
    """Draw the time per image of every library, operation and size.

    Args:
        run: from `run_operations`.

    Returns:
        A figure that shows itself in a notebook; its label says what it shows.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = summarize_operations(run)
    sizes = list(dict.fromkeys(row.size for row in rows))
    libraries: dict[str, list[str]] = {}
    for row in rows:
        if row.library not in libraries.setdefault(row.operation, []):
            libraries[row.operation].append(row.library)
    with style():
        figure = Figure()
        canvas = FigureCanvasAgg(figure)
        figure.set_label(describe_operations(run))
        fit = fitter(figure)
        head = _head(run, fit)
        notes = [fit(line, WIDTH_IN - 2 * PAD_IN, 9) for line in problems(run, rows)]
        notes_in = NOTE_IN * sum(1 + note.count("\n") for note in notes)
        rows_in = [HEADING_IN + BAR_IN * len(names) + TICKS_IN for names in libraries.values()]
        top_in = FOOT_IN + notes_in + sum(rows_in)
        height_in = top_in + SIZES_IN + head_height_in(head)
        figure.set_size_inches(WIDTH_IN, height_in)
        column_in = (WIDTH_IN - 2 * PAD_IN - NAME_IN) / max(1, len(sizes))

        def at(x_in: float, y_in: float) -> tuple[float, float]:
            return x_in / WIDTH_IN, y_in / height_in

        def left_in(column: int) -> float:
            return PAD_IN + NAME_IN + column * column_in

        for column, size in enumerate(sizes):
            first = next(row for row in rows if row.size == size)
            title = f"{spell_size(size)}, {units.count_bytes(first.jpeg_bytes)}"
            figure.text(*at(left_in(column), top_in + 0.08), title, weight="bold", size=9)
        for (operation, names), row_in in zip(libraries.items(), rows_in):
            top_in -= row_in
            for column, size in enumerate(sizes):
                shown = {r.library: r for r in rows if (r.operation, r.size) == (operation, size)}
                width_in = column_in - VALUE_IN
                corner = at(left_in(column), top_in + TICKS_IN)
                axes = figure.add_axes((*corner, *at(width_in, BAR_IN * len(names))))
                _draw_panel(axes, [shown.get(name) for name in names])
                axes.set_yticks([i + 0.5 for i in range(len(names))], names if not column else [])
                if not column:
                    _draw_heading(figure, axes, operation, at(PAD_IN, top_in + row_in - 0.2))
        for note in notes:
            top_in -= NOTE_IN * (1 + note.count("\n"))
            figure.text(*at(PAD_IN, top_in + 0.04), note, size=9, color=SOFT_INK)
        _draw_foot(figure, rows, at(PAD_IN, 0.1))
        draw_head(figure, head)
        canvas.draw()
    # Figures made without pyplot do not show themselves; IPython looks for this name.
    figure._repr_mimebundle_ = lambda **_: mimebundle(figure)
    return figure


def describe_operations(run: Run) -> str:
    """Say in one paragraph what the chart shows, for screen readers."""
    sentences = [run.info["question"], *(f"{line}." for line in operations_conditions(run))]
    sentences.append("Bars of time per image, lower is better.")
    groups: dict[tuple[str, str], list[str]] = {}
    for row in summarize_operations(run):
        said = units.seconds(row.image_s) if row.status == "ok" else f"{row.status}: {row.reason}"
        if row.ratio is not None:
            said += f" ({units.normalized(row.ratio)} of {row.baseline}'s)"
        groups.setdefault((row.operation, row.size), []).append(f"{row.library} {said}")
    sentences += [
        f"{operation} at {spell_size(size)}: {', '.join(said)}."
        for (operation, size), said in groups.items()
    ]
    return " ".join(sentences)


def _head(run: Run, fit: Callable[..., str]) -> list[tuple[str, float, str, str]]:
    width_in = WIDTH_IN - 2 * PAD_IN
    conditions = "\n".join(fit(line, width_in, 9) for line in operations_conditions(run))
    return [
        (fit(run.info["question"], width_in, 13, "bold"), 13, "bold", INK),
        (conditions, 9, "normal", SOFT_INK),
    ]


def _draw_heading(figure: Figure, axes: Axes, operation: str, xy: tuple[float, float]) -> None:
    name = figure.text(*xy, operation, weight="bold")
    axes.annotate(
        MEANINGS.get(operation, ""), (1, 0), (6, 0), xycoords=name, textcoords="offset points",
        va="bottom", size=9, color=SOFT_INK, annotation_clip=False,
    )  # fmt: skip


def _draw_panel(axes: Axes, rows: Sequence[OperationRow | None]) -> None:
    """Draw one operation at one size: a bar per library, its dots, interval and time."""
    from matplotlib.ticker import MaxNLocator

    measured = [row for row in rows if row is not None and row.image_s is not None]
    longest_s = max((s for row in measured for s in (row.image_s, *row.blocks_s)), default=1.0)
    highs_s = [row.high_s for row in measured if row.high_s is not None]
    limit_s = 1.06 * max(longest_s, min(max(highs_s, default=0.0), LONGEST_WHISKER * longest_s))
    axes.set(xlim=(0, limit_s), ylim=(len(rows), 0))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5)
    ticks_s = [s for s in MaxNLocator(2).tick_values(0, limit_s) if 0 <= s <= limit_s]
    axes.set_xticks(ticks_s, [units.seconds(s) for s in ticks_s] if measured else [])
    for i, row in enumerate(rows):
        y = i + 0.5
        if row is None or row.image_s is None:
            said = "not measured" if row is None else row.status
            axes.text(limit_s * 0.02, y, said, va="center", size=9, color=SOFT_INK, style="italic")
            continue
        color, hatch = LOOKS.get(row.library, OTHER_LOOK)
        axes.barh(
            y, row.image_s, height=0.72, color=color, hatch=hatch, zorder=2, **EDGE
        )  # fmt: skip
        # Dots and interval on two lanes, to hide nothing.
        axes.plot(
            row.blocks_s, [y + 0.17] * len(row.blocks_s), zorder=4, **{**DOT, "markersize": 3}
        )
        if row.low_s is not None:
            _draw_whisker(axes, row, y - 0.12, limit_s)
        axes.annotate(
            units.seconds(row.image_s), (1, y), (8, 0), xycoords=axes.get_yaxis_transform(),
            textcoords="offset points", va="center", size=9, annotation_clip=False,
        )  # fmt: skip


def _draw_whisker(axes: Axes, row: OperationRow, y: float, limit_s: float) -> None:
    cut = row.high_s > limit_s
    end_s = limit_s if cut else row.high_s
    axes.plot([row.low_s, end_s], [y, y], zorder=5, solid_capstyle="butt", **WHISKER)
    axes.plot([row.low_s], [y], "|", color=INK, markersize=6, zorder=5)
    axes.plot([end_s], [y], ">" if cut else "|", color=INK, markersize=5, zorder=5, clip_on=False)


def _draw_foot(figure: Figure, rows: Sequence[OperationRow], xy: tuple[float, float]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label="one block", **DOT)]
    if any(row.low_s is not None for row in rows):
        label = "95 % interval of the mean"
        handles.append(Line2D([], [], label=label, marker="|", markersize=8, **WHISKER))
    figure.legend(
        handles=handles, ncols=len(handles), loc="lower left", bbox_to_anchor=xy, borderaxespad=0,
        title="time per image, lower is better; every panel has its own axis from 0",
        title_fontsize=9, alignment="left",
    )  # fmt: skip
