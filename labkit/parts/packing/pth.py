"""Pth: torch's own files, each with a list of images as uint8 tensors.

    torch.save({images: [(bytes,) uint8, …], names, boxes_xyxy, category_ids, box_ends})

Read with `weights_only=True`, since a pickle can run any program, and memory-mapped, so that what
is not read stays on the disk.  Main trap: a file is written at once, from memory; so these shards
are small.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from labkit.contracts import Annotation
from labkit.parts.packing.index import Index, IndexBuilder
from labkit.parts.packing.shards import Add, Format


@contextlib.contextmanager
def create_pth(file: Path, stored: str) -> Iterator[Add]:
    """Write one shard; see `labkit.parts.packing.shards.Format`."""
    import torch

    images, described = [], IndexBuilder()

    def add(name: str, record: bytes, annotation: Annotation, size_px: tuple) -> int:
        images.append(torch.from_numpy(np.frombuffer(record, np.uint8).copy()))
        described.add(name, b"", annotation, -1, size_px)
        return -1

    yield add
    found = described.finish()
    names = [found.name(i) for i in range(len(found))]
    arrays = found.described(stored).items()
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays}
    content = io.BytesIO()  # torch turns the errors of a full disk into its own
    torch.save({"images": images, "names": names, **tensors}, content)
    file.write_bytes(content.getbuffer())


class PthShard:
    """One shard, mapped; see `labkit.parts.packing.shards.Shard`."""

    def __init__(self, file: Path, index: Index) -> None:
        import torch

        self._images = torch.load(file, mmap=True, weights_only=True)["images"]

    def read(self, j: int) -> bytes:
        """Copy one record out of its tensor."""
        return self._images[j].numpy().tobytes()

    def close(self) -> None:
        """Let go of the tensors, and so of the map."""
        self._images = []


PTH = Format(
    name="pth",
    suffix=".pth",
    create=create_pth,
    open=PthShard,
    needs=("torch",),
    shard_bytes=64 << 20,
)
