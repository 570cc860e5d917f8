"""What a GPU asks of its host, and which part of a step's time does not depend on the batch.

These are the numbers that the simulated GPU assumes (`labkit.parts.devices.GpuSpeeds`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

import labkit as lab
from labkit import units
from labkit.contracts import Device
from labkit.machine.clock import SystemClock
from labkit.parts.devices import GpuSpeeds
from labkit.pipeline import Pipeline, build
from labkit.resolve import complete_here

# What trains -> the experiment and its variant; batches of so many images, of which the largest
# fits into any GPU.
TRAINED = {
    "detector": ("preprocessing", "original"), "classifier": ("textbook", "textbook"),
}  # fmt: skip
SIZES = (4, 8, 16, 32)
QUEUED = 2  # steps launched at once: CUDA's queue and the simulated one have room for them
ROUNDS = 15
MEASURED_S = 0.5
COPIED_BYTES = 64 << 20
Row = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of a training step on a batch that is on the device."""

    launch_s: float
    """The host's, with room in the device's queue."""
    step_s: float
    """Of one step in a long row of them: the device's, unless launching takes longer."""


def time_steps(
    train: Callable[[], object],
    synchronize: Callable[[], None],
    now: Callable[[], float] = time.perf_counter,
) -> StepTimes:
    """Time a training step.

    Args:
        train: launches a step.
        synchronize: waits for the device.
        now: tells the time in seconds.
    """
    launches_s, steps_s = [], []
    for _ in range(3):  # libraries choose and load their kernels
        train()
    synchronize()
    for _ in range(ROUNDS):
        begun_s = now()
        for _ in range(QUEUED):
            train()
        launches_s.append((now() - begun_s) / QUEUED)
        synchronize()
        steps_s.append((now() - begun_s) / QUEUED)
    steps = max(QUEUED, round(MEASURED_S / statistics.median(steps_s)))
    rows_s = []
    for _ in range(3):
        begun_s = now()
        for _ in range(steps):
            train()
        synchronize()
        rows_s.append(now() - begun_s)
    # The shortest: other programs only make it longer.
    return StepTimes(launch_s=statistics.median(launches_s), step_s=min(rows_s) / steps)


def part_per_batch(step_s: Mapping[int, float], size: int) -> float:
    """Return the share of a step's time that does not depend on the number of images.

    Args:
        step_s: images of a batch -> seconds of a step, for two sizes at least.
        size: the batch for which the share holds.

    Returns:
        The part at 0 images of the line of least squares through the times, over its value at
        `size`.
    """
    per_image_s, per_batch_s = np.polyfit(list(step_s), list(step_s.values()), 1)
    return float(per_batch_s / (per_batch_s + size * per_image_s))


def busy_share(launch: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the CPU time of this process over the wall time, while it waits for the device.

    Args:
        launch: gives the device some hundredths of a second of work.
        wait: what is measured.
    """
    cpu_s = wall_s = 0.0
    for _ in range(ROUNDS):
        launch()
        begun_s, before_s = time.perf_counter(), time.process_time()
        wait()
        cpu_s += time.process_time() - before_s
        wall_s += time.perf_counter() - begun_s
    return cpu_s / wall_s


def multiply() -> None:
    """Queue some hundredths of a second of work on a CUDA device."""
    matrix = torch.ones(4096, 4096, device="cuda")
    for _ in range(20):
        matrix @ matrix


def measure_waits(device: Device, work: Callable[[], object]) -> list[Row]:
    """Measure which part of a core waiting and copying take; a row for each.

    Args:
        device: a CUDA device or the simulated one.
        work: gives it some hundredths of a second of work.
    """
    pageable = {"image": torch.ones(COPIED_BYTES, dtype=torch.uint8)}

    def copy() -> None:
        device.put(pageable, pinned=False, side_stream=False)

    work()  # loads its kernels
    copy()
    device.synchronize()
    waiting = busy_share(work, device.synchronize)
    copying = busy_share(device.synchronize, copy)
    assumed = "assumed: all of it"
    return [
        ("waiting for the device, CPU time", units.percent(waiting), assumed),
        ("copying from pageable memory, CPU time", units.percent(copying), assumed),
    ]


def measure_steps(
    pipeline: Pipeline, name: str, sizes: Sequence[int], judged: Sequence[int]
) -> list[Row]:
    """Measure steps with batches of several sizes; a row for each, and for the part per batch.

    Args:
        pipeline: whose batches are as large as the largest size.
        name: of what trains.
        sizes: images.
        judged: sizes of which the part per batch is told.
    """
    device, backward = pipeline.device, pipeline.step.backward
    whole = pipeline.resident_batch()
    assumed, rows, step_s = GpuSpeeds(name="", gpu_images_per_s=None), [], {}
    for size in sizes:
        part = {entry: tensor[:size].contiguous() for entry, tensor in whole.items()}
        batch = device.put(part, pinned=False, side_stream=False)
        device.wait(batch)

        def train(batch: Mapping[str, torch.Tensor] = batch) -> None:
            loss = pipeline.forward(batch)
            if backward is not None:
                backward(loss)

        took = time_steps(train, device.synchronize)
        step_s[size] = took.step_s
        rows.append(
            (
                f"{name}, {units.count(size, 'image')}: launching, of a step's time",
                units.percent(took.launch_s / took.step_s),
                f"{units.seconds(took.launch_s)} of {units.seconds(took.step_s)}; "
                f"assumed: {units.percent(assumed.launch_share)}",
            )
        )
    for size in judged:
        rows.append(
            (
                f"{name}, {units.count(size, 'image')}: part per batch, of a step's time",
                units.percent(part_per_batch(step_s, size)),
                f"assumed: {units.percent(assumed.batch_share)}",
            )
        )
    return rows


def open_training(name: str, data: str, on: Mapping[str, object], batch_size: int) -> Pipeline:
    """Open what trains, on batches made out of nothing.

    Args:
        name: a key of `TRAINED`.
        data: the photographs.
        on: the settings of the device.
        batch_size: images.
    """
    experiment, variant = TRAINED[name]
    settings = replace(
        lab.experiment(experiment).settings[variant],
        data=data,
        storage="here",
        images=batch_size,
        batch_size=batch_size,
        cache="as found",
        loader="resident",
        prefetcher="none",
        **on,
    )
    torch.set_num_threads(1)  # as in trials
    return build(complete_here(settings), SystemClock())
