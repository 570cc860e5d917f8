"""Shards: what a file format has to offer, and the open files of a pack in one process.

    Format: create(file) → add(record) … ; open(file) → read(j)

Main trap: a handle that is open while a process forks is shared with the child.  A file's
descriptor is harmless where reads name their own position; LMDB and HDF5 forbid it for theirs.  So
every process opens its own, and those two close theirs before a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from labkit.contracts import Annotation
from labkit.parts.packing.index import Index

SHARD_BYTES = 1 << 30  # what a stopped pack loses at most; WebDataset's shards are of this order


class Shard(Protocol):
    """One opened file of a pack."""

    def read(self, j: int) -> bytes:
        """Give the bytes of its record `j`."""

    def close(self) -> None:
        """Close the file."""


class Add(Protocol):
    """Takes the records of a shard that is being written, in order."""

    def __call__(
        self, name: str, record: bytes, annotation: Annotation, size_px: tuple[int, int]
    ) -> int:
        """Append one; returns where it starts in the file, or -1 where nobody needs to know."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way to put many records into a file."""

    name: str
    """Key of PACKINGS, and the beginning of its packs' folder names."""
    suffix: str
    """Of its files, with the dot."""
    create: Callable[[Path, str], AbstractContextManager[Add]]
    """(file, what is stored) -> writes one shard, complete when the context ends."""
    open: Callable[[Path, Index], Shard]
    """(file, its records) -> opens one shard for reading in this process."""
    needs: tuple[str, ...] = ()
    """The modules it is written and read with: torch, or what the extra `formats` brings."""
    handles: Literal["per process", "closed before a fork", "shared"] = "per process"
    """What becomes of open files when a process forks."""
    shard_bytes: int = SHARD_BYTES
    """A shard ends with the record that reaches this size."""
    variant_of: str = ""
    """The format whose packs it writes and reads; empty for its own."""
    pieces: Callable[[Path, Index, int], list[Path]] | None = None
    """(shard, its records, j) -> the files of record `j`, where a shard is a folder."""

    @property
    def packed_as(self) -> str:
        """The name that its packs and their folders have."""
        return self.variant_of or self.name


class OpenFile:
    """A file whose reads name their own position, so that threads and forks may share it."""

    def __init__(self, file: Path) -> None:
        self._opened = file.open("rb", buffering=0)
        self._lock = threading.Lock()  # used where there is no pread: on Windows

    def read(self, count: int, *, at: int) -> bytes:
        """Read up to `count` bytes from byte `at` on."""
        if hasattr(os, "pread"):
            return os.pread(self._opened.fileno(), count, at)
        with self._lock:
            self._opened.seek(at)
            return self._opened.read(count)

    def close(self) -> None:
        """Close it."""
        self._opened.close()


class Handles:
    """The open shards of one pack; picklable, as closed ones.

    Args:
        format: whose.
        files: of all shards.
        indexes: what is in them.
        sizes_bytes: of the files, as the manifest says; None for a shard that is a folder.
    """

    def __init__(
        self,
        format: Format,
        files: Sequence[Path],
        indexes: Sequence[Index],
        sizes_bytes: Sequence[int | None],
    ) -> None:
        self.format, self.files, self.indexes = format, files, indexes
        self._sizes_bytes = sizes_bytes
        self._start()
        if format.handles == "shared":  # the trap: opened here, used by every child
            for number in range(len(files)):
                self._shard(number)

    def read(self, number: int, j: int) -> bytes:
        """Read record `j` of shard `number`, opening it where this process has not yet."""
        if self.format.handles != "closed before a fork":
            return self._shard(number).read(j)
        with self._lock:  # nobody may fork meanwhile
            return self._shard(number).read(j)

    def close(self) -> None:
        """Close what this process has open."""
        with self._lock:
            while self._shards:
                self._shards.popitem()[1].close()

    def _start(self) -> None:
        self._shards: dict[int, Shard] = {}
        self._pid = os.getpid()
        self._lock = threading.RLock()
        _fork_guard(self.format).add(self)

    def _shard(self, number: int) -> Shard:
        if self._is_own() and (shard := self._shards.get(number)) is not None:
            return shard
        with self._lock:  # two threads would open the same file twice
            if not self._is_own():
                self.close()  # only this process's copies of descriptors
                self._pid = os.getpid()
            if number not in self._shards:
                self._check_size(number)
                file, index = self.files[number], self.indexes[number]
                self._shards[number] = self.format.open(file, index)
            return self._shards[number]

    def _is_own(self) -> bool:
        return self._pid == os.getpid() or self.format.handles == "shared"

    def _check_size(self, number: int) -> None:
        """Refuse a file that was cut: reading what is mapped beyond its end kills a process."""
        wanted_bytes = self._sizes_bytes[number]
        found_bytes = self.files[number].stat().st_size
        if wanted_bytes not in (None, found_bytes):
            raise ValueError(f"shard must have {wanted_bytes} bytes, got {found_bytes}")

    def hold(self) -> None:
        """Let nobody open or, where that is forbidden, have anything open until `release`."""
        self._lock.acquire()
        if self.format.handles == "closed before a fork":
            with contextlib.suppress(Exception):  # a fork cannot be refused
                self.close()

    def release(self) -> None:
        """End `hold`, in the thread that called it."""
        self._lock.release()

    def __getstate__(self) -> tuple:
        return self.format, self.files, self.indexes, self._sizes_bytes

    def __setstate__(self, state: tuple) -> None:
        self.format, self.files, self.indexes, self._sizes_bytes = state
        self._start()


class _ForkGuard:
    """Holds the handles of all packs of one library while this process forks."""

    def __init__(self) -> None:
        self._handles: weakref.WeakSet[Handles] = weakref.WeakSet()
        self._held: list[Handles] = []
        self._lock = threading.RLock()  # one fork at a time, and no new handles meanwhile
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before, after_in_parent=self._after, after_in_child=self._after
            )

    def add(self, handles: Handles) -> None:
        with self._lock:
            self._handles.add(handles)

    def _before(self) -> None:
        self._lock.acquire()
        for handles in list(self._handles):
            handles.hold()
            self._held.append(handles)

    def _after(self) -> None:
        # The thread that forked holds the locks, and it is the one that goes on in the child.
        while self._held:
            self._held.pop().release()
        self._lock.release()


# Held while a library that minds two threads opens or closes a file.  Registered before all guards,
# so taken last before a fork: whoever holds a reader's lock may still need it.
OPENING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=OPENING.acquire, after_in_parent=OPENING.release, after_in_child=OPENING.release
    )
_GUARDS: dict[str, _ForkGuard] = {"": _ForkGuard()}


def _fork_guard(format: Format) -> _ForkGuard:
    library = format.needs[0] if format.handles == "closed before a fork" else ""
    if library:
        # Before a fork, who registered last is asked first.  h5py then takes a lock that its reads
        # need; were it asked before us, we would wait for a read that waits for this lock.
        importlib.import_module(library)
    return _GUARDS.get(library) or _GUARDS.setdefault(library, _ForkGuard())
