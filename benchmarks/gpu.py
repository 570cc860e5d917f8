"""What only a real GPU shows: tests, runs, diagnoses and a roofline, in stages that run alone.

    python -m benchmarks.gpu [--stage NAME …] [--out FOLDER] [--minutes 8] [--device cpu]

    tests      the tests that need CUDA
    main       the documents' experiments in quick mode, two of them in full mode
    depth      copies, precision, loss, callbacks, DALI, the largest batch
    diagnosis  trainings with a planted bottleneck
    roofline   training speed over the speed of the GPU, simulated and real
    emulator   real training at several speeds, beside simulated GPUs that are set to them
    host       what launching, waiting and copying cost the host, and a step's part per batch

A stage leaves a report, a log and its runs in a folder of this machine and GPU, and ends when its
time is over: the same command then goes on with what is missing.  The exit status is 0 where all of
it is done and as it should be.  labkit is not installed; what lacks a library is skipped with its
name.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn

import labkit as lab
from benchmarks import frame, gpu_host
from labkit import units
from labkit.contracts import Cancelled, Skip
from labkit.experiments.request import Request
from labkit.machine import gpu, hardware
from labkit.machine.clock import Clock, SystemClock
from labkit.parts.devices import DEVICES, DevicePart, GpuSpeeds, SimulatedGpu
from labkit.resolve import complete_here
from labkit.runs.calibration import gpu_rate
from labkit.settings import BATCH_SIZE

ROOT = Path(__file__).parents[1]
BLOCKS = 6  # the least that full mode takes
BUDGET_S = 50.0  # of a diagnosis
# On a CPU, where nothing is to be measured; the simulated GPU runs what copies beside computing.
SIMULATED = {"device": "simulated", "gpu_images_per_s": 2000.0}
SMALL = {"images": 12, "batch_size": 2, "input_px": 32, "epochs": 1}
SMALL_BUDGET_S = 5.0
REPEATED = (1, 2, 4)  # times that a real GPU trains with a batch: it can only be made slower
COPIED_BYTES = 64 << 20
# Variant -> its experiment: how a real and a simulated GPU are given batches.
LOADING = {
    "original": "preprocessing", "simplified": "preprocessing", "data_prefetcher": "prefetching",
}  # fmt: skip
MAX_ERROR = 0.10  # of the simulated GPU's time of an epoch
GOES_ON = "its time is over; the same command goes on with it"
Row = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where and on what a stage works, and until when."""

    runs: Path
    log: Path
    data: str
    device: str
    ends_s: float
    """By the monotonic clock."""
    cancel: threading.Event
    """Set when the time is over."""
    limit: Callable[[bool, str], None]
    """Adds a line to the report: what should be so, and whether it is."""

    @property
    def is_small(self) -> bool:
        return self.device == "cpu"

    def note(self, text: str) -> None:
        """Add a text to the log."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    def check_time(self, needed_s: float = 0.0) -> None:
        """Raise Cancelled where less time is left than what comes next takes."""
        if time.monotonic() + needed_s >= self.ends_s:
            raise Cancelled


# --- what the stages consist of ---------------------------------------------------------------


def run_tests(site: Site) -> Iterator[Row]:
    """Run the tests that need CUDA; on a CPU they are found and skipped."""
    files = [
        str(path) for path in ROOT.glob("tests/**/test_*.py") if "needs_cuda" in path.read_text()
    ]
    with site.log.open("a", encoding="utf-8") as log:  # which holds them where their time is over
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "needs_cuda", "-p", "no:cacheprovider", *files],
            cwd=ROOT,
            # Where there is a GPU, a test that is skipped for want of CUDA fails.
            env=os.environ | ({} if site.is_small else {"FAIL_ON_SKIPS": "1"}),
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=max(site.ends_s - time.monotonic(), 1),
        )
    *_, last = site.log.read_text(encoding="utf-8").strip().splitlines()
    if done.returncode:
        raise RuntimeError(last)
    yield "tests", last, ""


def run_of(
    site: Site,
    experiment: str | lab.Experiment,
    mode: str = "quick",
    on: Mapping[str, object] | None = None,
    **chosen: object,
) -> lab.Run:
    """Run an experiment, or go on with a run of it.

    Args:
        site: where.
        experiment: its name, or one made here.
        mode: quick or full.
        on: the settings of the device; None: the one at hand.
        **chosen: what else is asked.
    """
    if on is None:
        on = SIMULATED if site.is_small else {"device": site.device}
    settings = {"data": site.data, **on}
    asked = Request(experiment=experiment, mode=mode, settings=settings, **chosen)
    if site.is_small:
        mode, labels = "quick", asked.variants or tuple(asked.whole().measured(in_full=False))
        ends = (labels[0], labels[-1])
        asked = replace(asked, mode=mode, settings=settings | SMALL, variants=ends)
    built = asked.build()
    title = f"{built.name}, {mode}"
    earlier = [
        run
        for run in map(lab.find_run, lab.list_runs(site.runs, built.name))
        if run.info.mode == mode and run.info.status != "failed"
    ]
    run = earlier[-1] if earlier else None
    if run is not None and run.info.status != "finished":
        try:
            run = lab.resume(run.folder, cancel=site.cancel)
        except ValueError as changed:  # the data, or labkit
            site.note(str(changed))
            run = None
    if run is None:
        blocks = BLOCKS if mode == "full" else 1 if site.is_small else None
        run = lab.run(built, mode, results=site.runs, blocks=blocks, cancel=site.cancel)
    if run.info.status != "finished":
        site.limit(False, f"{title}: {GOES_ON}")
    failed = [row.variant for row in run.summary.rows if row.status == "failed"]
    site.limit(not failed, f"{title}: variants that failed: {', '.join(failed) or 'none'}")
    return run


def rows_of(run: lab.Run) -> Iterator[Row]:
    """Yield a row per variant of a run."""
    title = f"{run.info.experiment}, {run.info.mode}"
    for row in run.summary.rows:
        normalized_time = units.normalized(row.normalized_time, row.ci_low, row.ci_high)
        remark = (
            row.reason
            or row.verdict
            or ", ".join(str(each) for each in row.hardware if each.kind == "device")
        )
        if row.steady_images_per_s:
            remark += f", {units.rate(row.steady_images_per_s)}"
        yield f"{title}: {row.variant}", row.status if row.reason else normalized_time, remark
    for name in ("device_images_per_s", "real_gpu_images_per_s"):
        if rate := getattr(run.summary.calibration, name):
            yield f"{title}: {name}", units.rate(rate), ""


def run(site: Site, experiment: str | lab.Experiment, **asked: object) -> Iterator[Row]:
    """Run an experiment as `run_of`; a row per variant."""
    yield from rows_of(run_of(site, experiment, **asked))


def side_stream(site: Site) -> Iterator[Row]:
    """Copy bytes on a side stream, and normalize them there too or on the step's stream."""
    whole = lab.experiment("prefetching_in_depth")
    labels = ("original, uint8", "data_prefetcher, uint8", "data_prefetcher, uint8, as printed")
    variants = {label: whole.settings[label] for label in labels}
    changes = {"variants": variants, "baseline": labels[0]}
    yield from run(site, replace(whole, name="side_stream", **changes))


def with_copies(speeds: GpuSpeeds, profile: GpuSpeeds, clock: Clock) -> SimulatedGpu:
    """Make a simulated GPU that copies as fast as the real one."""
    copies = ("pinned_bytes_per_s", "pageable_bytes_per_s")
    return SimulatedGpu(replace(profile, **{name: getattr(speeds, name) for name in copies}), clock)


def emulate(site: Site) -> Iterator[Row]:
    """Train at the speed of the real device, a half and a quarter; and on simulated ones."""
    speeds, waits = copy_speeds(site)
    site.limit(waits, "a copy from pageable memory waits for the stream, as the simulated one does")
    for kind in ("pageable", "pinned"):
        bytes_per_s = getattr(speeds, f"{kind}_bytes_per_s")
        yield f"copies from {kind} memory", f"{units.count_bytes(bytes_per_s)}/s", ""
    torch.set_num_threads(1)  # as in trials
    repeated = REPEATED[:1] if site.is_small else REPEATED
    known = {
        name: replace(
            Request(experiment=experiment).whole().settings[name],
            data=site.data,
            storage="here",
            epochs=1,
        )
        for name, experiment in LOADING.items()
    }
    size = SMALL if site.is_small else {"images": BATCH_SIZE}
    real, simulated = {}, {}
    with patch.dict(
        DEVICES, {"simulated": DevicePart(partial(with_copies, speeds), is_simulated=True)}
    ):
        on_real = {"device": site.device}
        own_rate = gpu_rate(complete_here(replace(known["original"], **on_real, **size)))
        for times in repeated:
            step, rate = f"trained {units.count(times, 'time')}", own_rate / times
            yield f"{step}: this device with the model alone", units.rate(rate), ""
            other = {"device": "simulated", "gpu_images_per_s": rate}
            if site.is_small:  # a CPU is so slow that the simulated one would take long
                other["gpu_images_per_s"] = SIMULATED["gpu_images_per_s"]
            for name, settings in known.items():
                real[f"{name}, {step}"] = lab.Variant(
                    settings=replace(settings, **on_real), task={"gpu_slowdown": times}
                )
                simulated[f"{name}, {step}, simulated"] = replace(settings, **other)
        whole = lab.Experiment(
            "real_steps",
            question="How far from a real GPU is a simulated one that is set to its speed?",
            # The first and the last belong together: on a CPU there are no others.
            variants=real | dict(reversed(simulated.items())),
            baseline=next(iter(real)),
        )
        run = run_of(site, whole, on={})
    yield from rows_of(run)
    times = {row.variant: row.normalized_time for row in run.summary.rows}
    errors = [
        times[f"{name}, simulated"] / times[name] - 1
        for name in real
        if times.get(name) and times.get(f"{name}, simulated")
    ]
    if not errors:  # its time was over
        return
    worst = max(errors, key=abs)
    yield "worst error of a simulated epoch", f"{worst:+.1%}", units.count(len(errors), "pair")
    if not site.is_small:
        within = f"within {units.limit(MAX_ERROR)}"
        site.limit(
            abs(worst) <= MAX_ERROR, f"a simulated epoch takes as long as a real one {within}"
        )


def measure_host(site: Site) -> Iterator[Row]:
    """Measure what waiting and copying take of a core."""
    profile = GpuSpeeds(name="", gpu_images_per_s=1.0)
    device = DEVICES["simulated" if site.is_small else "cuda"](profile, SystemClock())
    work = partial(device.run, 0.05) if site.is_small else gpu_host.multiply
    yield from gpu_host.measure_waits(device, work)


def measure_training(site: Site, trained: str) -> Iterator[Row]:
    """Measure the steps of what trains, with batches of several sizes."""
    on = {**SIMULATED, "input_px": SMALL["input_px"]} if site.is_small else {"device": site.device}
    sizes = gpu_host.SIZES[:2] if site.is_small else gpu_host.SIZES
    pipeline = gpu_host.open_training(trained, site.data, on, max(sizes))
    yield from gpu_host.measure_steps(pipeline, trained, sizes, [BATCH_SIZE])


def copy_speeds(site: Site) -> tuple[GpuSpeeds, bool]:
    """Measure copies to the device.

    Returns:
        Their speeds, and whether one from pageable memory waits for what its stream computes.
    """
    clock = SystemClock()
    simulated = GpuSpeeds(name="", gpu_images_per_s=1.0)
    device = DEVICES["simulated" if site.is_small else "cuda"](simulated, clock)
    pageable = {"image": torch.empty(COPIED_BYTES, dtype=torch.uint8)}
    pinned = dict(pageable) if site.is_small else {"image": pageable["image"].pin_memory()}
    compute = partial(device.run, 0.05) if site.is_small else gpu_host.multiply

    def copy(batch: dict) -> None:
        device.put(batch, pinned=batch is not pageable, side_stream=False)

    def took_s(*works: Callable[[], object]) -> tuple[float, float]:
        """Return the seconds of the host, and with what the device does."""
        device.synchronize()
        start_s = clock.now()
        for work in works:
            work()
        host_s = clock.now() - start_s
        device.synchronize()
        return host_s, clock.now() - start_s

    copies = [partial(copy, batch) for batch in (pageable, pinned)]
    rates = [COPIED_BYTES / min(took_s(each)[1] for _ in range(5)) for each in copies]
    computing_s = min(took_s(compute)[1] for _ in range(3))
    host_s, all_s = took_s(compute, copies[0])
    speeds = GpuSpeeds(
        name="as this GPU",
        gpu_images_per_s=None,
        pageable_bytes_per_s=rates[0],
        pinned_bytes_per_s=rates[1],
    )
    left_s = all_s - host_s  # what the device still has to do when the copy returns
    return speeds, left_s < computing_s / 2


def largest_batch(site: Site) -> Iterator[Row]:
    largest = lab.largest_batch(lab.Settings(data=site.data), cancel=site.cancel)
    site.note(repr(largest))
    yield "largest batch", units.count(largest.settings.batch_size, "image"), largest.caption()


def diagnose(site: Site, name: str) -> Iterator[Row]:
    """Diagnose a training with a planted bottleneck, unless that was done."""
    planted, make = PLANTED[name]
    file = site.runs / f"{name}.txt"
    if not file.exists():
        budget_s = SMALL_BUDGET_S if site.is_small else BUDGET_S
        site.check_time(budget_s)
        loader, step = make(site)
        diagnosis = lab.diagnose(loader, step, budget_s=budget_s)
        if diagnosis.broken:
            raise RuntimeError(diagnosis.broken)
        remedies = ", ".join(remedy.name for remedy in diagnosis.remedies) or "nothing"
        lines = [diagnosis.bottleneck, remedies, repr(diagnosis), diagnosis.details()]
        file.write_text("\n".join(lines), encoding="utf-8")
    bottleneck, remedies, *_ = file.read_text(encoding="utf-8").splitlines()
    if not site.is_small:
        site.limit(bottleneck == planted, f"{name}: {planted} is found, got {bottleneck}")
    yield f"{name}: {planted} is planted", bottleneck, remedies


# --- planted bottlenecks ----------------------------------------------------------------------

STEPS = 32  # of an epoch


class Pictures(torch.utils.data.Dataset):
    """Random pictures, (3, size_px, size_px) float32, and labels; `work` is done for each."""

    def __init__(self, count: int, size_px: int, work: Callable) -> None:
        self._pictures, self._work, self._count = torch.rand(64, 3, size_px, size_px), work, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self._work(self._pictures[i % len(self._pictures)]), i % 10


def repeat_a_batch(site: Site, *, pinned: bool) -> Iterable:
    """Make a loader that takes no time."""
    batch = next(iter(load(site)))
    if pinned and not site.is_small:
        batch = [tensor.pin_memory() for tensor in batch]
    return torch.utils.data.DataLoader([batch] * STEPS, batch_size=None)


def load(site: Site, work: Callable = lambda picture: picture, **options: int) -> Iterable:
    size_px, batch_size = (32, 4) if site.is_small else (224, 64)
    pictures = Pictures(STEPS * batch_size, size_px, work)
    return torch.utils.data.DataLoader(pictures, batch_size, **options)


def augment(picture: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        picture = picture.flip(2).roll(1, 2).clamp(0, 1)
    return picture


def train(site: Site, channels: int, after: Callable = lambda loss: None) -> Callable:
    """Make a step that trains a network with so many channels, and calls `after` with its loss."""
    channels = 8 if site.is_small else channels
    hidden = [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(
        nn.Conv2d(3, channels, 7, stride=4), nn.ReLU(), *hidden,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10),
    ).to(site.device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(batch: list[torch.Tensor]) -> None:
        pictures, labels = (tensor.to(site.device, non_blocking=True) for tensor in batch)
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(loss)

    return step


def read_the_loss(loss: torch.Tensor) -> None:
    """Wait for the loss, then keep the host busy for as long as the device computes in a step."""
    loss.item()
    ends_s = time.perf_counter() + 0.005
    while time.perf_counter() < ends_s:
        pass


# Name -> the bottleneck, and what makes loader and step.
PLANTED: dict[str, tuple[str, Callable[[Site], tuple[Iterable, Callable]]]] = {
    "pageable copies": (
        "transfer",
        lambda site: (repeat_a_batch(site, pinned=False), train(site, 8)),
    ),
    "item every step": (
        "synchronization",
        lambda site: (repeat_a_batch(site, pinned=True), train(site, 256, read_the_loss)),
    ),
    "augmentation on the CPU": (
        "transform",
        lambda site: (load(site, augment, num_workers=hardware.cores()), train(site, 8)),
    ),
    "a large model": (
        "compute",
        lambda site: (repeat_a_batch(site, pinned=True), train(site, 512)),
    ),
}

# --- stages -----------------------------------------------------------------------------------


def runs(*names: str, mode: str = "quick") -> dict[str, Callable[[Site], Iterator[Row]]]:
    return {f"{name}, {mode}": partial(run, experiment=name, mode=mode) for name in names}


# Stage -> its parts.
STAGES: dict[str, dict[str, Callable[[Site], Iterator[Row]]]] = {
    "tests": {"tests": run_tests},
    "main": {
        **runs("prefetching", "storage", "preprocessing", "opencv_vs_pil", "combined"),
        **runs("prefetching", "preprocessing", mode="full"),
    },
    "depth": {
        "largest batch": largest_batch,
        **runs("pin_memory", "precision", "loss", "logs", "stalls"),
        "DALI": partial(run, experiment="rivals", variants=("torch", "threads", "DALI")),
        "side stream": side_stream,
    },
    "diagnosis": {name: partial(diagnose, name=name) for name in PLANTED},
    # The simulated GPUs have speeds of their own.
    "roofline": {
        "simulated": partial(run, experiment="preprocessing", on={}, roofline=True),
        "real": partial(
            run, experiment="textbook", roofline=True, variants=("textbook", "with threads")
        ),
    },
    "emulator": {"real steps": emulate},
    "host": {
        "waiting": measure_host,
        "detector": partial(measure_training, trained="detector"),
        "classifier": partial(measure_training, trained="classifier"),
    },
}


# 34 together; most for the documents' experiments, which run in full mode, too.
MINUTES = {
    "tests": 4, "main": 8, "depth": 5, "diagnosis": 5, "roofline": 5, "emulator": 5,
    "host": 2,
}  # fmt: skip


def perform(stage: str, options: Namespace) -> int:
    """Work through the parts of a stage; return 1 where one of them failed or is missing."""
    folder = options.out / options.here / stage
    minutes = MINUTES[stage] if options.minutes is None else options.minutes
    runs, archive, cancel = folder / "runs", folder / "runs.tar.gz", threading.Event()
    runs.mkdir(parents=True, exist_ok=True)
    if archive.exists():
        # A filter needs Python 3.11.4; without one, 3.12 and 3.13 warn.
        how = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        shutil.unpack_archive(archive, runs, **how)
        archive.unlink()
    timer = threading.Timer(60 * minutes, cancel.set)
    timer.daemon = True
    timer.start()
    report = frame.Report(f"On {options.on}: {stage}", Namespace(save=folder))
    site = Site(
        runs=runs,
        log=folder / "log.txt",
        data=options.data,
        device=options.device,
        ends_s=time.monotonic() + 60 * minutes,
        cancel=cancel,
        limit=report.limit,
    )
    rows: list[Row] = []
    for name, work in STAGES[stage].items():
        begun_s = time.monotonic()
        try:
            site.check_time()
            for row in work(site):
                rows.append(row)
        except Cancelled:
            report.limit(False, f"{name}: {GOES_ON}")
        except (Skip, ImportError) as reason:
            rows.append((name, "skipped", str(reason)))
        except Exception as error:
            site.note(traceback.format_exc())
            report.limit(False, f"{name}: {type(error).__name__}: {error}")
        site.note(f"{name} took {units.seconds(time.monotonic() - begun_s)}")
    timer.cancel()
    if rows:
        report.table(("", "result", "remark"), rows)
    # One file: whatever brings it here may count files.
    shutil.make_archive(str(runs), "gztar", runs)
    shutil.rmtree(runs)
    return report.finish(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=STAGES, help="default: all")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder that takes all")
    parser.add_argument("--minutes", type=float, help="that a stage may take; default: 2 to 8")
    parser.add_argument("--data", default=lab.Settings.data, help="photographs; made if missing")
    text = "cpu: small, to find mistakes where there is no GPU"
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=text)
    options = parser.parse_args(arguments)
    state, options.on, name = gpu.cuda(), "the CPU", "cpu"
    if options.device == "cuda":
        if not state.works:
            raise SystemExit(f"no GPU can be used: {state.reason}")
        options.on = f"{state.name}, driver {state.driver}, torch {torch.__version__}"
        name = state.name
    # What was measured elsewhere is no part of this.
    machine = hardware.provenance().machine_id[:6]
    options.here = re.sub(r"\W+", "-", f"{name} {machine}".lower())
    # Each of its processes would import torch with this module.
    makes = [sys.executable, "-m", "data_scripts.make_photos", options.data, "--or-adopt"]
    if subprocess.run(makes).returncode:
        return 1
    return max([perform(stage, options) for stage in options.stage])


if __name__ == "__main__":
    sys.exit(main())
