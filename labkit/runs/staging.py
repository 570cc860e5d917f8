"""Staging: brings the data to the medium that settings name, and finds out what that medium is.

    data ──copy, file by file──▶ medium ──describe, probe, check──▶ label and facts of every row

What a folder is called says nothing of what it is: a hard disk must claim to be one and read like
one; a stand-in must deliver the rates that its label names.  A process that is killed cannot clean
up: so a file has its name only once it is whole, and whoever uses a copy that is to go again holds
a lock: a copy that nobody holds is a leftover.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from labkit import units
from labkit.contracts import Cancelled, Skip, SleepingClock
from labkit.files import whole, write_whole
from labkit.machine.media import Medium, describe_medium, is_hard_disk, probe_random_reads
from labkit.parts.packing import Reader
from labkit.parts.packing.manifest import ANNOTATIONS, difference, read_manifest
from labkit.parts.storage import ModelledReader, Storage, distance, make_warm, slow_disk
from labkit.parts.storage.modelled import check
from labkit.progress import bar
from labkit.resolve import locate_data, open_original, open_reader, open_source, stored_folder
from labkit.settings import Settings

# Names that claim a kind of disk -> whether that kind is a hard disk.
CLAIMS = {"hdd": True, "ssd": False, "nvme": False}
CHECK_S = 1.0
CHECK_IMAGES = 512
MARK = "labkit-copy.json"  # what makes a folder ours; it keeps how long copying took
SPARE_SHARE = 0.05  # file systems round sizes up
PIECE_BYTES = 16 << 20  # a pack's file may be larger than memory
SHOWN_FROM_BYTES = 1 << 30  # a smaller copy takes a second or two and needs no bar
SAME_TIME_NS = 2_000_000_000  # FAT rounds times so
CONNECTIONS = 8  # files that come from afar at the same time


# --- copying --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What copying did."""

    size_bytes: int
    written_bytes: int
    """Less than `size_bytes` where files were already there."""
    whole_s: float | None
    """Seconds that copying all the files took when they were first copied in one go; None:
    unknown, as it was stopped in between."""


def copy_data(
    reader: Reader,
    storage: Storage,
    *,
    cancel: threading.Event | None = None,
    progress: bool = False,
) -> Copied:
    """Copy a data set to where a storage has it, or what is missing of it.

    Files that are there with the right size and time are kept, others removed.

    Raises:
        Skip: there is no room, or it cannot be written to; the text says why, with numbers.
        ValueError: a file cannot be read, or is not what the data's manifest says.
        Cancelled: `cancel` was set; the same call goes on from here.
    """
    start_s, copy = time.perf_counter(), storage.copy
    files = _originals(reader, storage)
    with _explained(copy):
        mark = _start(copy, private=storage.passing)
        waiting = {to: file for to, file in files.items() if not _same(file, to)}
        _remove_others(copy, files)
        needed_bytes = sum(file.stat().st_size for file in waiting.values())
        _check_room(copy, needed_bytes)
        _copy_files(reader, storage, files, waiting, cancel, progress)
        if waiting and hasattr(os, "sync") and not describe_medium(copy).in_memory:
            os.sync()  # or it would still be written while the first trials run
        whole_s = mark.get("copied_s")
        if len(waiting) == len(files):
            whole_s = time.perf_counter() - start_s
        write_whole(copy / MARK, json.dumps({"copied_s": whole_s}))
    return Copied(
        size_bytes=sum(to.stat().st_size for to in files),
        written_bytes=needed_bytes,
        whole_s=whole_s,
    )


def _originals(reader: Reader, storage: Storage) -> dict[Path, Path]:
    """Return each file of a copy -> what it is a copy of; the images come first, in order."""
    found = {}
    for path in (*reader.paths, *reader.companions):
        if path.is_relative_to(reader.root):
            found[storage.directory / path.relative_to(reader.root)] = path
        else:  # COCO keeps its boxes beside the images' folder
            found[storage.copy / "annotations" / path.name] = path
        if not path.is_file():
            raise ValueError(
                f"data must be files that can be read, got none at {path}; "
                "make or download the data again"
            )
    return found


def _copy_files(
    reader: Reader,
    storage: Storage,
    files: Mapping[Path, Path],
    waiting: Mapping[Path, Path],
    cancel: threading.Event | None,
    progress: bool,
) -> None:
    numbers = {path: number for number, path in enumerate(files.values())}
    entries = _manifest_entries(reader)
    shown = progress and sum(file.stat().st_size for file in waiting.values()) >= SHOWN_FROM_BYTES

    def copy_one(to: Path, file: Path) -> None:
        time_ns = file.stat().st_mtime_ns  # before it is read: one that changes is copied again
        if file in entries and (changed := difference(file, entries[file])):
            raise ValueError(
                f"data must be what its manifest says, but {changed}; make the data again, or "
                "remove manifest.json to take it as it is"
            )
        to.parent.mkdir(parents=True, exist_ok=True)
        with whole(to) as part:
            with part.open("wb") as written:

                def take(piece: bytes) -> None:
                    if cancel is not None and cancel.is_set():
                        raise Cancelled
                    written.write(piece)

                if storage.distance is not None:
                    distance.fetch(storage.address, numbers[file], take)
                else:
                    _read_pieces(file, take)
            os.utime(part, ns=(time_ns, time_ns))

    with ThreadPoolExecutor(CONNECTIONS if storage.distance is not None else 1) as pool:
        copied = pool.map(copy_one, waiting, waiting.values())
        for _ in bar(copied, desc="copying", total=len(waiting), disable=not shown):
            pass


def _read_pieces(file: Path, take: Callable[[bytes], None]) -> None:
    try:
        opened = file.open("rb")
    except OSError as error:  # the data's fault, not the medium's
        raise ValueError(
            f"data must be files that can be read, got {error.strerror} for {file}; "
            "make or download the data again"
        ) from error
    with opened:
        while piece := opened.read(PIECE_BYTES):
            take(piece)


def _manifest_entries(reader: Reader) -> dict[Path, dict]:
    """Return what the manifest, if there is one, tells of each file."""
    manifest = read_manifest(reader.root) or {}
    entries = {reader.root / name: entry for name, entry in manifest.get("files", {}).items()}
    if "annotations_sha256" in manifest:
        entries[reader.root / ANNOTATIONS] = {"sha256": manifest["annotations_sha256"]}
    return entries


def _same(file: Path, to: Path) -> bool:
    """Say whether a copy is that of a file of this size and time."""
    if not to.is_file():
        return False
    before, after = file.stat(), to.stat()
    apart_ns = abs(before.st_mtime_ns - after.st_mtime_ns)
    return before.st_size == after.st_size and apart_ns <= SAME_TIME_NS


def _start(copy: Path, *, private: bool) -> dict:
    """Make the folder ours, or refuse one that is not; return its mark."""
    if copy.is_dir() and any(copy.iterdir()) and not (copy / MARK).is_file():
        raise Skip(
            f"{copy} must be empty or the lab's own copy, got other files in it; "
            "move them away or choose another folder"
        )
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
    mark = json.loads((copy / MARK).read_bytes()) if (copy / MARK).is_file() else {}
    # Copying that is stopped now has no duration.
    write_whole(copy / MARK, json.dumps({"copied_s": None}))
    return mark


def _remove_others(copy: Path, wanted: Mapping[Path, Path]) -> None:
    """Remove what an earlier copy held and the data no longer does."""
    for folder, _, names in os.walk(copy, topdown=False):
        for path in (Path(folder, name) for name in names):
            if path not in wanted and path != copy / MARK:
                path.unlink()
        with contextlib.suppress(OSError):  # not empty
            Path(folder).rmdir()


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


@contextlib.contextmanager
def _explained(copy: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Skip(
            f"{copy.parent} must be a folder that can be written, got {error.strerror or error} "
            f"({error.filename or copy}); choose another folder or free some space"
        ) from error


@contextlib.contextmanager
def held(copy: Path, *, passing: bool) -> Iterator[None]:
    """Hold a copy against other runs; one that is passing is removed in the end.

    Passing copies beside it that nobody holds any more are leftovers of killed runs: they go.

    Raises:
        Skip: another run holds it, or its folder cannot be written to.
    """
    lock = FileLock(f"{copy}.lock")
    with _explained(copy):
        copy.parent.mkdir(parents=True, exist_ok=True)
        for left in copy.parent.glob("labkit-*.lock") if passing else ():
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
        if passing:
            _remove_copy(copy)
        with contextlib.suppress(OSError):  # Windows removes no open file
            Path(lock.lock_file).unlink()
        lock.release()


def _remove_copy(copy: Path) -> None:
    """Remove a copy, and nothing that is not one."""
    if (copy / MARK).is_file() and not copy.is_symlink():
        shutil.rmtree(copy)


# --- the medium -----------------------------------------------------------------------------


@contextlib.contextmanager
def staged(
    settings: Settings,
    *,
    say: Callable[[str], None],
    cancel: threading.Event | None = None,
    progress: bool = False,
    beside: Iterable[Settings] = (),
) -> Iterator[dict[str, object]]:
    """Have the data where settings say, for as long as the context lasts.

    Args:
        settings: complete; data, packing and storage count; a pack must have been made.
        say: takes one line for the user.
        cancel: set by another thread to stop.
        progress: show a bar where copying takes long.
        beside: other settings whose data will be put on the same medium, to make room for.

    Yields:
        What `run.json` records of the medium: label, filesystem, device, rotational,
        scheduler, readahead_kb, cold_reads_per_s (None: not probed), remark (why it is not
        believed to be what it is called; empty if it is), copied_bytes and copied_s (by this
        call; None: nothing is to be copied), whole_copy_bytes and whole_copy_s (of all files,
        when they were first copied; None: unknown).

    Raises:
        Skip: it cannot be there; the text says why, with numbers.
        ValueError: the data is not what its manifest says.
        Cancelled: `cancel` was set.
    """
    storage = locate_data(settings)
    folder = stored_folder(settings)
    reader = open_reader(settings.packing, folder)
    with contextlib.ExitStack() as kept:
        if storage.distance is not None:
            say(f"{storage.name}: a server on this machine stands in for the distance")
            files = (*reader.paths, *reader.companions)
            kept.enter_context(distance.served(storage.distance, storage.name, folder, files))
            storage = locate_data(settings)  # it names the server's address
        if storage.cgroup is not None:
            sizes = [_size(open_reader(s.packing, stored_folder(s))) for s in (settings, *beside)]
            size_bytes, files = map(sum, zip(*sizes))
            kept.enter_context(_throttled_disk(size_bytes, files, say))
            storage = locate_data(settings)  # its label names what it is limited to
        start_s, copied = time.perf_counter(), None
        if storage.copy is not None:
            with contextlib.ExitStack() as copying:
                (kept if storage.passing else copying).enter_context(
                    held(storage.copy, passing=storage.passing)
                )
                copied = copy_data(reader, storage, cancel=cancel, progress=progress)
        took_s = time.perf_counter() - start_s
        if copied and copied.written_bytes:
            say(
                f"copied {units.count_bytes(copied.written_bytes)} to {storage.name} "
                f"in {units.seconds(took_s)}"
            )
            if not storage.passing:
                where = shlex.quote(str(storage.copy))
                say(f"the copy stays for other runs; remove it with: rm -r {where}")
        yield {
            **_describe(storage),
            "copied_bytes": copied.written_bytes if copied else None,
            "copied_s": took_s if copied else None,
            "whole_copy_bytes": copied.size_bytes if copied else None,
            "whole_copy_s": copied.whole_s if copied else None,
        }


def comes_from_afar(settings: Settings) -> bool:
    """Say whether settings name data that stands in for data that lies far away."""
    return locate_data(settings).distance is not None


def why_not_throttled(settings: Settings) -> str:
    """Try to put the throttled disk up for the data, and take it down again.

    Returns:
        What stands in the way; empty where nothing does.
    """
    try:
        sizes = _size(open_original(settings))
        with _throttled_disk(*sizes, say=lambda line: None):
            return ""
    except Skip as reason:
        return str(reason).partition("; ")[0].removeprefix("throttled disk: ")


def _size(reader: Reader) -> tuple[int, int]:
    """Give the bytes and the files of a data set; what is missing is named by preflight."""
    paths = [path for path in (*reader.paths, *reader.companions) if path.exists()]
    return sum(path.stat().st_size for path in paths), len(paths)


@contextlib.contextmanager
def _throttled_disk(size_bytes: int, files: int, say: Callable[[str], None]) -> Iterator[None]:
    """Put the throttled disk up; take it down again unless it was up before."""
    there = slow_disk.find()
    if there is not None and there.owned:  # by this run's first data set, with room for all
        yield
        return
    disk = slow_disk.up(data_bytes=size_bytes, files=files, owner="run")
    try:
        yield
    finally:
        if disk.owned:
            try:
                slow_disk.down()
            except OSError as error:  # someone stands in it; all rows are safe, so only say it
                say(f"the throttled disk is still up, the next run removes it: {error}")


def _describe(storage: Storage) -> dict[str, object]:
    """Say what a medium is, and what the rows may call it."""
    if storage.is_remote:
        medium = Medium(
            filesystem="remote",
            device="network",
            rotational=None,
            scheduler="unknown",
            readahead_kb=None,
            free_bytes=0,
        )
    else:
        medium = describe_medium(storage.directory)
    facts = {name: value for name, value in asdict(medium).items() if name != "free_bytes"}
    facts |= {"label": storage.label, "cold_reads_per_s": None, "remark": ""}
    doubt = ""
    if storage.name == "tmpfs":
        doubt = "" if medium.in_memory else f"on {medium.filesystem}, not in memory"
    elif storage.name in CLAIMS:
        doubt = "in memory" if medium.in_memory else _doubt(storage, medium, facts)
    if doubt:
        facts["label"] = f"unknown({doubt})"
        facts["remark"] = f"{storage.name} is not known to be one: {doubt}"
    return facts


def _doubt(storage: Storage, medium: Medium, facts: dict[str, object]) -> str:
    """Probe a disk; say why it is not the kind that it is called, if it is not."""
    probe = None
    try:
        probe = probe_random_reads(storage.directory)
        facts["cold_reads_per_s"] = probe.reads_per_s
        reason = f"{probe.reads_per_s:,.0f} cold reads/s"
    except Skip as error:
        reason = f"not probed: {error}"
    except OSError as error:  # its whole text names a file
        reason = f"not probed: {error.strerror}"
    believed = is_hard_disk(medium, probe)
    if believed is CLAIMS[storage.name]:
        return ""
    if believed is None:
        return f"claims to be rotational, {reason}" if medium.rotational else reason
    return f"{'a' if believed else 'no'} hard disk, {reason}"


def check_rates(
    settings: Settings, excluded: frozenset[int] = frozenset(), seconds: float = CHECK_S
) -> list[dict[str, object]]:
    """Measure what a stand-in delivers; call it in a process of its own.

    Args:
        settings: complete; the workers are the readers.
        excluded: indices of unreadable images.
        seconds: how long each pattern is measured.

    Returns:
        For each pattern (random, sequential, round trips, together): readers, unit (files,
        bytes, requests),
        requested_per_s (None: as fast as this machine reads), delivered_per_s, error_share,
        refused; empty where nothing stands in.

    Raises:
        Skip: it cannot be measured.
    """
    storage, readers = locate_data(settings), max(1, settings.num_workers)
    if storage.cgroup is not None:
        rates = slow_disk.measure(readers=readers, seconds=seconds)
    elif storage.distance is not None:
        rates = distance.measure(storage.distance, storage.address, min(seconds, distance.CHECK_S))
    elif storage.disk is not None:
        reader = open_source(settings)
        # Neighbours: otherwise there is nothing to read in sequence.
        ids = [i for i in range(min(len(reader), CHECK_IMAGES)) if i not in excluded]
        make_warm(dict.fromkeys(reader.files_of(ids)))
        model = ModelledReader(
            reader,
            storage.disk,
            clock=SleepingClock(),
            start_method=settings.start_method,
            cache_bytes=0,
        )
        rates = check(model, readers, seconds, ids)
    else:
        return []
    return [
        {
            "pattern": rate.pattern,
            "unit": rate.unit,
            "readers": rate.readers,
            "requested_per_s": None if math.isinf(rate.requested_per_s) else rate.requested_per_s,
            "delivered_per_s": rate.delivered_per_s,
            "error_share": rate.error_share,
            "refused": rate.refused,
        }
        for rate in rates
    ]
