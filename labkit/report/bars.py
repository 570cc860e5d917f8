"""What every chart has in common: look, head, legend and foot, and the files.

    head: question, stand-ins, conditions   ┐
          what a chart draws                ├─ save() -> .png .svg .pdf
    legend                                  │   mimebundle() -> a notebook
    foot: where the numbers come from       ┘

Lengths are in inches, so that long texts get lines instead of being cut.  Equal summaries give
equal bytes.  Figures are made without pyplot, under one lock: its global state breaks in the
threads a notebook runs.
"""

from __future__ import annotations

import base64
import html
import io
import re
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.analysis.summary import Summary
from labkit.report import captions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("labkit.mplstyle")
# Matplotlib's settings are global, also for figures made in other threads.
_LOCK = threading.RLock()

PAD_IN = 0.15
LINE_IN = 0.19  # one line of 10 pt text
SMALL_LINE_IN = 0.17  # of 9 pt
ORIGIN_PT, ORIGIN_LINE_IN = 7.5, 0.135
LEGEND_PT, LEGEND_LINE_IN = 9, 0.2
LEGEND_KEY_IN = 0.62  # the mark of an entry, and the space around it

INK, SOFT_INK, WARNING_INK = "#1a1a1a", "#555555", "#9c3a00"
EDGE = {"edgecolor": "#707070", "linewidth": 0.7}
DOT = {
    "marker": "o", "markersize": 4, "color": INK, "alpha": 0.75, "linestyle": "none",
    "clip_on": False,
}  # fmt: skip
# Tried in this order for letters that DejaVu Sans lacks.
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC",
    "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei", "PingFang SC",
    "Hiragino Sans GB", "Noto Sans CJK TC", "Noto Sans CJK KR", "Noto Serif CJK SC",
    "AR PL UMing CN", "Droid Sans Fallback", "Arial Unicode MS",
)  # fmt: skip


WIDTH_IN = 8.4


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


def to_bytes(figure: Figure, kind: str, *, dpi: int = 150, outlines: bool = False) -> bytes:
    """Render a figure to one format.

    Args:
        figure: drawn with `style`.
        kind: png, svg or pdf.
        dpi: dots per inch; svg and pdf need none.
        outlines: draw the letters of an svg, which then looks the same where its fonts are
            missing; else they are text that can be searched and edited.
    """
    import matplotlib

    alt = figure.get_label()
    metadata = {
        "png": {"Software": None, "Description": alt},
        "svg": {"Date": None, "Description": alt},
        "pdf": {"CreationDate": None, "Subject": alt},
    }[kind]
    buffer = io.BytesIO()
    with style():
        if outlines:
            matplotlib.rcParams["svg.fonttype"] = "path"
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    drawn = buffer.getvalue()
    # Verdana's letters are as wide as those of DejaVu, of which it is the model.
    return drawn.replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana") if kind == "svg" else drawn


@contextmanager
def style() -> Iterator[None]:
    """Use labkit's look, and no setting of the person's own, while drawing."""
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


@dataclass(frozen=True, kw_only=True)
class Page:
    """A figure while it is drawn."""

    figure: Figure
    fit: Callable[..., str]
    """Breaks a text into lines, see `fitter`."""

    def frame(
        self,
        head: Sequence[tuple[str, float, str, str]],
        origin: str,
        content_in: float,
        handles: Sequence[Artist] = (),
        legend_title: str = "",
    ) -> tuple[float, float]:
        """Make the figure as high as it has to be, and draw head, legend and foot.

        Args:
            head: (text, size, weight, colour) from top to bottom, from `head` or `fit_head`.
            origin: where the numbers come from; line breaks stay.
            content_in: height of all between head and legend.
            handles: what the legend explains; none: no legend.
            legend_title: above the legend.

        Returns:
            The content's lower edge and the figure's height, both in inches.
        """
        figure = self.figure
        foot = "\n".join(fit_foot(line, self.fit) for line in origin.splitlines() if line)
        columns = count_legend_columns(figure, handles) if handles else 1
        legend_lines = -(-len(handles) // columns) + bool(legend_title)
        legend_in = LEGEND_LINE_IN * legend_lines + PAD_IN if legend_lines else 0
        bottom_in = foot_height_in(foot) + legend_in
        height_in = bottom_in + content_in + head_height_in(head)
        figure.set_size_inches(WIDTH_IN, height_in)
        if handles:
            corner = PAD_IN / WIDTH_IN, (foot_height_in(foot) + PAD_IN / 2) / height_in
            figure.legend(
                handles=handles, loc="lower left", ncols=columns, bbox_to_anchor=corner,
                borderaxespad=0, borderpad=0, title=legend_title or None, alignment="left",
                title_fontsize=9,
            )  # fmt: skip
        draw_head(figure, head)
        draw_foot(figure, foot)
        return bottom_in, height_in


@contextmanager
def page(alt: str) -> Iterator[Page]:
    """Draw a figure that shows itself in a notebook.

    Args:
        alt: all that the picture shows, in words; becomes the figure's label.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style():
        figure = Figure()
        canvas = FigureCanvasAgg(figure)
        figure.set_label(alt)
        # Figures made without pyplot do not show themselves; IPython looks for this name.
        figure._repr_mimebundle_ = partial(mimebundle, figure)
        yield Page(figure=figure, fit=fitter(figure))
        canvas.draw()


def fitter(figure: Figure) -> Callable[..., str]:
    """Make a function that breaks a text into lines no wider than some inches."""
    from matplotlib.font_manager import FontProperties

    renderer = figure.canvas.get_renderer()

    def fit(
        text: str,
        width_in: float,
        size: float = 10,
        weight: str = "normal",
        slant: str = "normal",
    ) -> str:
        font = FontProperties(size=size, weight=weight, style=slant)

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
    said = [captions.conditions(summary), *captions.other_images(summary)]
    lines.append((" · ".join(said), 9, "normal", SOFT_INK))
    return fit_head(lines, fit)


def fit_head(
    lines: Sequence[tuple[str, float, str, str]], fit: Callable[..., str]
) -> list[tuple[str, float, str, str]]:
    """Break a title area's texts into lines as wide as the figure; their own breaks stay."""
    width_in = WIDTH_IN - 2 * PAD_IN
    return [
        ("\n".join(fit(line, width_in, size, weight) for line in text.split("\n")), size, weight, c)
        for text, size, weight, c in lines
    ]


def head_height_in(head: Sequence[tuple[str, float, str, str]]) -> float:
    """Say how high `draw_head` makes the title area."""
    return PAD_IN + sum(size * 0.019 * (1 + text.count("\n")) for text, size, *_ in head)


def draw_head(
    figure: Figure, head: Sequence[tuple[str, float, str, str]], top_in: float | None = None
) -> None:
    """Write the title area.

    Args:
        figure: of its final size.
        head: (text, size, weight, colour) from top to bottom, already broken into lines.
        top_in: its upper end; unset: the figure's.
    """
    height_in = figure.get_size_inches()[1]
    top_in = (height_in if top_in is None else top_in) - PAD_IN
    for text, size, weight, color in head:
        figure.text(
            PAD_IN / WIDTH_IN, top_in / height_in, text, size=size,
            weight=weight, color=color, va="top", linespacing=1.25,
        )  # fmt: skip
        top_in -= size * 0.019 * (1 + text.count("\n"))


def fit_foot(origin: str, fit: Callable[..., str]) -> str:
    """Break the line that says where the numbers come from, between its parts if it can."""
    width_in, lines = WIDTH_IN - 2 * PAD_IN, [""]
    for part in origin.split(" · ") if origin else []:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if "\n" in fit(longer, width_in, ORIGIN_PT) and lines[-1]:
            lines.append(part)
        else:
            lines[-1] = longer
    return "\n".join(fit(line, width_in, ORIGIN_PT) for line in lines if line)


def foot_height_in(foot: str) -> float:
    """Say how high `draw_foot` makes the line at the bottom; 0 without one."""
    return PAD_IN / 2 + ORIGIN_LINE_IN * (1 + foot.count("\n")) if foot else 0.0


def draw_foot(figure: Figure, foot: str) -> None:
    """Write where the numbers come from, small, at the bottom."""
    if foot:
        height_in = figure.get_size_inches()[1]
        figure.text(
            PAD_IN / WIDTH_IN, PAD_IN / 2 / height_in, foot, size=ORIGIN_PT,
            color=SOFT_INK, va="bottom", linespacing=1.25,
        )  # fmt: skip


def count_legend_columns(figure: Figure, handles: Sequence[Artist]) -> int:
    """Say how many entries of a legend fit into a line; at least 1."""
    from matplotlib.font_manager import FontProperties

    renderer, font = figure.canvas.get_renderer(), FontProperties(size=LEGEND_PT)
    labels = [str(handle.get_label()) for handle in handles]
    widths_in = [
        renderer.get_text_width_height_descent(label, font, False)[0] / figure.dpi + LEGEND_KEY_IN
        for label in labels
    ]
    room_in = WIDTH_IN - 2 * PAD_IN
    if sum(widths_in) <= room_in:
        return max(1, len(handles))
    return max(1, int(room_in / max(widths_in)))


def mimebundle(figure: Figure, **_: object) -> tuple[dict[str, str], dict[str, object]]:
    """Show a figure in a notebook, with its text for screen readers.

    JupyterLab gives images from image/png no alternative text, hence the HTML; the image
    itself stays beside it for exports that take no HTML.

    Args:
        figure: drawn on a `page`.
        **_: include and exclude, as IPython asks for them.
    """
    png = base64.b64encode(to_bytes(figure, "png")).decode()
    width_px = round(figure.get_size_inches()[0] * 96)
    alt = html.escape(figure.get_label())
    image = (
        f'<img src="data:image/png;base64,{png}" alt="{alt}" width="{width_px}" '
        'style="max-width:100%;background:white">'
    )
    return {"text/html": image, "image/png": png}, {"image/png": {"width": width_px}}
