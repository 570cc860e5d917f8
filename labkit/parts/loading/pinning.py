"""Pinning where there is no CUDA: what torch's pin_memory does to a loader, and no page lock.

    workers -> queue -> thread: copy -> queue -> training loop

Main trap: only with workers has torch a thread for it; a thread without them would load ahead.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from labkit.settings import Settings

if TYPE_CHECKING:
    import torch

DROPPED_POLL_S = 0.05


class PinningLoader:
    """What torch's pin_memory does to a loader, for a machine without CUDA.

    A thread takes finished batches off the workers' queue and copies them once more; so the
    training loop never unpickles a batch itself.  Only the page lock is missing.  Without this,
    prefetch_generator would be credited with what pin_memory already does on a CUDA machine.

    Args:
        loader: what delivers the batches.
        threaded: in a thread, as torch does with workers; without any it pins in the loop itself,
            and a thread would load ahead while the device computes.
        page_locked: copy to page-locked memory, for loaders with CUDA that are not torch's own.

    Source: torch/utils/data/_utils/pin_memory.py; _SingleProcessDataLoaderIter._next_data.
    """

    def __init__(
        self,
        loader: Iterable[dict[str, torch.Tensor]],
        *,
        threaded: bool,
        page_locked: bool = False,
    ) -> None:
        self._loader, self._threaded = loader, threaded
        self._copy = _lock_pages if page_locked else _copy

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Start the workers in this thread, and the thread that copies, if there is to be one."""
        batches = iter(self._loader)
        if not self._threaded:
            return map(self._copy, batches)
        return _PinnedBatches(batches, self._copy)


def pin(
    loader: Iterable[dict[str, torch.Tensor]], settings: Settings, *, threaded: bool
) -> Iterable[dict[str, torch.Tensor]]:
    """Pin batches, where settings say so, as torch's loader does with its own.

    Args:
        loader: what delivers the batches.
        settings: `pin_memory` and `device` count.
        threaded: beside the loop; False where nothing may be loaded ahead.
    """
    if not settings.pin_memory or settings.device == "cpu":
        return loader
    return PinningLoader(loader, threaded=threaded, page_locked=settings.device == "cuda")


class _PinnedBatches:
    """One epoch of a `PinningLoader`; ends its thread when it is dropped."""

    def __init__(self, batches: Iterator[dict[str, torch.Tensor]], copy: Callable) -> None:
        self._finished: queue.Queue = queue.Queue(maxsize=1)
        self._dropped = threading.Event()
        # The thread must not hold `self`, or it would never be dropped.
        self._thread = threading.Thread(
            target=_pin, args=(batches, copy, self._finished, self._dropped), daemon=True
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


def _lock_pages(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    # What is on the device already has nothing left to copy.
    return {
        name: tensor if tensor.is_cuda else tensor.pin_memory() for name, tensor in batch.items()
    }


def _pin(
    batches: Iterator, copy: Callable, finished: queue.Queue, dropped: threading.Event
) -> None:
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
            put(copy(batch))
            if dropped.is_set():
                break
    except Exception as error:  # goes on to the loop that asks for batches
        del batches
        put(error)
    else:
        del batches
        put(StopIteration())
