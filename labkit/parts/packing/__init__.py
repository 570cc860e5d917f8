"""How the images are stored: one file each, or packed together.

    write(samples, path) → files on a medium → open(path) → reader → (JPEG bytes, boxes)

A packing is one module with two functions and one line in `PACKINGS`.  Main
trap: readers travel into loader workers, so they hold no open file and no
Python object per image, which every worker would copy on first touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from labkit.contracts import Annotation
from labkit.parts.packing.folder import open_folder, write_folder


class Reader(Protocol):
    """An opened dataset; picklable, and cheap to fork."""

    root: Path
    """The folder that was opened, absolute."""
    paths: tuple[Path, ...]
    """The files whose page cache matters, absolute."""
    companions: tuple[Path, ...]
    """The other files that belong to the data: boxes, manifest; absolute."""
    boxes: str
    """Where the boxes come from: "coco" (stored) or "synthesized" (invented)."""
    manifest_hash: str
    """SHA-256 of manifest.json in hex, or "unknown" where there is none."""

    def __len__(self) -> int: ...

    def read(self, i: int) -> tuple[bytes, Annotation]:
        """Read image `i` as it is stored, and its boxes.

        Raises:
            IndexError: there is no image `i`.
            OSError: the file cannot be read; the message names it.
            ValueError: the file is not a JPEG; the message names it.
        """

    def verify(self, indices: Iterable[int]) -> list[str]:
        """Compare files with the manifest, byte for byte; this warms the page cache.

        Returns:
            One line per file that is missing or differs; empty where all is well.
        """


@dataclass(frozen=True, kw_only=True)
class Packing:
    """One way to store a dataset."""

    open: Callable[[Path], Reader]
    """Opens a dataset for reading."""
    write: Callable[[Iterable[tuple[str, bytes, Annotation]], Path], None]
    """Writes (file name, JPEG bytes, boxes) triples as a new dataset."""


PACKINGS: dict[str, Packing] = {
    "folder": Packing(open=open_folder, write=write_folder),
}
