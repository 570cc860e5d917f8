"""Staging: brings the data to the medium that settings name, and finds out what that medium is.

    data ──copy──▶ medium ──describe, probe, check──▶ label and facts of every row

Main trap: what a folder is called says nothing of what it is.  A hard disk must claim to
be one and read like one; a stand-in must deliver the rates that its label names.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from labkit import units
from labkit.clock import SleepingClock
from labkit.copies import copy_data, held
from labkit.media import Medium, describe_medium, is_hard_disk, probe_random_reads
from labkit.originals import Through
from labkit.parts.packing import Reader
from labkit.parts.packing.connections import close_idle
from labkit.parts.storage import ModelledReader, Storage, distance, make_warm, slow_disk
from labkit.parts.storage.modelled import check
from labkit.places import Place, is_url
from labkit.settings import Settings
from labkit.stored import locate_data, open_original, open_reader, open_source, stored_folder
from labkit.trial import Skip

# Names that claim a kind of disk -> whether that kind is a hard disk.
CLAIMS = {"hdd": True, "ssd": False, "nvme": False}
CHECK_S = 1.0
CHECK_IMAGES = 512


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
        say: takes one line for the person.
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
    reader = open_reader(settings.packing, stored_folder(settings))
    with contextlib.ExitStack() as kept:
        through = None
        if storage.distance is not None:
            place = stored_folder(settings)
            through = kept.enter_context(_at_distance(storage, place, reader, say))
            storage = locate_data(settings)  # it names the server's address
        if storage.cgroup is not None:
            sizes = [_size(open_reader(s.packing, stored_folder(s))) for s in (settings, *beside)]
            size_bytes, files = map(sum, zip(*sizes))
            kept.enter_context(_throttled_disk(size_bytes, files, say))
            storage = locate_data(settings)  # its label names what it is limited to
        if storage.passing:
            kept.enter_context(held(storage.copy))
        start_s, copied = time.perf_counter(), None
        if storage.copy is not None:
            copied = copy_data(
                reader,
                storage.copy,
                storage.directory,
                private=storage.passing,
                cancel=cancel,
                progress=progress,
                through=through,
            )
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


@contextlib.contextmanager
def _at_distance(
    storage: Storage, folder: Place, reader: Reader, say: Callable[[str], None]
) -> Iterator[Through]:
    """Put up the server that stands in for a distance; give where it has each file."""
    outside = [path for path in reader.companions if not path.is_relative_to(reader.root)]
    beside = {path.name: path for path in outside}
    say(f"{storage.name}: a server on this machine stands in for the distance")
    with distance.served(storage.distance, storage.name, folder, reader.root, beside) as address:

        def through(path: Path) -> tuple[str, str]:
            if path in outside:
                return distance.beside_url(address), path.name
            return distance.data_url(address), path.relative_to(reader.root).as_posix()

        try:
            yield through
        finally:
            close_idle()


def comes_from_afar(settings: Settings) -> bool:
    """Say whether settings name data that lies, or stands in for data that lies, far away."""
    return is_url(stored_folder(settings)) or locate_data(settings).distance is not None


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
