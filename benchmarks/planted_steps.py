"""Bottlenecks planted in a training step: transfer, waiting, saving, reporting, computing.

    def name(site, fixed) -> the arguments of `lab.diagnose`, with the bottleneck or without

Loading is light here and would keep up; the device waits for the host or the link, or never waits.
What the host does while the device computes costs nothing, so a host that is the bottleneck must be
slower than the device.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.photo_training import (
    BATCH_SIZE,
    Photos,
    Resize,
    Site,
    Train,
    TrainHere,
    decode_half,
    simulated,
    training,
)
from labkit.contracts import Skip
from labkit.machine.shared_memory import FOLDER as SHARED_MEMORY
from labkit.parts.devices import SimulatedGpu
from labkit.parts.training.reporting import Reports

IMAGES = 240
COMPUTE_MS = 4.0
LARGE_PX = 384
CLASSES, STRIDE, BOXES = 40, 4, 80
SMALL_MEMORY_BYTES = 24 << 20


def light_photos(site: Site, count: int = IMAGES, px: int = 160) -> Photos:
    return Photos(site.paths(count), [Resize(px)], decode_half)


class Floats(Photos):
    """Photographs as float32 from 0 to 1: four times the bytes."""

    def __getitem__(self, i: int) -> dict[str, object]:
        sample = super().__getitem__(i)
        return {**sample, "image": sample["image"].float() / 255}


def boxes_of(i: int) -> torch.Tensor:
    """Make up boxes: (BOXES, 4) float32, left, top, right, bottom, up to LARGE_PX."""
    corners = np.random.default_rng(i).integers(0, LARGE_PX // 2, (BOXES, 2, 2))
    return torch.from_numpy(corners.cumsum(axis=1).reshape(BOXES, 4).astype(np.float32))


def maps_of(boxes: torch.Tensor) -> torch.Tensor:
    """Draw the boxes' centres: (CLASSES, LARGE_PX / STRIDE, LARGE_PX / STRIDE) float32."""
    maps = torch.zeros(CLASSES, LARGE_PX // STRIDE, LARGE_PX // STRIDE)
    x, y = ((boxes[:, :2] + boxes[:, 2:]) / 2 / STRIDE).long().clamp(max=maps.shape[1] - 1).T
    maps[torch.arange(BOXES) % CLASSES, y, x] = 1
    return maps


class Mapped(Photos):
    """Photographs for a detector.

    Args:
        paths: the files.
        sparse: pixels as bytes, and boxes; not floats and maps.
    """

    def __init__(self, paths: list[Path], *, sparse: bool) -> None:
        super().__init__(paths, [Resize(LARGE_PX)], decode_half)
        self.sparse = sparse

    def __getitem__(self, i: int) -> dict[str, object]:
        sample = {**super().__getitem__(i), "boxes": boxes_of(i)}
        return sample if self.sparse else expanded(sample)


def expanded(sample: dict[str, object]) -> dict[str, object]:
    """Make floats and maps of bytes and boxes, as the device does where they are sent."""
    boxes, image = sample["boxes"], sample["image"].float() / 255
    return {"image": image, "label": sample["label"], "maps": maps_of(boxes)}


def large_batches(site: Site, fixed: bool) -> dict[str, object]:
    """Floats and maps over a slow link; better: bytes and boxes, the rest made on the device."""
    device = simulated(COMPUTE_MS, pinned_bytes_per_s=0.35e9, pageable_bytes_per_s=0.175e9)
    return training(Mapped(site.paths(IMAGES // 2), sparse=fixed), Train(device, side_stream=True))


def pageable_copies(site: Site, fixed: bool) -> dict[str, object]:
    """Copies from ordinary memory, for which the host waits; better: pinned."""
    photos = Floats(site.paths(IMAGES // 2), [Resize(LARGE_PX)], decode_half)
    device = simulated(COMPUTE_MS + 2, pinned_bytes_per_s=0.5e9, pageable_bytes_per_s=0.25e9)
    return training(photos, Train(device, pinned=fixed))


def need_small_memory() -> None:
    """Raise Skip where /dev/shm is larger than planted; see `IN_SMALL_MEMORY`."""
    if not SHARED_MEMORY.is_dir() or shutil.disk_usage(SHARED_MEMORY).total > SMALL_MEMORY_BYTES:
        raise Skip(f"needs a small {SHARED_MEMORY}, in a mount namespace of its own (root, Linux)")


def small_shared_memory(site: Site, fixed: bool) -> dict[str, object]:
    """Batches on their way have no room in /dev/shm; better: a quarter of the bytes.

    Raises:
        Skip: there is more room than planted.
    """
    need_small_memory()
    photos = (Photos if fixed else Floats)(site.paths(IMAGES), [Resize(LARGE_PX)], decode_half)
    return training(photos, COMPUTE_MS)


class Averaging(Train):
    """Keeps an average of the weights on the host, which takes some milliseconds."""

    def __init__(self, device: SimulatedGpu, *, sync_every: int) -> None:
        super().__init__(device, sync_every=sync_every, side_stream=True)
        self.weights = np.ones(10_000_000, np.float32)
        self.average = np.zeros_like(self.weights)

    def after(self, batch: dict[str, object]) -> None:
        self.average *= 0.999
        self.average += 0.001 * self.weights


def wait_every_step(site: Site, fixed: bool) -> dict[str, object]:
    """The loss is looked at in every step, so nothing overlaps; better: in every fiftieth."""
    photos = Floats(site.paths(IMAGES), [Resize()], decode_half)
    device = simulated(COMPUTE_MS, pinned_bytes_per_s=0.2e9)
    return training(photos, Averaging(device, sync_every=50 if fixed else 1))


class Saving(Train):
    """Saves a checkpoint every so many steps, and waits until it is on the disk.

    Args:
        device: where it trains.
        every: steps.
        path: of the file.
    """

    WEIGHTS = 12_000_000

    def __init__(self, device: SimulatedGpu, every: int, path: Path) -> None:
        super().__init__(device)
        self.every, self.path = every, path
        self.state = {"weights": torch.zeros(self.WEIGHTS), "step": 0}

    def after(self, batch: dict[str, object]) -> None:
        if self.steps % self.every == 0:
            self.device.synchronize()  # the state has to be fetched from there
            self.state["step"] = self.steps
            with self.path.open("wb") as file:
                torch.save(self.state, file)
                file.flush()
                os.fsync(file.fileno())


def checkpoint_storm(site: Site, fixed: bool) -> dict[str, object]:
    """A checkpoint in every fifth step; better: in every hundredth."""
    path = site.scratch / ("seldom.pth" if fixed else "often.pth")
    step = Saving(simulated(COMPUTE_MS / 2), 100 if fixed else 5, path)
    return training(light_photos(site), step)


class Reporting(Train):
    """Sends how it goes to a server every so many steps, and waits for the answer.

    Args:
        device: where it trains.
        every: steps.
        reports: go to a server on this machine that answers late.
    """

    def __init__(self, device: SimulatedGpu, every: int, reports: Reports) -> None:
        super().__init__(device)
        self.every, self.reports, self.start_s = every, reports, time.perf_counter()

    def after(self, batch: dict[str, object]) -> None:
        if self.steps % self.every == 0:
            seconds = time.perf_counter() - self.start_s
            self.reports.write(json.dumps({"step": self.steps, "seconds": seconds}))


def slow_reports(site: Site, fixed: bool) -> dict[str, object]:
    """Every step is reported to a server that answers after 70 ms; better: every fiftieth."""
    reports = site.keep(Reports("http_70ms", site.scratch))
    step = Reporting(simulated(COMPUTE_MS), 50 if fixed else 1, reports)
    return training(light_photos(site), step)


class Boxed(Photos):
    """Photographs with boxes, and what a model might have found."""

    def __getitem__(self, i: int) -> dict[str, object]:
        boxes = boxes_of(i)
        return {**super().__getitem__(i), "boxes": boxes, "predicted": boxes + 4.0}


def iou_by_pairs(true: torch.Tensor, predicted: torch.Tensor) -> float:
    """Mean over true boxes of the best intersection over union, pair by pair."""
    best = []
    for left, top, right, bottom in true.tolist():
        ious = []
        for left2, top2, right2, bottom2 in predicted.tolist():
            width = max(0.0, min(right, right2) - max(left, left2))
            height = max(0.0, min(bottom, bottom2) - max(top, top2))
            both = width * height
            areas = (right - left) * (bottom - top) + (right2 - left2) * (bottom2 - top2)
            ious.append(both / max(areas - both, 1e-9))
        best.append(max(ious))
    return sum(best) / len(best)


def iou_of_arrays(true: torch.Tensor, predicted: torch.Tensor) -> float:
    """The same for all pairs at once."""
    true, predicted = true.numpy().astype(float), predicted.numpy().astype(float)
    low = np.maximum(true[:, None, :2], predicted[None, :, :2])
    high = np.minimum(true[:, None, 2:], predicted[None, :, 2:])
    both = (high - low).clip(0).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (true, predicted)]
    union = areas[0][:, None] + areas[1][None, :] - both
    return float((both / union.clip(1e-9)).max(axis=1).mean())


class Measuring(Train):
    """Computes a metric of every batch on the host.

    Args:
        device: where it trains.
        metric: of the true boxes of an image and of those that were predicted.
    """

    def __init__(self, device: SimulatedGpu, metric) -> None:
        super().__init__(device)
        self.metric, self.values = metric, []

    def after(self, batch: dict[str, object]) -> None:
        pairs = zip(batch["boxes"], batch["predicted"])
        self.values.append(sum(self.metric(true, predicted) for true, predicted in pairs))


def metric_loops(site: Site, fixed: bool) -> dict[str, object]:
    """Every step compares boxes pair by pair in Python; better: arrays."""
    metric = iou_of_arrays if fixed else iou_by_pairs
    return training(
        Boxed(site.paths(IMAGES), decode=decode_half), Measuring(simulated(COMPUTE_MS), metric)
    )


def slow_device(site: Site, fixed: bool) -> dict[str, object]:
    """The device computes all the time; even batches that are there already do not help."""
    return training(light_photos(site, IMAGES // 2), 11.0, kept=fixed)


def small_steps(site: Site, fixed: bool) -> dict[str, object]:
    """Steps are small, and loading keeps up with them; there is nothing to gain."""
    return training(light_photos(site), 4.0, batch_size=2, kept=fixed)


def training_here(site: Site, fixed: bool) -> dict[str, object]:
    """The CPU trains, and loading takes little of it; there is nothing to gain."""
    return training(
        Photos(site.small(site.paths(16 * BATCH_SIZE))), TrainHere(), num_workers=1, kept=fixed
    )
