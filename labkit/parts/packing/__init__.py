"""How the images are stored: one file each, or packed together.

    samples → write → files on a medium → open(path) → reader → (content, boxes)

A packing is a folder of files or a `Format` of a pack, and one line in `PACKINGS`. Readers are
pickled for loader workers, so they hold no open file and no Python object per image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from labkit.contracts import Annotation
from labkit.parts.packing.folder import FolderReader, open_folder, write_folder
from labkit.parts.packing.formats import HDF5, LMDB, PTH, RAW, TFRECORD
from labkit.parts.packing.packs import (
    JPEG,
    PIXELS,
    RESIZED,
    SAMPLE,
    Content,
    open_pack,
    pack_format,
    write_pack,
)

__all__ = [
    "JPEG", "PACKINGS", "PIXELS", "RESIZED", "SAMPLE", "Content", "FolderReader", "Packing",
    "Reader", "pack_format",
]  # fmt: skip


class Reader(Protocol):
    """An opened dataset; picklable, and forked without copies."""

    root: Path
    """The folder that was opened, absolute."""
    paths: tuple[Path, ...]
    """The files that hold the images, and whose page cache matters; absolute."""
    companions: tuple[Path, ...]
    """The other files that belong to the data: boxes, manifest; absolute."""
    stored: str
    """What is stored of an image: jpeg, resized, pixels or sample."""
    boxes: str
    """Where the boxes come from: "coco" (stored) or "synthesized" (invented)."""
    manifest_hash: str
    """SHA-256 of manifest.json in hex, or "unknown" where there is none."""
    source_hash: str
    """The manifest's hash of the data that this was made from; else its own."""
    image_bytes: np.ndarray
    """(N,) int64, what each image takes on the medium."""

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """Return the image's path in its folder, or in the folder it was packed from."""

    def where(self, i: int) -> str:
        """Return the file of image `i`, and the record in a pack, for messages."""

    def files_of(self, indices: Iterable[int]) -> tuple[Path, ...]:
        """List the files that hold these images."""

    def extents_of(self, indices: Iterable[int]) -> list[tuple[Path, int, int]]:
        """List where each of these images lies: file, first byte and the one after the last.

        Raises:
            Skip: the format does not tell.
        """

    def close(self) -> None:
        """Close the files; the next read opens them again."""

    def read(self, i: int) -> tuple[Content, Annotation]:
        """Read image `i` as it is stored, and its boxes.

        Returns:
            JPEG bytes, (H, W, 3) uint8 pixels or a finished sample's arrays by name.

        Raises:
            IndexError: there is no image `i`.
            OSError: the file cannot be read; the message names it.
            ValueError: it is damaged; the message names the file, and the record in a pack.
        """

    def annotation(self, i: int) -> Annotation:
        """Return image `i`'s boxes without reading it; synthesized ones may be in another unit."""

    def verify(self, indices: Iterable[int]) -> list[str]:
        """Compare images with the manifest, byte for byte; this warms the page cache.

        Returns:
            One line per image that is missing or differs; empty where all is well.
        """


@dataclass(frozen=True, kw_only=True)
class Packing:
    """One way to store a dataset."""

    open: Callable[[Path], Reader]
    """Opens a dataset for reading, and imports the library that this takes; raises Skip where it is
    not installed."""
    write: Callable[..., int]
    """(samples, folder, *, images, about) writes (name, content, boxes) triples into an empty
    folder, and returns their bytes; see `packs.write_pack` for the arguments."""
    stores: tuple[str, ...] = (JPEG, RESIZED, PIXELS, SAMPLE)
    """What it can store of an image; see `packs`."""


PACKINGS: dict[str, Packing] = {
    "folder": Packing(open=open_folder, write=write_folder, stores=(JPEG, RESIZED)),
    **{
        format.name: Packing(open=partial(open_pack, format), write=partial(write_pack, format))
        for format in (RAW, PTH, HDF5, LMDB, TFRECORD)
    },
}
