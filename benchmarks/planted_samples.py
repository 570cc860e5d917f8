"""Bottlenecks planted in making a sample: medium, decoding, transforms.

    def name(site, fixed) -> the arguments of `lab.diagnose`, with the bottleneck or without

With the bottleneck, samples are slower than the device; without it the device is the limit, so it
does not matter how much faster than needed a remedy is.  Both forms deliver the same samples.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image, ImageOps

from benchmarks.photo_training import (
    Photos,
    Resize,
    Site,
    decode_quarter,
    training,
)
from labkit.machine.clock import SystemClock
from labkit.parts.packing.folder import open_folder
from labkit.parts.storage.disks import HARD_DISK
from labkit.parts.storage.modelled import ModelledReader
from labkit.parts.storage.slow_disk import why_no_slow_disk

IMAGES = 160
COMPUTE_MS = 5.0


class ModelledPhotos(Photos):
    """Photographs on a modelled disk without a page cache."""

    def __init__(self, data: Path, count: int) -> None:
        reader = open_folder(data)
        super().__init__([reader.paths[i % len(reader)] for i in range(count)])
        self.reader = ModelledReader(
            reader, HARD_DISK, clock=SystemClock(), multiprocessing_context="fork", caches=False
        )

    def read(self, i: int) -> bytes:
        return self.reader.read(i % len(self.reader))[0]


def slow_disk(site: Site, fixed: bool) -> dict[str, object]:
    """Files on a hard disk; better: on this machine's own disk."""
    if fixed:
        paths = site.copied(IMAGES)
        return training(Photos(paths), COMPUTE_MS, paths)
    if reason := why_no_slow_disk():
        site.notes.append(f"modelled disk, {HARD_DISK.name}: a throttled one {reason}")
        return training(ModelledPhotos(site.data, IMAGES), COMPUTE_MS)
    paths = site.on_slow_disk(IMAGES)
    return training(Photos(paths), COMPUTE_MS, paths)


class Uncached(Photos):
    """Photographs that memory does not keep, as where there are more of them than fit into it."""

    def read(self, i: int) -> bytes:
        with self.paths[i].open("rb", buffering=0) as file:
            data = file.readall()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return data


def shared_disk(site: Site, fixed: bool) -> dict[str, object]:
    """More files than memory holds, on a disk that one worker already keeps busy; better: in it."""
    if fixed:
        return training(Photos(site.copied(IMAGES), decode=decode_quarter), COMPUTE_MS)
    return training(Uncached(site.on_slow_disk(IMAGES), decode=decode_quarter), COMPUTE_MS)


class Brighten:
    """255 (v / 255)^0.8, computed for every value of every image."""

    def __call__(self, image: np.ndarray) -> np.ndarray:
        brighter = [round(255 * (value / 255) ** 0.8) for value in image.ravel().tolist()]
        return np.array(brighter, np.uint8).reshape(image.shape)


class BrightenByTable:
    """The same, computed once for each of the 256 values."""

    def __init__(self) -> None:
        self.table = np.array([round(255 * (v / 255) ** 0.8) for v in range(256)], np.uint8)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return self.table[image]


def mirror(image: np.ndarray) -> np.ndarray:
    return image[:, ::-1]


def slow_transform(site: Site, fixed: bool) -> dict[str, object]:
    """One transform of three goes value by value in Python; better: a table."""
    transforms = [Resize(224), BrightenByTable() if fixed else Brighten(), mirror]
    photos = Photos(site.paths(IMAGES), transforms)
    return training(photos, COMPUTE_MS)


class Crop:
    """Cut the middle out, as large as a configuration file says.

    Args:
        path: of the file.
        read_once: read it now, not for every image.
    """

    def __init__(self, path: Path, *, read_once: bool) -> None:
        self.path, self.margin = path, None
        if read_once:
            self.margin = self.read_margin()

    def read_margin(self) -> int:
        return json.loads(self.path.read_text())["augment"]["crop_margin"]

    def __call__(self, image: np.ndarray) -> np.ndarray:
        margin = self.read_margin() if self.margin is None else self.margin
        return image[margin:-margin, margin:-margin]


def config_per_sample(site: Site, fixed: bool) -> dict[str, object]:
    """A transform reads and parses the configuration for every image; better: once."""
    path = site.scratch / "config.json"
    classes = [{"id": i, "name": f"class {i}", "weight": i / 7} for i in range(32_000)]
    path.write_text(json.dumps({"augment": {"crop_margin": 16}, "classes": classes}))
    photos = Photos(site.paths(IMAGES), [Crop(path, read_once=fixed), Resize()])
    return training(photos, COMPUTE_MS)


CHANGES = (ImageOps.mirror, ImageOps.invert, ImageOps.flip)


class ThroughFloats:
    """Change an image and convert it to floats from 0 to 1 and back."""

    def __init__(self, change: Callable[[Image.Image], Image.Image]) -> None:
        self.change = change

    def __call__(self, image: np.ndarray) -> np.ndarray:
        values = np.array(self.change(Image.fromarray(image))).astype(np.float64) / 255.0
        return np.rint(values * 255.0).astype(np.uint8)


def change_all(image: np.ndarray) -> np.ndarray:
    changed = Image.fromarray(image)
    for change in CHANGES:
        changed = change(changed)
    return np.array(changed)


def conversion_chain(site: Site, fixed: bool) -> dict[str, object]:
    """Every change converts from PIL to floats to bytes; better: bytes all the way."""
    changes = [change_all] if fixed else list(map(ThroughFloats, CHANGES))
    photos = Photos(site.paths(IMAGES), [*changes, Resize()])
    return training(photos, COMPUTE_MS)


class Annotated(Photos):
    """Photographs with their boxes, of a list of all the annotations there are."""

    def __init__(self, paths: list[Path], annotations: list[dict], *, by_image: bool) -> None:
        super().__init__(paths)
        self.annotations, self.by_image = annotations, None
        if by_image:
            self.by_image = {}
            for annotation in annotations:
                self.by_image.setdefault(annotation["image_id"], []).append(annotation)

    def annotations_of(self, i: int) -> list[dict]:
        if self.by_image is not None:
            return self.by_image[i]
        return [annotation for annotation in self.annotations if annotation["image_id"] == i]

    def __getitem__(self, i: int) -> dict[str, object]:
        boxes = [annotation["bbox"] for annotation in self.annotations_of(i)]
        classes = [annotation["category_id"] for annotation in self.annotations_of(i)]
        crowds = [annotation["iscrowd"] for annotation in self.annotations_of(i)]
        return {
            **super().__getitem__(i),
            "boxes": torch.tensor(boxes, dtype=torch.float32),
            "classes": torch.tensor(classes),
            "crowds": torch.tensor(crowds),
        }


def list_scan(site: Site, fixed: bool) -> dict[str, object]:
    """Every sample looks through all annotations of the data set; better: by image."""
    annotations = [
        {"image_id": k % 20_000, "bbox": [k, 1, k + 9, 8], "category_id": k % 80, "iscrowd": 0}
        for k in range(200_000)
    ]
    photos = Annotated(site.paths(IMAGES), annotations, by_image=fixed)
    return training(photos, COMPUTE_MS)


def decode_by_pixel(jpeg: bytes) -> np.ndarray:
    bgr = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_REDUCED_COLOR_4)
    rgb = np.empty_like(bgr)
    for y, row in enumerate(bgr.tolist()):
        rgb[y] = [(red, green, blue) for blue, green, red in row]
    return rgb


def python_decode(site: Site, fixed: bool) -> dict[str, object]:
    """The decoder swaps colours pixel by pixel in Python; better: OpenCV does it."""
    decode = decode_quarter if fixed else decode_by_pixel
    return training(Photos(site.paths(IMAGES // 2), decode=decode), 8.0)


def large_files(site: Site, fixed: bool) -> dict[str, object]:
    """Every core decodes, to pixels that are then thrown away; better: files of the size used."""
    paths = site.enlarged(2 * IMAGES)
    photos = Photos(site.small(paths) if fixed else paths)
    return training(photos, 1.6)
