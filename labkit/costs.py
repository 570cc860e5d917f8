"""Costs: what storing images otherwise takes once, and after how many epochs that is earned back.

    run.json (made in, bytes, openings, calls, requests) + ratios ─▶ a row per variant ─▶ table

The time that is saved is this run's, per image, times all images of the data.  Main trap: a
variant whose gain is not there has no break-even point, and one that was not judged has one only
"by these numbers".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit import units
from labkit.row_words import join, reason
from labkit.settings import MODES
from labkit.summary import Row, Summary

if TYPE_CHECKING:
    from labkit.frame import Frame

NO_GAIN = ("no practical difference", "slower", "inconclusive", "machine unstable")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a variant's way of storing takes; None is unknown."""

    variant: str
    made_s: float | None
    """Seconds to pack, scale or preprocess all images, and to copy them; None: it was there."""
    size_bytes: int | None
    """Of all images, on disk."""
    times_original: float | None
    """Bytes, of those of the data as it is."""
    opens: float | None
    """Files opened per image."""
    calls: float | None
    """Read calls per image, of the process."""
    requests: float | None
    """Requests to the disk per image, cold."""
    saved_s: float | None
    """Seconds that an epoch of all images gets shorter by; below 0: longer."""
    pays_after: float | None
    """Epochs; None: never, or unknown."""
    remark: str = ""
    """Why there is no break-even point."""
    why: str = ""
    """Why there is no number at all."""


def costs(info: Mapping[str, object], summary: Summary) -> list[Cost]:
    """Give what every variant's way of storing costs and saves.

    Args:
        info: what `run.json` holds.
        summary: of the same run.

    Returns:
        The baseline first; empty where all variants read the data as it is.
    """
    made = info.get("costs") or {}
    if not made:
        return []
    data, reads = info["data"], info.get("reads") or {}
    images = (info.get("calibration") or {}).get("images")
    epoch_s = _epoch_s(summary.rows[0], summary.epochs)
    whole_s = epoch_s * data["images"] / images if epoch_s and images else None
    found = [
        _cost(row, made, reads.get(row.variant) or {}, data, whole_s, summary)
        for row in summary.rows
    ]
    # Who chooses between two packs makes one of them in any case.
    base_s = found[0].made_s or 0.0
    return [
        cost
        if cost.pays_after is None
        else replace(cost, pays_after=math.ceil(max(0.0, cost.made_s - base_s) / cost.saved_s))
        for cost in found
    ]


def cost_lines(found: Sequence[Cost], summary: Summary) -> list[str]:
    """Say which ways of storing earn back what they cost, and when."""
    paying = [cost for cost in found if cost.pays_after is not None]
    by = "" if summary.judged else f", by these numbers ({summary.mode} mode speaks no verdict)"
    lines = [
        f"{join([cost.variant])}: {units.seconds(cost.made_s)} to make it, "
        f"{units.seconds(cost.saved_s)} less per epoch of all images: earned back after "
        f"{_epochs(cost.pays_after)}{by}"
        for cost in paying
    ]
    never = [c.variant for c in found if c.made_s is not None and c.remark in ("never", *NO_GAIN)]
    if never:
        lines.append(f"No gain that would earn back the making: {join(never)}{by}")
    return lines


def costs_table(found: Sequence[Cost]) -> Frame:
    """Make the table that a notebook shows of `costs`."""
    from labkit.frame import Frame

    cells = [
        [
            cost.variant,
            units.count_bytes(cost.size_bytes),
            _plain(cost.times_original, "×"),
            units.seconds(cost.made_s),
            _plain(cost.opens),
            _plain(cost.calls),
            _plain(cost.requests),
            _saved(cost.saved_s),
            cost.remark if cost.pays_after is None else _epochs(cost.pays_after),
        ]
        for cost in found
    ]
    header = [
        "variant", "on disk", "of the data", "to make", "opened per image",
        "read calls per image", "disk requests per image", "saved per epoch", "earned back after",
    ]  # fmt: skip
    frame = Frame(cells, columns=header).set_index("variant")
    frame.notes = (
        *(f"{cost.variant} is {cost.why}" for cost in found if cost.why),
        "Openings, calls and requests are counted in a pass of their own, over images read once, "
        "with no workers; a mapped file is read without calls.",
        "Saved per epoch: this run's ratio, for an epoch of all images.",
    )
    return frame


def _cost(
    row: Row,
    every: Mapping[str, Mapping[str, object]],
    reads: Mapping[str, object],
    data: Mapping[str, object],
    whole_s: float | None,
    summary: Summary,
) -> Cost:
    made = every.get(row.variant)
    size_bytes = made["bytes"] if made else data["bytes"]
    seconds = [made.get(name) for name in ("pack_s", "copy_s") if made and name in made]
    made_s = sum(seconds) if seconds and None not in seconds else None
    saved_s = pays_after = None
    if whole_s is not None and row.normalized_time is not None and row.variant != summary.baseline:
        saved_s = whole_s * (1 - row.normalized_time)
    remark = _remark(row, every, made_s, saved_s, summary)
    if not remark:
        pays_after = math.ceil(made_s / saved_s)
    return Cost(
        variant=row.variant,
        made_s=made_s,
        size_bytes=size_bytes,
        times_original=size_bytes / data["bytes"] if size_bytes and data["bytes"] else None,
        opens=reads.get("opens"),
        calls=reads.get("calls"),
        requests=reads.get("requests"),
        saved_s=saved_s,
        pays_after=pays_after,
        remark=remark,
        why=reason(row),
    )


def _remark(
    row: Row,
    every: Mapping[str, Mapping[str, object]],
    made_s: float | None,
    saved_s: float | None,
    summary: Summary,
) -> str:
    if row.variant == summary.baseline:
        return "baseline"
    if saved_s is None:
        return row.status if row.status != "ok" else "no number"
    made = every.get(row.variant)
    if made is not None and made == every.get(summary.baseline):
        return "the baseline reads the same"
    if MODES[summary.mode].judged and not row.verdict:
        return "no verdict"
    if row.verdict.startswith(NO_GAIN):
        return row.verdict
    if saved_s <= 0:
        return "never"
    if made is None:
        return "nothing to make"
    if made_s is None:
        return "made elsewhere or stopped: seconds unknown"
    return ""


def _epoch_s(row: Row, epochs: int) -> float | None:
    return row.time_s / epochs if row.time_s and epochs else None


def _epochs(n: float) -> str:
    return units.count(int(n), "epoch")


def _plain(x: float | None, unit: str = "") -> str:
    return units.UNKNOWN if x is None else f"{x:.3g}{unit}"


def _saved(s: float | None) -> str:
    if s is None:
        return units.UNKNOWN
    return units.seconds(s) if s >= 0 else f"−{units.seconds(-s)}"
