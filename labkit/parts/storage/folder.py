"""Storage in a folder: where the data lies, on a named disk, or in memory.

    data ──locate──▶ Storage ──open(reader)──▶ reader of a trial and its loader workers

`Storage` reads real files and waits for nothing. A storage that does (a slow disk, a modelled
disk, a distance) is a class in a module of its own that overrides what differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from labkit.contracts import Chosen, Reader, Skip
from labkit.machine import media, shared_memory
from labkit.parts.storage import cache_state
from labkit.parts.storage.disks import Rate
from labkit.records import Hardware


class WrappedReader:
    """A reader whose `read` a storage overrides; everything else is the wrapped reader's."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getattr__(self, name: str) -> Any:
        # While this is unpickled there is no `reader` yet: asking for it would go on for ever.
        if name == "reader" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.reader, name)


REAL = Hardware("storage")


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A folder that holds the data, or will hold a copy of it."""

    name: str
    directory: Path
    """The folder that the data set fills."""
    hardware: Hardware = REAL
    """As rows have it."""
    copy: Path | None = None
    """The folder that our copy of the data fills; None: nothing is copied."""
    temporary: bool = False
    """Whether the copy is removed when the run ends."""
    needs_our_reader: ClassVar[bool] = False
    """Whether only `open`'s reader waits as the storage would: a library that opens the files by
    itself would not."""
    is_remote: ClassVar[bool] = False
    """Whether every image comes over a network, so that no page cache here holds it."""
    copied_at_once: ClassVar[int] = 1
    """Files that are copied at the same time."""

    def why_not(self, chosen: Chosen) -> str:
        """Return why the data cannot be read from here; see `contracts.Part.why_not`."""
        return ""

    @contextlib.contextmanager
    def put_up(
        self, reader: Reader, others: Sequence[Reader], say: Callable[[str], None]
    ) -> Iterator[None]:
        """Have what simulates the storage, for as long as the context lasts.

        Args:
            reader: the data set, opened where it lies.
            others: data sets that will be put on the same storage.
            say: takes one line for the user.

        Raises:
            Skip: it cannot be had here.
        """
        yield

    def open(self, reader: Reader, start_method: str) -> Reader:
        """Return what reads the images from here.

        Args:
            reader: the data set that was opened in `directory`.
            start_method: how loader workers will be started.
        """
        return reader

    def enter(self) -> None:
        """Put this process, and all that it starts from now on, under the storage's limit.

        Raises:
            Skip: the limit is gone, or this process may not.
        """

    def prepare_cache(self, reader: Reader, ids: np.ndarray, cache: str | int) -> dict[str, Any]:
        """Produce a cache state of the images and measure it; see `cache_state.prepare`.

        Args:
            reader: from `open`.
            ids: (N,) int64, the images that the trial will read.
            cache: "cold", "warm", "as found", or the percentage of the images' bytes that memory
                is to hold: those of the first images.
        """
        extents = []
        if isinstance(cache, int):
            reader.close()  # pages of a mapped file cannot be evicted
            extents = reader.extents_of(ids)
        return cache_state.prepare(reader.files_of(np.sort(ids)), cache, extents)

    def prove_cache(self, reader: Reader, ids: np.ndarray, proof: dict[str, Any]) -> dict[str, Any]:
        """Complete the proof after the trial; see `cache_state.prove`."""
        files = reader.files_of(np.sort(ids))
        proof = cache_state.prove(files, proof)
        if len(files) < len(ids):  # of a pack's file only these images are read
            proof["file_bytes"] = int(reader.image_bytes[ids].sum())
        return proof

    def pieces(self, number: int, file: Path) -> Iterator[bytes]:
        """Read a file that is to be copied here, piece by piece.

        Args:
            number: its place among the data set's files: paths, then companions.
            file: where it lies.
        """
        with file.open("rb") as opened:
            while piece := opened.read(16 << 20):  # a pack's file may be larger than memory
                yield piece

    def measure(
        self,
        reader: Reader,
        ids: Sequence[int],
        readers: int,
        start_method: str,
        seconds: float,
    ) -> list[Rate]:
        """Measure simulated storage, in a process of its own.

        Args:
            reader: the data set in `directory`.
            ids: images that can be read.
            readers: processes that read at the same time.
            start_method: how they are started.
            seconds: about how long each pattern takes.

        Returns:
            Requested and delivered rates; empty where nothing is simulated.

        Raises:
            Skip: it cannot be measured.
        """
        return []


def here(data: Path) -> Storage:
    """Read the data where it lies."""
    return Storage(name="here", directory=data)


def on_medium(name: str, data: Path) -> Storage:
    """Read a copy on the medium that labkit.toml names, or the data itself if it lies there.

    Raises:
        Skip: labkit.toml does not name it, or the folder is not there.
        ValueError: labkit.toml is broken.
    """
    folder = media.media().get(name)
    if folder is None:
        raise Skip(
            f"{name} is not named on this machine; "
            f"name a folder on it with: labkit doctor --write --{name} DIR"
        )
    return in_folder(name, data, folder)


def in_folder(name: str, data: Path, folder: Path) -> Storage:
    """Read a copy in a folder, or the data itself if it lies on the same file system.

    Raises:
        Skip: the folder is not there, or lies inside the data.
    """
    # Path.is_dir raises where a folder may not be entered, or is on a disk that is gone.
    if not os.path.isdir(folder):  # noqa: PTH112
        raise Skip(
            f"{name} must be an existing directory, got {folder}; "
            "create it, mount the disk or correct labkit.toml"
        )
    # A pack that is still to be made will lie on the file system of the folders above it.
    there = next(path for path in (data.absolute(), *data.absolute().parents) if path.exists())
    if folder.stat().st_dev == there.stat().st_dev:
        return Storage(name=name, directory=data)
    if folder.resolve().is_relative_to(data.resolve()):
        raise Skip(
            f"{name} must lie outside the data, or the copy would be part of it, got {folder} "
            f"in {data}; choose another folder"
        )
    return Storage(name=name, **copy_in(folder / "labkit-data", "", data))


def on_ssd(data: Path) -> Storage:
    """Read from labkit.toml's ssd; without one, from where the data lies, which a run probes."""
    if "ssd" in media.media():
        return on_medium("ssd", data)
    return Storage(name="ssd", directory=data)


def in_memory(data: Path) -> Storage:
    """Read a copy in memory: labkit.toml's tmpfs, else /dev/shm for as long as the run takes.

    Raises:
        Skip: there is no tmpfs here.
    """
    if "tmpfs" in media.media():
        return on_medium("tmpfs", data)
    folder = shared_memory.FOLDER
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise Skip(f"tmpfs needs {folder}, which this platform does not have")
    # Every user has a copy of their own: another user's could be neither locked nor removed.
    return Storage(name="tmpfs", temporary=True, **copy_in(folder, f"labkit-{os.getuid()}-", data))


def copy_in(folder: Path, prefix: str, data: Path) -> dict[str, Any]:
    """Name a copy of the data in a folder: the fields `copy` and `directory` of a `Storage`.

    The name is the same for every run, and another one for another data set. The name of a
    temporary copy begins with "labkit-": what a killed run left is found by it.
    """
    # The last part is not resolved: COCO's boxes are found by the name of the folder, even where
    # it is a link.
    data = data.absolute()
    data = data.resolve() if data.name in ("", "..") else data.parent.resolve() / data.name
    name = data.name or "data"
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()
    copy = folder / f"{prefix}{name}-{digest[:8]}"
    return {"copy": copy, "directory": copy / name}
