"""Files in /proc and /sys that psutil does not read: mounts, control groups, page faults.

On macOS and Windows these files do not exist: texts and lists are then empty and numbers None, so
that callers need no check of the platform.
Source: proc(5) for mountinfo and stat, cgroups(7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    device_number: str
    """As "8:1"; "0:…" without a block device."""
    root: str
    """The folder of the filesystem that is mounted; "/" is all of it."""
    point: Path
    filesystem: str
    source: str
    """The device file, or a name that the filesystem chose."""
    options: tuple[str, ...]
    """Of the filesystem, not of this mount."""


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
    found = re.findall(r"^(\w+):?\s+(\d+)", text(path), re.MULTILINE)
    return {name: int(value) for name, value in found}


def mounts() -> list[Mount]:
    """List what is mounted, in the order of mounting; empty where that is not known."""
    return parse_mounts(text("/proc/self/mountinfo"))


def parse_mounts(mountinfo: str) -> list[Mount]:
    """Read the lines of a mountinfo file.

    Source: proc(5): id parent major:minor root point options [tags] - type source options.
    """
    parsed = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        filesystem, source, options = right.split(" ", 2)
        _, _, device_number, root, point = left.split(" ")[:5]
        parsed.append(
            Mount(
                device_number=device_number,
                root=_unescaped(root),
                point=Path(_unescaped(point)),
                filesystem=filesystem,
                source=_unescaped(source),
                options=tuple(options.split(",")),
            )
        )
    return parsed


def _unescaped(word: str) -> str:
    r"""Decode blanks: "/my\040disk" is "/my disk"."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def cgroup_folders(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that limit this process, the innermost first.

    Args:
        controller: as "cpu" or "memory"; version 2 has all of them in one folder.
    """
    mounted = mounts()
    for line in text("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)  # "4:memory:/a" (version 1) or "0::/a" (version 2)
        for mount in mounted:
            if names:
                here = mount.filesystem == "cgroup" and controller in mount.options
                here = here and controller in names.split(",")
            else:
                here = mount.filesystem == "cgroup2"
            if here:
                # In a container the path begins with the mount's root, which is not always "/".
                folder = mount.point / path.removeprefix(mount.root).lstrip("/")
                yield folder
                if folder != mount.point:
                    yield from (f for f in folder.parents if f.is_relative_to(mount.point))


def major_faults(process_id: int) -> int | None:
    """Count the page faults of a process and its ended children that waited for a device.

    They are for pages of programs and of memory-mapped files, and for pages that were swapped out.

    Returns:
        None where that is not known, or the process has ended and was waited for.
    """
    # The program's name is in parentheses, and may contain blanks and parentheses.
    _, _, numbers = text(f"/proc/{process_id}/stat").rpartition(")")
    fields = numbers.split()  # from the third on: state, …, majflt (12th), cmajflt (13th)
    return int(fields[9]) + int(fields[10]) if len(fields) > 10 else None


def queued_s() -> float:
    """Return the seconds that this thread was ready to run and had no core; 0 where not known.

    Source: Linux, Documentation/scheduler/sched-stats.rst.
    """
    counted = text("/proc/thread-self/schedstat").split()
    return int(counted[1]) / 1e9 if len(counted) > 1 else 0.0


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
