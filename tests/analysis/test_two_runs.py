"""The comparison of two runs against scipy and on made-up steps.

How often its intervals hold the truth is simulated in `test_error_rates`.
"""

import math
import random

import pytest
from scipy import stats

from labkit.analysis.two_runs import (
    BATCHES,
    RunComparison,
    StepTime,
    compare_runs,
    step_time,
    steps_needed,
)


def stretches_of(means_s, steps=10):
    return [(steps, steps * s) for s in means_s]


def alternating(mean_s, spread_s):
    """Batches that follow each other are on different sides of the mean: no factor widens it."""
    rng = random.Random(1)
    offsets = [rng.uniform(0.5, 1.5) * spread_s * (-1) ** i for i in range(BATCHES)]
    middle = sum(offsets) / BATCHES
    return [mean_s + offset - middle for offset in offsets]


def test_the_standard_error_is_that_of_the_batches_means():
    means_s = alternating(0.1, 0.01)
    known = step_time(stretches_of(means_s))
    assert (known.steps, known.mean_s) == (10 * BATCHES, pytest.approx(0.1))
    assert known.share_se == pytest.approx(stats.sem(means_s) / 0.1)
    # Stretches are joined to batches, and may differ in their steps.
    quarters = [(5 * part, 5 * part * s) for s in means_s for part in (1, 2, 2, 1)]
    assert step_time(quarters).share_se == pytest.approx(known.share_se)
    twice_as_long = [(10 * (1 + i % 2), 0.1 * 10 * (1 + i % 2)) for i in range(40)]
    assert step_time(twice_as_long).share_se == pytest.approx(0, abs=1e-9)
    # Batches that are like their neighbours make the interval wider.
    slowing_down = step_time(stretches_of(sorted(means_s)))
    assert slowing_down.mean_s == pytest.approx(known.mean_s)
    assert slowing_down.share_se > 2 * known.share_se


def test_the_interval_is_welchs_on_the_scale_of_logarithms():
    before, after = (
        StepTime(steps=1000, mean_s=mean_s, share_se=share_se)
        for mean_s, share_se in ((0.2, 0.03), (0.1, 0.01))
    )
    compared = compare_runs(before, after)
    spreads = [each.share_se * math.sqrt(BATCHES) for each in (before, after)]
    assert compared.ratio == pytest.approx(2.0)
    # Where the end of the interval is the truth, Welch's test has a p-value of 5 %.
    for end in (compared.low, compared.high):
        test = stats.ttest_ind_from_stats(
            math.log(0.2 / end), spreads[0], BATCHES, math.log(0.1), spreads[1], BATCHES, False
        )
        assert test.pvalue == pytest.approx(0.05, abs=0.001)
    # Steps that never differ leave no doubt.
    certain = compare_runs(*(step_time(stretches_of([s] * BATCHES)) for s in (0.2, 0.1)))
    assert (certain.low, certain.high) == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.01, 1.2, "faster"),
        (1.001, 1.031, "faster"),
        (0.8, 0.99, "slower"),
        (0.975, 1.025, "no difference"),
        (1.001, 1.02, "no difference"),
        (0.95, 1.02, "inconclusive"),
        (0.99, 1.04, "inconclusive"),
    ],
)
def test_a_verdict_rests_on_the_whole_interval(low, high, verdict):
    assert RunComparison(ratio=math.sqrt(low * high), low=low, high=high).verdict == verdict


def test_twice_the_doubt_needs_four_times_the_steps():
    def pair(share_se, steps=1000):
        return [StepTime(steps=steps, mean_s=0.1, share_se=share_se)] * 2

    assert compare_runs(*pair(0.02)).verdict == "inconclusive"
    needed = steps_needed(*pair(0.02))
    assert steps_needed(*pair(0.04)) == pytest.approx(4 * needed, rel=0.01)
    assert compare_runs(*pair(0.02 / math.sqrt(needed / 1000))).verdict == "no difference"


@pytest.mark.parametrize("stretches", [[], [(1, 0.1)] * 20, [(100, 10.0)] * 15])
def test_too_few_steps_or_stretches_are_refused(stretches):
    with pytest.raises(ValueError, match="stretches must be at least 16 with 50 steps"):
        step_time(stretches)
