"""The interface of the data to loaders, and the import of other libraries.

    source.order ─▶ keys ─▶ source[key] ─▶ arrays ─▶ source.collate ─▶ batch
    source.outside() ─▶ files, labels, numbers ─▶ tf.data or DALI ─▶ batch

`order` has other keys in every epoch.  tf.data and DALI read, decode and preprocess by themselves,
so they support only preprocessing that numbers describe in full.  Both start threads, and a fork
with threads running may hang: they are imported where a loader is opened, in the trial's process.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from labkit.contracts import Skip
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch

INSTALL = "pip install 'labkit[rivals]'"
LONGEST_REASON = 200  # characters of a library's own message; it has to stay one line


class Source(Protocol):
    """The interface of the data to loaders."""

    order: Iterable[tuple[int, int]]
    """Keys (epoch, image index) of the current epoch, shuffled by the seed."""

    def __getitem__(self, key: tuple[int, int]) -> dict:
        """Read, decode and preprocess one image."""

    def collate(self, samples: list[dict]) -> dict[str, torch.Tensor]:
        """Join samples into one batch."""

    def outside(self) -> Outside:
        """Return what a pipeline needs that reads, decodes and preprocesses by itself."""

    def start_worker(self, worker_id: int) -> None:
        """Set this process's thread limits and its garbage collector."""


@dataclass(frozen=True, kw_only=True)
class Outside:
    """An epoch's images, for a pipeline that reads, decodes and preprocesses by itself."""

    ids: np.ndarray
    """(N,) int64 image indices, ascending."""
    files: tuple[str, ...]
    """The file of each; in a pack the files that hold them."""
    names: tuple[str, ...]
    """The name of each, as packs keep it."""
    labels: np.ndarray
    """(N,) int64."""
    scale_rgb: tuple[float, float, float]
    shift_rgb: tuple[float, float, float]
    input_px: int

    def positions(self, source: Source, batch_size: int) -> np.ndarray:
        """Return the epoch's images as places in these lists, in the source's order.

        Returns:
            (B, batch_size) int64; what does not fill a batch is left out.
        """
        ids = np.array([image_id for _, image_id in source.order], np.int64)
        ids = ids[: len(ids) // batch_size * batch_size]
        return np.searchsorted(self.ids, ids).reshape(-1, batch_size)


def threads_of(settings: Settings) -> int:
    """Return the number of threads: as many as torch's loader has workers, at least one."""
    return max(1, settings.num_workers)


def open_library(module: str, package: str) -> ModuleType:
    """Import a library that loads by itself.

    Args:
        module: what to import.
        package: its name in messages.

    Raises:
        Skip: it is missing, or it is installed and broken; one line says which.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken library may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise Skip(f"{package} is not installed; {INSTALL}") from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
        raise Skip(
            f"{package} is installed and broken ({reason}); install it again: {INSTALL}"
        ) from error
