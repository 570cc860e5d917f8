"""The GPU: whether torch runs kernels on it, and what NVML says of it while a trial runs.

    cuda()      NVIDIA driver?  ─▶  one small kernel in another process  ─▶  CudaState
    open_gpu()  a function that reads NVML once

A process that forks later must not touch CUDA, and importing torch takes seconds.  So `cuda` first
asks the driver through NVML, which takes milliseconds and does not initialize CUDA, and runs the
kernel in another process.  NVML's utilization is the share of its sampling period in which any
kernel ran: 100 % tells neither how much of the GPU was in use nor at which clock.
Source: nvml.h (device queries; nvmlUtilization_t).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Set
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from labkit.contracts import Skip
from labkit.machine import procfs
from labkit.records import CudaState

T = TypeVar("T")
Reading = dict[str, Any]


# Runs in a process of its own; prints one line of JSON.
_TRY_A_KERNEL = """
import json, torch
answer = {"torch": torch.__version__, "cuda": torch.version.cuda, "error": ""}
answer |= {"name": "", "memory_bytes": None, "capability": ""}
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
    (driver, gpus), facts = nvidia_driver(), {}
    try:
        if not gpus:
            raise Skip("the NVIDIA driver sees no GPU" if driver else "no NVIDIA driver")
        done = subprocess.run(
            [sys.executable, "-c", _TRY_A_KERNEL],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,  # a cold `import torch` with CUDA takes up to a minute
            cwd=Path(__file__).parents[2],  # not the caller's: it may hold a random.py
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        reason = explain_cuda(answer)
        facts = {name: answer[name] for name in ("name", "memory_bytes", "capability")}
    except Skip as skip:
        reason = str(skip)
    except subprocess.TimeoutExpired as expired:
        reason = f"torch did not run a kernel within {expired.timeout:.0f} s"
    except subprocess.CalledProcessError as error:
        last_line = (error.stderr.strip().splitlines() or ["no message"])[-1]
        reason = f"torch could not be tried: {last_line}"
    return CudaState(works=not reason, reason=reason, driver=driver, **facts)


def nvidia_driver() -> tuple[str, int]:
    """Return the version of the NVIDIA driver and how many GPUs it sees; "" and 0 without one."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return "", 0


def explain_cuda(answer: Mapping[str, Any]) -> str:
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
    if "no kernel image" not in error:
        return error.strip().splitlines()[0] if error else ""
    return (
        f"{answer['name']} has compute capability {answer['capability']}, but {torch} has kernels "
        f"for {', '.join(answer['kernels'])} only; install a torch build with kernels for it"
    )


def open_gpu(count: int = 1) -> Callable[[], Reading]:
    """Open torch's GPU in NVML; makes torch initialize CUDA in this process.

    Args:
        count: of several GPUs that this process and its children use, the first ones.

    Returns:
        A function that reads it once; of several GPUs the one that other programs use most.

    Raises:
        Skip: there is no NVIDIA driver or no GPU.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        gpus = [_torch_gpu(pynvml, index) for index in (range(count) if count > 1 else [None])]
    except pynvml.NVMLError:
        raise Skip("no NVIDIA driver answers NVML") from None
    except Exception as error:  # torch raises several classes where there is no GPU
        lines = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Skip(f"torch has no GPU here: {lines}") from None
    own = {os.getpid(), *(each.pid for each in procfs.descendants())}

    def read() -> Reading:
        # NVML keeps a process's use for each of its periods, of up to a second, and returns some
        # again.
        since_us = int(1e6 * time.time()) - 1_000_000
        readings = [read_gpu(pynvml, gpu, own, since_us) for gpu in gpus]
        return max(readings, key=lambda reading: reading["others_percent"] or 0)

    return read


def _others(nvml: ModuleType, gpu: object, own: Set[int], since_us: int) -> dict | None:
    """Return what other processes used of the GPU lately in percent, by number.

    None where no own one is found: in a container, NVML may know processes by other numbers.
    """
    import psutil

    if own.isdisjoint(each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)):
        return None
    try:
        seen = nvml.nvmlDeviceGetProcessUtilization(gpu, since_us)
    except nvml.NVMLError_NotFound:  # none computed
        return {}
    # NVML also returns what it has not filled in.
    return {
        each.pid: each.smUtil
        for each in sorted(seen, key=lambda each: each.timeStamp)
        if each.timeStamp > since_us
        and each.smUtil <= 100
        and each.pid not in own
        and psutil.pid_exists(each.pid)
    }


def _busiest(percents: Mapping[int, int]) -> str | None:
    """Return the name of the process that uses most; None where none does."""
    import psutil

    busiest = max(percents, key=percents.get, default=None)
    try:
        return psutil.Process(busiest).name() if percents.get(busiest) else None
    except psutil.Error:  # it has ended
        return None


def read_gpu(nvml: ModuleType, gpu: object, own: Set[int], since_us: int) -> Reading:
    """Read how busy a GPU is, its memory, how busy others keep it, and which of them most.

    Args:
        nvml: pynvml, initialized.
        gpu: NVML's handle.
        own: numbers of the processes that are no others.
        since_us: what others did before does not count; in the epoch's microseconds.

    Returns:
        Name -> value; None for what this library, driver or device (a MIG slice) does not report.
    """

    def ask(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (AttributeError, nvml.NVMLError):
            return None

    others = ask(lambda: _others(nvml, gpu, own, since_us))
    return {
        "busy_percent": ask(lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
        "used_bytes": ask(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).used),
        "total_bytes": ask(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).total),
        "others_percent": None if others is None else sum(others.values()),
        "busiest_other": _busiest(others or {}),
    }


def _torch_gpu(pynvml: ModuleType, index: int | None) -> object:
    """Return NVML's handle of torch's GPU; CUDA_VISIBLE_DEVICES changes torch's numbers only."""
    import torch

    if index is None and (index := index_in_use()) is None:
        index = torch.cuda.current_device()
    uuid = torch.cuda.get_device_properties(index).uuid
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:  # a slice of one
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def other_gpu_in_use() -> Literal["mps", "xpu"] | None:
    """Return torch's name of Apple's or Intel's GPU where this process holds tensors on it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.backends.mps.is_available() and torch.mps.current_allocated_memory():
        return "mps"
    if torch.xpu.is_initialized() and torch.xpu.memory_allocated():
        return "xpu"
    return None


def index_in_use() -> int | None:
    """Return torch's number of the GPU that holds most of this process's tensors; None: of none."""
    torch = sys.modules.get("torch")  # importing it would take seconds
    if torch is None or not torch.cuda.is_initialized():
        return None
    held_bytes = list(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))
    most_bytes = max(held_bytes)
    return held_bytes.index(most_bytes) if most_bytes else None
