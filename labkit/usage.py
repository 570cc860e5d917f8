"""Usage: what a trial cost beside time: CPU-seconds, page faults, memory, GPU utilization.

The GPU is watched through NVML by a thread (`gpu_watch`); everything else is read before and
after.  Main trap: CPU-seconds of a process that has ended are its parent's, so trees are added up
from the lowest process on, or some seconds would count twice.
"""

from __future__ import annotations

import os

from labkit import helper, procfs
from labkit.gpu_watch import GpuWatch
from labkit.memory import MemoryWatch


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
        self._cpu_before_s = own_cpu_s()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop counting."""
        self._cpu_s = own_cpu_s() - self._cpu_before_s
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

    def totals(self, wall_s: float) -> dict[str, object]:
        """Give the counts as fields of `Trial`.

        Args:
            wall_s: what the CPU percentage is taken of.
        """
        return {
            "cpu_s": self._cpu_s,
            "cpu_percent": 100 * self._cpu_s / wall_s,
            "peak_rss_bytes": _peak_rss_bytes(),
            **self._memory.totals(),
            **self._gpu.totals(),
            **self._allocated,
        }


def own_cpu_s() -> float:
    """Count the CPU-seconds of this process and all below it, ended or still alive; no helper's."""
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
