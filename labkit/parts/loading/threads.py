"""ThreadLoader: a DataLoader whose threads write samples straight into the batch.

    keys ─▶ thread: dataset[key] ─▶ rows of a batch array ─┐
        └─▶ thread: dataset[key] ─▶ rows of a batch array ─┴─▶ batches, in order ─▶ loop

JPEG decoders, OpenCV, NumPy and file reads release the interpreter lock, so threads decode on all
cores, and no sample is pickled or sent.  Threads share everything: a transform that keeps a buffer
or a random state between samples works in processes and is wrong here.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np

from labkit.machine.hardware import cores
from labkit.parts.loading.source import Source
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch

RAGGED = "_ragged"
SPARE_BUFFERS = 2  # besides the batches ahead: the one in the loop and the one before it
TASKS = 8  # into which a batch is divided, for each thread: handing one over takes 10 µs
STOP_S = 5.0  # how long the end of an epoch waits for the samples that are being made

Layout = tuple[tuple[tuple[int, ...], np.dtype], ...]
"""Shape and dtype of each array of a batch."""


class ThreadLoader:
    """Iterate over batches that threads of this process make.

    A drop-in for torch's DataLoader over a map-style dataset: the same batches in the same order
    for the same seed of torch, and errors raised in the loop with their own traceback.  Memory of
    a batch is used again once nothing refers to it.  The threads end with the epoch, with a
    `break` or an error in the loop, and when the iterator is dropped.

    Args:
        dataset: gives a sample for a key; called from several threads at once.  Samples that are
            arrays or numbers, or a dict, list or tuple of them, need no joining.
        batch_size: samples in a batch.
        shuffle: draw the order anew for every epoch.
        sampler: the keys of an epoch instead: any iterable, also torch's samplers.
        batch_sampler: lists of keys, in place of batch_size, shuffle, sampler and drop_last.
        num_threads: threads; None: one per core; 0: samples are made in the loop itself.
        collate_fn: joins a list of samples; then a thread makes a whole batch.  None: as torch's
            default_collate, with dict entries named `x_ragged` joined end to end and their lengths
            as `x_ragged_counts`.
        drop_last: leave out a last batch that is not full.
        pin_memory: deliver page-locked batches; needs CUDA.
        prefetch_batches: batches ahead of the loop; None: at least two, and two tasks per thread.
        generator: draws the order; None: torch's own.

    Raises:
        ValueError: arguments that exclude each other or are out of range.
    """

    def __init__(
        self,
        dataset: object,
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
    ) -> None:
        import torch

        data = torch.utils.data
        if isinstance(dataset, data.IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise ValueError(
                f"dataset must give samples by key (__getitem__), got {type(dataset).__name__}; "
                "use torch's DataLoader for one that can only be iterated"
            )
        if sampler is not None and shuffle:
            raise ValueError("shuffle must be False with a sampler, got True; shuffle in it")
        if batch_sampler is None:
            if sampler is None and shuffle:
                sampler = data.RandomSampler(dataset, generator=generator)
            elif sampler is None:
                sampler = data.SequentialSampler(dataset)
            batch_sampler = data.BatchSampler(sampler, batch_size, drop_last)
        elif batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler must stand alone, got batch_size, shuffle, sampler or drop_last "
                "beside it; leave them out"
            )
        num_threads = cores() if num_threads is None else num_threads
        if num_threads < 0:
            raise ValueError(f"num_threads must be at least 0, got {num_threads}")
        if prefetch_batches is None:
            tasks = 1 if collate_fn else batch_size
            prefetch_batches = max(2, 1 + -(-2 * num_threads // tasks))
        if prefetch_batches < 1:
            raise ValueError(f"prefetch_batches must be at least 1, got {prefetch_batches}")
        if pin_memory and not torch.cuda.is_available():
            warnings.warn("pin_memory needs CUDA, which is not there; not pinned", stacklevel=2)
            pin_memory = False
        self.dataset, self.batch_sampler, self.generator = dataset, batch_sampler, generator
        self.num_threads, self.prefetch_batches = num_threads, prefetch_batches
        self.collate_fn, self.pin_memory = collate_fn, pin_memory
        self._pool = _Pool(prefetch_batches + SPARE_BUFFERS, pin=pin_memory)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator:
        """Start the threads of an epoch and its first batches."""
        import torch

        # DataLoader draws a seed for its workers before the order: so the order is the same.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        batches = self._batches() if self.num_threads else self._batches_without_threads()
        next(batches)  # a generator that has begun ends its threads however it is dropped
        return batches

    def _batches(self) -> Iterator:
        executor = ThreadPoolExecutor(self.num_threads, "ThreadLoader")
        keys, ahead, stopped = iter(self.batch_sampler), deque(), threading.Event()
        process_id = os.getpid()

        def go_ahead() -> None:
            while len(ahead) <= self.prefetch_batches and (some := next(keys, None)) is not None:
                ahead.append(self._start(executor, some, stopped))

        try:
            go_ahead()
            yield None
            while True:
                if os.getpid() != process_id:
                    raise RuntimeError(
                        "a ThreadLoader's iterator must be used in the process that made it, got "
                        "one inherited by fork, without its threads; iterate over the loader anew"
                    )
                go_ahead()
                if not ahead:
                    return
                yield _first(ahead)
        finally:
            if os.getpid() == process_id:
                stopped.set()
                executor.shutdown(wait=False, cancel_futures=True)
                wait([f for futures, _ in ahead for f in futures if not f.cancelled()], STOP_S)

    def _batches_without_threads(self) -> Iterator:
        yield None
        for keys in self.batch_sampler:
            if self.collate_fn:
                yield self._collate(keys, threading.Event())
            else:
                batch = _Batch(keys, self._pool)
                batch.make(self.dataset, range(len(keys)), threading.Event())
                yield batch.finish()

    def _start(
        self, executor: ThreadPoolExecutor, keys: list, stopped: threading.Event
    ) -> tuple[list[Future], Callable[[], object]]:
        """Start a batch; return what to wait for, and what then gives the batch."""
        if self.collate_fn:
            future = executor.submit(self._collate, keys, stopped)
            return [future], future.result
        batch = _Batch(keys, self._pool)
        size = max(1, len(keys) // (TASKS * self.num_threads))
        places = [range(len(keys))[i : i + size] for i in range(0, len(keys), size)]
        futures = [executor.submit(batch.make, self.dataset, some, stopped) for some in places]
        return futures, batch.finish

    def _collate(self, keys: list, stopped: threading.Event) -> object:
        samples = []
        for key in keys:
            if stopped.is_set():  # nobody waits for this batch any more
                return None
            samples.append(_make(self.dataset, key))
        batch = self.collate_fn(samples)
        return _pin(batch) if self.pin_memory else batch


def _first(ahead: deque) -> object:
    """Return the first batch ahead, or raise the error of its first sample that failed."""
    futures, finish = ahead[0]
    for future in futures:
        future.result()
    batch = finish()
    ahead.popleft()
    return batch


def _make(dataset: object, key: object) -> object:
    try:
        return dataset[key]
    except BaseException as error:
        error.add_note(f"ThreadLoader was making sample {key!r}")
        raise


class _Batch:
    """A batch that threads fill; its first sample says what the others must look like."""

    def __init__(self, keys: list, pool: _Pool) -> None:
        self._keys, self._pool, self._lock = keys, pool, threading.Lock()
        self._kind: type | None = None
        # For each entry of a sample an array with a row per sample, or a list.
        self._columns: dict[object, np.ndarray | list] = {}
        self._tensors: list[torch.Tensor] = []  # of the arrays

    def make(self, dataset: object, positions: Iterable[int], stopped: threading.Event) -> None:
        """Make samples and write each into its row."""
        for position in positions:
            if stopped.is_set():
                return
            sample = _make(dataset, self._keys[position])
            entries = {name: _as_array(entry) for name, entry in _entries(sample).items()}
            with self._lock:
                if self._kind is None:
                    self._prepare(type(sample), entries)
            self._check(type(sample), entries, self._keys[position])
            for name, entry in entries.items():
                self._columns[name][position] = entry

    def finish(self) -> object:
        """Return the batch once all samples are made."""
        import torch

        tensors, batch = iter(self._tensors), {}
        for name, column in self._columns.items():
            if isinstance(column, np.ndarray):
                batch[name] = next(tensors)
            elif _is_ragged(name):
                batch[name] = torch.from_numpy(np.concatenate(column))
                batch[f"{name}_counts"] = torch.tensor([len(rows) for rows in column])
            else:
                batch[name] = torch.utils.data.default_collate(column)
        if self._pool.pin:
            batch = _pin(batch)
        if self._kind is dict:
            return batch
        return list(batch.values()) if self._kind in (list, tuple) else batch[None]

    def _prepare(self, kind: type, entries: dict[object, object]) -> None:
        count = len(self._keys)
        arrays = {
            name: ((count, *entry.shape), entry.dtype)
            for name, entry in entries.items()
            if isinstance(entry, np.ndarray) and not _is_ragged(name)
        }
        self._tensors = self._pool.take(tuple(arrays.values()))
        rows = dict(zip(arrays, (tensor.numpy() for tensor in self._tensors)))
        self._columns = {name: rows.get(name, [None] * count) for name in entries}
        self._kind = kind

    def _check(self, kind: type, entries: dict[object, object], key: object) -> None:
        """Refuse a sample unlike the first one: NumPy would cast and broadcast it silently."""
        found = {
            name: (entry.shape, entry.dtype) if isinstance(entry, np.ndarray) else None
            for name, entry in entries.items()
        }
        wanted = {
            name: (column.shape[1:], column.dtype)
            if isinstance(column, np.ndarray)
            else found.get(name)
            for name, column in self._columns.items()
        }
        if kind is not self._kind or found != wanted:
            raise ValueError(
                f"samples must be alike in a batch: {key!r} must have {wanted}, got {found}; "
                "make them alike or give a collate_fn"
            )


class _Pool:
    """The memory of batches, used again for the next ones: fresh pages cost time.

    A tensor made of an array holds that array for as long as anything shares the tensor's memory,
    so the array's end is the end of all uses.  Pinned memory is torch's: its allocator keeps freed
    blocks, and waits for the copies from them.
    """

    def __init__(self, most: int, *, pin: bool) -> None:
        self.pin, self._lock = pin, threading.Lock()
        # Shapes and dtypes, arrays, and the views of them that tensors hold.
        self._known: deque[tuple[Layout, list, list]] = deque(maxlen=most)

    def take(self, layout: Layout) -> list[torch.Tensor]:
        """Return a tensor of each shape and dtype, in memory that nothing refers to any more."""
        import torch

        if self.pin:
            kinds = [torch.from_numpy(np.empty(0, dtype)).dtype for _, dtype in layout]
            return [
                torch.empty(shape, dtype=kind, pin_memory=True)
                for (shape, _), kind in zip(layout, kinds)
            ]
        with self._lock:
            arrays, users = self._find(layout)
            views = [array[...] for array in arrays]
            users[:] = map(weakref.ref, views)
        return [torch.from_numpy(view) for view in views]

    def _find(self, layout: Layout) -> tuple[list[np.ndarray], list[weakref.ref]]:
        for known, arrays, users in self._known:
            if known == layout and all(user() is None for user in users):
                return arrays, users
        arrays, users = [np.empty(shape, dtype) for shape, dtype in layout], []
        self._known.append((layout, arrays, users))
        return arrays, users


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


def _entries(sample: object) -> dict[object, object]:
    if type(sample) is dict:
        return sample
    return dict(enumerate(sample)) if type(sample) in (list, tuple) else {None: sample}


def _as_array(entry: object) -> object:
    """Return the array that a CPU tensor shares; all else as it is."""
    if type(entry).__module__ == "torch" and hasattr(entry, "numpy"):
        try:
            return entry.numpy()
        except (RuntimeError, TypeError):  # on a device, with a gradient, bfloat16
            return entry
    return entry


def _is_ragged(name: object) -> bool:
    return str(name).endswith(RAGGED)


def _pin(batch: object) -> object:
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)
