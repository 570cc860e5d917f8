"""Memory: how much a trial and its loader workers hold while they work.

    thread ─ 10 times a second ─▶ bytes in /dev/shm          one call, a microsecond
           ─ now and then ──────▶ PSS of every process       the kernel walks their pages

Proportional set size (PSS) shares a page that several processes have among them, so that the sum
over forked workers counts it once.  To add it up takes the kernel milliseconds for each process,
so whoever looked rests 100 times as long: at most one percent of one core, however many workers
there are, and for all variants alike.  Main trap: a peak between two looks is not seen, and
/dev/shm is the whole machine's: what other programs put there meanwhile counts too.
Source: proc(5), smaps_rollup; statvfs(3).
"""

from __future__ import annotations

import os
import threading
import time

from labkit import helper, procfs
from labkit.shared_memory import FOLDER

PERIOD_S = 0.1
FIRST_LOOK_S = 0.3  # before, workers are just starting
RESTS = 100  # times the CPU time of a look at all processes


class MemoryWatch:
    """Looks at this process and all below it until stopped; context manager."""

    def __enter__(self) -> MemoryWatch:
        """Start looking."""
        self.peak_pss_bytes: int | None = None
        """Largest sum seen; None where this platform does not tell, or nobody looked in time."""
        self.peak_shm_bytes: int | None = None
        """Most that /dev/shm held more than at the start."""
        self._shm_before = _shm_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()

    def totals(self) -> dict[str, int | None]:
        """Give the peaks as fields of `Trial`."""
        return {"peak_pss_bytes": self.peak_pss_bytes, "peak_shm_bytes": self.peak_shm_bytes}

    def _watch(self) -> None:
        due_s = time.monotonic() + FIRST_LOOK_S
        while not self._stop.wait(PERIOD_S):
            now_bytes = _shm_bytes()
            if now_bytes is not None and self._shm_before is not None:
                more = max(now_bytes - self._shm_before, 0)
                self.peak_shm_bytes = max(self.peak_shm_bytes or 0, more)
            if time.monotonic() >= due_s:
                before_s = time.thread_time()  # waiting for a core costs the others nothing
                held = tree_pss_bytes(os.getpid())
                if held is not None:
                    self.peak_pss_bytes = max(self.peak_pss_bytes or 0, held)
                due_s = time.monotonic() + RESTS * (time.thread_time() - before_s)


def tree_pss_bytes(process_id: int) -> int | None:
    """Add up the proportional set size of a process and all below it, but for helpers.

    Returns:
        None where the platform tells no PSS or no children.
    """
    below = procfs.processes_below(process_id)
    own = procfs.pss_bytes(process_id)
    if below is None or own is None:
        return None
    helpers = helper.pids()
    # Some have just ended.
    return own + sum(procfs.pss_bytes(child) or 0 for child in below if child not in helpers)


def _shm_bytes() -> int | None:
    try:
        state = os.statvfs(FOLDER)
    except (OSError, AttributeError):  # macOS; Windows
        return None
    return (state.f_blocks - state.f_bfree) * state.f_frsize
