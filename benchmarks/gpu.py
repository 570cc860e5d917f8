"""What only a real GPU shows: tests, runs, diagnoses and a roofline, in stages that run alone.

    python -m benchmarks.gpu [--stage NAME …] [--out FOLDER] [--minutes 8] [--device cpu]

    tests      the tests that need CUDA
    main       the documents' experiments in quick mode, two of them in full mode
    depth      copies, precision, loss, callbacks, DALI, the largest batch
    diagnosis  trainings with a planted bottleneck
    roofline   training speed over the speed of the GPU, simulated and real

A stage leaves a report, a log and its runs in a folder of its own, and ends when its time is over:
the same command then goes on with what is missing.  labkit is not installed; what lacks a library
is skipped with its name.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
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
from benchmarks import frame
from data_scripts.make_photos import main as make_photos
from labkit import units
from labkit.contracts import Skip
from labkit.experiments.request import Request
from labkit.machine import gpu, hardware

ROOT = Path(__file__).parents[1]
BLOCKS = 6  # the least that full mode takes
BUDGET_S = 60.0  # of a diagnosis
# On a CPU, where nothing is to be measured; the simulated GPU runs what copies beside computing.
SIMULATED = {"device": "emulated", "device_speed": 2000.0}
SMALL = {"images": 4, "batch_size": 2, "input_px": 32, "epochs": 1}
SMALL_BUDGET_S, SMALL_VARIANTS = 5.0, 2
REPEATED = (1, 2, 4)  # times that a real GPU trains with a batch: it can only be made slower
GOES_ON = "the same command goes on with it"
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

    @property
    def is_small(self) -> bool:
        return self.device == "cpu"

    def note(self, text: str) -> None:
        """Add a text to the log."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")


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
            env=os.environ | {"FAIL_WITHOUT_CUDA": "0" if site.is_small else "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=max(site.ends_s - time.monotonic(), 1),
        )
    *_, last = site.log.read_text(encoding="utf-8").strip().splitlines()
    if done.returncode:
        raise RuntimeError(last)
    yield "tests", last, ""


def run(
    site: Site,
    experiment: str | lab.Experiment,
    mode: str = "quick",
    on: Mapping[str, object] | None = None,
    **chosen: object,
) -> Iterator[Row]:
    """Run an experiment, or go on with a run of it; a row per variant.

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
        mode, labels = "quick", asked.variants or tuple(asked.whole().variants)
        asked = replace(
            asked, mode=mode, settings=settings | SMALL, variants=labels[:SMALL_VARIANTS]
        )
    title = f"{asked.name}, {mode}"
    earlier = [
        found
        for found in map(lab.find_run, lab.list_runs(site.runs, asked.name))
        if found.info["mode"] == mode and found.info["status"] != "failed"
    ]
    if not earlier:
        blocks = BLOCKS if mode == "full" else 1 if site.is_small else None
        found = lab.run(asked.build(), mode, results=site.runs, blocks=blocks, cancel=site.cancel)
    elif (found := earlier[-1]).info["status"] != "finished":
        found = lab.resume(found.folder, cancel=site.cancel)
    if found.info["status"] != "finished":
        yield title, found.info["status"], GOES_ON
    for row in found.summary.rows:
        time_found = units.normalized(row.normalized_time)
        if row.ci_low is not None:
            time_found += f" {units.interval(row.ci_low, row.ci_high)}"
        said = row.reason or row.verdict or row.labels.get("accelerator", "")
        if row.steady_images_per_s:
            said += f", {units.rate(row.steady_images_per_s)}"
        yield f"{title}: {row.variant}", row.status if row.reason else time_found, said
    if rate := (found.info.get("calibration") or {}).get("gpu_images_per_s"):
        yield f"{title}: this GPU with the model alone", units.rate(rate), ""


def record_stream(site: Site) -> Iterator[Row]:
    """Copy batches on a side stream with and without telling the allocator of the step."""
    whole, side = lab.experiment("prefetching_in_depth"), "data_prefetcher, no waiting"
    labels = ("original, no waiting", side, f"{side}, without record_stream")
    variants = {label: whole.in_full[label] for label in labels}
    changes = {"variants": variants, "in_full": {}, "baseline": labels[0], "published": {}}
    yield from run(site, replace(whole, name="record_stream", **changes))


def train_repeatedly(settings: lab.Settings, device: object, *, times: int) -> lab.Step:
    """Make a step that trains a detector several times with each batch, as a slower GPU would."""
    once = lab.STEPS["detector"](settings, device)

    def forward(batch: dict) -> object:
        for _ in range(times - 1):
            once.backward(once.forward(batch))
        return once.forward(batch)

    return replace(once, forward=forward)


def real_roofline(site: Site) -> Iterator[Row]:
    """Train at the speed of the real device, a half and a quarter of it."""
    steps = {f"detector_{n}_times": partial(train_repeatedly, times=n) for n in REPEATED}
    known = lab.experiment("preprocessing").variants
    variants = {
        f"{label}, {step}": replace(known[label], step=step)
        for label in ("original", "simplified")
        for step in steps
    }
    variants["computing alone"] = replace(known["original"], loader="resident")
    question = "How fast do pipelines train with a GPU of half and a quarter of the speed?"
    baseline = next(iter(variants))
    whole = lab.Experiment("real_steps", question=question, variants=variants, baseline=baseline)
    with patch.dict(lab.STEPS, steps):
        yield from run(site, whole, on={"device": site.device})


def largest_batch(site: Site) -> Iterator[Row]:
    found = lab.largest_batch(lab.Settings(data=site.data), "quick", cancel=site.cancel)
    site.note(repr(found))
    yield "largest batch", units.count(found.settings.batch_size, "image"), found.caption()


def diagnose(site: Site, name: str) -> Iterator[Row]:
    """Diagnose a training with a planted bottleneck, unless that was done."""
    planted, make = PLANTED[name]
    told = site.runs / f"{name}.txt"
    if not told.exists():
        loader, step = make(site)
        budget_s = SMALL_BUDGET_S if site.is_small else BUDGET_S
        found = lab.diagnose(loader, step, budget_s=budget_s)
        if found.broken:
            raise RuntimeError(found.broken)
        remedies = ", ".join(remedy.name for remedy in found.remedies) or "nothing"
        said = [found.bottleneck, remedies, repr(found), found.details()]
        told.write_text("\n".join(said), encoding="utf-8")
    bottleneck, remedies, *_ = told.read_text(encoding="utf-8").splitlines()
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


def load(site: Site, work: Callable = lambda picture: picture, **knobs: int) -> Iterable:
    size_px, batch_size = (32, 4) if site.is_small else (224, 64)
    pictures = Pictures(STEPS * batch_size, size_px, work)
    return torch.utils.data.DataLoader(pictures, batch_size, **knobs)


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
        "record_stream": record_stream,
    },
    "diagnosis": {name: partial(diagnose, name=name) for name in PLANTED},
    "roofline": {
        # The simulated GPUs have speeds of their own.
        "simulated": partial(run, experiment="preprocessing", on={}, roofline=True),
        "real steps": real_roofline,
    },
}


# 28 together; most for the documents' experiments, which run in full mode, too.
MINUTES = {"tests": 4, "main": 8, "depth": 6, "diagnosis": 5, "roofline": 5}


def perform(stage: str, options: Namespace) -> int:
    """Work through the parts of a stage; return 1 where one of them failed."""
    folder = options.out / stage
    minutes = MINUTES[stage] if options.minutes is None else options.minutes
    runs, archive, cancel = folder / "runs", folder / "runs.tar.gz", threading.Event()
    runs.mkdir(parents=True, exist_ok=True)
    if archive.exists():
        shutil.unpack_archive(archive, runs, filter="data")
        archive.unlink()
    timer = threading.Timer(60 * minutes, cancel.set)
    timer.daemon = True
    timer.start()
    site = Site(
        runs=runs,
        log=folder / "log.txt",
        data=options.data,
        device=options.device,
        ends_s=time.monotonic() + 60 * minutes,
        cancel=cancel,
    )
    report = frame.Report(f"On {options.on}: {stage}", Namespace(save=folder))
    rows: list[Row] = []
    for name, work in STAGES[stage].items():
        if time.monotonic() >= site.ends_s:
            rows.append((name, "missing", GOES_ON))
            continue
        begun_s = time.monotonic()
        try:
            rows += work(site)
        except (Skip, ImportError) as reason:
            rows.append((name, "skipped", str(reason)))
        except Exception as error:
            site.note(traceback.format_exc())
            report.limit(False, f"{name}: {type(error).__name__}: {error}")
        site.note(f"{name} took {units.seconds(time.monotonic() - begun_s)}")
    timer.cancel()
    if rows:
        report.table(("", "found", "remark"), rows)
    # One file: whatever brings it here may count files.
    shutil.make_archive(str(runs), "gztar", runs)
    shutil.rmtree(runs)
    return report.finish(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=STAGES, help="default: all")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder that takes all")
    parser.add_argument("--minutes", type=float, help="that a stage may take; default: 4 to 8")
    parser.add_argument("--data", default=lab.Settings.data, help="photographs; made if missing")
    text = "cpu: small, to find mistakes where there is no GPU"
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=text)
    options = parser.parse_args(arguments)
    state, options.on = gpu.cuda(), "the CPU"
    if options.device == "cuda":
        if not state.works:
            raise SystemExit(f"no GPU can be used: {state.reason}")
        options.on = f"{state.name}, driver {state.driver}, torch {torch.__version__}"
    if make_photos([options.data, "--or-adopt"]):
        return 1
    return max([perform(stage, options) for stage in options.stage])


if __name__ == "__main__":
    sys.exit(main())
