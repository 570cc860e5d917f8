"""Throttled disk: a real disk that the kernel slows down to a hard disk's rates.

    up ──▶ disk.img ─▶ loop device (direct I/O) ─▶ mount/ (ext4) ─▶ control group: 81 reads/s
           all in one folder; a run's processes join the group before they read

Real files, the real page cache, real reads; root on Linux only. One limit on reads per second is a
fixed cost per request, as a seek is. Sequential reads then depend on the largest request: 81 of
1280 KiB are 106 MB/s, less than the limit of 154 MB/s. Only processes that joined the group are
slowed down.

All names are fixed, and a run keeps the folder locked while it owns the disk. What a killed process
left is therefore found by its name, behind a free lock, whichever step it was killed in.

Source: the kernel's Documentation/admin-guide/cgroup-v1/blkio-controller.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from labkit import units
from labkit.contracts import Reader, Skip
from labkit.files import is_private
from labkit.machine import page_cache, procfs
from labkit.machine.media import check_room
from labkit.parts.storage.disks import (
    HARD_DISK,
    TYPICAL_FILE_BYTES,
    Pattern,
    Rate,
    Unit,
    measure_together,
)
from labkit.parts.storage.folder import Storage, copy_in
from labkit.records import Hardware
from labkit.steady_rate import steady_rate

FOLDER = Path("/var/tmp/labkit-slow-disk")  # not /tmp, which is memory on many systems
POINT, IMAGE, CHECKS = "mount", "disk.img", ".check"

READS_PER_S = round(HARD_DISK.files_per_s())
BYTES_PER_S = round(HARD_DISK.bytes_per_s)
REQUEST_BYTES = 1280 << 10  # the largest that the kernel's loop devices take
SEQUENTIAL_BYTES_PER_S = min(BYTES_PER_S, READS_PER_S * REQUEST_BYTES)
DESCRIPTION = (
    f"{HARD_DISK.name}: {READS_PER_S} reads/s, {units.count_bytes(SEQUENTIAL_BYTES_PER_S)}/s"
)

CHECK_FILES = 128
SEQUENTIAL_BYTES = 128 << 20  # takes 1.3 s: a steady rate needs five slices after the lead-in
WAIT_S = 2.0  # for another process's work on the folder, and for readers that are about to end
LEAD_IN_S = 0.25  # of a measurement: the kernel lets the first reads through for nothing
SLICE_S = 0.1  # of the kernel's throttle, block/blk-throttle.c

T = TypeVar("T")
_lock_fd: int | None = None  # the file descriptor of the lock, while the disk is up


class NoThrottledDisk(Skip):
    """The throttled disk cannot be had here."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"throttled disk: {self.reason}; compare with storage=modelled_hdd instead"


@dataclass(frozen=True, kw_only=True)
class ThrottledDisk(Storage):
    """Read a copy on the throttled disk, which the run puts up."""

    @contextlib.contextmanager
    def put_up(
        self, reader: Reader, others: Sequence[Reader], say: Callable[[str], None]
    ) -> Iterator[None]:
        """Put the disk up, and take it down again; see `Storage.put_up`."""
        if _lock_fd is not None:  # up for the run's first data set, with room for all
            yield
            return
        files = [path for data in (reader, *others) for path in (*data.paths, *data.companions)]
        sizes = [path.stat().st_size for path in files if path.exists()]
        up(data_bytes=sum(sizes), files=len(sizes))
        try:
            yield
        finally:
            try:
                down()
            except OSError as error:  # all rows are safe, so only say it
                say(f"the throttled disk is still up, the next run removes it: {error}")

    def enter(self) -> None:
        """Join the disk's control group; see `Storage.enter`."""
        join(cgroup_folder())

    def measure(
        self,
        reader: Reader,
        ids: Sequence[int],
        readers: int,
        start_method: str,
        seconds: float,
    ) -> list[Rate]:
        """Measure files per second at random, and bytes per second; see `Storage.measure`.

        Each takes so many seconds after a lead-in of 0.25 s.
        """
        with _skipped():
            sequential, *files = sorted((find() / CHECKS).iterdir())
            for path in (sequential, *files):
                page_cache.evict(path)
            shares = [files[number % len(files) :: readers] for number in range(readers)]
            rates = []
            checks: tuple[tuple[Pattern, Unit, float, Callable, list], ...] = (
                ("random", "files", READS_PER_S, _read_whole_files, shares),
                ("sequential", "bytes", SEQUENTIAL_BYTES_PER_S, _read_in_parts, [sequential]),
            )
            for pattern, unit, requested_per_s, read, what in checks:
                time_reads = partial(_time_reads, LEAD_IN_S + seconds, read)
                rate = Rate(
                    pattern=pattern,
                    unit=unit,
                    readers=len(what),
                    requested_per_s=requested_per_s,
                    delivered_per_s=_delivered_per_s(measure_together(time_reads, what, "fork")),
                )
                rates.append(rate)
            return rates


def on_throttled(data: Path) -> ThrottledDisk:
    """Read a copy on the throttled disk."""
    return ThrottledDisk(
        name="throttled",
        hardware=Hardware("storage", "throttled", DESCRIPTION),
        temporary=True,
        **copy_in(FOLDER / POINT, "labkit-", data),
    )


def why_no_slow_disk() -> str:
    """Return the reason why this process cannot make one; '' where it can."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root"
    capabilities = procfs.text("/proc/self/status").partition("CapEff:")[2].split()[:1]
    # 21 is CAP_SYS_ADMIN in linux/capability.h.
    if capabilities and not int(capabilities[0], 16) >> 21 & 1:
        return "needs the capability CAP_SYS_ADMIN (in a container: --privileged)"
    packages = {
        "losetup": "util-linux",
        "mount": "util-linux",
        "umount": "util-linux",
        "mkfs.ext4": "e2fsprogs",
    }
    for name, package in packages.items():
        if _tool(name) is None:
            return f"needs {name} (package {package}), which is not installed"
    try:
        os.close(os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"needs loop devices, got {_reason(error)}"
    root, version = find_tree()
    if root is None:
        return "needs block-I/O control groups (blkio or io), which are not mounted here"
    if not os.access(root, os.W_OK):
        return f"needs control groups that can be written, got {root} without permission"
    if version == 1 and not (root / "blkio.throttle.read_iops_device").exists():
        return "needs a kernel that limits block I/O"
    return ""


def why_not_throttled(reader: Reader) -> str:
    """Put the disk up for a data set, and take it down again.

    Returns:
        The reason why that is impossible; "" where it is not.
    """
    try:
        with on_throttled(reader.root).put_up(reader, (), say=lambda line: None):
            return ""
    except NoThrottledDisk as missing:
        return missing.reason
    except Skip as no_room:
        return str(no_room)


def up(*, data_bytes: int, files: int) -> Path:
    """Put the disk up, for as long as this process lives; remove first what a killed one left.

    Args:
        data_bytes: how much is to fit on it.
        files: in how many files.

    Returns:
        The folder that it is mounted on.

    Raises:
        NoThrottledDisk: it cannot be made or is in use.
        Skip: there is no room for it.
    """
    global _lock_fd
    if reason := why_no_slow_disk():
        raise NoThrottledDisk(reason)
    folder = _place()
    with _skipped(), contextlib.ExitStack() as undo:
        lock = _insist(partial(_lock, folder, make=True))
        undo.callback(os.close, lock)
        _take_down(folder)
        undo.callback(_remove, folder)
        _make(folder, data_bytes, files)
        undo.pop_all()
    _lock_fd = lock
    return folder / POINT


def find() -> Path | None:
    """Find the folder that a disk is mounted on, whichever process put it up."""
    point = _place() / POINT
    return point if _mounts(point) else None


def down() -> None:
    """Take the disk down, with all that is on it; nothing happens where there is none.

    Raises:
        OSError: a run owns it, processes are still in its control group or use its files (they
            are left alone), or this process may not.
    """
    global _lock_fd
    folder = _place()
    if not folder.exists():
        return
    lock, _lock_fd = _lock_fd, None
    try:
        lock = lock or _insist(partial(_lock, folder))
        _remove(folder)
    except OSError as error:
        raise OSError(f"throttled disk: {_reason(error)}") from error
    finally:
        if lock is not None:
            os.close(lock)


def join(cgroup: Path) -> None:
    """Put this process, and all that it starts from now on, under the limit.

    Raises:
        Skip: the group is gone, or not ours.
    """
    with _skipped():
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))


# --- control groups -----------------------------------------------------------------------------


def find_tree() -> tuple[Path | None, int]:
    """Find where this machine keeps its block-I/O control groups, and their version, 1 or 2."""
    import psutil

    for mount in psutil.disk_partitions(all=True):
        point = Path(mount.mountpoint)
        if mount.fstype == "cgroup" and "blkio" in mount.opts.split(","):
            return point, 1
        if mount.fstype == "cgroup2" and "io" in procfs.text(point / "cgroup.controllers").split():
            return point, 2
    return None, 0


def cgroup_folder() -> Path:
    """Return where the control group of the disk is, or would be."""
    root = find_tree()[0] or Path("/sys/fs/cgroup/blkio")
    place = _place()
    # Containers that share their host's control groups each have a /var/tmp of their own.
    above = place.parent.stat()
    name = b"%d %d %b" % (above.st_dev, above.st_ino, os.fsencode(place))
    digest = hashlib.sha256(name).hexdigest()
    return root / f"labkit-slow-disk-{digest[:8]}"


def _make_group(group: Path, device_number: str) -> None:
    root, version = find_tree()
    switched_on = root / "cgroup.subtree_control"
    if version == 2 and "io" not in procfs.text(switched_on).split():
        switched_on.write_text("+io")  # and left so: others may rely on it when the disk goes
    group.mkdir()
    if version == 1:
        (group / "blkio.throttle.read_iops_device").write_text(f"{device_number} {READS_PER_S}")
        (group / "blkio.throttle.read_bps_device").write_text(f"{device_number} {BYTES_PER_S}")
    else:
        (group / "io.max").write_text(f"{device_number} rbps={BYTES_PER_S} riops={READS_PER_S}")


def _remove_group(group: Path) -> None:
    try:
        group.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        pids = ", ".join(procfs.text(group / "cgroup.procs").split())
        raise OSError(f"processes {pids} are still in {group}; end them first") from error


# --- the folder ---------------------------------------------------------------------------------


def _place() -> Path:
    """Return the folder's one name; of the folder itself a link is not followed."""
    return FOLDER.parent.resolve() / FOLDER.name  # every user may put links into /var/tmp


def _lock(folder: Path, *, make: bool = False) -> int:
    """Open a folder that is ours, or new, and lock it.

    Raises:
        OSError: another process holds the lock, or the folder is not ours.
    """
    import fcntl  # only where there are loop devices

    if make:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)  # the data may be private
    with contextlib.ExitStack() as undo:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        undo.callback(os.close, lock)
        locked = os.fstat(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that had it before may have removed the folder.
            is_free = os.path.samestat(folder.stat(), locked)
        except OSError:
            is_free = False
        if not is_free:
            raise OSError(f"{folder} is in use by another run; wait until that has ended")
        if not is_private(locked):
            raise OSError(
                f"{folder} must be this user's, and writable by nobody else; move it away"
            )
        if others := {path.name for path in folder.iterdir()} - {POINT, IMAGE}:
            raise OSError(
                f"{folder} must be empty or an earlier disk's, got {', '.join(sorted(others))}; "
                "move it away"
            )
        undo.pop_all()
    os.set_inheritable(lock, True)  # by tools: if this process is killed, they hold it to the end
    return lock


def _make(folder: Path, data_bytes: int, files: int) -> None:
    """Make a disk in an empty folder; each step leaves only what is found again by its name."""
    point, image = folder / POINT, folder / IMAGE
    block_bytes = 4096
    # Folders, and the files that labkit keeps beside the data, take inodes, too.
    inodes = files + CHECK_FILES + 1024
    # A file takes an inode, and at most a block for its end.
    size_bytes = round(1.1 * data_bytes) + inodes * (block_bytes + 256)
    size_bytes += SEQUENTIAL_BYTES + CHECK_FILES * TYPICAL_FILE_BYTES + (32 << 20)
    check_room(folder, size_bytes, "the throttled disk")
    with image.open("xb") as file:
        file.truncate(size_bytes)
    # Small disks would get blocks of 1 KiB, and files in more pieces. Without a journal, and with
    # its tables written beforehand, the disk has no traffic of its own.
    options = ["-b", block_bytes, "-m", 0, "-N", inodes]
    options += ["-E", "lazy_itable_init=0,nodiscard", "-O", "^has_journal"]
    _run("mkfs.ext4", "-q", "-F", *options, image)
    # Direct I/O keeps the image itself out of memory: what is evicted from the disk is cold.
    device = Path(_run("losetup", "--find", "--show", "--direct-io=on", image))
    if procfs.number(_sys(device) / "loop/dio") != 1:
        raise OSError(f"losetup: the disk under {folder} allows no direct I/O")
    for limit in ("max_sectors_kb", "read_ahead_kb"):
        (_sys(device) / "queue" / limit).write_text(str(REQUEST_BYTES // 1024))
    point.mkdir()
    _run("mount", "-t", "ext4", "-o", "noatime,nodev,nosuid,noexec", device, point)
    # It goes with its mount: also with that of a container in which the run was killed.
    _run("losetup", "--detach", device)
    _write_checks(point)
    _make_group(cgroup_folder(), procfs.text(_sys(device) / "dev").strip())


def _write_checks(point: Path) -> None:
    """Write files to measure with: one to read in sequence, and some of a photograph's size."""
    folder = point / CHECKS
    folder.mkdir()
    block = os.urandom(1 << 20)
    with (folder / "0-sequential").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, SEQUENTIAL_BYTES)  # in one piece
        for _ in range(SEQUENTIAL_BYTES // len(block)):
            file.write(block)
    for number in range(CHECK_FILES):
        (folder / f"{number:03}").write_bytes(block[number : number + TYPICAL_FILE_BYTES])
    _run("sync", "--file-system", point)


def _remove(folder: Path) -> None:
    _take_down(folder)
    folder.rmdir()


def _take_down(folder: Path) -> None:
    """Remove everything but the folder; a refused step ends it."""
    image, point = folder / IMAGE, folder / POINT
    # First: while processes are in the group, the disk stays as it is.
    _insist(partial(_remove_group, cgroup_folder()))
    for _ in range(_mounts(point)):
        _insist(partial(_run, "umount", point))
    if image.exists():
        _insist(partial(_free_devices, image))
        image.unlink()
    with contextlib.suppress(FileNotFoundError):
        point.rmdir()


def _free_devices(image: Path) -> None:
    """Detach an image's loop devices; one whose mount has just gone detaches itself meanwhile."""
    # losetup compares inodes, not names.
    names = _run("losetup", "--associated", image, "--noheadings", "--output", "NAME")
    for name in names.split():
        _run("losetup", "--detach", name)


def _insist(step: Callable[[], T]) -> T:
    """Try a step again for a while: a process that ended leaves milliseconds later."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            return step()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def _mounts(point: Path) -> int:
    """Count what is mounted on a folder."""
    import psutil

    return sum(Path(mount.mountpoint) == point for mount in psutil.disk_partitions(all=True))


def _sys(device: Path) -> Path:
    return Path("/sys/block", device.name)


def _tool(name: str) -> str | None:
    # Some systems leave the administrator's folders out of users' PATH.
    admin_path = "/usr/sbin:/sbin:/usr/bin:/bin"
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}{os.pathsep}{admin_path}")


def _run(name: str, *arguments: object) -> str:
    """Run a tool, and return what it prints.

    Raises:
        OSError: it is not there, or says why it cannot.
    """
    done = subprocess.run(
        [_tool(name) or name, *map(str, arguments)],
        capture_output=True,
        close_fds=False,  # see `_lock`
        env={**os.environ, "LC_ALL": "C"},
        errors="surrogateescape",
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{name}: status {done.returncode}"]
        raise OSError(lines[0].rstrip("."))
    return done.stdout.strip()


@contextlib.contextmanager
def _skipped() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NoThrottledDisk(_reason(error)) from error


def _reason(error: OSError) -> str:
    if error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror.lower()}{where}"
    return str(error)


# --- measuring ----------------------------------------------------------------------------------


def _time_reads(
    seconds: float, read: Callable[..., Iterator[int]], what: object
) -> tuple[float, list[tuple[float, int]]]:
    """Join the group and read for a while.

    Returns:
        When the first read began, and of each read when it was over and what it counts.
    """
    join(cgroup_folder())
    times, begun_s = [], time.monotonic()
    for count in read(what):
        times.append((time.monotonic(), count))
        if times[-1][0] >= begun_s + seconds:
            break
    return begun_s, times


def _read_whole_files(paths: Sequence[Path]) -> Iterator[int]:
    """Read whole files, and forget each at once, so that it is cold when its turn comes again."""
    for path in itertools.cycle(paths):
        with path.open("rb", buffering=0) as file:
            file.read()
            yield 1
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_in_parts(path: Path) -> Iterator[int]:
    """Read a file from its beginning to its end, in parts of a request."""
    buffer = bytearray(REQUEST_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield count


def _delivered_per_s(timed: Sequence[tuple[float, list[tuple[float, int]]]]) -> float:
    """Return counts per second, over whole slices, from the middle of a pause between two bunches.

    The kernel lets reads through in bunches, one per slice of 100 ms: reads divided by seconds
    would be a tenth off.  A slice is a round here, as a round of workers is of a loader.

    Args:
        timed: of each process, from `_time_reads`.
    """
    start_s = min(begun_s for begun_s, _ in timed) + LEAD_IN_S
    reads = sorted(read for _, reads in timed for read in reads)
    steady = [(time_s, count) for time_s, count in reads if time_s >= start_s]
    times_s = [time_s for time_s, _ in steady]
    pairs = [pair for pair in itertools.pairwise(times_s) if pair[0] < times_s[0] + SLICE_S]
    if not pairs:
        raise OSError(f"there were {len(reads)} reads only")
    before_s, after_s = max(pairs, key=lambda pair: pair[1] - pair[0])
    begin_s = (before_s + after_s) / 2
    # What a slice let through counts when it ends.
    slices = [0] * int((times_s[-1] - begin_s) / SLICE_S)
    for time_s, count in steady:
        number = math.ceil((time_s - begin_s) / SLICE_S) - 1
        if 0 <= number < len(slices):
            slices[number] += count
    ends_s = [begin_s + number * SLICE_S for number in range(len(slices) + 1)]
    delivered = steady_rate([(ends_s, [0, *slices])], workers=0)
    if delivered.reason:
        raise OSError(
            f"{len(reads)} reads were over within {max(len(slices), 1) * SLICE_S:.1f} s, which is "
            "too short for a steady rate"
        )
    return delivered.images_per_s
