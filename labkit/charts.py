"""A summary as a picture: bars of normalized time, every trial's dot, and the document's figure.

    Summary -> chart() -> matplotlib Figure -> save() -> .png .svg .pdf

The axis starts at 0: cut axes made the documents' gains look four times as large.  Equal
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

from labkit import captions, units
from labkit.summary import Row, Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("labkit.mplstyle")
# Matplotlib's settings are global, also for figures made in other threads.
_LOCK = threading.RLock()

# The page is laid out in inches, so that long texts get lines instead of being cut.
WIDTH_IN = 8.4
PAD_IN = 0.15
LINE_IN = 0.19  # one line of 10 pt text
ROW_IN = 0.62
BAR_IN = 0.42
LABEL_IN = 2.0  # longest line of a variant's name
FOOT_IN = 1.0  # ticks, axis label and legend

INK, SOFT_INK, WARNING_INK = "#1a1a1a", "#555555", "#9c3a00"
# Fill and hatch of a bar by verdict: blue and orange stay apart for every kind of colour
# vision, the hatches without any colour.
LOOKS = {
    "baseline": ("#dcdcdc", "////"),
    "faster": ("#6baed6", ""),
    "slower": ("#fdae6b", "xxxx"),
    "other": ("#c6dbef", ""),
}
DOT = {"marker": "o", "markersize": 4, "color": INK, "alpha": 0.75, "linestyle": "none"}
WHISKER = {"color": INK, "linewidth": 1.6}
PUBLISHED = {
    "marker": "D", "markersize": 8, "markerfacecolor": "white", "markeredgecolor": "#7a0177",
    "markeredgewidth": 1.6, "linestyle": "none",
}  # fmt: skip
# Tried in this order for letters that DejaVu Sans lacks.
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC",
    "WenQuanYi Micro Hei", "Microsoft YaHei", "SimHei", "PingFang SC", "Hiragino Sans GB",
    "Arial Unicode MS",
)  # fmt: skip


def chart(summary: Summary) -> Figure:
    """Draw the normalized times of one run.

    Args:
        summary: what `summary.summarize` returns.

    Returns:
        A figure that shows itself in a notebook; its label is `captions.describe(summary)`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(layout="constrained")
        canvas = FigureCanvasAgg(figure)
        figure.set_label(captions.describe(summary))
        fit = _fitter(figure)
        names = [fit(row.variant, LABEL_IN) for row in summary.rows]
        reason_in = WIDTH_IN - LABEL_IN - 4 * PAD_IN
        reasons = [fit(captions.reason(row), reason_in) for row in summary.rows]
        heights_in = [
            max(ROW_IN, (1 + max(text.count("\n") for text in pair)) * LINE_IN + PAD_IN)
            for pair in zip(names, reasons)
        ]
        middles_in = [sum(heights_in[:i]) + height / 2 for i, height in enumerate(heights_in)]
        head = _head(summary, fit)
        head_in = PAD_IN + sum(size * 0.019 * (1 + text.count("\n")) for text, size, *_ in head)
        height_in = head_in + sum(heights_in) + FOOT_IN
        figure.set_size_inches(WIDTH_IN, height_in)
        figure.get_layout_engine().set(rect=(0, 0, 1, 1 - head_in / height_in), w_pad=PAD_IN)

        axes = figure.add_subplot()
        limit = _limit(summary.rows)
        axes.set(xlim=(0, limit), ylim=(sum(heights_in), 0))
        axes.set_xlabel("normalized epoch time (lower is better)")
        axes.set_yticks(middles_in, names)
        axes.tick_params(axis="y", length=0)
        axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=2.5)
        for row, y, reason in zip(summary.rows, middles_in, reasons):
            if reason:
                axes.text(
                    limit * 0.01, y, reason, va="center", color=SOFT_INK, style="italic",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
                )  # fmt: skip
            else:
                _draw_row(axes, row, y, limit, is_baseline=row.variant == summary.baseline)
        if handles := _legend(summary):
            figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))
        _draw_head(figure, head)
        canvas.draw()
        # Laying out again for every file would move things by fractions of a pixel.
        figure.set_layout_engine("none")
    # Figures made without pyplot do not show themselves; IPython looks for this name.
    figure._repr_mimebundle_ = lambda **_: _mimebundle(figure)
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
        figure: from `chart`.
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
    with _style():
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


@contextmanager
def _style() -> Iterator[None]:
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


def _fitter(figure: Figure) -> Callable[..., str]:
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


def _head(summary: Summary, fit: Callable[..., str]) -> list[tuple[str, float, str, str]]:
    """Compose the title area: (text, size, weight, colour) from top to bottom."""
    lines = [(summary.question, 13, "bold", INK)]
    if stand_ins := captions.stand_ins(summary):
        lines.append((" · ".join(stand_ins), 10, "bold", WARNING_INK))
    lines.append((captions.conditions(summary), 9, "normal", SOFT_INK))
    width_in = WIDTH_IN - 2 * PAD_IN
    return [(fit(text, width_in, size, weight), size, weight, c) for text, size, weight, c in lines]


def _draw_head(figure: Figure, head: Sequence[tuple[str, float, str, str]]) -> None:
    width_in, height_in = figure.get_size_inches()
    top_in = height_in - PAD_IN
    for text, size, weight, color in head:
        figure.text(
            PAD_IN / width_in, top_in / height_in, text, size=size, weight=weight, color=color,
            va="top", linespacing=1.25,
        )  # fmt: skip
        top_in -= size * 0.019 * (1 + text.count("\n"))


def _limit(rows: Sequence[Row]) -> float:
    """Choose where the axis ends: behind every dot; a very long whisker is cut off."""
    known = [1.0, *(ratio for row in rows for ratio in row.ratios)]
    known += [row.published for row in rows if row.published is not None]
    highs = [row.ci_high for row in rows if row.ci_high is not None]
    return 1.06 * max(*known, min(max(highs, default=0), 1.5 * max(known)))


def _draw_row(axes: Axes, row: Row, y: float, limit: float, *, is_baseline: bool) -> None:
    look = "baseline" if is_baseline else row.verdict if row.verdict in LOOKS else "other"
    color, hatch = LOOKS[look]
    axes.barh(
        y, row.normalized_time, height=BAR_IN, color=color, hatch=hatch, edgecolor="#707070",
        linewidth=0.7, zorder=2,
    )  # fmt: skip
    # The document's figure, the interval and the dots lie on three lanes, to hide nothing.
    above, below = y - 0.13, y + 0.12
    n = len(row.ratios)
    spread = [below + 0.08 * (i / max(1, n - 1) - 0.5) for i in range(n)]
    axes.plot(row.ratios, spread, zorder=4, **DOT)
    if row.ci_low is not None:
        cut = row.ci_high > limit
        end = limit if cut else row.ci_high
        axes.plot([row.ci_low, end], [y, y], zorder=5, solid_capstyle="butt", **WHISKER)
        axes.plot([row.ci_low], [y], "|", color=INK, markersize=8, zorder=5)
        axes.plot([end], [y], ">" if cut else "|", color=INK, markersize=8, zorder=5, clip_on=False)
    if row.published is not None and not is_baseline:  # the baseline's is 1 by definition
        axes.plot([row.published], [above], zorder=6, **PUBLISHED)
    interval = "" if row.ci_low is None else units.interval(row.ci_low, row.ci_high)
    beside, under = (interval, row.verdict) if row.verdict else ("", interval)
    lift_pt = 7 if under else 0
    _write_value(axes, y, 8, lift_pt, units.normalized(row.normalized_time), weight="bold")
    _write_value(axes, y, 48, lift_pt, beside, size=9)
    _write_value(axes, y, 8, -lift_pt, under, size=9)


def _write_value(
    axes: Axes, y: float, right_pt: float, up_pt: float, text: str, **font: object
) -> None:
    axes.annotate(
        text, (1, y), (right_pt, up_pt), xycoords=axes.get_yaxis_transform(),
        textcoords="offset points", va="center", annotation_clip=False, **font,
    )  # fmt: skip


def _legend(summary: Summary) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    measured = [row for row in summary.rows if row.normalized_time is not None]
    if not measured:
        return []
    color, hatch = LOOKS["baseline"]
    handles = [
        Patch(facecolor=color, hatch=hatch, edgecolor="#707070", label="baseline"),
        Line2D([], [], label="one trial", **DOT),
    ]
    if any(row.ci_low is not None for row in measured):
        handles.append(Line2D([], [], label="95 % interval", marker="|", markersize=8, **WHISKER))
    if any(row.published is not None for row in measured if row.variant != summary.baseline):
        handles.append(Line2D([], [], label="published", **PUBLISHED))
    return handles


def _mimebundle(figure: Figure) -> tuple[dict[str, str], dict[str, object]]:
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
