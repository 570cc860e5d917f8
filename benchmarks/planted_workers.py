"""Bottlenecks planted between samples and batches: collate, serialization, the workers themselves.

    def name(site, fixed) -> the arguments of `lab.diagnose`, with the bottleneck or without

As in `planted_samples`, the device is the limit once the bottleneck is removed.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import get_worker_info

from benchmarks.photo_training import (
    PX,
    Photos,
    Resize,
    Site,
    decode_half,
    one_thread,
    training,
)

IMAGES = 160
ENTRIES = 250_000  # of an index that every worker reads as it starts
COMPUTE_MS = 6.0


def collate_values(samples: list[dict]) -> dict[str, torch.Tensor]:
    images = [
        [value / 255 - 0.5 for value in sample["image"].flatten().tolist()] for sample in samples
    ]
    return {
        "image": torch.tensor(images, dtype=torch.float64).float().view(-1, PX, PX, 3),
        "label": torch.tensor([sample["label"] for sample in samples]),
    }


def collate_arrays(samples: list[dict]) -> dict[str, torch.Tensor]:
    images = torch.stack([sample["image"] for sample in samples])
    return {
        "image": (images.double() / 255 - 0.5).float(),
        "label": torch.tensor([sample["label"] for sample in samples]),
    }


def huge_collate(site: Site, fixed: bool) -> dict[str, object]:
    """The collate function works with Python's numbers; better: with tensors."""
    collate = collate_arrays if fixed else collate_values
    return training(Photos(site.paths(IMAGES)), 3.0, collate_fn=collate)


@dataclass
class Point:
    x: float
    y: float


class Outlined(Photos):
    """Photographs with the outlines of what is on them, which evaluation will need.

    Args:
        paths: the files.
        as_tensors: outlines as tensors of (N, 2), not as lists of points.
    """

    POINTS, OUTLINES = 2_500, 16

    def __init__(self, paths: list[Path], *, as_tensors: bool) -> None:
        super().__init__(paths, decode=decode_half)
        self.outlines = [
            [Point(0.1 * k, 0.2 * k + number) for k in range(self.POINTS)]
            for number in range(self.OUTLINES)
        ]
        if as_tensors:
            self.outlines = [
                torch.tensor([[point.x, point.y] for point in outline], dtype=torch.float64)
                for outline in self.outlines
            ]

    def __getitem__(self, i: int) -> dict[str, object]:
        return {**super().__getitem__(i), "outline": self.outlines[i % self.OUTLINES]}


def collate_outlines(samples: list[dict]) -> dict[str, object]:
    return {
        "image": torch.stack([sample["image"] for sample in samples]),
        "outlines": [sample["outline"] for sample in samples],
    }


def objects_sent(site: Site, fixed: bool) -> dict[str, object]:
    """Workers send tens of thousands of small objects with every batch; better: tensors."""
    photos = Outlined(site.paths(IMAGES), as_tensors=fixed)
    return training(photos, 3.6, collate_fn=collate_outlines, shuffle=False)


def no_workers(site: Site, fixed: bool) -> dict[str, object]:
    """The training process prepares everything; better: two workers."""
    options = {} if fixed else {"num_workers": 0, "persistent_workers": False}
    return training(Photos(site.paths(3 * IMAGES)), 1.5, **options)


def one_worker(site: Site, fixed: bool) -> dict[str, object]:
    """One worker on two cores; better: two."""
    photos = Photos(site.paths(3 * IMAGES))
    return training(photos, 1.4, num_workers=2 if fixed else 1)


class Labelled(Photos):
    """Photographs whose labels come from a remote service; its answer is a sleep."""

    ANSWER_S = 0.02

    def __getitem__(self, i: int) -> dict[str, object]:
        time.sleep(self.ANSWER_S)
        return super().__getitem__(i)


def waiting_samples(site: Site, fixed: bool) -> dict[str, object]:
    """One worker, which mostly waits for answers; better: eight."""
    photos = Labelled(site.paths(IMAGES // 2))
    return training(photos, 9.0, num_workers=8 if fixed else 1)


class Late(Photos):
    """Photographs of which one in 56 is late: in every seventh batch, from either worker.

    It is later than the GPU's queued work lasts, and rare enough for two workers to catch up.
    """

    LATE_S, EVERY = 0.45, 56

    def __getitem__(self, i: int) -> dict[str, object]:
        if i % self.EVERY == self.EVERY - 1:
            time.sleep(self.LATE_S)
        return super().__getitem__(i)


def late_samples(site: Site, fixed: bool) -> dict[str, object]:
    """Some samples are late, and one batch per worker is prepared ahead; better: sixteen."""
    photos = Late(site.paths(5 * Late.EVERY), decode=decode_half)
    return training(photos, 5.0, shuffle=False, prefetch_factor=16 if fixed else 1)


class Indexed(Photos):
    """Photographs with an index of labels, which every worker reads when it starts."""

    def __init__(self, paths: list[Path], index: Path) -> None:
        super().__init__(paths, decode=decode_half)
        self.index, self.labels = index, None

    def load(self) -> None:
        self.labels = {entry["image"]: entry for entry in json.loads(self.index.read_text())}

    def __getitem__(self, i: int) -> dict[str, object]:
        if self.labels is None:  # without workers
            self.load()
        return {**super().__getitem__(i), "class": self.labels[f"{i:012d}"]["class"]}


def load_index(worker_id: int) -> None:
    one_thread(worker_id)
    get_worker_info().dataset.load()


def restarted_workers(site: Site, fixed: bool) -> dict[str, object]:
    """Workers start for every short epoch and read an index first; better: they persist."""
    index = site.scratch / "index.json"
    entries = [{"image": f"{i:012d}", "class": i % 80, "box": [i, 0, i, 9]} for i in range(ENTRIES)]
    index.write_text(json.dumps(entries))
    photos = Indexed(site.paths(IMAGES // 2), index)
    return training(photos, COMPUTE_MS, persistent_workers=fixed, worker_init_fn=load_index)


class Tones:
    """Change brightness, contrast, gamma and saturation three times, in many steps of torch."""

    def __call__(self, image: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(image).float() / 255
        for gamma in (0.9, 1.2, 0.95):
            x = (x * 1.1 - 0.02).clamp(0, 1)
            x = (x - x.mean()) * 1.05 + x.mean()
            x = x.clamp(0, 1).pow(gamma)
            x = (0.9 * x + 0.1 * x.mean(dim=2, keepdim=True)).clamp(0, 1)
        return (x * 255).round().byte().numpy()


def many_threads(worker_id: int) -> None:
    cv2.setNumThreads(8)
    torch.set_num_threads(8)


def single_threads(worker_id: int) -> None:
    cv2.setNumThreads(0)
    torch.set_num_threads(1)


def too_many_threads(site: Site, fixed: bool) -> dict[str, object]:
    """Four workers with eight threads each; better: with one."""
    torch.set_num_threads(1)  # OpenMP's threads do not survive the fork of the workers
    photos = Photos(site.paths(IMAGES), [Resize(), Tones()])
    init = single_threads if fixed else many_threads
    return training(photos, 4.0, num_workers=4, worker_init_fn=init)
