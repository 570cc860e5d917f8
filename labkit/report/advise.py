"""Advice for data larger than memory: what a faster disk, packing or copying first would give.

    size of data and memory ─▶ share in memory ─▶ measured rows on both sides of it ─▶ a table

Nothing is predicted from figures that were not measured: the rows are those of the experiment
`memory` on this machine, and between two of its shares times are interpolated linearly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit import units
from labkit.analysis.rows import Row
from labkit.analysis.simulated import warnings
from labkit.experiments.storage import memory
from labkit.machine import hardware
from labkit.records import ReadCounts
from labkit.report import words
from labkit.runs.store import StoredRun, earlier_runs

if TYPE_CHECKING:
    from labkit.report.table import Table

GB = 1e9

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
        if not (is_number and 0 < value <= 1e9):
            raise ValueError(
                f"{name} must be a number above 0 and at most 1,000,000,000, got {value!r}; "
                "give GB of 10^9 bytes"
            )
    machine_id = hardware.provenance().machine_id
    name = memory.__name__
    run = next(earlier_runs(results, name, machine_id=machine_id, mode="full"), None)
    arms = run and _arms(run)
    if not arms:
        raise ValueError(
            f"results must hold a finished run of {name} on this machine, got none in "
            f"{results}; make one with: labkit run {name} (--mode full for verdicts)"
        )
    return _table(run, arms, data_gb * GB, memory_gb * GB)


def _arms(run: StoredRun) -> dict[str, Points]:
    """Return what was measured of each way to store the data; the baseline first."""
    points_by_arm: dict[str, Points] = {}
    for row in run.summary.rows:
        percent = run.info.variants[row.variant].cache
        known = None not in (row.normalized_time, row.steady_images_per_s)
        if isinstance(percent, int) and known:
            points_by_arm.setdefault(row.name, []).append((percent / 100, row))
    return {arm: sorted(points, key=itemgetter(0)) for arm, points in points_by_arm.items()}


def _table(
    run: StoredRun, arms: Mapping[str, Points], data_bytes: float, memory_bytes: float
) -> Table:
    from labkit.report.table import Table

    summary, data = run.summary, run.info.data
    base, base_points = next(iter(arms.items()))
    base_rows = [row for _, row in base_points]
    taken_bytes = max(row.peak_pss_bytes or row.peak_rss_bytes or 0 for row in base_rows)
    share = min(max(memory_bytes - taken_bytes, 0) / data_bytes, 1.0)
    image_bytes = data.bytes / data.images
    bytes_per_s = run.info.reads.get(base_rows[0].variant, ReadCounts()).bytes_per_s
    read_s = data_bytes / bytes_per_s if bytes_per_s else None
    base_s, cells = None, []
    for arm, points in arms.items():
        neighbours = _neighbours(points, share)
        epoch_s, longest_s = (
            x and x * data_bytes / image_bytes for x in _s_per_image(neighbours, share)
        )
        base_s = epoch_s if arm == base else base_s
        saved_s = None if arm == base or None in (base_s, epoch_s) else base_s - epoch_s
        measured = [f"{units.whole_percent(at)}: {words.normalized(row)}" for at, row in neighbours]
        costs = {arm: None} if arm == base else _costs(run, arm, points, read_s, data_bytes)
        for way, cost_s in costs.items():
            pays = units.UNKNOWN if saved_s is None else "no saving shown"
            if saved_s is not None and saved_s > 0 and longest_s < base_s:
                known = cost_s is not None
                pays = units.count(math.ceil(cost_s / saved_s), "epoch") if known else "not known"
            cells.append(
                {
                    "variant": way,
                    "an epoch takes": units.seconds(epoch_s) if neighbours else "not measured",
                    "saves per epoch": units.seconds(saved_s),
                    "costs once": units.seconds(cost_s),
                    "pays after": pays,
                    "measured (normalized time)": "; ".join(measured),
                }
            )
    rate = "at a rate that was not measured"
    if bytes_per_s is not None:
        rate = f"measured at {units.count_bytes(bytes_per_s)}/s, cold images one after another"
    without = [row for row in summary.rows if row.name not in arms]
    return Table(
        cells,
        heading=[
            f"{units.count_bytes(data_bytes)} of images and {units.count_bytes(memory_bytes)} of "
            f"memory: at most {units.percent(share)} of the data is in memory when an epoch starts",
            *warnings(summary),
            words.conditions(summary),
        ],
        notes=[
            f"at most: memory less the {units.count_bytes(taken_bytes)} that training and its "
            "workers took in this run; a larger model or another program leaves less",
            "times lie on a straight line between those measured at the shares next to this one, "
            f"with images of {units.count_bytes(image_bytes)}; a random part is in memory, as "
            "after epochs in random order, which interrupts reading a pack in order",
            f"copying and packing read the {base} once, {rate}; a copy's writing is not in it, "
            "and the target disk must have enough space",
            *dict.fromkeys(
                f"{row.name}: {words.reason(row) or row.steady_reason}" for row in without
            ),
            *summary.notes,
        ],
    )


def _neighbours(points: Points, share: float) -> Points:
    """Return the points next to a share; nothing where it lies outside of what was measured."""
    below = [point for point in points if point[0] <= share][-1:]
    above = [point for point in points if point[0] >= share][:1]
    return list(dict(below + above).items()) if below and above else []


def _s_per_image(neighbours: Points, share: float) -> tuple[float | None, float | None]:
    """Return the time per image, and the same at the upper ends of the intervals."""
    if not neighbours:
        return None, None
    shares, rows = zip(*neighbours)
    # Steady rates: an epoch of all images starts its workers only once, as a short one does.
    times_s = [1 / row.steady_images_per_s for row in rows]
    ends = [(row.ci_high or math.inf) / row.normalized_time for row in rows]
    longest_s = [time_s * end for time_s, end in zip(times_s, ends)]
    return np.interp(share, shares, times_s), np.interp(share, shares, longest_s)


def _costs(
    run: StoredRun, arm: str, points: Points, read_s: float | None, data_bytes: float
) -> dict[str, float | None]:
    """Return the seconds that each way to come to an arm takes once; None where not measured."""
    if pack := run.info.costs.get(points[0][1].variant):
        known = None not in (read_s, pack.pack_s, pack.source_bytes)
        return {arm: read_s + pack.pack_s * data_bytes / pack.source_bytes if known else None}
    return {f"{arm}, data kept there": 0.0, f"{arm}, copied first": read_s}
