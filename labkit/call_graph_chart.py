"""A call graph as a picture: boxes as high as the time they stand for, callees right of callers.

    main process │ next batch 61 %         │ waiting for workers 60 %
                 │ train_step 39 %         │ Net.forward 22 %
    workers (4)  │ Photos.__getitem__ 97 % │ imdecode 55 %
                 │                         │ Resize.forward 20 %

Where nothing stands right of a box, the time is its own.  Main trap: most functions of a tree
have neither time nor room, so those too thin for a line of text are one box, "other"; and a name
that its box does not hold is shortened.  The alternative text has all names in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import units
from labkit.diagnosis.call_graph import INTERVAL_S, OTHER, CallGraph, Node
from labkit.diagnosis.frames import BUILT_IN
from labkit.figures import (
    EDGE,
    INK,
    LEGEND_LINE_IN,
    PAD_IN,
    SOFT_INK,
    WARNING_INK,
    WIDE,
    Sheet,
    count_legend_columns,
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
from labkit.letters import drawable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUESTION = "Where do the main process and its workers spend their time?"
PROCESS_IN = 3.0  # how high the boxes of a process are, all together
HEADING_IN = 0.3  # its name above them
TEXT_PT, TEXT_IN = 8, 0.15  # a label, and the least height of a box with one
INSET_IN = 0.06
THINNEST_IN = 0.02  # a box
DEEPEST, DEEPEST_NARROW = 5, 3  # columns of boxes
NEARLY_ALL = 0.97  # a function that only passes time on shares the box of what it calls
PYTHON, C, MACHINERY, WAITING = "Python", "C", "the loader's machinery", "waiting"
REST = "several, each too short for a line"
# Fill and hatch: apart without colours too, and light, for there is text on them.
LOOKS = {
    PYTHON: ("#d6e6f4", ""),
    C: ("#ffffff", ""),
    MACHINERY: ("#fde3c8", "...."),
    WAITING: ("#ececec", "////"),
    REST: ("#f6f6f6", ""),
}


def call_graph_chart(graph: CallGraph, sheet: Sheet = WIDE, *, origin: str = "") -> Figure:
    """Draw what the main process and the workers did.

    Args:
        graph: from `diagnosis.call_graph.profile`.
        sheet: `figures.COLUMN` for a column of a paper.
        origin: where the numbers come from, for the foot.

    Returns:
        A figure that shows itself in a notebook; its label is `describe_call_graph(graph)`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    with style(sheet):
        figure = Figure()
        canvas = FigureCanvasAgg(figure)
        figure.set_label(describe_call_graph(graph))
        fit = fitter(figure)
        lines = fit_head(_head(graph), fit, sheet)
        foot = fit_foot(origin, fit, sheet)
        processes = [(name, list(boxes(root, sheet))) for name, root in _processes(graph)]
        seen = {box.look for _, drawn in processes for box in drawn}
        handles = [
            Patch(facecolor=color, hatch=hatch, label=look, **sheet.mark(EDGE))
            for look, (color, hatch) in LOOKS.items()
            if look in seen
        ]
        columns = count_legend_columns(figure, handles, sheet)
        legend_in = LEGEND_LINE_IN * -(-len(handles) // columns) + PAD_IN
        boxes_in = len(processes) * (HEADING_IN + PROCESS_IN)
        height_in = foot_height_in(foot) + legend_in + boxes_in + head_height_in(lines)
        figure.set_size_inches(sheet.width_in * sheet.scale, height_in * sheet.scale)
        width_in = sheet.width_in - 2 * PAD_IN
        bottom_in = foot_height_in(foot) + legend_in
        corner = PAD_IN / sheet.width_in, bottom_in / height_in
        axes = figure.add_axes((*corner, width_in / sheet.width_in, boxes_in / height_in))
        axes.set(xlim=(0, width_in), ylim=(boxes_in, 0), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        deepest = max((box.depth for _, drawn in processes for box in drawn), default=0) + 1
        shorten = _shortener(figure)
        for i, (name, drawn) in enumerate(processes):
            top_in = i * (HEADING_IN + PROCESS_IN) + HEADING_IN
            axes.text(
                0, top_in - 0.07, name, weight="bold", va="bottom", size=9.5 * sheet.scale
            )  # fmt: skip
            for box in drawn:
                _draw_box(axes, box, top_in, width_in / deepest, shorten, sheet)
        if handles:
            corner = PAD_IN / sheet.width_in, (foot_height_in(foot) + PAD_IN / 2) / height_in
            figure.legend(
                handles=handles, loc="lower left", ncols=columns, bbox_to_anchor=corner,
                borderaxespad=0, borderpad=0,
            )  # fmt: skip
        draw_head(figure, lines, sheet)
        draw_foot(figure, foot, sheet)
        canvas.draw()
    # Figures made without pyplot do not show themselves; IPython looks for this name.
    figure._repr_mimebundle_ = lambda **_: mimebundle(figure)
    return figure


def describe_call_graph(graph: CallGraph) -> str:
    """Say in one paragraph what the chart shows, for screen readers; all names in full."""
    sentences = [QUESTION, *(f"{text}." for text, *_ in _head(graph)[1:])]
    for name, root in _processes(graph):
        said = [f"{box.label} {units.percent(box.share)}" for box in boxes(root, WIDE)]
        sentences.append(f"{name}: {', '.join(said) if said else 'nothing was seen'}.")
    return " ".join(sentences)


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of the chart."""

    label: str
    """A function, or several of which each calls only the next: "load › decode"."""
    look: str
    share: float
    """Of its process's time."""
    depth: int
    """Its column, from 0."""
    top_in: float
    """Below the process's top."""
    height_in: float


def boxes(root: Node, sheet: Sheet = WIDE) -> Iterator[Box]:
    """Lay out what a process did, from the outermost functions inwards.

    Args:
        root: the process itself, which gets no box.
        sheet: a narrow one has fewer columns.
    """
    if root.total_s:
        yield from _lay_out(root, 0, 0.0, PROCESS_IN / root.total_s, sheet)


def _lay_out(
    node: Node, depth: int, top_in: float, in_per_s: float, sheet: Sheet
) -> Iterator[Box]:  # fmt: skip
    if depth >= (DEEPEST_NARROW if sheet.is_narrow else DEEPEST):
        return
    large = [
        child for child in node.children
        if child.name != OTHER and child.total_s * in_per_s >= TEXT_IN
    ]  # fmt: skip
    for child in large:
        label, last = child.name, child
        while (inner := _passes_on_to(last)) is not None:
            label, last = f"{label} › {inner.name}", inner
        height_in = child.total_s * in_per_s
        yield _box(label, _look(last), depth, top_in, height_in)
        yield from _lay_out(last, depth + 1, top_in, in_per_s, sheet)
        top_in += height_in
    rest_s = sum(child.total_s for child in node.children) - sum(one.total_s for one in large)
    if rest_s * in_per_s >= THINNEST_IN:
        yield _box(OTHER, REST, depth, top_in, rest_s * in_per_s)


def _box(label: str, look: str, depth: int, top_in: float, height_in: float) -> Box:
    return Box(
        label=label, look=look, share=height_in / PROCESS_IN, depth=depth, top_in=top_in,
        height_in=height_in,
    )  # fmt: skip


def _passes_on_to(node: Node) -> Node | None:
    inner = node.children[0] if node.children else None
    passes = inner is not None and inner.total_s >= NEARLY_ALL * node.total_s
    return inner if passes and inner.name != OTHER else None


def _look(node: Node) -> str:
    if node.file:
        return C if node.file == BUILT_IN else PYTHON
    return WAITING if node.name.startswith("waiting") else MACHINERY


def _processes(graph: CallGraph) -> list[tuple[str, Node]]:
    found = [(f"main process, {units.seconds(graph.main.total_s)}", graph.main)]
    if graph.workers is not None:
        s = units.seconds(graph.workers.total_s)
        found.append((f"workers ({graph.worker_count}), {s} added up", graph.workers))
    return found


def _head(graph: CallGraph) -> list[tuple[str, float, str, str]]:
    lines = [(QUESTION, 13, "bold", INK)]
    if graph.error is not None:
        said = f"ended early: {type(graph.error).__name__}: {graph.error}".splitlines()[0]
        lines.append((said, 9, "bold", WARNING_INK))
    said = [
        f"{units.count(graph.steps, 'step')} in {units.seconds(graph.seconds)}",
        f"stacks taken every {units.seconds(INTERVAL_S)} by pyinstrument",
        "shares of each process's time",
        *graph.notes,
    ]
    return [*lines, (" · ".join(said), 9, "normal", SOFT_INK)]


def _draw_box(
    axes: Axes, box: Box, top_in: float, column_in: float,
    shorten: Callable[..., str], sheet: Sheet,
) -> None:  # fmt: skip
    from matplotlib.patches import Rectangle

    color, hatch = LOOKS[box.look]
    left_in, top_in = box.depth * column_in, top_in + box.top_in
    axes.add_patch(
        Rectangle(
            (left_in, top_in), column_in, box.height_in, facecolor=color, hatch=hatch,
            clip_on=False, **sheet.mark(EDGE),
        )
    )  # fmt: skip
    if box.height_in < TEXT_IN:
        return
    share, room_in = units.percent(box.share), column_in - 2 * INSET_IN
    if box.height_in >= 2 * TEXT_IN:
        text = f"{shorten(box.label, room_in)}\n{share}"
    else:
        text = shorten(box.label, room_in, f" {share}")
    axes.text(
        left_in + INSET_IN, top_in + box.height_in / 2, text, va="center",
        size=TEXT_PT * sheet.scale, linespacing=1.15,
        bbox={"facecolor": color, "edgecolor": "none", "pad": 0.8 * sheet.scale} if hatch else None,
    )  # fmt: skip


def _shortener(figure: Figure) -> Callable[..., str]:
    """Make a function that shortens a text to some inches, with what must stay behind it."""
    from matplotlib.font_manager import FontProperties

    renderer, font = figure.canvas.get_renderer(), FontProperties(size=TEXT_PT)

    def fits(text: str, room_in: float) -> bool:
        width_px = renderer.get_text_width_height_descent(text, font, False)[0]
        return width_px / figure.dpi <= room_in

    def shorten(text: str, room_in: float, rest: str = "") -> str:
        text = drawable(text, font)
        if fits(text + rest, room_in):
            return text + rest
        while text and not fits(f"{text}…{rest}", room_in):
            text = text[:-1]
        return f"{text.rstrip()}…{rest}"

    return shorten
