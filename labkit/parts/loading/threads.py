"""The loader `threads`: `ThreadLoader` with the settings of torch's loader; and its bound."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from labkit.parts.loading.source import Source, pin, threads_of
from labkit.recipes.thread_loader import ThreadLoader
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


def load_with_threads(source: Source, settings: Settings) -> ThreadLoader:
    """Load with threads of this process: as many as torch's loader has workers, as far ahead."""
    threads = settings.num_workers
    return ThreadLoader(
        source,
        batch_size=settings.batch_size,
        sampler=source.order,
        num_threads=threads,
        drop_last=True,
        # Without CUDA nothing is left of pinning: no batch is sent, so none is copied.
        pin_memory=settings.pin_memory and settings.device == "cuda",
        prefetch_batches=settings.prefetch_factor * max(1, threads),
    )


class BareThreads:
    """Make all samples in threads and hand over none: the bound of every loader with threads.

    A step gets the first batch, once as many samples are made as it and the steps before it take.

    Args:
        source: the samples.
        settings: `num_workers` threads, at least one.
    """

    def __init__(self, source: Source, settings: Settings) -> None:
        self._source, self._threads, self._size = source, threads_of(settings), settings.batch_size
        first = [source[key] for _, key in zip(range(self._size), source.order)]
        (self._batch,) = pin([source.collate(first)], settings, threaded=False)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Start the threads of an epoch."""
        order = list(self._source.order)
        keys = iter(order[: len(order) // self._size * self._size])
        lock, stopped = threading.Lock(), threading.Event()
        made: queue.SimpleQueue = queue.SimpleQueue()  # an entry for each batch, or an error
        count = 0

        def make_samples() -> None:
            nonlocal count
            try:
                while not stopped.is_set():
                    with lock:
                        key = next(keys, None)
                    if key is None:
                        return
                    self._source[key]
                    with lock:
                        count += 1
                        if count % self._size == 0:
                            made.put(None)
            except Exception as error:
                made.put(error)

        with ThreadPoolExecutor(self._threads, "BareThreads") as executor:
            try:
                for _ in range(self._threads):
                    executor.submit(make_samples)
                for _ in range(len(order) // self._size):
                    if error := made.get():
                        raise error
                    yield self._batch
            finally:
                stopped.set()
