"""Bottlenecks of kinds that the diagnosis was not written for.

    def name(site, fixed) -> the arguments of `lab.diagnose`, with the bottleneck or without

As in the other planted modules, the device is the limit once the bottleneck is removed, or nothing
but the planted work differs.  Five more, which are looked at last, are in `planted_held_out`.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from benchmarks.photo_training import (
    Photos,
    Resize,
    Site,
    Train,
    decode_half,
    simulated,
    training,
)
from benchmarks.planted_steps import light_photos, need_small_memory
from labkit.parts.devices import SimulatedGpu

IMAGES = 160
ROWS, COLUMNS = 1_000, 16
ENTRIES = 1_000_000
POINTS, OUTLINES = 150, 40


class Locked(Photos):
    """Photographs whose bytes come from a remote file under a lock; its answer is a sleep."""

    ANSWER_S = 0.006

    def __init__(self, paths: list[Path], lock: contextlib.AbstractContextManager) -> None:
        super().__init__(paths, decode=decode_half)
        self.lock = lock

    def read(self, i: int) -> bytes:
        with self.lock:
            time.sleep(self.ANSWER_S)
            return super().read(i)


def shared_lock(site: Site, fixed: bool) -> dict[str, object]:
    """All workers read under one lock, one at a time; better: without it."""
    lock = contextlib.nullcontext() if fixed else multiprocessing.Lock()
    photos = Locked(site.paths(IMAGES), lock)
    return training(photos, 2.5, num_workers=4)


class Rows(Dataset):
    """Rows of a table in memory, (COLUMNS,) float32."""

    def __init__(self) -> None:
        self.rows = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, object]:
        return {"image": self.rows[i], "label": i}


def batches_of_one(site: Site, fixed: bool) -> dict[str, object]:
    """Every batch is one row of a table; better: 64 rows."""
    return training(Rows(), 0.2, batch_size=64 if fixed else 1)


class Fields(Dataset):
    """Images of measured values, (3, 512, 512), that are read from .npy files.

    Args:
        site: where the files are made.
        dtype: of the values.
        count: samples; the files are repeated as needed.
    """

    FILES = 8

    def __init__(self, site: Site, dtype: str, count: int) -> None:
        self.paths = [site.scratch / f"{dtype}_{number}.npy" for number in range(self.FILES)]
        self.count = count
        for number, path in enumerate(self.paths):
            values = np.random.default_rng(number).random((3, 512, 512), np.float32)
            np.save(path, values.astype(dtype))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, object]:
        return {"image": torch.from_numpy(np.load(self.paths[i % self.FILES])), "label": i}


def float64_samples(site: Site, fixed: bool) -> dict[str, object]:
    """Batches of 50 MB, because values are kept as float64; better: as float32."""
    fields = Fields(site, "float32" if fixed else "float64", IMAGES // 2)
    return training(fields, 1.5)


class InPil:
    """Convert an array to an image of PIL, change it, and convert it back."""

    def __init__(self, change: Callable[[Image.Image], Image.Image]) -> None:
        self.change = change

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return np.array(self.change(Image.fromarray(image)))


def mirror(image: np.ndarray) -> np.ndarray:
    return cv2.flip(image, 1)


def flip(image: np.ndarray) -> np.ndarray:
    return cv2.flip(image, 0)


def pil_numpy_chain(site: Site, fixed: bool) -> dict[str, object]:
    """Each of six changes converts from NumPy to PIL and back; better: arrays all the way."""
    changes = [mirror, flip] if fixed else [InPil(ImageOps.mirror), InPil(ImageOps.flip)]
    photos = Photos(site.paths(IMAGES), [Resize(640), *3 * changes, Resize()], decode_half)
    return training(photos, 2.5)


class Tasks(Train):
    """Four tasks a step; the host makes the targets of each, and adds up the losses.

    Args:
        device: where it trains.
        read_each: as numbers, with `.item()`, after each task; not on the device.
    """

    TASKS, TASK_S = 4, 0.006

    def __init__(self, device: SimulatedGpu, *, read_each: bool) -> None:
        super().__init__(device)
        self.read_each = read_each
        self.scores = np.random.default_rng(0).random(120_000, np.float32)

    def after(self, batch: dict[str, object]) -> None:
        for _ in range(self.TASKS):
            np.argsort(self.scores)
            self.device.run(self.TASK_S)
            if self.read_each:
                self.device.synchronize()


def item_every_loss(site: Site, fixed: bool) -> dict[str, object]:
    """`.item()` of four losses in every step; better: they are added up on the device."""
    step = Tasks(simulated(0.25), read_each=not fixed)
    return training(light_photos(site), step)


def smooth(image: np.ndarray) -> np.ndarray:
    return cv2.bilateralFilter(image, 13, 50, 50)


def smoothed(batch: dict[str, object]) -> dict[str, object]:
    images = [torch.from_numpy(smooth(image.numpy())) for image in batch["image"]]
    return {**batch, "image": torch.stack(images)}


class SmoothFirst(Train):
    """Smooths every batch on the host before it is copied."""

    def __call__(self, batch: dict[str, object]) -> None:
        super().__call__(smoothed(batch))


def main_thread_transform(site: Site, fixed: bool) -> dict[str, object]:
    """The loop itself transforms what the loader delivers; better: the workers do."""
    transforms = [Resize(), smooth] if fixed else [Resize()]
    photos = Photos(site.paths(IMAGES), transforms, decode_half)
    return training(photos, (Train if fixed else SmoothFirst)(simulated(1.0)))


def deep_queue(site: Site, fixed: bool) -> dict[str, object]:
    """Forty batches of 3 MB may wait where /dev/shm has room for eight; better: four.

    Raises:
        Skip: there is more room than planted.
    """
    need_small_memory()
    fields = Fields(site, "float32", IMAGES // 2)
    return training(fields, 25.0, batch_size=1, prefetch_factor=2 if fixed else 20)


class Streamed(IterableDataset):
    """Photographs one after the other.

    Args:
        photos: what is streamed.
        split: every worker streams its share, not everything.
    """

    def __init__(self, photos: Photos, *, split: bool) -> None:
        self.photos, self.split = photos, split

    def __iter__(self) -> Iterator[dict[str, object]]:
        worker = get_worker_info() if self.split else None
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        return (self.photos[i] for i in range(first, len(self.photos), stride))


def everything_twice(site: Site, fixed: bool) -> dict[str, object]:
    """Each of two workers delivers the whole data set; better: half of it."""
    stream = Streamed(Photos(site.paths(IMAGES)), split=fixed)
    return training(stream, 1.0, shuffle=False)


class Listed(Photos):
    """Photographs with an entry of a long list, which is sent to every worker as it starts."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths, decode=decode_half)
        self.entries = [(f"{i:012d}", i % 80) for i in range(ENTRIES)]

    def __getitem__(self, i: int) -> dict[str, object]:
        return {**super().__getitem__(i), "class": self.entries[i][1]}


def million_objects(site: Site, fixed: bool) -> dict[str, object]:
    """Workers that do not share memory get a million objects every epoch; better: they persist."""
    multiprocessing.set_forkserver_preload([__name__])  # or each would import torch
    return training(
        Listed(site.paths(IMAGES)),
        3.0,
        persistent_workers=fixed,
        multiprocessing_context="forkserver",
    )


class Outlined(Photos):
    """Photographs with the boxes of what is on them, from outlines in a file for each.

    Args:
        paths: the photographs.
        folder: where the other files are made.
        parsed: boxes were computed from the outlines before.
    """

    FILES = 8

    def __init__(self, paths: list[Path], folder: Path, *, parsed: bool) -> None:
        super().__init__(paths, decode=decode_half)
        self.folder, self.parsed = folder, parsed
        for number in range(self.FILES):
            outlines = np.random.default_rng(number).random((OUTLINES, POINTS, 2)).tolist()
            (folder / f"{number}.json").write_text(json.dumps(outlines))
            np.save(folder / f"{number}.npy", self.parse(number))

    def parse(self, number: int) -> np.ndarray:
        """Return boxes (OUTLINES, 4) float64: left, top, right, bottom."""
        outlines = np.array(json.loads((self.folder / f"{number}.json").read_text()))
        return np.hstack([outlines.min(axis=1), outlines.max(axis=1)])

    def __getitem__(self, i: int) -> dict[str, object]:
        number = i % self.FILES
        boxes = np.load(self.folder / f"{number}.npy") if self.parsed else self.parse(number)
        return {**super().__getitem__(i), "boxes": torch.from_numpy(boxes)}


def json_per_sample(site: Site, fixed: bool) -> dict[str, object]:
    """A long JSON file is parsed for every sample; better: what is used of it is stored."""
    photos = Outlined(site.paths(IMAGES), site.scratch, parsed=fixed)
    return training(photos, 4.0)


class Server:
    """A process that answers one request at a time on every connection, each after a while."""

    ANSWER_S = 0.008

    def __init__(self) -> None:
        self.listener = Listener()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=self.serve, daemon=True)
        self.process.start()

    def serve(self) -> None:
        while True:
            connection = self.listener.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number = connection.recv()
                time.sleep(self.ANSWER_S)
                connection.send(number % 80)

    def close(self) -> None:
        self.process.terminate()
        self.process.join()
        self.listener.close()


class Asked(Photos):
    """Photographs with classes that a server knows.

    Args:
        paths: the files.
        address: of the server.
        shared: all processes use one connection; otherwise each opens its own.
    """

    def __init__(self, paths: list[Path], address: str, *, shared: bool) -> None:
        super().__init__(paths, decode=decode_half)
        self.address, self.shared = address, shared
        self.lock, self.connections = multiprocessing.Lock(), {}
        if shared:
            self.connection()

    def connection(self) -> Connection:
        user = "all" if self.shared else os.getpid()
        if user not in self.connections:
            self.connections[user] = Client(self.address)
        return self.connections[user]

    def ask(self, i: int) -> int:
        with self.lock if self.shared else contextlib.nullcontext():
            self.connection().send(i)
            return self.connection().recv()

    def __getitem__(self, i: int) -> dict[str, object]:
        return {**super().__getitem__(i), "class": self.ask(i)}


def one_connection(site: Site, fixed: bool) -> dict[str, object]:
    """Four workers share a connection to a server; better: one for each."""
    photos = Asked(site.paths(IMAGES), site.keep(Server()).listener.address, shared=not fixed)
    return training(photos, 3.0, num_workers=4)
