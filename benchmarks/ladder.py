"""How far the loading of PyTorch's ImageNet example gets, step by step, beside each step's bound.

    python -m benchmarks.ladder [--data FOLDER] [--input-px 224] [--rounds 8] [--save FOLDER]

The steps are those of the experiment `textbook`: the same images, crops and flips.  Every round
times each step twice: its sample function alone (in as many processes or threads as its loader has
workers, which hand over nothing), and its loader, end to end.  Files are in memory and nothing is
trained.  Packs are made once, before; what that costs is compared with what they save.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import torch

import labkit as lab
from benchmarks import frame
from benchmarks.loaders import drain, run_threads
from labkit import units
from labkit.machine import hardware
from labkit.parts.packing.manifest import read_manifest
from labkit.pipeline import Source, open_loader
from labkit.report import figures
from labkit.resolve import complete_here, resolve
from labkit.runs.check_equal_work import measure_psnr
from labkit.runs.packs import ensure_pack
from labkit.settings import Settings

IMAGES = 500
BATCH_SIZE = 64
ARM_S = 1.0  # about how long an arm takes in a round
TEXTBOOK, IN_THREADS = "textbook", "with threads"
# Step -> at least how many times as fast as the textbook's loading.
LEAST_SPEEDUPS = {IN_THREADS: 2.8, "stored small": 5.0, "stored YUV420": 20.0}
LEAST_SHARE = 0.85  # of what its sample function alone allows


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of the ladder, opened."""

    settings: Settings
    source: Source
    keys: list[tuple[int, int]]
    """(epoch, image) of each sample of an arm."""
    loader: Any

    def load(self) -> float:
        """Load all samples end to end; return seconds per image."""
        return frame.timed(partial(drain, self.loader)) / len(self.keys)

    def make_samples(self) -> float:
        """Make all samples and hand over none; return seconds per image."""

        def make(i: int) -> None:
            self.source[self.keys[i]]

        workers, count = self.settings.num_workers or 1, len(self.keys)
        if self.settings.loader == "threads":
            return frame.timed(partial(run_threads, make, count, workers)) / count
        return time_processes(make, count, workers) / count


def time_processes(work: Callable[[int], None], count: int, processes: int) -> float:
    """Call work(0) to work(count - 1) in forked processes; return seconds without their start."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(processes + 1)

    def run(first: int) -> None:
        together.wait()
        for number in range(first, count, processes):
            work(number)
        together.wait()

    started = [context.Process(target=run, args=(first,)) for first in range(processes)]
    for process in started:
        process.start()
    together.wait()
    start_s = time.perf_counter()
    together.wait()
    took_s = time.perf_counter() - start_s
    for process in started:
        process.join()
    return took_s


def open_step(settings: Settings) -> Step:
    """Open a step with as many samples as take about ARM_S."""
    parts = resolve(settings)
    source, _ = open_loader(parts)
    tried = list(source.order)[:BATCH_SIZE]
    for key in tried:  # opens libraries and files
        source[key]
    sample_s = frame.timed(lambda: [source[key] for key in tried]) / len(tried)
    batches = max(4, round(ARM_S * settings.num_workers / sample_s / BATCH_SIZE))
    keys: list[tuple[int, int]] = []
    while len(keys) < batches * BATCH_SIZE:
        keys += source.order
        source.order.epoch += 1
    keys = keys[: batches * BATCH_SIZE]
    ordered: Any = keys
    source.order = ordered  # several epochs as one, so that their ends weigh little
    return Step(settings=settings, source=source, keys=keys, loader=parts.loader(source, settings))


def draw(
    images_per_s: dict[str, float],
    alone: dict[str, float],
    speedups: dict[str, float],
    title: str,
    conditions: str,
) -> figures.Figure:
    """Draw the images per second of each step, and what its sample function alone allows.

    Args:
        images_per_s: step -> loaded end to end.
        alone: step -> made by its sample function alone.
        speedups: step -> how many times as fast as the first one it loads.
        title: the answer.
        conditions: a line below the title.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    color, names = "#08519c", list(images_per_s)
    longest = max(*images_per_s.values(), *alone.values())
    bound = {"marker": "|", "markersize": 15, "markeredgewidth": 2, "linestyle": "none"}
    with figures.page() as figure:
        axes = figure.subplots()
        axes.barh(range(len(names)), list(images_per_s.values()), height=0.62, color=color)
        axes.plot(list(alone.values()), range(len(names)), color=figures.INK, **bound)
        for y, name in enumerate(names):
            text = f"{images_per_s[name]:,.0f}  ·  {speedups[name]:.1f}×"
            x = max(images_per_s[name], alone[name])
            axes.annotate(text, (x, y), xytext=(8, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(names)), names)
        axes.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, 1.25 * longest))
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("images loaded per second, without training")
        handles = [
            Patch(color=color, label="loaded, end to end"),
            Line2D([], [], color=figures.INK, **bound, label="its sample function alone"),
        ]
        lines = [
            figures.Line(title, 13, "bold"),
            figures.Line(conditions, color=figures.SOFT_INK),
        ]
        shown = [
            f"{name}: {images_per_s[name]:.0f} images/s, {speedups[name]:.1f} times the "
            f"textbook's; its sample function alone {alone[name]:.0f}"
            for name in names
        ]
        figures.frame(figure, lines, "", 0.42 * len(names) + 0.6, handles, shown=shown)
    return figure


def epochs_until_it_pays(cost: dict | None, image_s: float, other_image_s: float) -> str:
    """Return the epoch from which a pack pays beside a step that needs none."""
    if cost is None:
        return ""
    saved_s = cost["images"] * (other_image_s - image_s)
    return units.count(math.ceil(cost["pack_s"] / saved_s), "epoch") if saved_s > 0 else "never"


def main() -> int:
    parser = frame.parser(__doc__, data=True, rounds=8)
    parser.add_argument("--input-px", type=int, default=224)
    options = parser.parse_args()
    report = frame.Report("The loading of PyTorch's ImageNet example, step by step", options)
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    cores = hardware.cores()
    with frame.photographs(options.data, IMAGES) as (data, _):
        experiment = lab.experiment(
            TEXTBOOK, data=str(data), input_px=options.input_px, batch_size=BATCH_SIZE,
            num_workers=cores, device="cpu", pin_memory=False, persistent_workers=True,
        )  # fmt: skip
        settings = {
            label: complete_here(replace(step.settings, step="nothing"))
            for label, step in experiment.measured(in_full=False).items()
        }
        costs = {label: ensure_pack(each) for label, each in settings.items()}
        psnr_db = measure_psnr(settings, TEXTBOOK)
        steps = {label: open_step(each) for label, each in settings.items()}
        arms = {
            (label, arm): getattr(step, arm)
            for label, step in steps.items()
            for arm in ("make_samples", "load")
        }
        taken_s = frame.in_turn(arms, options.rounds)
        source_bytes = int(steps[TEXTBOOK].source.reader.image_bytes.sum())
        images = len(steps[TEXTBOOK].source.reader)
        kind = read_manifest(steps[TEXTBOOK].source.reader.root).get("kind", "own images")
    loaded_s = {label: taken_s[label, "load"] for label in steps}
    alone_s = {label: taken_s[label, "make_samples"] for label in steps}
    loaded, alone = (
        {label: 1 / statistics.median(times_s) for label, times_s in each.items()}
        for each in (loaded_s, alone_s)
    )
    speedups = {label: frame.ratio(loaded_s[TEXTBOOK], loaded_s[label]) for label in steps}
    shares = {label: frame.ratio(alone_s[label], loaded_s[label]) for label in steps}
    report.line(
        f"{units.count(images, 'image')}, {units.count_bytes(source_bytes / images)} each; crops "
        f"to {options.input_px} px, batches of {BATCH_SIZE}, {units.count(cores, 'worker')}, "
        f"{options.rounds} rounds"
    )
    rows = []
    for label in steps:
        cost: Any = costs[label]
        rows.append(
            (
                label,
                f"{alone[label]:,.0f}",
                f"{loaded[label]:,.0f}",
                str(speedups[label]),
                str(shares[label]),
                f"{psnr_db[label]:.1f} dB" if label in psnr_db else "",
                units.count_bytes(cost["bytes"] if cost else source_bytes),
                units.seconds(cost["pack_s"]) if cost else "",
                epochs_until_it_pays(cost, 1 / loaded[label], 1 / loaded[IN_THREADS]),
            )
        )
    report.table(
        (
            "step", "sample function alone, images/s", "end to end, images/s",
            f"÷ {TEXTBOOK}", "÷ alone", f"PSNR to {TEXTBOOK}", "stored", "made in",
            f"pays beside {IN_THREADS} after",
        ),
        rows,
    )  # fmt: skip
    for label, least in LEAST_SPEEDUPS.items():
        bound = alone[label] / loaded[TEXTBOOK]
        report.limit(
            speedups[label].mean >= least,
            f"{label} / {TEXTBOOK}: {speedups[label]}, at least {least:g}; its sample function "
            f"alone allows {bound:.1f}",
        )
        report.limit(
            shares[label].mean >= LEAST_SHARE,
            f"{label}: {shares[label]} of what its sample function alone allows, at least "
            f"{LEAST_SHARE:g}",
        )
    if options.save:
        last = list(steps)[-1]
        stored = [label for label in steps if settings[label].storage_format != "jpeg"]
        figure = draw(
            loaded,
            alone,
            {label: ratio.mean for label, ratio in speedups.items()},
            f"{last}: {speedups[last].mean:.1f} times as fast as the {TEXTBOOK}'s loading",
            f"{units.count(cores, 'core')}, no GPU; random crops to {options.input_px} px of "
            f"{units.count(images, 'image')} in memory ({kind}) · {', '.join(stored)}: made "
            "beforehand, other pixels",
        )
        options.save.mkdir(parents=True, exist_ok=True)
        figures.write(figure, Path(options.save) / "chart.png")
    return report.finish(
        {
            "seconds_per_image": {" · ".join(arm): times_s for arm, times_s in taken_s.items()},
            "psnr_db": psnr_db,
            "costs": {
                label: {name: value for name, value in cost.items() if name != "folder"}
                for label, cost in costs.items()
                if cost is not None
            },
        }
    )


if __name__ == "__main__":
    sys.exit(main())
