"""Two variants of a run compared block by block: their first epochs, later ones, or all of them.

    epochs of A ÷ epochs of B, in every block ─▶ log-ratios ─▶ ratio, interval, verdict

A summary compares every variant with the baseline; questions about memory and disks need
others side by side, and single epochs.  The same formulas judge them, Holm-adjusted over all
that is asked at once.  Main trap: rows do not say which blocks they have, so only where both
variants have all of them can they be paired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from labkit import units
from labkit.statistics import holm, p_value, ratio_interval, verdict
from labkit.summary import Row, Summary

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
    low: float
    high: float
    verdict: str

    def __str__(self) -> str:
        interval = units.interval(self.low, self.high)
        return f"ratio {units.normalized(self.ratio)} {interval}, {self.verdict}"


Compared = dict[tuple[str, str, str], Ratio]
"""A variant, the one it is divided by, one of `PARTS` -> how they compare."""


def compare(summary: Summary, wanted: Sequence[tuple[Row, Row, str]]) -> Compared:
    """Compare variants with each other, where a run is judged at all.

    Args:
        summary: what `summary.summarize` returns.
        wanted: one row, the row it is divided by, one of `PARTS`.

    Returns:
        Those that can be paired in every block; nothing unless the summary is judged.
    """
    if not summary.judged:
        return {}
    log_ratios = {}
    for one, other, part in wanted:
        a, b = _log_times(one, summary, part), _log_times(other, summary, part)
        if a and b:
            log_ratios[one.variant, other.variant, part] = [x - y for x, y in zip(a, b)]
    levels = holm([p_value(d) for d in log_ratios.values()])
    compared = {}
    for (key, d), level in zip(log_ratios.items(), levels):
        low, high = ratio_interval(d, level)
        said = verdict(d, level, stable=summary.stable)
        compared[key] = Ratio(ratio=math.exp(fmean(d)), low=low, high=high, verdict=said)
    return compared


def _log_times(row: Row, summary: Summary, part: str) -> list[float]:
    """Give one log time per block; none if the variant is missing in a block.

    Of the baseline's two runs the geometric mean counts, as everywhere.
    """
    runs = len(row.epochs_s) // summary.n_blocks if row.variant == summary.baseline else 1
    if len(row.epochs_s) != runs * summary.n_blocks:
        return []
    if part == "later" and min(map(len, row.epochs_s)) < 2:
        return []
    logs = [math.log(PARTS[part](epochs_s)) for epochs_s in row.epochs_s]
    return [fmean(logs[i : i + runs]) for i in range(0, len(logs), runs)]
