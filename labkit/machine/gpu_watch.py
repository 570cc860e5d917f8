"""The GPU as NVML sees it: utilization, memory, clock, and what slows it down.

    open_gpu() ─▶ a function that asks once ─▶ GpuWatch: a thread that asks a few times a second
                                            └▶ diagnosis/timeline: one more column beside others

Main trap: NVML's utilization is the share of its sampling period in which *some* kernel ran: 100 %
says nothing of how much of the GPU was used, nor at which clock.
Source: nvml.h (device queries; clocks event reasons; nvmlUtilization_t).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType

from labkit.contracts import Skip

NVML_PERIOD_S = 0.2  # NVML itself averages over 1/6 to 1 s
# Bits of reasons for a lower clock that are no throttling: idle, and what a person or a display
# has set (application clocks), which may hold all the time; gpu_clock_hz shows it.
CHOSEN_CLOCKS = 0x1 | 0x2 | 0x100

Reading = dict[str, int | None]


def open_gpu() -> Callable[[], Reading]:
    """Find torch's GPU; makes torch initialize CUDA in this process.

    Returns:
        A function that asks NVML for every one of `READINGS` once.

    Raises:
        Skip: there is no NVIDIA driver, no library or no device to ask.
    """
    try:
        import pynvml
    except ImportError:
        raise Skip("NVML is read with nvidia-ml-py; pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
        gpu = _torch_gpu(pynvml)
    except pynvml.NVMLError:
        raise Skip("no NVIDIA driver answers NVML") from None
    except Exception as error:  # torch has one class for each way of having no GPU
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Skip(f"torch has no GPU here: {said}") from None
    return lambda: read_gpu(pynvml, gpu)


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


def read_gpu(nvml: ModuleType, gpu: object) -> Reading:
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


class GpuWatch:
    """Samples torch's GPU until stopped; measures nothing where there is no NVIDIA driver."""

    def __init__(self, wanted: bool) -> None:
        self._samples: list[Reading] = []
        self._stop = threading.Event()
        self._thread = None
        if not wanted:
            return
        try:
            self._read = open_gpu()
        except Skip:  # nothing to watch
            return
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(NVML_PERIOD_S):
            self._samples.append(self._read())

    def stop(self) -> None:
        """Stop sampling."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def totals(self) -> dict[str, float | int | None]:
        """Give what was seen as fields of `Trial`."""
        busy = self._known("busy_percent")
        return {
            "gpu_util_mean": sum(busy) / len(busy) / 100 if busy else None,
            "gpu_util_zero_share": busy.count(0) / len(busy) if busy else None,
            "gpu_memory_bytes": max(self._known("used_bytes"), default=None),
        }

    def clocks(self) -> dict[str, float | None]:
        """Give the clock's mean and the share of samples in which something slowed it down."""
        clocks_mhz, slowed_by = self._known("clock_mhz"), self._known("slowed_by")
        return {
            "gpu_clock_hz": 1e6 * sum(clocks_mhz) / len(clocks_mhz) if clocks_mhz else None,
            "gpu_throttled_share": sum(map(bool, slowed_by)) / len(slowed_by)
            if slowed_by
            else None,
        }

    def _known(self, name: str) -> list[int]:
        return [value for sample in self._samples if (value := sample[name]) is not None]


def _torch_gpu(pynvml: ModuleType) -> object:
    """Give NVML's handle of the GPU torch uses: CUDA_VISIBLE_DEVICES may have renumbered them."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is None:
        return pynvml.nvmlDeviceGetHandleByIndex(0)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
