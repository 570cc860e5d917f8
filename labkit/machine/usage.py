"""Usage: what a trial uses: CPU-seconds, page faults, memory, GPU utilization.

    before and after ─▶ CPU-seconds, page faults, peak RSS
    thread, 10 Hz    ─▶ bytes in /dev/shm, a system call of a microsecond
           at times  ─▶ PSS of every process, for which the kernel walks their pages
    thread           ─▶ GPU, by NVML (`gpu_watch`)

Proportional set size (PSS) divides a page among the processes that share it, so that the sum over
forked workers counts it once.  Reading it takes the kernel milliseconds a process, so the thread
then rests 100 times as long: at most one percent of a core.  A peak between two readings is
missed, and /dev/shm belongs to the whole machine.  Source: proc(5), smaps_rollup; statvfs(3).
"""

from __future__ import annotations

import os
import threading
import time

from labkit.machine import helper, procfs
from labkit.machine.gpu_watch import GpuWatch
from labkit.machine.shared_memory import FOLDER

PERIOD_S = 0.1
FIRST_LOOK_S = 0.3  # before, workers are just starting
RESTS = 100  # times the CPU time of a look at all processes


class Usage:
    """Context that counts what this process and its children use meanwhile.

    Args:
        gpu: watch the CUDA device, too.
    """

    def __init__(self, *, gpu: bool) -> None:
        self._watches_gpu = gpu

    def __enter__(self) -> Usage:
        """Start counting."""
        self._gpu = GpuWatch(self._watches_gpu)
        self._memory = MemoryWatch().__enter__()
        if _has_allocator():
            import torch

            torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop counting."""
        self._allocated = _allocated()
        self._memory.__exit__()
        self._gpu.stop()

    def gpu_clocks(self) -> dict[str, float | None]:
        """Give what the GPU's clock did, for the disturbance log.

        Returns:
            gpu_clock_hz (mean of its multiprocessors' clock) and gpu_throttled_share (of the
            samples, those slowed down by heat, power or a fault); None where not measured.
        """
        return self._gpu.clocks()

    def totals(self) -> dict[str, object]:
        """Return the counts as fields of `Trial`."""
        return {
            "peak_rss_bytes": _peak_rss_bytes(),
            **self._memory.totals(),
            **self._gpu.totals(),
            **self._allocated,
        }


class MemoryWatch:
    """Read the memory of this process and its descendants until stopped; context manager."""

    def __enter__(self) -> MemoryWatch:
        """Start the thread."""
        self.peak_pss_bytes: int | None = None
        """Largest sum read; None where the platform does not tell it or the trial was too short."""
        self.peak_shm_bytes: int | None = None
        """Most that /dev/shm held more than at the start."""
        self._shm_before = _shm_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread."""
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


def own_cpu_s() -> float:
    """Count the CPU-seconds of this process and its descendants, without helpers."""
    import psutil

    total_s, helpers = 0.0, helper.pids()
    # The lowest first: what ends meanwhile is counted by its parent, which is read after it.
    for child in reversed(psutil.Process().children(recursive=True)):
        if child.pid in helpers:
            continue
        try:
            used = child.cpu_times()
        except psutil.Error:
            continue
        total_s += sum(used[:4])  # its own and its ended children's, user and system
    times = os.times()
    return total_s + times.user + times.system + times.children_user + times.children_system


def own_major_faults() -> int | None:
    """Count the pages that this process and all below it, ended or alive, had to wait for.

    Returns:
        None where the platform does not say.
    """
    import psutil

    this = psutil.Process()
    if procfs.major_faults(this.pid) is None:
        return None
    # The lowest first: whoever ends meanwhile is then counted among its parent's ended children.
    below = [procfs.major_faults(child.pid) for child in reversed(this.children(recursive=True))]
    return sum(count for count in (*below, procfs.major_faults(this.pid)) if count is not None)


def _peak_rss_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def _has_allocator() -> bool:
    """Say whether torch works on a GPU in this process; touches none."""
    import torch

    return torch.cuda.is_initialized()


def _allocated() -> dict[str, int | None]:
    """Give what torch's allocator held at most on its GPU, since the peaks were reset."""
    if not _has_allocator():
        return {"gpu_allocated_bytes": None, "gpu_reserved_bytes": None}
    import torch

    return {
        "gpu_allocated_bytes": torch.cuda.max_memory_allocated(),
        "gpu_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def tree_pss_bytes(process_id: int) -> int | None:
    """Add up the proportional set size of a process and its descendants, without helpers.

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
