"""Tar: one archive per shard, in WebDataset's layout.

    00003.tar: 00003-000000.jpg 00003-000000.json  00003-000001.jpg 00003-000001.json …

A sample is the files that share a key, and the key ends at the first dot.  So the image's own name
lies in the JSON, beside its boxes.  Main trap: an archive has no table of contents; without the
index, the last record is found only by walking over all the others.

Source: the WebDataset format, github.com/webdataset/webdataset.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from labkit.contracts import Annotation
from labkit.parts.packing.content import boxes_json
from labkit.parts.packing.index import JPEG, PIXELS, RESIZED, SAMPLE, Index
from labkit.parts.packing.shards import Add, Format, OpenFile

EXTENSIONS = {JPEG: "jpg", RESIZED: "jpg", PIXELS: "npy", SAMPLE: "safetensors"}


@contextlib.contextmanager
def create_tar(file: Path, stored: str) -> Iterator[Add]:
    """Write one shard; see `labkit.parts.packing.shards.Format`."""
    shard = file.name.lstrip(".").partition(".")[0]  # keys are unique in the whole pack
    with (
        file.open("wb") as opened,
        # GNU's headers have one block for a file of any size.
        tarfile.open(fileobj=opened, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        samples = 0

        def put(extension: str, content: bytes) -> None:
            entry = tarfile.TarInfo(f"{shard}-{samples:06}.{extension}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
            archive.members.clear()  # it would keep them all

        def add(name: str, record: bytes, annotation: Annotation, size_px: tuple) -> int:
            nonlocal samples
            header = npy_header(size_px) if stored == PIXELS else b""
            start = opened.tell() + tarfile.BLOCKSIZE + len(header)
            put(EXTENSIONS[stored], header + record)
            put("json", boxes_json(name, annotation).encode())
            samples += 1
            return start

        yield add


def npy_header(size_px: tuple[int, int]) -> bytes:
    """Give what stands before the pixels of an (H, W, 3) uint8 array in a .npy file."""
    header = io.BytesIO()
    shape = (*map(int, size_px), 3)
    about = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    return header.getvalue()


class TarShard:
    """One shard, opened; see `labkit.parts.packing.shards.Shard`."""

    def __init__(self, file: Path, index: Index) -> None:
        self._starts, self._record_bytes = index.offsets, index.record_bytes
        self._file = OpenFile(file)

    def read(self, j: int) -> bytes:
        """Read one record where the index says that it starts."""
        return self._file.read(int(self._record_bytes[j]), at=int(self._starts[j]))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


TAR = Format(name="tar", suffix=".tar", create=create_tar, open=TarShard)
