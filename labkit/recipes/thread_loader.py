"""ThreadLoader: a DataLoader whose threads write samples straight into the batch.

    keys ─▶ thread: dataset[key] ─▶ rows of a batch array ─┐
        └─▶ thread: dataset[key] ─▶ rows of a batch array ─┴─▶ batches, in order ─▶ loop

Copy this file into a project of your own: it needs only torch and NumPy.

JPEG decoders, OpenCV, NumPy and file reads release the interpreter lock, so threads decode on all
cores, and no sample is pickled or sent.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import warnings
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

SPARE_BUFFERS = 2  # besides the batches ahead: the one in the loop and the one before it
KINDS = 16  # of arrays whose memory is kept: batches may differ in shape all the time
STOP_S = 5.0  # how long the end of an epoch waits for the samples that are being made


class ThreadLoader:
    """Iterate over batches that threads of this process make.

    A drop-in for torch's DataLoader over a map-style dataset: the same batches in the same order
    for the same seed of torch (as without `persistent_workers`), and errors raised in the loop with
    their own traceback.  Memory of a batch is used again once nothing refers to it.  The threads
    end with the epoch, with a `break` or an error in the loop, and when the iterator is dropped.

    `dataset[key]` is called from several threads at once, all with the same dataset object, where
    DataLoader's workers have a copy each.  What may be shared between them:

    - What is only read: paths, labels, arrays, tables.
    - Open files, if they are read with `os.pread`, or opened for each sample.  Between a `seek` and
      the `read` after it, another thread may `seek`: hold a lock for both, or keep a handle for
      each thread (`threading.local`).
    - Random generators only where the result need not repeat: which thread draws which number
      changes from run to run.  Make one for each sample instead, as with
      `np.random.default_rng((seed, epoch, key))`; samples then do not depend on the threads.
    - Caches (`functools.cache`): a value may be computed twice.
    - No buffer that a transform keeps for the next sample, and no `self.x = ...` while a sample is
      made: another thread writes to it at the same time.

    `torch.utils.data.get_worker_info()` is None.  Transforms in pure Python hold the interpreter
    lock, so they are no faster in threads.  `cv2.setNumThreads(0)` keeps OpenCV from starting
    threads beside these.

    One thread at a time may use the iterator.

    Args:
        dataset: gives a sample for a key.  Samples that are arrays or numbers, or a dict, list or
            tuple of them, need no joining.
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

    Examples:
        >>> dataset = [{"image": np.zeros((3, 64, 64), np.uint8), "label": i} for i in range(6)]
        >>> for batch in ThreadLoader(dataset, batch_size=4, num_threads=2):
        ...     print(tuple(batch["image"].shape), batch["label"].tolist())
        (4, 3, 64, 64) [0, 1, 2, 3]
        (2, 3, 64, 64) [4, 5]
    """

    def __init__(
        self,
        dataset: Any,
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
        order: dict[str, Any] = {
            "sampler": sampler,
            "batch_sampler": batch_sampler,
            "generator": generator,
        }
        torch_loader: data.DataLoader = data.DataLoader(
            dataset, batch_size, shuffle, drop_last=drop_last, **order
        )
        num_threads = _cores() if num_threads is None else num_threads
        if num_threads < 0:
            raise ValueError(f"num_threads must be at least 0, got {num_threads}")
        if prefetch_batches is None:
            sized = torch_loader if batch_sampler is None else batch_sampler
            tasks = 1 if collate_fn else getattr(sized, "batch_size", None)
            prefetch_batches = max(2, 1 + -(-2 * num_threads // tasks)) if tasks else 2
        if prefetch_batches < 1:
            raise ValueError(f"prefetch_batches must be at least 1, got {prefetch_batches}")
        if pin_memory and not torch.cuda.is_available():
            warnings.warn("pin_memory needs CUDA, which is not there; not pinned", stacklevel=2)
            pin_memory = False
        self.dataset, self.generator = dataset, generator
        self.sampler: Any = torch_loader.sampler
        self.batch_size, self.drop_last = torch_loader.batch_size, torch_loader.drop_last
        self.batch_sampler: Any = torch_loader.batch_sampler
        self.num_threads, self.prefetch_batches = num_threads, prefetch_batches
        self.collate_fn, self.pin_memory = collate_fn, pin_memory
        # Shape and dtype -> arrays that no batch refers to any more.
        self._free: defaultdict[object, deque] = defaultdict(
            partial(deque, maxlen=prefetch_batches + SPARE_BUFFERS)
        )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator:
        """Start the threads of an epoch and its first batches."""
        import torch

        # DataLoader draws a seed for its workers before the order: so the order is the same.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        batches = self._batches()
        next(batches)  # a generator that has begun ends its threads however it is dropped
        return batches

    def _batches(self) -> Iterator:
        executor = ThreadPoolExecutor(max(1, self.num_threads), "ThreadLoader")
        submit, most = (executor.submit, self.prefetch_batches) if self.num_threads else (_Later, 0)
        keys, stopped = iter(self.batch_sampler), threading.Event()
        ahead: deque = deque()
        process_id = os.getpid()

        def make(key: object) -> object:
            if stopped.is_set():  # nothing waits for this sample any more
                raise CancelledError
            try:
                return self.dataset[key]
            except BaseException as error:
                error.add_note(f"ThreadLoader was making sample {key!r}")
                raise

        def go_ahead() -> None:
            while len(ahead) <= most and (some := next(keys, None)) is not None:
                if self.collate_fn:
                    ahead.append(([submit(self._collate, some, make)], lambda results: results[0]))
                    continue
                batch = _Batch(some, self._empty)
                # Once for each thread: it takes samples until none is left, then goes on ahead.
                tasks = min(len(some), max(1, self.num_threads))
                ahead.append(([submit(batch.fill, make) for _ in range(tasks)], batch.finish))

        try:
            go_ahead()
            yield None
            while True:
                if os.getpid() != process_id:
                    raise RuntimeError(
                        "a ThreadLoader's iterator must be used in the process that made it, got "
                        "one inherited by fork, without its threads; iterate over the loader again"
                    )
                go_ahead()
                if not ahead:
                    return
                yield self._pin(_first(ahead))
        finally:
            if os.getpid() == process_id:
                stopped.set()
                executor.shutdown(wait=False, cancel_futures=True)
                if self.num_threads:
                    wait([f for futures, _ in ahead for f in futures if f.running()], STOP_S)

    def _collate(self, keys: list, make: Callable[[object], object]) -> object:
        return self._pin(self.collate_fn([make(key) for key in keys]))

    def _pin(self, batch: object) -> object:
        if not self.pin_memory:
            return batch
        from torch.utils.data._utils.pin_memory import pin_memory

        return pin_memory(batch)  # what is pinned already stays as it is

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
        """Return a tensor in memory that nothing refers to any more: fresh pages cost time.

        A tensor made of an array holds that array for as long as anything shares the tensor's
        memory, so the end of the array is the end of all uses.  Pinned memory is torch's: its
        allocator keeps freed blocks, and waits for the copies from them.
        """
        import torch

        if self.pin_memory:
            return torch.from_numpy(np.empty(0, dtype)).new_empty(shape, pin_memory=True)
        if len(self._free) > KINDS:
            self._free.clear()
        free = self._free[shape, dtype]
        try:
            array = free.pop()
        except IndexError:
            array = np.empty(shape, dtype)
        view = array[...]
        weakref.finalize(view, free.append, array).atexit = False
        return torch.from_numpy(view)


class _Later(partial):
    """A call that is made when its result is asked for: loading without threads."""

    result = partial.__call__


def _first(ahead: deque[tuple[list, Callable]]) -> object:
    """Return the first batch ahead, or raise the error of its first sample that failed."""
    futures, finish = ahead[0]
    batch = finish([future.result() for future in futures])
    ahead.popleft()
    return batch


class _Batch:
    """A batch that threads fill; its first sample says what the others must look like."""

    def __init__(self, keys: list, empty: Callable[..., torch.Tensor]) -> None:
        self._keys, self._empty, self._lock = keys, empty, threading.Lock()
        self._left = deque(range(len(keys)))  # places that no thread has taken yet
        self._errors: dict[int, BaseException] = {}
        # Type of a sample, and for each entry shape and dtype; None: joined when all are there.
        self._layout: tuple[type, dict] | None = None
        # For each entry a tensor and the array that shares its memory, or None and a list.
        self._columns: dict[object, tuple[torch.Tensor | None, Any]] = {}

    def fill(self, make: Callable[[object], object]) -> None:
        """Make samples and write each into its row, until none is left or one fails."""
        while True:
            try:
                place = self._left.popleft()
            except IndexError:
                return
            try:
                self._write(place, make(self._keys[place]))
            except BaseException as error:
                self._errors[place] = error
                self._left.clear()
                return

    def _write(self, place: int, sample: object) -> None:
        entries = {name: _as_array(entry) for name, entry in _entries(sample).items()}
        layout = (
            type(sample),
            {
                name: (entry.shape, entry.dtype)
                if isinstance(entry, np.ndarray) and not is_ragged(name)
                else None
                for name, entry in entries.items()
            },
        )
        if self._layout is None:
            with self._lock:
                if self._layout is None:
                    self._prepare(layout)
        if layout != self._layout:  # NumPy would cast and broadcast it silently
            raise ValueError(
                f"samples must be alike in a batch: {self._keys[place]!r} must have "
                f"{self._layout[1]}, got {layout[1]}; make them alike or give a collate_fn"
            )
        for name, entry in entries.items():
            self._columns[name][1][place] = entry

    def _prepare(self, layout: tuple[type, dict]) -> None:
        count = len(self._keys)
        for name, array in layout[1].items():
            tensor = array and self._empty((count, *array[0]), array[1])
            rows: Any = [None] * count if tensor is None else tensor.numpy()
            self._columns[name] = tensor, rows
        self._layout = layout

    def finish(self, _: list) -> object:
        """Return the batch once all samples are made; raise the error of the first that failed."""
        if self._errors:
            raise self._errors[min(self._errors)]
        batch: dict[Any, Any] = {}
        for name, (tensor, rows) in self._columns.items():
            batch |= join(name, rows) if tensor is None else {name: tensor}
        kind = self._layout[0]
        if kind is dict:
            return batch
        return list(batch.values()) if kind in (list, tuple) else batch[None]


def is_ragged(name: object) -> bool:
    """Return whether an entry's arrays may differ in length."""
    return str(name).endswith("_ragged")


def join(name: object, entries: list) -> dict[Any, Any]:
    """Join one entry of a batch's samples as torch does, ragged arrays end to end.

    Returns:
        The entry by its name; for `x_ragged` also `x_ragged_counts`, (B,) int64.
    """
    import torch

    if not is_ragged(name):
        return {name: torch.utils.data.default_collate(entries)}
    counts = torch.tensor([len(each) for each in entries])
    return {name: torch.from_numpy(np.concatenate(entries)), f"{name}_counts": counts}


def _cores() -> int:
    """Return how many cores this process may use, at least 1; a container's quota counts."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(OSError, ValueError):  # no control group, or "max": no quota
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        return min(usable or 1, max(1, math.ceil(quota / period)))
    return usable or 1


def _entries(sample: Any) -> dict[object, object]:
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
