"""What storing images in another way costs once, and after how many epochs it is earned back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from labkit.analysis.summary import Row, Summary
from labkit.report.row_words import reason
from labkit.runs.store import StoredRun

if TYPE_CHECKING:
    from labkit.report.frame import Frame

COLUMNS = [
    "variant", "size_bytes", "of_original", "made_s", "opens_per_image", "reads_per_image",
    "disk_requests_per_image", "saved_s_per_epoch", "earned_back_epochs", "verdict",
]  # fmt: skip
NOTES = (
    "opens, reads and disk_requests are counted in a separate pass over cold images, without "
    "workers; files mapped into memory are read without calls.",
    "saved_s_per_epoch is for an epoch of all images; earned_back_epochs is made_s beyond the "
    "baseline's, divided by it.",
)


def costs(run: StoredRun) -> Frame:
    """Return what every variant's way of storing costs and saves.

    Args:
        run: of any experiment.

    Returns:
        The baseline first; no rows where all variants read the data as it is.
    """
    from labkit.report.frame import frame_of

    summary, made = run.summary, run.info.get("costs") or {}
    rows = summary.rows if made else ()
    frame = frame_of(COLUMNS, [_cells(row, run.info, made, summary) for row in rows])
    frame.notes = NOTES
    return frame


def _cells(
    row: Row, info: Mapping[str, object], made: Mapping[str, Mapping], summary: Summary
) -> list[object]:
    data, own = info["data"], made.get(row.variant) or {}
    reads = (info.get("reads") or {}).get(row.variant) or {}
    size_bytes = own["bytes"] if own else data["bytes"]
    made_s, base_s = _made_s(own), _made_s(made.get(summary.baseline) or {}) or 0.0
    saved_s = _saved_s_per_epoch(row, info, summary)
    epochs = None
    # Equal files cost nothing more; a gain that a verdict denies earns nothing back.
    same = own == (made.get(summary.baseline) or {})
    no_gain = summary.judged and row.verdict != "faster"
    if made_s is not None and saved_s is not None and saved_s > 0 and not (same or no_gain):
        epochs = math.ceil(max(0.0, made_s - base_s) / saved_s)
    return [
        row.variant,
        size_bytes,
        size_bytes / data["bytes"] if size_bytes and data["bytes"] else None,
        made_s,
        reads.get("opens"),
        reads.get("calls"),
        reads.get("requests"),
        saved_s,
        epochs,
        reason(row) or row.verdict,
    ]


def _made_s(made: Mapping[str, object]) -> float | None:
    """Add up the seconds of packing and copying; None where one of them was not recorded."""
    seconds = [made[name] for name in ("pack_s", "copy_s") if name in made]
    return sum(seconds) if seconds and None not in seconds else None


def _saved_s_per_epoch(row: Row, info: Mapping[str, object], summary: Summary) -> float | None:
    images = (info.get("calibration") or {}).get("images")
    base_s = summary.rows[0].time_s
    if row.variant == summary.baseline or None in (row.normalized_time, base_s, images):
        return None
    epoch_s = base_s / summary.epochs * info["data"]["images"] / images
    return epoch_s * (1 - row.normalized_time)
