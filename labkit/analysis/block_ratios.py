"""Compare any two variants of a run block by block: first epochs, later ones, or all of them.

The summary compares every variant with the baseline only.  Blocks that lack one of the two are left
out; verdicts are adjusted (Holm) over all comparisons asked of a run at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from labkit.analysis.statistics import holm, p_value, ratio_interval, verdict
from labkit.analysis.summary import Row, Summary
from labkit.settings import MIN_JUDGED_BLOCKS

# What of a trial's epochs is compared.
PARTS: dict[str, Callable[[Sequence[float]], float]] = {
    "epoch 1": lambda epochs_s: epochs_s[0],
    "later": lambda epochs_s: fmean(epochs_s[1:]),
    "total": sum,
}


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How one variant's time compares with another's."""

    ratio: float
    low: float | None
    """Lower end of the 95 % interval, Holm-adjusted; None below two blocks."""
    high: float | None
    blocks: int
    """That have both."""
    verdict: str
    """Empty where nothing is judged."""


def ratios(
    summary: Summary, wanted: Sequence[tuple[Row, Row, str]]
) -> dict[tuple[str, str, str], Ratio]:
    """Compare variants with each other, in any mode.

    Args:
        summary: what `summary.summarize` returns.
        wanted: one row, the row it is divided by, one of `PARTS`.

    Returns:
        (variant, the one it is divided by, part) -> ratio, for those with a block in common;
        with a verdict where the run is judged and they have enough blocks.
    """
    log_ratios = {}
    for one, other, part in wanted:
        a, b = _log_times(one, part), _log_times(other, part)
        if shared := [block for block in a if block in b]:
            log_ratios[one.variant, other.variant, part] = [a[x] - b[x] for x in shared]
    testable = [key for key, d in log_ratios.items() if len(d) >= 2]
    levels = dict(zip(testable, holm([p_value(log_ratios[key]) for key in testable])))
    compared = {}
    for key, d in log_ratios.items():
        level = levels.get(key)
        low, high = ratio_interval(d, level)
        judged = summary.judged and len(d) >= MIN_JUDGED_BLOCKS
        said = verdict(d, level, stable=summary.stable) if judged else ""
        compared[key] = Ratio(
            ratio=math.exp(fmean(d)), low=low, high=high, blocks=len(d), verdict=said
        )
    return compared


def _log_times(row: Row, part: str) -> dict[int, float]:
    """Give one log time per block; of the baseline's two runs the geometric mean, as everywhere."""
    logs: dict[int, list[float]] = {}
    for block, epochs_s in zip(row.in_blocks, row.epochs_s, strict=True):
        if part != "later" or len(epochs_s) > 1:
            logs.setdefault(block, []).append(math.log(PARTS[part](epochs_s)))
    return {block: fmean(both) for block, both in logs.items()}
