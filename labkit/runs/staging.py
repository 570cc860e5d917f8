"""Staging: copy the data to the medium that settings name, and measure that medium.

    data ──copy, file by file──▶ medium ──describe, probe, measure──▶ label and facts of every row

labkit.toml can call any folder a hard disk: one that is called so must claim to be a hard disk, and
read like one. A killed process cannot clean up: so a file has its name only once it is whole, and a
run holds a lock on its temporary copy; a temporary copy whose lock is free was left by a killed
run, and is removed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from labkit import units
from labkit.contracts import Cancelled, Reader, Skip
from labkit.files import bar, is_private, whole
from labkit.machine import media
from labkit.machine.media import Medium, describe_medium
from labkit.parts.storage import Storage
from labkit.records import Cost, Hardware, StagedStorage
from labkit.resolve import Resolved, open_reader
from labkit.runs.active_run import ActiveRun
from labkit.runs.packs import ensure_pack

MARK = "labkit-copy.json"  # what makes a folder ours


# --- a run ---------------------------------------------------------------------------------


def stage(run: ActiveRun, cleanup: contextlib.ExitStack) -> None:
    """Pack the data and copy it to every medium; drop the variants where that is impossible."""
    how: dict[str, Any] = {
        "say": run.progress.say,
        "cancel": run.cancel,
        "progress": run.progress.shown,
    }
    storages: dict[str, StagedStorage] = {}
    costs = dict(run.info.costs)
    for labels in _grouped(run, lambda parts: parts.folder):
        settings = run.variants[labels[0]]
        try:
            made = ensure_pack(settings, **how)
        except Skip as reason:
            run.skip(labels, reason)
            continue
        if made is not None:
            recorded = {name: made[name] for name in ("bytes", "source_bytes", "pack_s")}
            costs |= dict.fromkeys(labels, Cost(**recorded))
    on_medium = _grouped(run, lambda parts: (parts.settings.storage, parts.folder))
    for labels in on_medium:
        parts = run.parts(labels[0])
        settings = parts.settings
        others = [run.parts(other[0]) for other in on_medium if other is not labels]
        others = [other for other in others if other.settings.storage == settings.storage]
        try:
            facts = StagedStorage(**cleanup.enter_context(staged(parts, **how, others=others)))
        except Skip as reason:
            run.skip(labels, reason)
            continue
        if facts.remark:
            run.note(facts.remark)
        storages.setdefault(settings.storage, facts)
        if parts.storage.hardware.how == "simulated" and facts.copied_bytes is not None:
            copied = Cost(bytes=facts.copied_bytes)
            for label in labels:  # a pack's own bytes leave out its boxes and its manifest
                costs[label] = replace(costs.get(label, copied), copy_s=facts.copied_s)
    run.save(storages=storages, costs=costs)


def _grouped(run: ActiveRun, place: Callable[[Resolved], Hashable]) -> list[list[str]]:
    """Group the labels of the remaining variants by the place of their data."""
    labels_by_place: dict[Hashable, list[str]] = {}
    for label in run.remaining:
        try:
            labels_by_place.setdefault(place(run.parts(label)), []).append(label)
        except Skip as reason:  # a resumed run, whose disk is gone
            run.skip([label], reason)
    return list(labels_by_place.values())


# --- copying --------------------------------------------------------------------------------


def copy_data(
    reader: Reader,
    storage: Storage,
    *,
    cancel: threading.Event | None = None,
    progress: bool = False,
) -> int:
    """Copy a data set, or the files that are missing, to the folder of a storage.

    Files that are there with the right size and time are kept, others removed.

    Returns:
        The bytes that were written.

    Raises:
        Skip: there is no room, or it cannot be written to; the text says why, with numbers.
        ValueError: a file cannot be read.
        Cancelled: `cancel` was set; the same call goes on from here.
    """
    copy, files = storage.copy, _files_to_copy(reader, storage)
    with media.skip_unwritable(copy.parent):
        _make_folder(copy, private=storage.temporary)
        missing = {to: file for to, file in files.items() if not _same(file, to)}
        _remove_others(copy, files)
        needed_bytes = sum(file.stat().st_size for file in missing.values())
        media.check_room(copy.parent, needed_bytes, "the data")
        numbers = {to: number for number, to in enumerate(files)}

        def copy_one(to: Path) -> None:
            time_ns = missing[to].stat().st_mtime_ns  # first: a file that changes is copied again
            to.parent.mkdir(parents=True, exist_ok=True)
            with whole(to) as part:
                with part.open("wb") as written:
                    for piece in storage.pieces(numbers[to], missing[to]):
                        if cancel is not None and cancel.is_set():
                            raise Cancelled
                        written.write(piece)
                os.utime(part, ns=(time_ns, time_ns))

        # A copy of less than 1 GiB takes a second or two and needs no bar.
        hidden = not (progress and needed_bytes >= 1 << 30)
        with ThreadPoolExecutor(storage.copied_at_once) as pool:
            copied = pool.map(copy_one, missing)
            for _ in bar(copied, desc="copying", total=len(missing), disable=hidden):
                pass
        if missing and hasattr(os, "sync") and not describe_medium(copy).in_memory:
            os.sync()  # or it would still be written while the first trials run
    return needed_bytes


def _files_to_copy(reader: Reader, storage: Storage) -> dict[Path, Path]:
    """Return each file of a copy -> its source; the images come first, in order."""
    sources = {}
    for path in (*reader.paths, *reader.companions):
        if path.is_relative_to(reader.root):
            below = path.relative_to(reader.root)
            if ".." in below.parts:  # its copy would lie outside, too
                raise ValueError(f"data must be files below {reader.root}, got {below}")
            sources[storage.directory / below] = path
        else:  # COCO keeps its boxes beside the images' folder
            sources[storage.copy / "annotations" / path.name] = path
        if not (path.is_file() and os.access(path, os.R_OK)):
            raise ValueError(
                f"data must be files that can be read, got none at {path}; "
                "make or download the data again"
            )
    return sources


def _same(file: Path, to: Path) -> bool:
    """Return whether a copy has the size and the time of its source."""
    if not to.is_file():
        return False
    before, after = file.stat(), to.stat()
    apart_ns = abs(before.st_mtime_ns - after.st_mtime_ns)
    # FAT rounds times to two seconds.
    return before.st_size == after.st_size and apart_ns <= 2_000_000_000


def _make_folder(copy: Path, *, private: bool) -> None:
    """Make the folder ours, or refuse one that is not."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
    if private and not is_private(copy.lstat()):  # anybody can make a folder in /dev/shm
        raise Skip(f"{copy} must be this user's, and writable by nobody else; move it away")
    if any(copy.iterdir()) and not (copy / MARK).is_file():
        raise Skip(
            f"{copy} must be empty or the lab's own copy, got other files in it; "
            "move them away or choose another folder"
        )
    (copy / MARK).touch()


def _remove_others(copy: Path, wanted: Mapping[Path, Path]) -> None:
    """Remove files of an earlier copy that the data no longer has."""
    for folder, _, names in os.walk(copy, topdown=False):
        for path in (Path(folder, name) for name in names):
            if path not in wanted and path != copy / MARK:
                path.unlink()
        with contextlib.suppress(OSError):  # not empty
            Path(folder).rmdir()


@contextlib.contextmanager
def locked_copy(copy: Path, *, temporary: bool) -> Iterator[None]:
    """Lock a copy against other runs, and remove a temporary one in the end.

    Temporary copies in the same folder whose locks are free were left by killed runs: they are
    removed first.

    Raises:
        Skip: another run has locked it, or its folder cannot be written to.
    """
    lock = FileLock(f"{copy}.lock")
    with media.skip_unwritable(copy.parent):
        copy.parent.mkdir(parents=True, exist_ok=True)
        # Else a run would find its own lock taken by another that only looks at it.
        with _one_at_a_time(copy.parent) if temporary else contextlib.nullcontext():
            for left in copy.parent.glob("labkit-*.lock") if temporary else ():
                with contextlib.suppress(Timeout, OSError), FileLock(left, timeout=0):
                    _remove_copy(left.with_suffix(""))
                    left.unlink()
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise Skip(
                    f"{copy} must be used by one run at a time, got another one that does; "
                    "run again when it has ended"
                ) from None
    try:
        yield
    finally:
        if temporary:
            _remove_copy(copy)
        with contextlib.suppress(OSError):  # Windows removes no open file
            Path(lock.lock_file).unlink()
        lock.release()


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait for other processes that hold this folder; temporary copies exist on Linux only."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_copy(copy: Path) -> None:
    """Remove a folder if it is a copy."""
    if (copy / MARK).is_file() and not copy.is_symlink():
        shutil.rmtree(copy)


# --- the medium -----------------------------------------------------------------------------


@contextlib.contextmanager
def staged(
    parts: Resolved,
    *,
    say: Callable[[str], None],
    cancel: threading.Event | None = None,
    progress: bool = False,
    others: Iterable[Resolved] = (),
) -> Iterator[dict[str, Any]]:
    """Keep the data on the medium that settings name until the context ends.

    Args:
        parts: from `resolve`; a pack must have been made.
        say: takes one line for the user.
        cancel: set by another thread to stop.
        progress: show a bar where copying takes long.
        others: other variants whose data will be put on the same storage, to make room for.

    Yields:
        What `run.json` records of the medium: label, filesystem, device, rotational,
        cold_reads_per_s (None: not probed), remark (why it is not believed to be what it is
        called; empty if it is), copied_bytes and copied_s (None: nothing is to be copied).

    Raises:
        Skip: it cannot be there; the text says why, with numbers.
        ValueError: a file of the data cannot be read.
        Cancelled: `cancel` was set.
    """
    storage = parts.storage
    reader, *other_readers = (
        open_reader(each.settings.packing, each.folder) for each in (parts, *others)
    )
    with contextlib.ExitStack() as kept:
        kept.enter_context(storage.put_up(reader, other_readers, say))
        start_s, copied_bytes, copied_s = time.perf_counter(), None, None
        if storage.copy is not None:
            with contextlib.ExitStack() as copying:
                (kept if storage.temporary else copying).enter_context(
                    locked_copy(storage.copy, temporary=storage.temporary)
                )
                copied_bytes = copy_data(reader, storage, cancel=cancel, progress=progress)
            copied_s = time.perf_counter() - start_s
        if copied_bytes:
            say(
                f"copied {units.count_bytes(copied_bytes)} to {storage.name} "
                f"in {units.seconds(copied_s)}"
            )
            if not storage.temporary:
                where = shlex.quote(str(storage.copy))
                say(f"the copy stays for other runs; remove it with: rm -r {where}")
        yield {**_describe(storage), "copied_bytes": copied_bytes, "copied_s": copied_s}


def _describe(storage: Storage) -> dict[str, Any]:
    """Return the facts of a medium, and the name that rows may give it."""
    reads_per_s, doubt = None, ""
    if storage.is_remote:
        medium = Medium(filesystem="remote", device="network")
    elif storage.name in ("tmpfs", *media.CLAIMS):
        medium, reads_per_s, doubt = media.check_medium(storage.name, storage.directory)
    else:
        medium = describe_medium(storage.directory)
    return {
        **asdict(medium),
        "hardware": Hardware("storage", "unconfirmed", doubt) if doubt else storage.hardware,
        "cold_reads_per_s": reads_per_s,
        "remark": f"could not confirm the kind of {storage.name}: {doubt}" if doubt else "",
    }
