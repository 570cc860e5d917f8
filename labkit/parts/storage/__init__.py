"""Storage: where the bytes come from, and whether memory already holds them.

    setting "storage" + data ──locate──▶ Storage: a folder, and what its readers must do

`here` is where the data lies; hdd, ssd, nvme and tmpfs are folders that a run copies it to;
`throttled` is a real disk that the kernel slows down; the `modelled_*` read real files and wait as
a disk would; `far_*` fetches every image from a server. A label is a claim: labkit.toml can call
any folder a hard disk, so the run probes it (`labkit.runs.staging`).

A new storage is a line in `STORAGES`, a function of the data's folder; one that waits is also a
class, as in `modelled`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labkit.contracts import Part
from labkit.machine import media
from labkit.parts.storage import distance, slow_disk
from labkit.parts.storage.disks import HARD_DISK, MEMORY, NVME_SSD, SATA_SSD
from labkit.parts.storage.folder import Storage, here, in_folder, in_memory, on_medium, on_ssd
from labkit.parts.storage.modelled import on_modelled
from labkit.settings import pick


@dataclass(frozen=True)
class StoragePart(Part):
    """What says where the data is on a storage: the data's folder -> `Storage`."""

    stays_in_memory: bool = False
    """The files are never anywhere but in memory."""


# Setting -> what says where the data is there.
STORAGES: dict[str, Callable[[Path], Storage]] = {
    "here": here,
    "hdd": partial(on_medium, "hdd"),
    "ssd": on_ssd,
    "nvme": partial(on_medium, "nvme"),
    "tmpfs": StoragePart(in_memory, stays_in_memory=True),
    "throttled": slow_disk.on_throttled,
    "modelled_hdd": partial(on_modelled, HARD_DISK, "modelled_hdd"),
    "modelled_ssd": partial(on_modelled, SATA_SSD, "modelled_ssd"),
    "modelled_nvme": partial(on_modelled, NVME_SSD, "modelled_nvme"),
    "modelled_memory": StoragePart(
        partial(on_modelled, MEMORY, "modelled_memory"), stays_in_memory=True
    ),
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
    data = data.expanduser()
    if name in STORAGES:
        return STORAGES[name](data)
    if (far := distance.at_distance(name, data)) is not None:
        return far
    if "/" in name or os.sep in name:
        return in_folder(name, data, Path(name).expanduser())
    named = {other: folder for other, folder in media.media().items() if other != "data"}
    others = dict.fromkeys(("a folder's path", distance.FORM))
    choices: dict[str, Any] = {**STORAGES, **named, **others}
    return in_folder(name, data, pick(choices, name, "storage"))
