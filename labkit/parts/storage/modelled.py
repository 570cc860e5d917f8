"""Modelled disk: real files, read for real, and then waited for as a disk would have taken.

    worker 1: read(i) ── real bytes ─┐            ┌ page cache holds it: no disk    ┐
    worker 2: read(i) ── real bytes ─┼─ one lock ─┤                                 ├─▶ end
    worker 3: read(i) ── real bytes ─┘            └ timetable of the one disk: book ┘

A reader lives on its own, logical clock, which a booked read takes to its end.  Once that is
PAY_FROM_S ahead of the real clock, it sleeps until the two agree.  Main trap: sleeping for
each read would cost more than an SSD takes; so several reads are paid at once, and a late
awakening is made up for by the next ones.  Up to PAY_FROM_S of each worker stay unpaid when
an epoch ends, and when the files are not in real memory, the model may be too slow: `check`.
Source: EVIDENCE 2, "Modelled disk".
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Protocol

import numpy as np

from labkit import units
from labkit.contracts import Annotation, Clock, Skip
from labkit.parts.storage.disks import Disk, Rate
from labkit.parts.storage.shared_disk import PageCache, Timetable
from labkit.settings import pick

PAY_FROM_S = 0.002
"""A sleep wakes 0.13 ms late in the median and up to 5.8 ms: make sleeps few."""
MAX_CREDIT_S = 0.05
"""Most lateness that is made up for: a process that was suspended earns no free reads."""
LOCK_TIMEOUT_S = 10.0
"""The lock is held for microseconds: later than this, its holder was killed."""
START_TIMEOUT_S = 120.0


class Reader(Protocol):
    """What reads the real files; see `labkit.parts.packing.Reader`."""

    image_bytes: np.ndarray

    def __len__(self) -> int: ...

    def read(self, i: int) -> tuple[bytes, Annotation]:
        """Read image `i` and its boxes."""


class ModelledReader:
    """A reader that is as slow as a disk; all else is the wrapped reader's.

    Travels to worker processes among their arguments, as DataLoader passes it, and they share
    one disk and one page cache with this process.  It cannot be pickled otherwise.

    Args:
        reader: gives the images' bytes, and what each takes; reporting missing files is left to it.
        disk: what to be as slow as.
        clock: comparable between processes, as time.perf_counter is.
        start_method: how workers will be started.
        cache_bytes: what the modelled page cache can hold; 0: nothing.
    """

    def __init__(
        self, reader: Reader, disk: Disk, *, clock: Clock, start_method: str, cache_bytes: int
    ) -> None:
        self.reader, self.disk, self.clock, self.start_method = reader, disk, clock, start_method
        # The block map: images lie one after the other, in the order of their indices, whether
        # each has a file or all are packed into one.
        self._file_bytes = np.asarray(reader.image_bytes, dtype=np.int64)
        self._file_ends = np.cumsum(self._file_bytes)
        context = multiprocessing.get_context(start_method)
        self._timetable = Timetable(context, disk)
        self._memory = PageCache(context, self._file_bytes, cache_bytes)
        self._read_bytes = context.RawValue("q")
        self._lock = context.Lock()
        self._pace = _Pace()

    def __len__(self) -> int:
        return len(self.reader)

    def __getattr__(self, name: str) -> object:
        # While this is unpickled there is no `reader` yet: asking for it would go on for ever.
        if name == "reader" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.reader, name)

    def read(self, i: int) -> tuple[bytes, Annotation]:
        """Read one image, and return when the disk would have; see `Reader.read`."""
        pace, now, i = self._pace.of_this_process(), self.clock.now, int(i)
        begin_s = now() + pace.ahead_s
        image = self.reader.read(i)
        end_s = now() + pace.ahead_s  # what it really took is part of the model's time, not extra
        file_bytes = int(self._file_bytes[i])
        with self._locked():
            self._read_bytes.value += file_bytes
            if not self._memory.touch(i):
                offset = int(self._file_ends[i]) - file_bytes
                end_s = max(end_s, self._timetable.book(offset, file_bytes, begin_s))
        if end_s - now() >= PAY_FROM_S:
            self.clock.sleep_until(end_s)
        # Below zero after a late awakening, and for the time that this arithmetic took.
        pace.ahead_s = max(end_s - now(), -MAX_CREDIT_S)
        return image

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_S):
            raise RuntimeError(
                "a process was killed while it used the modelled disk; run the trial again"
            )
        try:
            yield
        finally:
            self._lock.release()

    def set_cache(self, cache: str, ids: Iterable[int]) -> None:
        """Let modelled memory hold none of the images (cold) or all (warm), and nothing else.

        Forgets all earlier reads too.  Not while others read.

        Raises:
            ValueError: neither cold nor warm.
            Skip: warm images do not fit.
        """
        held = pick({"cold": np.array([], dtype=np.int64), "warm": _indices(ids)}, cache, "cache")
        wanted_bytes, most_bytes = int(self._file_bytes[held].sum()), self._memory.capacity_bytes
        if wanted_bytes > most_bytes:
            raise Skip(
                f"warm data must fit into {units.count_bytes(most_bytes)} of modelled memory, "
                f"got {units.count_bytes(wanted_bytes)}; use fewer images or cache=cold"
            )
        with self._locked():
            self._timetable.clear()
            self._memory.clear()
            for i in held.tolist():
                self._memory.touch(i)
            self._read_bytes.value = 0
        self._pace.ahead_s = 0.0

    def resident_share(self, ids: Iterable[int]) -> float | None:
        """Say which share of the images' bytes modelled memory holds; None if there are none."""
        ids = _indices(ids)
        wanted_bytes = self._file_bytes[ids]
        if not wanted_bytes.any():
            return None
        with self._locked():
            held = self._memory.holds(ids)
        return float(wanted_bytes[held].sum() / wanted_bytes.sum())

    def counts(self) -> tuple[int, int]:
        """Count bytes since `set_cache`, of all processes: asked for, and read from the disk."""
        with self._locked():
            return self._read_bytes.value, self._timetable.read_bytes

    def prepare(self, cache: str, ids: Iterable[int]) -> dict[str, object]:
        """Produce a cache state; arguments, result and errors as `cache_state.prepare`'s."""
        ids = _indices(ids)
        self.set_cache(cache, ids)
        return {
            "wanted": cache,
            "method": "modelled",
            "measured_by": "modelled",
            "resident_share_before": self.resident_share(ids),
        }

    def prove(self, ids: Iterable[int], proof: dict[str, object]) -> dict[str, object]:
        """Complete a proof after the trial; result as `cache_state.prove`'s."""
        asked, fetched = self.counts()
        return {
            **proof,
            "file_bytes": int(self._file_bytes[_indices(ids)].sum()),
            "resident_share_after": self.resident_share(ids),
            "logical_read_bytes": asked,
            "device_read_bytes": fetched,
        }


class _Pace(threading.local):
    """How far one thread of one process is ahead of the real clock; starts anew elsewhere."""

    def __init__(self) -> None:
        self._begin()

    def of_this_process(self) -> _Pace:
        if self.process_id != os.getpid():  # a fork begins with its parent's figures
            self._begin()
        return self

    def _begin(self) -> None:
        self.ahead_s, self.process_id = 0.0, os.getpid()

    def __reduce__(self) -> tuple:
        return _Pace, ()


def _indices(ids: Iterable[int]) -> np.ndarray:
    """Give indices without repetition, in the order of their first mention: (N,) int64."""
    return np.array(list(dict.fromkeys(ids)), dtype=np.int64)


def check(
    reader: ModelledReader, readers: int, seconds: float = 1.0, ids: Iterable[int] | None = None
) -> list[Rate]:
    """Measure whether the modelled disk is as fast as it claims, with real processes.

    Another reader like it reads the same files, with no modelled memory.  They must be in real
    memory, or it is this machine's disk that is measured.

    Args:
        reader: keeps its state.
        readers: processes that read at random; one reads in order of the indices.
        seconds: how long each of the two takes, start-up not included.
        ids: images that can be read; None: all.

    Returns:
        The rates at random, and in order.

    Raises:
        ValueError: no readers, or, like OSError, an image that cannot be read.
    """
    if readers < 1:
        raise ValueError(f"readers must be at least 1, got {readers}")
    ids = _indices(range(len(reader)) if ids is None else ids)
    orders = [np.random.default_rng(number).permutation(ids) for number in range(readers)]
    return [
        _rate(reader, "random", orders, seconds),
        _rate(reader, "sequential", [np.sort(ids)], seconds),
    ]


def _rate(reader: ModelledReader, pattern: str, orders: list[np.ndarray], seconds: float) -> Rate:
    method, readers = reader.start_method, len(orders)
    twin = ModelledReader(
        reader.reader, reader.disk, clock=reader.clock, start_method=method, cache_bytes=0
    )
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(
        readers, context, _enter, (twin, context.Barrier(readers))
    ) as processes:
        read = list(processes.map(_read_for, orders, itertools.repeat(seconds)))
    files, starts_s, ends_s = zip(*read)
    # In a small folder some files follow the one before by chance, and the order starts over.
    accesses_share = twin._timetable.accesses / sum(files)
    disk = replace(reader.disk, access_s=reader.disk.access_s * accesses_share)
    return Rate(
        pattern=pattern,
        unit="files",
        readers=readers,
        requested_per_s=disk.files_per_s(twin.counts()[1] / sum(files), readers),
        delivered_per_s=sum(files) / (max(ends_s) - min(starts_s)),
    )


_entered: tuple = ()  # in a process of `check`: the reader, and where all wait for each other


def _enter(*what: object) -> None:
    global _entered
    _entered = what


def _read_for(ids: np.ndarray, seconds: float) -> tuple[int, float, float]:
    """Read for a while; say how many files, and from when to when."""
    reader, barrier = _entered
    barrier.wait(START_TIMEOUT_S)
    start_s = reader.clock.now()
    for files, i in enumerate(itertools.cycle(ids.tolist()), start=1):
        reader.read(i)
        end_s = reader.clock.now()
        if end_s - start_s >= seconds:
            return files, start_s, end_s
