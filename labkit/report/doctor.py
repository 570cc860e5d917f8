"""What this machine and a folder of images hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labkit.experiments.catalog import hard_disk
from labkit.machine import hardware
from labkit.parts import decoding
from labkit.resolve import open_source
from labkit.settings import Settings

if TYPE_CHECKING:
    from labkit.report.table import Table


def doctor(data: Path | str | None = None, **folders: Path | str) -> Table:
    """Show what this machine has, and what will be skipped and why.

    Args:
        data: probe this folder's disk too, unless it is a URL.
        **folders: medium -> a folder on it, beside those of labkit.toml.
    """
    from labkit.report.table import Table

    if data and "://" not in str(data):
        folders = {"data": data, **folders}
    missing = decoding.why_not()
    found = ", ".join(name for name in decoding.DECODERS if name not in missing)
    rows = [
        *hardware.doctor_report(folders),
        ("hard disk", *hard_disk()),
        ("decoders", found, ""),
        *((f"decoder {name}", "skipped", reason) for name, reason in missing.items()),
    ]
    return Table([dict(zip(("", "here", "remark"), row)) for row in rows])


def describe_data(data: str) -> Table:
    """Show what a folder of images holds.

    Args:
        data: a COCO layout, or any tree of .jpg/.jpeg files.

    Raises:
        ValueError: there are no images.
    """
    from labkit.report.table import Table

    reader = open_source(Settings(data=data))
    made = " (synthesized: this folder has none)" if reader.boxes == "synthesized" else ""
    facts = {
        "images": len(reader),
        "boxes": reader.boxes + made,
        "manifest": reader.manifest_hash[:12],
    }
    return Table([{"": name, data: value} for name, value in facts.items()])
