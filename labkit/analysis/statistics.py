"""The formulas: intervals, tests and verdicts over paired log-ratios, all pure functions.

    one ln(T_variant / gm(T_A1, T_A2)) per block -> t-interval, Holm's levels -> verdict

A block is one repetition, and pairing inside it cancels the machine's drift.  "Not significant"
is not "the same": no practical difference is a verdict with a test of its own.

Source: EVIDENCE section 1 (estimator, Holm, minimum detectable effect, order of verdicts).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, quantiles, stdev

ALPHA = 0.05
# A difference that people would act on; fixed before any run.
DELTA = 0.03
POWER = 0.8
UNSTABLE = "machine unstable"
OUTER_FENCE = 3.0  # Tukey: beyond 3 interquartile ranges is "far out"


def log_ratio(time_s: float, base_s: Sequence[float]) -> float:
    """Compare a variant with the baseline of the same block: the d_i of the estimator.

    Args:
        time_s: the variant's seconds.
        base_s: the baseline's seconds in that block, A1 and A2; their geometric mean counts.
    """
    return math.log(time_s) - fmean(map(math.log, base_s))


def is_stable(aa: Sequence[float]) -> bool:
    """Say whether the baseline's two runs agree: the 95 % interval of ln(A2/A1) holds 0.

    Args:
        aa: one ln(A2/A1) per block; below two nothing speaks against it.
    """
    if len(aa) < 2:
        return True
    low, high = paired_interval(aa, ALPHA)
    return low <= 0 <= high


def outliers(d: Sequence[float]) -> tuple[int, ...]:
    """Find values beyond Tukey's outer fences, three interquartile ranges from the quartiles.

    They are shown, never dropped.

    Args:
        d: one log-ratio per block.

    Returns:
        Their places in `d`; none below four values, which have no quartiles to speak of.
    """
    if len(d) < 4:
        return ()
    q1, _, q3 = quantiles(d, n=4, method="inclusive")
    reach = OUTER_FENCE * (q3 - q1)
    return tuple(i for i, x in enumerate(d) if not q1 - reach <= x <= q3 + reach)


def paired_interval(d: Sequence[float], alpha: float) -> tuple[float, float]:
    """Bound the mean of paired log-ratios by Student's t.

    Args:
        d: one log-ratio per block, at least two.
        alpha: 0.05 for a 95 % interval.

    Returns:
        Lower and upper bound, still as logarithms.

    Raises:
        ValueError: fewer than two blocks.
    """
    from scipy.special import stdtrit

    n = len(d)
    if n < 2:
        raise ValueError(f"d must be at least 2 blocks, got {n}; measure more blocks")
    half = float(stdtrit(n - 1, 1 - alpha / 2)) * stdev(d) / math.sqrt(n)
    return fmean(d) - half, fmean(d) + half


def ratio_interval(d: Sequence[float], alpha: float | None) -> tuple[float | None, float | None]:
    """Bound the geometric mean of paired ratios.

    Args:
        d: one log-ratio per block.
        alpha: as for `paired_interval`; None where no level was given for want of blocks.

    Returns:
        Lower and upper bound as ratios; None and None below two blocks.
    """
    if len(d) < 2:
        return None, None
    low, high = paired_interval(d, alpha)
    return math.exp(low), math.exp(high)


def p_value(d: Sequence[float]) -> float:
    """Test against "no difference" with a two-sided paired t-test.

    Args:
        d: one log-ratio per block, at least two.
    """
    from scipy.special import stdtr

    mean, s = fmean(d), stdev(d)
    if s == 0:  # identical blocks: any difference is beyond doubt, and none is none
        return float(mean == 0)
    return 2 * float(stdtr(len(d) - 1, -abs(mean) * math.sqrt(len(d)) / s))


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """Give each of several tests its own level, so that together they err with `alpha`.

    The smallest p-value is examined at alpha/m, the next at alpha/(m-1), and so on.  Where
    one fails, the rest are examined no more leniently: an interval then excludes 1 exactly
    if Holm's procedure rejects.

    Returns:
        One level per test, in the given order.
    """
    levels, m, stopped = [0.0] * len(p_values), len(p_values), None
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        levels[i] = stopped or alpha / (m - rank)
        if stopped is None and p_values[i] > levels[i]:
            stopped = levels[i]
    return levels


def detectable_share(s: float, n: int, alpha: float) -> float:
    """Say how large an effect must be to be seen with 80 % power.

    Args:
        s: standard deviation of the log-ratios: the noise, expected or measured.
        n: blocks, at least two.
        alpha: the level that is really used, Holm included.

    Returns:
        A share: 0.05 is a variant that takes 1.05 times as long.
    """
    from scipy.special import stdtrit

    both = float(stdtrit(n - 1, 1 - alpha / 2)) + float(stdtrit(n - 1, POWER))
    return math.expm1(both * s / math.sqrt(n))


def blocks_needed(s: float, alpha: float) -> int:
    """Estimate how many blocks would show an effect of `DELTA` with 80 % power.

    Args:
        s: standard deviation of the log-ratios.
        alpha: the level that is really used.
    """
    from scipy.special import ndtri

    # At 5 % the quantiles add up to 2.8; two more blocks pay for not knowing s.
    both = float(ndtri(1 - alpha / 2)) + float(ndtri(POWER))
    return math.ceil((both * s / DELTA) ** 2 + 2)


def verdict(d: Sequence[float], alpha: float, *, stable: bool) -> str:
    """Put one variant's log-ratios into words, in EVIDENCE's order.

    Args:
        d: one log-ratio per block.
        alpha: level of the interval, from `holm`.
        stable: the baseline's two runs agree.

    Returns:
        machine unstable, no practical difference, faster, slower, real but small, or
        inconclusive.
    """
    practical = math.log1p(DELTA)
    low, high = paired_interval(d, alpha)
    # A 90 % interval inside the band is two one-sided tests at 5 % each.
    equal_low, equal_high = paired_interval(d, 2 * ALPHA)
    if not stable:
        return UNSTABLE
    if -practical <= equal_low and equal_high <= practical:
        return "no practical difference"
    if low <= 0 <= high:
        return "inconclusive"
    if abs(fmean(d)) < practical:
        return "real but small"
    return "faster" if high < 0 else "slower"


def agreement(low: float, high: float, published: float) -> str:
    """Compare an interval with a published figure (EVIDENCE 1).

    Args:
        low: lower end of the interval of the normalized time.
        high: its upper end.
        published: the document's normalized time.

    Returns:
        inconclusive where the interval is wider than the published effect; agrees where the
        figure lies in the interval widened by `DELTA`; else differs.
    """
    if high - low > abs(1 - published):
        return "inconclusive"
    return "agrees" if low / (1 + DELTA) <= published <= high * (1 + DELTA) else "differs"
