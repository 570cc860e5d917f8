"""What `benchmarks.loaders` says of its rounds: the table, the targets, the reasons, the chart.

    rounds: arm -> [(s, CPU-s), ...] ─▶ table, parts, targets with reasons ─▶ text, files

Three arms are bounds, each with less of the work than the one before, in bare threads: no loader,
decoding and resizing, decoding.  What they leave out is what it costs, and no loader can be faster
than none at all; so where a target is missed, the ratio of `no loader` says whether a better loader
could meet it.  Main trap: such a bound is of this machine, files and run; it is never a constant.
"""

import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import markdown
from benchmarks.columns import columns
from labkit import figures, units
from labkit.analysis.statistics import ALPHA, ratio_interval
from labkit.captions import origin
from labkit.charts import write_beside
from labkit.render import escape

NO_LOADER = "no loader"
UNREAD = "decoding and resizing"
DECODING = "decoding alone"
BOUNDS = (NO_LOADER, UNREAD, DECODING)
LIBRARIES = ("torch", "cv2", "simplejpeg", "nvidia.dali", "tensorflow", "webdataset")
BAR_IN, NAME_IN, VALUES_IN, AXIS_IN = 0.34, 1.75, 2.0, 0.5  # of the chart

Times = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """All that was measured in one run."""

    taken: Mapping[str, Times]
    """Seconds and CPU-seconds of every arm in every round; the first arm is ours."""
    images: int
    """Of one arm in one round."""
    loader_us: float
    """CPU time that our loader takes for a sample that is there already."""
    targets: Mapping[tuple[str, str], float]
    """Faster one, slower one -> how many times as fast it has to be."""
    conditions: Sequence[str]

    @property
    def ours(self) -> str:
        return next(iter(self.taken))

    def rate(self, name: str) -> float:
        """Median images per second."""
        return self.images / statistics.median(seconds for seconds, _ in self.taken[name])

    def cpu_us(self, name: str) -> float:
        """Mean CPU time of an image; the mean, as the system counts in ticks of 10 ms."""
        return statistics.fmean(cpu_s for _, cpu_s in self.taken[name]) / self.images * 1e6

    def cores_busy(self, name: str) -> float:
        return statistics.median(cpu_s / seconds for seconds, cpu_s in self.taken[name])

    def ratio(self, name: str, other: str) -> tuple[float, float, float]:
        """Say how many times as fast one arm is as another: geometric mean, low, high."""
        logs = [math.log(b / a) for (a, _), (b, _) in zip(self.taken[name], self.taken[other])]
        return math.exp(statistics.fmean(logs)), *ratio_interval(logs, ALPHA)

    def parts_us(self) -> dict[str, float]:
        """Divide an image's CPU time among the parts of the work."""
        none, unread, decoding = map(self.cpu_us, BOUNDS)
        return {
            "decoding": decoding,
            "resizing": unread - decoding,
            "reading": none - unread,
            "the loader itself": self.loader_us,
        }


def spell_ratio(ratio: tuple[float, float, float]) -> str:
    mean, low, high = ratio
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def table(rounds: Rounds) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Give the header and a row for every arm."""
    header = (
        "", "images/s", "CPU-s per 1,000", "cores busy", f"{rounds.ours} is so many times as fast"
    )  # fmt: skip
    return header, [
        (
            name,
            f"{rounds.rate(name):.0f}",
            f"{rounds.cpu_us(name) / 1000:.2f}",
            f"{rounds.cores_busy(name):.2f}",
            "" if name == rounds.ours else spell_ratio(rounds.ratio(rounds.ours, name)),
        )
        for name in rounds.taken
    ]


def describe_parts(rounds: Rounds) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    parts_us = rounds.parts_us()
    whole_us = sum(parts_us.values())
    return ("CPU time of an image", "us", "share"), [
        (name, f"{us:.0f}", units.percent(us / whole_us)) for name, us in parts_us.items()
    ]


def judge(rounds: Rounds) -> tuple[list[str], bool]:
    """Say of every target whether it is met, and why not; and whether all that were measured are.

    Returns:
        A line for each target, and after each missed one the reason; False where one is missed.
    """
    lines, met = [], True
    for (name, other), target in rounds.targets.items():
        if other not in rounds.taken:
            lines.append(f"UNKNOWN {name} / {other}: not measured, target {target:g}")
            continue
        ratio = rounds.ratio(name, other)
        is_met = ratio[0] >= target
        met = met and is_met
        word = "met    " if is_met else "MISSED "
        lines.append(f"{word} {name} / {other}: {spell_ratio(ratio)}, target {target:g}")
        if not is_met:
            lines.append(f"        why: {why_missed(rounds, other, target)}")
    return lines, met


def why_missed(rounds: Rounds, other: str, target: float) -> str:
    """Say whether a loader without any work of its own would meet a target, and what costs what."""
    bound = rounds.ratio(NO_LOADER, other)
    _, low, high = bound
    if high < target:
        verdict = "so no loader can meet it"
    elif low >= target:
        verdict = "so what is missing is the loader's"
    else:
        verdict = "so these rounds do not tell whether one could meet it"
    names = (NO_LOADER, rounds.ours, other)
    cpu = ", ".join(f"{name} {rounds.cpu_us(name) / 1000:.2f}" for name in names)
    if other == DECODING:
        parts_us = rounds.parts_us()
        beside_us = parts_us["resizing"] + parts_us["reading"]
        share = units.percent(beside_us / rounds.cpu_us(NO_LOADER))
        cpu += f"; resizing and reading are {share} of {NO_LOADER}'s"
    return f"{NO_LOADER} at all is {spell_ratio(bound)} times as fast, {verdict}; " + (
        f"CPU-s per 1,000 images: {cpu}"
    )


def lines_of(rounds: Rounds) -> list[str]:
    """Write everything as lines of plain text."""
    return [
        *rounds.conditions,
        *columns(*table(rounds)),
        *columns(*describe_parts(rounds)),
        *judge(rounds)[0],
    ]


def save(rounds: Rounds, folder: Path, provenance: Mapping[str, object], created_utc: str) -> None:
    """Write README.md, rounds.json and chart.png: what a person keeps of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    where = origin({"provenance": provenance, "created_utc": created_utc})
    versions = [
        f"{name} {module.__version__}"
        for name in LIBRARIES
        if hasattr(module := sys.modules.get(name), "__version__")
    ]
    texts = [
        "# Loaders beside each other",
        f"![{escape(describe(rounds))}](chart.png)",
        markdown.bullets(rounds.conditions),
        markdown.table(*table(rounds)),
        markdown.table(*describe_parts(rounds)),
        markdown.bullets(line.strip() for line in judge(rounds)[0]),
        escape(f"{where} · {', '.join(versions)} · Python {provenance['python']}"),
    ]
    (folder / "README.md").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    measured = {
        "created_utc": created_utc, "images": rounds.images, "loader_us": rounds.loader_us,
        "taken": rounds.taken, "versions": versions, "provenance": provenance,
    }  # fmt: skip
    (folder / "rounds.json").write_text(json.dumps(measured, indent=1), encoding="utf-8")
    png = figures.to_bytes(chart(rounds, where), "png", dpi=200)
    (folder / "chart.png").write_bytes(png)


def describe(rounds: Rounds) -> str:
    """Say in words what the chart shows."""
    rates = ", ".join(f"{name} {rounds.rate(name):.0f}" for name in rounds.taken)
    return f"Images per second: {rates}"


def chart(rounds: Rounds, where: str):
    """Draw the images per second of every arm, its rounds as dots."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with figures.style():
        figure = Figure()
        canvas = FigureCanvasAgg(figure)
        figure.set_label(describe(rounds))
        fit = figures.fitter(figure)
        title = "Images per second; hatched: bounds, without a loader"
        head = figures.fit_head(
            [
                (title, 13, "bold", figures.INK),
                ("\n".join(rounds.conditions), 9, "normal", figures.SOFT_INK),
            ],
            fit,
        )
        foot = figures.fit_foot(where, fit)
        bottom_in = figures.foot_height_in(foot) + AXIS_IN
        rows_in = BAR_IN * len(rounds.taken)
        height_in = bottom_in + rows_in + figures.PAD_IN + figures.head_height_in(head)
        figure.set_size_inches(figures.WIDTH_IN, height_in)
        width_in = figures.WIDTH_IN - NAME_IN - VALUES_IN
        axes = figure.add_axes(
            (NAME_IN / figures.WIDTH_IN, bottom_in / height_in,
             width_in / figures.WIDTH_IN, rows_in / height_in)
        )  # fmt: skip
        for y, (name, times) in enumerate(rounds.taken.items()):
            color, hatch = ("#dcdcdc", "////") if name in BOUNDS else ("#6baed6", "")
            axes.barh(y, rounds.rate(name), 0.7, color=color, hatch=hatch, **figures.EDGE)
            rates = [rounds.images / seconds for seconds, _ in times]
            axes.plot(rates, [y] * len(rates), **figures.DOT)
            write_beside(axes, y, (8, 0), f"{rounds.rate(name):.0f}", weight="bold")
            beside = "" if name == rounds.ours else spell_ratio(rounds.ratio(rounds.ours, name))
            write_beside(axes, y, (44, 0), beside, size=9)
        axes.set_yticks(range(len(rounds.taken)), list(rounds.taken))
        axes.set_ylim(len(rounds.taken) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"images/s; right: median, {rounds.ours} is so many times as fast")
        figures.draw_head(figure, head)
        figures.draw_foot(figure, foot)
        canvas.draw()
    return figure
