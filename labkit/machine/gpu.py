"""The GPU: whether torch runs kernels on it, and what NVML says of it while a trial runs.

    cuda()      NVIDIA driver?  ─▶  one small kernel in another process  ─▶  CudaState
    open_gpu()  a function that reads NVML once  ─▶  GpuWatch, a thread that calls it at 5 Hz

A process that forks later must not touch CUDA, and importing torch takes seconds.  So `cuda` first
asks the driver through NVML, which takes milliseconds and does not initialize CUDA, and runs the
kernel in another process.  NVML's utilization is the share of its sampling period in which any
kernel ran: 100 % tells neither how much of the GPU was in use nor at which clock.
Source: nvml.h (device queries; clocks event reasons; nvmlUtilization_t).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from labkit.contracts import Skip

IMPORT_AND_KERNEL_S = 120.0  # a cold `import torch` with CUDA takes up to a minute
NVML_PERIOD_S = 0.2  # NVML itself averages over 1/6 to 1 s
# Reasons for a lower clock that are no throttling: idle, and application and display clocks, which
# the user has set and gpu_clock_hz shows.
CHOSEN_CLOCKS = 0x1 | 0x2 | 0x100

Reading = dict[str, int | None]


@dataclass(frozen=True, kw_only=True)
class CudaState:
    """Whether this torch build runs kernels on this machine's first GPU."""

    works: bool
    reason: str = ""
    """Why not, as a sentence; empty where it works."""
    name: str = ""
    memory_bytes: int | None = None
    driver: str = ""
    """Version of the NVIDIA driver."""
    capability: str = ""
    """Compute capability, as "8.9"."""


# Runs in a process of its own; prints one line of JSON.
_TRY_A_KERNEL = """
import json, torch
answer = {"torch": torch.__version__, "cuda": torch.version.cuda, "error": ""}
try:
    if torch.version.cuda:
        gpu = torch.cuda.get_device_properties(0)
        answer.update(name=gpu.name, memory_bytes=gpu.total_memory)
        answer.update(capability=f"{gpu.major}.{gpu.minor}", kernels=torch.cuda.get_arch_list())
        assert (torch.arange(8, device="cuda") + 1).sum().item() == 36
except Exception as error:
    answer["error"] = str(error) or type(error).__name__
print(json.dumps(answer))
"""


@cache
def cuda() -> CudaState:
    """Return whether torch runs kernels on the first GPU, without initializing CUDA here.

    It takes milliseconds without an NVIDIA driver, else as long as importing torch does; later
    calls return the same answer.
    """
    try:
        driver = _nvidia_driver()
        done = subprocess.run(
            [sys.executable, "-c", _TRY_A_KERNEL],
            capture_output=True,
            text=True,
            timeout=IMPORT_AND_KERNEL_S,
            cwd=Path(__file__).parents[2],  # not the caller's: it may hold a random.py
        )
    except Skip as reason:
        return CudaState(works=False, reason=str(reason))
    except subprocess.TimeoutExpired:
        reason = f"torch did not run a kernel within {IMPORT_AND_KERNEL_S:.0f} s"
        return CudaState(works=False, reason=reason, driver=driver)
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        reason = f"torch could not be tried: {last_line}"
        return CudaState(works=False, reason=reason, driver=driver)
    answer = json.loads(done.stdout.splitlines()[-1])
    reason = explain_cuda(answer)
    return CudaState(
        works=not reason,
        reason=reason,
        driver=driver,
        name=answer.get("name", ""),
        memory_bytes=answer.get("memory_bytes"),
        capability=answer.get("capability", ""),
    )


def _nvidia_driver() -> str:
    """Return the version of the NVIDIA driver, or "unknown"; Skip where there is no GPU."""
    try:
        import pynvml
    except ImportError:
        return "unknown"  # torch then tells whether there is a GPU
    try:
        pynvml.nvmlInit()
        try:
            if not pynvml.nvmlDeviceGetCount():
                raise Skip("the NVIDIA driver sees no GPU")
            return pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        raise Skip("no NVIDIA driver") from None


def explain_cuda(answer: Mapping[str, object]) -> str:
    """Return why torch runs no kernel on its first GPU, and what to do about it.

    Args:
        answer: torch and cuda (versions; cuda is None in a build without it), error, and where
            a GPU was found name, capability and kernels (as "sm_75").

    Returns:
        A sentence; "" where a kernel ran.

    Source: PyTorch's CUDA support matrix (RELEASE.md); pytorch/pytorch issue 190385.
    """
    torch, error = f"torch {answer['torch']}", str(answer["error"])
    if not answer["cuda"]:
        return f"{torch} is built without CUDA; install a CUDA build of torch to use the GPU"
    if "driver" in error and "too old" in error:
        return (
            f"the NVIDIA driver is too old for {torch}, built for CUDA {answer['cuda']}; "
            "update the driver, or install a torch build for an older CUDA"
        )
    if "no kernel image" not in error:
        return error.strip().splitlines()[0] if error else ""
    # "sm_75" and capability "7.5" -> 75; "sm_90a" has features of one chip only.
    numbers = [kernel.removeprefix("sm_").rstrip("af") for kernel in answer["kernels"]]
    known = sorted({int(number) for number in numbers if number.isdigit()})
    wanted = int(answer["capability"].replace(".", ""))
    has = ", ".join(f"{number // 10}.{number % 10}" for number in known)
    advice = f"install a torch build with kernels for {answer['capability']}"
    if known and wanted < known[0]:
        # CUDA 13 builds begin with 7.5 (Turing); those for 12.6 still reach back to 5.0.
        advice = "install an older torch build, such as one for CUDA 12.6"
    elif known and wanted > known[-1]:
        advice = "install a newer torch build"
    return (
        f"{answer['name']} has compute capability {answer['capability']}, but {torch} "
        f"has kernels for {has} only; {advice}"
    )


def open_gpu() -> Callable[[], Reading]:
    """Open torch's GPU in NVML; makes torch initialize CUDA in this process.

    Returns:
        A function that takes every one of `READINGS` once.

    Raises:
        Skip: there is no NVIDIA driver, no NVML or no GPU.
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
    except Exception as error:  # torch raises several classes where there is no GPU
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Skip(f"torch has no GPU here: {said}") from None
    return lambda: read_gpu(pynvml, gpu)


def _slowed_by(nvml: ModuleType, gpu: object) -> int:
    """Return the bits of the reasons that lower the clock and that the user did not choose."""
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except (AttributeError, nvml.NVMLError):  # drivers before 535 know the old name only
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    return reasons & ~CHOSEN_CLOCKS


# Name of a reading -> how it is read from NVML.
READINGS: dict[str, Callable[[ModuleType, object], int]] = {
    "busy_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "slowed_by": _slowed_by,
}


def read_gpu(nvml: ModuleType, gpu: object) -> Reading:
    """Take every reading once.

    Args:
        nvml: pynvml, initialized.
        gpu: NVML's handle.

    Returns:
        Name -> value; None for what this library, driver or device (a MIG slice) does not report.
    """
    found = {}
    for name, read in READINGS.items():
        try:
            found[name] = read(nvml, gpu)
        except (AttributeError, nvml.NVMLError):
            found[name] = None
    return found


class GpuWatch:
    """Take readings of torch's GPU in a thread until stopped; none where there is no GPU.

    Args:
        wanted: False takes none.
    """

    def __init__(self, wanted: bool) -> None:
        self._samples: list[Reading] = []
        self._stop = threading.Event()
        self._thread = None
        if not wanted:
            return
        try:
            self._read = open_gpu()
        except Skip:
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
        """Return the readings as fields of `Trial`; None where there are none."""
        busy = self._known("busy_percent")
        return {
            "gpu_util_mean": sum(busy) / len(busy) / 100 if busy else None,
            "gpu_util_zero_share": busy.count(0) / len(busy) if busy else None,
            "gpu_memory_bytes": max(self._known("used_bytes"), default=None),
        }

    def clocks(self) -> dict[str, float | None]:
        """Return the mean clock, and the share of readings in which something lowered it."""
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
    """Return NVML's handle of torch's GPU; CUDA_VISIBLE_DEVICES changes torch's numbers only."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is None:
        return pynvml.nvmlDeviceGetHandleByIndex(0)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
