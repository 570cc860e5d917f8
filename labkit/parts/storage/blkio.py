"""Block-I/O control groups: one limit on a disk's reads, for all processes of a group.

    tree ──make──▶ group: 81 reads/s of 7:0 ◀──join── trial ──fork──▶ its workers, in it too

Linux has two kinds of tree, version 1 (`blkio`, one folder of its own) and version 2 (`io`,
one folder for all controllers); a machine uses one of them for block I/O.  The group lies
directly below the tree's root and has none below it.  Main trap: the kernel hands reads out
in slices of 100 ms and drops fractions, so a limit of 81 reads/s lets 8 through in each of
them, and after a pause up to a slice's worth at once.
Source: Documentation/admin-guide/cgroup-v1/blkio-controller.rst, cgroup-v2.rst.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labkit import procfs

WAIT_S = 2.0  # a process that has ended leaves its group milliseconds later
PAUSE_S = 0.05

READ_OPERATIONS = "blkio.throttle.read_iops_device"
READ_BYTES = "blkio.throttle.read_bps_device"
LIMITS = {1: (READ_OPERATIONS, READ_BYTES), 2: ("io.max",)}


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Where this machine keeps its block-I/O control groups."""

    root: Path
    version: Literal[1, 2]


def find_tree(mounts: Iterable[procfs.Mount] | None = None) -> Tree | None:
    """Find the tree that limits block I/O; None where there is none.

    Args:
        mounts: what is mounted; None: ask the kernel.
    """
    for mount in procfs.mounts() if mounts is None else mounts:
        if mount.filesystem == "cgroup" and "blkio" in mount.options:
            return Tree(root=mount.point, version=1)
        controllers = procfs.text(mount.point / "cgroup.controllers").split()
        if mount.filesystem == "cgroup2" and "io" in controllers:
            return Tree(root=mount.point, version=2)
    return None


def why_not(tree: Tree | None) -> str:
    """Say why no group can be made in a tree; empty where nothing speaks against it."""
    if tree is None:
        return "needs block-I/O control groups (blkio or io), which are not mounted here"
    if not os.access(tree.root, os.W_OK):
        return f"needs control groups that can be written, got {tree.root} without permission"
    if tree.version == 1 and not (tree.root / READ_OPERATIONS).exists():
        return f"needs a kernel that limits block I/O, got none with {READ_OPERATIONS}"
    return ""


def limits(version: int, device_number: str, reads_per_s: int, bytes_per_s: int) -> dict[str, str]:
    """Say what to write into which file of a group.

    Args:
        version: of the tree.
        device_number: as "7:0".
        reads_per_s: the most read requests.
        bytes_per_s: the most bytes read.
    """
    if version == 1:
        return {
            READ_OPERATIONS: f"{device_number} {reads_per_s}",
            READ_BYTES: f"{device_number} {bytes_per_s}",
        }
    return {"io.max": f"{device_number} rbps={bytes_per_s} riops={reads_per_s}"}


def make(tree: Tree, group: Path, settings: dict[str, str]) -> None:
    """Make a group and write its limits.

    In a version 2 tree this lets the root's groups have limits on I/O, and leaves it so:
    others may rely on that by the time the group goes.

    Args:
        tree: which the group belongs to.
        group: directly below the tree's root.
        settings: from `limits`.

    Raises:
        OSError: it is there already, or the kernel refuses; the error names the file.
    """
    if tree.version == 2:
        switched_on = tree.root / "cgroup.subtree_control"
        if "io" not in procfs.text(switched_on).split():
            switched_on.write_text("+io")
    group.mkdir()
    for name, text in settings.items():
        if not (group / name).exists():  # opening it for writing would try to make it
            raise FileNotFoundError(None, "this kernel has no such limit", str(group / name))
        (group / name).write_text(text)


def in_force(group: Path, version: int, device_number: str) -> bool:
    """Say whether a group limits the reads of a device."""
    for name in LIMITS[version]:
        lines = procfs.text(group / name).splitlines()
        if not any(line.split()[:1] == [device_number] for line in lines):
            return False
    return True


def join(group: Path) -> None:
    """Put this process into a group; what it starts from then on is in it too.

    Raises:
        OSError: the group is gone, or not ours to join.
    """
    # Opened by mode "w", a folder that is no group would get a file of that name.
    file = os.open(group / "cgroup.procs", os.O_WRONLY)
    try:
        os.write(file, str(os.getpid()).encode())
    finally:
        os.close(file)


def processes(group: Path) -> list[int]:
    """List the processes in a group."""
    return [int(pid) for pid in procfs.text(group / "cgroup.procs").split()]


def remove(group: Path) -> bool:
    """Remove a group, after a little while if it has processes that are about to end.

    Returns:
        Whether it was there.

    Raises:
        OSError: it has processes; they are left alone.
    """
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            group.rmdir()
            return True
        except FileNotFoundError:
            return False
        except OSError as error:
            if time.monotonic() < deadline_s:
                time.sleep(PAUSE_S)
                continue
            held_by = ", ".join(map(str, processes(group)))
            if not held_by:
                raise
            raise OSError(
                error.errno, f"processes {held_by} are still in it; end them first", str(group)
            ) from error
