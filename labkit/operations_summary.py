"""From the rows of timed operations to ratios: one summary row per library, operation, size.

    rows -> blocks that count (`counted` says why one does not) -> seconds per block
         -> geometric mean, and paired log-ratios to the operation's first library (pillow
            where it has the operation) -> ratio, interval, verdict

The formulas are in `statistics`.  Main trap: with fifty comparisons some look significant by
chance, so in full mode the intervals share one level over all of them (Holm).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, geometric_mean, stdev

from labkit.counted import WATCHED, why_disturbed
from labkit.results import Run
from labkit.settings import MIN_JUDGED_BLOCKS, MODES
from labkit.statistics import (
    ALPHA,
    detectable_share,
    holm,
    is_stable,
    p_value,
    ratio_interval,
    verdict,
)

KIND = "operation"
# Format history of the rows
#   1  first version
#   2  disturbance added; without it nothing speaks against a block
SCHEMA = 2

ONE_CELL = ("block", "operation", "library", "role", "size")
ALL_REJECTED = "every block in which it was measured was rejected"

Key = tuple[str, str, str]  # operation, library, size


@dataclass(frozen=True, kw_only=True)
class OperationRow:
    """One library's way of one operation at one size; None is unknown."""

    operation: str
    library: str
    size: str
    """As "640x480", width before height."""
    jpeg_bytes: int
    """Mean size of the pictures' files."""
    baseline: str
    """The library that this one is divided by."""
    status: str
    """ok, skipped, failed, or missing where every block was rejected."""
    reason: str = ""
    image_s: float | None = None
    """Geometric mean over blocks of the seconds per image."""
    low_s: float | None = None
    """Lower end of its 95 % interval; None below two blocks."""
    high_s: float | None = None
    blocks_s: tuple[float, ...] = ()
    """One per block."""
    ratio: float | None = None
    """Geometric mean over blocks of the time over the baseline's; lower is better."""
    ci_low: float | None = None
    """Lower end of its 95 % interval, Holm-adjusted in full mode; None below two blocks."""
    ci_high: float | None = None
    mde: float | None = None
    """Smallest effect that would be seen, as a share; None below two blocks."""
    verdict: str = ""
    """Empty where nothing is judged."""


@dataclass(frozen=True, kw_only=True)
class Twins:
    """The same measured twice in every block: what noise alone does."""

    ratio: float
    """Geometric mean over blocks and sizes of the second over the first."""
    low: float | None
    """Lower end of its 95 % interval; None below two blocks."""
    high: float | None
    noise: float | None
    """Standard deviation of ln(A2/A1) over blocks and sizes, as a row is of one size."""
    log_ratios: tuple[float, ...]
    """One ln(A2/A1) per block, the mean of its sizes."""

    @property
    def stable(self) -> bool:
        """Whether the two agree."""
        return is_stable(self.log_ratios)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Which blocks of a run count."""

    counting: frozenset[int]
    rejected: dict[int, str]
    """Block -> why the machine was not the run's own meanwhile."""
    are_rejected_left_out: bool
    """Whether rejected blocks do not count: where verdicts are spoken."""
    unwatched: tuple[str, ...]
    """What no block could be rejected for, as it could not be watched."""


def count_blocks(run: Run) -> Blocks:
    """Choose the blocks that count, by the rule of the trials and without a look at a time.

    Args:
        run: from `run_operations`.
    """
    rejected: dict[int, str] = {}
    rows = _checked(run)
    for row in rows:
        if why := why_disturbed(row.get("disturbance") or {}):
            rejected.setdefault(row["block"], why)
    leaves_out = MODES[run.info["mode"]].judged
    blocks = {row["block"] for row in rows}
    return Blocks(
        counting=frozenset(blocks - rejected.keys() if leaves_out else blocks),
        rejected=dict(sorted(rejected.items())),
        are_rejected_left_out=leaves_out,
        unwatched=tuple(
            words
            for name, words in WATCHED.items()
            if any((row.get("disturbance") or {}).get(name) is None for row in rows)
        ),
    )


def summarize_operations(run: Run) -> tuple[OperationRow, ...]:
    """Derive one row per operation, library and size from a run's raw rows.

    Args:
        run: from `run_operations`.

    Returns:
        In the order in which the rows were written.

    Raises:
        ValueError: the rows were written by a newer labkit.
    """
    cells: dict[Key, list[dict]] = {}
    for row in _checked(run):
        cells.setdefault((row["operation"], row["library"], row["size"]), []).append(row)
    counting = count_blocks(run).counting
    times = {key: _seconds_by_block(rows, counting) for key, rows in cells.items()}
    baselines: dict[tuple[str, str], str] = {}
    for operation, library, size in cells:
        if times[operation, library, size]:
            baselines.setdefault((operation, size), library)
    log_ratios = {
        (operation, library, size): _log_ratios(
            times[operation, library, size], times[operation, baselines[operation, size], size]
        )
        for operation, library, size in cells
        if baselines.get((operation, size), library) != library
    }
    judged = MODES[run.info["mode"]].judged
    testable = [key for key, d in log_ratios.items() if len(d) >= 2]
    levels = dict.fromkeys(testable, ALPHA)
    if judged:
        levels = dict(zip(testable, holm([p_value(log_ratios[key]) for key in testable])))
    twins = compare_twins(run)
    stable = twins is None or twins.stable
    summary = []
    for key, rows in cells.items():
        d = log_ratios.get(key, [])
        ci_low, ci_high = ratio_interval(d, levels.get(key))
        words = judged and len(d) >= MIN_JUDGED_BLOCKS
        summary.append(
            OperationRow(
                operation=key[0],
                library=key[1],
                size=key[2],
                jpeg_bytes=rows[0]["jpeg_bytes"],
                baseline=baselines.get((key[0], key[2]), key[1]),
                ratio=math.exp(fmean(d)) if d else None,
                ci_low=ci_low,
                ci_high=ci_high,
                mde=detectable_share(stdev(d), len(d), levels[key]) if len(d) >= 2 else None,
                verdict=verdict(d, levels[key], stable=stable) if words else "",
                **_time(rows, tuple(times[key].values())),
            )
        )
    return tuple(summary)


def compare_twins(run: Run) -> Twins | None:
    """Compare the two runs of what every block times twice; None where no block counts.

    Args:
        run: from `run_operations`.
    """
    counting = count_blocks(run).counting
    times = {
        (row["block"], row["size"], row["role"]): row["image_s"]
        for row in _checked(run)
        if row["role"] and row["status"] == "ok" and row["block"] in counting
    }
    by_block: dict[int, list[float]] = {}
    for block, size, role in times:
        if role == "A1" and (block, size, "A2") in times:
            ratio = times[block, size, "A2"] / times[block, size, "A1"]
            by_block.setdefault(block, []).append(math.log(ratio))
    if not by_block:
        return None
    d = [fmean(sizes) for sizes in by_block.values()]  # a block counts once, whatever its sizes
    low, high = ratio_interval(d, ALPHA)
    return Twins(
        ratio=math.exp(fmean(d)),
        low=low,
        high=high,
        noise=stdev(chain.from_iterable(by_block.values())) if len(d) >= 2 else None,
        log_ratios=tuple(d),
    )


def _checked(run: Run) -> list[dict[str, object]]:
    """Take the rows of operations; of a block run again after a crash the later ones."""
    rows = [row for row in run.rows if row["kind"] == KIND]
    newest = max((row["schema"] for row in rows), default=0)
    if newest > SCHEMA:
        raise ValueError(
            f"schema must be at most {SCHEMA}, got {newest}; update labkit to read this run"
        )
    last = {tuple(row[name] for name in ONE_CELL): row for row in rows}
    return list(last.values())


def _seconds_by_block(rows: Sequence[dict], counting: Collection[int]) -> dict[int, float]:
    times = {
        (row["block"], row["role"]): row["image_s"]
        for row in rows
        if row["status"] == "ok" and row["block"] in counting
    }
    blocks: dict[int, list[float]] = {}
    for (block, _), image_s in times.items():
        blocks.setdefault(block, []).append(image_s)
    return {block: geometric_mean(seconds) for block, seconds in blocks.items()}


def _log_ratios(times: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    return [math.log(s / base[block]) for block, s in times.items() if block in base]


def _time(rows: Sequence[dict], blocks_s: tuple[float, ...]) -> dict[str, object]:
    """Say how long it took, or why there is no number."""
    if not blocks_s:
        if any(row["status"] == "ok" for row in rows):
            return {"status": "missing", "reason": ALL_REJECTED}
        return {"status": rows[-1]["status"], "reason": rows[-1]["reason"]}
    low_s, high_s = ratio_interval([math.log(s) for s in blocks_s], ALPHA)
    return {
        "status": "ok",
        "image_s": geometric_mean(blocks_s),
        "low_s": low_s,
        "high_s": high_s,
        "blocks_s": blocks_s,
    }
