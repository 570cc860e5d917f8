"""What all processes share of a modelled disk: its timetable, and what memory would hold.

    request at logical time ──▶ channel (access) ──▶ bus (transfer) ──▶ end, on the same clock
    file                    ──▶ page cache ──▶ held or not; the least recently used goes first

Arithmetic on shared memory only: nothing here sleeps, reads a clock or locks; callers hold a
lock.  Main trap: requests come in another order than their times say, because readers run
ahead of the real clock before they sleep.  The bus therefore remembers when it had nothing to
do, and offers that to late requests.  With a single `free_s`, two readers would take turns in
bursts: simulated, a SATA SSD then delivers 17 % less than it can, an NVMe SSD half.
"""

from __future__ import annotations

import ctypes
from multiprocessing.context import BaseContext

import numpy as np

from labkit.parts.storage.disks import Disk

GAPS = 64
"""Idle times of the bus that are remembered: as many as short reads leave in 5 ms."""
DISORDER_S = 0.002
"""How far requests are out of order: as long as readers run ahead before they sleep."""
ABSENT = -1


class _State(ctypes.Structure):
    _fields_ = (
        ("bus_free_s", ctypes.c_double),
        ("latest_s", ctypes.c_double),
        ("gaps", ctypes.c_int64),
        ("head", ctypes.c_int64),  # where on the block map the last read ended
        ("accesses", ctypes.c_int64),
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
        # Idle times of the bus before `bus_free_s`, oldest first: start, stop, start, stop, ...
        self._gaps_s = context.RawArray("d", 2 * GAPS)
        self._state = context.RawValue(_State)
        self.clear()

    @property
    def busy_until_s(self) -> float:
        """When all that is booked will have been read; minus infinity where nothing is."""
        return max(self._channel_free_s)

    @property
    def accesses(self) -> int:
        """Reads that did not follow the one before."""
        return self._state.accesses

    @property
    def read_bytes(self) -> int:
        """Bytes of all reads."""
        return self._state.read_bytes

    def clear(self) -> None:
        """Forget all reads."""
        self._channel_free_s[:] = [-np.inf] * self._disk.channels
        self._state.bus_free_s = self._state.latest_s = -np.inf
        self._state.head = ABSENT
        self._state.gaps = self._state.accesses = self._state.read_bytes = 0

    def book(self, offset: int, file_bytes: int, request_s: float) -> float:
        """Book one read.

        Args:
            offset: where it begins on the block map, in bytes.
            file_bytes: how much is read.
            request_s: when it is asked for.

        Returns:
            When its last byte will have arrived, in seconds of the same clock.
        """
        free_s = self._channel_free_s[:]
        # The channel that is free for the shortest time: a reader then stays on its own, and
        # those whose clock is behind find the others free.
        best_s = max((time_s for time_s in free_s if time_s <= request_s), default=min(free_s))
        found_s = max(best_s, request_s)
        if offset != self._state.head:
            found_s += self._disk.access_s
            self._state.accesses += 1
        end_s = self._transfer(found_s, file_bytes / self._disk.bytes_per_s)
        self._channel_free_s[free_s.index(best_s)] = end_s
        self._state.head = offset + file_bytes
        self._state.read_bytes += file_bytes
        return end_s

    def _transfer(self, from_s: float, transfer_s: float) -> float:
        """Book the bus, idle times first, and say when the last byte will be through."""
        state, end_s, needed_s = self._state, from_s, transfer_s
        # A late request would have made those that came first later, and so have found other
        # idle times: it may use those shortly before it.  Requests in order never do.
        late = from_s < state.latest_s
        since_s = from_s - DISORDER_S if late else from_s
        state.latest_s = max(state.latest_s, from_s)
        gaps_s = self._gaps_s[: 2 * state.gaps]
        first = len(gaps_s)
        while first and gaps_s[first - 1] > since_s:
            first -= 2
        left_s = gaps_s[:first]
        for start_s, stop_s in zip(gaps_s[first::2], gaps_s[first + 1 :: 2]):
            begin_s = max(start_s, since_s)
            taken_s = min(needed_s, stop_s - begin_s)
            needed_s -= taken_s
            if taken_s > 0:
                end_s = begin_s + taken_s
            for gap in ((start_s, begin_s), (begin_s + taken_s, stop_s)):
                left_s += gap if gap[0] < gap[1] else ()
        if needed_s > 0:
            begin_s = max(state.bus_free_s, from_s)
            left_s += (state.bus_free_s, begin_s) if -np.inf < state.bus_free_s < begin_s else ()
            state.bus_free_s = end_s = begin_s + needed_s
        left_s = left_s[-2 * GAPS :]
        self._gaps_s[: len(left_s)] = left_s
        state.gaps = len(left_s) // 2
        return max(end_s, from_s + transfer_s)  # not sooner than alone


class PageCache:
    """Which files memory would hold.

    A ring in two shared arrays: file -> the next newer and the next older one.  One more entry
    closes it, whose newer one is the oldest file.

    Args:
        context: how the processes that share it are started.
        file_bytes: (N,) int64.
        capacity_bytes: how much fits.
    """

    def __init__(self, context: BaseContext, file_bytes: np.ndarray, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._file_bytes = file_bytes
        self._closing = len(file_bytes)
        self._newer = context.RawArray("q", len(file_bytes) + 1)
        self._older = context.RawArray("q", len(file_bytes) + 1)
        self._held_bytes = context.RawValue("q")
        self.clear()

    def clear(self) -> None:
        """Hold nothing."""
        np.frombuffer(self._newer, dtype=np.int64)[:] = ABSENT
        self._newer[self._closing] = self._older[self._closing] = self._closing
        self._held_bytes.value = 0

    def holds(self, ids: np.ndarray) -> np.ndarray:
        """Say for each of N files whether it is held: (N,) bool."""
        return np.frombuffer(self._newer, dtype=np.int64)[ids] != ABSENT

    def touch(self, i: int) -> bool:
        """Make a file the newest, if it fits at all; say whether it was held before."""
        needed_bytes = int(self._file_bytes[i])
        held = self._newer[i] != ABSENT
        if held:
            self._drop(i)
        elif needed_bytes > self.capacity_bytes:
            return False
        while self._held_bytes.value + needed_bytes > self.capacity_bytes:
            self._drop(self._newer[self._closing])
        newest = self._older[self._closing]
        self._newer[newest] = self._older[self._closing] = i
        self._older[i], self._newer[i] = newest, self._closing
        self._held_bytes.value += needed_bytes
        return held

    def _drop(self, i: int) -> None:
        newer, older = self._newer[i], self._older[i]
        self._older[newer], self._newer[older] = older, newer
        self._newer[i] = ABSENT
        self._held_bytes.value -= int(self._file_bytes[i])
