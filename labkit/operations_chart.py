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
from labkit.charts import WHISKER, draw_whisker, write_beside
from labkit.figures import (
    DOT,
    EDGE,
    INK,
    PAD_IN,
    SMALL_LINE_IN,
    SOFT_INK,
    WIDE,
    Sheet,
    draw_foot,
    draw_head,
    fit_foot,
    fit_head,
    fitter,
    foot_height_in,
    head_height_in,
    mimebundle,
    style,
)
from labkit.operations import MEANINGS
from labkit.operations_report import operations_conditions, problems, spell_size
from labkit.operations_summary import OperationRow, summarize_operations
from labkit.origin import origin
from labkit.results import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME_IN = 0.95  # libraries' names
VALUE_IN = 0.72  # the time beside a bar
BAR_IN = 0.24  # a bar with its share of space
HEADING_IN = 0.3  # an operation's name
TICKS_IN = 0.3
SIZES_IN = 0.25  # line of sizes above the panels
FOOT_IN = 0.55  # legend
LONGEST_WHISKER = 1.5  # of the longest bar or dot; a longer one is cut off with an arrow
# Fill and hatch by library: apart without colours too.
LOOKS = {
    "pillow": ("#dcdcdc", "////"),
    "opencv": ("#6baed6", ""),
    "simplejpeg": ("#fdae6b", "xxxx"),
    "kornia_rs": ("#dadaeb", "oo"),
    "torchvision": ("#9e9ac8", "\\\\"),
    "torch": ("#c7e9c0", "...."),
    "numpy": ("#fff2cc", "||||"),
}
OTHER_LOOK = ("#eeeeee", "++++")


def operations_chart(run: Run, sheet: Sheet = WIDE) -> Figure:
    """Draw the time per image of every library, operation and size.

    Args:
        run: from `run_operations`.
        sheet: `figures.COLUMN` for a column of a paper, which has room for one size, the
            middle one, and says so.

    Returns:
        A figure that shows itself in a notebook; its label says what it shows.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = summarize_operations(run)
    sizes = list(dict.fromkeys(row.size for row in rows))
    lines = list(operations_conditions(run))
    if sheet.is_narrow and len(sizes) > 1:
        sizes = sizes[len(sizes) // 2 :][:1]
        lines.append(f"{spell_size(*sizes)} only; the table holds the other sizes")
    libraries: dict[str, list[str]] = {}
    for row in rows:
        if row.library not in libraries.setdefault(row.operation, []):
            libraries[row.operation].append(row.library)
    with style(sheet):
        figure = Figure()
        canvas = FigureCanvasAgg(figure)
        figure.set_label(describe_operations(run))
        fit = fitter(figure)
        head = [(run.info["question"], 13, "bold", INK), ("\n".join(lines), 9, "normal", SOFT_INK)]
        head = fit_head(head, fit, sheet)
        foot = fit_foot(origin({**run.info, "run": run.folder.name}), fit, sheet)
        notes = [fit(line, sheet.width_in - 2 * PAD_IN, 9) for line in problems(run, rows)]
        notes_in = SMALL_LINE_IN * sum(1 + note.count("\n") for note in notes)
        meanings_in = [_meaning_in(name, sheet) for name in libraries]
        rows_in = [
            HEADING_IN + meaning_in + BAR_IN * len(names) + TICKS_IN
            for meaning_in, names in zip(meanings_in, libraries.values())
        ]
        legend_in = foot_height_in(foot) + FOOT_IN
        top_in = legend_in + notes_in + sum(rows_in)
        height_in = top_in + SIZES_IN + head_height_in(head)
        figure.set_size_inches(sheet.width_in * sheet.scale, height_in * sheet.scale)
        column_in = (sheet.width_in - 2 * PAD_IN - NAME_IN) / max(1, len(sizes))

        def at(x_in: float, y_in: float) -> tuple[float, float]:
            return x_in / sheet.width_in, y_in / height_in

        def left_in(column: int) -> float:
            return PAD_IN + NAME_IN + column * column_in

        for column, size in enumerate(sizes):
            first = next(row for row in rows if row.size == size)
            title = f"{spell_size(size)}, {units.count_bytes(first.jpeg_bytes)}"
            small = 9 * sheet.scale
            figure.text(*at(left_in(column), top_in + 0.08), title, weight="bold", size=small)
        for (operation, names), row_in in zip(libraries.items(), rows_in):
            top_in -= row_in
            for column, size in enumerate(sizes):
                shown = {r.library: r for r in rows if (r.operation, r.size) == (operation, size)}
                width_in = column_in - VALUE_IN
                corner = at(left_in(column), top_in + TICKS_IN)
                axes = figure.add_axes((*corner, *at(width_in, BAR_IN * len(names))))
                _draw_panel(axes, [shown.get(name) for name in names], sheet)
                axes.set_yticks([i + 0.5 for i in range(len(names))], names if not column else [])
                if not column:
                    place = at(PAD_IN, top_in + row_in - 0.2)
                    _draw_heading(figure, axes, operation, place, sheet)
        for note in notes:
            top_in -= SMALL_LINE_IN * (1 + note.count("\n"))
            figure.text(
                *at(PAD_IN, top_in + 0.04), note, size=9 * sheet.scale, color=SOFT_INK
            )  # fmt: skip
        _draw_legend(figure, rows, at(PAD_IN, legend_in - FOOT_IN + 0.1), sheet)
        draw_head(figure, head, sheet)
        draw_foot(figure, foot, sheet)
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
    if where := origin({**run.info, "run": run.folder.name}):
        sentences.append(f"From: {where}.")
    return " ".join(sentences)


def _meaning_in(operation: str, sheet: Sheet) -> float:
    """Say how high the line is that a narrow sheet needs for what an operation is."""
    return SMALL_LINE_IN if sheet.is_narrow and operation in MEANINGS else 0.0


def _draw_heading(
    figure: Figure, axes: Axes, operation: str, xy: tuple[float, float], sheet: Sheet
) -> None:
    name = figure.text(*xy, operation, weight="bold")
    beside, under = ((1, 0), (6, 0)), ((0, 0), (0, -2))
    corner, offset_pt = under if sheet.is_narrow else beside
    axes.annotate(
        MEANINGS.get(operation, ""), corner, [pt * sheet.scale for pt in offset_pt],
        xycoords=name, textcoords="offset points", va="top" if sheet.is_narrow else "bottom",
        size=9 * sheet.scale, color=SOFT_INK, annotation_clip=False,
    )  # fmt: skip


def _draw_panel(axes: Axes, rows: Sequence[OperationRow | None], sheet: Sheet) -> None:
    """Draw one operation at one size: a bar per library, its dots, interval and time."""
    from matplotlib.ticker import MaxNLocator

    measured = [row for row in rows if row is not None and row.image_s is not None]
    longest_s = max((s for row in measured for s in (row.image_s, *row.blocks_s)), default=1.0)
    highs_s = [row.high_s for row in measured if row.high_s is not None]
    limit_s = 1.06 * max(longest_s, min(max(highs_s, default=0.0), LONGEST_WHISKER * longest_s))
    axes.set(xlim=(0, limit_s), ylim=(len(rows), 0))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5 * sheet.scale)
    ticks_s = [s for s in MaxNLocator(2).tick_values(0, limit_s) if 0 <= s <= limit_s]
    axes.set_xticks(ticks_s, [units.seconds(s) for s in ticks_s] if measured else [])
    for i, row in enumerate(rows):
        y = i + 0.5
        if row is None or row.image_s is None:
            said = "not measured" if row is None else row.status
            axes.text(
                limit_s * 0.02, y, said, va="center", size=9 * sheet.scale, color=SOFT_INK,
                style="italic",
            )  # fmt: skip
            continue
        color, hatch = LOOKS.get(row.library, OTHER_LOOK)
        axes.barh(
            y, row.image_s, height=0.72, color=color, hatch=hatch, zorder=2, **sheet.mark(EDGE)
        )  # fmt: skip
        # Dots and interval on two lanes, to hide nothing.
        dots = sheet.mark({**DOT, "markersize": 3})
        axes.plot(row.blocks_s, [y + 0.17] * len(row.blocks_s), zorder=4, **dots)
        if row.low_s is not None:
            draw_whisker(axes, (row.low_s, row.high_s), y - 0.12, limit_s, sheet, size=6)
        write_beside(axes, y, (8, 0), units.seconds(row.image_s), sheet, size=9)


def _draw_legend(
    figure: Figure, rows: Sequence[OperationRow], xy: tuple[float, float], sheet: Sheet
) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label="one block", **sheet.mark(DOT))]
    if any(row.low_s is not None for row in rows):
        label = "95 % interval of the mean"
        whisker = sheet.mark({"marker": "|", "markersize": 8, **WHISKER})
        handles.append(Line2D([], [], label=label, **whisker))
    figure.legend(
        handles=handles, ncols=len(handles), loc="lower left", bbox_to_anchor=xy, borderaxespad=0,
        title="time per image, lower is better; every panel has its own axis from 0",
        title_fontsize=9 * sheet.scale, alignment="left",
    )  # fmt: skip
