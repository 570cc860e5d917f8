"""Pinning for loaders that do not pin by themselves, as torch's pin_memory does for its own.

loader ─▶ thread: copy to page-locked memory ─▶ training loop
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from labkit.settings import Settings

if TYPE_CHECKING:
    import torch

    Batch = dict[str, torch.Tensor]


class PinningLoader:
    """Copy each batch of a loader once more, as torch's pin_memory does.

    With workers, torch has a thread that takes batches off their queue and copies them, so that the
    training loop does not unpickle them.  Without this copy, a machine without CUDA would credit
    prefetch_generator with what pin_memory does on one with CUDA.

    Args:
        loader: iterable of batches.
        threaded: copy in a thread, as torch does with workers.  Without workers it copies in the
            loop: a thread would load ahead while the device computes.
        page_locked: copy to page-locked memory, which needs CUDA.  Otherwise the page lock is all
            that is missing.

    Source: torch/utils/data/_utils/pin_memory.py; _SingleProcessDataLoaderIter._next_data.
    """

    def __init__(
        self, loader: Iterable[Batch], *, threaded: bool, page_locked: bool = False
    ) -> None:
        self._loader, self._threaded, self._page_locked = loader, threaded, page_locked

    def __iter__(self) -> Iterator[Batch]:
        """Start the loader in this thread, and the thread that copies, if there is one."""
        batches = iter(self._loader)
        if not self._threaded:
            return map(self._copy, batches)
        copies = self._copy_in_thread(batches)
        next(copies)  # a generator that has begun ends its thread however it is dropped
        return copies

    def _copy_in_thread(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        finished, dropped = queue.SimpleQueue(), threading.Event()
        ahead = threading.Semaphore(1)  # batches besides the one that is next in the loop

        def copy_all() -> None:
            try:
                for batch in batches:
                    finished.put(self._copy(batch))
                    ahead.acquire()
                    if dropped.is_set():
                        return
                finished.put(None)
            except Exception as error:
                finished.put(error)

        # Not a ThreadPoolExecutor: a loader that forks in its thread has workers that cannot exit.
        thread = threading.Thread(target=copy_all, name="PinningLoader", daemon=True)
        thread.start()
        try:
            yield None
            while isinstance(batch := finished.get(), dict):
                ahead.release()
                yield batch
            if batch is not None:
                raise batch
        finally:
            dropped.set()
            ahead.release()
            thread.join()

    def _copy(self, batch: Batch) -> Batch:
        if not self._page_locked:
            return {name: tensor.clone() for name, tensor in batch.items()}
        # A loader with a GPU pipeline delivers batches that are on the device already.
        return {name: t if t.is_cuda else t.pin_memory() for name, t in batch.items()}


def pin(loader: Iterable[Batch], settings: Settings, *, threaded: bool) -> Iterable[Batch]:
    """Pin batches where the settings ask for it; see `PinningLoader`."""
    if not settings.pin_memory or settings.device == "cpu":
        return loader
    return PinningLoader(loader, threaded=threaded, page_locked=settings.device == "cuda")
