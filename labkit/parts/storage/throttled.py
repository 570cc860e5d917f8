"""Throttled disk: a real disk that the kernel slows down to a hard disk's rates.

    up ──▶ image file ─▶ loop device ─▶ mount/   read by ─▶ processes in a control group
           all in one folder, on this machine's disk        81 reads/s, for all together

Real files, the real page cache, real reads; root on Linux only.  One limit on reads a second
is a fixed cost per request, as a seek is.  How fast sequential reads become then depends on
the largest request to a loop device: where that is 1280 KiB, 81 of them are 106 MB/s, and
the disk's 154 MB/s are never reached.  Main trap: only processes that joined the group are
slowed down, so a trial joins before it starts its workers.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from labkit import pagecache, procfs, units
from labkit.parts.storage import blkio, cold_reads, loop_disk, slow_folder
from labkit.parts.storage.disks import HARD_DISK, Rate
from labkit.parts.storage.slow_folder import PERSON, READS_PER_S, SlowDisk
from labkit.trial import Skip

__all__ = [
    "FOLDER", "MOUNT", "PERSON", "READS_PER_S", "SlowDisk", "cgroup_folder", "describe", "down",
    "find", "join", "measure", "remove_leftovers", "up", "user", "why_not",
]  # fmt: skip

FOLDER = Path("/var/tmp/labkit-slow-disk")  # not /tmp, which is memory on many systems
MOUNT = FOLDER / slow_folder.POINT
COMMAND = "python data_scripts/slow_disk.py"
INSTEAD = "compare with storage=modelled_hdd instead"
MIN_SECONDS = 0.5  # some slices of 100 ms, whatever comes first
SYS_ADMIN = 21  # the number of the capability, in linux/capability.h


def describe(folder: Path = FOLDER) -> str:
    """Say in a few words what it is limited to, up or not: "7200 rpm: 81 reads/s, 106 MB/s"."""
    disk = find(folder)
    request_bytes = disk.request_bytes if disk else loop_disk.largest_request_bytes()
    sequential = units.count_bytes(slow_folder.sequential_bytes_per_s(request_bytes))
    return f"{HARD_DISK.name}: {READS_PER_S} reads/s, {sequential}/s"


def why_not() -> str:
    """Say why this process cannot make one; empty where nothing speaks against it."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root"
    capabilities = procfs.text("/proc/self/status").partition("CapEff:")[2].split()[:1]
    if capabilities and not int(capabilities[0], 16) >> SYS_ADMIN & 1:
        return "needs the capability CAP_SYS_ADMIN (in a container: --privileged)"
    if missing := loop_disk.missing_tool():
        return f"needs {missing}, which is not installed"
    try:
        os.close(os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"needs loop devices, got {_reason(error)}"
    return blkio.why_not(blkio.find_tree())


def cgroup_folder(folder: Path = FOLDER) -> Path:
    """Say where its control group is, or would be."""
    return slow_folder.cgroup_folder(folder)


def join(cgroup: Path) -> None:
    """Put this process, and all that it starts from now on, under the limit.

    Raises:
        Skip: the group is gone, or not ours.
    """
    with _in_words():
        blkio.join(cgroup)


def find(folder: Path = FOLDER) -> SlowDisk | None:
    """Find a disk that is up and whole, whoever made it."""
    return slow_folder.find(folder)


def user(disk: SlowDisk) -> str:
    """Say who else is at work with a disk, "run 123" or "process 124"; empty where nobody is."""
    if disk.owner != PERSON and not disk.owned:
        try:
            slow_folder.close_lock(disk.folder, slow_folder.take_lock(disk.folder))
        except loop_disk.Failed:
            return disk.owner
    if pids := blkio.processes(disk.cgroup):
        return f"process{'es' * (len(pids) > 1)} {', '.join(map(str, pids))}"
    return ""


def up(
    *, data_bytes: int, files: int, owner: Literal["person", "run"], folder: Path = FOLDER
) -> SlowDisk:
    """Make the disk, or use the one that a person has made; remove leftovers first.

    Args:
        data_bytes: how much is to fit on it.
        files: in how many files.
        owner: "person": it stays until `down`; "run": it is this process's, and a leftover
            as soon as this process is no more.
        folder: for everything that is made; new, empty or from an earlier disk.

    Raises:
        Skip: it cannot be made, is too small or is in use; the text says why.
    """
    if reason := why_not():
        raise Skip(f"throttled disk: {reason}; {INSTEAD}")
    folder = slow_folder.place(folder)
    with _in_words():
        lock = slow_folder.take_lock(folder, make=True)
        try:
            disk = find(folder)
            if disk and disk.owner == PERSON:
                return _with_room(disk, data_bytes, files)
            slow_folder.take_down(folder, lock)
            by = PERSON if owner == PERSON else f"run {os.getpid()}"
            try:
                slow_folder.make(folder, lock, data_bytes=data_bytes, files=files, owner=by)
            except BaseException:
                slow_folder.take_down(folder, lock)
                folder.rmdir()
                raise
            if owner != PERSON:
                slow_folder.keep_lock(folder, lock)
            return find(folder)
        finally:
            if slow_folder.own_lock(folder) is None:
                slow_folder.close_lock(folder, lock)


def _with_room(disk: SlowDisk, data_bytes: int, files: int) -> SlowDisk:
    if data_bytes > disk.room_bytes or files > disk.room_files:
        raise loop_disk.Failed(
            f"the disk that is up must have room for {units.count_bytes(data_bytes)} in {files} "
            f"files, got {units.count_bytes(disk.room_bytes)} in {disk.room_files}; "
            f"make a larger one with: {COMMAND} down, then {COMMAND} up --gb N"
        )
    return disk


def down(folder: Path = FOLDER) -> list[str]:
    """Take the disk down, with all that is on it; nothing happens where there is none.

    Returns:
        What was removed, in words.

    Raises:
        OSError: a run owns it, processes are still in its control group or use its files (they
            are left alone), or this process may not; the text says what to do.
    """
    folder = slow_folder.place(folder)
    try:
        lock = slow_folder.own_lock(folder) or slow_folder.take_lock(folder)
    except FileNotFoundError:
        return []
    except (loop_disk.Failed, OSError) as error:
        raise OSError(f"throttled disk: {_reason(error)}") from error
    try:
        removed = slow_folder.take_down(folder, lock)
        folder.rmdir()
    except (loop_disk.Failed, OSError) as error:
        raise OSError(
            f"throttled disk: {_reason(error)}; then take it down again with: {COMMAND} down"
        ) from error
    finally:
        slow_folder.close_lock(folder, lock)
    return removed


def remove_leftovers(folder: Path = FOLDER) -> list[str]:
    """Remove what a killed process or a restart of the machine left; a live disk stays.

    Returns:
        What was removed, in words.

    Raises:
        OSError: as `down`.
    """
    folder = slow_folder.place(folder)
    disk = find(folder)
    if not folder.exists() or (disk and (disk.owned or disk.owner == PERSON)):
        return []
    try:
        slow_folder.close_lock(folder, slow_folder.take_lock(folder))
    except loop_disk.Failed:
        return []  # somebody is at work, or it is not ours
    return down(folder)


def measure(disk: SlowDisk | None = None, readers: int = 1, seconds: float = 1.0) -> list[Rate]:
    """Measure what the disk delivers: at random with some readers, and in sequence with one.

    Args:
        disk: None: the one that is up in `FOLDER`.
        readers: processes that read whole files of a photograph's size.
        seconds: how long each of the two takes, after a lead-in of 0.25 s.

    Raises:
        ValueError: too few or too many readers, or too short.
        Skip: it is not up, or cannot be measured.
    """
    if not 1 <= readers <= slow_folder.CHECK_FILES:
        raise ValueError(f"readers must be 1 to {slow_folder.CHECK_FILES}, got {readers}")
    if seconds < MIN_SECONDS:
        raise ValueError(f"seconds must be at least {MIN_SECONDS}, got {seconds}")
    disk = disk or find()
    if disk is None:
        raise Skip(f"throttled disk: it is not up; put it up with: {COMMAND} up")
    with _in_words():
        sequential, *files = sorted((disk.mount / slow_folder.CHECKS).iterdir())
        for path in (sequential, *files):
            pagecache.evict(path)
        how = {"group": disk.cgroup, "seconds": seconds}
        files_per_s = cold_reads.measure(files, readers=readers, **how)
        bytes_per_s = cold_reads.measure(
            [sequential], readers=1, request_bytes=disk.request_bytes, **how
        )
    return [
        Rate(
            pattern="random",
            unit="files",
            readers=readers,
            requested_per_s=disk.reads_per_s,
            delivered_per_s=files_per_s,
        ),
        Rate(
            pattern="sequential",
            unit="bytes",
            readers=1,
            requested_per_s=disk.sequential_bytes_per_s,
            delivered_per_s=bytes_per_s,
        ),
    ]


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except (loop_disk.Failed, cold_reads.CannotMeasure, OSError) as error:
        raise Skip(f"throttled disk: {_reason(error)}; {INSTEAD}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror.lower()}{where}"
    return str(error)
