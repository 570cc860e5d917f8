"""Packs: a folder with an index and one or more files that hold many records.

    <name>/  images.lmdb   index.npz (names, boxes, sizes, checksums)   manifest.json

Opening checks that all files are there, their sizes and the index's hash; `verify` reads every
record. The manifest keeps the hash of the data that was packed.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit import install
from labkit.contracts import Annotation, Content, Skip, open_library
from labkit.files import write_whole
from labkit.parts.packing.boxes import Listing
from labkit.parts.packing.formats import Format, Read, Record
from labkit.parts.packing.manifest import MANIFEST, difference, read_manifest, sha256
from labkit.parts.packing.yuv420 import Yuv420Image

# Format history of a pack's manifest.json
#   1  shards with an index each
#   2  one index
PACK_SCHEMA = 2
INDEX = "index.npz"
AGAIN = "pack the data again"

# What is stored of an image (`Settings.storage_format`) -> what a reader returns for it.
#   jpeg, resized   a JPEG file                       bytes
#   pixels          (H, W, 3) uint8 RGB               array
#   sample          a preprocessor's arrays by name   dict, in a record as safetensors
#   small           a JPEG file for random crops      bytes
#   yuv420          planes for random crops           Yuv420Image
# Nothing is unpickled, as a pack may come from anyone.


def shorter_side_px(stored: str, input_px: int) -> int:
    """Return how long the shorter side of a stored image is at most.

    Args:
        stored: what is stored of it, other than its file.
        input_px: side of the model's square input.

    Returns:
        `input_px`; of what random crops are taken from, 8/7 of it: 256 for 224, the sides to which
        ImageNet's images are usually scaled.
    """
    return -(-input_px * 8 // 7) if stored in ("small", "yuv420") else input_px


# --- records --------------------------------------------------------------------------------


def encode(content: Content) -> tuple[bytes, tuple[int, int]]:
    """Return content as a record, and (height, width) of pixels and planes, else (0, 0)."""
    if isinstance(content, dict):
        save = _open_library("safetensors.numpy").save
        # Not ascontiguousarray, which gives a single number an axis.
        return save({name: np.asarray(a, order="C") for name, a in content.items()}), (0, 0)
    if isinstance(content, np.ndarray):
        return content.tobytes(), content.shape[:2]
    if isinstance(content, Yuv420Image):
        return content.planes.tobytes(), content.shape[:2]
    jpeg: Any = content
    return bytes(jpeg), (0, 0)


def decode(record: Record, stored: str, height_width: np.ndarray) -> Content:
    """Return a record as content.

    Args:
        record: from `encode`.
        stored: jpeg, resized, pixels, sample, small or yuv420.
        height_width: (2,) of pixels and planes.

    Raises:
        ValueError: it is not such a record.
    """
    if stored == "pixels":
        height, width = map(int, height_width)
        return np.frombuffer(record, np.uint8).reshape(height, width, 3)
    if stored == "yuv420":
        return Yuv420Image(np.frombuffer(record, np.uint8), *map(int, height_width))
    if stored == "sample":
        load = _open_library("safetensors.numpy").load
        try:
            return load(bytes(record))
        except Exception as error:  # the library has errors of its own
            raise ValueError(f"sample must be in safetensors' format, got {error}") from error
    return bytes(record)  # a JPEG, which decoders check


# --- writing --------------------------------------------------------------------------------


def write_pack(
    format: Format,
    samples: Iterable[tuple[str, Content, Annotation]],
    folder: Path,
    *,
    images: int,
    about: Mapping[str, Any],
) -> None:
    """Write a pack.

    Args:
        format: of the files.
        samples: (name, content, boxes) of each image.
        folder: an empty one, which the caller renames when the pack is whole.
        images: how many samples there are.
        about: what the manifest says of the data: stored, source_hash, boxes and more.

    Raises:
        Skip: the library that writes it is not installed.
        OSError: it cannot be written.
    """
    if format.needs:
        _open_library(format.needs)
    names: list[str] = []
    sizes, checksums, heights_widths, boxes = array("q"), array("q"), array("q"), array("q", [0])
    boxes_xyxy, category_ids = bytearray(), bytearray()
    original_sizes = array("q")

    def records() -> Iterator[tuple[str, bytes]]:
        for name, content, annotation in samples:
            record, height_width = encode(content)
            names.append(name)
            sizes.append(len(record))
            checksums.append(zlib.crc32(record))
            heights_widths.extend(height_width)
            boxes.append(boxes[-1] + len(annotation.category_ids))
            boxes_xyxy.extend(np.asarray(annotation.boxes_xyxy, np.float32).tobytes())
            category_ids.extend(np.asarray(annotation.category_ids, np.int64).tobytes())
            original_sizes.extend(annotation.size_px or (0, 0))
            yield name, record

    spans = format.write(folder, images, records())
    files = {file.name: {"bytes": file.stat().st_size} for file in sorted(folder.iterdir())}
    listing = Listing.of_names(
        names,
        box_ranges=np.stack([boxes[:-1], boxes[1:]], axis=1),
        boxes_xyxy=np.frombuffer(boxes_xyxy, np.float32).reshape(-1, 4),
        category_ids=np.frombuffer(category_ids, np.int64),
    )
    np.savez(
        folder / INDEX,
        **vars(listing),
        record_bytes=np.array(sizes, np.int64),
        checksums=np.array(checksums, np.uint32),
        heights_widths=np.array(heights_widths, np.int32).reshape(-1, 2),
        spans=np.empty((0, 0), np.int64) if spans is None else spans,
        original_sizes=np.array(original_sizes, np.int32).reshape(-1, 2),
    )
    index = (folder / INDEX).read_bytes()
    manifest = {
        "schema": 1,
        "pack_schema": PACK_SCHEMA,
        "packing": format.name,
        **about,
        "images": len(sizes),
        "bytes": sum(entry["bytes"] for entry in files.values()) + len(index),
        "files": {**files, INDEX: {"bytes": len(index), "sha256": sha256(index)}},
    }
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1))


# --- reading --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Index(Listing):
    """Names, boxes, sizes and checksums of a pack's records."""

    record_bytes: np.ndarray
    """(N,) int64, each record's size."""
    checksums: np.ndarray
    """(N,) uint32, its CRC-32."""
    heights_widths: np.ndarray
    """(N, 2) int32 pixels of stored pixels and planes, else 0."""
    spans: np.ndarray
    """What the format returned when it wrote."""
    original_sizes: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    """(N, 2) int32 width and height of the originals, 0 where the images are stored as they were;
    packs of earlier versions have none."""

    def original_size_px(self, i: int) -> tuple[int, int] | None:
        """Return width and height of an image's original; None where it is stored as it was."""
        if not len(self.original_sizes):
            return None
        width, height = self.original_sizes[i].tolist()
        return (width, height) if width else None


class PackReader:
    """An opened pack; see `labkit.contracts.Reader`.

    The first read in a process opens its files; they are pickled closed.
    """

    def __init__(
        self, format: Format, root: Path, manifest: Mapping, data_hash: str, index: Index
    ) -> None:
        self.format, self.root, self.data_hash = format, root, data_hash
        self.has_manifest = True
        self.index, self.image_bytes = index, index.record_bytes
        self.stored = str(manifest["stored"])
        self.boxes = str(manifest["boxes"])
        self.kind = str(manifest.get("kind", ""))
        self.paths = tuple(root / name for name in manifest["files"] if name != INDEX)
        self.companions = (root / INDEX, root / MANIFEST)
        self._opened: tuple[AbstractContextManager, Read] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def name(self, i: int) -> str:
        """Return the image's path in the data it came from."""
        return self.index.name(i)

    def where(self, i: int) -> str:
        """Return the file and the record of image `i`, for messages."""
        return f"{self.files_of([i])[0]}, record {i} ({self.name(i)})"

    def files_of(self, indices: Iterable[int]) -> tuple[Path, ...]:
        """List the files that hold these images."""
        per_file = self.format.images_per_file(len(self))
        return tuple(self.paths[number] for number in sorted({i // per_file for i in indices}))

    def extents_of(self, indices: Iterable[int]) -> list[tuple[Path, int, int]]:
        """List where each of these images lies: file, first byte and the one after the last.

        Raises:
            Skip: the format does not tell.
        """
        if not self.index.spans.size:
            raise Skip(
                "cache must be no percentage for a pack that does not tell where each image lies, "
                f"as {self.format.name}; choose packing folder, raw or tfrecord"
            )
        extents = []
        for i in indices:
            start, *_, stop = self.index.spans[i].tolist()
            extents.append((*self.files_of([i]), start, stop))
        return extents

    def read(self, i: int) -> tuple[Content, Annotation]:
        """Read one record; see `labkit.contracts.Reader.read`."""
        record = self._record(i)
        try:
            content = decode(record, self.stored, self.index.heights_widths[i])
        except ValueError as error:
            raise ValueError(f"{error} in {self.where(i)}") from error
        return content, self.index.annotation(i)

    def annotation(self, i: int) -> Annotation:
        """Return a record's boxes, which the index holds."""
        return self.index.annotation(i)

    def verify(self, indices: Iterable[int]) -> list[str]:
        """Compare records with their checksums; see `labkit.contracts.Reader.verify`."""
        if changed := difference(self.root / MANIFEST, {"sha256": self.data_hash}):
            return [changed]
        lines = []
        for i in indices:
            try:
                got, wanted = zlib.crc32(self._record(i)), self.index.checksums[i]
            except (OSError, ValueError) as error:
                lines.append(str(error))
                continue
            if got != wanted:
                lines.append(f"{self.where(i)} must have CRC-32 {wanted:08x}, got {got:08x}")
        return lines

    def _record(self, i: int) -> Record:
        try:
            opened = self._opened or self._open()  # held: another thread may replace it
            return opened[1](i)
        except (Skip, FileNotFoundError):
            raise
        except Exception as error:  # every library has errors of its own
            raise ValueError(
                f"pack must be readable, got {type(error).__name__}: {error} in {self.where(i)}; "
                f"{AGAIN}"
            ) from error

    def _open(self) -> tuple[AbstractContextManager, Read]:
        # Two threads may both open them; the files of one are then dropped.
        files = self.format.open(self.paths, self.index.spans)
        opened = self._opened = files, files.__enter__()
        return opened

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].__exit__(None, None, None)


def _open_library(name: str) -> Any:
    return open_library(name, install.extra("formats"))


def pack_format(path: Path) -> str | None:
    """Return the packing of a pack's folder; None for a folder that is no pack."""
    try:
        manifest = read_manifest(path)
    except ValueError:
        return None
    return manifest.get("packing", "folder" if "stored" in manifest else None)


def open_pack(format: Format, path: Path | str) -> PackReader:
    """Open a pack, and check that it is whole.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: it is no pack, one of another format or version, or damaged.
        Skip: the library that reads it is not installed.
    """
    root = Path(path).expanduser().absolute()
    how = f"pack it with: python data_scripts/pack_dataset.py DATA --to {format.name}"
    if not root.is_dir():
        raise FileNotFoundError(f"data must be an existing folder, got {str(path)!r}; {how}")
    manifest = read_manifest(root)
    if (packing := manifest.get("packing", "a folder of images")) != format.name:
        raise ValueError(
            f"data must be packed as {format.name}, got {packing} in {str(path)!r}; {how}"
        )
    if manifest.get("pack_schema") != PACK_SCHEMA:
        raise ValueError(
            f"pack_schema must be {PACK_SCHEMA}, got {manifest.get('pack_schema')} in "
            f"{root / MANIFEST}; {AGAIN}"
        )
    if format.needs:  # here, so that no loader worker waits for it in a timed epoch
        _open_library(format.needs)
    for name, entry in manifest["files"].items():
        if changed := difference(root / name, entry):
            raise ValueError(f"pack must be whole, but {changed}; {AGAIN}")
    with np.load(root / INDEX, allow_pickle=False) as arrays:
        index = Index(**arrays)
    return PackReader(format, root, manifest, sha256((root / MANIFEST).read_bytes()), index)
