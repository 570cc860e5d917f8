"""Batches in the making: samples come in any order, from any thread, and are one batch at the end.

    write(2, sample) ─ row 2 of the slot ─┐
    write(0, sample) ─ row 0 of the slot ─┼─ the last one: finish ─▶ done ─▶ result()
    fail(1, error) ───────────────────────┘

Whichever sample is there first says what the others must look like.  Main trap: of several
samples that fail, the one that is raised must not depend on which thread was faster; it is the
first of the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from labkit.parts.loading.samples import (
    Ragged,
    Rows,
    difference,
    entries_of,
    join,
    pin,
    put_together,
    take_apart,
)
from labkit.parts.loading.slots import Slot, Slots


class Batch:
    """One batch that threads fill.

    Args:
        number: in its epoch, from 0.
        keys: of its samples, in order.
        first: the number of its first sample in the epoch.
        slots: where its memory comes from.
        collate_fn: joins all samples instead, where a person has one.
        pin_memory: of what is not written into a slot.
    """

    def __init__(
        self,
        number: int,
        keys: Sequence,
        first: int,
        slots: Slots,
        collate_fn: Callable[[list], object] | None,
        *,
        pin_memory: bool,
    ) -> None:
        self.number, self.keys, self.first = number, keys, first
        self.done = threading.Event()
        self._slots, self._collate_fn, self._pin = slots, collate_fn, pin_memory
        self._lock = threading.Lock()
        self._left = len(keys)
        self._layout: object = None
        self._slot: Slot | None = None
        self._rows: list = []  # for each entry of a sample its batch array, or a list
        self._samples: list = [None] * len(keys) if collate_fn else []
        self._finished: object = None
        self._error: BaseException | None = None
        self._failed_at = len(keys)

    def write(self, position: int, sample: object, written: list | None = None) -> None:
        """Put a sample into its row.

        Args:
            position: in the batch.
            sample: as the dataset made it.
            written: what `rows` gave for it; entries that are these very views are there already.

        Raises:
            ValueError: it looks unlike the others.
        """
        if self._collate_fn is not None:
            self._samples[position] = sample
            return
        layout, entries = take_apart(sample)
        if self._layout is None:
            with self._lock:
                if self._layout is None:  # no other thread was faster
                    self._prepare(layout)
        if layout != self._layout:
            raise ValueError(
                f"{difference(layout, self._layout)}; make them alike or give a collate_fn"
            )
        for at, (rows, entry) in enumerate(zip(self._rows, entries)):
            if not written or entry is not written[at]:
                rows[position] = entry

    def rows(self, position: int) -> list | None:
        """Give a sample's entries where they will lie, to be written there.

        Returns:
            For each entry a view, None for what has no row; None while that is not known.
        """
        if self._layout is None:
            return None
        return [
            rows[position, ...] if isinstance(rows, np.ndarray) else None for rows in self._rows
        ]

    def as_sample(self, entries: list) -> object:
        """Put entries together as a sample has them."""
        return put_together(self._layout, iter(entries))

    def fail(self, position: int, error: BaseException) -> None:
        """Note why a sample could not be made."""
        with self._lock:
            if position < self._failed_at:
                self._failed_at, self._error = position, error

    def leave(self) -> None:
        """Count a sample as through, made or not; the last one finishes the batch."""
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if not is_last:
            return
        try:
            if self._error is None:
                self._finished = self._finish()
        except BaseException as error:  # a collate_fn, or torch's: goes on to the loop
            error.add_note(f"ThreadLoader was joining batch {self.number}, samples {self.keys!r}")
            self._error = error
        finally:
            self._let_go()
            self.done.set()

    def result(self) -> object:
        """Give the finished batch, once.

        Raises:
            Exception: what kept it from being made.
        """
        error, finished = self._error, self._finished
        self._error = self._finished = None
        if error is None:
            return finished
        try:
            raise error
        finally:
            del error  # else it and this frame would hold each other

    def _prepare(self, layout: object) -> None:
        entries = [entry for _, entry in entries_of(layout)]
        same_size = tuple(entry for entry in entries if isinstance(entry, Rows))
        if same_size:
            self._slot = self._slots.take(same_size, len(self.keys))
        arrays = iter(self._slot.arrays if self._slot else ())
        self._rows = [
            next(arrays) if isinstance(entry, Rows) else [None] * len(self.keys)
            for entry in entries
        ]
        self._layout = layout

    def _finish(self) -> object:
        import torch

        if self._collate_fn is not None:
            batch = self._collate_fn(self._samples)
            return pin(batch) if self._pin else batch
        tensors = iter(self._slot.hand_out(len(self.keys)) if self._slot else ())
        self._slot = None  # it frees itself from here on
        joined = []
        for (_, entry), rows in zip(entries_of(self._layout), self._rows):
            if isinstance(entry, Rows):
                joined.append(next(tensors))
                continue
            one = (
                join(rows)
                if isinstance(entry, Ragged)
                else (torch.utils.data.default_collate(rows))
            )
            joined.append(pin(one) if self._pin else one)
        return put_together(self._layout, iter(joined))

    def _let_go(self) -> None:
        if self._slot is not None:  # the batch failed before it was handed out
            self._slot.give_back()
        self._slot, self._rows, self._samples = None, [], []
