"""One file of bytes, record after record, mapped into memory.

The simplest pack there is: what the others add to it is what they cost.  Main trap: reads of a
mapped file are page faults, which no count of read calls shows.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path

from labkit.contracts import Annotation
from labkit.parts.packing.index import Index
from labkit.parts.packing.shards import Add, Format


@contextlib.contextmanager
def create_raw(file: Path, stored: str) -> Iterator[Add]:
    """Write one shard; see `labkit.parts.packing.shards.Format`."""
    with file.open("wb") as opened:

        def add(name: str, record: bytes, annotation: Annotation, size_px: tuple) -> int:
            start = opened.tell()
            opened.write(record)
            return start

        yield add


class RawShard:
    """One shard, mapped; see `labkit.parts.packing.shards.Shard`."""

    def __init__(self, file: Path, index: Index) -> None:
        self._starts, self._ends = index.offsets, index.offsets + index.record_bytes
        with file.open("rb") as opened:
            self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, j: int) -> bytes:
        """Copy one record out of the map."""
        return self._map[self._starts[j] : self._ends[j]]

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


RAW = Format(name="raw", suffix=".raw", create=create_raw, open=RawShard)
