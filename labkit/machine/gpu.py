"""The GPU: whether this torch build runs kernels on it, and if not, what to do.

    NVIDIA driver?  →  one tiny kernel in another process  →  CudaState

Main trap: CUDA must not be touched in a process that forks later, and importing
torch takes seconds.  So the driver is asked first, through NVML, which answers in
milliseconds where there is no GPU, and the kernel runs in a process of its own.
A GPU that is found can still be too old or too new for the installed torch: it
then says "no kernel image", and here that becomes advice.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.contracts import Skip

IMPORT_AND_KERNEL_S = 120.0  # a cold `import torch` with CUDA takes up to a minute


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
    """Ask whether CUDA works here, without touching it in this process.

    Without an NVIDIA driver the answer comes in milliseconds, else after importing torch in
    another process; it is kept for the life of this one.
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
    """Ask the driver for its version, through NVML: that does not initialize CUDA."""
    try:
        import pynvml
    except ImportError:
        return "unknown"  # torch itself has to say then
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
    """Turn what torch said about its first GPU into a sentence that says what to do.

    Args:
        answer: torch, cuda (versions; None: built without), error, and where the GPU was
            found: name, capability, kernels (as "sm_75").

    Returns:
        "" where a kernel ran.

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
