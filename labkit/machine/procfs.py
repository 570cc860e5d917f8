"""Files in /proc and /sys that psutil does not read: counters, control groups, children.

On macOS and Windows these files do not exist: texts and lists are then empty and numbers None, so
that callers need no check of the platform.
Source: proc(5), cgroups(7).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


def text(path: str | Path) -> str:
    """Read a small file; empty where it cannot be read."""
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def number(path: str | Path) -> int | None:
    """Read a file that holds one whole number; None where there is none."""
    word = text(path).strip()
    return int(word) if re.fullmatch(r"-?\d+", word) else None


def counters(path: str | Path) -> dict[str, int]:
    """Read lines of the form "name value …": name -> its first value, without its unit."""
    counts = re.findall(r"^(\w+):?\s+(\d+)", text(path), re.MULTILINE)
    return {name: int(value) for name, value in counts}


def cgroup_folders(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that limit this process, the innermost first.

    Args:
        controller: as "cpu" or "memory"; version 2 has all of them in one folder.
    """
    for line in text("/proc/self/cgroup").splitlines():
        _, names, own = line.split(":", 2)  # "4:memory:/a" (version 1) or "0::/a" (version 2)
        for top, root, kind, options in _mounts():
            if names:
                here = kind == "cgroup" and controller in options.split(",")
                here = here and controller in names.split(",")
            else:
                here = kind == "cgroup2"
            if here:
                # A container may see its own group, or one above it, as the uppermost one.
                below = own if root == "/" else own.removeprefix(root)
                folder = top / below.lstrip("/")
                folder = folder if folder.exists() else top
                yield from (f for f in (folder, *folder.parents) if f.is_relative_to(top))


def _mounts() -> Iterator[tuple[Path, str, str, str]]:
    """Yield each mount: its folder, the folder that it shows, its kind and its options."""
    for line in text("/proc/self/mountinfo").splitlines():
        own, _, whole = line.partition(" - ")
        root, point = (re.sub(r"\\(\d{3})", _unescape, word) for word in own.split()[3:5])
        kind, _, options = whole.split(" ")[:3]
        yield Path(point), root, kind, options


def _unescape(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))


def scheduled_s(task: int | str = "thread-self") -> tuple[float, float]:
    """Return for how long a thread ran, and was ready to run and had no core; 0 where not known.

    Args:
        task: this thread, or a process, whose first thread counts.

    Source: Linux, Documentation/scheduler/sched-stats.rst.
    """
    counted = text(f"/proc/{task}/schedstat").split()
    return (int(counted[0]) / 1e9, int(counted[1]) / 1e9) if counted else (0.0, 0.0)


def processes_below(process_id: int) -> list[int] | None:
    """List the descendants of a process, cheaply enough for use during a trial.

    psutil reads the parent of every process of the machine for this.

    Returns:
        Process ids; None where the kernel does not list children.
    """
    tasks = Path(f"/proc/{process_id}/task")
    if not (tasks / str(process_id) / "children").exists():
        return None
    children = [int(word) for file in tasks.glob("*/children") for word in text(file).split()]
    return [*children, *(p for child in children for p in processes_below(child) or ())]


def descendants() -> list[psutil.Process]:
    """List the processes below this one, each after its parent.

    Raises:
        psutil.AccessDenied: the kernel hides other users' processes, and lists no children.
    """
    import psutil

    try:
        return psutil.Process().children(recursive=True)
    except psutil.AccessDenied:  # /proc is mounted with hidepid=1, and psutil reads all processes
        if (below := processes_below(os.getpid())) is None:
            raise
    processes = []
    for process_id in below:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            processes.append(psutil.Process(process_id))
    return processes
