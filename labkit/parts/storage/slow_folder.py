"""The folder of a throttled disk: what is in it, who holds it, how it is made and unmade.

    folder ──lock──▶ state.json, then disk.img ─▶ loop device ─▶ mount/ ─▶ control group
                     the intent comes first, and the whole state last

All names are fixed, and the lock is held for as long as the folder is worked on or a run owns
the disk.  So a killed process is noticed by its free lock, whichever step it died in, and what
it left is found by name.  Main trap: a name can be somebody else's, so before anything is taken
down the kernel must confirm that our image is behind it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from labkit import procfs, units
from labkit.parts.storage import blkio, loop_disk
from labkit.parts.storage.disks import HARD_DISK, TYPICAL_FILE_BYTES

POINT, IMAGE, STATE, CHECKS = "mount", "disk.img", "state.json", ".check"
OURS = {POINT, IMAGE, STATE, f"{STATE}.part"}
KIND = "labkit throttled disk"
PERSON = "person"

READS_PER_S = round(HARD_DISK.files_per_s())
BYTES_PER_S = round(HARD_DISK.bytes_per_s)
# Inner tracks give half of what outer ones do (EVIDENCE 2); below that it is no hard disk.
LEAST_SEQUENTIAL = 0.5

CHECK_FILES = 128
SEQUENTIAL_BYTES = 96 << 20  # takes the 0.9 s that a steady rate shows in
SPARE_SHARE, SPARE_BYTES = 0.1, 32 << 20
SPARE_FILES = 1024  # folders, and what others keep beside the data
PER_FILE_BYTES = 4096 + 256  # at most a block for its end, and the inode

WAIT_S = 2.0  # for another process's work on the folder
PAUSE_S = 0.05

_owned: dict[Path, tuple[int, int]] = {}  # folder -> this process's id, the open lock


@dataclass(frozen=True, kw_only=True)
class SlowDisk:
    """A throttled disk that is up."""

    folder: Path
    mount: Path
    device: Path
    device_number: str
    """As "7:0"."""
    cgroup: Path
    cgroup_version: int
    reads_per_s: int
    """The limit on requests."""
    bytes_per_s: int
    """The limit on bytes."""
    request_bytes: int
    """The largest request to the device."""
    sequential_bytes_per_s: int
    """What the two limits and the largest request allow."""
    room_bytes: int
    """Of data that it was made for."""
    room_files: int
    owner: str
    """"person": up until it is taken down; "run 123": as long as that process lives."""
    owned: bool = False
    """Whether this process has to take it down."""


def place(folder: Path) -> Path:
    """Give a folder's one name; of the folder itself a link is not followed."""
    return folder.parent.resolve() / folder.name  # anybody may put links into /var/tmp


def cgroup_folder(folder: Path) -> Path:
    """Say where the control group of a folder's disk is, or would be."""
    tree = blkio.find_tree()
    root = tree.root if tree else Path("/sys/fs/cgroup/blkio")
    digest = hashlib.sha256(os.fsencode(place(folder))).hexdigest()
    return root / f"labkit-slow-disk-{digest[:8]}"


def sequential_bytes_per_s(request_bytes: int | None) -> int:
    """Say what the limits let through, given the largest request; None: it is not known."""
    return min(BYTES_PER_S, READS_PER_S * request_bytes) if request_bytes else BYTES_PER_S


def own_lock(folder: Path) -> int | None:
    """Give the lock with which this process owns a disk."""
    process, lock = _owned.get(folder, (None, None))
    return lock if process == os.getpid() else None  # a forked child owns nothing


def keep_lock(folder: Path, lock: int) -> None:
    """Own a disk for as long as this process lives, or until `close_lock`."""
    _owned[folder] = (os.getpid(), lock)


def close_lock(folder: Path, lock: int) -> None:
    """Let others at the folder."""
    _owned.pop(folder, None)
    os.close(lock)


def take_lock(folder: Path, *, make: bool = False) -> int:
    """Open a folder that is ours, or new, and lock it.

    Raises:
        FileNotFoundError: there is none.
        Failed: another process holds the lock, or the folder is not ours.
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
            owner = read_state(folder).get("owner", "another process")
            raise loop_disk.Failed(f"{folder} is in use by {owner}; wait until that has ended")
        time.sleep(PAUSE_S)
    if reason := _why_not_ours(folder, os.fstat(lock)):
        os.close(lock)
        raise loop_disk.Failed(f"{folder} must be {reason}; move it away")
    return lock


def _why_not_ours(folder: Path, stat: os.stat_result) -> str:
    names = {path.name for path in folder.iterdir()}
    if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
        return "this user's, and writable by nobody else"
    if names - OURS or (names & {POINT, IMAGE} and STATE not in names):
        return f"empty or an earlier disk's, got {', '.join(sorted(names))}"
    return ""


def read_state(folder: Path) -> dict[str, object]:
    """Read what a folder's disk is or was to become; empty where that is not known."""
    try:
        state = json.loads(procfs.text(folder / STATE))
    except ValueError:
        return {}
    return state if isinstance(state, dict) and state.pop("kind", "") == KIND else {}


def _write_state(folder: Path, **state: object) -> None:
    part = folder / f"{STATE}.part"
    part.write_text(json.dumps({"kind": KIND, **state}, default=str))
    part.replace(folder / STATE)


def find(folder: Path) -> SlowDisk | None:
    """Find a disk that is up and whole, whoever made it."""
    folder = place(folder)
    state = read_state(folder)
    try:
        for name in ("mount", "device", "cgroup"):
            state[name] = Path(state[name])
        disk = SlowDisk(**state, folder=folder, owned=own_lock(folder) is not None)
    except (KeyError, TypeError):  # none, half made, or made by another version
        return None
    whole = (
        loop_disk.backed_by(disk.device, folder / IMAGE)
        and loop_disk.mounted(disk.mount)[-1:] == [disk.device_number]
        and blkio.in_force(disk.cgroup, disk.cgroup_version, disk.device_number)
    )
    return disk if whole else None


def make(folder: Path, lock: int, *, data_bytes: int, files: int, owner: str) -> None:
    """Make a disk in an empty folder; each step leaves only what is found again by its name.

    Raises:
        Failed, OSError: a step cannot be done; what was made before it is still there.
    """
    point, image, group = folder / POINT, folder / IMAGE, cgroup_folder(folder)
    if group.exists():
        raise loop_disk.Failed(f"the control group {group} is there already, and not this disk's")
    _write_state(folder, owner=owner, cgroup=group)
    inodes = files + CHECK_FILES + SPARE_FILES
    size_bytes = round(data_bytes * (1 + SPARE_SHARE)) + inodes * PER_FILE_BYTES
    size_bytes += SEQUENTIAL_BYTES + CHECK_FILES * TYPICAL_FILE_BYTES + SPARE_BYTES
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes > free_bytes:
        raise loop_disk.Failed(
            f"{folder} must have {units.count_bytes(size_bytes)} free, "
            f"got {units.count_bytes(free_bytes)}; free some space"
        )
    loop_disk.make_image(image, size_bytes, inodes, lock=lock)
    device = loop_disk.attach(image, lock=lock)
    request_bytes = loop_disk.largest_request_bytes(device)
    sequential = sequential_bytes_per_s(request_bytes)
    if sequential < LEAST_SEQUENTIAL * BYTES_PER_S:
        raise loop_disk.Failed(
            f"{device} takes requests of at most {units.count_bytes(request_bytes)}, and with "
            f"{READS_PER_S} of them a second it would be slower in sequence than any hard disk"
        )
    loop_disk.set_read_ahead(device, request_bytes)
    point.mkdir()
    loop_disk.mount(device, point, lock=lock)
    _write_checks(point, lock)
    tree, number = blkio.find_tree(), loop_disk.device_number(device)
    blkio.make(tree, group, blkio.limits(tree.version, number, READS_PER_S, BYTES_PER_S))
    _write_state(
        folder,
        mount=point,
        device=device,
        device_number=number,
        cgroup=group,
        cgroup_version=tree.version,
        reads_per_s=READS_PER_S,
        bytes_per_s=BYTES_PER_S,
        request_bytes=request_bytes,
        sequential_bytes_per_s=sequential,
        room_bytes=data_bytes,
        room_files=files,
        owner=owner,
    )


def _write_checks(point: Path, lock: int) -> None:
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
    loop_disk.run("sync", "--file-system", point, lock=lock)


def take_down(folder: Path, lock: int) -> list[str]:
    """Remove everything but the folder; steps that were never done are left out.

    Returns:
        What was removed, in words.

    Raises:
        Failed, OSError: a step cannot be done; what was to come after it is still there.
    """
    image, point, state = folder / IMAGE, folder / POINT, read_state(folder)
    devices = loop_disk.devices_of(image) if image.exists() else []
    numbers = [loop_disk.device_number(device) for device in devices]
    removed = []
    # First: where processes are still in it, the disk stays as it is.
    group = _group(folder, state, numbers)
    if group and blkio.remove(group):
        removed.append(f"control group {group}")
    for number in reversed(loop_disk.mounted(point)):
        if number not in numbers:
            raise loop_disk.Failed(f"something else is mounted on {point}; unmount it")
        loop_disk.unmount(point, lock=lock)
        removed.append(f"mount {point}")
    for device in devices:
        loop_disk.detach(device, image, lock=lock)
        removed.append(f"loop device {device}")
    if image.exists():
        image.unlink()
        removed.append(f"image {image}")
    with contextlib.suppress(FileNotFoundError):
        point.rmdir()
    # Last, because without it nothing in the folder would be ours.
    for name in (f"{STATE}.part", STATE):
        (folder / name).unlink(missing_ok=True)
    return removed


def _group(folder: Path, state: dict[str, object], numbers: list[str]) -> Path | None:
    if "cgroup" in state:
        return Path(state["cgroup"])
    # A state that cannot be read: the group is ours if it is our device that it limits.
    group = cgroup_folder(folder)
    ours = any(blkio.in_force(group, version, number) for version in (1, 2) for number in numbers)
    return group if ours else None
