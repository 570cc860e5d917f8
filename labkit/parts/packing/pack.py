"""Pack: many images in a few files, read record by record, and how one is opened.

    <name>/  00000.tar 00000.npz  00001.tar 00001.npz …  manifest.json

Opening checks what is cheap: that all files are there, their sizes, and the indexes' hashes;
`verify` reads all.  Main trap: a pack that is whole may still be of other data; so it keeps the
hash of what it was made from.
"""

from __future__ import annotations

import importlib.util
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.contracts import Annotation
from labkit.parts.packing.content import FORMATS_EXTRA, Content, decode
from labkit.parts.packing.index import Index, join, load_index
from labkit.parts.packing.manifest import MANIFEST, difference, read_manifest, sha256
from labkit.parts.packing.shards import Format, Handles
from labkit.trial import Skip

# Format history of a pack's manifest.json
#   1  first version
PACK_SCHEMA = 1
NEEDED = ("pack_schema", "stored", "source_hash", "boxes", "shards", "files")


@dataclass(frozen=True, kw_only=True, eq=False)
class PackReader:
    """A pack, opened; see `labkit.parts.packing.Reader`."""

    root: Path
    format: str
    stored: str
    """jpeg, resized, pixels or sample; see `content`."""
    about: Mapping[str, object]
    """Its manifest, without the list of files."""
    manifest_hash: str
    index: Index
    shard_starts: np.ndarray
    """(S + 1,) int64, the first record of each shard, and the number of records."""
    shards: tuple[Path, ...]
    """In order; files, or folders of pieces."""
    handles: Handles

    def __len__(self) -> int:
        return len(self.index)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The shards, or where these are folders the files in them."""
        return self.files_of(range(len(self)))

    @property
    def boxes(self) -> str:
        """Where the boxes came from when it was packed."""
        return str(self.about["boxes"])

    @property
    def source_hash(self) -> str:
        """The manifest's hash of the data that was packed."""
        return str(self.about["source_hash"])

    @property
    def companions(self) -> tuple[Path, ...]:
        """The indexes and the manifest."""
        return (*(file.with_suffix(".npz") for file in self.shards), self.root / MANIFEST)

    @property
    def image_bytes(self) -> np.ndarray:
        """(N,) int64, what each image takes on disk."""
        return self.index.record_bytes

    def name(self, i: int) -> str:
        """Give the image's path in the data it came from."""
        return self.index.name(i)

    def where(self, i: int) -> str:
        """Say where image `i` lies, for messages."""
        return f"{self._file(i)[0]}, record {i} ({self.name(i)})"

    def files_of(self, indices: Iterable[int]) -> tuple[Path, ...]:
        """List the shards that hold these images, or their pieces."""
        if self.handles.format.pieces is not None:
            return tuple(piece for i in indices for piece in self._pieces(i))
        shards = np.searchsorted(self.shard_starts, np.fromiter(indices, np.int64), "right") - 1
        return tuple(self.shards[shard] for shard in np.unique(shards))

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
        """Give a record's boxes, which the index holds."""
        return self.index.annotation(i)

    def verify(self, indices: Iterable[int]) -> list[str]:
        """Compare records with their checksums; see `labkit.parts.packing.Reader.verify`."""
        changed = difference(self.root / MANIFEST, {"sha256": self.manifest_hash})
        if changed:
            return [changed]
        found = []
        for i in indices:
            try:
                record = self._record(i)
            except (OSError, ValueError) as error:
                found.append(str(error))
                continue
            if zlib.crc32(record) != self.index.checksums[i]:
                found.append(
                    f"{self.where(i)} must have CRC-32 {self.index.checksums[i]:08x}, "
                    f"got {zlib.crc32(record):08x}"
                )
        return found

    def _file(self, i: int) -> tuple[Path, int, int]:
        shard = int(np.searchsorted(self.shard_starts, i, "right")) - 1
        return self.shards[shard], shard, i - int(self.shard_starts[shard])

    def _pieces(self, i: int) -> list[Path]:
        file, shard, j = self._file(i)
        return self.handles.format.pieces(file, self.handles.indexes[shard], j)

    def _record(self, i: int) -> bytes:
        _, shard, j = self._file(i)
        try:
            record = self.handles.read(shard, j)
        except (Skip, FileNotFoundError):
            raise
        except Exception as error:  # every library has errors of its own
            raise ValueError(
                f"pack must be readable, got {type(error).__name__}: {error} in {self.where(i)}; "
                "pack the data again"
            ) from error
        if len(record) != self.index.record_bytes[i]:
            raise ValueError(
                f"record must have {self.index.record_bytes[i]} bytes, got {len(record)} "
                f"in {self.where(i)}; pack the data again"
            )
        return record


def is_pack(path: Path | str) -> bool:
    """Say whether a folder is a pack of any format."""
    return pack_format(path) is not None


def pack_format(path: Path | str) -> str | None:
    """Name the format that a folder is packed in; None where it is no pack."""
    manifest = read_json(Path(path).expanduser() / MANIFEST)
    return manifest.get("packing") if isinstance(manifest, dict) else None


def open_pack(format: Format, path: Path | str) -> PackReader:
    """Open a pack, and check that it is whole.

    Args:
        format: what it should be packed in.
        path: its folder.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: it is no pack, one of another format or version, or damaged.
        Skip: the library that reads it is not installed.
    """
    root = Path(path).expanduser().absolute()
    if not root.is_dir():
        raise FileNotFoundError(
            f"data must be an existing folder, got {str(path)!r}; "
            f"make it with: python data_scripts/pack_dataset.py DATA --to {format.name}"
        )
    manifest = read_manifest(root)
    if manifest is None or manifest.get("packing") != format.packed_as:
        found = "another folder" if manifest is None else manifest.get("packing", "folder")
        raise ValueError(
            f"data must be packed as {format.packed_as}, got {found} in {str(path)!r}; "
            f"pack it with: python data_scripts/pack_dataset.py DATA --to {format.name}"
        )
    for key in NEEDED:
        if key not in manifest:
            raise ValueError(
                f"{MANIFEST} must have {key}, got {root / MANIFEST} without; pack the data again"
            )
    if manifest["pack_schema"] > PACK_SCHEMA:
        raise ValueError(
            f"pack_schema must be at most {PACK_SCHEMA}, got {manifest['pack_schema']} in "
            f"{root / MANIFEST}; update labkit to read this pack"
        )
    require(format)
    for name, entry in manifest["files"].items():
        if changed := difference(root / name, entry):
            raise ValueError(f"pack must be whole, but {changed}; pack the data again")
    files = tuple(root / shard for shard in manifest["shards"])
    entries = [manifest["files"].get(shard, {}) for shard in manifest["shards"]]
    indexes = [load_index(file.with_suffix(".npz")) for file in files]
    return PackReader(
        root=root,
        format=format.name,
        stored=manifest["stored"],
        about={key: value for key, value in manifest.items() if key != "files"},
        manifest_hash=sha256((root / MANIFEST).read_bytes()),
        index=join(indexes),
        shard_starts=np.cumsum([0, *map(len, indexes)]),
        shards=files,
        handles=Handles(format, files, indexes, [entry.get("bytes") for entry in entries]),
    )


def require(format: Format) -> None:
    """Skip where a library of a format is not installed.

    Raises:
        Skip: naming the line that installs it.
    """
    for module in format.needs:
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            raise Skip(f"{format.name} needs {package}, which is not installed; {FORMATS_EXTRA}")


def load_library(format: Format) -> None:
    """Import the libraries of a format; errors as `require`'s."""
    require(format)
    for module in format.needs:
        importlib.import_module(module)


def read_json(path: Path) -> object:
    """Read a JSON file; None where there is none, or it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
