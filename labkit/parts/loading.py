"""Loading: what turns single samples into CPU batches, in which processes.

A loader takes `(source, settings)` and returns an iterable that starts an epoch
each time it is iterated.  `source[key]` gives one sample's arrays, `source.order`
the keys of the epoch, `source.files` the image files for pipelines that read
themselves.  Main trap: inside a forked trial a DataLoader would take its start
method from the parent; it is always passed on.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from labkit.settings import Settings

if TYPE_CHECKING:
    import torch

DROPPED_POLL_S = 0.05


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
    loader = torch.utils.data.DataLoader(
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
    if settings.pin_memory and settings.device == "emulated":
        # torch pins only where there is CUDA; what stands in for CUDA must pin, too.
        return PinningLoader(loader, threaded=workers > 0)
    return loader


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


class PinningLoader:
    """What torch's pin_memory does to a loader, for a machine without CUDA.

    A thread takes finished batches off the workers' queue and copies them once more; so the
    training loop never unpickles a batch itself.  Only the page lock is missing.  Without this,
    prefetch_generator would be credited with what pin_memory already does on a CUDA machine.

    Args:
        loader: what delivers the batches.
        threaded: in a thread, as torch does with workers; without any it pins in the loop itself,
            and a thread would load ahead while the device computes.

    Source: torch/utils/data/_utils/pin_memory.py; _SingleProcessDataLoaderIter._next_data.
    """

    def __init__(self, loader: Iterable[dict[str, torch.Tensor]], *, threaded: bool) -> None:
        self._loader, self._threaded = loader, threaded

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Start the workers in this thread, and the thread that copies, if there is to be one."""
        batches = iter(self._loader)
        return _PinnedBatches(batches) if self._threaded else map(_copy, batches)


class _PinnedBatches:
    """One epoch of a `PinningLoader`; ends its thread when it is dropped."""

    def __init__(self, batches: Iterator[dict[str, torch.Tensor]]) -> None:
        self._finished: queue.Queue = queue.Queue(maxsize=1)
        self._dropped = threading.Event()
        # The thread must not hold `self`, or it would never be dropped.
        self._thread = threading.Thread(
            target=_pin, args=(batches, self._finished, self._dropped), daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        if self._dropped.is_set():
            raise StopIteration
        batch = self._finished.get()
        if isinstance(batch, dict):
            return batch
        self._dropped.set()
        self._thread.join()  # the loader's workers have ended before the epoch has
        raise batch

    def __del__(self) -> None:
        self._dropped.set()
        self._thread.join()


def _copy(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in batch.items()}


def _pin(batches: Iterator, finished: queue.Queue, dropped: threading.Event) -> None:
    """Copy batches into the queue until they end, fail, or nobody wants them."""

    def put(item: object) -> None:
        while not dropped.is_set():
            try:
                finished.put(item, timeout=DROPPED_POLL_S)
            except queue.Full:
                continue
            return

    try:
        for batch in batches:
            put(_copy(batch))
            if dropped.is_set():
                break
    except Exception as error:  # goes on to the loop that asks for batches
        del batches
        put(error)
    else:
        del batches
        put(StopIteration())


LOADERS: dict[str, Callable[[Source, Settings], Iterable]] = {
    "torch": load_with_torch,
    "resident": ResidentLoader,
}
