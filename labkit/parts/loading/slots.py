"""Slots: the memory of batches, used again as soon as nobody looks at the batch any more.

    free -> arrays (B, ...) -> rows written by threads -> tensors -> the loop -> last one dropped
      ^                                                                                   |
      +-----------------------------------------------------------------------------------+

Fresh memory costs a page fault per 4 KB, so memory that is known is used again.  When that is
allowed is not a matter of counting batches: every tensor, every view of it and every NumPy array
made of it keeps the slot from being used, however long.  Who keeps all batches has other memory
for each, as with torch's DataLoader.  Pinned memory is torch's own affair: its allocator keeps
freed pinned blocks, and records an event on whichever stream copies from one, so a block is not
written to before the copies from it are done.  Main trap: an event on the stream that computes
would not do; with a side stream the copy may still wait when the loop has dropped the batch.
Source: PyTorch, CachingHostAllocator.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from labkit.parts.loading.samples import Rows

if TYPE_CHECKING:
    import torch


class Slots:
    """Memory for batches of one loader.

    Args:
        keep: how many free slots are kept for the next batches, at most.
        pin: page-locked memory, of torch's own allocator.
    """

    def __init__(self, keep: int, *, pin: bool) -> None:
        self._free: deque[Slot] = deque(maxlen=keep)
        self._pin = pin

    def take(self, entries: tuple[Rows, ...], rows: int) -> Slot:
        """Find memory for a batch; free memory of another shape is let go.

        Args:
            entries: what one sample takes.
            rows: samples in a batch.
        """
        while True:  # threads and dropped tensors change the queue meanwhile
            try:
                slot = self._free.popleft()
            except IndexError:
                return Slot(entries, rows, weakref.ref(self), pin=self._pin)
            if slot.entries == entries and slot.rows >= rows:
                return slot

    def give_back(self, slot: Slot) -> None:
        """Keep a slot for the next batch; with enough of them its memory is freed."""
        self._free.append(slot)


class Slot:
    """Memory of one batch: an array (rows, ...) for each of its entries."""

    def __init__(
        self, entries: tuple[Rows, ...], rows: int, slots: weakref.ref[Slots], *, pin: bool
    ) -> None:
        import torch

        self.entries, self.rows = entries, rows
        # Not the slots themselves: that would be a circle, and wait for the garbage collector.
        self._slots = slots
        self._tensors: list[torch.Tensor] | None = None
        shapes = [(rows, *entry.shape) for entry in entries]
        if pin:
            kinds = [torch.from_numpy(np.empty(0, entry.dtype)).dtype for entry in entries]
            self._tensors = [
                torch.empty(shape, dtype=kind, pin_memory=True)
                for shape, kind in zip(shapes, kinds)
            ]
            self.arrays = [tensor.numpy() for tensor in self._tensors]
        else:
            self.arrays = [np.empty(shape, entry.dtype) for shape, entry in zip(shapes, entries)]

    def hand_out(self, rows: int) -> list[torch.Tensor]:
        """Give the first rows of each array as a tensor, once.

        The slot is free again when nothing refers to the tensors' memory any more.
        """
        import torch

        if self._tensors is not None:
            return [tensor[:rows] for tensor in self._tensors]
        # A tensor made of an array holds that array for as long as its storage lives, whoever
        # shares the storage; so the end of these views is the end of all uses.
        views = [array[:rows] for array in self.arrays]
        held = [None] * (len(views) - 1)
        for view in views:
            weakref.finalize(view, _let_go, self, held).atexit = False
        return [torch.from_numpy(view) for view in views]

    def give_back(self) -> None:
        """Let another batch have the memory; it has not been handed out."""
        slots = self._slots()
        if slots is not None and self._tensors is None:
            slots.give_back(self)


def _let_go(slot: Slot, held: list[None]) -> None:
    # Runs in whichever thread drops a tensor, also amid a garbage collection: no locks here.
    try:
        held.pop()
    except IndexError:  # it was the last one
        slot.give_back()
