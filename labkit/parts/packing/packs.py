"""Packs: a folder with an index and one or more files of many records.

    <name>/  images.lmdb   index.npz (names, boxes, sizes, checksums)   manifest.json

Opening checks what is cheap: that all files are there, their sizes, and the index's hash; `verify`
reads all.  The manifest keeps the hash of the data that was packed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import weakref
import zipfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.contracts import Annotation, Skip
from labkit.files import write_whole
from labkit.parts.packing.content import FORMATS_EXTRA, Content, decode, encode
from labkit.parts.packing.formats import FORKING, Format, Opened
from labkit.parts.packing.listing import Listing, ListingBuilder
from labkit.parts.packing.manifest import MANIFEST, difference, read_manifest, sha256

# Format history of a pack's manifest.json
#   1  shards with an index each
#   2  one index
PACK_SCHEMA = 2
INDEX = "index.npz"
AGAIN = "pack the data again"


# --- writing --------------------------------------------------------------------------------


def write_pack(
    format: Format,
    samples: Iterable[tuple[str, Content, Annotation]],
    folder: Path,
    *,
    images: int,
    about: Mapping[str, object],
) -> int:
    """Write a pack.

    Args:
        format: how.
        samples: (name, content, boxes) of each image.
        folder: an empty one; whoever calls this names it when the pack is whole.
        images: how many samples there are.
        about: what the manifest says of the data: stored, source_hash, boxes and more.

    Returns:
        The bytes of all its files but the manifest.

    Raises:
        Skip: the library that writes it is not installed.
        OSError: it cannot be written.
    """
    require(format)
    builder, sizes, checksums = ListingBuilder(), array("q"), array("q")
    heights_widths = array("q")

    def records() -> Iterator[tuple[str, bytes]]:
        for name, content, annotation in samples:
            record, height_width = encode(content)
            builder.add(name, annotation)
            sizes.append(len(record))
            checksums.append(zlib.crc32(record))
            heights_widths.extend(height_width)
            yield name, record

    spans = format.write(folder, images, records())
    files = {file.name: {"bytes": file.stat().st_size} for file in sorted(folder.iterdir())}
    np.savez(
        folder / INDEX,
        **builder.listing().arrays(),
        record_bytes=np.array(sizes, np.int64),
        checksums=np.array(checksums, np.uint32),
        heights_widths=np.array(heights_widths, np.int32).reshape(-1, 2),
        spans=np.empty((0, 0), np.int64) if spans is None else spans,
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
    return manifest["bytes"]


# --- reading --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Index(Listing):
    """What a pack's records are called, and how they are read."""

    record_bytes: np.ndarray
    """(N,) int64, each record's size."""
    checksums: np.ndarray
    """(N,) uint32, its CRC-32."""
    heights_widths: np.ndarray
    """(N, 2) int32 pixels of stored pixels, else 0."""
    spans: np.ndarray
    """What the format returned when it wrote."""


class PackReader:
    """A pack, opened; see `labkit.parts.packing.Reader`.

    Its files are opened by the first read of a process, and travel closed to other processes.
    """

    def __init__(
        self, format: Format, root: Path, manifest: Mapping, manifest_hash: str, index: Index
    ) -> None:
        self.format, self.root, self.manifest_hash = format, root, manifest_hash
        self.index = index
        self.stored = str(manifest["stored"])
        self.boxes = str(manifest["boxes"])
        self.source_hash = str(manifest["source_hash"])
        self.paths = tuple(root / name for name in manifest["files"] if name != INDEX)
        self._opened: Opened | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}

    @property
    def companions(self) -> tuple[Path, ...]:
        """The index and the manifest."""
        return (self.root / INDEX, self.root / MANIFEST)

    @property
    def image_bytes(self) -> np.ndarray:
        """(N,) int64, what each image takes on disk."""
        return self.index.record_bytes

    def name(self, i: int) -> str:
        """Return the image's path in the data it came from."""
        return self.index.name(i)

    def where(self, i: int) -> str:
        """Say where image `i` lies, for messages."""
        return f"{self.files_of([i])[0]}, record {i} ({self.name(i)})"

    def files_of(self, indices: Iterable[int]) -> tuple[Path, ...]:
        """List the files that hold these images."""
        per_file = self.format.images_per_file(len(self))
        return tuple(self.paths[number] for number in sorted({i // per_file for i in indices}))

    def read(self, i: int) -> tuple[Content, Annotation]:
        """Read one record; see `labkit.parts.packing.Reader.read`."""
        if not 0 <= i < len(self):
            raise IndexError(f"i must be from 0 to {len(self) - 1}, got {i}")
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
        """Compare records with their checksums; see `labkit.parts.packing.Reader.verify`."""
        if changed := difference(self.root / MANIFEST, {"sha256": self.manifest_hash}):
            return [changed]
        found = []
        for i in indices:
            try:
                got, wanted = zlib.crc32(self._record(i)), self.index.checksums[i]
            except (OSError, ValueError) as error:
                found.append(str(error))
                continue
            if got != wanted:
                found.append(f"{self.where(i)} must have CRC-32 {wanted:08x}, got {got:08x}")
        return found

    def _record(self, i: int) -> bytes:
        try:
            if self.format.closed_before_fork:
                with FORKING:  # nobody may fork while it is open
                    record = self._files().read(i)
            else:
                record = self._files().read(i)
        except (Skip, FileNotFoundError):
            raise
        except Exception as error:  # every library has errors of its own
            raise ValueError(
                f"pack must be readable, got {type(error).__name__}: {error} in {self.where(i)}; "
                f"{AGAIN}"
            ) from error
        if len(record) != self.index.record_bytes[i]:
            raise ValueError(
                f"record must have {self.index.record_bytes[i]} bytes, got {len(record)} "
                f"in {self.where(i)}; {AGAIN}"
            )
        return record

    def _files(self) -> Opened:
        if self._opened is None:
            with FORKING:  # two threads would open the same file twice
                if self._opened is None:
                    if self.format.closed_before_fork:
                        _close_before_forks(self.format)
                        _TO_CLOSE.add(self)
                    self._opened = self.format.open(self.paths, self.index.spans)
        return self._opened

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


_TO_CLOSE: weakref.WeakSet[PackReader] = weakref.WeakSet()


if hasattr(os, "register_at_fork"):
    # A fork waits until no file is being opened, or its child would find `FORKING` held for ever.
    os.register_at_fork(
        before=FORKING.acquire, after_in_parent=FORKING.release, after_in_child=FORKING.release
    )


def _close_all() -> None:
    FORKING.acquire()
    for reader in list(_TO_CLOSE):
        reader.close()


@functools.cache
def _close_before_forks(format: Format) -> None:
    # Before a fork, who registered last is asked first.  h5py then takes a lock that its reads
    # need; were it asked before us, we would wait for a read that waits for this lock.
    load_library(format)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_close_all, after_in_parent=FORKING.release, after_in_child=FORKING.release
        )


def pack_format(path: Path) -> str | None:
    """Name the format that a folder is packed in; None where it is no pack."""
    try:
        return json.loads((path / MANIFEST).read_bytes()).get("packing")
    except (OSError, ValueError, AttributeError):
        return None


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
    manifest = read_manifest(root) or {"packing": "another folder"}
    if manifest.get("packing") != format.name:
        found = manifest.get("packing", "folder")
        raise ValueError(
            f"data must be packed as {format.name}, got {found} in {str(path)!r}; {how}"
        )
    if manifest.get("pack_schema") != PACK_SCHEMA:
        raise ValueError(
            f"pack_schema must be {PACK_SCHEMA}, got {manifest.get('pack_schema')} in "
            f"{root / MANIFEST}; {AGAIN}"
        )
    require(format)
    for name, entry in manifest["files"].items():
        if changed := difference(root / name, entry):
            raise ValueError(f"pack must be whole, but {changed}; {AGAIN}")
    try:
        with np.load(root / INDEX, allow_pickle=False) as arrays:
            index = Index(**arrays)
    except (ValueError, KeyError, TypeError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(
            f"index must be readable, got {root / INDEX} ({error}); {AGAIN}"
        ) from error
    return PackReader(format, root, manifest, sha256((root / MANIFEST).read_bytes()), index)


def require(format: Format) -> None:
    """Skip where a library of a format is not installed.

    Raises:
        Skip: naming the line that installs it.
    """
    for module in format.needs:
        if importlib.util.find_spec(module) is None:
            raise Skip(f"{format.name} needs {module}, which is not installed; {FORMATS_EXTRA}")


def load_library(format: Format) -> None:
    """Import the libraries of a format; errors as `require`'s."""
    require(format)
    for module in format.needs:
        importlib.import_module(module)
