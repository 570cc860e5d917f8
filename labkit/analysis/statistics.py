"""Intervals and tests over paired log-ratios; `compare` makes verdicts of them.

A log-ratio compares a variant with the baseline of the same block: ln T minus the mean of ln A1
and ln A2.  Pairing within a block cancels the machine's drift.

Source: EVIDENCE section 1 (estimator, minimum detectable effect).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, quantiles, stdev

from labkit.analysis.thresholds import ALPHA, DELTA, OUTER_FENCE, POWER


def t_cdf(t: float, df: int) -> float:
    """Return the probability that a variable of Student's t-distribution is at most `t`.

    The core has no SciPy; for whole degrees of freedom the distribution is a finite sum.

    Args:
        t: any number; results below about 1e-15 are rounded to 0.
        df: degrees of freedom, at least 1.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(df))
    sine, cosine2 = math.sin(angle), math.cos(angle) ** 2
    is_odd = df % 2
    term = sine * math.cos(angle) if is_odd else sine
    total = 0.0
    for k in range(df // 2):
        total += term
        term *= cosine2 * (2 * k + 1 + is_odd) / (2 * k + 2 + is_odd)
    within = 2 / math.pi * (angle + total) if is_odd else total
    return min(max((1 + within) / 2, 0.0), 1.0)


def t_quantile(p: float, df: int) -> float:
    """Return the value that a variable of Student's t-distribution does not exceed with `p`.

    Args:
        p: between 0 and 1.
        df: degrees of freedom, at least 1.
    """
    low, high = -1.0, 1.0
    while t_cdf(low, df) > p:
        low *= 2
    while t_cdf(high, df) < p:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return middle


def log_ratio(time_s: float, base_s: Sequence[float]) -> float:
    """Return the log-ratio of a variant in one block.

    Args:
        time_s: the variant's seconds.
        base_s: the baseline's seconds in that block, A1 and A2.
    """
    return math.log(time_s) - fmean(map(math.log, base_s))


def outliers(d: Sequence[float]) -> tuple[int, ...]:
    """Return the indices of values beyond Tukey's outer fences; they are shown, never dropped.

    Args:
        d: one log-ratio per block; below four there are no quartiles, so no outliers.
    """
    if len(d) < 4:
        return ()
    q1, _, q3 = quantiles(d, n=4, method="inclusive")
    reach = OUTER_FENCE * (q3 - q1)
    return tuple(i for i, x in enumerate(d) if not q1 - reach <= x <= q3 + reach)


def paired_interval(d: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % t-interval of the mean log-ratio, as logarithms.

    Args:
        d: one log-ratio per block, at least two.

    Raises:
        ValueError: fewer than two blocks.
    """
    n = len(d)
    if n < 2:
        raise ValueError(f"d must be at least 2 blocks, got {n}; measure more blocks")
    half = t_quantile(1 - ALPHA / 2, n - 1) * stdev(d) / math.sqrt(n)
    return fmean(d) - half, fmean(d) + half


def ratio_interval(d: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the geometric mean ratio; None and None below two blocks."""
    if len(d) < 2:
        return None, None
    low, high = paired_interval(d)
    return math.exp(low), math.exp(high)


def p_value(d: Sequence[float]) -> float:
    """Test against "no difference" with a two-sided paired t-test.

    Args:
        d: one log-ratio per block, at least two.
    """
    return 2 * _upper_tail(abs(fmean(d)), d)


def equivalence_p_value(d: Sequence[float]) -> float:
    """Test against "a difference of `DELTA` or more" with two one-sided paired t-tests.

    Args:
        d: one log-ratio per block, at least two.
    """
    return _upper_tail(math.log1p(DELTA) - abs(fmean(d)), d)


def _upper_tail(distance: float, d: Sequence[float]) -> float:
    """Return the probability that a mean of such values is by chance so far from the truth."""
    s = stdev(d)
    if s == 0:  # identical blocks leave no doubt
        return 0.0 if distance > 0 else 0.5 if distance == 0 else 1.0
    return 1 - t_cdf(distance * math.sqrt(len(d)) / s, len(d) - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the level of each of several tests, so that together they err with `ALPHA`.

    The smallest p-value is tested at ALPHA/m, the next at ALPHA/(m-1), and so on.  After the
    first that is above its level, the rest are tested at that level: a p-value is at most its
    level exactly if Holm's procedure rejects.
    """
    levels, m, stopped = [0.0] * len(p_values), len(p_values), None
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        levels[i] = stopped or ALPHA / (m - rank)
        if stopped is None and p_values[i] > levels[i]:
            stopped = levels[i]
    return levels


def detectable_share(s: float, n: int, alpha: float) -> float:
    """Return the smallest effect that is detected with 80 % power.

    Args:
        s: standard deviation of the log-ratios, expected or measured.
        n: blocks, at least two.
        alpha: the level of the test, Holm included.

    Returns:
        A share: 0.05 is a variant that takes 1.05 times as long.
    """
    both = t_quantile(1 - alpha / 2, n - 1) + t_quantile(POWER, n - 1)
    return math.expm1(both * s / math.sqrt(n))


def blocks_needed(s: float, alpha: float) -> int:
    """Return about how many blocks detect an effect of `DELTA` with 80 % power.

    Args:
        s: standard deviation of the log-ratios.
        alpha: the level of the test, Holm included.
    """
    # At 5 % the quantiles add up to 2.8; two more blocks pay for not knowing s.
    both = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(POWER)
    return math.ceil((both * s / DELTA) ** 2 + 2)
