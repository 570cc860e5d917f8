"""CPU-seconds of every process below this one count, ended or still alive.

The GPU's readings are checked against a hand-made NVML, where each may be missing, and against
the real one where there is a GPU.
"""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from labkit.machine import procfs
from labkit.machine.gpu import read_gpu
from labkit.machine.usage import Usage, own_cpu_s

SPIN_S = 0.3
SPIN = f"import time\nwhile time.process_time() < {SPIN_S}: pass"
# A child that stays alive after its own child has ended.
WAIT = f"""import subprocess, sys
subprocess.run([sys.executable, "-c", {SPIN!r}])
print(flush=True)
input()"""


def denied(process, recursive=False):
    """As where /proc hides other users' processes."""
    raise psutil.AccessDenied(1)


@pytest.mark.parametrize("hides", [False, True], ids=["all are seen", "others are hidden"])
def test_ended_children_of_a_living_child_count(hides, monkeypatch):
    if hides:
        if procfs.processes_below(os.getpid()) is None:
            pytest.skip("this kernel lists no children")
        monkeypatch.setattr(psutil.Process, "children", denied)
    before_s = own_cpu_s()
    child = subprocess.Popen(
        [sys.executable, "-c", WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        child.stdout.readline()
        assert own_cpu_s() - before_s >= 0.9 * SPIN_S
        child.communicate(b"\n")


class NvmlError(Exception):
    pass


class NotFoundError(NvmlError):
    pass


def nvml(**calls):
    """An NVML that offers the calls given; whichever value is an error is raised."""

    def answering(answer):
        def call(*_):
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    offered = {name: answering(answer) for name, answer in calls.items()}
    return SimpleNamespace(NVMLError=NvmlError, NVMLError_NotFound=NotFoundError, **offered)


def use(pid, percent, *, at_us=5):
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=at_us)


OWN, OTHER = os.getpid(), os.getppid()


ALL_CALLS = {
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5_000, total=9_000),
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=OWN)],
    "nvmlDeviceGetProcessUtilization": [
        use(OWN, 28), use(OTHER, 7), use(OTHER, 9, at_us=4), use(1, 5),
    ],
}  # fmt: skip
READINGS = {
    "busy_percent": 40, "used_bytes": 5_000, "total_bytes": 9_000, "others_percent": 12,
    "busiest_other": psutil.Process(OTHER).name(),
}  # fmt: skip


def read(**calls):
    return read_gpu(nvml(**calls), gpu=None, own={OWN}, since_us=3)


@pytest.mark.parametrize(
    ("call", "readings"),
    [
        ("nvmlDeviceGetUtilizationRates", ["busy_percent"]),
        ("nvmlDeviceGetMemoryInfo", ["used_bytes", "total_bytes"]),
        ("nvmlDeviceGetComputeRunningProcesses", ["others_percent", "busiest_other"]),
        ("nvmlDeviceGetProcessUtilization", ["others_percent", "busiest_other"]),
    ],
)
def test_what_nvml_does_not_offer_is_none_and_the_rest_is_read(call, readings):
    others = {name: answer for name, answer in ALL_CALLS.items() if name != call}
    for offered in (others, {**others, call: NvmlError("Not Supported")}):
        assert read(**offered) == {**READINGS, **dict.fromkeys(readings)}


def test_other_programs_are_known_where_this_one_is_found_among_them():
    assert read(**ALL_CALLS) == READINGS
    # In a container, NVML may know this process by another number.
    calls = {**ALL_CALLS, "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1)]}
    assert read(**calls) == {**READINGS, "others_percent": None, "busiest_other": None}


@pytest.mark.parametrize(
    "seen",
    [
        NotFoundError("none computed, this process neither"),
        [use(OTHER, 70, at_us=3)],  # it was returned before
        [use(OTHER, 2_147_483_632), use(2**30, 50)],  # was never filled in
    ],
)
def test_what_nvml_returns_of_no_program_that_computes_now_does_not_count(seen):
    found = read(**{**ALL_CALLS, "nvmlDeviceGetProcessUtilization": seen})
    assert found == {**READINGS, "others_percent": 0, "busiest_other": None}


@pytest.mark.needs_cuda
def test_allocated_memory_is_in_use_and_reserved_memory_also_what_is_kept():
    import torch

    before = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    del before  # no peak of what is measured, and kept by the allocator
    with Usage(gpus=1) as usage:
        torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    totals = usage.totals()
    assert 8 << 20 <= totals["gpu_allocated_bytes"] < 64 << 20 <= totals["gpu_reserved_bytes"]


@pytest.mark.needs_cuda
def test_a_busy_gpu_is_seen():
    import torch

    matrix = torch.ones(2048, 2048, device="cuda")
    with Usage(gpus=1) as usage:
        until_s = time.perf_counter() + 1.0
        while time.perf_counter() < until_s:
            matrix = (matrix @ matrix).clamp_(max=1.0)
            torch.cuda.synchronize()
    totals = usage.totals()
    assert totals["gpu_util_mean"] > 0
    assert totals["gpu_memory_bytes"] > matrix.nbytes
