"""How the images are stored: one file each, or packed together.

    samples → write → files on a medium → open(path) → reader → (content, boxes)

A packing is a folder of files or a `Format` of a pack, and one line in `PACKINGS`.  Main
trap: readers travel into loader workers, so they hold no open file and no
Python object per image, which every worker would copy on first touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from labkit.contracts import Annotation
from labkit.parts.packing.content import Content
from labkit.parts.packing.folder import open_folder, write_folder
from labkit.parts.packing.hdf5 import HDF5, HDF5_ONE_HANDLE
from labkit.parts.packing.index import JPEG, PIXELS, RESIZED, SAMPLE
from labkit.parts.packing.lmdb_env import LMDB, LMDB_ONE_HANDLE, LMDB_READAHEAD
from labkit.parts.packing.pack import is_pack, load_library, open_pack, pack_format
from labkit.parts.packing.pack_writing import write_pack
from labkit.parts.packing.pth import PTH
from labkit.parts.packing.raw import RAW
from labkit.parts.packing.remote import RemoteFolder, at_url, open_remote
from labkit.parts.packing.shards import Format
from labkit.parts.packing.split import SPLITS
from labkit.parts.packing.tar import TAR
from labkit.parts.packing.tfrecord import TFRECORD, TFRECORD_4M
from labkit.places import Place, is_url

__all__ = [
    "JPEG", "PACKINGS", "PIXELS", "RESIZED", "SAMPLE", "Content", "Packing", "Reader",
    "RemoteFolder", "at_url", "is_pack", "pack_format",
]  # fmt: skip


class Reader(Protocol):
    """An opened dataset; picklable, and cheap to fork."""

    root: Place
    """The folder that was opened, absolute; or its URL."""
    paths: tuple[Path, ...]
    """The files that hold the images, and whose page cache matters; absolute.  None at a URL."""
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
        """Give the image's path in its folder, or in the folder it was packed from."""

    def where(self, i: int) -> str:
        """Say where image `i` lies, for messages."""

    def files_of(self, indices: Iterable[int]) -> tuple[Path, ...]:
        """List the files that hold these images."""

    def read(self, i: int) -> tuple[Content, Annotation]:
        """Read image `i` as it is stored, and its boxes.

        Returns:
            JPEG bytes, (H, W, 3) uint8 pixels or a finished sample's arrays by name.

        Raises:
            IndexError: there is no image `i`.
            OSError: the file cannot be read; the message names it.
            ValueError: it is damaged; the message names the file, and the record in a pack.
            RemoteFailed: at a URL, the way there failed in every try; see `fetching`.
        """

    def annotation(self, i: int) -> Annotation:
        """Give image `i`'s boxes without reading it; synthesized ones may be in another unit."""

    def verify(self, indices: Iterable[int]) -> list[str]:
        """Compare images with the manifest, byte for byte; this warms the page cache.

        Returns:
            One line per image that is missing or differs; empty where all is well.
        """


@dataclass(frozen=True, kw_only=True)
class Packing:
    """One way to store a dataset."""

    open: Callable[[Place], Reader]
    """Opens a dataset for reading; only a folder of files may be at a URL."""
    write: Callable[..., int]
    """(samples, path, *, about) writes (name, content, boxes) triples as a new dataset, and gives
    its bytes; see `pack_writing.write_pack` for the arguments."""
    stores: tuple[str, ...] = (JPEG, RESIZED, PIXELS, SAMPLE)
    """What it can store of an image."""
    ready: Callable[[], None] = lambda: None
    """Imports the library that it reads and writes with, so that no clock and no loader worker
    waits for that; raises Skip where it is not installed."""
    packed_as: str = ""
    """The format whose packs it reads, where it is a variant of another; empty for its own."""


def _open_folder(where: Place) -> Reader:
    return open_remote(where) if is_url(where) else open_folder(where)


def _write_folder(
    samples: Callable[[int], Iterable[tuple[str, bytes, Annotation]]],
    path: Path,
    *,
    about: Mapping[str, object],
) -> int:
    inside = ((name.removeprefix("images/"), *rest) for name, *rest in samples(0))
    return write_folder(inside, path, about=about)


def _pack(format: Format) -> Packing:
    return Packing(
        open=partial(open_pack, format),
        write=partial(write_pack, format),
        ready=partial(load_library, format),
        packed_as=format.variant_of,
    )


FORMATS: tuple[Format, ...] = (
    RAW, TAR, TFRECORD, TFRECORD_4M, HDF5, LMDB, PTH,
    HDF5_ONE_HANDLE, LMDB_READAHEAD, LMDB_ONE_HANDLE, *SPLITS,
)  # fmt: skip
PACKINGS: dict[str, Packing] = {
    "folder": Packing(open=_open_folder, write=_write_folder, stores=(JPEG, RESIZED)),
    **{format.name: _pack(format) for format in FORMATS},
}
