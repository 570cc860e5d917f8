"""Cache state: whether memory already holds the files; made so, and measured.

    files ──prepare (evict or read, then measure)──▶ trial ──prove──▶ one dict of the row

Cold and warm are produced and then measured, never assumed: how much of the files
the page cache holds, and how many bytes came from a device while they were read.
Not every file can be cold.  tmpfs is nothing but cache, zfs has one that no call reaches, and
eviction fails silently, so only what was measured counts.
Source: EVIDENCE 2, "Page cache"; proc(5) for the bytes read.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labkit import units
from labkit.contracts import Skip
from labkit.machine import page_cache
from labkit.machine.media import describe_medium
from labkit.machine.page_cache import Extent
from labkit.machine.usage import lowest_first
from labkit.settings import pick
from labkit.thresholds import CACHED_TOLERANCE_SHARE, COLD_MAX_SHARE, WARM_MIN_SHARE

# Filesystems whose cache fadvise does not reach -> why not.
KEEPS_FILES = {
    "tmpfs": "tmpfs keeps its files in memory",
    "ramfs": "ramfs keeps its files in memory",
    "zfs": "zfs has a cache of its own (ARC), which cannot be emptied file by file",
}

USE_WARM = "compare with warm data instead"


def prepare(
    paths: Iterable[Path], cache: str | int, extents: Sequence[Extent] = ()
) -> dict[str, Any]:
    """Produce a cache state and measure that it is so.

    Args:
        paths: all files that the trial will read.
        cache: "cold", "warm", "as found" to leave it alone and only measure, or the percentage of
            the extents' bytes that memory is to hold.
        extents: where each image lies; the first ones are kept in memory.

    Returns:
        wanted, method ("fadvise", "read", "fadvise and read" or "none"), measured_by ("cachestat",
        "mincore", "fetched bytes" where only these can tell, or "unknown"), resident_share_before
        (None if unknown), and counters for `prove`.

    Raises:
        Skip: the state cannot be produced here; the text says why, with numbers.
        OSError: a file cannot be read.
    """
    watched: list[Any]
    produce: Callable[[list], None]
    is_reached: Callable[[float], bool]
    if isinstance(cache, int):
        watched, asked, method = list(extents), cache / 100, "fadvise and read"
        produce = partial(make_cached, share=asked)
        is_reached = partial(math.isclose, asked, rel_tol=0, abs_tol=CACHED_TOLERANCE_SHARE)
    else:
        watched = list(paths)
        produce, method, is_reached = pick(STATES, cache, "cache")
    evicts = "fadvise" in method
    are_fetches_counted = not evicts  # looked at only where the files are evicted anyway
    tries = 3
    for attempt in range(tries):
        if attempt:
            if evicts:
                # A file below an overlay is not written by its own sync, and dirty pages stay.
                os.sync()
            time.sleep(0.1)  # pages under write-back or read-ahead are free after milliseconds
        are_fetches_counted = are_fetches_counted or _are_fetches_counted(watched)
        produce(watched)
        share, measured_by = page_cache.residency(watched)
        if share is None and cache == "cold" and are_fetches_counted:
            measured_by = "fetched bytes"
        elif share is None and evicts and watched:
            continue
        if share is None or is_reached(share):
            return {
                "wanted": cache,
                "method": method,
                "measured_by": measured_by,
                "resident_share_before": share,
                "read_before": _read_bytes(),
                "are_fetches_counted": are_fetches_counted,
            }
    if share is None:
        places = ", ".join(_filesystems(watched))
        raise Skip(
            f"cache {cache} must be verified, but on {places} neither the page cache nor the "
            f"bytes that come from a disk can be looked at; {USE_WARM}"
        )
    reached = f"{units.percent(share)} of the files' pages are in memory after {tries} tries"
    if cache == "cold":
        raise Skip(
            f"cold data must leave at most {units.percent(COLD_MAX_SHARE)} in memory, "
            f"but {reached}; another program may have the files mapped"
        )
    if cache == "warm":
        raise Skip(
            f"warm data must have at least {units.percent(WARM_MIN_SHARE)} in memory, "
            f"but {reached}; free some memory or use fewer images"
        )
    raise Skip(
        f"{cache} % of the data must be in memory, give or take "
        f"{units.percent(CACHED_TOLERANCE_SHARE)}, but {reached}; use more images, free some "
        "memory, or close programs that have them mapped"
    )


def prove(paths: Iterable[Path], proof: dict[str, Any]) -> dict[str, Any]:
    """Complete a proof after the trial, in the process that prepared it.

    Args:
        paths: as given to `prepare`.
        proof: what `prepare` returned.

    Returns:
        The proof with file_bytes (all files together, each once), resident_share_after, and
        logical_read_bytes (asked for with read calls, memory-mapped files left out) and
        device_read_bytes (fetched from a device, for those too) of this process and its
        children meanwhile, None if unknown, as the latter is where the kernel does not count it.
        Programs and libraries that they load count too.
    """
    after = _read_bytes()
    paths, proof = list(paths), dict(proof)
    before, are_fetches_counted = proof.pop("read_before"), proof.pop("are_fetches_counted")
    spent = [None, None]
    if before is not None and after is not None:
        # A child that ended and that nobody waited for takes its counts along: unknown, not 0.
        spent = [late - early if late >= early else None for early, late in zip(before, after)]
    proof["file_bytes"] = sum(path.stat().st_size for path in dict.fromkeys(paths))
    proof["resident_share_after"] = page_cache.residency(paths)[0]
    proof["logical_read_bytes"] = spent[0]
    proof["device_read_bytes"] = spent[1] if are_fetches_counted else None
    return proof


def together(proofs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the proofs of a trial's epochs, of which each began with a state of its own.

    Returns:
        The first proof, with resident_shares_before (one per epoch), what memory held after the
        last epoch, and the bytes read in all of them.
    """
    if len(proofs) == 1:
        return proofs[0]
    joined = {**proofs[0], "resident_share_after": proofs[-1]["resident_share_after"]}
    joined["resident_shares_before"] = [proof["resident_share_before"] for proof in proofs]
    for name in ("logical_read_bytes", "device_read_bytes"):
        counts = [proof[name] for proof in proofs]
        joined[name] = None if None in counts else sum(counts)
    return joined


def count_kept(image_bytes: Sequence[int], share: float) -> int:
    """Return how many of some images, counted from the first, come closest to a share of bytes."""
    ends = np.cumsum([0, *image_bytes])
    return int(np.abs(ends - share * ends[-1]).argmin())


def make_cold(paths: Iterable[Path]) -> None:
    """Evict files from the page cache.

    Raises:
        Skip: the platform or the filesystem cannot do that.
        OSError: a file cannot be read.
    """
    make_cached([(path, 0, 0) for path in paths], 0.0)


def make_cached(extents: Sequence[Extent], share: float) -> None:
    """Have memory hold the first extents, up to a share of all bytes, and evict all others.

    Raises:
        Skip: the platform or the filesystem cannot do that.
        OSError: a file cannot be read.
    """
    what = f"{units.percent(share)} in memory" if share else "cold data"
    if not page_cache.can_evict():
        raise Skip(f"{what} needs posix_fadvise, which this platform does not have; {USE_WARM}")
    kept: dict[Path, list[tuple[int, int]]] = {path: [] for path, _, _ in extents}
    for filesystem in _filesystems(kept):
        if filesystem in KEEPS_FILES:
            raise Skip(
                f"{what} needs files that can be evicted; {KEEPS_FILES[filesystem]}; {USE_WARM}"
            )
    kept_count = count_kept([stop - start for _, start, stop in extents], share)
    for path, start, stop in extents[:kept_count]:
        kept[path].append((start, stop))
    for path, spans in kept.items():
        page_cache.evict(path, sorted(spans))


def make_warm(paths: Iterable[Path]) -> None:
    """Read every byte of the files, so that memory holds them.

    Raises:
        OSError: a file cannot be read.
    """
    buffer = bytearray(1 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


# Setting -> what produces the state, its name in the rows, and which resident share is it.
STATES: dict[str, tuple[Callable[[Iterable[Path]], None], str, Callable[[float], bool]]] = {
    "cold": (make_cold, "fadvise", lambda share: share <= COLD_MAX_SHARE),
    "warm": (make_warm, "read", lambda share: share >= WARM_MIN_SHARE),
    "as found": (lambda paths: None, "none", lambda share: True),
}


def _are_fetches_counted(extents: Iterable[Path | Extent]) -> bool:
    """Return whether what comes from the device of every file's filesystem is counted."""
    if not page_cache.can_evict():
        return False
    return all(
        # Of three files: another program may have one mapped.
        any(page_cache.fetched_bytes(path) > 0 for path in paths[:3])
        for paths in _by_filesystem(extents).values()
    )


def _filesystems(extents: Iterable[Path | Extent]) -> list[str]:
    """Return the names of the filesystems; one path for each is enough to ask."""
    first_paths = [paths[0] for paths in _by_filesystem(extents).values()]
    return sorted({describe_medium(path).filesystem for path in first_paths})


def _by_filesystem(extents: Iterable[Path | Extent]) -> dict[int, list[Path]]:
    paths_by_device: dict[int, list[Path]] = {}
    for path in dict.fromkeys(one[0] if isinstance(one, tuple) else one for one in extents):
        paths_by_device.setdefault(path.stat().st_dev, []).append(path)
    return paths_by_device


def _read_bytes() -> tuple[int, int] | None:
    """Bytes that this process and its children, ended ones included, asked for and fetched.

    None where that is unknown of any of them: a part of it would be no proof.
    """
    import psutil

    asked = fetched = 0
    multiprocessing.active_children()  # waits for ended ones: till then only root may read theirs
    for process in lowest_first():
        try:
            counts = process.io_counters()
            asked, fetched = asked + counts.read_chars, fetched + counts.read_bytes
        except psutil.NoSuchProcess as ended:
            if isinstance(ended, psutil.ZombieProcess):
                return None
        except (AttributeError, RuntimeError, ValueError, psutil.Error):
            return None  # not on this platform, empty or incomplete in a sandbox, or not allowed
    return asked, fetched
