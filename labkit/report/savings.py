"""Extrapolate a run to a whole training: hours and money that each variant would save.

A run measures a subset, whose later epochs come from memory.  A full data set that memory cannot
hold is read from the disk in every epoch, so warm times are not extrapolated to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.summary import Row, Summary
from labkit.analysis.winner import why_not, winner
from labkit.machine import hardware
from labkit.report import captions
from labkit.report.row_words import epoch_bars, reason
from labkit.resolve import traits
from labkit.runs.store import StoredRun, how_to_complete

if TYPE_CHECKING:
    from labkit.report.frame import Frame

HOUR_S = 3_600
# Assumed: programs, workers and batches take the rest of the memory.
CACHE_SHARE = 0.8
COLUMNS = [
    "variant", "normalized_time", "verdict", "first_epoch_s", "later_epoch_s", "total_h",
    "saved_h", "saved_money", "remark",
]  # fmt: skip
# [004] sections 1 and 4; DOCUMENTS A, "Headline arithmetic".
DOCUMENT = (
    "The document: 100 epochs of 110,000 images at 100 min are 6.94 days (it says 7); 39 % less is "
    "4.24 days (it says 4.5)."
)


def savings(run: StoredRun, *, epochs: int, images: int, gpu_hour: float | None = None) -> Frame:
    """Return what each variant would save over a whole training.

    Args:
        run: of any experiment that measures epochs.
        epochs: of the whole training.
        images: of the full data set, per epoch.
        gpu_hour: price of an hour of the GPU, in any currency.

    Raises:
        ValueError: an argument is out of range, or the run cannot be extrapolated.
    """
    from labkit.report.frame import frame_of

    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    if images < 1:
        raise ValueError(f"images must be at least 1, got {images}")
    if gpu_hour is not None and gpu_hour < 0:
        raise ValueError(f"gpu_hour must be at least 0, got {gpu_hour}")
    if run.info.get("groups"):
        raise ValueError("run must measure epochs, got one of operations")
    data = run.info.get("data") or {}
    if not data.get("bytes"):  # older runs
        raise ValueError("run must record the size of its data, got none; run it again")
    summary = run.summary
    if summary.rows[0].normalized_time is None:
        raise ValueError(
            f"run must hold a complete block of its baseline, got none; {how_to_complete(run)}"
        )
    data_bytes = data["bytes"] / data["images"] * images
    recorded_bytes = (run.info.get("provenance") or {}).get("memory_bytes")
    cache_bytes = CACHE_SHARE * (recorded_bytes or hardware.memory_bytes())
    fits = data_bytes <= cache_bytes
    # All trials of a run have equally many images.
    scale = images / next(trial.epochs[0].images for trial in run.trials if trial.epochs)

    cells, base_s, extrapolated = [], None, []
    for row in summary.rows:
        first_s = later_s = total_s = None
        if row.epochs_s:
            first_s, *later = (scale * bar.mean_s for bar in epoch_bars(row))
            later_s = first_s if not fits else later[0] if later else None
        remark = _why_left_out(row, run, summary, fits=fits)
        if not remark and later_s is None and epochs > 1:
            remark = "later epochs were not measured; run it with epochs=2"
        if not remark:
            total_s = first_s + (epochs - 1) * (later_s or 0.0)
            extrapolated.append(row.variant)
            remark = _not_counted(row, run)
        if row is summary.rows[0]:
            base_s = total_s
        saved_h = None if None in (base_s, total_s) else (base_s - total_s) / HOUR_S
        cells.append(
            [
                row.variant, row.normalized_time, row.verdict, first_s, later_s,
                total_s and total_s / HOUR_S, saved_h,
                None if None in (saved_h, gpu_hour) else saved_h * gpu_hour, remark,
            ]
        )  # fmt: skip
    frame = frame_of(COLUMNS, cells)
    if gpu_hour is None:
        frame = frame.drop(columns="saved_money")
    frame.caption = (f"{epochs} epochs of {images:,} images", *captions.stand_ins(summary))
    best = winner(summary, among=extrapolated)
    frame.notes = _notes(best, summary, data_bytes, cache_bytes)
    return frame


def _why_left_out(row: Row, run: StoredRun, summary: Summary, *, fits: bool) -> str:
    """Return why a variant is not extrapolated; empty where it is."""
    if why := reason(row):
        return why
    settings = run.info["variants"][row.variant]
    if row.normalized_time < 1 and (why := why_not(summary, row)):
        return why
    if fits:
        return ""
    if traits(settings).in_memory:
        return "the full data set does not fit into memory"
    if row.labels.get("cache") != "cold":
        return "measured warm, but the full data set does not fit into memory; run it cold"
    return ""


def _not_counted(row: Row, run: StoredRun) -> str:
    if traits(run.info["variants"][row.variant]).in_memory:
        return "without the copy into memory"
    return "" if row.labels.get("cache") == "cold" else "without the first, cold epoch"


def _notes(best: Row, summary: Summary, data_bytes: float, cache_bytes: float) -> Sequence[str]:
    found = f"Winner: {best.variant}" if best is not summary.rows[0] else "No variant is faster"
    verdict = "." if summary.judged else f"; no verdict in {summary.mode} mode."
    fits = "from memory" if data_bytes <= cache_bytes else "from the disk, as the first one"
    return (
        found + verdict,
        f"The full data set is {units.count_bytes(data_bytes)}, the page cache holds "
        f"{units.count_bytes(cache_bytes)} ({units.percent(CACHE_SHARE)} of memory): later epochs "
        f"are read {fits}.",
        DOCUMENT,
    )
