"""Throttled disk: a real disk that the kernel slows down to a hard disk's rates.

    up ──▶ disk.img ─▶ loop device (direct I/O) ─▶ mount/ (ext4) ─▶ control group: 81 reads/s
           all in one folder; a run's processes join the group before they read

Real files, the real page cache, real reads; root on Linux only. One limit on reads per second is a
fixed cost per request, as a seek is. Sequential reads then depend on the largest request to a loop
device: where that is 1280 KiB, 81 of them are 106 MB/s, less than the limit of 154 MB/s. Only
processes that joined the group are slowed down.

All names are fixed, and a run keeps the folder locked while it owns the disk. What a killed process
left is therefore found by name, behind a free lock, whichever step it died in.

Source: the kernel's Documentation/admin-guide/cgroup-v1/blkio-controller.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labkit import units
from labkit.contracts import Skip
from labkit.files import part_of, write_whole
from labkit.machine import page_cache, procfs
from labkit.parts.storage.disks import HARD_DISK, TYPICAL_FILE_BYTES, Rate

FOLDER = Path("/var/tmp/labkit-slow-disk")  # not /tmp, which is memory on many systems
POINT, IMAGE, STATE, CHECKS = "mount", "disk.img", "state.json", ".check"
MOUNT = FOLDER / POINT
PERSON = "person"
COMMAND = "python data_scripts/slow_disk.py"
INSTEAD = "compare with storage=modelled_hdd instead"

READS_PER_S = round(HARD_DISK.files_per_s())
BYTES_PER_S = round(HARD_DISK.bytes_per_s)

CHECK_FILES = 128
SEQUENTIAL_BYTES = 96 << 20  # takes the 0.9 s that a steady rate shows in
BLOCK_BYTES = 4096
SPARE_SHARE, SPARE_BYTES = 0.1, 32 << 20
SPARE_FILES = 1024  # folders, and what others keep beside the data
PER_FILE_BYTES = BLOCK_BYTES + 256  # at most a block for its end, and the inode

WAIT_S = 2.0  # for another process's work on the folder, and for readers that are about to end
PAUSE_S = 0.05
MIN_SECONDS = 0.5
LEAD_IN_S = 0.25  # of a measurement: the kernel lets the first reads through for nothing
SLICE_S = 0.1  # of the kernel's throttle, block/blk-throttle.c
READER_PATIENCE_S = 30.0

SYS_ADMIN = 21  # the number of the capability, in linux/capability.h
ADMIN_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"  # some systems leave it out of users' PATH
TOOLS = {
    "losetup": "util-linux",
    "mount": "util-linux",
    "umount": "util-linux",
    "mkfs.ext4": "e2fsprogs",
}

_owned: dict[Path, tuple[int, int]] = {}  # folder -> this process's id, the open lock


@dataclass(frozen=True, kw_only=True)
class SlowDisk:
    """A throttled disk that is up."""

    folder: Path
    mount: Path
    device: Path
    cgroup: Path
    request_bytes: int
    """The largest request to the device."""
    room_bytes: int
    """Of data that it was made for."""
    room_files: int
    owner: str
    """"person": up until it is taken down; "run 123": as long as that process lives."""
    owned: bool
    """Whether this process has to take it down."""

    @property
    def sequential_bytes_per_s(self) -> int:
        """What the limits and the largest request allow."""
        return _sequential_bytes_per_s(self.request_bytes)


def why_not() -> str:
    """Return the reason why this process cannot make one; '' where it can."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root"
    capabilities = procfs.text("/proc/self/status").partition("CapEff:")[2].split()[:1]
    if capabilities and not int(capabilities[0], 16) >> SYS_ADMIN & 1:
        return "needs the capability CAP_SYS_ADMIN (in a container: --privileged)"
    for name, package in TOOLS.items():
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


def describe() -> str:
    """Return what it is limited to, up or not, such as "7200 rpm: 81 reads/s, 106 MB/s"."""
    loops = sorted(Path("/sys/block").glob("loop*"))
    sequential = _sequential_bytes_per_s(_request_bytes(loops[0]) if loops else None)
    return f"{HARD_DISK.name}: {READS_PER_S} reads/s, {units.count_bytes(sequential)}/s"


def up(
    *, data_bytes: int, files: int, owner: Literal["person", "run"], folder: Path = FOLDER
) -> SlowDisk:
    """Put the disk up, or use the one that a person has put up; remove leftovers first.

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
    folder = _place(folder)
    with _skipped():
        lock = _lock(folder, make=True)
        keep = False
        try:
            disk = find(folder)
            if disk and disk.owner == PERSON:
                return _with_room(disk, data_bytes, files)
            _take_down(folder)
            state = {
                "owner": PERSON if owner == PERSON else f"run {os.getpid()}",
                "room_bytes": data_bytes,
                "room_files": files,
            }
            try:
                _make(folder, state)
            except BaseException:
                _take_down(folder)
                folder.rmdir()
                raise
            if keep := owner != PERSON:
                _owned[folder] = (os.getpid(), lock)
            return find(folder)
        finally:
            if not keep:
                os.close(lock)


def find(folder: Path = FOLDER) -> SlowDisk | None:
    """Find a disk that is up and whole, whoever made it."""
    folder = _place(folder)
    state = _read_state(folder)
    group, version = cgroup_folder(folder), find_tree()[1]
    mounts = _mounts(folder / POINT)
    if not state or not mounts:
        return None
    device = Path(mounts[-1].source)
    files = procfs.text(_sys(device) / "loop/backing_file").rstrip("\n")
    limited = all(
        any(line.startswith(f"{mounts[-1].device_number} ") for line in text.splitlines())
        for text in (procfs.text(group / name) for name in _limits(version, ""))
    )
    if files != str(folder / IMAGE) or not limited:
        return None
    return SlowDisk(
        folder=folder,
        mount=folder / POINT,
        device=device,
        cgroup=group,
        request_bytes=_request_bytes(_sys(device)),
        owned=_own_lock(folder) is not None,
        **state,
    )


def down(folder: Path = FOLDER) -> list[str]:
    """Take the disk down, with all that is on it; nothing happens where there is none.

    Returns:
        What was removed, in words.

    Raises:
        OSError: a run owns it, processes are still in its control group or use its files (they
            are left alone), or this process may not; the text says what to do.
    """
    folder = _place(folder)
    if not folder.exists():
        return []
    lock = _own_lock(folder)
    try:
        lock = lock or _lock(folder)
        removed = _take_down(folder)
        folder.rmdir()
    except OSError as error:
        raise OSError(
            f"throttled disk: {_reason(error)}; then take it down again with: {COMMAND} down"
        ) from error
    finally:
        _owned.pop(folder, None)
        if lock is not None:
            os.close(lock)
    return removed


def remove_leftovers(folder: Path = FOLDER) -> list[str]:
    """Remove what a killed process or a restart of the machine left; a live disk stays.

    Returns:
        What was removed, in words.
    """
    disk = find(folder)
    if disk and (disk.owned or disk.owner == PERSON):
        return []
    try:
        return down(folder)
    except OSError:
        return []  # a living run's, or not ours


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
    for mount in procfs.mounts():
        if mount.filesystem == "cgroup" and "blkio" in mount.options:
            return mount.point, 1
        controllers = procfs.text(mount.point / "cgroup.controllers").split()
        if mount.filesystem == "cgroup2" and "io" in controllers:
            return mount.point, 2
    return None, 0


def cgroup_folder(folder: Path = FOLDER) -> Path:
    """Return where the control group of a folder's disk is, or would be."""
    root = find_tree()[0] or Path("/sys/fs/cgroup/blkio")
    digest = hashlib.sha256(os.fsencode(_place(folder))).hexdigest()
    return root / f"labkit-slow-disk-{digest[:8]}"


def _limits(version: int, device_number: str) -> dict[str, str]:
    """Return what to write into which file of a group, for a device as "7:0"."""
    if version == 1:
        return {
            "blkio.throttle.read_iops_device": f"{device_number} {READS_PER_S}",
            "blkio.throttle.read_bps_device": f"{device_number} {BYTES_PER_S}",
        }
    return {"io.max": f"{device_number} rbps={BYTES_PER_S} riops={READS_PER_S}"}


def _make_group(group: Path, device_number: str) -> None:
    root, version = find_tree()
    switched_on = root / "cgroup.subtree_control"
    if version == 2 and "io" not in procfs.text(switched_on).split():
        switched_on.write_text("+io")  # and left so: others may rely on it by the time we go
    group.mkdir()
    for name, text in _limits(version, device_number).items():
        (group / name).write_text(text)


def _remove_group(group: Path) -> None:
    try:
        group.rmdir()
    except OSError as error:
        pids = ", ".join(procfs.text(group / "cgroup.procs").split())
        raise OSError(f"processes {pids} are still in {group}; end them first") from error


# --- the folder ---------------------------------------------------------------------------------


def _place(folder: Path) -> Path:
    """Return a folder's one name; of the folder itself a link is not followed."""
    return folder.parent.resolve() / folder.name  # anybody may put links into /var/tmp


def _own_lock(folder: Path) -> int | None:
    process, lock = _owned.get(folder, (None, None))
    return lock if process == os.getpid() else None  # a forked child owns nothing


def _lock(folder: Path, *, make: bool = False) -> int:
    """Open a folder that is ours, or new, and lock it.

    Raises:
        FileNotFoundError: there is none.
        OSError: another process holds the lock, or the folder is not ours.
    """
    import fcntl  # only where there are loop devices

    deadline_s = time.monotonic() + WAIT_S
    while True:
        if make:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)  # the data may be private
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have removed the folder.
            if folder.exists() and os.path.samestat(folder.stat(), os.fstat(lock)):
                break
        os.close(lock)
        if time.monotonic() > deadline_s:
            owner = _read_state(folder).get("owner", "another process")
            raise OSError(f"{folder} is in use by {owner}; wait until that has ended")
        time.sleep(PAUSE_S)
    os.set_inheritable(lock, True)  # by tools: should we be killed, they hold it until they end
    names = {path.name for path in folder.iterdir()}
    others = names - {POINT, IMAGE, STATE, part_of(folder / STATE).name}
    reason, stat = "", os.fstat(lock)
    if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
        reason = "this user's, and writable by nobody else"
    elif others or (names & {POINT, IMAGE} and STATE not in names):
        reason = f"empty or an earlier disk's, got {', '.join(sorted(names))}"
    if reason:
        os.close(lock)
        raise OSError(f"{folder} must be {reason}; move it away")
    return lock


def _read_state(folder: Path) -> dict[str, object]:
    try:
        state = json.loads(procfs.text(folder / STATE))
        return {name: state[name] for name in ("owner", "room_bytes", "room_files")}
    except (ValueError, KeyError, TypeError):  # none, or of another version
        return {}


def _with_room(disk: SlowDisk, data_bytes: int, files: int) -> SlowDisk:
    if data_bytes > disk.room_bytes or files > disk.room_files:
        raise OSError(
            f"the disk that is up must have room for {units.count_bytes(data_bytes)} in {files} "
            f"files, got {units.count_bytes(disk.room_bytes)} in {disk.room_files}; "
            f"make a larger one with: {COMMAND} down, then {COMMAND} up --gb N"
        )
    return disk


def _make(folder: Path, state: dict[str, object]) -> None:
    """Make a disk in an empty folder; each step leaves only what is found again by its name."""
    point, image, group = folder / POINT, folder / IMAGE, cgroup_folder(folder)
    if group.exists():
        raise OSError(f"the control group {group} is there already, and not this disk's")
    write_whole(folder / STATE, json.dumps(state))
    inodes = state["room_files"] + CHECK_FILES + SPARE_FILES
    size_bytes = round(state["room_bytes"] * (1 + SPARE_SHARE)) + inodes * PER_FILE_BYTES
    size_bytes += SEQUENTIAL_BYTES + CHECK_FILES * TYPICAL_FILE_BYTES + SPARE_BYTES
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes > free_bytes:
        raise OSError(
            f"{folder} must have {units.count_bytes(size_bytes)} free, "
            f"got {units.count_bytes(free_bytes)}; free some space"
        )
    with image.open("xb") as file:
        file.truncate(size_bytes)
    # Small disks would get blocks of 1 KiB, and files in more pieces. Without a journal, and with
    # its tables written beforehand, the disk has no traffic of its own.
    options = ["-b", BLOCK_BYTES, "-m", 0, "-N", inodes]
    options += ["-E", "lazy_itable_init=0,nodiscard", "-O", "^has_journal"]
    _run("mkfs.ext4", "-q", "-F", *options, image)
    # Direct I/O keeps the image itself out of memory: what is evicted from the disk is cold.
    device = Path(_run("losetup", "--find", "--show", "--direct-io=on", image))
    if procfs.number(_sys(device) / "loop/dio") != 1:
        raise OSError(f"losetup: the disk under {folder} allows no direct I/O")
    request_bytes = _request_bytes(_sys(device))
    (_sys(device) / "queue/read_ahead_kb").write_text(str(request_bytes // 1024))
    point.mkdir()
    _run("mount", "-t", "ext4", "-o", "noatime,nodev,nosuid,noexec", device, point)
    _write_checks(point)
    _make_group(group, procfs.text(_sys(device) / "dev").strip())


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


def _take_down(folder: Path) -> list[str]:
    """Remove everything but the folder, and return that in words; a refused step ends it."""
    image, point, group = folder / IMAGE, folder / POINT, cgroup_folder(folder)
    removed = []
    # First: while processes are in the group, the disk stays as it is.
    if (folder / STATE).exists() and group.exists():
        _insist(lambda: _remove_group(group))
        removed.append(f"control group {group}")
    for _ in _mounts(point):
        _insist(lambda: _run("umount", point))
        removed.append(f"mount {point}")
    for device in _devices(image):
        _run("losetup", "--detach", device)
        removed.append(f"loop device {device}")
    if image.exists():
        image.unlink()
        removed.append(f"image {image}")
    with contextlib.suppress(FileNotFoundError):
        point.rmdir()
    # Last: without it nothing in the folder would be ours.
    part_of(folder / STATE).unlink(missing_ok=True)
    (folder / STATE).unlink(missing_ok=True)
    return removed


def _insist(step: Callable[[], object]) -> None:
    """Try a step again for a while: a process that ended leaves milliseconds later."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            step()
            return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(PAUSE_S)


def _devices(image: Path) -> list[Path]:
    """List the loop devices of an image; losetup compares inodes, not names."""
    if not image.exists():
        return []
    names = _run("losetup", "--associated", image, "--noheadings", "--output", "NAME")
    return [Path(name.strip()) for name in names.splitlines()]


def _mounts(point: Path) -> list[procfs.Mount]:
    """List what is mounted on a folder, the uppermost last."""
    return [mount for mount in procfs.mounts() if mount.point == point]


def _sys(device: Path) -> Path:
    return Path("/sys/block", device.name)


def _request_bytes(loop: Path) -> int | None:
    """Return the largest read request of a loop device's folder in /sys; None: not known."""
    kib = procfs.number(loop / "queue/max_sectors_kb")
    return None if kib is None else kib * 1024


def _sequential_bytes_per_s(request_bytes: int | None) -> int:
    return min(BYTES_PER_S, READS_PER_S * request_bytes) if request_bytes else BYTES_PER_S


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}{os.pathsep}{ADMIN_PATH}")


def _run(name: str, *arguments: object) -> str:
    """Run a tool, and return what it prints.

    Raises:
        OSError: it is not there, or says why it cannot.
    """
    try:
        done = subprocess.run(
            [_tool(name) or name, *map(str, arguments)],
            capture_output=True,
            close_fds=False,  # see `_lock`
            env={**os.environ, "LC_ALL": "C"},
            errors="surrogateescape",
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise OSError(f"{name}: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"{name}: status {done.returncode}"]
        raise OSError(said[0].rstrip("."))
    return done.stdout.strip()


@contextlib.contextmanager
def _skipped() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Skip(f"throttled disk: {_reason(error)}; {INSTEAD}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror.lower()}{where}"
    return str(error)


# --- measuring ----------------------------------------------------------------------------------


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
    if not 1 <= readers <= CHECK_FILES:
        raise ValueError(f"readers must be 1 to {CHECK_FILES}, got {readers}")
    if seconds < MIN_SECONDS:
        raise ValueError(f"seconds must be at least {MIN_SECONDS}, got {seconds}")
    disk = disk or find()
    if disk is None:
        raise Skip(f"throttled disk: it is not up; put it up with: {COMMAND} up")
    with _skipped():
        sequential, *files = sorted((disk.mount / CHECKS).iterdir())
        for path in (sequential, *files):
            page_cache.evict(path)
        shares = [files[number::readers] for number in range(readers)]
        files_per_s = _read_cold(shares, disk.cgroup, seconds)
        bytes_per_s = _read_cold([[sequential]], disk.cgroup, seconds, disk.request_bytes)
    return [
        Rate(
            pattern="random",
            unit="files",
            readers=readers,
            requested_per_s=READS_PER_S,
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


def _read_cold(
    shares: Sequence[Sequence[Path]], group: Path, seconds: float, request_bytes: int = 0
) -> float:
    """Return files or bytes per second, read by a process of the group for each share of files.

    The readers are small fresh processes: this one may have threads and is not to join the group.

    Args:
        shares: the files of each process, on the disk and not in memory.
        group: the control group to join.
        seconds: how long they read, after the lead-in.
        request_bytes: read a file once in steps of this size, and count bytes; 0: read whole
            files again and again, and count those.
    """
    processes = []
    with contextlib.ExitStack() as running:
        for files in shares:
            program = [sys.executable, "-m", __name__, str(group), str(LEAD_IN_S + seconds)]
            process = running.enter_context(
                subprocess.Popen(
                    [*program, str(request_bytes), *map(str, files)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            running.callback(process.kill)  # whatever happens, before waiting for it
            processes.append(process)
        for process in processes:
            process.stdout.readline()  # it has joined, or ended
        for process in processes:
            with contextlib.suppress(BrokenPipeError):  # ended: it is asked why below
                print(file=process.stdin, flush=True)
        told = [_result(process, seconds) for process in processes]
    start_s = min(begun_s for begun_s, _ in told)
    return _per_s(sorted(read for _, reads in told for read in reads), start_s)


def _result(process: subprocess.Popen, seconds: float) -> tuple[float, list[tuple[float, int]]]:
    try:
        told, said = process.communicate(timeout=seconds + READER_PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise OSError(f"a read takes more than {READER_PATIENCE_S:g} s") from None
    if process.returncode:
        raise OSError((said.strip().splitlines() or ["a reader was ended"])[-1])
    return json.loads(told)


def _per_s(reads: list[tuple[float, int]], start_s: float) -> float:
    """Count over whole slices, from the middle of a pause between two bunches.

    The kernel lets reads through in bunches, one per slice of 100 ms: reads divided by seconds
    would be a tenth off.
    """
    steady = [(time_s, count) for time_s, count in reads if time_s >= start_s + LEAD_IN_S]
    times_s = [time_s for time_s, _ in steady]
    pairs = [pair for pair in itertools.pairwise(times_s) if pair[0] < times_s[0] + SLICE_S]
    if not pairs:
        raise OSError(f"there were {len(reads)} reads only")
    before_s, after_s = max(pairs, key=lambda pair: pair[1] - pair[0])
    begin_s = (before_s + after_s) / 2
    slices = int((times_s[-1] - begin_s) / SLICE_S)
    if slices == 0:
        raise OSError(f"all {len(reads)} reads were over at once")
    end_s = begin_s + slices * SLICE_S
    return sum(count for time_s, count in steady if begin_s < time_s <= end_s) / (end_s - begin_s)


def _be_reader(group: str, seconds: str, request_bytes: str, *files: str) -> None:
    """Join the group, wait for a line, read, and print when each read was over."""
    try:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
        print("ready", flush=True)  # noqa: T201 - this is how a reader talks
        sys.stdin.readline()
        size = int(request_bytes)
        reads = _parts(files[0], size) if size else _whole_files(files)
        times, begun_s = [], time.monotonic()
        for count in reads:
            now_s = time.monotonic()
            times.append((now_s, count))
            if now_s >= begun_s + float(seconds):
                break
    except OSError as error:
        sys.exit(_reason(error))
    print(json.dumps((begun_s, times)))  # noqa: T201


def _whole_files(paths: Sequence[str]) -> Iterator[int]:
    """Read whole files, and forget each at once, so that it is cold when its turn comes again."""
    for path in itertools.cycle(paths):
        with Path(path).open("rb", buffering=0) as file:
            file.read()
            yield 1
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _parts(path: str, request_bytes: int) -> Iterator[int]:
    """Read a file from its beginning to its end."""
    buffer = bytearray(request_bytes)
    with Path(path).open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield count


if __name__ == "__main__":
    _be_reader(*sys.argv[1:])
