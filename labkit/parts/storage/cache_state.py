"""Cache state: whether memory already holds the files; made so, and measured.

    files ──prepare (evict or read, then measure)──▶ trial ──prove──▶ one dict of the row

Cold and warm are produced and then measured, never assumed: how much of the files
the page cache holds, and how many bytes came from a device while they were read.
Not every file can be cold.  tmpfs is nothing but cache, zfs has one that no call reaches, and
eviction fails silently, so only what was measured counts.
Source: EVIDENCE 2, "Page cache"; proc(5) for the bytes read.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from labkit import units
from labkit.contracts import Skip
from labkit.machine import page_cache
from labkit.machine.media import describe_medium
from labkit.settings import pick

TRIES = 3
RETRY_PAUSE_S = 0.1  # pages under write-back or read-ahead are free again after milliseconds
COLD_MAX_SHARE = 0.02
WARM_MIN_SHARE = 0.98
CHUNK_BYTES = 1 << 20

# Filesystems whose cache fadvise does not reach -> why not.
KEEPS_FILES = {
    "tmpfs": "tmpfs keeps its files in memory",
    "ramfs": "ramfs keeps its files in memory",
    "zfs": "zfs has a cache of its own (ARC), which cannot be emptied file by file",
}

USE_WARM = "compare with cache=warm instead"


def prepare(paths: Iterable[Path], cache: str) -> dict[str, object]:
    """Produce a cache state and measure that it is so.

    Args:
        paths: all files that the trial will read.
        cache: "cold", "warm", or "as found" to leave it alone and only measure.

    Returns:
        wanted, method ("fadvise", "read" or "none"), measured_by ("cachestat", "mincore" or
        "unknown"), resident_share_before (None if unknown), and counters for `prove`.

    Raises:
        Skip: the state cannot be produced here; the text says why, with numbers.
        OSError: a file cannot be read.
    """
    paths = list(paths)
    produce, method, is_reached = pick(STATES, cache, "cache")
    for attempt in range(TRIES):
        time.sleep(RETRY_PAUSE_S if attempt else 0)
        produce(paths)
        share, measured_by = residency(paths)
        if share is None or is_reached(share):
            return {
                "wanted": cache,
                "method": method,
                "measured_by": measured_by,
                "resident_share_before": share,
                "read_before": _read_bytes(),
            }
    held = f"{units.percent(share)} of the files' pages are in memory after {TRIES} tries"
    if cache == "cold":
        raise Skip(
            f"cold data must leave at most {units.percent(COLD_MAX_SHARE)} in memory, "
            f"but {held}; another program may have the files mapped"
        )
    raise Skip(
        f"warm data must have at least {units.percent(WARM_MIN_SHARE)} in memory, "
        f"but {held}; free some memory or use fewer images"
    )


def prove(paths: Iterable[Path], proof: dict[str, object]) -> dict[str, object]:
    """Complete a proof after the trial, in the process that prepared it.

    Args:
        paths: as given to `prepare`.
        proof: what `prepare` returned.

    Returns:
        The proof with file_bytes (all files together, each once), resident_share_after, and
        logical_read_bytes (asked for with read calls, memory-mapped files left out) and
        device_read_bytes (fetched from a device, for those too) of this process and its
        children meanwhile, None if unknown.  Programs and libraries that they load count too.
    """
    after = _read_bytes()
    paths, proof = list(paths), dict(proof)
    before = proof.pop("read_before")
    spent = [None, None]
    if before is not None and after is not None:
        # A child that ended and that nobody waited for takes its counts along: unknown, not 0.
        spent = [late - early if late >= early else None for early, late in zip(before, after)]
    proof["file_bytes"] = sum(path.stat().st_size for path in dict.fromkeys(paths))
    proof["resident_share_after"] = residency(paths)[0]
    proof["logical_read_bytes"], proof["device_read_bytes"] = spent
    return proof


def make_cold(paths: Iterable[Path]) -> None:
    """Evict files from the page cache.

    Raises:
        Skip: the platform or the filesystem cannot do that.
        OSError: a file cannot be read.
    """
    if not page_cache.can_evict():
        raise Skip(f"cold data needs posix_fadvise, which this platform does not have; {USE_WARM}")
    paths = list(paths)
    for filesystem in sorted(_filesystems(paths)):
        if filesystem in KEEPS_FILES:
            raise Skip(
                f"cold data needs files that can be evicted; {KEEPS_FILES[filesystem]}; {USE_WARM}"
            )
    for path in paths:
        page_cache.evict(path)


def make_warm(paths: Iterable[Path]) -> None:
    """Read every byte of the files, so that memory holds them.

    Raises:
        OSError: a file cannot be read.
    """
    buffer = bytearray(CHUNK_BYTES)
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


def residency(paths: list[Path]) -> tuple[float | None, str]:
    """Measure how much of the files the page cache holds; see `page_cache.residency`."""
    # zfs reads past the page cache: that would count as cold, whatever its own cache holds.
    if "zfs" in _filesystems(paths):
        return None, "unknown"
    return page_cache.residency(paths)


def _filesystems(paths: list[Path]) -> set[str]:
    # One path for each device is enough, and asking for every one would take seconds.
    one_each = {path.stat().st_dev: path for path in paths}
    return {describe_medium(path).filesystem for path in one_each.values()}


def _read_bytes() -> tuple[int, int] | None:
    """Bytes that this process and its children, ended ones included, asked for and fetched.

    None where that is unknown of any of them: a part of it would be no proof.
    """
    import psutil

    asked = fetched = 0
    this = psutil.Process()
    multiprocessing.active_children()  # waits for ended ones: till then only root may read theirs
    # The lowest first: whoever ends meanwhile is then counted among its parent's ended children.
    for process in [*reversed(this.children(recursive=True)), this]:
        try:
            counts = process.io_counters()
            asked, fetched = asked + counts.read_chars, fetched + counts.read_bytes
        except psutil.NoSuchProcess as ended:
            if isinstance(ended, psutil.ZombieProcess):
                return None
        except (AttributeError, RuntimeError, ValueError, psutil.Error):
            return None  # not on this platform, empty or incomplete in a sandbox, or not allowed
    return asked, fetched
