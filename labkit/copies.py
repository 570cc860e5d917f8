"""Copies: the lab's own copies of a data set on other media.

    originals ──every file, checked against the manifest──▶ <copy>/<data>/…, the mark last

A stopped copy goes on where it stopped, a changed file is copied again, and one that the
data no longer has is removed.  The mark keeps how long copying everything took.  Main trap: a
process that is killed cannot clean up.  So a file has its name only once it is whole, a copy has
its mark until all else is gone, and whoever uses a copy that is to go again holds a lock: a copy
that nobody holds is a leftover.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from labkit import units
from labkit.files import locked, write_whole
from labkit.media import describe_medium
from labkit.originals import Original, Through, find_originals, fingerprint
from labkit.parts.packing import Reader
from labkit.parts.packing.remote import CONNECTIONS
from labkit.progress import bar
from labkit.trial import Cancelled, Skip

MARK = "labkit-copy.json"  # what makes a folder ours; it says "complete" once all is there
PART = ".labkit-copy.part"  # the file that is being copied; with a number where several are
SPARE_SHARE = 0.05  # file systems round sizes up
SHOWN_FROM_BYTES = 1 << 30  # a smaller copy takes a second or two and needs no bar
# What file systems round times to: FAT, ext3 and HFS+, exFAT, some networks, NTFS.
COARSE_NS = (2_000_000_000, 1_000_000_000, 10_000_000, 1_000, 100)


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What copying did."""

    files: int
    size_bytes: int
    written_bytes: int
    """Less than `size_bytes` where files were already there."""
    whole_s: float | None = field(default=None, compare=False)
    """Seconds that copying all the files took when they were first copied in one go; None:
    unknown, as it was stopped in between."""


def copy_data(
    reader: Reader,
    copy: Path,
    directory: Path,
    *,
    private: bool = False,
    cancel: threading.Event | None = None,
    progress: bool = False,
    through: Through | None = None,
) -> Copied:
    """Copy a data set, or what is missing of it.

    Args:
        reader: the opened data.
        copy: the folder that is ours, made if missing.
        directory: inside it; takes what lies in the reader's root.
        private: let nobody else read it.
        cancel: set by another thread to stop.
        progress: show a bar where it takes long.
        through: fetches the files from a server; see `originals.find_originals`.

    Raises:
        RemoteFailed: a file at a URL could not be had in any try.
        Skip: there is no room, or it cannot be written to; the text says why, with numbers.
        ValueError: a file cannot be read, or is not what the data's manifest says.
        Cancelled: `cancel` was set; the same call goes on from here.
    """
    start_s = time.perf_counter()
    files = find_originals(reader, copy, directory, through)
    state = {"files": len(files), "fingerprint": fingerprint(reader, files)}
    with _explained(copy):
        waiting = {to: original for to, original in files.items() if not _same(original, to)}
        mark = _read_mark(copy)
        is_whole = {**mark, **state, "complete": True} == mark
        if not waiting and is_whole:
            return Copied(
                files=len(files), size_bytes=_size(files), written_bytes=0, whole_s=_known_s(mark)
            )
        _start(copy, state, mode=0o700 if private else 0o777)
        busy = Skip(
            f"{copy} must be copied to by one run at a time, got another one that does; "
            "run again when it has ended"
        )
        with locked(copy, busy=busy):
            _remove_others(copy, set(files))
            needed_bytes = sum(original.size_bytes for original in waiting.values())
            _check_room(copy, needed_bytes)
            shown = progress and needed_bytes >= SHOWN_FROM_BYTES
            copying = _copy_all(waiting, copy, cancel)
            for _ in bar(copying, desc="copying", total=len(waiting), disable=not shown):
                pass
            if waiting and hasattr(os, "sync") and not describe_medium(copy).in_memory:
                os.sync()  # or it would still be written while the first trials run
            written_bytes = _size(waiting)
            # Of a copy that was whole before, only a part was copied again.
            whole_s = _known_s(mark) if mark.get("complete") else None
            if len(waiting) == len(files):
                whole_s = time.perf_counter() - start_s
            done = {**state, "complete": True, "copied_s": whole_s}
            write_whole(copy / MARK, json.dumps(done).encode())
    return Copied(
        files=len(files), size_bytes=_size(files), written_bytes=written_bytes, whole_s=whole_s
    )


def _size(copied: Iterable[Path]) -> int:
    """Add up files of a copy; of originals at a URL that is not always known before."""
    return sum(to.stat().st_size for to in copied)


def _copy_all(
    waiting: Mapping[Path, Original], copy: Path, cancel: threading.Event | None
) -> Iterator[None]:
    """Copy files, those at a URL several at a time; after each one it comes back."""
    if not any(original.far for original in waiting.values()):
        for to, original in waiting.items():
            _copy_file(original, to, copy / PART, cancel)
            yield
        return
    under_way: set[Future] = set()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        try:
            for number, (to, original) in enumerate(waiting.items()):
                part = copy / f"{PART}{number}"
                under_way.add(pool.submit(_copy_file, original, to, part, cancel))
                if len(under_way) >= 2 * CONNECTIONS:
                    done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            yield from (future.result() for future in under_way)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _copy_file(original: Original, to: Path, part: Path, cancel: threading.Event | None) -> None:
    """Copy one file with its time, by which `_same` knows it again, and name it when whole."""
    if cancel is not None and cancel.is_set():
        raise Cancelled
    original.save_to(part, cancel)
    # As it was before it was read: a file that changes meanwhile is copied again.
    os.utime(part, ns=(original.time_ns, original.time_ns))
    to.parent.mkdir(parents=True, exist_ok=True)
    part.replace(to)


def remove_copy(copy: Path) -> None:
    """Remove a copy, and nothing that is not one."""
    if copy.is_symlink() or not (copy / MARK).is_file():
        return
    for path in copy.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARK:
            path.unlink()
    (copy / MARK).unlink()  # last: without it, what is left would be nobody's
    copy.rmdir()


@contextlib.contextmanager
def held(copy: Path) -> Iterator[None]:
    """Hold a copy that is to go when its last user goes, even if that one is killed.

    On entering, copies beside it that nobody holds any more are removed: leftovers.

    Raises:
        Skip: its folder cannot be written to.
    """
    lock_path = copy.with_name(f"{copy.name}.lock")
    with _explained(copy):
        for left in copy.parent.glob("labkit-*.lock"):
            _remove_if_free(left)
        lock = _share(lock_path)
    try:
        yield
    finally:
        os.close(lock)
        _remove_if_free(lock_path)


def _share(lock_path: Path) -> int:
    """Open a lock and hold it together with others."""
    import fcntl  # only where there is memory to keep files in

    while True:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Whoever was removing the copy meanwhile has removed this file with it.
        if lock_path.exists() and os.path.samestat(lock_path.stat(), os.fstat(lock)):
            return lock
        os.close(lock)


def _remove_if_free(lock_path: Path) -> None:
    import fcntl

    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW)
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


def _start(copy: Path, state: dict, *, mode: int) -> None:
    """Make the folder ours, or refuse one that is not."""
    if copy.exists() and hasattr(os, "getuid") and copy.stat().st_uid != os.getuid():
        raise Skip(f"{copy} must be this user's own, got another's; have it removed")
    if copy.is_dir() and not (copy / MARK).is_file():
        # A kill can leave nothing but the mark's own beginning.
        if {path.name for path in copy.iterdir()} - {f".{MARK}.part"}:
            raise Skip(
                f"{copy} must be empty or the lab's own copy, got other files in it; "
                "move them away or choose another folder"
            )
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.mkdir(mode=mode, exist_ok=True)
    write_whole(copy / MARK, json.dumps({**state, "complete": False}).encode())


def _check_room(copy: Path, needed_bytes: int) -> None:
    free_bytes, where = shutil.disk_usage(copy).free, "free"
    if describe_medium(copy).in_memory:
        import psutil

        # A tmpfs may be larger than the memory that other programs leave.
        free_bytes = min(free_bytes, psutil.virtual_memory().available)
        where = "of memory free"
    if needed_bytes * (1 + SPARE_SHARE) > free_bytes:
        raise Skip(
            f"{copy.parent} must have {units.count_bytes(needed_bytes * (1 + SPARE_SHARE))} "
            f"{where} for the data, got {units.count_bytes(free_bytes)}; free some space, "
            "choose another folder, or use less data"
        )


def _remove_others(copy: Path, wanted: set[Path]) -> None:
    """Remove what an earlier copy held and the data no longer does."""
    for folder, _, names in os.walk(copy, topdown=False):
        for name in names:
            path = Path(folder, name)
            if path not in wanted and path != copy / MARK:
                path.unlink()
        with contextlib.suppress(OSError):  # not empty
            Path(folder).rmdir()


def _same(before: Original, to: Path) -> bool:
    """Say whether a copy is that of a file of this size and time."""
    try:
        after = to.stat()
    except OSError:
        return False
    apart_ns = abs(before.time_ns - after.st_mtime_ns)
    rounded = any(after.st_mtime_ns % ns == 0 and apart_ns <= ns for ns in COARSE_NS)
    # Of a file at a URL the size may be unknown.
    same_size = before.size_bytes == after.st_size or (before.far and not before.size_bytes)
    return same_size and (apart_ns == 0 or rounded)


def _read_mark(copy: Path) -> dict:
    try:
        return json.loads((copy / MARK).read_bytes())
    except (OSError, ValueError):
        return {}


def _known_s(mark: Mapping[str, object]) -> float | None:
    return mark.get("copied_s")
