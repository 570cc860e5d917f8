"""What a loader may ask of the data; `labkit.source.Source` is it.

    source.order -> keys -> source[key] -> arrays -> source.collate -> batch

Main trap: `order` is iterated anew for every epoch and gives other keys then; a loader that
keeps the first epoch's keys repeats its random draws.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from labkit.parts.loading.outside import Outside


class Source(Protocol):
    """What a loader may ask of the data."""

    order: Iterable[tuple[int, int]]
    """Keys (epoch, image index) of the current epoch, shuffled by the seed."""
    files: tuple[str, ...]

    def __getitem__(self, key: tuple[int, int]) -> dict:
        """Read, decode and preprocess one image."""

    def collate(self, samples: list[dict]) -> dict[str, torch.Tensor]:
        """Join samples into one batch."""

    def outside(self, packing: str) -> Outside:
        """Say what a pipeline has to know that reads, decodes and preprocesses by itself."""

    def start_worker(self, worker_id: int) -> None:
        """Set this process's thread limits."""
