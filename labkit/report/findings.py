"""Memory against disks: the comparisons of a run that ask what the page cache does.

Variants that differ only in the cache are compared epoch by epoch, media in memory with a disk
that was read cold, and with a disk whose files were all in memory.  Which variants belong
together follows from their settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from labkit.analysis.summary import Row, Summary, ratios
from labkit.parts.storage.cache_state import WARM_MIN_SHARE
from labkit.resolve import traits
from labkit.runs.store import StoredRun

if TYPE_CHECKING:
    from labkit.report.frame import Frame

# Directories and programs are read too, so a run from memory still reads a little.
MEMORY_MAX_READ_SHARE = 0.01
COLUMNS = [
    "variant", "divided by", "epochs", "ratio", "ci_low", "ci_high", "verdict", "disk_read_share",
    "swapped_pages",
]  # fmt: skip
NOTE = (
    "disk_read_share: bytes the variant read from a disk, of all bytes it read; swapped_pages: of "
    "the whole machine, during the trials of both."
)


def findings(run: StoredRun) -> Frame:
    """Return the comparisons of cold, warm and in-memory variants.

    Args:
        run: of any experiment.

    Returns:
        A row per comparison; none without two measured variants that differ only in the cache.
    """
    from labkit.report.frame import frame_of

    summary = run.summary
    pairs = list(_pairs(run.info["variants"], summary))
    found = ratios(summary, pairs)
    cells = []
    for one, other, epochs in pairs:
        if ratio := found.get((one.variant, other.variant, epochs)):
            pages = [one.swapped_pages, other.swapped_pages]
            cells.append(
                [
                    one.variant, other.variant, epochs, ratio.ratio, ratio.low, ratio.high,
                    ratio.verdict, one.device_read_share, None if None in pages else sum(pages),
                ]
            )  # fmt: skip
    frame = frame_of(COLUMNS, cells)
    frame.notes = (NOTE,)
    return frame


def _pairs(
    settings: Mapping[str, Mapping[str, object]], summary: Summary
) -> Iterator[tuple[Row, Row, str]]:
    """Find which variants to compare, in which epochs."""
    rows = [row for row in summary.rows if row.epochs_s and row.variant in settings]
    twins = [
        (cold, other)
        for cold in rows
        for other in rows
        if settings[cold.variant].get("cache") == "cold" != settings[other.variant].get("cache")
        and _same(settings, cold, other, except_for=("cache",))
    ]
    if not twins:
        return
    in_memory = [row for row in rows if traits(settings[row.variant]).in_memory]
    beside_memory = [
        (cold, row)
        for cold, _ in twins
        for row in in_memory
        # The baseline against memory is what the chart of normalized times shows.
        if cold.variant != summary.baseline
        and _same(settings, cold, row, except_for=("cache", "storage"))
    ]
    for cold, other in twins + beside_memory:
        yield cold, other, "epoch 1"
        yield cold, other, "later"
    for row in in_memory:
        for disk in rows:
            if (
                disk not in in_memory
                and _read_from_memory(row)
                and _read_from_memory(disk)
                and _same(settings, disk, row, except_for=("cache", "storage"))
            ):
                yield row, disk, "total"


def _same(
    settings: Mapping[str, Mapping[str, object]], one: Row, other: Row, *, except_for: tuple
) -> bool:
    """Return whether two variants differ in nothing but the named settings."""
    ignored = dict.fromkeys(except_for)
    return {**settings[one.variant], **ignored} == {**settings[other.variant], **ignored}


def _read_from_memory(row: Row) -> bool:
    """Return whether all files were in memory before, and nearly nothing came from a disk."""
    held, read = row.resident_share_before, row.device_read_share
    if held is None or read is None:
        return False
    return held >= WARM_MIN_SHARE and read <= MEMORY_MAX_READ_SHARE
