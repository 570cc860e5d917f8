"""The page that every chart is drawn on: its look, its head, its rows, and the files.

    head: question, stand-ins, conditions   ┐
    row:  variant │ what draw() draws        ├─ row_figure() -> Figure -> save() -> .png .svg .pdf
    foot: axis, legend                      ┘

The page is laid out in inches, so that long texts get lines instead of being cut.  Equal
summaries give equal bytes.  Main trap: pyplot keeps global state that breaks in the threads
a notebook runs, so figures are made through objects only, under one lock.
"""

from __future__ import annotations

import base64
import html
import io
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import captions
from labkit.summary import Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("labkit.mplstyle")
# Matplotlib's settings are global, also for figures made in other threads.
_LOCK = threading.RLock()

WIDTH_IN = 8.4
PAD_IN = 0.15
LINE_IN = 0.19  # one line of 10 pt text
ROW_IN = 0.62
BAR_IN = 0.42
LABEL_IN = 2.0  # longest line of a variant's name
FOOT_IN = 1.0  # ticks, axis label and legend

INK, SOFT_INK, WARNING_INK = "#1a1a1a", "#555555", "#9c3a00"
EDGE = {"edgecolor": "#707070", "linewidth": 0.7}
DOT = {
    "marker": "o", "markersize": 4, "color": INK, "alpha": 0.75, "linestyle": "none",
    "clip_on": False,
}  # fmt: skip
# Tried in this order for letters that DejaVu Sans lacks.
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC",
    "WenQuanYi Micro Hei", "Microsoft YaHei", "SimHei", "PingFang SC", "Hiragino Sans GB",
    "Arial Unicode MS",
)  # fmt: skip


def row_figure(
    summary: Summary,
    alt: str,
    draw: Callable[[Axes, Sequence[float]], Sequence[Artist]],
) -> Figure:
    """Draw a page with one row per variant; those without a number get their reason.

    Args:
        summary: what `summary.summarize` returns.
        alt: all that the picture shows, in words.
        draw: draws the measured rows, given the axes and the middle of every row, in inches
            from the top; also sets the x axis, and returns what the legend explains.

    Returns:
        A figure that shows itself in a notebook; its label is `alt`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style():
        figure = Figure(layout="constrained")
        canvas = FigureCanvasAgg(figure)
        figure.set_label(alt)
        fit = fitter(figure)
        names = [fit(row.variant, LABEL_IN) for row in summary.rows]
        reason_in = WIDTH_IN - LABEL_IN - 4 * PAD_IN
        reasons = [fit(captions.reason(row), reason_in) for row in summary.rows]
        heights_in = [
            max(ROW_IN, (1 + max(text.count("\n") for text in pair)) * LINE_IN + PAD_IN)
            for pair in zip(names, reasons)
        ]
        middles_in = [sum(heights_in[:i]) + height / 2 for i, height in enumerate(heights_in)]
        lines = head(summary, fit)
        head_in = head_height_in(lines)
        height_in = head_in + sum(heights_in) + FOOT_IN
        figure.set_size_inches(WIDTH_IN, height_in)
        figure.get_layout_engine().set(rect=(0, 0, 1, 1 - head_in / height_in), w_pad=PAD_IN)

        axes = figure.add_subplot()
        axes.set_ylim(sum(heights_in), 0)
        axes.set_yticks(middles_in, names)
        axes.tick_params(axis="y", length=0)
        handles = draw(axes, middles_in)
        for y, reason in zip(middles_in, reasons):
            if reason:
                axes.text(
                    axes.get_xlim()[1] * 0.01, y, reason, va="center", color=SOFT_INK,
                    style="italic", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
                )  # fmt: skip
        if handles:
            figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))
        draw_head(figure, lines)
        canvas.draw()
        # Laying out again for every file would move things by fractions of a pixel.
        figure.set_layout_engine("none")
    # Figures made without pyplot do not show themselves; IPython looks for this name.
    figure._repr_mimebundle_ = lambda **_: mimebundle(figure)
    return figure


def save(figure: Figure, path_without_suffix: Path | str) -> tuple[Path, Path, Path]:
    """Write a figure as .png (300 dpi), .svg and .pdf.

    Equal figures give equal bytes: no dates, no random ids.

    Returns:
        The three paths.
    """
    path = Path(path_without_suffix)
    # Not with_suffix: it would cut "chart.v2" down to "chart".
    png, svg, pdf = (path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg", "pdf"))
    png.write_bytes(to_bytes(figure, "png", dpi=300))
    svg.write_bytes(to_bytes(figure, "svg"))
    pdf.write_bytes(to_bytes(figure, "pdf"))
    return png, svg, pdf


def to_bytes(figure: Figure, kind: str, *, dpi: int = 150) -> bytes:
    """Render a figure to one format.

    Args:
        figure: from `row_figure`, or drawn with `style`.
        kind: png, svg or pdf.
        dpi: dots per inch; svg and pdf need none.
    """
    alt = figure.get_label()
    metadata = {
        "png": {"Software": None, "Description": alt},
        "svg": {"Date": None, "Description": alt},
        "pdf": {"CreationDate": None, "Subject": alt},
    }[kind]
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """Use labkit's look, and no setting of the person's own, while drawing."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    with _LOCK, matplotlib.rc_context():
        matplotlib.rc_file(STYLE)
        installed = {font.name for font in fontManager.ttflist}
        # Naming a font that is not there makes matplotlib warn at every text.
        cjk = [name for name in CJK_FONTS if name in installed]
        matplotlib.rcParams["font.family"] = ["DejaVu Sans", *cjk[:1]]
        yield


def fitter(figure: Figure) -> Callable[..., str]:
    """Make a function that breaks a text into lines no wider than some inches."""
    from matplotlib.font_manager import FontProperties

    renderer = figure.canvas.get_renderer()

    def fit(text: str, width_in: float, size: float = 10, weight: str = "normal") -> str:
        font = FontProperties(size=size, weight=weight)

        def fits(line: str) -> bool:
            width_px = renderer.get_text_width_height_descent(line.rstrip(), font, False)[0]
            return width_px / figure.dpi <= width_in

        lines = [""]
        for word in _words(text):
            for piece in [word] if fits(word) else word:  # a word that is too long, by letters
                if not fits(lines[-1] + piece):
                    lines.append("")
                lines[-1] += piece if lines[-1] else piece.lstrip()
        return "\n".join(line.rstrip() for line in lines)

    return fit


def _words(text: str) -> list[str]:
    # Chinese, Japanese and Korean break between any two letters; names also after _ - / ,
    wide = "\u2e80-\u9fff\uac00-\ud7ff\uff00-\uffef"
    return re.findall(rf"\s+|[{wide}]|[^\s{wide}_/,-]+[_/,-]*|[_/,-]+", " ".join(text.split()))


def head(summary: Summary, fit: Callable[..., str]) -> list[tuple[str, float, str, str]]:
    """Compose the title area: (text, size, weight, colour) from top to bottom."""
    lines = [(summary.question, 13, "bold", INK)]
    if stand_ins := captions.stand_ins(summary):
        lines.append((" · ".join(stand_ins), 10, "bold", WARNING_INK))
    lines.append((captions.conditions(summary), 9, "normal", SOFT_INK))
    width_in = WIDTH_IN - 2 * PAD_IN
    return [(fit(text, width_in, size, weight), size, weight, c) for text, size, weight, c in lines]


def head_height_in(head: Sequence[tuple[str, float, str, str]]) -> float:
    """Say how high `draw_head` makes the title area."""
    return PAD_IN + sum(size * 0.019 * (1 + text.count("\n")) for text, size, *_ in head)


def draw_head(figure: Figure, head: Sequence[tuple[str, float, str, str]]) -> None:
    """Write the title area.

    Args:
        figure: of its final size.
        head: (text, size, weight, colour) from top to bottom, already broken into lines.
    """
    width_in, height_in = figure.get_size_inches()
    top_in = height_in - PAD_IN
    for text, size, weight, color in head:
        figure.text(
            PAD_IN / width_in, top_in / height_in, text, size=size, weight=weight, color=color,
            va="top", linespacing=1.25,
        )  # fmt: skip
        top_in -= size * 0.019 * (1 + text.count("\n"))


def mimebundle(figure: Figure) -> tuple[dict[str, str], dict[str, object]]:
    """Show a figure in a notebook, with its text for screen readers.

    JupyterLab gives images from image/png no alternative text, hence the HTML; the image
    itself stays beside it for exports that take no HTML.
    """
    png = base64.b64encode(to_bytes(figure, "png")).decode()
    width_px = round(figure.get_size_inches()[0] * 96)
    alt = html.escape(figure.get_label())
    image = (
        f'<img src="data:image/png;base64,{png}" alt="{alt}" width="{width_px}" '
        'style="max-width:100%;background:white">'
    )
    return {"text/html": image, "image/png": png}, {"image/png": {"width": width_px}}
