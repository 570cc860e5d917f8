"""Advice for data larger than memory: what a faster disk, packing or copying first would give.

    size of data and memory ─▶ share in memory ─▶ measured rows on both sides of it ─▶ a table

Nothing is predicted from figures that were not measured: the rows are those of the experiment
`memory` on this machine, and between two of its shares times are interpolated linearly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.stand_ins import stand_ins
from labkit.analysis.summary import Row
from labkit.experiments import storing
from labkit.machine import hardware
from labkit.report import words
from labkit.runs.store import StoredRun, earlier_runs

if TYPE_CHECKING:
    from labkit.report.table import Table

EXPERIMENT = storing.memory.__name__
GB = 1e9
MOST_GB = 1e9

# Share of the data in memory, and the row that was measured at it; the smallest share first.
Points = list[tuple[float, Row]]


def advise(
    data_gb: float, memory_gb: float | None = None, *, results: Path | str = "results"
) -> Table:
    """Return what an SSD, packing or copying first would give for data of a size, per epoch.

    Args:
        data_gb: size of the images, in GB of 10^9 bytes.
        memory_gb: memory of the machine that trains, likewise; unset: this machine's.
        results: folder with a finished run of the experiment `memory`; of several, the newest in
            full mode counts, else the newest.

    Raises:
        ValueError: a size is not above 0 or too large, or there is no such run of this machine.
    """
    if memory_gb is None:
        memory_gb = hardware.memory_bytes() / GB
    for name, value in (("data_gb", data_gb), ("memory_gb", memory_gb)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (is_number and 0 < value <= MOST_GB):
            raise ValueError(
                f"{name} must be a number above 0 and at most {MOST_GB:,.0f}, got {value!r}; "
                "give GB of 10^9 bytes"
            )
    machine_id = hardware.provenance()["machine_id"]
    run = next(earlier_runs(results, EXPERIMENT, machine_id=machine_id, mode="full"), None)
    arms = run and _arms(run)
    if not arms:
        raise ValueError(
            f"results must hold a finished run of {EXPERIMENT} on this machine, got none in "
            f"{results}; make one with: labkit run {EXPERIMENT} (--mode full for verdicts)"
        )
    return _table(run, arms, data_gb * GB, memory_gb * GB)


def _arms(run: StoredRun) -> dict[str, Points]:
    """Return what was measured of each way to store the data; the baseline first."""
    found: dict[str, Points] = {}
    for row in run.summary.rows:
        percent = run.info["variants"][row.variant].get("cached")
        if None not in (percent, row.normalized_time, row.steady_images_per_s):
            found.setdefault(row.name, []).append((percent / 100, row))
    return {arm: sorted(points, key=itemgetter(0)) for arm, points in found.items()}


def _table(
    run: StoredRun, arms: Mapping[str, Points], data_bytes: float, memory_bytes: float
) -> Table:
    from labkit.report.table import Table

    summary, data = run.summary, run.info["data"]
    base, base_points = next(iter(arms.items()))
    taken_bytes = max(row.peak_pss_bytes or row.peak_rss_bytes or 0 for _, row in base_points)
    share = min(max(memory_bytes - taken_bytes, 0) / data_bytes, 1.0)
    images = data_bytes / (data["bytes"] / data["images"])
    base_s, cells = None, []
    for arm, points in arms.items():
        around = _around(points, share)
        epoch_s = images * _s_per_image(around, share) if around else None
        base_s = epoch_s if arm == base else base_s
        saved_s = None if None in (base_s, epoch_s) else base_s - epoch_s
        is_shown = bool(base_s and around) and images * _longest_s(around, share) < base_s
        measured = [f"{units.whole_percent(at)}: {words.normalized(row)}" for at, row in around]
        for way, cost_s in _costs(run, arm, points, base_points, data_bytes).items():
            pays = units.UNKNOWN
            if arm != base and saved_s is not None:
                pays = "no saving shown"
                if is_shown and saved_s > 0:
                    pays = "not known" if cost_s is None else _epochs(cost_s / saved_s)
            cells.append(
                {
                    "variant": way,
                    "an epoch takes": units.seconds(epoch_s) if around else "not measured",
                    "saves per epoch": units.seconds(saved_s if arm != base else None),
                    "costs once": units.seconds(cost_s),
                    "pays after": pays,
                    "measured (normalized time)": "; ".join(measured),
                }
            )
    data_read, taken = units.count_bytes(data_bytes), units.count_bytes(taken_bytes)
    read_bytes_per_s = _read_bytes_per_s(run, base_points)
    without = [row for row in summary.rows if row.name not in arms]
    return Table(
        cells,
        heading=[
            f"{data_read} of images and {units.count_bytes(memory_bytes)} of memory: at most "
            f"{units.percent(share)} of the data is in memory when an epoch starts",
            *stand_ins(summary),
            words.conditions(summary),
        ],
        notes=[
            f"at most: memory less the {taken} that training and its workers took in this run; a "
            "larger model or another program leaves less",
            "times lie on a straight line between those measured at the shares next to this one, "
            f"with images of {units.count_bytes(data['bytes'] / data['images'])}; a random part is "
            "in memory, as after epochs in random order",
            f"copying and packing read the {base} once, "
            + (
                "at a rate that was not measured"
                if read_bytes_per_s is None
                else f"measured at {units.count_bytes(read_bytes_per_s)}/s, "
                "cold images one after another"
            )
            + "; what is copied must fit",
            *dict.fromkeys(f"{row.name}: {words.reason(row)}" for row in without),
            *summary.notes,
        ],
    )


def _around(points: Points, share: float) -> Points:
    """Return the points next to a share; nothing where it lies outside of what was measured."""
    below = [point for point in points if point[0] <= share][-1:]
    above = [point for point in points if point[0] >= share][:1]
    return list(dict(below + above).items()) if below and above else []


def _s_per_image(around: Points, share: float) -> float:
    # Steady rates: an epoch of all images starts its workers only once, as a short one does.
    return _on_line(around, share, [1 / row.steady_images_per_s for _, row in around])


def _longest_s(around: Points, share: float) -> float:
    """Return the time per image at the upper ends of the intervals; infinite without one."""
    longest = [
        (row.ci_high or math.inf) / row.normalized_time / row.steady_images_per_s
        for _, row in around
    ]
    return _on_line(around, share, longest)


def _on_line(around: Points, share: float, values: Sequence[float]) -> float:
    low, high = around[0][0], around[-1][0]
    weight = (share - low) / (high - low) if high > low else 0.0
    return (1 - weight) * values[0] + weight * values[-1]


def _costs(
    run: StoredRun, arm: str, points: Points, base_points: Points, data_bytes: float
) -> dict[str, float | None]:
    """Return the seconds that each way to come to an arm takes once; None where not measured."""
    first, base = points[0][1].variant, base_points[0][1].variant
    if first == base:
        return {arm: None}
    bytes_per_s = _read_bytes_per_s(run, base_points)
    read_s = data_bytes / bytes_per_s if bytes_per_s else None
    if pack := (run.info.get("costs") or {}).get(first):
        pack_s, source_bytes = pack.get("pack_s"), pack.get("source_bytes")
        known = None not in (read_s, pack_s, source_bytes)
        return {arm: read_s + pack_s * data_bytes / source_bytes if known else None}
    return {f"{arm}, data kept there": 0.0, f"{arm}, copied first": read_s}


def _read_bytes_per_s(run: StoredRun, base_points: Points) -> float | None:
    reads = (run.info.get("reads") or {}).get(base_points[0][1].variant) or {}
    return reads.get("bytes_per_s")


def _epochs(n: float) -> str:
    return units.count(math.ceil(n), "epoch")
