"""Storage: where the bytes come from, and whether memory already holds them.

    name + data ──locate──▶ Storage: a directory, and what its readers must do
    files ──prepare (evict or read, then measure)──▶ trial ──prove──▶ one dict of the row

`here` is where the data lies; hdd, ssd, nvme and tmpfs are folders that the lab copies it
to; `throttled` is a real disk that the kernel slows down; the `modelled_*` read real files
and wait as a disk would.  A label is a claim: what a folder is called in
labkit.toml says nothing of what it is, so the run probes it before it believes it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from labkit.contracts import Skip
from labkit.machine import media, shared_memory
from labkit.parts.storage import distance, slow_disk
from labkit.parts.storage.cache_state import (
    KEEPS_FILES,
    make_cold,
    make_warm,
    prepare,
    prove,
    resident_share,
)
from labkit.parts.storage.disks import HARD_DISK, MEMORY, NVME_SSD, SATA_SSD, Disk
from labkit.parts.storage.distance import Distance, FarReader
from labkit.parts.storage.modelled import ModelledReader
from labkit.settings import pick

__all__ = [
    "IN_MEMORY", "KEEPS_FILES", "STORAGES", "Disk", "Distance", "FarReader",
    "ModelledReader", "Storage",
    "check_name", "distance", "locate", "make_cold", "make_warm", "prepare", "prove",
    "resident_share", "slow_disk",
]  # fmt: skip

# Settings whose files are never anywhere but in memory.
IN_MEMORY = ("tmpfs", "modelled_memory")
COPIES = "labkit-data"  # the folder on a medium that holds our copies
STAGED = Path("/var/tmp")  # not /tmp, which is memory on many systems


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A place that holds the data, or will once it is copied there."""

    name: str
    directory: Path
    """The folder that the data set fills."""
    label: str = "real"
    """What the rows call it: real, throttled(...), modelled(...), emulated distance(...); unknown
    where a probe did not believe it.  Modelled never stands beside the others."""
    copy: Path | None = None
    """The folder that our copy of the data fills; None: nothing is copied."""
    passing: bool = False
    """Whether the copy goes when the run ends: memory is not to be filled for good."""
    disk: Disk | None = None
    """What the reader waits for; None: nothing but the real reads."""
    cgroup: Path | None = None
    """The control group that every reading process joins; None: no limit."""
    distance: Distance | None = None
    """How far away the data is, where a server stands in for that."""
    address: str = ""
    """That server's, while a run has it up."""

    @property
    def is_remote(self) -> bool:
        """Whether every image is fetched over a network, and no page cache here holds it."""
        return self.distance is not None and self.copy is None

    def enter(self) -> None:
        """Put this process, and all that it starts from now on, under the disk's limit.

        Raises:
            Skip: the control group is gone or not ours.
        """
        if self.cgroup is not None:
            slow_disk.join(self.cgroup)


def here(data: Path) -> Storage:
    """Read the data where it lies."""
    return Storage(name="here", directory=data)


def on_medium(name: str, data: Path) -> Storage:
    """Read a copy on the medium that labkit.toml names, or the data itself if it lies there.

    Raises:
        Skip: labkit.toml does not name it, or the folder is not there.
        ValueError: labkit.toml is broken.
    """
    folder = media.media().get(name)
    if folder is None:
        raise Skip(
            f"{name} is not named on this machine; "
            f"name a folder on it with: labkit doctor --write --{name} DIR"
        )
    return on_folder(name, data, folder)


def on_folder(name: str, data: Path, folder: Path) -> Storage:
    """Read a copy in a folder, or the data itself if it lies on the same file system.

    Raises:
        Skip: the folder is not there, or lies inside the data.
    """
    try:
        is_there = folder.is_dir()
    except OSError:  # in a folder that may not be entered, or on a disk that is gone
        is_there = False
    if not is_there:
        raise Skip(
            f"{name} must be an existing directory, got {folder}; "
            "create it, mount the disk or correct labkit.toml"
        )
    if data.exists() and folder.stat().st_dev == data.stat().st_dev:
        return Storage(name=name, directory=data)
    if folder.resolve().is_relative_to(data.resolve()):
        raise Skip(
            f"{name} must lie outside the data, or the copy would be part of it, got {folder} "
            f"in {data}; choose another folder"
        )
    copy = folder / COPIES / key(data)
    return Storage(name=name, directory=copy / _name(data), copy=copy)


def on_ssd(data: Path) -> Storage:
    """Read from labkit.toml's ssd; without one, from where the data lies, and let it be probed."""
    if "ssd" in media.media():
        return on_medium("ssd", data)
    return Storage(name="ssd", directory=data)


def in_memory(data: Path) -> Storage:
    """Read a copy in memory: labkit.toml's tmpfs, else /dev/shm for as long as the run takes.

    Raises:
        Skip: there is no tmpfs here.
    """
    if "tmpfs" in media.media():
        return on_medium("tmpfs", data)
    if not (shared_memory.FOLDER.is_dir() and os.access(shared_memory.FOLDER, os.W_OK)):
        raise Skip(f"tmpfs needs {shared_memory.FOLDER}, which this platform does not have")
    # Everybody has a copy of their own: another's could be neither locked nor removed.
    copy = shared_memory.FOLDER / f"labkit-{os.getuid()}-{key(data)}"
    return Storage(name="tmpfs", directory=copy / _name(data), copy=copy, passing=True)


def on_throttled(data: Path) -> Storage:
    """Read a copy on the throttled disk, which the run puts up."""
    # Named like those in memory: on a user's disk a killed run's copy is found by its name.
    copy = slow_disk.MOUNT / f"labkit-{key(data)}"
    return Storage(
        name="throttled",
        directory=copy / _name(data),
        label=f"throttled({slow_disk.describe()})",
        copy=copy,
        passing=True,
        cgroup=slow_disk.cgroup_folder(),
    )


def on_modelled(disk: Disk, name: str, data: Path) -> Storage:
    """Read the data where it lies, and wait as the disk would."""
    return Storage(name=name, directory=data, label=f"modelled({disk.name})", disk=disk)


def at_distance(name: str, far: Distance, data: Path) -> Storage:
    """Read the data from a server as far away, which the run puts up; or copy it from there.

    Raises:
        Skip: there is no folder to copy to.
    """
    known = {"label": far.label, "distance": far, "address": distance.address(name, data)}
    if not far.staged:
        return Storage(name=name, directory=data, **known)
    if not (hasattr(os, "getuid") and os.access(STAGED, os.W_OK)):
        raise Skip(f"{name} needs {STAGED} to copy to, which this platform does not have")
    copy = STAGED / f"labkit-{os.getuid()}-{name}-{key(data)}"
    return Storage(name=name, directory=copy / _name(data), copy=copy, passing=True, **known)


# Setting -> what says where the data is there.
STORAGES: dict[str, Callable[[Path], Storage]] = {
    "here": here,
    "hdd": partial(on_medium, "hdd"),
    "ssd": on_ssd,
    "nvme": partial(on_medium, "nvme"),
    "tmpfs": in_memory,
    "throttled": on_throttled,
    "modelled_hdd": partial(on_modelled, HARD_DISK, "modelled_hdd"),
    "modelled_ssd": partial(on_modelled, SATA_SSD, "modelled_ssd"),
    "modelled_nvme": partial(on_modelled, NVME_SSD, "modelled_nvme"),
    "modelled_memory": partial(on_modelled, MEMORY, "modelled_memory"),
}


def locate(name: str, data: Path) -> Storage:
    """Find a storage by its name, by its name in labkit.toml, or by a folder's path.

    Args:
        name: a key of `STORAGES`, another name in labkit.toml, a path with a separator in it, or
            a distance (`distance.FORM`).
        data: where the data lies.

    Raises:
        ValueError: the name is none of these; the message lists the choices.
        Skip: this machine does not have it.
    """
    check_name(name)
    data = data.expanduser()
    if name in STORAGES:
        return STORAGES[name](data)
    if (far := distance.parse(name)) is not None:
        return at_distance(name, far, data)
    return on_folder(name, data, Path(name).expanduser() if _is_path(name) else media.media()[name])


def check_name(name: str) -> None:
    """Refuse a storage that is not in the table or labkit.toml, no folder's path, no distance.

    Raises:
        ValueError: the message lists the choices.
    """
    if name not in STORAGES and not _is_path(name) and distance.parse(name) is None:
        named = {other: folder for other, folder in media.media().items() if other != "data"}
        others = dict.fromkeys(("a folder's path", distance.FORM))
        pick({**STORAGES, **named, **others}, name, "storage")


def key(data: Path) -> str:
    """Name the copies of a data set: the same for every run, another for other folders."""
    digest = hashlib.sha256(os.fsencode(_own(data))).hexdigest()
    return f"{_name(data)}-{digest[:8]}"


def _name(data: Path) -> str:
    return _own(data).name or "data"


def _own(data: Path) -> Path:
    # Of the folder itself a link is not followed: COCO's boxes are found by the folder's name.
    data = data.absolute()
    return data.resolve() if data.name in ("", "..") else data.parent.resolve() / data.name


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name
