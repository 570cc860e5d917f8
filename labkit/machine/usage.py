"""Usage: what a trial uses: CPU seconds, memory, bytes read, GPU utilization.

    on call          ─▶ CPU seconds, bytes read
    at the end       ─▶ peak RSS
    thread, 10 Hz    ─▶ bytes in /dev/shm, a system call of a microsecond
    thread, slower   ─▶ PSS of every process, for which the kernel walks their pages
    thread, 5 Hz     ─▶ GPU, through NVML (`gpu`)

Proportional set size (PSS) divides a page among the processes that share it, so the sum over
forked workers counts it once.  A reading takes the kernel about a millisecond for each process, so
the thread then rests 100 times as long.  Peaks between two readings are missed, and /dev/shm
belongs to the whole machine.
Source: proc(5), smaps_rollup and io; statvfs(3).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from statistics import fmean
from typing import Any

from labkit.contracts import Skip
from labkit.machine import helper, procfs, shared_memory
from labkit.machine.gpu import Reading, open_gpu

PERIOD_S = 0.1
NVML_PERIOD_S = 0.2  # NVML itself averages over 1/6 to 1 s


class Usage:
    """Context that measures the memory and the GPU utilization of a trial.

    The memory is that of this process and its descendants.

    Args:
        gpus: how many of torch's GPUs to watch, too.
    """

    def __init__(self, *, gpus: int) -> None:
        self.gpu = GpuWatch(gpus)
        self._pss_bytes: list[int | None] = []
        self._shm_bytes: list[int] = []
        """What /dev/shm held beyond what it held at the start."""
        self._watches = ExitStack()

    def __enter__(self) -> Usage:
        self._watches.enter_context(self.gpu)
        look = Sampler(lambda: self._pss_bytes.append(tree_pss_bytes()), PERIOD_S)
        self._watches.enter_context(look)
        if (before := shared_memory.usage()) is not None:
            used = self._shm_bytes
            look = Sampler(lambda: used.append(shared_memory.usage().used - before.used), PERIOD_S)
            self._watches.enter_context(look)
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *_: object) -> None:
        self._watches.close()

    def totals(self) -> dict[str, Any]:
        """Return the measurements as fields of `Trial`.

        A peak is None where the kernel does not tell it or the trial was too short.
        """
        return {
            "peak_rss_bytes": _peak_rss_bytes(),
            "peak_pss_bytes": max(filter(None, self._pss_bytes), default=None),
            "peak_shm_bytes": max((0, *self._shm_bytes)) if self._shm_bytes else None,
            **self.gpu.totals(),
            **_allocated(),
        }


class Sampler:
    """Context that calls a function in a thread, which uses at most one percent of a core.

    Args:
        look: called until the context ends.
        period_s: rest between two calls; longer where a call takes more than a hundredth of it.
    """

    def __init__(self, look: Callable[[], object], period_s: float) -> None:
        self._look, self._period_s = look, period_s

    def __enter__(self) -> Sampler:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        rest_s = self._period_s
        while not self._stop.wait(rest_s):
            before_s = time.thread_time()  # time spent waiting for a core costs others nothing
            self._look()
            # A reading of all processes may take 1 % of a core.
            rest_s = max(self._period_s, 100 * (time.thread_time() - before_s))


class GpuWatch:
    """Context that reads some of torch's GPUs meanwhile; reads nothing where there is none."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._samples: list[Reading] = []
        self._sampler = ExitStack()

    def __enter__(self) -> GpuWatch:
        with suppress(Skip):
            if self._count:
                read = open_gpu(self._count)
                look = Sampler(lambda: self._samples.append(read()), NVML_PERIOD_S)
                self._sampler.enter_context(look)
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.close()

    def totals(self) -> dict[str, float | int | None]:
        """Return the readings as fields of `Trial`; None where there are none."""
        return {
            "gpu_util_mean": self._mean_share("busy_percent"),
            "gpu_memory_bytes": max(self._known("used_bytes"), default=None),
        }

    def disturbance(self) -> dict[str, float | str | None]:
        """Return the share of the GPU that other programs used, and the one seen most often."""
        if not self._samples:
            return {}
        names = Counter(self._known("busiest_other")).most_common(1)
        return {
            "other_gpu_share": self._mean_share("others_percent"),
            "busiest_gpu_program": names[0][0] if names else None,
        }

    def _known(self, name: str) -> list:
        return [sample[name] for sample in self._samples if sample[name] is not None]

    def _mean_share(self, name: str) -> float | None:
        known = self._known(name)
        return fmean(known) / 100 if known else None


def own_cpu_s() -> float:
    """Return the CPU seconds of this process and its descendants, ended or alive; no helpers."""
    import psutil

    total_s, helpers = 0.0, helper.pids()
    for process in lowest_first():
        with suppress(psutil.Error):
            if process.pid not in helpers:
                # Its own and its ended children's, user and system.
                total_s += sum(process.cpu_times()[:4])
    return total_s


def cores_s() -> dict[int, tuple[float, float]]:
    """Return, of every core that this process may use, its busy seconds and all of them, so far."""
    import psutil

    times = psutil.cpu_times(percpu=True)
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
    busy_and_all_s = {}
    for number, core in enumerate(times):
        if number in mine:
            # User time includes guest time, and a core that waits for a disk is idle.
            all_s = sum(core) - getattr(core, "guest", 0) - getattr(core, "guest_nice", 0)
            busy_and_all_s[number] = all_s - core.idle - getattr(core, "iowait", 0), all_s
    return busy_and_all_s


def lowest_first() -> list:
    """List the descendants of this process and at last itself, as psutil's processes.

    A parent is read after its children, so that it counts those that end meanwhile.
    """
    import psutil

    return [*reversed(procfs.descendants()), psutil.Process()]


def tree_pss_bytes() -> int | None:
    """Return the proportional set size of this process and its descendants; no helpers.

    Returns:
        None where the kernel lists no PSS or no children.
    """
    return _add_up(_pss_bytes)


def tree_read_bytes() -> int | None:
    """Return what this process and its descendants have read from devices; no helpers.

    What the page cache held is not counted.

    Returns:
        None where the kernel lists no such bytes or no children.
    """
    # An ended child that was waited for is included in its parent's.
    return _add_up(lambda process_id: procfs.counters(f"/proc/{process_id}/io").get("read_bytes"))


def _pss_bytes(process_id: int) -> int | None:
    kib = procfs.counters(f"/proc/{process_id}/smaps_rollup").get("Pss")
    return None if kib is None else 1024 * kib


def _add_up(read: Callable[[int], int | None]) -> int | None:
    own, below = read(os.getpid()), procfs.processes_below(os.getpid())
    if own is None or below is None:
        return None
    helpers = helper.pids()
    # None: it has just ended.
    return own + sum(read(child) or 0 for child in below if child not in helpers)


def _peak_rss_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def _allocated() -> dict[str, int]:
    """Return the most that torch's allocator held since the peaks were reset, if on a GPU."""
    import torch

    if not torch.cuda.is_initialized():
        return {}
    return {
        "gpu_allocated_bytes": torch.cuda.max_memory_allocated(),
        "gpu_reserved_bytes": torch.cuda.max_memory_reserved(),
    }
