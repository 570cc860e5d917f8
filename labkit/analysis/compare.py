"""Compare variants block by block: the ratio of their times, its interval and its verdict.

    pairs of log times by block ─ compare() ─▶ a Comparison for each pair

What is compared together is judged together, so that all verdicts share one error rate.

Source: EVIDENCE section 1 (noise floor, verdicts).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import Literal, TypeVar

from labkit.analysis.statistics import (
    detectable_share,
    equivalence_p_value,
    holm,
    outliers,
    p_value,
    paired_interval,
    ratio_interval,
)
from labkit.analysis.thresholds import ALPHA, DELTA, MAX_AA_DIFFERENCE, MIN_JUDGED_BLOCKS

K = TypeVar("K", bound=Hashable)
LogTimes = Mapping[int, float]  # block -> ln of seconds

Verdict = Literal[
    "",
    "machine unstable",
    "no practical difference",
    "faster",
    "slower",
    "real but small",
    "inconclusive",
    "baseline",
]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The time of one variant compared with that of another; None is unknown.

    >>> import math
    >>> half = Comparison(log_ratios=(math.log(0.4), math.log(0.625)))
    >>> round(half.ratio, 3), half.blocks
    (0.5, 2)
    """

    log_ratios: tuple[float, ...] = ()
    """One per block that has both: ln of the one's time over the other's."""
    level: float | None = None
    """Level of the test for a difference: 0.05 alone, less by Holm's procedure among others; None
    below two blocks."""
    verdict: Verdict = ""
    """Empty where nothing is judged."""

    @property
    def blocks(self) -> int:
        """Number of blocks that have both variants."""
        return len(self.log_ratios)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratio in each block."""
        return tuple(map(math.exp, self.log_ratios))

    @property
    def outliers(self) -> tuple[int, ...]:
        """Places in `ratios` of values far from the others; shown, never dropped."""
        return outliers(self.log_ratios)

    @property
    def ratio(self) -> float | None:
        """The geometric mean over the blocks."""
        return math.exp(fmean(self.log_ratios)) if self.log_ratios else None

    @cached_property
    def interval(self) -> tuple[float | None, float | None]:
        """The 95 % interval of the ratio; None and None below two blocks."""
        return ratio_interval(self.log_ratios)

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return self.interval[0]

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return self.interval[1]

    @property
    def excludes_1(self) -> bool:
        """Whether the interval shows a difference, judged alone."""
        return self.low is not None and not self.low <= 1 <= self.high

    @property
    def is_shorter(self) -> bool:
        """Whether the interval ends below 1: the time is shorter, judged alone."""
        return self.high is not None and self.high < 1

    @property
    def s(self) -> float | None:
        """Standard deviation of the log-ratios; None below two blocks."""
        return stdev(self.log_ratios) if self.blocks >= 2 else None

    @property
    def mde(self) -> float | None:
        """Smallest effect that these blocks would show with 80 % power, as a share."""
        if self.s is None or self.level is None:
            return None
        return detectable_share(self.s, self.blocks, self.level)

    @property
    def p_value(self) -> float:
        """P-value of the test against "no difference"; needs two blocks."""
        return p_value(self.log_ratios)


NOTHING = Comparison()


def compare(
    pairs: Mapping[K, tuple[LogTimes, LogTimes]],
    *,
    noise_floors: Mapping[K, Comparison] | None = None,
    judged: bool = False,
    unjudged: Collection[K] = (),
) -> dict[K, Comparison]:
    """Compare pairs of variants by their times in the same blocks.

    The verdicts of all pairs share one error rate: more pairs need clearer differences.

    Args:
        pairs: key -> log times of a variant, and of the variant that it is divided by.
        noise_floors: of each pair its baseline's second run of each block, divided by its first;
            without them, nothing speaks against the machine.
        judged: whether pairs with `MIN_JUDGED_BLOCKS` blocks or more get a verdict.
        unjudged: keys of pairs that get none and do not count among the others.

    Returns:
        Key -> comparison, of the pairs that have a block in common.
    """
    compared: dict[K, Comparison] = {}
    for key, (times, base_times) in pairs.items():
        if shared := [block for block in times if block in base_times]:
            log_ratios = tuple(times[block] - base_times[block] for block in shared)
            level = ALPHA if len(shared) >= 2 else None
            compared[key] = Comparison(log_ratios=log_ratios, level=level)
    together = [key for key, each in compared.items() if each.level and key not in unjudged]
    floors = [(noise_floors or {}).get(key, NOTHING).log_ratios for key in together]
    verdicts = judge([compared[key].log_ratios for key in together], floors)
    for key, (level, verdict) in zip(together, verdicts):
        is_judged = judged and compared[key].blocks >= MIN_JUDGED_BLOCKS
        compared[key] = replace(compared[key], level=level, verdict=verdict if is_judged else "")
    return compared


def is_stable(aa: Sequence[float]) -> bool:
    """Return whether the baseline's two runs agree.

    They do not where the whole 95 % interval of A2/A1 is further than `MAX_AA_DIFFERENCE` from 1.

    Args:
        aa: one ln(A2/A1) per block; below two, nothing speaks against it.
    """
    if len(aa) < 2:
        return True
    low, high = paired_interval(aa)
    margin = math.log1p(MAX_AA_DIFFERENCE)
    return low <= margin and high >= -margin


def blind_below(aa: Sequence[float]) -> float:
    """Return the log-ratio below which the machine's noise hides effects; 0 where it is quiet.

    That is half the width of the 95 % interval of A2/A1, where it is more than `DELTA`.

    Args:
        aa: one ln(A2/A1) per block; below two, nothing is known.
    """
    if len(aa) < 2:
        return 0.0
    low, high = paired_interval(aa)
    half = (high - low) / 2
    return half if half > math.log1p(DELTA) else 0.0


def judge(
    log_ratios: Sequence[Sequence[float]], noise_floors: Sequence[Sequence[float]]
) -> list[tuple[float, Verdict]]:
    """Judge variants together, so that all their verdicts share one error rate.

    Differences and equivalences are each tested at Holm's levels. Where `is_stable` denies it,
    nothing is judged; where `blind_below` is more than 0, equivalence and smaller effects are
    inconclusive.

    Args:
        log_ratios: of each variant one log-ratio per block, at least two.
        noise_floors: of each variant one ln(A2/A1) of its baseline per block.

    Returns:
        For each variant the level of its test for a difference, and its verdict: machine unstable,
        no practical difference, faster, slower, real but small, or inconclusive.
    """
    different = [p_value(d) for d in log_ratios]
    equivalent = [equivalence_p_value(d) for d in log_ratios]
    levels, equivalence_levels = holm(different), holm(equivalent)
    verdicts = []
    for place, (d, floor) in enumerate(zip(log_ratios, noise_floors)):
        blind = blind_below(floor)
        is_different = different[place] <= levels[place] and abs(fmean(d)) >= blind
        is_equivalent = equivalent[place] <= equivalence_levels[place] and not blind
        verdict: Verdict = "machine unstable"
        if is_stable(floor):
            verdict = _verdict(d, is_different, is_equivalent)
        verdicts.append((levels[place], verdict))
    return verdicts


def _verdict(d: Sequence[float], is_different: bool, is_equivalent: bool) -> Verdict:
    """Return the first verdict that holds, in EVIDENCE's order."""
    if is_equivalent:
        return "no practical difference"
    if not is_different:
        return "inconclusive"
    if abs(fmean(d)) < math.log1p(DELTA):
        return "real but small"
    return "faster" if fmean(d) < 0 else "slower"
