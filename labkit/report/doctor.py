"""What this machine and a folder of images hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.experiments.catalog import hard_disk
from labkit.machine import hardware
from labkit.parts import decoding
from labkit.resolve import open_source
from labkit.settings import Settings

if TYPE_CHECKING:
    from labkit.report.table import Table


def doctor(data: str | None = None) -> Table:
    """Show what this machine has, and what will be skipped and why.

    Args:
        data: probe this folder's disk too, if it is there.
    """
    from labkit.report.table import Table

    folders = {"data": Path(data)} if data and Path(data).is_dir() else {}
    return Table([dict(zip(("", "here", "remark"), row)) for row in doctor_rows(folders)])


def doctor_rows(folders: Mapping[str, Path]) -> list[tuple[str, str, str]]:
    """List what this machine has, what will stand in for a hard disk, and which decoders work.

    Args:
        folders: name -> directory to look at, beside those of labkit.toml.
    """
    rows = hardware.doctor_report(folders)
    missing = decoding.why_not()
    return [
        *rows,
        ("hard disk", *hard_disk()),
        ("decoders", ", ".join(name for name in decoding.DECODERS if name not in missing), ""),
        *((f"decoder {name}", "skipped", reason) for name, reason in missing.items()),
    ]


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
