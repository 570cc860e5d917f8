"""Split: each image in several files of at most so many bytes.

    00000.split/  000000.0000 000000.0001 …  000001.0000 …

The same bytes in ever smaller files: what one more file costs, and nothing else.  Main trap: such
a shard is a folder, so its page cache, its copies and its size are those of the files in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from labkit.contracts import Annotation
from labkit.parts.packing.index import Index
from labkit.parts.packing.shards import Add, Format


@contextlib.contextmanager
def create_split(file: Path, stored: str, *, piece_bytes: int) -> Iterator[Add]:
    """Write one shard; see `labkit.parts.packing.shards.Format`."""
    file.mkdir()
    images = 0

    def add(name: str, record: bytes, annotation: Annotation, size_px: tuple) -> int:
        nonlocal images
        for piece in _pieces(file, images, len(record), piece_bytes):
            piece.write_bytes(record[:piece_bytes])
            record = record[piece_bytes:]
        images += 1
        return -1

    yield add


def pieces(file: Path, index: Index, j: int, *, piece_bytes: int) -> list[Path]:
    """List the files of record `j`, in order."""
    return _pieces(file, j, int(index.record_bytes[j]), piece_bytes)


class SplitShard:
    """A folder of pieces; nothing of it stays open."""

    def __init__(self, file: Path, index: Index, *, piece_bytes: int) -> None:
        self._files = partial(pieces, file, index, piece_bytes=piece_bytes)

    def read(self, j: int) -> bytes:
        """Open, read, close and join the pieces of one record."""
        return b"".join(piece.read_bytes() for piece in self._files(j))

    def close(self) -> None:
        """Nothing is open."""


def _pieces(folder: Path, j: int, record_bytes: int, piece_bytes: int) -> list[Path]:
    count = max(1, -(-record_bytes // piece_bytes))  # an empty record is an empty file
    return [folder / f"{j:06}.{number:04}" for number in range(count)]


def split(name: str, piece_bytes: int) -> Format:
    """Make a format of pieces of at most `piece_bytes`."""
    return Format(
        name=name,
        suffix=".split",
        create=partial(create_split, piece_bytes=piece_bytes),
        open=partial(SplitShard, piece_bytes=piece_bytes),
        pieces=partial(pieces, piece_bytes=piece_bytes),
    )


SPLITS = [split(f"split_{kib}k", kib << 10) for kib in (64, 16, 4)]
