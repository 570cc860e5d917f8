"""The loader that has nothing left to load.

    first batch, once -> the same batch, every step

Main trap: it does less work than any other loader, so its time is a limit and never a winner.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from labkit.parts.loading.source import Source
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


class ResidentLoader:
    """One batch, made beforehand and delivered again and again: nothing is left to load.

    The epoch is then as long as the device alone takes.

    Args:
        source: the images; its first batch is made here and now.
        settings: `batch_size` counts.
    """

    def __init__(self, source: Source, settings: Settings) -> None:
        keys = list(source.order)
        self._steps = len(keys) // settings.batch_size
        self._batch = source.collate([source[key] for key in keys[: settings.batch_size]])

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Deliver as many batches as the epoch has."""
        return itertools.repeat(self._batch, self._steps)
