"""An epoch of a ThreadLoader: its threads, the batches ahead of the loop, and their end.

    loop ─ next ─▶ Epoch ─ tasks ─▶ threads: dataset[key] ─▶ batches ─▶ loop
                     └ closed, dropped, at exit ─▶ stop: threads join

Whoever drops the iterator ends the threads: a `break`, an error, the end of the program.  Main
trap: a thread that held the iterator would keep it from ever being dropped; so what the threads
share is an object of its own.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from labkit.parts.loading.batches import Batch

if TYPE_CHECKING:
    from labkit.parts.loading.threads import ThreadLoader

WAIT_S = 1.0  # how long an interrupt may go unnoticed where waiting cannot be interrupted


class Samples(Protocol):
    """What samples come from: a list, torch's Dataset, labkit's Source."""

    def __getitem__(self, key: object) -> object:
        """Make one sample; in several threads at once."""

    # Where there is such a method, it is asked for all samples but a batch's first ones:
    #     def fill(self, key, rows): ...
    # `rows` looks like a sample, and its arrays are the sample's rows of the batch.  The method
    # may write into them, as with OpenCV's dst=, and returns the sample in any case; an array
    # that is not one of `rows` is copied there as usual.


def sample_rng() -> np.random.Generator:
    """Draw for the sample that is being made in this thread, for transforms that are random.

    The same for the same seed of torch and place in the epoch, whichever thread makes the sample;
    Python's, NumPy's and torch's global generators are not, as all threads draw from one.

    Returns:
        The sample's own generator; outside of a ThreadLoader one that nothing seeds.
    """
    seed = getattr(_making, "seed", None)
    if seed is None:
        return np.random.default_rng()
    if _making.rng is None:
        _making.rng = np.random.default_rng(seed)
    return _making.rng


_making = threading.local()  # seed and rng of the sample that a thread is at


class _Work:
    """What an epoch's threads share.  They must not hold the iterator, or it never is dropped."""

    def __init__(self, dataset: Samples, seed: int) -> None:
        self.dataset, self.seed = dataset, seed
        self.fill = getattr(dataset, "fill", None)
        self.tasks: queue.SimpleQueue[tuple[Batch, int] | None] = queue.SimpleQueue()
        self.stopped = False
        self.failed: tuple[int, int] | None = None  # the first (batch, position) that failed
        self.broken: BaseException | None = None  # what kept a thread from starting
        self._lock = threading.Lock()

    def make(self, batch: Batch, position: int) -> None:
        """Make one sample, unless the loop will never come to see it."""
        try:
            if self._is_wanted(batch.number, position):
                if self.broken is not None:
                    raise self.broken
                _making.seed, _making.rng = (self.seed, batch.first + position), None
                key = batch.keys[position]
                rows = batch.rows(position) if self.fill is not None else None
                if rows is None:
                    batch.write(position, self.dataset[key])
                else:
                    batch.write(position, self.fill(key, batch.as_sample(rows)), rows)
        except BaseException as error:  # goes on to the loop
            error.add_note(
                f"ThreadLoader was making sample {batch.keys[position]!r}, "
                f"number {position} of batch {batch.number}"
            )
            self._note_failure(batch.number, position)
            batch.fail(position, error)
        finally:
            _making.seed = None
            batch.leave()

    def _is_wanted(self, number: int, position: int) -> bool:
        # What comes before a failure is still made: the loop gets those batches, and of several
        # failures always the first.
        return not self.stopped and (self.failed is None or (number, position) < self.failed)

    def _note_failure(self, number: int, position: int) -> None:
        with self._lock:
            self.failed = min(self.failed or (number, position), (number, position))


class Epoch:
    """One iteration over a ThreadLoader; ends its threads when it ends or is dropped."""

    def __init__(self, loader: ThreadLoader) -> None:
        import torch

        self._loader, self._process_id = loader, os.getpid()
        self._keys = loader.lists_of_keys()
        # DataLoader draws its workers' seed before the order; so the order is the same, too.
        seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
        self._work = _Work(loader.dataset, seed)
        self._ahead: deque[Batch] = deque()
        self._batches = self._samples = 0
        self._is_over = False
        threads = [
            threading.Thread(
                target=_run,
                args=(self._work, number, loader.worker_init_fn),
                name=f"ThreadLoader-{number}",
                daemon=True,  # the end of the program must not wait for an iterator somebody kept
            )
            for number in range(loader.num_threads)
        ]
        # Also at exit, before the interpreter is taken down around threads that still decode.
        self._stop = weakref.finalize(self, _stop, self._work, threads, os.getpid())
        try:
            for thread in threads:
                thread.start()
            if threads:
                self._go_ahead()
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> object:
        if self._process_id != os.getpid():
            raise RuntimeError(
                "a ThreadLoader's iterator must be used in the process that made it, got one "
                "inherited by fork, without its threads; iterate over the loader anew"
            )
        if self._is_over:
            raise StopIteration
        try:
            batch = self._next()
        except BaseException:
            self.close()
            raise
        if batch is None:
            self.close()
            raise StopIteration
        return batch[0]

    def close(self) -> None:
        """End the threads, each with the sample it is at."""
        self._is_over = True
        self._ahead.clear()
        self._stop()

    def _next(self) -> tuple[object] | None:
        try:
            self._go_ahead()
            if not self._ahead:
                return None
            batch = self._ahead.popleft()
            if not self._loader.num_threads:
                for position in range(len(batch.keys)):
                    self._work.make(batch, position)
            while not batch.done.wait(WAIT_S):
                pass
            finished = batch.result()
            if self._loader.num_threads:
                self._go_ahead()  # while the loop works on this one
        except StopIteration as error:  # it would end the loop as if all had been delivered
            raise RuntimeError("dataset or sampler raised StopIteration") from error
        return (finished,)

    def _go_ahead(self) -> None:
        """Start as many batches as the loader may be ahead."""
        most = self._loader.prefetch_batches if self._loader.num_threads else 1
        while len(self._ahead) < most and (keys := next(self._keys, None)) is not None:
            batch = self._loader.start_batch(self._batches, keys, self._samples)
            self._batches += 1
            self._samples += len(keys)
            self._ahead.append(batch)
            if self._loader.num_threads:
                for position in range(len(keys)):
                    self._work.tasks.put((batch, position))


def _run(work: _Work, number: int, init: Callable[[int], None] | None) -> None:
    """Make samples until told to stop."""
    try:
        if init is not None:
            init(number)
    except BaseException as error:  # goes on to the loop with the next sample
        work.broken = error
    while (task := work.tasks.get()) is not None:
        batch, position = task
        work.make(batch, position)
        del task, batch  # a thread that waits must not keep a batch's memory
    work.tasks.put(None)  # for the next thread


def _stop(work: _Work, threads: list[threading.Thread], process_id: int) -> None:
    """End an epoch's threads.  Runs wherever the iterator is dropped, maybe in one of them."""
    if os.getpid() != process_id:  # forked: they are not there
        return
    work.stopped = True
    work.tasks.put(None)
    if threading.current_thread() not in threads:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
