"""Horizontal bars, and what every chart has in common: look, title, legend, caption and files.

    title: question, simulated, conditions  ┐
    axes: draw_rows() or another drawing    ├─ save() -> .png .svg .pdf
    legend                                  │  mimebundle() -> a notebook
    caption: where the numbers come from    ┘

Texts are wrapped at a fixed number of characters, so the number of lines gives the height of
title and legend. Matplotlib's constrained layout places the axes in what is left.

Equal summaries give equal bytes. Figures are made without pyplot, under one lock: matplotlib's
global state breaks in the threads of a notebook.
"""

from __future__ import annotations

import base64
import html
import io
import textwrap
import threading
import unicodedata
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("png", "svg", "pdf")
STYLE = Path(__file__).with_name("labkit.mplstyle")
# Matplotlib's settings are global, also for figures made in other threads.
_LOCK = threading.RLock()

WIDTH_IN = 8.4
PAD_IN = 0.15
ROW_IN = 0.62  # a row of bars; higher where a name or a reason has many lines
AXIS_IN = 0.6  # ticks and label of the x axis
# Characters of a line: DejaVu Sans then fills at most nine tenths of the figure's width.
NAME_CHARS, REASON_CHARS = 26, 76
INK, SOFT_INK, WARNING_INK = "#1a1a1a", "#555555", "#9c3a00"

# Fill and hatch: blue and orange differ for every kind of colour vision, hatches without colour.
LOOKS = {
    "baseline": ("#dcdcdc", "////"),
    "faster": ("#6baed6", ""),
    "slower": ("#fdae6b", "xxxx"),
    "other": ("#c6dbef", ""),
    "first epoch": ("#7fa8c9", "////"),
    "later epochs": ("#e3edf5", ""),
}
EDGE: dict[str, Any] = {"edgecolor": "#707070", "linewidth": 0.7}
DOT: dict[str, Any] = {
    "marker": "o", "markersize": 4, "color": INK, "alpha": 0.75, "linestyle": "none",
    "clip_on": False,
}  # fmt: skip
# Larger and open, so that a dot under it shows.
OUTLIER: dict[str, Any] = {
    "marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgecolor": INK,
    "markeredgewidth": 1.3, "linestyle": "none", "clip_on": False,
}  # fmt: skip
PUBLISHED: dict[str, Any] = {
    "marker": "D", "markersize": 8, "markerfacecolor": "white", "markeredgecolor": "#7a0177",
    "markeredgewidth": 1.6, "linestyle": "none", "clip_on": False,
}  # fmt: skip
INTERVAL: dict[str, Any] = {"color": INK, "linewidth": 1.6, "marker": "|", "markersize": 8}
# Tried in this order for letters that DejaVu Sans lacks.
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC",
    "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei", "PingFang SC",
    "Hiragino Sans GB", "Noto Sans CJK TC", "Noto Sans CJK KR", "Noto Serif CJK SC",
    "AR PL UMing CN", "Droid Sans Fallback", "Arial Unicode MS",
)  # fmt: skip


# --- bars ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar, the marks on it, and the text beside it."""

    length: float
    name: str = ""
    """What it is of its row, for screen readers."""
    look: str
    """A key of `LOOKS`."""
    dots: Sequence[float]
    """A value per trial or epoch."""
    outliers: Sequence[int] = ()
    """Which dots lie far from the others."""
    interval: tuple[float, float] | None = None
    published: float | None = None
    value: str
    notes: Sequence[str] = ()
    """Lines below the value."""


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """A variant: its bars, or the reason why there are none."""

    name: str
    bars: Sequence[Bar] = ()
    reason: str = ""


def height_in(rows: Sequence[BarRow]) -> float:
    """Return the height of some rows, without the axis."""
    texts = [text for row in rows for text in (_name(row), _reason(row))]
    lines = max(text.count("\n") for text in texts) + 1
    return len(rows) * max(ROW_IN, 0.19 * lines + PAD_IN)


def draw_rows(axes: Axes, rows: Sequence[BarRow], limit: float, **value_font: object) -> None:
    """Draw rows of bars from the top down, on an axis from 0.

    Args:
        axes: empty; row i lies at y = i.
        rows: what to draw.
        limit: end of the x axis.
        **value_font: how the value beside each bar is written.
    """
    axes.set(xlim=(0, limit), ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.tick_params(axis="y", length=0)
    for y, row in enumerate(rows):
        height = 0.7 / max(1, len(row.bars))
        for i, bar in enumerate(row.bars):
            middle = y + height * (i - (len(row.bars) - 1) / 2)
            _draw_bar(axes, bar, middle, height, limit)
            lift_pt = 6.5 * len(bar.notes)
            write_beside(axes, middle, (8, lift_pt), bar.value, **value_font)
            write_beside(axes, middle, (8, -6.5), "\n".join(bar.notes), size=9)
        if row.reason:
            axes.text(
                limit * 0.01, y, _reason(row), va="center", color=SOFT_INK, style="italic",
                size=9, in_layout=False,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )  # fmt: skip


def describe_rows(rows: Sequence[BarRow]) -> list[str]:
    """Return all numbers and reasons of some rows, a line each, for screen readers."""
    return [f"{row.name}: {row.reason or '; '.join(map(_describe_bar, row.bars))}" for row in rows]


def _describe_bar(bar: Bar) -> str:
    published = [] if bar.published is None else [f"published {units.normalized(bar.published)}"]
    outliers = [f"outlier {units.normalized(bar.dots[i])}" for i in bar.outliers]
    return " ".join(
        filter(None, [bar.name, ", ".join([bar.value, *bar.notes, *published, *outliers])])
    )


def _draw_bar(axes: Axes, bar: Bar, y: float, height: float, limit: float) -> None:
    color, hatch = LOOKS[bar.look]
    axes.barh(y, bar.length, height=height, color=color, hatch=hatch, zorder=2, **EDGE)
    # Published figure, interval and dots lie on three lanes, so that none hides another.
    lane = 0.28 * height if bar.interval or bar.published else 0.0
    n = len(bar.dots)
    spread = [y + lane + 0.25 * height * (i / max(1, n - 1) - 0.5) for i in range(n)]
    for i, (value, at) in enumerate(zip(bar.dots, spread)):
        axes.plot([value], [at], zorder=4, **(OUTLIER if i in bar.outliers else DOT))
    if bar.interval:
        low, high = bar.interval
        is_cut = high > limit  # an interval that leaves the axis ends in an arrow
        ends = [0] if is_cut else [0, 1]
        axes.plot([low, min(high, limit)], [y, y], zorder=5, markevery=ends, **INTERVAL)
        if is_cut:
            axes.plot([limit], [y], zorder=5, clip_on=False, **{**INTERVAL, "marker": ">"})
    if bar.published is not None:
        axes.plot([bar.published], [y - lane], zorder=6, **PUBLISHED)


def write_beside(
    axes: Axes, y: float, offset_pt: tuple[float, float], text: str, **font: Any
) -> None:
    """Write right of the axes, some points right of their end and above y."""
    axes.annotate(
        text, (1, y), offset_pt, xycoords=axes.get_yaxis_transform(), textcoords="offset points",
        va="center", annotation_clip=False, **font,
    )  # fmt: skip


def legend_of(rows: Sequence[BarRow], looks: Mapping[str, str], dot: str) -> list[Artist]:
    """Return what explains the marks of these rows; nothing where none has a bar.

    Args:
        rows: what is drawn.
        looks: key of `LOOKS` -> what it means.
        dot: what a dot means.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    bars = [bar for row in rows for bar in row.bars]
    used = {bar.look for bar in bars}
    handles: list[Artist] = [
        Patch(facecolor=LOOKS[look][0], hatch=LOOKS[look][1], label=meaning, **EDGE)
        for look, meaning in looks.items()
        if look in used
    ]
    marks = (
        (dot, DOT, any(bar.dots for bar in bars)),
        ("outlier", OUTLIER, any(bar.outliers for bar in bars)),
        ("95 % confidence interval", INTERVAL, any(bar.interval for bar in bars)),
        ("published", PUBLISHED, any(bar.published is not None for bar in bars)),
    )
    return handles + [Line2D([], [], label=label, **mark) for label, mark, drawn in marks if drawn]


def _name(row: BarRow) -> str:
    return wrap(row.name, NAME_CHARS)


def _reason(row: BarRow) -> str:
    return wrap(row.reason, REASON_CHARS)


# --- title, legend and caption --------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A text of the title: it may be wrapped into several lines."""

    text: str
    size: float = 9
    weight: str = "normal"
    color: str = INK
    style: str = "normal"

    @property
    def wrapped(self) -> str:
        """The text in lines as wide as the figure; its own breaks stay."""
        return wrap(self.text, int((960 if self.weight == "bold" else 1030) / self.size))

    @property
    def height_in(self) -> float:
        """Of all its lines."""
        return self.size * 0.019 * (1 + self.wrapped.count("\n"))


def wrap(text: str, chars: int) -> str:
    """Break a text into lines of at most so many characters; its own breaks stay."""
    # Chinese, Japanese and Korean characters are twice as wide.
    if any(unicodedata.east_asian_width(char) in "WF" for char in text):
        chars //= 2
    return "\n".join(textwrap.fill(line, chars) for line in text.split("\n"))


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
    shown: Sequence[str] = (),
    columns: int = 5,
) -> None:
    """Set the figure's height, and write its title and legend.

    The figure's label becomes its alternative text: title, what the axes show, caption.  The
    caption is no part of the picture: it is in its file, and below it in a notebook.

    Args:
        figure: its axes are placed between title and legend.
        title: from top to bottom.
        caption: where the numbers come from; line breaks stay.
        content_in: height of the axes with all that belongs to them.
        handles: what the legend explains.
        shown: what the axes show, in words.
        columns: of the legend.
    """
    sentences = [*(line.text for line in title), *shown, *caption.split("\n")]
    ends = ("?", "!", ".", "？", "。")
    figure.set_label(" ".join(s if s.endswith(ends) else f"{s}." for s in sentences if s))
    figure.labkit_caption = caption  # type: ignore[attr-defined]  # for `mimebundle`
    lines = 1 + max((str(handle.get_label()).count("\n") for handle in handles), default=0)
    legend_lines = -(-len(handles) // columns) * lines
    bottom_in = PAD_IN / 2 + (0.2 * legend_lines + PAD_IN if handles else 0)
    top_in = 1.5 * PAD_IN + sum(line.height_in for line in title)
    whole_in = bottom_in + content_in + top_in
    figure.set_size_inches(WIDTH_IN, whole_in)
    left = PAD_IN / WIDTH_IN
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(left, bottom_in / whole_in, 1 - 2 * left, content_in / whole_in), w_pad=0)
    if handles:
        figure.legend(
            handles=handles, loc="lower left", ncols=columns, borderaxespad=0, borderpad=0,
            bbox_to_anchor=(left, PAD_IN / whole_in),
        )  # fmt: skip
    at_in = whole_in - PAD_IN
    for line in title:
        figure.text(
            left, at_in / whole_in, line.wrapped, va="top", size=line.size, weight=line.weight,
            color=line.color, style=line.style, linespacing=1.25,
        )  # fmt: skip
        at_in -= line.height_in


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
        matplotlib.rc_file(STYLE)
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
