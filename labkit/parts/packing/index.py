"""Index: which records a shard of a pack holds, what they are called, and their boxes.

    one .npz per shard: names ─ boxes ─ sizes ─ checksums, in a few arrays

The same for every format, so that a comparison of formats compares how they give back an image's
bytes, and nothing else.  Main trap: a Python object per record would be copied into every loader
worker as soon as its reference count changes.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.contracts import Annotation
from labkit.files import whole

# What is stored of an image -> what a reader gives for it.
JPEG, RESIZED, PIXELS, SAMPLE = "jpeg", "resized", "pixels", "sample"


@dataclass(frozen=True, kw_only=True, eq=False)
class Index:
    """The records of one shard, or of several one after the other."""

    name_bytes: bytes
    """The images' paths in the data they came from, encoded for the file system, joined."""
    name_ends: np.ndarray
    """(N + 1,) int64, where each name ends; the first entry is 0."""
    box_ends: np.ndarray
    """(N + 1,) int64, likewise in the next two."""
    boxes_xyxy: np.ndarray
    """(M, 4) float32 boxes of all images."""
    category_ids: np.ndarray
    """(M,) int64."""
    record_bytes: np.ndarray
    """(N,) int64, each record's size."""
    offsets: np.ndarray
    """(N,) int64, where it starts in its shard's file; -1 where the format looks it up itself."""
    checksums: np.ndarray
    """(N,) uint32, its CRC-32."""
    heights_widths: np.ndarray
    """(N, 2) int32 pixels of stored pixels, else 0."""

    def __len__(self) -> int:
        return len(self.record_bytes)

    def name(self, i: int) -> str:
        """Give a record's name: the image's path in the data it came from."""
        return os.fsdecode(self.name_bytes[self.name_ends[i] : self.name_ends[i + 1]])

    def annotation(self, i: int) -> Annotation:
        """Give an image's boxes, as copies: a part that flips boxes in place changes no others."""
        first, end = self.box_ends[i], self.box_ends[i + 1]
        return Annotation(
            boxes_xyxy=self.boxes_xyxy[first:end].copy(),
            category_ids=self.category_ids[first:end].copy(),
        )

    def described(self, stored: str) -> dict[str, np.ndarray]:
        """Give what a shard's own format keeps for programs that do not know this index."""
        kept = ["boxes_xyxy", "category_ids", "box_ends"]
        kept += ["heights_widths"] if stored == PIXELS else []
        return {name: getattr(self, name) for name in kept}


class IndexBuilder:
    """Gathers the index of the shard that is being written, without an object per record."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._names, self._boxes, self._categories = bytearray(), bytearray(), bytearray()
        # Where names and boxes end; a row of bytes, offset, checksum, height, width each.
        self._name_ends, self._box_ends = array("q", [0]), array("q", [0])
        self._rows = array("q")

    def add(
        self, name: str, record: bytes, annotation: Annotation, offset: int, size_px: tuple
    ) -> None:
        """Note one record; `size_px` is (height, width) of stored pixels, else (0, 0)."""
        self._names += os.fsencode(name)
        self._name_ends.append(len(self._names))
        self._boxes += np.asarray(annotation.boxes_xyxy, np.float32).tobytes()
        self._categories += np.asarray(annotation.category_ids, np.int64).tobytes()
        self._box_ends.append(self._box_ends[-1] + len(annotation.boxes_xyxy))
        self._rows.extend((len(record), offset, zlib.crc32(record), *size_px))

    def __len__(self) -> int:
        return len(self._name_ends) - 1

    def finish(self) -> Index:
        """Put all into arrays, and begin anew: two copies would be held at the end."""
        rows = np.array(self._rows, np.int64).reshape(-1, 5)
        index = Index(
            name_bytes=bytes(self._names),
            name_ends=np.array(self._name_ends, np.int64),
            box_ends=np.array(self._box_ends, np.int64),
            boxes_xyxy=np.frombuffer(self._boxes, np.float32).reshape(-1, 4),
            category_ids=np.frombuffer(self._categories, np.int64),
            record_bytes=rows[:, 0],
            offsets=rows[:, 1],
            checksums=rows[:, 2].astype(np.uint32),
            heights_widths=rows[:, 3:].astype(np.int32),
        )
        self._begin()
        return index


def save_index(index: Index, path: Path) -> None:
    """Write an index as .npz, whole or not at all."""
    arrays = {name: value for name, value in index.__dict__.items() if name != "name_bytes"}
    with whole(path) as part, part.open("wb") as file:
        np.savez(file, name_bytes=np.frombuffer(index.name_bytes, np.uint8), **arrays)


def load_index(path: Path) -> Index:
    """Read what `save_index` wrote.

    Raises:
        OSError: there is no such file.
        ValueError: it is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            values = {name: arrays[name] for name in arrays.files}
        return Index(**{**values, "name_bytes": values["name_bytes"].tobytes()})
    except (ValueError, KeyError, TypeError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(
            f"index must be what was written with its pack, got {path} ({error}); pack again"
        ) from error


def join(indexes: Sequence[Index]) -> Index:
    """Put the indexes of several shards one after the other."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(index, name) for index in indexes])

    def ends(name: str) -> np.ndarray:
        counts = [np.diff(getattr(index, name)) for index in indexes]
        return np.cumsum(np.concatenate([[0], *counts]))

    plain = ("boxes_xyxy", "category_ids", "record_bytes", "offsets", "checksums", "heights_widths")
    return Index(
        name_bytes=b"".join(index.name_bytes for index in indexes),
        name_ends=ends("name_ends"),
        box_ends=ends("box_ends"),
        **{name: joined(name) for name in plain},
    )
