"""Originals: what a copy is made of, file by file, whether it lies here or at a URL.

    reader ─▶ {file of the copy: Original} ─ save_to(part) ─▶ checked against the manifest

Main trap: asking a file far away whether it changed costs a round trip each.  So a copy has the
time of its original, or, where there is none to rely on, one that stands for the content.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from labkit.parts.packing import Reader, RemoteFolder
from labkit.parts.packing.fetching import save
from labkit.parts.packing.manifest import ANNOTATIONS, difference, read_manifest
from labkit.parts.packing.remote import RemoteFile
from labkit.trial import Cancelled

Through = Callable[[Path], tuple[str, str]]

PIECE_BYTES = 16 << 20  # a pack's file may be larger than memory
# Times that stand for a content: whole even seconds, which every file system keeps.
STAND_IN_S = range(10**9, 2 * 10**9, 2)


class Original(Protocol):
    """One file of the data."""

    size_bytes: int
    """0: unknown, or nothing."""
    time_ns: int
    """What its copy gets, and is known again by."""
    far: bool
    """Whether it comes over a network, where several at a time are faster than one."""

    def save_to(self, part: Path, cancel: threading.Event | None) -> None:
        """Write it to a file that has no name yet.

        Raises:
            ValueError: it cannot be read, or is not what the data's manifest says.
            OSError: it cannot be written.
            Cancelled: `cancel` was set.
        """


@dataclass(frozen=True, kw_only=True)
class LocalOriginal:
    """A file of this machine."""

    path: Path
    size_bytes: int
    time_ns: int
    entry: Mapping[str, object]
    """What the manifest says of it, if anything."""
    far = False

    def save_to(self, part: Path, cancel: threading.Event | None) -> None:
        """Copy it; see `Original`."""
        if self.entry and (changed := difference(self.path, self.entry)):
            raise _not_as_the_manifest_says(changed)
        with contextlib.ExitStack() as opened:
            with readable(self.path):
                source = opened.enter_context(self.path.open("rb"))
            copied = opened.enter_context(part.open("wb"))
            piece = b""
            while True:
                with readable(self.path):
                    piece, before = source.read(PIECE_BYTES), piece
                if not piece:
                    break
                if before and cancel is not None and cancel.is_set():  # in a long file
                    raise Cancelled
                copied.write(piece)


@dataclass(frozen=True, kw_only=True)
class RemoteOriginal:
    """A file at a URL."""

    root: str
    name: str
    size_bytes: int
    time_ns: int
    entry: Mapping[str, object]
    far = True

    def save_to(self, part: Path, cancel: threading.Event | None) -> None:
        """Fetch it; see `Original`."""
        try:
            save(self.root, self.name, part, self.size_bytes, cancel)
        except (FileNotFoundError, PermissionError) as error:
            if error.filename is not None:  # the part's
                raise
            raise ValueError(f"data must be files that can be read, but {error}") from error
        if self.entry and (changed := difference(part, self.entry)):
            where = f"{self.root}/{self.name}"
            raise _not_as_the_manifest_says(changed.replace(str(part), where))


def find_originals(
    reader: Reader, copy: Path, directory: Path, through: Through | None = None
) -> dict[Path, Original]:
    """Say for each file of a copy what it is a copy of.

    Args:
        reader: the opened data.
        copy: the copy's folder.
        directory: inside it; takes what lies in the reader's root.
        through: where local files are to be fetched from a server: gives its URL and the
            file's name there.

    Raises:
        ValueError: a file is not there.
    """
    if isinstance(reader, RemoteFolder):
        return {_place(file.name, copy, directory): _remote(file) for file in reader.files()}
    entries = _manifest_entries(reader)
    found: dict[Path, Original] = {}
    for path in (*reader.paths, *reader.companions):
        below = path.relative_to(reader.root) if path.is_relative_to(reader.root) else None
        with readable(path):
            stat = path.stat()
        known = {
            "size_bytes": stat.st_size,
            "time_ns": stat.st_mtime_ns,
            "entry": entries.get(path, {}),
        }
        # COCO keeps its boxes beside the images' folder.
        to = directory / below if below else copy / "annotations" / path.name
        if through is None:
            found[to] = LocalOriginal(path=path, **known)
        else:
            root, name = through(path)
            found[to] = RemoteOriginal(root=root, name=name, **known)
    return found


def fingerprint(reader: Reader, found: Mapping[Path, Original]) -> str:
    """Name the state of the data: its manifest's hash, or its files with sizes and times."""
    if reader.manifest_hash != "unknown":
        return reader.manifest_hash
    digest = hashlib.sha256()
    for to, original in found.items():
        name = getattr(original, "path", None) or getattr(original, "name", to)
        digest.update(os.fsencode(name))
        digest.update(f"\0{original.size_bytes}\0{original.time_ns}\n".encode())
    return digest.hexdigest()


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Say of a file of the data that it cannot be read.

    Raises:
        ValueError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"data must be files that can be read, got {error.strerror} for {path}; "
            "make or download the data again"
        ) from error


def _place(name: str, copy: Path, directory: Path) -> Path:
    parts = name.split("/")
    return copy / "annotations" / parts[-1] if parts[0] == ".." else directory.joinpath(*parts)


def _remote(file: RemoteFile) -> RemoteOriginal:
    digest = hashlib.sha256(file.version.encode()).digest()
    second = STAND_IN_S[int.from_bytes(digest[:8], "big") % len(STAND_IN_S)]
    return RemoteOriginal(
        root=file.root,
        name=file.name,
        size_bytes=file.size_bytes,
        time_ns=second * 10**9,
        entry={"sha256": file.sha256} if file.sha256 else {},
    )


def _manifest_entries(reader: Reader) -> dict[Path, dict]:
    """Say what the manifest, if there is one, tells of each file."""
    manifest = read_manifest(reader.root) or {}
    entries = {reader.root / name: entry for name, entry in manifest.get("files", {}).items()}
    if "annotations_sha256" in manifest:
        entries[reader.root / ANNOTATIONS] = {"sha256": manifest["annotations_sha256"]}
    return entries


def _not_as_the_manifest_says(changed: str) -> ValueError:
    return ValueError(
        f"data must be what its manifest says, but {changed}; make the data "
        "again, or remove manifest.json to take it as it is"
    )
