"""Reads: how many file openings, read calls and disk requests an image takes as it is stored.

    cold files ─ read each image once, in the epoch's order ─▶ counts per image

They are counted, not timed, in a fresh process without loader workers, whose pipes would count
too.  A mapped file is read by page faults, so LMDB and pth packs show few calls; disk requests
count them.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from labkit.contracts import Content, Skip
from labkit.machine import procfs
from labkit.pipeline import Source, open_loader
from labkit.records import ReadCounts
from labkit.resolve import resolve
from labkit.runs.active_run import ActiveRun
from labkit.runs.launcher import TrialFailed
from labkit.runs.thresholds import MAX_REQUESTS_PER_IMAGE
from labkit.settings import Settings


def save_read_counts(run: ActiveRun) -> None:
    """Count the operations of reading, where variants store the images in different ways."""
    if not run.info.costs:
        return
    run.progress.say("counting what reading takes: openings, read calls, disk requests")
    images = run.info.calibration.images
    reads: dict[str, ReadCounts] = {}
    counted: dict[Settings, ReadCounts] = {}
    for label, settings in run.remaining.items():
        timed = isinstance(settings.cache, int)  # all shares in memory, as cold images are read
        cache = "cold" if timed else settings.cache
        settings = replace(settings, images=images, cache=cache)
        try:
            if settings not in counted:
                asked = {"settings": settings, "excluded": run.info.excluded, "timed": timed}
                counts = run.ask("count_reads", **asked)
                recorded = {field.name: counts.get(field.name) for field in fields(ReadCounts)}
                counted[settings] = ReadCounts(**recorded)
            reads[label] = counted[settings]
        except (TrialFailed, Skip) as reason:  # the variant's trials will fail, too
            run.progress.say(f"{label}: reading could not be counted: {reason}")
    pieces = [
        label
        for label, read in reads.items()
        if (read.requests or 0) > MAX_REQUESTS_PER_IMAGE
        and run.parts(label).storage.hardware.how == "throttled"
    ]
    if pieces:
        run.note(
            f"{', '.join(pieces)}: an image takes many requests, and the throttled disk charges "
            "each as a random one, where a real disk has the next piece in its own memory; so "
            "this looks slower here than there"
        )
    run.save(reads=reads)


def count_reads(
    settings: Settings, excluded: frozenset[int] = frozenset(), *, timed: bool = False
) -> dict[str, Any]:
    """Read an epoch's first images once, and count.

    Args:
        settings: complete, with `images`; how they are stored and ordered counts.
        excluded: indices of unreadable images.
        timed: also measure how fast cold images are read as a copy would: one after another, in the
            order in which they are stored.

    Returns:
        images, cold (whether no page was in memory before), and per image opens (by Python code;
        a library in C opens a pack once), calls (read calls of this process) and requests (of
        the device below, by all processes); if timed, bytes_per_s.  None is unknown.
    """
    source, _ = open_loader(resolve(settings), excluded=excluded)
    reader, ids = source.reader, [i for _, i in itertools.islice(source.order, 64)]
    # Imports happen once and must not count.  Another reader makes them and is closed again: pages
    # of a mapped file cannot be evicted.
    source.parts.packing.open(source.parts.storage.directory).read(ids[-1])
    paths = reader.files_of(ids)
    cold = _make_cold(source, settings)
    requests = _requests(paths)
    asked, calls = _calls(), _calls()  # their difference is the cost of asking
    opened = _watch_opens()
    for i in ids:
        _use(reader.read(i)[0])
    calls_after, requests_after, images = _calls(), _requests(paths), len(ids)
    counted: dict[str, Any] = {
        "images": images,
        "cold": cold,
        "opens": None,
        "calls": None,
        "requests": None,
    }
    if paths:  # over a network nothing is read from a file
        wanted = {os.fspath(path) for path in paths}
        counted["opens"] = sum(path in wanted for path in opened) / images
        if calls is not None:
            counted["calls"] = (calls_after - calls - (calls - asked)) / images
    # A model's disk is asked for nothing.
    if requests is not None and cold and not source.parts.storage.needs_our_reader:
        counted["requests"] = (requests_after - requests) / images
    return counted | ({"bytes_per_s": _bytes_per_s(source, settings)} if timed else {})


def _bytes_per_s(source: Source, settings: Settings) -> float | None:
    source.reader.close()  # pages of a mapped file cannot be evicted
    if not _make_cold(source, settings):
        return None
    source.parts.storage.enter()
    read_bytes, start_s = 0, time.perf_counter()
    for i in np.sort(source.order.image_ids).tolist():
        _use(source.reader.read(i)[0])
        read_bytes += int(source.reader.image_bytes[i])
        took_s = time.perf_counter() - start_s
        if took_s > 1.0:
            break
    return read_bytes / took_s


def _use(content: Content) -> None:
    """Read all of an image: of a mapped file, nothing is read before its bytes are used."""
    if not isinstance(content, bytes | dict):
        np.asarray(content).max(initial=0)


def _make_cold(source: Source, settings: Settings) -> bool:
    if settings.cache != "cold":
        return False
    try:
        return source.prepare_cache("cold")["resident_share_before"] is not None
    except (Skip, OSError):
        return False


def _watch_opens() -> list[str]:
    """Return a list to which each path that Python opens in this process is added from now on."""
    opened = []

    def note(event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], str):
            opened.append(args[0])

    sys.addaudithook(note)
    return opened


def _calls() -> int | None:
    return procfs.counters("/proc/self/io").get("syscr")


def _requests(paths: Iterable[Path]) -> int | None:
    """Return how many reads the device under some files has completed since boot."""
    numbers = {path.stat().st_dev for path in paths}
    if len(numbers) != 1 or not hasattr(os, "major"):  # Windows numbers no devices
        return None
    (number,) = numbers
    counts = procfs.text(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").split()
    return int(counts[0]) if counts else None
