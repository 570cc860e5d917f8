"""Slow-downs in making a sample that projects reported and fixed, rebuilt from their descriptions.

    def name(site, fixed) -> the arguments of `lab.diagnose`, as it was reported or as it was fixed

Projects, causes and published gains are in `real_cases`.  Data are synthetic and small; everything
that was not reported is set well, as in the planted modules.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from benchmarks.photo_training import (
    PX,
    Photos,
    Resize,
    Site,
    decode_half,
    decode_quarter,
    training,
)
from labkit.contracts import Skip

IMAGES = 160
WINDOWS = 6_400
ROWS = 16_384


class Frames(Dataset):
    """Frames of a robot's episodes: a table with an encoded image and an action in each row.

    A sample is the image of a frame, and the actions of the AHEAD frames from it on.

    Args:
        paths: files of the images.
        whole_rows: actions are taken from whole rows, whose images are decoded for that.
    """

    AHEAD, ACTION = 8, 7

    def __init__(self, paths: Sequence[Path], *, whole_rows: bool) -> None:
        self.whole_rows = whole_rows
        self.images = [path.read_bytes() for path in paths]
        shape = (len(paths), self.ACTION)
        self.actions = np.random.default_rng(0).random(shape, np.float32)

    def __len__(self) -> int:
        return len(self.images)

    def image(self, i: int) -> torch.Tensor:
        return torch.from_numpy(Resize()(decode_quarter(self.images[i])))

    def row(self, i: int) -> dict[str, torch.Tensor]:
        return {"image": self.image(i), "action": torch.from_numpy(self.actions[i])}

    def __getitem__(self, i: int) -> dict[str, object]:
        ahead = [min(k, len(self) - 1) for k in range(i, i + self.AHEAD)]
        if self.whole_rows:
            actions = torch.stack([self.row(k)["action"] for k in ahead])
        else:
            actions = torch.from_numpy(self.actions[ahead])
        return {"image": self.image(i), "label": i, "actions": actions}


def unused_images_decoded(site: Site, fixed: bool) -> dict[str, object]:
    """Eight images are decoded for the actions in their rows; better: only the actions are read."""
    return training(Frames(site.paths(IMAGES), whole_rows=not fixed), 1.0)


class Opened(Photos):
    """Photographs that Pillow decodes and resizes to SIDE_PX.

    Args:
        paths: the files.
        drafted: the decoder is told the size that is needed, and decodes no more than twice that.
    """

    SIDE_PX = 320

    def __init__(self, paths: Sequence[Path], *, drafted: bool) -> None:
        super().__init__(paths)
        self.drafted = drafted

    def __getitem__(self, i: int) -> dict[str, object]:
        size = (self.SIDE_PX, self.SIDE_PX)
        with Image.open(self.paths[i]) as image:
            if self.drafted:
                image.draft("RGB", size)
            resized = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
        return {"image": torch.from_numpy(np.array(resized)), "label": i}


def decoded_in_full_size(site: Site, fixed: bool) -> dict[str, object]:
    """Large JPEGs are decoded in full and then made smaller; better: decoded at half the size."""
    return training(Opened(site.enlarged(IMAGES), drafted=fixed), 3.0)


class Windows(Dataset):
    """Windows of a recording that is in memory, (CHANNELS, LENGTH) float32.

    Args:
        count: windows.
        by_table: where a window begins, and its class, are looked up in a pandas table.

    Raises:
        Skip: pandas is not installed.
    """

    CHANNELS, LENGTH, SAMPLES = 22, 250, 100_000

    def __init__(self, count: int, *, by_table: bool) -> None:
        try:
            import pandas as pd
        except ImportError as missing:
            raise Skip(f"needs pandas: {missing}") from missing
        rng = np.random.default_rng(0)
        self.by_table = by_table
        self.recording = rng.random((self.CHANNELS, self.SAMPLES), np.float32)
        self.table = pd.DataFrame({
            "i_start": rng.integers(0, self.SAMPLES - self.LENGTH, count),
            "subject": [f"subject {i % 9}" for i in range(count)],
            "session": rng.integers(0, 2, count),
            "target": rng.integers(0, 4, count),
        })  # fmt: skip
        self.starts, self.targets = (self.table[name].to_numpy() for name in ("i_start", "target"))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> dict[str, object]:
        if self.by_table:
            start = self.table.iloc[i]["i_start"]
            target = self.table.iloc[i]["target"]
        else:
            start, target = self.starts[i], self.targets[i]
        window = self.recording[:, start : start + self.LENGTH]
        return {"image": torch.from_numpy(window), "label": int(target)}


def table_row_per_window(site: Site, fixed: bool) -> dict[str, object]:
    """Each window looks up a row of a pandas table; better: arrays made once."""
    return training(Windows(WINDOWS, by_table=not fixed), 0.01, batch_size=64)


class Distort:
    """Change contrast, brightness, saturation and hue of each pixel; (H, W, 3) uint8 RGB."""

    def __call__(self, image: np.ndarray) -> np.ndarray:
        brighter = np.clip(image * np.float32(1.1) + np.float32(8), 0, 255) / np.float32(255)
        hue, saturation, value = cv2.split(cv2.cvtColor(brighter, cv2.COLOR_RGB2HSV))
        hue, saturation = (hue + 10) % 360, np.minimum(saturation * np.float32(1.2), 1)
        changed = cv2.cvtColor(cv2.merge([hue, saturation, value]), cv2.COLOR_HSV2RGB)
        return np.rint(changed * 255).astype(np.uint8)


class Cropped(Photos):
    """A random square of each photograph, with distorted colours.

    Args:
        paths: the files.
        distorts_first: the colours of the whole photograph are distorted, then it is cropped.
    """

    def __init__(self, paths: Sequence[Path], *, distorts_first: bool) -> None:
        super().__init__(paths)
        self.distorts_first, self.distort = distorts_first, Distort()

    def crop(self, image: np.ndarray, i: int) -> np.ndarray:
        left, top = np.random.default_rng(i).integers(0, np.array(image.shape[1::-1]) - PX)
        return image[top : top + PX, left : left + PX]

    def __getitem__(self, i: int) -> dict[str, object]:
        image = self.decode(self.read(i))
        if self.distorts_first:
            image = self.crop(self.distort(image), i)
        else:
            image = self.distort(self.crop(image, i))
        return {"image": torch.from_numpy(np.ascontiguousarray(image)), "label": i}


def distorted_before_crop(site: Site, fixed: bool) -> dict[str, object]:
    """Colours of pixels that are cut off are distorted, too; better: crop first."""
    return training(Cropped(site.paths(IMAGES), distorts_first=not fixed), 3.0)


class Patches(Dataset):
    """Small patches of large volumes, (1, PATCH, PATCH, PATCH) float32.

    Args:
        count: patches of an epoch.
        copies_all: the whole volume is copied before it is cut.
    """

    SUBJECTS, SIDE, PATCH = 4, 144, 24

    def __init__(self, count: int, *, copies_all: bool) -> None:
        self.count, self.copies_all = count, copies_all
        draw, shape = torch.Generator().manual_seed(0), (1, self.SIDE, self.SIDE, self.SIDE)
        self.subjects = [
            {name: torch.rand(shape, generator=draw) for name in ("image", "mask")}
            for _ in range(self.SUBJECTS)
        ]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, object]:
        subject = self.subjects[i % self.SUBJECTS]
        if self.copies_all:
            subject = copy.deepcopy(subject)
        begins = np.random.default_rng(i).integers(0, self.SIDE - self.PATCH, 3)
        place = (..., *(slice(begin, begin + self.PATCH) for begin in begins.tolist()))
        return {**{name: volume[place].clone() for name, volume in subject.items()}, "label": i}


def volume_copied_per_patch(site: Site, fixed: bool) -> dict[str, object]:
    """A volume is copied for each small patch of it; better: the patch alone is copied."""
    return training(Patches(2 * IMAGES, copies_all=not fixed), 0.5)


class Stored(Dataset):
    """Images in one HDF5 file.

    Args:
        path: of the file, which is made.
        images: (N, H, W, 3) uint8.
        reopened: the file is opened for each image, not once in each process.
        layout: of the data in the file, as h5py's create_dataset takes it.

    Raises:
        Skip: h5py is not installed.
    """

    def __init__(
        self, path: Path, images: np.ndarray, *, reopened: bool = False, **layout: object
    ) -> None:
        try:
            import h5py
        except ImportError as missing:
            raise Skip(f"needs h5py: {missing}") from missing
        with h5py.File(path, "w") as file:
            file.create_dataset("images", data=images, **layout)
        self.path, self.count, self.reopened = path, len(images), reopened
        self.opened: dict[int, object] = {}  # by process: HDF5's handles do not survive a fork

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, object]:
        import h5py

        if self.reopened:
            with h5py.File(self.path) as file:
                image = file["images"][i]
        else:
            if os.getpid() not in self.opened:
                self.opened[os.getpid()] = h5py.File(self.path)["images"]
            image = self.opened[os.getpid()][i]
        return {"image": torch.from_numpy(image), "label": i}


def images_of(site: Site, count: int) -> np.ndarray:
    """Return photographs as (count, PX, PX, 3) uint8."""
    photos = Photos(site.paths(count), [Resize()], decode_half)
    return np.stack([photos[i]["image"] for i in range(count)])


def compressed_slices(site: Site, fixed: bool) -> dict[str, object]:
    """Each image decompresses all chunks that h5py has laid over it; better: no compression."""
    layout = {} if fixed else {"compression": "gzip"}
    path = site.scratch / ("plain.h5" if fixed else "compressed.h5")
    return training(Stored(path, images_of(site, IMAGES), **layout), 1.5)


def file_opened_per_sample(site: Site, fixed: bool) -> dict[str, object]:
    """The file is opened for each image; better: once in each worker."""
    path = site.scratch / ("opened_once.h5" if fixed else "reopened.h5")
    images = np.tile(images_of(site, IMAGES), (4, 1, 1, 1))
    return training(Stored(path, images, reopened=not fixed), 0.03)


class Table(Dataset):
    """Rows of a table whose columns are arrays in memory."""

    COLUMNS, FEATURES = 12, 32

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng(0)
        self.columns = {f"column {k}": rng.random(rows, np.float32) for k in range(self.COLUMNS)}
        self.columns["image"] = rng.random((rows, self.FEATURES), np.float32)
        self.columns["label"] = np.arange(rows)

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(column[i]) for name, column in self.columns.items()}


class BatchedTable(Table):
    """The same, from which torch takes the rows of a batch at once."""

    def __getitems__(self, numbers: list[int]) -> list[dict[str, torch.Tensor]]:
        batch = {name: torch.from_numpy(column[numbers]) for name, column in self.columns.items()}
        return [{name: values[k] for name, values in batch.items()} for k in range(len(numbers))]


def rows_one_by_one(site: Site, fixed: bool) -> dict[str, object]:
    """Rows of a batch are made into tensors one by one; better: all rows of a column at once."""
    table = (BatchedTable if fixed else Table)(ROWS)
    return training(table, 0.005, batch_size=256)
