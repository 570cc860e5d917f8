"""The machine: cores, memory, versions and provenance.

A run records `provenance`, and `labkit doctor` prints it.  Nothing personal is recorded: no host,
no user name, no path.  A container shows all cores and all memory of its host; its control groups
tell what it may use.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from labkit import units
from labkit.install import CHECKOUT
from labkit.machine import procfs
from labkit.machine.cores import core_limits
from labkit.machine.gpu import cuda
from labkit.records import UNKNOWN, Provenance

# A variant that needs a missing one is skipped.
OPTIONAL = (
    "kornia_rs", "torchcodec", "torchvision", "tensorflow", "dali", "spdl", "webdataset",
)  # fmt: skip
LIBRARIES = (
    "torch", "numpy", "opencv", "pillow", "simplejpeg", "prefetch_generator", "tqdm", "pandas",
    "matplotlib", *OPTIONAL,
)  # fmt: skip
# Library -> the distributions that may provide it, where they have other names.
DISTRIBUTIONS = {
    "opencv": [f"opencv{kind}-python{ui}" for kind in ("", "-contrib") for ui in ("", "-headless")],
    "tensorflow": ["tensorflow", "tensorflow-cpu"],
    "dali": ["nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-dali-cuda110"],
    "spdl": ["spdl-core"],
}


def cores() -> int:
    """Count the CPU cores this process may use, at least 1; ranks share them.

    A control group's quota of one and a half cores counts as two.
    """
    return core_limits().cores


def why_no_compiler() -> str:
    """Return what torch.compile lacks here to build its code; "" where it can."""
    compilers = (os.environ.get("CXX", "c++"), "g++", "clang++", "cl")
    if not any(map(shutil.which, compilers)):
        return "where no C++ compiler is installed; install g++"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "where Python's headers are not installed; install python3-dev"
    return ""


def memory_bytes() -> int:
    """Return the bytes of memory this process may use, page cache included."""
    import psutil

    limits = [psutil.virtual_memory().total]
    for folder in procfs.cgroup_folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # versions 2 and 1
            limits.append(procfs.number(folder / name) or limits[0])
    return min(limits)


def free_memory_bytes() -> int:
    """Return the bytes of memory this process may still take; page cache gives way, so it counts.

    Files in a tmpfs count as memory of the control group that writes them.
    """
    import psutil

    free = [psutil.virtual_memory().available]
    for folder in procfs.cgroup_folders("memory"):
        # Versions 2 and 1; version 1 counts the groups below in names of their own.
        for limit, usage, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            most, used = procfs.number(folder / limit), procfs.number(folder / usage)
            if most is not None and used is not None:
                counted = procfs.counters(folder / "memory.stat")
                files = sum(
                    counted.get(f"{prefix}{name}_file", 0) for name in ("active", "inactive")
                )
                free.append(max(most - used + files, 0))
    return min(free)


def can_fork() -> bool:
    """Whether trials and loader workers can start by fork, as on Linux."""
    # macOS has fork, but its own libraries crash in forked processes.
    return sys.platform == "linux" and hasattr(os, "fork")


def has_bfloat16() -> bool:
    """Whether torch computes bfloat16 with vector instructions on this CPU.

    Source: ATen's mkldnn_bf16_device_check, which asks x86 CPUs for AVX-512.
    """
    flags = _cpu_flags()
    return flags is None or "avx512bw" in flags


def provenance() -> Provenance:
    """Describe the machine and its software, as a run records them."""
    import psutil

    revision, dirty = _revision()
    return Provenance(
        machine_id=_machine_id(psutil.virtual_memory().total),
        platform=f"{platform.system()} {platform.machine()}",
        kernel=platform.release() or UNKNOWN,
        python=platform.python_version(),
        virtual=_is_virtual(),
        cpu_model=cpu_model(),
        cpu_count=os.cpu_count(),
        cores=cores(),
        memory_bytes=memory_bytes(),
        versions=versions(),
        revision=revision,
        dirty=dirty,
        gpu=cuda(),
    )


def began_here(provenance: Provenance, here: Provenance) -> bool:
    """Return whether a run began on this machine, with as many of its cores as now.

    A container's quota and taskset change their number, and with it what the machine can do.
    """
    # Runs of early versions have not recorded their cores.
    return provenance.machine_id == here.machine_id and provenance.cores in (None, here.cores)


def describe(provenance: Provenance) -> str:
    """Describe the machine of a run in one short line.

    Returns:
        Plain text, as "2 cores, AMD EPYC, no GPU (machine 7a93da)".
    """
    count, gpu = provenance.cores, provenance.gpu
    parts = ["unknown cores" if count is None else units.count(count, "core")]
    if provenance.cpu_model != UNKNOWN:
        parts.append(" ".join(provenance.cpu_model.split()))  # firmware pads names with spaces
    if gpu is None:
        parts.append("GPU unknown")
    elif gpu.works:
        parts.append(gpu.name or "a GPU")
    else:
        parts.append(f"{gpu.name} that cannot be used" if gpu.name else "no GPU")
    machine_id = provenance.machine_id
    if machine_id != UNKNOWN:
        machine_id = machine_id[:6]  # enough to tell a few machines apart
    return f"{', '.join(parts)} (machine {machine_id})"


def versions() -> dict[str, str]:
    """Return library -> installed version without importing any; "unknown" if it is missing.

    Optional libraries that are missing are left out.
    """
    installed = {}
    for name in LIBRARIES:
        if name not in OPTIONAL:
            installed[name] = UNKNOWN
        for distribution in DISTRIBUTIONS.get(name, [name]):
            try:
                installed[name] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    return installed


def _machine_id(total_bytes: int) -> str:
    # What firmware and kernel leave of the memory differs a little from start to start.
    facts = (platform.system(), platform.machine(), cpu_model(), os.cpu_count(), total_bytes >> 30)
    raw = procfs.text("/etc/machine-id").strip()
    return hashlib.sha256(f"labkit {raw} {facts}".encode()).hexdigest()[:12]


def cpu_model() -> str:
    """Return the name of the CPU; "unknown" where the system tells none."""
    for line in procfs.text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or UNKNOWN  # arm64 Linux names no model


def _is_virtual() -> bool | None:
    flags = _cpu_flags()
    return None if flags is None else "hypervisor" in flags


def _cpu_flags() -> list[str] | None:
    """Return what the CPU can do, as Linux names it; None on others than x86."""
    flags = re.search(r"^flags\s*:(.*)$", procfs.text("/proc/cpuinfo"), re.MULTILINE)
    return flags[1].split() if flags else None


def _revision() -> tuple[str, bool | None]:
    """Return the commit of labkit's checkout, and whether the package differs from it."""
    # An installed copy may lie inside another project's repository.
    if not (CHECKOUT / ".git").exists():
        return UNKNOWN, None
    try:
        done = subprocess.run(
            ["git", "status", "--porcelain=v2", "--branch", "--", "labkit"],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # writes nothing
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN, None
    lines = done.stdout.splitlines()
    revision = lines[0].removeprefix("# branch.oid ") if lines else UNKNOWN
    return revision, any(not line.startswith("#") for line in lines)
