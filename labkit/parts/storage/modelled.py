"""Modelled disk: real files, read for real, and then waited for as a disk would have taken.

    worker 1: read(i) ── real bytes ─┐            ┌ page cache holds it: no disk    ┐
    worker 2: read(i) ── real bytes ─┼─ one lock ─┤                                 ├─▶ end
    worker 3: read(i) ── real bytes ─┘            └ timetable of the one disk: book ┘

All processes share one timetable and one page cache: with a disk each, a hard disk would scale with
the number of workers. Each reader has a logical clock, which a booked read takes to its end; once
that is PAY_FROM_S ahead of the real clock, the reader sleeps until the two agree. Sleeping for each
read would cost more than an SSD takes, so several reads are paid for at once, and waking late is
made up for by the next ones. Up to PAY_FROM_S of each worker stay unpaid when an epoch ends. Where
the files are not in real memory, the model may be too slow: `ModelledDisk.measure` finds out.

Source: EVIDENCE 2, "Modelled disk".
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from labkit.contracts import Annotation, Content, Reader
from labkit.machine.clock import Clock, SleepingClock
from labkit.parts.storage import cache_state
from labkit.parts.storage.disks import Disk, Pattern, Rate, measure_together
from labkit.parts.storage.folder import Storage, WrappedReader
from labkit.records import Hardware
from labkit.settings import pick

PAY_FROM_S = 0.002
"""A sleep wakes 0.13 ms late in the median and up to 5.8 ms: make sleeps few."""
LOCK_TIMEOUT_S = 10.0
"""The lock is held for microseconds: later than this, its holder was killed."""


@dataclass(frozen=True, kw_only=True)
class ModelledDisk(Storage):
    """Read the data where it lies, and wait as a disk would."""

    disk: Disk
    needs_our_reader: ClassVar[bool] = True

    def open(self, reader: Reader, start_method: str) -> ModelledReader:
        """Return a reader that waits; its page cache holds all that was read."""
        return ModelledReader(
            reader,
            self.disk,
            clock=SleepingClock(),  # it makes up for waking late
            start_method=start_method,
        )

    def prepare_cache(self, reader: Any, ids: np.ndarray, cache: str | int) -> dict[str, Any]:
        """Produce a state of the modelled page cache; see `Storage.prepare_cache`."""
        # The model charges for the disk, so the real one must not be waited for.
        cache_state.prepare(reader.files_of(np.sort(ids)), "warm")
        return reader.prepare(cache, ids)

    def prove_cache(self, reader: Any, ids: np.ndarray, proof: dict[str, Any]) -> dict[str, Any]:
        """Complete the proof by what the model counted; see `Storage.prove_cache`."""
        return reader.prove(ids, proof)

    def measure(
        self,
        reader: Reader,
        ids: Sequence[int],
        readers: int,
        start_method: str,
        seconds: float,
    ) -> list[Rate]:
        """Measure files per second at random, and in order; see `Storage.measure`."""
        cache_state.make_warm(dict.fromkeys(reader.files_of(ids)))
        shuffled = [np.random.default_rng(number).permutation(ids) for number in range(readers)]
        rates = []
        in_order = [np.sort(ids)]
        checks: dict[Pattern, list[np.ndarray]] = {"random": shuffled, "sequential": in_order}
        for pattern, orders in checks.items():
            model = ModelledReader(
                reader,
                self.disk,
                clock=SleepingClock(),
                start_method=start_method,
                caches=False,
            )
            read = measure_together(partial(_read_for, model, seconds), orders, start_method)
            files, starts_s, ends_s = zip(*read)
            # In a small folder some files follow the one before by chance, and the order starts
            # over.
            accesses_share = model._timetable.state.accesses / sum(files)
            expected = replace(self.disk, access_s=self.disk.access_s * accesses_share)
            mean_bytes = model.counts()[1] / sum(files)
            rate = Rate(
                pattern=pattern,
                unit="files",
                readers=len(orders),
                requested_per_s=expected.files_per_s(mean_bytes, len(orders)),
                delivered_per_s=sum(files) / (max(ends_s) - min(starts_s)),
            )
            rates.append(rate)
        return rates


def on_modelled(disk: Disk, name: str, data: Path) -> Storage:
    """Read the data where it lies, and wait as the disk would."""
    hardware = Hardware("storage", "modelled", disk.name)
    return ModelledDisk(name=name, directory=data, hardware=hardware, disk=disk)


class ModelledReader(WrappedReader):
    """A reader that is as slow as a disk.

    Travels to worker processes among their arguments, as DataLoader passes it, and they share
    one disk and one page cache with this process.  It cannot be pickled otherwise.

    Args:
        reader: reads the real files.
        disk: what to be as slow as.
        clock: comparable between processes, as time.perf_counter is.
        start_method: how workers will be started.
        caches: whether the modelled page cache holds what was read; it has room for all, as real
            memory must hold the files too.
    """

    def __init__(
        self,
        reader: Reader,
        disk: Disk,
        *,
        clock: Clock,
        start_method: str,
        caches: bool = True,
    ) -> None:
        super().__init__(reader)
        self.clock = clock
        # The block map: images lie one after the other, in the order of their indices, whether
        # each has a file or all are packed into one.
        self._file_bytes = np.asarray(reader.image_bytes, dtype=np.int64)
        self._file_ends = np.cumsum(self._file_bytes)
        context = multiprocessing.get_context(start_method)
        self._timetable = Timetable(context, disk)
        self._caches = caches
        # Whether the modelled page cache holds an image.
        self._is_in_memory = context.RawArray("b", len(self._file_bytes))
        self._read_bytes = context.RawValue("q")
        self._lock = context.Lock()
        # (process, thread) -> how far its logical clock is ahead of the real one
        self._ahead_s: dict[tuple[int, int], float] = {}

    def read(self, i: int) -> tuple[Content, Annotation]:
        """Read one image, and return when the disk would have."""
        me, now, i = (os.getpid(), threading.get_ident()), self.clock.now, int(i)
        ahead_s = self._ahead_s.get(me, 0.0)
        begin_s = now() + ahead_s
        image = self.reader.read(i)
        end_s = now() + ahead_s  # what it really took is part of the model's time, not extra
        file_bytes = int(self._file_bytes[i])
        with self._locked():
            self._read_bytes.value += file_bytes
            if not self._is_in_memory[i]:
                self._is_in_memory[i] = self._caches
                offset = int(self._file_ends[i]) - file_bytes
                end_s = max(end_s, self._timetable.book(offset, file_bytes, begin_s))
        if end_s - now() >= PAY_FROM_S:
            self.clock.sleep_until(end_s)
        # Below zero after a late awakening, and for the time that this arithmetic took.  At most
        # 0.05 s are made up for: a process that was suspended earns no free reads.
        self._ahead_s[me] = max(end_s - now(), -0.05)
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

    def prepare(self, cache: str | int, ids: np.ndarray) -> dict[str, Any]:
        """Let modelled memory hold none of the images (cold), all (warm) or a percentage.

        Nothing else is held, and all earlier reads are forgotten. Not while others read.

        Returns:
            The beginning of a proof; see `cache_state.prepare`.

        Raises:
            ValueError: neither cold nor warm nor a percentage.
        """
        percentages = {"cold": 0, "warm": 100}
        percent = cache if isinstance(cache, int) else pick(percentages, cache, "cache")
        kept = ids[: cache_state.count_kept(self._file_bytes[ids], percent / 100)]
        with self._locked():
            self._timetable.clear()
            flags = np.frombuffer(self._is_in_memory, dtype=bool)
            flags[:] = False
            flags[kept] = True
            self._read_bytes.value = 0
        self._ahead_s.clear()
        return {
            "wanted": cache,
            "method": "modelled",
            "measured_by": "modelled",
            "resident_share_before": self._resident_share(ids),
        }

    def prove(self, ids: np.ndarray, proof: dict[str, Any]) -> dict[str, Any]:
        """Complete a proof after the trial; see `cache_state.prove`."""
        asked, fetched = self.counts()
        return {
            **proof,
            "file_bytes": int(self._file_bytes[ids].sum()),
            "resident_share_after": self._resident_share(ids),
            "logical_read_bytes": asked,
            "device_read_bytes": fetched,
        }

    def counts(self) -> tuple[int, int]:
        """Count bytes since `prepare`, of all processes: asked for, and read from the disk."""
        with self._locked():
            return self._read_bytes.value, self._timetable.state.read_bytes

    def _resident_share(self, ids: np.ndarray) -> float | None:
        wanted_bytes = self._file_bytes[ids]
        if not wanted_bytes.any():
            return None
        with self._locked():
            in_memory = np.frombuffer(self._is_in_memory, dtype=bool)[ids]
        return float(wanted_bytes[in_memory].sum() / wanted_bytes.sum())


def _read_for(reader: ModelledReader, seconds: float, ids: np.ndarray) -> tuple[int, float, float]:
    """Read for a while; return how many files, and from when to when."""
    start_s = reader.clock.now()
    for files, i in enumerate(itertools.cycle(ids.tolist()), start=1):
        reader.read(i)
        end_s = reader.clock.now()
        if end_s - start_s >= seconds:
            return files, start_s, end_s
    raise AssertionError("cycle() never ends")


class _State(ctypes.Structure):
    _fields_ = (
        ("bus_free_s", ctypes.c_double),
        ("head", ctypes.c_int64),  # where on the block map the last read ended
        ("accesses", ctypes.c_int64),  # reads that did not follow the one before
        ("read_bytes", ctypes.c_int64),
    )


class Timetable:
    """When a disk's channels and its bus are taken, and what it has read.

    Args:
        context: how the processes that share it are started.
        disk: what it can do.
    """

    def __init__(self, context: BaseContext, disk: Disk) -> None:
        self._disk = disk
        self._channel_free_s = context.RawArray("d", disk.channels)
        self.state = context.RawValue(_State)
        self.clear()

    def clear(self) -> None:
        """Forget all reads."""
        self._channel_free_s[:] = [-np.inf] * self._disk.channels
        self.state.bus_free_s = -np.inf
        self.state.head = -1  # nowhere
        self.state.accesses = self.state.read_bytes = 0

    def book(self, offset: int, file_bytes: int, request_s: float) -> float:
        """Book one read.

        Args:
            offset: where it begins on the block map, in bytes.
            file_bytes: how much is read.
            request_s: when it is asked for.

        Returns:
            When its last byte will have arrived, in seconds of the same clock.
        """
        free_s, state = self._channel_free_s[:], self.state
        # The channel that is free for the shortest time: a reader then stays on its own, and
        # those whose clock is behind find the others free.
        best_s = max((time_s for time_s in free_s if time_s <= request_s), default=min(free_s))
        reached_s = max(best_s, request_s)
        if offset != state.head:
            reached_s += self._disk.access_s
            state.accesses += 1
        # Readers run ahead before they sleep, so requests come out of order. The bus counts how
        # long it is busy, not when: what it idled in the last `PAY_FROM_S` may still be used.
        transfer_s = file_bytes / self._disk.bytes_per_s
        state.bus_free_s = max(state.bus_free_s, reached_s - PAY_FROM_S) + transfer_s
        end_s = max(state.bus_free_s, reached_s + transfer_s)  # not sooner than alone
        self._channel_free_s[free_s.index(best_s)] = end_s
        state.head = offset + file_bytes
        state.read_bytes += file_bytes
        return end_s
