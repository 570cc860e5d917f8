"""ThreadLoader: a DataLoader whose samples are made in threads, straight into the batch.

    keys ─▶ tasks ─▶ thread: dataset[key] ─▶ row of a batch array ─┐
                └──▶ thread: dataset[key] ─▶ row of a batch array ─┴▶ batches, in order ─▶ loop

JPEG decoders, OpenCV, NumPy and file reads let other threads run, so threads decode on all
cores; and nothing is pickled, sent or collated.  Memory of a batch is used again when the loop
has dropped it (`slots`).  Main trap: threads share everything, so a transform that keeps a
buffer, a file position or a random state between samples is wrong here and right in processes;
and Python's own work runs in one thread at a time, so loops in Python gain nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import TYPE_CHECKING

from labkit.machine import cores
from labkit.parts.loading.batches import Batch
from labkit.parts.loading.epoch import Epoch, Samples
from labkit.parts.loading.slots import Slots
from labkit.parts.loading.source import Source
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch

SPARE_SLOTS = 2  # beside the batches ahead: the one in the loop, and the one before it


class ThreadLoader:
    """Iterate over batches that threads of this process make; a new epoch for each iteration.

    A drop-in for torch's DataLoader over a map-style dataset: the same batches in the same order
    for the same seed of torch, and errors raised in the loop, with their own traceback and the
    sample's key.  A batch stays as it is for as long as anything refers to it; none has to be
    copied to be kept.  The threads end with the epoch, with a `break` or an error in the
    loop, and when the iterator is dropped; each finishes the sample it is at.

    Args:
        dataset: gives a sample for a key; called from several threads at once.  One with a method
            `fill(key, rows)` may write into the batch itself; see `Samples`.
        batch_size: samples in a batch.
        shuffle: draw the order anew for every epoch; else as in the dataset.
        sampler: the keys of an epoch instead: any iterable, also torch's samplers.
        batch_sampler: lists of keys, in place of batch_size, shuffle, sampler and drop_last.
        num_threads: threads; None: one per core; 0: samples are made in the loop itself.
        collate_fn: joins a list of samples, in a thread; None: what torch's default_collate
            would give, without its copy, and `x_ragged` entries joined end to end.
        drop_last: leave out a last batch that is not full.
        pin_memory: page-locked batches, for copies beside the compute stream; needs CUDA.
        prefetch_batches: batches ahead of the loop; None: enough for two samples per thread,
            and at least two.  Memory is bounded by as many batches and two more.
        generator: draws the order; None: torch's own.
        worker_init_fn: called with the thread's number in each thread, before its first sample.

    Raises:
        ValueError: arguments that exclude each other or are out of range.
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Iterable | None = None,
        batch_sampler: Iterable | None = None,
        *,
        num_threads: int | None = None,
        collate_fn: Callable[[list], object] | None = None,
        drop_last: bool = False,
        pin_memory: bool = False,
        prefetch_batches: int | None = None,
        generator: torch.Generator | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        import torch

        can_only_iterate = isinstance(dataset, torch.utils.data.IterableDataset)
        if can_only_iterate or not hasattr(dataset, "__getitem__"):
            raise ValueError(
                f"dataset must give samples by key (__getitem__), got {type(dataset).__name__}; "
                "use torch's DataLoader for one that can only be iterated"
            )
        if num_threads is None:
            num_threads = cores()
        _check(batch_size, num_threads, prefetch_batches)
        if sampler is not None and shuffle:
            raise ValueError("shuffle must be False with a sampler, got True; shuffle in it")
        if batch_sampler is not None and (
            batch_size != 1 or shuffle or sampler is not None or drop_last
        ):
            raise ValueError(
                "batch_sampler must stand alone, got batch_size, shuffle, sampler or drop_last "
                "beside it; leave them out"
            )
        if pin_memory and not torch.cuda.is_available():
            warnings.warn("pin_memory needs CUDA, which is not there; not pinned", stacklevel=2)
            pin_memory = False
        if sampler is None and batch_sampler is None:
            data = torch.utils.data
            sampler = (
                data.RandomSampler(dataset, generator=generator)
                if shuffle
                else data.SequentialSampler(dataset)
            )
        if prefetch_batches is None:
            prefetch_batches = max(2, 1 + -(-2 * num_threads // batch_size))
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.num_threads, self.prefetch_batches = num_threads, prefetch_batches
        self.collate_fn, self.worker_init_fn = collate_fn, worker_init_fn
        self.pin_memory, self.generator = pin_memory, generator
        self._slots = Slots(prefetch_batches + SPARE_SLOTS, pin=pin_memory)

    def __len__(self) -> int:
        """Count an epoch's batches."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        if not isinstance(self.sampler, Sized):
            raise TypeError(
                f"sampler must have a length for len(), got {type(self.sampler).__name__} "
                "without; count the batches in the loop"
            )
        keys = len(self.sampler)
        return keys // self.batch_size if self.drop_last else -(-keys // self.batch_size)

    def __iter__(self) -> Iterator:
        """Start the threads of an epoch, and the first batches."""
        return Epoch(self)

    def lists_of_keys(self) -> Iterator[list]:
        """Give the keys of an epoch, batch after batch."""
        if self.batch_sampler is not None:
            for some in map(list, self.batch_sampler):
                if not some:
                    raise ValueError("batch_sampler must give at least one key a batch, got none")
                yield some
            return
        keys = iter(self.sampler)
        while some := list(islice(keys, self.batch_size)):
            if len(some) == self.batch_size or not self.drop_last:
                yield some

    def start_batch(self, number: int, keys: list, first: int) -> Batch:
        """Make an empty batch."""
        return Batch(number, keys, first, self._slots, self.collate_fn, pin_memory=self.pin_memory)


def load_with_threads(source: Source, settings: Settings) -> ThreadLoader:
    """Load with threads of this process: as many as torch's loader has workers, as far ahead.

    Batches are written into pinned memory where they are made, so that nothing of what
    `PinningLoader` stands for is left to do.
    """
    threads = settings.num_workers
    return ThreadLoader(
        source,
        batch_size=settings.batch_size,
        sampler=source.order,
        num_threads=threads,
        drop_last=True,
        pin_memory=settings.pin_memory and settings.device == "cuda",
        prefetch_batches=settings.prefetch_factor * max(1, threads),
    )


def _check(batch_size: int, num_threads: int, prefetch_batches: int | None) -> None:
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("num_threads", num_threads, 0),
        ("prefetch_batches", prefetch_batches, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
