"""HDF5: one file per shard, the images as byte strings of any length in one dataset.

    images (N,) uint8 of variable length ─ names (N,) ─ boxes_xyxy (M, 4) ─ category_ids (M,) ─
    box_ends (N + 1,), between which entries an image's boxes lie ─ heights_widths (N, 2) of pixels

Main trap: an open file that crosses a fork.  Parent and child then share what the library keeps of
the file, which it does not expect; `hdf5_one_handle` does it all the same, to be measured.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from labkit.contracts import Annotation
from labkit.parts.packing.index import Index, IndexBuilder
from labkit.parts.packing.shards import Add, Format

ROWS = 1024  # by which the dataset grows; one has 16 bytes that say where its image lies


@contextlib.contextmanager
def create_hdf5(file: Path, stored: str) -> Iterator[Add]:
    """Write one shard; see `labkit.parts.packing.shards.Format`."""
    import h5py

    described = IndexBuilder()
    with _Kept(file, "w+") as kept, h5py.File(kept, "w") as opened:
        images = opened.create_dataset(
            "images", (0,), maxshape=(None,), chunks=(ROWS,), dtype=h5py.vlen_dtype(np.uint8)
        )

        def add(name: str, record: bytes, annotation: Annotation, size_px: tuple) -> int:
            if len(described) == len(images):
                images.resize((len(images) + ROWS,))
            images[len(described)] = np.frombuffer(record, np.uint8)
            described.add(name, b"", annotation, -1, size_px)
            kept.check()
            return -1

        yield add
        found = described.finish()
        images.resize((len(found),))
        names = opened.create_dataset("names", (len(found),), dtype=h5py.string_dtype())
        for first in range(0, len(found), ROWS):  # not all in memory at once
            rows = range(len(found))[first : first + ROWS]
            names[first : first + ROWS] = [os.fsencode(found.name(i)) for i in rows]
        for name, array in found.described(stored).items():
            opened[name] = array


class _Kept(io.FileIO):
    """A file that keeps a failure to itself until the library has closed it.

    HDF5 crashes the whole process where it cannot write while it closes a file.
    """

    _error: OSError | None = None

    def write(self, content: memoryview) -> int:
        left = memoryview(content)
        try:
            while left and self._error is None:
                left = left[super().write(left) :]  # a disk that fills up takes a part
        except OSError as error:
            self._error = error
        return len(content)

    def truncate(self, size_bytes: int | None = None) -> int:
        try:
            return super().truncate(size_bytes)
        except OSError as error:
            self._error = self._error or error
            return size_bytes

    def check(self) -> None:
        """Raise what was kept."""
        if self._error is not None:
            raise self._error

    def __exit__(self, kind: type | None, *rest: object) -> None:
        super().__exit__(kind, *rest)
        if kind is None:
            self.check()


class HDF5Shard:
    """One shard, opened; see `labkit.parts.packing.shards.Shard`."""

    def __init__(self, file: Path, index: Index) -> None:
        import h5py

        # Nobody writes a finished pack, and some network file systems have no locks.
        self._file = h5py.File(file, "r", locking=False)
        self._images = self._file["images"]

    def read(self, j: int) -> bytes:
        """Read one entry of the dataset."""
        return self._images[j].tobytes()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


HDF5 = Format(
    name="hdf5",
    suffix=".h5",
    create=create_hdf5,
    open=HDF5Shard,
    needs=("h5py",),
    handles="closed before a fork",
)
HDF5_ONE_HANDLE = replace(HDF5, name="hdf5_one_handle", variant_of="hdf5", handles="shared")
