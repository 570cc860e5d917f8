"""The clock: seconds, deadlines that are met, and dates as rows record them."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np


class Clock(Protocol):
    """What tells the time; tests give a fake one."""

    def now(self) -> float:
        """Seconds since some fixed moment."""

    def sleep_until(self, deadline_s: float) -> None:
        """Return at the deadline, or at once if it has passed, leaving the core free."""

    def spin_until(self, deadline_s: float) -> None:
        """Return at the deadline, keeping the core busy, without the GIL."""

    def launch(self, seconds: float) -> None:
        """Do so many seconds of the host's work, in small operations of torch."""


def utc_now() -> str:
    """Return the time as rows record it: 2026-11-21T03:46:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# NumPy releases the GIL in loops over more than 500 elements, which take some 10 us.
LEAST_ELEMENTS = 501


class SystemClock:
    """The real clock, with deadlines met to some 10 microseconds."""

    now = staticmethod(time.perf_counter)

    def sleep_until(self, deadline_s: float) -> None:
        """Sleep until shortly before the deadline, then spin."""
        # time.sleep wakes 0.13 ms late in the median (EVIDENCE 2, measured): the rest is spun.
        asleep_s = deadline_s - time.perf_counter() - 0.0003
        if asleep_s > 0:
            time.sleep(asleep_s)
        self.spin_until(deadline_s)

    def spin_until(self, deadline_s: float) -> None:
        """Keep the core busy until the deadline, without the GIL but for the last microseconds."""
        spin, elements_per_s = _spinning()
        while (remaining_s := deadline_s - time.perf_counter()) > 0:
            # In pieces of 1 ms: another thread that holds the GIL delays each one, by 5 ms where it
            # runs Python alone (sys.getswitchinterval); on a core that others use, one ends late.
            elements = int(min(remaining_s, 0.001) * elements_per_s)
            if elements >= LEAST_ELEMENTS:
                spin(elements)

    def launch(self, seconds: float) -> None:
        """Call torch for so much CPU time of this thread: longer where others use the core, too."""
        operation = _small_operation()
        end_s = time.thread_time() + seconds
        while time.thread_time() < end_s:
            operation()


@functools.cache
def _spinning() -> tuple[Callable[[int], object], float]:
    """Return what computes on so many elements without the GIL, and its elements/s."""
    # A single number that is read again and again: spinning leaves the caches alone.
    numbers = np.broadcast_to(0.0, 1_000_000)

    def spin(elements: int) -> object:
        return np.logaddexp.reduce(numbers[:elements])

    elements = 4 * LEAST_ELEMENTS
    return spin, elements / _median_s(partial(spin, elements))


@functools.cache
def _small_operation() -> Callable[[], object]:
    """Return an operation of torch that takes as long as launching a kernel."""
    import torch

    # asinh of so many takes about as long as torch needs to launch a kernel: 3 to 7 us.  MKL
    # computes other functions, tanh among them, and may start threads for them.
    given = torch.zeros(1024)
    return partial(torch.asinh, given, out=torch.empty_like(given))


def _median_s(run: Callable[[], object]) -> float:
    """Return the median seconds of calls too short for most of them to be interrupted."""
    took_s = []
    for _ in range(200):
        start_s = time.perf_counter()
        run()
        took_s.append(time.perf_counter() - start_s)
    return statistics.median(took_s)


class SleepingClock(SystemClock):
    """The real clock, which leaves the core alone and wakes a little late."""

    def sleep_until(self, deadline_s: float) -> None:
        """Sleep until the deadline, and some tenths of a millisecond more."""
        remaining_s = deadline_s - time.perf_counter()
        if remaining_s > 0:
            time.sleep(remaining_s)
