"""What this machine and a folder of images hold."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import units
from labkit.experiments.catalog import hard_disk
from labkit.machine import hardware, shared_memory
from labkit.machine.media import check_medium, media
from labkit.machine.page_cache import can_evict
from labkit.parts import decoding
from labkit.resolve import open_data
from labkit.settings import Settings

if TYPE_CHECKING:
    from labkit.report.table import Table


def doctor(data: Path | str | None = None, **folders: Path | str) -> Table:
    """Show what this machine has, and what will be skipped and why.

    Args:
        data: probe this folder's disk too, unless it is a URL.
        **folders: medium -> a folder on it, beside those of labkit.toml.

    Raises:
        ValueError: labkit.toml is broken.

    Examples:
        >>> list(lab.doctor().data.index[:3])
        ['system', 'python', 'packages']
    """
    from labkit.report.table import Table

    if data and "://" not in str(data):
        folders = {"data": data, **folders}
    here, gpu = hardware.provenance(), hardware.cuda()
    missing = ", ".join(name for name, version in here.versions.items() if version == "unknown")
    limited = f"of {here.cpu_count}: this process is limited to them"
    rows = [
        ("system", f"{here.platform}, kernel {here.kernel}", ""),
        ("python", here.python, ""),
        (
            "packages",
            ", ".join(f"{name} {version}" for name, version in here.versions.items()),
            f"missing: {missing}; install the lab's requirements again" if missing else "",
        ),
        (
            "cores",
            f"{here.cores} × {here.cpu_model}",
            limited if here.cores != here.cpu_count else "",
        ),
        ("memory", units.count_bytes(here.memory_bytes), ""),
    ]
    if room := shared_memory.usage():
        remark = ""
        if room.total < 1 << 30:  # containers often have 64 MB
            remark = (
                "loader workers hand over batches through it, and big ones kill them; "
                f"{shared_memory.MORE}"
            )
        rows.append((str(shared_memory.FOLDER), units.count_bytes(room.total), remark))
    value = gpu.name or "none"
    if gpu.works:
        value += f", {units.count_bytes(gpu.memory_bytes)}, driver {gpu.driver}"
        value += f", compute capability {gpu.capability}"
    rows.append(("gpu", value, gpu.reason))
    for name, directory in {**media(), **folders}.items():
        rows.append((name, *_describe_folder(name, Path(directory))))
    if not gpu.works:
        rows.append(("device cuda", "skipped", "labkit uses a simulated GPU; results say so"))
    if not can_evict():
        remark = "no posix_fadvise here: files cannot be evicted from memory"
        rows.append(("cache cold", "skipped", remark))
    if not hardware.can_fork():
        why = "this platform starts processes by spawn"
        rows.append(("multiprocessing_context fork", "skipped", why))
    rows.append(("hard disk", *hard_disk()))
    refused = decoding.unusable_decoders()
    usable = ", ".join(name for name in decoding.DECODERS if name not in refused)
    rows.append(("decoders", usable, ""))
    rows += [(f"decoder {name}", "skipped", reason) for name, reason in refused.items()]
    return Table([dict(zip(("", "here", "remark"), row)) for row in rows])


def _describe_folder(name: str, directory: Path) -> tuple[str, str]:
    """Return value and remark for the medium under a folder."""
    # `Path.is_dir` raises for a mount that is broken, before Python 3.14.
    if not os.path.isdir(directory):  # noqa: PTH112
        return str(directory), "not there; create it, mount the disk or correct labkit.toml"
    try:
        medium, reads_per_s, doubt = check_medium(name, directory)
        free_bytes = shutil.disk_usage(directory).free
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}; mount the disk again"
        return str(directory), f"{why} or correct labkit.toml"
    claim = {True: "rotational", False: "not rotational", None: "kind unknown"}[medium.rotational]
    if medium.in_memory:
        claim = "in memory"
    value = f"{directory}: {medium.filesystem} on {medium.device}, {claim}, "
    value += f"{units.count_bytes(free_bytes)} free"
    if reads_per_s is not None:
        value += f", {reads_per_s:,.0f} cold reads/s"
    return value, f"could not confirm the kind of {name}: {doubt}" if doubt else ""


def describe_data(data: str) -> Table:
    """Show what a folder of images holds.

    Args:
        data: a COCO layout, or any tree of .jpg/.jpeg files.

    Raises:
        ValueError: there are no images.

    Examples:
        >>> lab.describe_data("data/photos").data.index[0]
        'images'
    """
    from labkit.report.table import Table

    reader = open_data(Settings(data=data))
    made = " (synthesized: this folder has none)" if reader.boxes == "synthesized" else ""
    facts = {
        "images": len(reader),
        "boxes": reader.boxes + made,
        "manifest": reader.data_hash[:12] if reader.has_manifest else "unknown",
    }
    return Table([{"": name, data: value} for name, value in facts.items()])
