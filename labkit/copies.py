"""Copies: the lab's own copies of a data set on other media.

    reader ──every file, checked against the manifest──▶ <copy>/<data>/…, copy.json last

A stopped copy goes on where it stopped, a changed file is copied again, and one that the
data no longer has is removed.  Main trap: a process that is killed cannot clean up, so
whoever uses a copy in memory holds a lock, and a copy that nobody holds is a leftover.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit import units
from labkit.parts.packing import Reader
from labkit.parts.packing.manifest import difference, read_manifest, write_whole
from labkit.progress import bar
from labkit.trial import Cancelled, Skip

MARK = "labkit-copy.json"  # what makes a folder ours; it says "complete" once all is there
SPARE_SHARE = 0.05  # file systems round sizes up
SHOWN_FROM_BYTES = 1 << 30  # a smaller copy takes a second or two and needs no bar


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What copying did."""

    files: int
    size_bytes: int
    written_bytes: int
    """Less than `size_bytes` where files were already there."""


def copy_data(
    reader: Reader,
    copy: Path,
    directory: Path,
    *,
    cancel: threading.Event | None = None,
    progress: bool = False,
) -> Copied:
    """Copy a data set, or what is missing of it.

    Args:
        reader: the opened data.
        copy: the folder that is ours, made if missing.
        directory: inside it; takes what lies in the reader's root.
        cancel: set by another thread to stop.
        progress: show a bar where it takes long.

    Raises:
        Skip: there is no room, or it cannot be written to; the text says why, with numbers.
        ValueError: a file is not what the data's manifest says.
        Cancelled: `cancel` was set; the same call goes on from here.
    """
    files = {}
    for path in (*reader.paths, *reader.companions):
        below = path.relative_to(reader.root) if path.is_relative_to(reader.root) else None
        # COCO keeps its boxes beside the images' folder.
        files[directory / below if below else copy / "annotations" / path.name] = path
    state = {"files": len(files), "fingerprint": _fingerprint(reader, files.values())}
    size_bytes = sum(path.stat().st_size for path in files.values())
    with _explained(copy):
        whole = _read_mark(copy) == {**state, "complete": True}
        if whole and all(_same(path, to) for to, path in files.items()):
            return Copied(files=len(files), size_bytes=size_bytes, written_bytes=0)
        _start(copy, state)
        waiting = {to: path for to, path in files.items() if not _same(path, to)}
        needed_bytes = sum(path.stat().st_size for path in waiting.values())
        _check_room(copy, needed_bytes)
        _remove_others(copy, set(files))
        entries = (read_manifest(reader.root) or {}).get("files", {})
        shown = progress and needed_bytes >= SHOWN_FROM_BYTES
        for to, path in bar(waiting.items(), desc="copying", disable=not shown):
            if cancel is not None and cancel.is_set():
                raise Cancelled
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to)  # with its time: that is how `_same` knows it again
            entry = entries.get(path.relative_to(reader.root).as_posix(), {}) if entries else {}
            if entry and (changed := difference(to, entry)):
                to.unlink()
                raise ValueError(
                    f"data must be what its manifest says, but of {path} the copy differs "
                    f"({changed}); make the data again, or remove manifest.json to take it as it is"
                )
        write_whole(copy / MARK, json.dumps({**state, "complete": True}).encode())
    return Copied(files=len(files), size_bytes=size_bytes, written_bytes=needed_bytes)


def remove_copy(copy: Path) -> None:
    """Remove a copy, and nothing that is not one."""
    if (copy / MARK).is_file():
        shutil.rmtree(copy)


@contextlib.contextmanager
def held(copy: Path) -> Iterator[None]:
    """Hold a copy that is to go when its last user goes, even if that one is killed.

    On entering, copies beside it that nobody holds any more are removed: leftovers.
    """
    import fcntl  # only where there is memory to keep files in

    for lock_path in copy.parent.glob("labkit-*.lock"):
        _remove_if_free(lock_path)
    lock_path = copy.with_name(f"{copy.name}.lock")
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(lock)
        _remove_if_free(lock_path)


def _remove_if_free(lock_path: Path) -> None:
    import fcntl

    try:
        lock = os.open(lock_path, os.O_RDWR)
    except OSError:
        return  # gone, or somebody else's
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # in use
    else:
        remove_copy(lock_path.with_suffix(""))
        lock_path.unlink(missing_ok=True)
    finally:
        os.close(lock)


@contextlib.contextmanager
def _explained(copy: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Skip(
            f"{copy.parent} must be a folder that can be written, got {error.strerror} "
            f"({error.filename or copy}); choose another folder or free some space"
        ) from error


def _start(copy: Path, state: dict) -> None:
    """Make the folder ours, or refuse one that is not."""
    if copy.is_dir() and any(copy.iterdir()) and not (copy / MARK).is_file():
        raise Skip(
            f"{copy} must be empty or the lab's own copy, got other files in it; "
            "move them away or choose another folder"
        )
    copy.mkdir(parents=True, exist_ok=True)
    write_whole(copy / MARK, json.dumps({**state, "complete": False}).encode())


def _check_room(copy: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(copy).free
    if needed_bytes * (1 + SPARE_SHARE) > free_bytes:
        raise Skip(
            f"{copy.parent} must have {units.count_bytes(needed_bytes * (1 + SPARE_SHARE))} free "
            f"for the data, got {units.count_bytes(free_bytes)}; free some space, choose another "
            "folder, or use less data"
        )


def _remove_others(copy: Path, wanted: set[Path]) -> None:
    """Remove what an earlier copy held and the data no longer does."""
    for folder, _, names in os.walk(copy):
        for name in names:
            path = Path(folder, name)
            if path not in wanted and name != MARK:
                path.unlink()


def _fingerprint(reader: Reader, files: Iterable[Path]) -> str:
    if reader.manifest_hash != "unknown":
        return reader.manifest_hash
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        digest.update(
            f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
        )
    return digest.hexdigest()


def _same(path: Path, to: Path) -> bool:
    try:
        before, after = path.stat(), to.stat()
    except OSError:
        return False
    # Some file systems keep times to two seconds only.
    close = abs(before.st_mtime - after.st_mtime) <= 2
    return close and before.st_size == after.st_size


def _read_mark(copy: Path) -> dict | None:
    try:
        return json.loads((copy / MARK).read_bytes())
    except (OSError, ValueError):
        return None
