"""A timeline as a picture: device, memory, cores, disk and host above one another, one time axis.

    GPU-Util, or when the emulated device computed      ▁▇▇▁▁▇▇▁▁
    GPU memory                                          ▁▄▄▄▄▄▄▄▄
    CPU per core, a line of greys for each              ░▓▓░░▓▓░░
    read from disks                                     ▇▇▁▁▁▁▁▁▁
    host: a lane for each thing it marked               wait ▨▨ ▨▨
                                                        0 … seconds

What GPU-Util does not tell stands under every chart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import units
from labkit.diagnosis.timeline import Band, Timeline
from labkit.report import captions
from labkit.report.bars import (
    INK,
    PAD_IN,
    SMALL_LINE_IN,
    SOFT_INK,
    WARNING_INK,
    WIDTH_IN,
    fit_head,
    page,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "What device, cores, disk and host did"
GPU_UTIL = (
    "GPU-Util is the share of NVML's sampling period (1/6 to 1 s) in which some kernel ran. It "
    "does not say how much of the GPU worked: one tiny kernel that spins on one multiprocessor "
    "reads 100 %. Nor does it show waits that are shorter than the period."
)
EMULATED = (
    "There is no GPU-Util here: the bands are when the emulated device's model computed. A real "
    "GPU's GPU-Util would be their average over 1/6 to 1 s, and would not show shorter waits."
)
LEFT_IN, AXIS_IN, GAP_IN, CURVE_IN, LANE_IN = 0.62, 0.5, 0.1, 0.62, 0.2
TICK_IN = 0.09  # what the number at the top of an axis needs under a title
CORE_IN, CORES_IN = 0.16, (0.34, 1.3)  # one core's line; all of them at least and at most
AREA = {"color": "#c6dbef", "linewidth": 0}
LINE = {"color": "#08519c", "linewidth": 1.2}
TINT = "#fbe3cf"  # where nothing was counted; a white core was idle
# Fill and hatch of a lane; the names stand beside them, so that they are told apart by place too.
LOOKS = (("#fdd0a2", "////"), ("#6baed6", ""), ("#c7c7c7", "xxxx"), ("#e5e5e5", "...."))
DEVICE = ("#6baed6", "")


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One row: what stands above it, how high it is, and what draws it."""

    title: str
    height_in: float = 0.0
    draw: Callable[[Axes], None] | None = None
    """None: there is nothing to draw, and the title says why."""


def timeline_chart(timeline: Timeline, title: str = TITLE) -> Figure:
    """Draw what was seen, row above row along one time axis.

    Args:
        timeline: what `Recorder.recorded` gave.
        title: above all.

    Returns:
        A figure that shows itself in a notebook; its label says all rows in words.
    """
    panels = [panel for panel in _panels(timeline) if panel is not None]
    panels.sort(key=lambda panel: panel.draw is not None)  # what is missing is said first
    foot = _foot(timeline)
    alt = captions.join_sentences([title, *(panel.title for panel in panels), foot])
    with page(alt) as drawn:
        figure, fit = drawn.figure, drawn.fit
        lines = [(title, 13, "bold", INK)]
        if timeline.device is not None:
            lines.append(("Emulated accelerator", 10, "bold", WARNING_INK))
        titles = [fit(panel.title, WIDTH_IN - 2 * PAD_IN, 9) for panel in panels]
        above_in = [SMALL_LINE_IN * (1 + said.count("\n")) + TICK_IN for said in titles]
        left = (PAD_IN + _left_in(figure, timeline)) / WIDTH_IN
        rows_in = sum(above_in) + sum(panel.height_in + GAP_IN for panel in panels)
        content_in = AXIS_IN + rows_in + PAD_IN / 2
        bottom_in, height_in = drawn.frame(fit_head(lines, fit), foot, content_in)
        top_in = bottom_in + AXIS_IN + rows_in
        shown = []
        for panel, said, above in zip(panels, titles, above_in):
            figure.text(
                PAD_IN / WIDTH_IN, top_in / height_in, said, size=9, va="top",
                linespacing=1.2, color=INK if panel.draw else SOFT_INK,
                style="normal" if panel.draw else "italic",
            )  # fmt: skip
            top_in -= above + panel.height_in
            if panel.draw:
                axes = figure.add_axes((
                    left, top_in / height_in, 1 - left - 2 * PAD_IN / WIDTH_IN,
                    panel.height_in / height_in,
                ))  # fmt: skip
                panel.draw(axes)
                axes.set_xlim(0, timeline.duration_s or 1.0)
                axes.tick_params(labelbottom=False)
                shown.append(axes)
            top_in -= GAP_IN
        if shown:
            shown[-1].tick_params(labelbottom=True)
            shown[-1].set_xlabel("seconds")
    return figure


def _left_in(figure: Figure, timeline: Timeline) -> float:
    """Say how much room the numbers of an axis, or the longest name of a lane, need."""
    from matplotlib.font_manager import FontProperties

    renderer, font = figure.canvas.get_renderer(), FontProperties(size=10)
    widths_px = [
        renderer.get_text_width_height_descent(name, font, False)[0] for name in timeline.host
    ]
    return max(LEFT_IN, max(widths_px, default=0.0) / figure.dpi + TICK_IN)


def _panels(timeline: Timeline) -> list[_Panel | None]:
    return [
        _device(timeline),
        _memory(timeline),
        _cores(timeline),
        _disk(timeline),
        _host(timeline),
    ]


def _device(timeline: Timeline) -> _Panel:
    if timeline.device is not None:
        share = _share(timeline.device, timeline.duration_s)
        return _Panel(
            title=f"device computing, {units.percent(share)} of the time: {timeline.device_label}",
            height_in=LANE_IN,
            draw=lambda axes: _draw_lanes(axes, {"busy": timeline.device}, (DEVICE,)),
        )
    if timeline.gpu_util is None:
        why = timeline.missing.get("gpu_util", "not measured")
        return _Panel(title=f"device: no GPU-Util to show, nor GPU memory: {why}")
    known = [share for share in timeline.gpu_util if share is not None]
    return _Panel(
        title=f"GPU-Util as NVML reports it, {units.percent(sum(known) / len(known))} on average",
        height_in=CURVE_IN,
        draw=lambda axes: _draw_curve(axes, timeline, timeline.gpu_util, 100, "%", top=1.0),
    )


def _memory(timeline: Timeline) -> _Panel | None:
    values = timeline.gpu_memory_bytes
    if values is None:  # which the device's row has said
        return None
    most = max(value for value in values if value is not None)
    return _Panel(
        title=f"GPU memory in use by all programs, at most {units.count_bytes(most)}",
        height_in=CURVE_IN,
        draw=lambda axes: _draw_curve(axes, timeline, values, 1e-9, "GB"),
    )


def _cores(timeline: Timeline) -> _Panel:
    if timeline.cores is None:
        return _Panel(title=f"CPU per core: {timeline.missing.get('cores', 'not measured')}")
    known = [shares for shares in timeline.cores if shares is not None]
    n = len(known[0])
    busy = sum(map(sum, known)) / len(known)
    tinted = "" if len(known) == len(timeline.cores) else "; tinted: not counted"
    low, high = CORES_IN
    return _Panel(
        title=f"CPU per core, all programs (white idle, black busy{tinted}): on average "
        f"{busy:.1f} of {units.count(n, 'core')} busy",
        height_in=min(max(CORE_IN * n, low), high),
        draw=lambda axes: _draw_cores(axes, timeline, n),
    )


def _disk(timeline: Timeline) -> _Panel:
    values = timeline.read_bytes_per_s
    if values is None:
        why = timeline.missing.get("read_bytes_per_s", "not measured")
        return _Panel(title=f"read from disks: {why}")
    most = max(value for value in values if value is not None)
    said = f"at most {units.count_bytes(most)}/s" if most else "nothing"
    return _Panel(
        title=f"read from disks by this process and its workers, page cache left out: {said}",
        height_in=CURVE_IN,
        draw=lambda axes: _draw_curve(axes, timeline, values, 1e-6, "MB/s"),
    )


def _host(timeline: Timeline) -> _Panel:
    if not timeline.host:
        return _Panel(title="host: nothing was marked")
    shares = {
        name: units.percent(_share(bands, timeline.duration_s))
        for name, bands in timeline.host.items()
    }
    said = ", ".join(f"{name} {share}" for name, share in shares.items())
    return _Panel(
        title=f"host, of the time: {said}",
        height_in=LANE_IN * len(timeline.host),
        draw=lambda axes: _draw_lanes(axes, timeline.host, LOOKS),
    )


def _draw_curve(
    axes: Axes,
    timeline: Timeline,
    values: Sequence[float | None],
    scale: float,
    unit: str,
    top: float | None = None,
) -> None:
    # A value holds from the look before to its own.
    edges_s = [0.0, *timeline.at_s]
    ys = [float("nan") if value is None else scale * value for value in values]
    axes.stairs(ys, edges_s, fill=True, **AREA)
    axes.stairs(ys, edges_s, baseline=None, **LINE)
    most = max((y for y in ys if y == y), default=0.0)
    axes.set_ylim(0, scale * top if top else 1.05 * most or 1.0)
    axes.set_ylabel(unit)
    axes.locator_params(axis="y", nbins=2)


def _draw_cores(axes: Axes, timeline: Timeline, n: int) -> None:
    nothing = [float("nan")] * n
    by_look = [nothing if shares is None else shares for shares in timeline.cores]
    axes.set_facecolor(TINT)
    axes.grid(visible=False)
    # As a picture: an .svg of 100,000 squares would be of no use.
    axes.pcolormesh(
        [0.0, *timeline.at_s], range(n + 1), list(zip(*by_look)), cmap="Greys", vmin=0, vmax=1,
        rasterized=True,
    )  # fmt: skip
    axes.set_ylim(n, 0)
    axes.set_yticks([0.5] if n == 1 else [0.5, n - 0.5], ["1"] if n == 1 else ["1", str(n)])
    axes.set_ylabel("core")


def _draw_lanes(axes: Axes, lanes: dict, looks: Sequence[tuple[str, str]]) -> None:
    axes.set_ylim(len(lanes), 0)
    axes.set_yticks([i + 0.5 for i in range(len(lanes))], list(lanes))
    axes.tick_params(axis="y", length=0)
    for i, bands in enumerate(lanes.values()):
        color, hatch = looks[i % len(looks)]
        # No edges: of bands thinner than a pixel nothing else would be seen.
        axes.broken_barh(
            [(start_s, end_s - start_s) for start_s, end_s in bands], (i + 0.1, 0.8),
            facecolor=color, hatch=hatch, edgecolor=SOFT_INK, linewidth=0,
        )  # fmt: skip


def _share(bands: Sequence[Band], duration_s: float) -> float | None:
    if not duration_s:
        return None
    return sum(min(end_s, duration_s) - start_s for start_s, end_s in bands) / duration_s


def _foot(timeline: Timeline) -> str:
    if timeline.device is not None and timeline.gpu_util is None:
        return EMULATED
    return GPU_UTIL
