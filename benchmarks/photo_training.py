"""A small, ordinary training in which bottlenecks are planted.

    JPEG files ─ read ─ decode ─ transforms ─ DataLoader ─▶ batch ─ Train ─▶ simulated GPU

A Dataset with `__getitem__`, a DataLoader, and a step that launches work and continues.  The GPU is
simulated, at a speed that suits what is planted.  A pipeline that is slow in two places has no
single bottleneck, so everything that is not planted is set well: persistent workers, one OpenCV
thread in each, a host that seldom waits for the device.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from labkit.machine import procfs
from labkit.machine.clock import SystemClock
from labkit.parts.devices import GpuSpeeds, SimulatedGpu
from labkit.parts.storage import slow_disk

BATCH_SIZE = 8
PX = 160
FEW = 80
PINNED = {"pinned": True, "side_stream": False}


class Site:
    """Photographs, a folder for files made from them, and what has to be closed at the end.

    Args:
        data: a folder with .jpg files.
        scratch: a folder on the same disk.
    """

    def __init__(self, data: Path, scratch: Path) -> None:
        self.data, self.scratch = data, scratch
        self.notes: list[str] = []
        """What stands in for something else."""
        self._photos = sorted(self.data.rglob("*.jpg"))
        self._kept = contextlib.ExitStack()
        cv2.setNumThreads(0)  # where the training process itself decodes

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def keep(self, closes: object) -> object:
        """Close an object when the site is closed."""
        return self._kept.enter_context(contextlib.closing(closes))

    def paths(self, count: int) -> list[Path]:
        """Return `count` paths; the photographs are repeated as needed."""
        return [self._photos[i % len(self._photos)] for i in range(count)]

    def copied(self, count: int) -> list[Path]:
        """Return paths of copies on this machine's disk."""
        return _copy(self.paths(count), self.scratch / "copies")

    def on_slow_disk(self, count: int) -> list[Path]:
        """Return paths of copies on the throttled disk, and slow it down for this process.

        Raises:
            Skip: this machine cannot have one.
        """
        return _copy(self.paths(count), self._slow_folder)

    def enlarged(self, count: int) -> list[Path]:
        """Return paths of copies of the first FEW in twice the width and height."""

        def enlarge(bgr: np.ndarray) -> np.ndarray:
            return cv2.resize(bgr, None, fx=2, fy=2)

        return self.stored(self.paths(min(count, FEW)) * -(-count // FEW), ".jpg", enlarge)[:count]

    def small(self, paths: Sequence[Path]) -> list[Path]:
        """Return paths of lossless copies in the size that is used."""
        return self.stored(paths, ".png", Resize())

    def stored(self, paths: Sequence[Path], suffix: str, change: Callable) -> list[Path]:
        """Return paths of changed copies, with a folder for every folder and suffix."""
        folder = self.scratch / f"{paths[0].parent.name}{suffix}"
        folder.mkdir(exist_ok=True)
        copies = []
        for path in paths:
            copies.append(folder / f"{path.stem}{suffix}")
            if not copies[-1].exists():
                cv2.imwrite(str(copies[-1]), change(cv2.imread(str(path))))
        return copies

    @cached_property
    def _slow_folder(self) -> Path:
        size_bytes = sum(path.stat().st_size for path in self._photos)
        mount = slow_disk.up(data_bytes=size_bytes, files=len(self._photos))
        self.notes.append(f"throttled disk, {slow_disk.DESCRIPTION}")
        folder = mount / f"planted-{os.getpid()}"
        self._kept.callback(slow_disk.down)
        # Only processes of its group are slowed down; ours has to leave it before it can go.
        self._kept.callback(slow_disk.join, next(procfs.cgroup_folders("blkio")))
        slow_disk.join(slow_disk.cgroup_folder())
        return folder


def _copy(paths: Sequence[Path], folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for path in set(paths):
        if not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
    return [folder / path.name for path in paths]


def decode(jpeg: bytes, flags: int = cv2.IMREAD_COLOR) -> np.ndarray:
    """Decode to (H, W, 3) uint8 RGB."""
    return cv2.cvtColor(cv2.imdecode(np.frombuffer(jpeg, np.uint8), flags), cv2.COLOR_BGR2RGB)


# To half and to a quarter of the width and height: light work.
decode_half = partial(decode, flags=cv2.IMREAD_REDUCED_COLOR_2)
decode_quarter = partial(decode, flags=cv2.IMREAD_REDUCED_COLOR_4)


class Resize:
    def __init__(self, px: int = PX) -> None:
        self.px = px

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return cv2.resize(image, (self.px, self.px), interpolation=cv2.INTER_AREA)


class Photos(Dataset):
    """Photographs as (PX, PX, 3) uint8 tensors, each with its number.

    Args:
        paths: the files.
        transforms: from (H, W, 3) uint8 to the same, one after the other.
        decode: from a file's bytes to (H, W, 3) uint8 RGB.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        transforms: Sequence[Callable] | None = None,
        decode: Callable[[bytes], np.ndarray] = decode,
    ) -> None:
        self.paths = list(paths)
        self.transforms = [Resize()] if transforms is None else list(transforms)
        self.decode = decode

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, i: int) -> bytes:
        return self.paths[i].read_bytes()

    def __getitem__(self, i: int) -> dict[str, object]:
        image = self.decode(self.read(i))
        for transform in self.transforms:
            image = transform(image)
        return {"image": torch.from_numpy(np.ascontiguousarray(image)), "label": i}


def one_thread(worker_id: int) -> None:
    cv2.setNumThreads(0)


def loader(dataset: Dataset, **options: object) -> DataLoader:
    """Make a DataLoader that is set well except for the given options."""
    usual = {
        "batch_size": BATCH_SIZE,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(0),
        "num_workers": 2,
        "persistent_workers": True,
        "worker_init_fn": one_thread,
    }
    return DataLoader(dataset, **{**usual, **options})


def simulated(compute_ms: float, **speeds: float) -> SimulatedGpu:
    """Make a simulated GPU with the given computing time of an image."""
    profile = GpuSpeeds(name="planted", gpu_images_per_s=1e3 / compute_ms, **speeds)
    return SimulatedGpu(profile, SystemClock())


class Train:
    """A training step: copy, launch, continue; every `sync_every` steps wait for the loss.

    Args:
        device: where it runs.
        sync_every: steps between two waits.
        how: how batches are copied; see `SimulatedGpu.put`.
    """

    def __init__(self, device: SimulatedGpu, *, sync_every: int = 50, **how: bool) -> None:
        self.device, self.sync_every, self.how = device, sync_every, {**PINNED, **how}
        self.steps = 0

    def __call__(self, batch: dict[str, object]) -> None:
        tensors = {name: value for name, value in batch.items() if torch.is_tensor(value)}
        on_device = self.device.put(tensors, **self.how)
        self.device.wait(on_device)
        self.device.compute(len(on_device["image"]))
        self.steps += 1
        if self.steps % self.sync_every == 0:
            self.device.synchronize()
        self.after(batch)

    def after(self, batch: dict[str, object]) -> None:
        """Do the host's other work of a step."""


class TrainHere:
    """A small network trained on this machine's CPU."""

    device = None

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(3, 64, 5, stride=2), nn.ReLU(),
            nn.Conv2d(64, 128, 5, stride=2), nn.ReLU(),
            nn.Conv2d(128, 128, 3), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def __call__(self, batch: dict[str, torch.Tensor]) -> None:
        images = batch["image"].permute(0, 3, 1, 2).float() / 255
        loss = nn.functional.cross_entropy(self.model(images), batch["label"] % 10)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def training(
    dataset: Dataset,
    step: Callable | float,
    files: Sequence[Path] | None = None,
    *,
    kept: bool = False,
    **options: object,
) -> dict[str, object]:
    """Return the arguments of `lab.diagnose`.

    Args:
        dataset: what is loaded.
        step: trains; a number: a simulated GPU does, in so many milliseconds an image.
        files: what an epoch reads.
        kept: whether all batches are there already.
        **options: of the loader, where it is not set well.
    """
    step = step if callable(step) else Train(simulated(step))
    batches = loader(dataset, **options)
    return {
        "loader": list(batches) if kept else batches,
        "step": step,
        "files": files,
        "device": step.device,
    }
