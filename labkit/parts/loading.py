"""Loading: what turns single samples into CPU batches, in which processes.

A loader takes `(source, settings)` and returns an iterable that starts an epoch
each time it is iterated.  `source[key]` gives one sample's arrays, `source.order`
the keys of the epoch, `source.files` the image files for pipelines that read
themselves.  Main trap: inside a forked trial a DataLoader would take its start
method from the parent; it is always passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


class Source(Protocol):
    """What a loader may ask of the data."""

    order: Iterable[tuple[int, int]]
    """Keys (epoch, image index) of the current epoch, shuffled by the seed."""
    files: tuple[str, ...]

    def __getitem__(self, key: tuple[int, int]) -> dict:
        """Read, decode and preprocess one image."""

    def collate(self, samples: list[dict]) -> dict[str, torch.Tensor]:
        """Join samples into one batch."""

    def start_worker(self, worker_id: int) -> None:
        """Set this process's thread limits."""


def load_with_torch(source: Source, settings: Settings) -> Iterable[dict[str, torch.Tensor]]:
    """Load with torch's DataLoader and every knob of Settings."""
    import torch

    workers = settings.num_workers
    return torch.utils.data.DataLoader(
        source,
        batch_size=settings.batch_size,
        sampler=source.order,
        drop_last=True,
        collate_fn=source.collate,
        num_workers=workers,
        # Without CUDA torch warns and pins nothing; the emulated device models the effect.
        pin_memory=settings.pin_memory and settings.device == "cuda",
        prefetch_factor=settings.prefetch_factor if workers else None,
        persistent_workers=settings.persistent_workers and workers > 0,
        multiprocessing_context=settings.start_method if workers else None,
        worker_init_fn=source.start_worker if workers else None,
    )


LOADERS: dict[str, Callable[[Source, Settings], Iterable]] = {"torch": load_with_torch}
