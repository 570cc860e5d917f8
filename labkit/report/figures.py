"""What every chart has in common: its look, title, legend, caption and files.

    title: the answer, the question, what is simulated, conditions  ┐
    axes, drawn by labkit/report/charts.py                          ├─ save() -> .png .svg .pdf
    legend, and what is missing with its reason                     ┘  mimebundle() -> a notebook
    caption: where the numbers come from (below the picture, and in its file)

Equal summaries give equal bytes. Figures are made without pyplot, under one lock: matplotlib's
global state breaks in the threads of a notebook.
"""

from __future__ import annotations

import base64
import html
import io
import re
import textwrap
import threading
import unicodedata
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

KINDS = ("png", "svg", "pdf")
# Matplotlib's settings are global, also for figures made in other threads.
_LOCK = threading.RLock()

WIDTH_IN = 8.4
PAD_IN = 0.15  # around all, and between title, axes, legend and footer
TEXT_PT, GAP_PT = 72 * (WIDTH_IN - 2 * PAD_IN), 4.0  # width of a line; space between two texts
AXIS_IN = 0.6  # ticks and label of the x axis
INK, SOFT_INK, WARNING_INK = "#1a1a1a", "#555555", "#9c3a00"
# Tried in this order for letters that DejaVu Sans lacks.
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC",
    "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei", "PingFang SC",
    "Hiragino Sans GB", "Noto Sans CJK TC", "Noto Sans CJK KR", "Noto Serif CJK SC",
    "AR PL UMing CN", "Droid Sans Fallback", "Arial Unicode MS",
)  # fmt: skip
# Width of a character ÷ the font's size, in the widest of the lines that charts have (DejaVu Sans).
CHAR_EM = {"normal": 0.55, "bold": 0.62}


# --- title, legend and caption --------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A text of the title; where it is too long, it becomes several lines."""

    text: str
    size: float = 9
    weight: str = "normal"
    color: str = INK


def wrap(text: str, chars: int) -> str:
    """Break a text into lines of at most so many characters; its own breaks and intervals stay."""
    text = re.sub(r"\[[\d.,% ]+\]", lambda interval: interval[0].replace(" ", "\u00a0"), text)
    text = re.sub(r" (?=[%·])", "\u00a0", text)  # no line begins with them
    # Chinese, Japanese and Korean characters are twice as wide.
    if any(unicodedata.east_asian_width(char) in "WF" for char in text):
        chars //= 2
    wrapped = "\n".join(textwrap.fill(line, chars) for line in text.split("\n"))
    return wrapped.replace("\u00a0", " ")


@contextmanager
def page() -> Iterator[Figure]:
    """Draw a figure that shows itself in a notebook; `frame` completes it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style():
        figure: Any = Figure(layout="constrained")
        canvas = FigureCanvasAgg(figure)
        # Figures made without pyplot do not show themselves; IPython looks for this name.
        figure._repr_mimebundle_ = partial(mimebundle, figure)
        yield figure
        canvas.draw()
        figure.set_layout_engine("none")  # the places stay as they are, at every resolution
        for axes in figure.axes:  # the solver's last digits differ from process to process
            axes.set_position([round(x, 6) for x in axes.get_position().bounds])


def frame(
    figure: Figure,
    title: Sequence[Line],
    caption: str,
    content_in: float,
    handles: Sequence[Artist] = (),
    *,
    footer: Sequence[str] = (),
    shown: Sequence[str] = (),
) -> None:
    """Set the figure's height, and write its title, legend and footer.

    The figure's label becomes its alternative text: title, what the axes show, footer, caption.
    The caption is no part of the picture: it is in its file, and below it in a notebook.

    Args:
        figure: its axes are placed between title and legend.
        title: from top to bottom.
        caption: where the numbers come from; line breaks stay.
        content_in: height of the axes with their ticks and labels.
        handles: what the legend explains.
        footer: lines below the legend.
        shown: what the axes show, in words.
    """
    sentences = [*(line.text for line in title), *shown, *footer, *caption.split("\n")]
    ends = ("?", "!", ".", "？", "。")
    figure.set_label(" ".join(s if s.endswith(ends) else f"{s}." for s in sentences if s))
    figure.labkit_caption = caption  # type: ignore[attr-defined]  # for `mimebundle`
    figure.set_size_inches(WIDTH_IN, content_in)
    left = PAD_IN / WIDTH_IN
    above = _block(figure, title, "upper left")
    below = _block(figure, [Line(text, color=SOFT_INK) for text in footer], "lower left")
    legend: Any = None
    if handles:
        for handle in handles:
            handle.set_label(wrap(str(handle.get_label()), chars=30))
        legend = figure.legend(
            handles=handles, loc="lower left", ncols=3, borderaxespad=0, borderpad=0
        )  # fmt: skip
        legend.set_in_layout(False)
    top_in, footer_in, legend_in = (_height_in(figure, each) for each in (above, below, legend))
    bottom_in = PAD_IN + footer_in + legend_in
    whole_in = top_in + content_in + bottom_in
    figure.set_size_inches(WIDTH_IN, whole_in)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(left, bottom_in / whole_in, 1 - 2 * left, content_in / whole_in), w_pad=0)
    for each, bottom in ((above, 1 - PAD_IN / whole_in), (below, PAD_IN / whole_in)):
        if each:
            each.set_bbox_to_anchor((left, bottom), figure.transFigure)
    if legend:
        legend.set_bbox_to_anchor((left, (PAD_IN + footer_in) / whole_in))


def _block(figure: Figure, lines: Sequence[Line], corner: str) -> Any:
    """Write lines below each other, in a corner of the figure; return them as one artist."""
    from matplotlib.offsetbox import AnchoredOffsetbox, TextArea, VPacker

    if not lines:
        return None
    texts: list[Any] = [
        TextArea(
            _wrap_evenly(line.text, int(TEXT_PT / (line.size * CHAR_EM[line.weight]))),
            textprops={
                "size": line.size, "weight": line.weight, "color": line.color, "linespacing": 1.25,
            },
        )
        for line in lines
    ]  # fmt: skip
    packed = VPacker(children=texts, align="left", pad=0, sep=GAP_PT)
    block = AnchoredOffsetbox(
        corner, child=packed, pad=0, borderpad=0, frameon=False, bbox_to_anchor=(0, 0),
        bbox_transform=figure.transFigure,
    )  # fmt: skip
    block.set_in_layout(False)
    return figure.add_artist(block)


def _wrap_evenly(text: str, chars: int) -> str:
    """Break a text as `wrap` does, into narrower lines where the last one would be a word."""
    first = wrap(text, chars)
    for narrower in range(chars, chars // 2, -1):
        wrapped = wrap(text, narrower)
        if wrapped.count("\n") > first.count("\n"):
            break
        if "\n" not in wrapped or len(wrapped.rpartition("\n")[2]) > chars / 3:
            return wrapped
    return first


def _height_in(figure: Figure, artist: Artist | None) -> float:
    """Return the height of an artist with the space beside it; 0 of none."""
    return artist.get_window_extent().height / figure.dpi + PAD_IN if artist else 0.0


# --- files --------------------------------------------------------------------------------


def save(figure: Figure, path_without_suffix: Path | str) -> list[Path]:
    """Write a figure as .png, .svg and .pdf; return the paths."""
    # Not with_suffix: it would cut "chart.v2" down to "chart".
    return [write(figure, Path(f"{path_without_suffix}.{kind}")) for kind in KINDS]


def write(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the file's suffix, .png with 300 dpi; return the path."""
    return write_whole(path, to_bytes(figure, path.suffix[1:], dpi=300))


def to_bytes(figure: Figure, kind: str, *, dpi: int = 150) -> bytes:
    """Render a figure to one format; equal figures give equal bytes, without dates and random ids.

    Args:
        figure: drawn on a `page`.
        kind: one of `KINDS`.
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
    drawn = buffer.getvalue()
    # Verdana's letters are as wide as those of DejaVu, of which it is the model.
    return drawn.replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana") if kind == "svg" else drawn


@contextmanager
def style() -> Iterator[None]:
    """Use labkit's look, and none of the user's own settings, while drawing."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    with _LOCK, matplotlib.rc_context(), warnings.catch_warnings():
        # A letter that no font has is drawn as a box; the table beside the chart has it.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        matplotlib.rc_file(Path(__file__).with_name("labkit.mplstyle"))
        installed = {font.name for font in fontManager.ttflist}
        # Naming a font that is not there makes matplotlib warn at every text.
        cjk = [name for name in CJK_FONTS if name in installed]
        matplotlib.rcParams["font.family"] = ["DejaVu Sans", *cjk[:1]]
        yield


def mimebundle(figure: Figure, **_: object) -> tuple[dict[str, str], dict[str, Any]]:
    """Show a figure and its caption in a notebook, with its text for screen readers.

    JupyterLab gives images from image/png no alternative text, hence the HTML; the image
    itself stays beside it for exports that take no HTML.

    Args:
        figure: drawn on a `page`.
        **_: include and exclude, as IPython asks for them.
    """
    png = base64.b64encode(to_bytes(figure, "png")).decode()
    width_px = round(figure.get_size_inches()[0] * 96)
    alt = html.escape(str(figure.get_label()))
    image = (
        f'<img src="data:image/png;base64,{png}" alt="{alt}" width="{width_px}" '
        'style="max-width:100%;background:white">'
    )
    if caption := html.escape(getattr(figure, "labkit_caption", "")):
        caption = f'<figcaption style="font-size:85%">{caption}</figcaption>'
    image = f'<figure style="margin:0">{image}{caption}</figure>'
    return {"text/html": image, "image/png": png}, {"image/png": {"width": width_px}}
