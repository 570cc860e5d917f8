"""Media: which directory lies on which kind of disk, and what that disk really is.

    labkit.toml  →  hdd, ssd, …, data  →  describe_medium, probe_random_reads

A user says in `labkit.toml` where their disks are, and labkit checks whether that is so.  A virtual
disk often claims to be rotational and reads thousands of files a second, so the claim alone does
not make it a hard disk: a cold random-read probe has to agree.

    [media]                       # every key is optional
    hdd = "/mnt/disk/labkit"      # hdd, ssd, nvme, tmpfs: folders that the lab may copy to
    scratch = "/mnt/scratch"      # any other name is a storage of your own
    data = "data/photos"          # relative paths count from this file
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from labkit.contracts import Skip
from labkit.machine import page_cache, procfs
from labkit.machine.page_cache import can_evict

FILE_NAME = "labkit.toml"
NAMES = ("hdd", "ssd", "nvme", "tmpfs", "data")
HEADER = "# Where this machine's media are; by `labkit doctor --write`, or by hand.\n[media]\n"

IN_MEMORY = ("tmpfs", "ramfs")

# A 7200 rpm disk does about 81 random reads/s (EVIDENCE 2), some three times that with the
# head moving little inside one folder; the slowest SATA SSD does thousands.
HARD_DISK_MAX_READS_PER_S = 250.0
PROBE_FILES = 200
PROBE_MIN_FILES = 20  # fewer say nothing: 20 reads of a hard disk take 0.25 s
# Smaller files may lie inside their inode; in bigger ones the transfer counts, not the seek.
PROBE_BYTES = range(4096, (1 << 20) + 1)
# Listing a folder of millions, or asking a hard disk for the size of each file in it, would
# take longer than the probe.
PROBE_LISTED, PROBE_LOOKED_AT = 20_000, 2_000


@dataclass(frozen=True, kw_only=True)
class Medium:
    """What a directory lies on, as far as the operating system says."""

    filesystem: str
    """As "ext4", "overlay", "nfs4"; "unknown" where there is no /proc."""
    device: str
    """The device file; the filesystem's name where there is none, never a server's."""
    rotational: bool | None
    """What the disk claims; None where no block device is known."""
    scheduler: str
    readahead_kb: int | None
    free_bytes: int

    @property
    def in_memory(self) -> bool:
        """Whether files here are never anywhere but in memory."""
        return self.filesystem in IN_MEMORY


@dataclass(frozen=True, kw_only=True)
class Probe:
    """How fast one reader got files that were evicted from memory before."""

    files: int
    reads_per_s: float


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
            return _read(folder / FILE_NAME)
    return {}


def write_media(path: str | Path, **dirs: str | Path) -> None:
    """Keep directories in a labkit.toml; what it holds beside them stays as it is.

    Args:
        path: the file, written anew where there is none.
        **dirs: hdd, ssd, nvme, tmpfs or data; relative ones count from the current directory.

    Raises:
        ValueError: no or an unknown name, a directory that does not exist, or a file that
            could not be read before and so is left alone.
    """
    path = Path(path)
    if not dirs:
        raise ValueError(f"dirs must be one or more of {', '.join(NAMES)}, got none")
    lines = (path.read_text(encoding="utf-8") if path.exists() else HEADER).splitlines()
    if path.exists():
        _read(path)
    if "[media]" not in _sections(lines):
        lines += ["", *HEADER.splitlines()]
    for name, directory in dirs.items():
        _check_name(name)
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
        for number, section in enumerate(_sections(lines)):
            if section == "[media]" and re.match(rf"\s*{name}\s*=", lines[number]):
                lines[number] = line
                break
        else:
            sections = _sections(lines)
            lines.insert(len(sections) - sections[::-1].index("[media]"), line)
    # A crash must not leave half a file, nor an unusual layout a broken one.
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        _read(draft)
        draft.replace(path)
    except ValueError:
        raise ValueError(
            f"{path} must list its media below a line [media], got another layout; "
            f"add {', '.join(dirs)} by hand"
        ) from None
    finally:
        draft.unlink(missing_ok=True)


def _sections(lines: list[str]) -> list[str]:
    """Return the [header] above each line; blank lines have none."""
    sections, current = [], ""
    for line in lines:
        if header := re.match(r"\s*(\[[^\]]*\])", line):
            current = header[1].replace(" ", "")
        sections.append(current if line.strip() else "")
    return sections


def _check_name(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"medium must be one of {', '.join(NAMES)}, got {name!r}")


def _read(path: Path) -> dict[str, Path]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("media", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a TOML file, got an error: {error}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path} must have a table [media], got {table!r}")
    for name, directory in table.items():
        if not re.fullmatch(r"[a-z0-9_]+", name):
            raise ValueError(
                f"medium must be lower-case letters, digits and _, got {name!r} in {path}; "
                "rename it"
            )
        if not isinstance(directory, str):
            raise ValueError(f"{name} in {path} must be a directory in quotes, got {directory!r}")
    return {name: path.parent / directory for name, directory in table.items()}


def describe_medium(path: str | Path) -> Medium:
    """Return what a file or directory lies on.

    Raises:
        OSError: it does not exist.
    """
    path = Path(path).resolve(strict=True)
    # Later mounts hide earlier ones at the same place, so among equals the last one counts.
    holding = [mount for mount in procfs.mounts() if path.is_relative_to(mount.point)]
    mount = max(reversed(holding), key=lambda mount: len(mount.point.parts), default=None)
    queue = None if mount is None else _queue_folder(mount)
    filesystem = "unknown" if mount is None else mount.filesystem
    is_device = mount is not None and mount.source.startswith("/dev/")
    rotational = None if queue is None else procfs.number(queue / "rotational")
    scheduler = "" if queue is None else procfs.text(queue / "scheduler").strip()
    chosen = re.search(r"\[(.+)\]", scheduler)  # "none [mq-deadline] bfq"
    return Medium(
        filesystem=filesystem,
        device=mount.source if is_device else filesystem,
        rotational=None if rotational is None else bool(rotational),
        scheduler=chosen[1] if chosen else scheduler or "unknown",
        readahead_kb=None if queue is None else procfs.number(queue / "read_ahead_kb"),
        free_bytes=shutil.disk_usage(path).free,
    )


def _queue_folder(mount: procfs.Mount) -> Path | None:
    """Find the request queue of the disk behind a mount, in /sys."""
    device_number = mount.device_number
    if device_number.startswith("0:"):  # btrfs has numbers of its own; its source is the disk
        source = Path(mount.source)
        if not source.is_block_device():
            return None
        number = source.stat().st_rdev
        device_number = f"{os.major(number)}:{os.minor(number)}"
    disk = Path("/sys/dev/block", device_number).resolve()
    # A partition's folder lies in its disk's, and only the disk has a queue.
    return next((d / "queue" for d in (disk, disk.parent) if (d / "queue").is_dir()), None)


def probe_random_reads(directory: str | Path, seconds: float = 1.0) -> Probe:
    """Read random files of a directory, whole and cold, one after another.

    Args:
        directory: with at least 20 files of 4 KiB to 1 MiB in it or below.
        seconds: when to stop; at most 200 files are read.

    Raises:
        Skip: it cannot be measured here; the text says why.
        OSError: there is no such directory.
    """
    if not can_evict():
        raise Skip("this platform cannot evict files from memory (no posix_fadvise)")
    if describe_medium(directory).in_memory:
        raise Skip("files here are kept in memory and never read from a device")
    files = list(islice(_files(directory), PROBE_LISTED))
    random.shuffle(files)  # differently each time: a disk has a cache of its own
    suitable = (path for path in files[:PROBE_LOOKED_AT] if _is_fit_for_probing(path))
    chosen = list(islice(suitable, PROBE_FILES))
    if len(chosen) < PROBE_MIN_FILES:
        raise Skip(
            f"a probe needs at least {PROBE_MIN_FILES} files of 4 KiB to 1 MiB, got {len(chosen)}"
        )
    for path in chosen:
        page_cache.evict(path)
    done = 0
    start_s = time.perf_counter()
    for path in chosen:
        with path.open("rb", buffering=0) as file:
            file.read()
        done += 1
        took_s = time.perf_counter() - start_s
        if took_s > seconds:
            break
    return Probe(files=done, reads_per_s=done / took_s)


def _files(directory: str | Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(directory):
        random.shuffle(folders)
        yield from (Path(folder, name) for name in names)


def _is_fit_for_probing(path: Path) -> bool:
    if path.is_symlink() or not path.is_file() or not os.access(path, os.R_OK):
        return False
    return path.stat().st_size in PROBE_BYTES


def is_hard_disk(medium: Medium, probe: Probe | None) -> bool | None:
    """Judge whether a medium is a hard disk: it must say so, and behave like one.

    Args:
        medium: from `describe_medium`.
        probe: from `probe_random_reads`; None where it could not be made.

    Returns:
        True or False; None where that is unknown, as with a disk that claims to be rotational
        and is too fast for it.
    """
    if medium.in_memory or medium.rotational is False:
        return False
    if medium.rotational and probe is not None and probe.reads_per_s <= HARD_DISK_MAX_READS_PER_S:
        return True
    return None
