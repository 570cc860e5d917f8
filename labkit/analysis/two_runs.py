"""The ratio of the speeds of two runs, from the times of stretches of their steps.

    steps and seconds of stretches ─ step_time() ─▶ StepTime ─┐
    those of the other run ──────────────────────▶ StepTime ─┴─ compare_runs() ─▶ RunComparison

Successive steps depend on each other: a loader with four workers is late every fourth step, and a
machine is slow for a while.  So the interval rests on the means of 16 batches of steps, and is
wider where these still depend on each other.  It covers what varies within a run, not what differs
from one run of the same script to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from labkit.analysis.statistics import t_quantile
from labkit.analysis.thresholds import ALPHA, DELTA, MIN_COMPARED_STEPS

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]

BATCHES = 16  # of a run: Schmeiser (1982) found that more than 10 to 30 narrow intervals little


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The mean time of a step in the steady state of a run."""

    steps: int
    mean_s: float
    share_se: float
    """Standard error of the mean, as a share of it."""


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """How many times as fast a run is as another one.

    >>> half = StepTime(steps=1000, mean_s=0.05, share_se=0.01)
    >>> whole = StepTime(steps=1000, mean_s=0.1, share_se=0.01)
    >>> compared = compare_runs(whole, half)
    >>> f"{compared.ratio:.2f} [{compared.low:.2f}, {compared.high:.2f}]", compared.verdict
    ('2.00 [1.94, 2.06]', 'faster')
    """

    ratio: float
    """Steps per second of the one, divided by those of the other."""
    low: float
    """Lower end of the 95 % confidence interval."""
    high: float
    """Upper end of the interval."""

    @property
    def verdict(self) -> Verdict:
        """`no difference` where the whole interval is within 3 % of 1."""
        if 1 / (1 + DELTA) <= self.low and self.high <= 1 + DELTA:
            return "no difference"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "inconclusive"


def count_steps(stretches: Sequence[tuple[int, float]]) -> int:
    """Return the steps of stretches."""
    return sum(count for count, _ in stretches)


def is_long_enough(stretches: Sequence[tuple[int, float]]) -> bool:
    """Return whether a run has enough steps to be compared."""
    return count_steps(stretches) >= MIN_COMPARED_STEPS and len(stretches) >= BATCHES


def step_time(stretches: Sequence[tuple[int, float]]) -> StepTime:
    """Return the mean time of a step and its standard error.

    The stretches are joined to 16 batches, and the standard error is that of a ratio of sums,
    seconds over steps, as batches differ a little in their steps.  The lag-one autocorrelation r
    of the batches' means, corrected for its bias, raises the variance by (1 + r) / (1 − r).

    Args:
        stretches: steps and seconds of each, in their order.

    Raises:
        ValueError: they are too few, as of `is_long_enough`.

    Source: Schmeiser, "Batch size effects in the analysis of simulation output", Operations
    Research 30 (1982); the factor: Tafazzoli et al., "Performance of Skart", INFORMS Journal on
    Computing 23 (2011); the bias: Marriott and Pope, Biometrika 41 (1954).
    """
    steps = count_steps(stretches)
    if not is_long_enough(stretches):
        raise ValueError(
            f"stretches must be at least {BATCHES} with {MIN_COMPARED_STEPS} steps together, got "
            f"{len(stretches)} with {steps}; let the training run longer"
        )
    batches = [[0, 0.0] for _ in range(BATCHES)]
    passed = 0
    for count, s in stretches:
        batch = batches[int((passed + count / 2) / steps * BATCHES)]
        batch[0] += count
        batch[1] += s
        passed += count
    mean_s = sum(s for _, s in batches) / steps
    rests_s = [s - mean_s * count for count, s in batches]
    squares = sum(rest_s**2 for rest_s in rests_s)
    variance = BATCHES / (BATCHES - 1) * squares / steps**2
    if squares:
        r = sum(a * b for a, b in pairwise(rests_s)) / squares
        # The estimate of 16 batches may reach 1.
        r = min(max((r + 1 / BATCHES) / (1 - 4 / BATCHES), 0.0), 0.9)
        variance *= (1 + r) / (1 - r)
    return StepTime(steps=steps, mean_s=mean_s, share_se=math.sqrt(variance) / mean_s)


def compare_runs(before: StepTime, after: StepTime) -> RunComparison:
    """Return how many times as fast a run is as another, with its 95 % confidence interval.

    The interval is that of the difference of two independent means' logarithms, whose standard
    errors are those of the means as shares; with Welch's degrees of freedom.

    Source: Welch, "The generalization of Student's problem when several different population
    variances are involved", Biometrika 34 (1947).
    """
    difference = math.log(before.mean_s / after.mean_s)
    variances = before.share_se**2, after.share_se**2
    half = 0.0
    if any(variances):
        fourth_powers = sum(each**2 for each in variances) / (BATCHES - 1)
        half = t_quantile(1 - ALPHA / 2, int(sum(variances) ** 2 / fourth_powers))
        half *= math.sqrt(sum(variances))
    low, middle, high = (math.exp(difference + x) for x in (-half, 0.0, half))
    return RunComparison(ratio=middle, low=low, high=high)


def steps_needed(before: StepTime, after: StepTime) -> int:
    """Return about how many steps of each run would end a comparison that is inconclusive.

    The interval's half width is taken to fall with the square root of the steps.
    """
    compared = compare_runs(before, after)
    difference, half = abs(math.log(compared.ratio)), math.log(compared.high / compared.ratio)
    # Either the interval must exclude 1, or it must lie within DELTA of 1.
    wanted = max(difference, math.log1p(DELTA) - difference)
    return math.ceil((half / wanted) ** 2 * max(before.steps, after.steps))
