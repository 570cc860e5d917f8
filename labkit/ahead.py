"""Ahead: how many samples a DataLoader's workers take before the first batch is asked for.

    iter(loader) ─▶ workers load until their queues are full ─▶ nothing moves ─▶ samples of each

What prefetch_factor counts is settled by counting, not by timing: with batches of 8, two workers
and a factor of 4 it is 8 samples or 64.  Main trap: a worker that had no turn yet looks like one
that is done, so every worker must have begun, and a second pass without a sample.

Source: DOCUMENTS D2; [001] 1.5 says samples.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import machine

if TYPE_CHECKING:
    import torch

# Workers and prefetch_factor; None leaves it unset, which [001] takes for no prefetching at all.
ASKED = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (2, None))
BATCH_SIZE = 8
TORCH_DEFAULT = 2
QUIET_S = 1.0  # samples that are only counted take microseconds
LONGEST_S = 120.0  # spawned workers import torch first
MANY = 10_000  # samples: more than any queue here takes


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one DataLoader had taken before it was asked for anything."""

    workers: int
    prefetch_factor: int | None
    """None: left unset."""
    batch_size: int
    samples: Sequence[int]
    """Of each worker."""

    @property
    def unit(self) -> str:
        """What prefetch_factor counted: batches, samples or neither."""
        ahead = TORCH_DEFAULT if self.prefetch_factor is None else self.prefetch_factor
        units = {ahead * self.batch_size: "batches", ahead: "samples"}
        each = set(self.samples)
        return units.get(each.pop(), "neither") if len(each) == 1 else "neither"


class Counting:
    """Samples that are nothing; how many were taken is counted.

    Args:
        taken: (workers,) int64 in shared memory; each worker has a place of its own, so that no
            two write to the same.
    """

    def __init__(self, taken: torch.Tensor) -> None:
        self._taken = taken

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, i: int) -> int:
        import torch

        self._taken[torch.utils.data.get_worker_info().id] += 1
        return i


def count_taken(
    asked: Sequence[tuple[int, int | None]] = ASKED, batch_size: int = BATCH_SIZE
) -> list[Taken]:
    """Start DataLoaders, ask them for nothing, and count what their workers took.

    Args:
        asked: number of workers, prefetch_factor (None: unset).
        batch_size: more than 1, or samples and batches are the same.

    Raises:
        TimeoutError: the workers never came to rest.
    """
    import torch

    taken, iterators = [], []
    for workers, prefetch_factor in asked:
        taken.append(torch.zeros(workers, dtype=torch.int64).share_memory_())
        loader = torch.utils.data.DataLoader(
            Counting(taken[-1]),
            batch_size=batch_size,
            num_workers=workers,
            prefetch_factor=prefetch_factor,
            multiprocessing_context="fork" if machine.can_fork() else "spawn",
            collate_fn=len,  # a number passes without shared memory
        )
        iterators.append(iter(loader))  # while these live, so do the workers
    return [
        Taken(workers=n, prefetch_factor=ahead, batch_size=batch_size, samples=samples)
        for (n, ahead), samples in zip(asked, _at_rest(taken))
    ]


def _at_rest(taken: Sequence[torch.Tensor]) -> list[list[int]]:
    """Wait until every worker has begun and none takes any more."""
    began_s = changed_s = time.monotonic()
    before: list[list[int]] = []
    while time.monotonic() - began_s < LONGEST_S:
        now = [samples.tolist() for samples in taken]
        if now != before or not all(map(all, now)):
            before, changed_s = now, time.monotonic()
        elif time.monotonic() - changed_s >= QUIET_S:
            return now
        time.sleep(QUIET_S / 20)
    raise TimeoutError(
        f"loader workers must come to rest within {LONGEST_S:g} s, got {before} samples taken; "
        "count again when less is running"
    )
