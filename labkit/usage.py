"""Usage: what a trial cost beside time: CPU-seconds, memory, GPU utilization.

The GPU is watched through NVML by a thread that wakes a few times a second;
everything else is read before and after.  Main trap: NVML's utilization is the
share of its sampling period in which *some* kernel ran: 100 % says nothing of
how much of the GPU was used.
"""

from __future__ import annotations

import os
import threading
from types import ModuleType

NVML_PERIOD_S = 0.2  # NVML itself averages over 1/6 to 1 s


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
        self._cpu_before_s = own_cpu_s()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop counting."""
        self._cpu_s = own_cpu_s() - self._cpu_before_s
        self._gpu.stop()

    def totals(self, wall_s: float) -> dict[str, object]:
        """Give the counts as fields of `Trial`.

        Args:
            wall_s: what the CPU percentage is taken of.
        """
        return {
            "cpu_s": self._cpu_s,
            "cpu_percent": 100 * self._cpu_s / wall_s,
            "peak_rss_bytes": _peak_rss_bytes(),
            **self._gpu.totals(),
        }


def own_cpu_s() -> float:
    """Count the CPU-seconds of this process and all below it, ended or still alive."""
    import psutil

    times = os.times()
    total_s = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:
            continue  # ended meanwhile: counted among the ended from now on
        total_s += sum(used[:4])  # its own and its ended children's, user and system
    return total_s


class _GpuWatch:
    """Samples torch's GPU until stopped; measures nothing where there is no NVIDIA driver."""

    def __init__(self, wanted: bool) -> None:
        self._samples: list[tuple[int, int]] = []  # (utilization %, memory bytes)
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
            try:
                percent = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
                used_bytes = self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used
            except self._nvml.NVMLError:
                return  # not supported by this device, e.g. a MIG slice
            self._samples.append((percent, used_bytes))

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def totals(self) -> dict[str, float | int | None]:
        if not self._samples:
            return {"gpu_util_mean": None, "gpu_util_zero_share": None, "gpu_memory_bytes": None}
        shares = [percent / 100 for percent, _ in self._samples]
        return {
            "gpu_util_mean": sum(shares) / len(shares),
            "gpu_util_zero_share": shares.count(0.0) / len(shares),
            "gpu_memory_bytes": max(used_bytes for _, used_bytes in self._samples),
        }


def _peak_rss_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def _torch_gpu(pynvml: ModuleType) -> object:
    """Give NVML's handle of the GPU torch uses: CUDA_VISIBLE_DEVICES may have renumbered them."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is None:
        return pynvml.nvmlDeviceGetHandleByIndex(0)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
