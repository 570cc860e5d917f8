"""Usage: what a trial cost beside time: CPU-seconds, page faults, memory, GPU utilization.

The GPU is watched through NVML by a thread that wakes a few times a second;
everything else is read before and after.  Main trap: NVML's utilization is the
share of its sampling period in which *some* kernel ran: 100 % says nothing of
how much of the GPU was used, nor at which clock.
Source: nvml.h (device queries; clocks event reasons).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import ModuleType

from labkit import helper, procfs
from labkit.memory import MemoryWatch

NVML_PERIOD_S = 0.2  # NVML itself averages over 1/6 to 1 s
# Bits of reasons for a lower clock that are no throttling: idle, and what a person or a display
# has set (application clocks), which may hold all the time; gpu_clock_hz shows it.
CHOSEN_CLOCKS = 0x1 | 0x2 | 0x100


class Usage:
    """Context that counts what this process and its children use meanwhile.

    Args:
        gpu: watch the CUDA device, too.
    """

    def __init__(self, *, gpu: bool) -> None:
        self._watches_gpu = gpu

    def __enter__(self) -> Usage:
        """Start counting."""
        self._gpu = _GpuWatch(self._watches_gpu)
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

    total_s, helpers = 0.0, helper.numbers()
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


def _slowed_by(nvml: ModuleType, gpu: object) -> int:
    """Give the bits of what keeps the clock down and was not chosen; 0 for nothing."""
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except (AttributeError, nvml.NVMLError):  # drivers before 535 have it by its old name alone
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    return reasons & ~CHOSEN_CLOCKS


# Name of a reading -> how NVML is asked for it.
READINGS: dict[str, Callable[[ModuleType, object], int]] = {
    "busy_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "slowed_by": _slowed_by,
}


def read_gpu(nvml: ModuleType, gpu: object) -> dict[str, int | None]:
    """Ask NVML for every reading once.

    Args:
        nvml: pynvml, initialized.
        gpu: its handle of the GPU.

    Returns:
        Name -> value; None for what this library, driver or device (a MIG slice) does not offer.
    """
    found = {}
    for name, read in READINGS.items():
        try:
            found[name] = read(nvml, gpu)
        except (AttributeError, nvml.NVMLError):
            found[name] = None
    return found


class _GpuWatch:
    """Samples torch's GPU until stopped; measures nothing where there is no NVIDIA driver."""

    def __init__(self, wanted: bool) -> None:
        self._samples: list[dict[str, int | None]] = []
        self._stop = threading.Event()
        self._thread = None
        if not wanted:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = _torch_gpu(pynvml)
        except Exception:  # no driver, no library or no device: nothing to watch
            return
        self._nvml = pynvml
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(NVML_PERIOD_S):
            self._samples.append(read_gpu(self._nvml, self._handle))

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def totals(self) -> dict[str, float | int | None]:
        busy = self._known("busy_percent")
        return {
            "gpu_util_mean": sum(busy) / len(busy) / 100 if busy else None,
            "gpu_util_zero_share": busy.count(0) / len(busy) if busy else None,
            "gpu_memory_bytes": max(self._known("used_bytes"), default=None),
        }

    def clocks(self) -> dict[str, float | None]:
        clocks_mhz, slowed_by = self._known("clock_mhz"), self._known("slowed_by")
        return {
            "gpu_clock_hz": 1e6 * sum(clocks_mhz) / len(clocks_mhz) if clocks_mhz else None,
            "gpu_throttled_share": sum(map(bool, slowed_by)) / len(slowed_by)
            if slowed_by
            else None,
        }

    def _known(self, name: str) -> list[int]:
        return [value for sample in self._samples if (value := sample[name]) is not None]


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


def _torch_gpu(pynvml: ModuleType) -> object:
    """Give NVML's handle of the GPU torch uses: CUDA_VISIBLE_DEVICES may have renumbered them."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is None:
        return pynvml.nvmlDeviceGetHandleByIndex(0)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
