"""Media: which directory lies on which kind of disk, and what that disk really is.

    labkit.toml  →  hdd, ssd, …, data  →  check_medium: describe_medium, probe_random_reads

A user says in `labkit.toml` where their disks are, and labkit checks whether that is so.  A virtual
disk often claims to be rotational and reads thousands of files a second, so the claim alone does
not make it a hard disk: a cold random-read probe has to agree.

    [media]                       # every key is optional
    hdd = "/mnt/disk/labkit"      # hdd, ssd, nvme, tmpfs: folders that the lab may copy to
    scratch = "/mnt/scratch"      # any other name is a storage of your own
    data = "data/photos"          # relative paths count from this file
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from labkit import units
from labkit.contracts import Skip
from labkit.files import write_whole
from labkit.machine import hardware, page_cache, procfs
from labkit.machine.page_cache import can_evict
from labkit.thresholds import COLD_MAX_SHARE

FILE_NAME = "labkit.toml"
HEADER = "# Where this machine's media are; by `labkit doctor --write`, or by hand.\n[media]\n"

# Names that claim a kind of disk -> whether that kind is a hard disk.
CLAIMS = {"hdd": True, "ssd": False, "nvme": False}
NAMES = (*CLAIMS, "tmpfs", "data")


@dataclass(frozen=True, kw_only=True)
class Medium:
    """What a directory lies on, as far as the operating system says."""

    filesystem: str
    """As "ext4", "overlay", "nfs4"; "unknown" where the system does not say."""
    device: str
    """The device file; the filesystem's name where there is none, never a server's."""
    rotational: bool | None = None
    """What the disk claims; None where no block device is known."""

    @property
    def in_memory(self) -> bool:
        """Whether files here are never anywhere but in memory."""
        return self.filesystem in ("tmpfs", "ramfs")


def media() -> dict[str, Path]:
    """Read where this machine's media are.

    Returns:
        name -> directory, as far as the nearest labkit.toml names them, in the current
        directory or a parent.  Whether they exist is not looked at here: a disk
        that is not plugged in must not stop an experiment that does not need it.

    Raises:
        ValueError: the file is not TOML, or names what it must not.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE_NAME).is_file():
            path = folder / FILE_NAME
            return _parse(path.read_text(encoding="utf-8"), path)
    return {}


def write_media(path: str | Path, **dirs: str | Path) -> None:
    """Keep directories in a labkit.toml; what it holds beside them stays as it is.

    Args:
        path: the file, written anew where there is none.
        **dirs: hdd, ssd, nvme, tmpfs or data; relative ones count from the current directory.

    Raises:
        ValueError: no name, a directory that does not exist, or a file that could not be read
            before and so is left alone.
    """
    path = Path(path)
    if not dirs:
        raise ValueError(f"dirs must be one or more of {', '.join(NAMES)}, got none")
    text = path.read_text(encoding="utf-8") if path.exists() else HEADER
    _parse(text, path)
    if "[media]" not in text:
        text += f"\n{HEADER}"
    for name, directory in dirs.items():
        directory = Path(directory).absolute()
        if not directory.is_dir():
            raise ValueError(
                f"{name} must be an existing directory, got {directory}; "
                "create it or mount the disk"
            )
        base = path.absolute().parent
        if directory.is_relative_to(base):  # so that the lab's folder can be moved
            directory = directory.relative_to(base)
        # A JSON string is a TOML string too.
        line = f"{name} = {json.dumps(directory.as_posix(), ensure_ascii=False)}"
        old = re.search(rf"^\s*{name}\s*=.*", text, re.MULTILINE)
        text = text.replace(*((old[0], line) if old else ("[media]\n", f"[media]\n{line}\n")), 1)
    _parse(text, path)  # an unusual layout must not become a broken file
    write_whole(path, text)


def _parse(text: str, path: Path) -> dict[str, Path]:
    try:
        table = tomllib.loads(text).get("media", {})
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} must be a TOML file, got an error: {error}") from None
    if not isinstance(table, dict):
        raise ValueError(f"media in {path} must be a table with a line [media], got {table!r}")
    for name, directory in table.items():
        if not isinstance(directory, str):
            raise ValueError(f"{name} in {path} must be a directory in quotes, got {directory!r}")
    return {name: path.parent / directory for name, directory in table.items()}


def describe_medium(path: str | Path) -> Medium:
    """Return what a file or directory lies on.

    Raises:
        OSError: it does not exist.
    """
    import psutil

    path = Path(path).resolve(strict=True)
    mounts = psutil.disk_partitions(all=True)
    # Later mounts hide earlier ones at the same place, so among equals the last one counts.
    holding = [mount for mount in reversed(mounts) if path.is_relative_to(mount.mountpoint)]
    mount = max(holding, key=lambda mount: len(Path(mount.mountpoint).parts), default=None)
    source, filesystem = ("", "unknown") if mount is None else (mount.device, mount.fstype)
    queue = _queue_folder(path.stat().st_dev, Path(source))
    rotational = None if queue is None else procfs.number(queue / "rotational")
    return Medium(
        filesystem=filesystem,
        device=source if source.startswith("/dev/") else filesystem,
        rotational=None if rotational is None else bool(rotational),
    )


def check_room(folder: Path, needed_bytes: float, what: str) -> None:
    """Refuse to write more than there is room for.

    Args:
        folder: an existing one.
        needed_bytes: how much will be written.
        what: what it is, for the message.

    Raises:
        Skip: it does not fit; the text says so with numbers.
    """
    needed_bytes *= 1.05  # file systems round sizes up
    free_bytes, kind = shutil.disk_usage(folder).free, ""
    if describe_medium(folder).in_memory:
        # It may be larger than the memory that other programs leave.
        free_bytes, kind = min(free_bytes, hardware.free_memory_bytes()), "of memory "
    if needed_bytes > free_bytes:
        raise Skip(
            f"{folder} must have {units.count_bytes(needed_bytes)} {kind}free for {what}, "
            f"got {units.count_bytes(free_bytes)}; free some space, or use less data"
        )


@contextlib.contextmanager
def skip_unwritable(folder: Path) -> Iterator[None]:
    """Turn errors of writing to a folder into a reason to skip a variant.

    Raises:
        Skip: an OSError inside the block; the text names the file.
    """
    try:
        yield
    except OSError as error:
        raise Skip(
            f"{folder} must be a folder that can be written, got {error.strerror or error} "
            f"({error.filename or folder}); choose another folder or free some space"
        ) from error


def _queue_folder(number: int, source: Path) -> Path | None:
    """Find the request queue of the disk with a device number, in /sys."""
    if not hasattr(os, "major"):  # Windows
        return None
    if os.major(number) == 0 and source.is_block_device():  # btrfs has numbers of its own
        number = source.stat().st_rdev
    disk = Path("/sys/dev/block", f"{os.major(number)}:{os.minor(number)}").resolve()
    # A partition's folder lies in its disk's, and only the disk has a queue.
    return next((d / "queue" for d in (disk, disk.parent) if (d / "queue").is_dir()), None)


def probe_random_reads(directory: str | Path, seconds: float = 1.0) -> float:
    """Read random files of a directory, whole and cold, one after another.

    Args:
        directory: with at least 20 files of 4 KiB to 1 MiB in it or below.
        seconds: when to stop; at most 200 files are read.

    Returns:
        Reads per second of one reader.

    Raises:
        Skip: it cannot be measured here; the text says why.
        OSError: there is no such directory.
    """
    if not can_evict():
        raise Skip("this platform cannot evict files from memory (no posix_fadvise)")
    # Listing a folder of millions, or asking a hard disk for the size of each file in it, would
    # take longer than the probe.
    files = list(islice(_files(directory), 20_000))
    random.shuffle(files)  # differently each time: a disk has a cache of its own
    suitable = (path for path in files[:2_000] if _is_fit_for_probing(path))
    chosen = list(islice(suitable, 200))
    if len(chosen) < 20:  # these take a hard disk 0.25 s
        raise Skip(f"a probe needs at least 20 files of 4 KiB to 1 MiB, got {len(chosen)}")
    for path in chosen:
        page_cache.evict(path)
    if not _are_cold(chosen):
        raise Skip("its files could not be evicted from memory, or memory cannot be looked at")
    done = 0
    start_s = time.perf_counter()
    for path in chosen:
        with path.open("rb", buffering=0) as file:
            file.read()
        done += 1
        took_s = time.perf_counter() - start_s
        if took_s > seconds:
            break
    return done / took_s


def _are_cold(paths: Sequence[Path]) -> bool:
    """Return whether evicted files have left memory, or are at least fetched again."""
    share, _ = page_cache.residency(paths)
    if share is None:  # another user's files, or an old kernel
        return any(page_cache.fetched_bytes(path) > 0 for path in paths[:3])
    return share <= COLD_MAX_SHARE


def _files(directory: str | Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(directory):
        random.shuffle(folders)
        yield from (Path(folder, name) for name in names)


def _is_fit_for_probing(path: Path) -> bool:
    if path.is_symlink() or not path.is_file() or not os.access(path, os.R_OK):
        return False
    # Smaller ones may lie inside their inode; in larger ones the transfer counts, not the seek.
    return 4 << 10 <= path.stat().st_size <= 1 << 20


def is_hard_disk(medium: Medium, reads_per_s: float | None) -> bool | None:
    """Judge whether a medium is a hard disk: it must say so, and behave like one.

    Args:
        medium: from `describe_medium`, not in memory.
        reads_per_s: from `probe_random_reads`; None where it could not be probed.

    Returns:
        True or False; None where that is unknown, as with a disk that claims to be rotational
        and is too fast for it.
    """
    if medium.rotational is False:
        return False
    # A 7200 rpm disk does about 81 random reads/s (EVIDENCE 2), some three times that with the head
    # moving little inside one folder; the slowest SATA SSD does thousands.
    if medium.rotational and reads_per_s is not None and reads_per_s <= 250:
        return True
    return None


def check_medium(name: str, directory: Path) -> tuple[Medium, float | None, str]:
    """Describe and probe what a directory lies on, and compare it with its name.

    Args:
        name: as in labkit.toml.
        directory: an existing one.

    Returns:
        The medium; its cold random reads per second, None where it was not probed; why it is not
        known to be what it is called, empty where it is.
    """
    medium = describe_medium(directory)
    if medium.in_memory:
        return medium, None, "in memory" if name in CLAIMS else ""
    if name == "tmpfs":
        return medium, None, f"on {medium.filesystem}, not in memory"
    reads_per_s = None
    try:
        reads_per_s = probe_random_reads(directory)
        reason = f"{reads_per_s:,.0f} cold reads/s"
    except (Skip, OSError) as error:  # the whole text of an OSError names a file
        reason = f"not probed: {getattr(error, 'strerror', error)}"
    believed = is_hard_disk(medium, reads_per_s)
    if believed is CLAIMS.get(name, believed):
        return medium, reads_per_s, ""
    if believed is not None:
        reason = f"{'a' if believed else 'no'} hard disk, {reason}"
    elif medium.rotational:
        like = "" if reads_per_s is None else "reads like an SSD: "
        reason = f"reported as a hard disk, {like}{reason}"
    return medium, reads_per_s, reason
