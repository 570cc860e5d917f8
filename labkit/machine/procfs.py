"""What Linux says about itself in text files: mounts, control groups, counters, hardware.

    /proc, /sys  →  text, mounts, cgroup folders  →  machine, media, disturbance, usage

Elsewhere (macOS, Windows) these files do not exist: every text is then empty and
every list too, so callers need no platform switch and report "unknown".
Main trap: in a container the control group's path is counted from the mount's
root, which is not always "/".
Source: proc(5) for mountinfo and stat, cgroups(7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    device_number: str
    """As "8:1"; "0:…" where no block device is behind it."""
    root: str
    """What part of the filesystem is mounted; "/" is all of it."""
    point: Path
    filesystem: str
    source: str
    """The device file, or whatever the filesystem calls itself."""
    options: tuple[str, ...]
    """Of the filesystem, not of this mount."""


def text(path: str | Path) -> str:
    """Read a small file of the kernel's; empty where it cannot be read."""
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def number(path: str | Path) -> int | None:
    """Read a file that holds one whole number; None where there is none."""
    word = text(path).strip()
    return int(word) if re.fullmatch(r"-?\d+", word) else None


def counters(path: str | Path) -> dict[str, int]:
    """Read lines of "name value …": the first value of each, without its unit."""
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
    r"""Give back blanks: "/my\040disk" is "/my disk"."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def cgroup_folders(controller: str) -> Iterator[Path]:
    """Yield the control groups that limit this process, its own first, the outermost last.

    Args:
        controller: "cpu" or "memory"; version 2 has all of them in one folder.
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
                folder = mount.point / path.removeprefix(mount.root).lstrip("/")
                yield folder
                if folder != mount.point:
                    yield from (f for f in folder.parents if f.is_relative_to(mount.point))


def major_faults(process_id: int) -> int | None:
    """Count the pages that a process and its ended children had to fetch from a device.

    Only faults count: pages of programs and of memory-mapped files, and what was swapped out.

    Returns:
        None where that is not known, or the process has ended and was waited for.
    """
    # The program's name stands in parentheses, and may have blanks and parentheses in it.
    _, _, numbers = text(f"/proc/{process_id}/stat").rpartition(")")
    fields = numbers.split()  # from the third on: state, …, majflt (12th), cmajflt (13th)
    return int(fields[9]) + int(fields[10]) if len(fields) > 10 else None


def queued_s() -> float:
    """Give the seconds that this thread could have run and had no core; 0 where nobody tells.

    Source: Linux, Documentation/scheduler/sched-stats.rst.
    """
    counted = text("/proc/thread-self/schedstat").split()
    return int(counted[1]) / 1e9 if len(counted) > 1 else 0.0


def processes_below(process_id: int) -> list[int] | None:
    """List the children of a process, theirs, and so on; None where the kernel does not tell."""
    tasks = Path(f"/proc/{process_id}/task")
    if not (tasks / str(process_id) / "children").exists():
        return None
    children = [int(word) for file in tasks.glob("*/children") for word in text(file).split()]
    return [*children, *(p for child in children for p in processes_below(child) or ())]


def pss_bytes(process_id: int) -> int | None:
    """Give a process's memory, pages that it shares with others divided among them.

    Returns:
        None where that is not known, or the process has ended.
    """
    kib = counters(f"/proc/{process_id}/smaps_rollup").get("Pss")
    return None if kib is None else 1024 * kib


def read_bytes(process_id: int) -> int | None:
    """Count the bytes that a process and its ended children had fetched from a device.

    What the page cache held is not counted.

    Returns:
        None where that is not known, or the process has ended.
    """
    return counters(f"/proc/{process_id}/io").get("read_bytes")


def clock_source() -> str:
    """Name what the kernel tells the time by, as "tsc" or "kvm-clock"; "unknown" elsewhere."""
    return text(SYSTEM / "clocksource/clocksource0/current_clocksource").strip() or "unknown"


def cpu_governor() -> str:
    """Name what sets the cores' frequency, as "performance"; "unknown" in most virtual machines.

    Where cores differ, all names, sorted and with " / " between them.
    """
    files = (SYSTEM / "cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return " / ".join(sorted({name for file in files if (name := text(file).strip())})) or "unknown"


def product_name() -> str:
    """Name the computer's model, as its maker does; "unknown" where it does not say."""
    names = ("/sys/class/dmi/id/product_name", "/proc/device-tree/model")  # PCs; ARM boards
    known = (text(name).strip().strip("\0") for name in names)
    return next((name for name in known if name), "unknown")


def has_hypervisor() -> bool | None:
    """Whether this is a virtual machine: time can be stolen from it.  None where unknown."""
    flags = re.search(r"^flags\s*:(.*)$", text("/proc/cpuinfo"), re.MULTILINE)
    return None if flags is None else "hypervisor" in flags[1].split()  # x86 alone says so
