"""Slow-downs in workers, batches and steps that projects reported and fixed, rebuilt like theirs.

    def name(site, fixed) -> the arguments of `lab.diagnose`, as it was reported or as it was fixed

Projects, causes and published gains are in `real_cases`; see also `real_samples`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from benchmarks.photo_training import (
    Photos,
    Resize,
    Site,
    Train,
    decode_half,
    decode_quarter,
    one_thread,
    simulated,
    training,
)
from labkit.parts.devices import SimulatedGpu

IMAGES = 160
THREADS = 32  # OpenCV's in each worker: as many for each core as 32 workers with 64 on 64 cores
EPOCH_STEPS = 8  # computing takes about four times as long as saving, as was reported


class Warp:
    """Enlarge, shear and blur an image, as detectors augment theirs; (H, W, 3) uint8."""

    WIDTH, HEIGHT = 1_333, 800

    def __call__(self, image: np.ndarray) -> np.ndarray:
        size = (self.WIDTH, self.HEIGHT)
        sheared = np.float32([[1.0, 0.1, -20.0], [0.05, 1.0, 10.0]])
        return cv2.GaussianBlur(cv2.warpAffine(cv2.resize(image, size), sheared, size), (5, 5), 0)


def many_threads(worker_id: int) -> None:
    cv2.setNumThreads(THREADS)


def opencv_threads(site: Site, fixed: bool) -> dict[str, object]:
    """OpenCV has threads of its own in each worker; better: one."""
    photos = Photos(site.paths(IMAGES), [Warp(), Resize()], decode_half)
    return training(photos, 2.0, worker_init_fn=one_thread if fixed else many_threads)


def workers_restarted(site: Site, fixed: bool) -> dict[str, object]:
    """Workers start anew for epochs of six steps; better: they persist."""
    return training(Photos(site.paths(48), decode=decode_quarter), 1.0, persistent_workers=fixed)


class Pages(Photos):
    """Pages and where their ink is, (PX, PX) uint8, by a threshold around each pixel."""

    def __getitem__(self, i: int) -> dict[str, object]:
        sample = super().__getitem__(i)
        gray = cv2.cvtColor(sample["image"].numpy(), cv2.COLOR_RGB2GRAY)
        ink = cv2.adaptiveThreshold(
            gray, 1, cv2.ADAPTIVE_THRESH_GAUSSIAN_C, cv2.THRESH_BINARY_INV, 31, 5
        )
        return {**sample, "ink": torch.from_numpy(ink)}


def workers_set_to_none(site: Site, fixed: bool) -> dict[str, object]:
    """The number of workers is set to 0 whatever was asked for; better: it stays two."""
    arguments = {} if fixed else {"num_workers": 0, "persistent_workers": False}
    return training(Pages(site.paths(2 * IMAGES)), 2.0, **arguments)


class Arrays(Photos):
    """Photographs as arrays, not tensors."""

    def __getitem__(self, i: int) -> dict[str, object]:
        sample = super().__getitem__(i)
        return {**sample, "image": sample["image"].numpy()}


def collate_list(samples: list[dict]) -> dict[str, torch.Tensor]:
    return {
        "image": torch.tensor([sample["image"] for sample in samples]),
        "label": torch.tensor([sample["label"] for sample in samples]),
    }


def collate_array(samples: list[dict]) -> dict[str, torch.Tensor]:
    return {
        "image": torch.tensor(np.array([sample["image"] for sample in samples])),
        "label": torch.tensor([sample["label"] for sample in samples]),
    }


def tensor_of_arrays(site: Site, fixed: bool) -> dict[str, object]:
    """A tensor is made of a list of arrays, number by number; better: of one array."""
    photos = Arrays(site.paths(IMAGES), [Resize(96)], decode_half)
    return training(photos, 3.0, collate_fn=collate_array if fixed else collate_list)


class Streamed(IterableDataset):
    """Photographs one after the other.

    Args:
        photos: what is streamed.
        split: every worker streams its share, not everything.
    """

    def __init__(self, photos: Photos, *, split: bool) -> None:
        self.photos, self.split = photos, split

    def __iter__(self) -> Iterator[dict[str, object]]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker and self.split else (0, 1)
        return map(self.photos.__getitem__, range(first, len(self.photos), step))


def all_from_every_worker(site: Site, fixed: bool) -> dict[str, object]:
    """Every worker streams all samples; better: its share of them."""
    photos = Photos(site.paths(IMAGES), decode=decode_half)
    return training(Streamed(photos, split=fixed), 2.0, shuffle=False)


class Adversarial(Train):
    """Trains two networks against each other, and notes the means of their losses.

    Args:
        device: where it trains.
        read_each: losses are read as numbers after each network; otherwise every fiftieth step.
    """

    LOSSES, NETWORK_S, VALUES = 3, 0.008, 40_000

    def __init__(self, device: SimulatedGpu, *, read_each: bool) -> None:
        super().__init__(device)
        self.read_each, self.history = read_each, [0.5] * self.VALUES

    def after(self, batch: dict[str, object]) -> None:
        for _ in ("generator", "discriminator"):
            self.note()
            self.device.run(self.NETWORK_S)
            if self.read_each:
                self.device.synchronize()

    def note(self) -> None:
        """Do what the host does in between: means over the last steps, loss by loss."""
        for _ in range(self.LOSSES):
            mean = 0.0
            for value in self.history:
                mean = 0.99 * mean + 0.01 * value


def losses_read_every_step(site: Site, fixed: bool) -> dict[str, object]:
    """The host waits for the losses of both networks in every step; better: in every fiftieth."""
    photos = Photos(site.paths(IMAGES), [Resize()], decode_half)
    return training(photos, Adversarial(simulated(0.25), read_each=not fixed))


class Saving(Train):
    """Saves the model every so many epochs of EPOCH_STEPS steps.

    Args:
        device: where it trains.
        epochs: between two files.
        path: of the file.
    """

    WEIGHTS = 12_000_000

    def __init__(self, device: SimulatedGpu, epochs: int, path: Path) -> None:
        super().__init__(device)
        self.every, self.path = epochs * EPOCH_STEPS, path
        self.state = {"weights": torch.zeros(self.WEIGHTS)}

    def after(self, batch: dict[str, object]) -> None:
        if self.steps % self.every == 0:
            self.device.synchronize()  # the weights have to be fetched from there
            torch.save(self.state, self.path)


def saved_every_epoch(site: Site, fixed: bool) -> dict[str, object]:
    """Every short epoch ends with a checkpoint; better: every tenth."""
    photos = Photos(site.paths(2 * IMAGES), [Resize()], decode_quarter)
    path = site.scratch / ("every_10th.pt" if fixed else "every.pt")
    return training(photos, Saving(simulated(4.0), 10 if fixed else 1, path))


class Gray(Photos):
    """Photographs as (1, H, W) gray images: uint8, or float32 from 0 to 1.

    Args:
        paths: the files.
        as_floats: what the worker sends.
    """

    PX = 960

    def __init__(self, paths: Sequence[Path], *, as_floats: bool) -> None:
        super().__init__(paths)
        self.as_floats = as_floats

    def __getitem__(self, i: int) -> dict[str, object]:
        gray = cv2.imdecode(np.frombuffer(self.read(i), np.uint8), cv2.IMREAD_GRAYSCALE)
        image = torch.from_numpy(cv2.resize(gray, (self.PX, self.PX)))[None]
        return {"image": image.float() / 255 if self.as_floats else image, "label": i}


def floats_sent(site: Site, fixed: bool) -> dict[str, object]:
    """Workers make floats of pixels, four times the bytes; better: the device does."""
    return training(Gray(site.paths(IMAGES), as_floats=not fixed), 2.0)
