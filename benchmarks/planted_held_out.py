"""Bottlenecks that are looked at last: `python -m benchmarks.diagnosis --held-out`.

    def name(site, fixed) -> the arguments of `lab.diagnose`, with the bottleneck or without

Rules must not be written with these cases in view.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from benchmarks.photo_training import (
    PX,
    Photos,
    Resize,
    Site,
    decode_half,
    training,
)
from labkit.contracts import Skip

IMAGES = 160
CANDIDATES = 200_000
CHUNK = 32


class Weighted(Sampler):
    """Draws with replacement, by weight.

    Args:
        count: draws of an epoch.
        one_by_one: adds up all weights for each draw, not once.
    """

    def __init__(self, count: int, *, one_by_one: bool) -> None:
        self.count, self.one_by_one = count, one_by_one
        self.weights = [1 + i % 7 for i in range(CANDIDATES)]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        rng, every = random.Random(0), range(CANDIDATES)
        if self.one_by_one:
            return (rng.choices(every, self.weights)[0] for _ in range(self.count))
        return iter(rng.choices(every, self.weights, k=self.count))


def slow_sampler(site: Site, fixed: bool) -> dict[str, object]:
    """The sampler goes through all weights for each index; better: once for an epoch."""
    photos = Photos(site.paths(CANDIDATES), decode=decode_half)
    sampler = Weighted(IMAGES, one_by_one=not fixed)
    return training(photos, 3.0, sampler=sampler, shuffle=False)


class Packed(Dataset):
    """Images in one HDF5 file, which every process opens for itself.

    Args:
        path: of the file.
        chunk: images that are compressed together.
        images: (N, PX, PX, 3) uint8.
    """

    def __init__(self, path: Path, chunk: int, images: np.ndarray) -> None:
        try:
            import h5py
        except ImportError as missing:
            raise Skip(f"needs h5py: {missing}") from missing
        with h5py.File(path, "w") as file:
            chunks = (chunk, *images.shape[1:])
            file.create_dataset("images", data=images, chunks=chunks, compression="gzip")
        self.path, self.count, self.opened = path, len(images), {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, object]:
        import h5py

        if os.getpid() not in self.opened:
            # HDF5 1's default cache, which holds no chunk of CHUNK images.
            file = h5py.File(self.path, "r", rdcc_nbytes=1 << 20)
            self.opened[os.getpid()] = file["images"]
        return {"image": torch.from_numpy(self.opened[os.getpid()][i]), "label": i}


def hdf5_chunks(site: Site, fixed: bool) -> dict[str, object]:
    """Every image of a random order decompresses those stored beside it; better: it alone."""
    photos = Photos(site.paths(IMAGES), [Resize(PX)], decode_half)
    images = np.stack([photos[i]["image"] for i in range(IMAGES)])
    chunk = 1 if fixed else CHUNK
    packed = Packed(site.scratch / f"by_{chunk}.h5", chunk, images)
    return training(packed, 4.0)


class Noted(Photos):
    """Photographs with notes of different lengths."""

    LONGEST = 1_500

    def __getitem__(self, i: int) -> dict[str, object]:
        note = torch.arange(float(self.LONGEST - 100 * (i % 8)))
        return {**super().__getitem__(i), "note": note}


def pad_by_value(notes: list[torch.Tensor]) -> torch.Tensor:
    padded = torch.zeros(len(notes), max(map(len, notes)))
    for row, note in enumerate(notes):
        for column, value in enumerate(note.tolist()):
            padded[row, column] = value
    return padded


def pad(notes: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(notes, batch_first=True)


class Collate:
    def __init__(self, pad) -> None:
        self.pad = pad

    def __call__(self, samples: list[dict]) -> dict[str, torch.Tensor]:
        return {
            "image": torch.stack([sample["image"] for sample in samples]),
            "label": torch.tensor([sample["label"] for sample in samples]),
            "note": self.pad([sample["note"] for sample in samples]),
        }


def ragged_collate(site: Site, fixed: bool) -> dict[str, object]:
    """The collate function pads value by value; better: PyTorch does."""
    photos = Noted(site.paths(IMAGES), decode=decode_half)
    return training(photos, 2.5, collate_fn=Collate(pad if fixed else pad_by_value))


class Patches(Photos):
    """Photographs, each with a patch of its own size cut from a canvas that holds any of them.

    Args:
        paths: the files.
        views: a patch is a view of its canvas, so that all of the canvas is sent along.
    """

    CANVAS = 800

    def __init__(self, paths: list, *, views: bool) -> None:
        super().__init__(paths, decode=decode_half)
        self.views = views

    def __getitem__(self, i: int) -> dict[str, object]:
        photo = self.decode(self.read(i))
        canvas = np.zeros((self.CANVAS, self.CANVAS, 3), np.float32)
        canvas[: photo.shape[0], : photo.shape[1]] = photo
        size = 48 + 8 * (i % 8)
        patch = torch.from_numpy(canvas)[:size, :size]
        image = torch.from_numpy(Resize()(photo))
        return {"image": image, "label": i, "patch": patch if self.views else patch.clone()}


def list_patches(samples: list[dict]) -> dict[str, object]:
    return {
        "image": torch.stack([sample["image"] for sample in samples]),
        "label": torch.tensor([sample["label"] for sample in samples]),
        "patch": [sample["patch"] for sample in samples],
    }


def sent_views(site: Site, fixed: bool) -> dict[str, object]:
    """Patches are sent as views, with all they were cut from; better: as copies."""
    photos = Patches(site.paths(IMAGES), views=not fixed)
    return training(photos, 2.5, collate_fn=list_patches)


class Annotated(Photos):
    """Photographs with the boxes of their objects in pixels; each object has an outline, too.

    Args:
        paths: the files.
        copy: of an object, before it is changed.
    """

    OBJECTS, POINTS = 30, 160

    def __init__(self, paths: list, copy: Callable[[dict], dict]) -> None:
        super().__init__(paths, decode=decode_half)
        self.copy = copy
        self.annotations = [self.annotate(i) for i in range(len(paths))]

    def annotate(self, i: int) -> list[dict[str, list]]:
        rng = np.random.default_rng(i)
        return [
            {"box": rng.random(4).tolist(), "outline": rng.random((self.POINTS, 2)).tolist()}
            for _ in range(self.OBJECTS)
        ]

    def __getitem__(self, i: int) -> dict[str, object]:
        objects = [self.copy(each) for each in self.annotations[i]]
        for each in objects:
            each["box"] = [PX * x for x in each["box"]]
        boxes = torch.tensor([each["box"] for each in objects])
        return {**super().__getitem__(i), "boxes": boxes}


def deep_copies(site: Site, fixed: bool) -> dict[str, object]:
    """Annotations are copied with all outlines, which nobody uses; better: shallow copies."""
    photos = Annotated(site.paths(IMAGES), dict if fixed else copy.deepcopy)
    return training(photos, 2.5)
