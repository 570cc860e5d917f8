"""Formulas against scipy.stats, the textbook's form of Holm and small seeded simulations.

They use `scipy.special` directly, so `scipy.stats.ttest_1samp` is an independent reference.
Run: python -m pytest tests/analysis/test_statistics.py
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labkit.analysis.statistics import (
    blind_below,
    blocks_needed,
    detectable_share,
    equivalence_p_value,
    holm,
    is_stable,
    judge,
    outliers,
    p_value,
    paired_interval,
)

log_ratios = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=12)


# --- tests and intervals ------------------------------------------------------------------


@given(d=log_ratios)
def test_interval_and_p_value_agree_with_scipys_one_sample_t_test(d):
    if len(set(d)) == 1:
        return  # scipy gives nan for constant data; see the test below
    expected = stats.ttest_1samp(d, 0)
    assert p_value(d) == pytest.approx(expected.pvalue, abs=1e-9)
    assert paired_interval(d) == pytest.approx(tuple(expected.confidence_interval(0.95)), abs=1e-9)


@given(d=log_ratios)
def test_equivalence_agrees_with_two_one_sided_t_tests_of_scipy(d):
    if len(set(d)) == 1:
        return
    below = stats.ttest_1samp(d, math.log(1.03), alternative="less").pvalue
    above = stats.ttest_1samp(d, -math.log(1.03), alternative="greater").pvalue
    assert equivalence_p_value(d) == pytest.approx(max(below, above), abs=1e-9)


def test_identical_blocks_are_certain():
    assert paired_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    assert p_value([0.5, 0.5, 0.5]) == 0
    assert p_value([0.0, 0.0]) == 1
    assert (equivalence_p_value([0.0, 0.0]), equivalence_p_value([0.5, 0.5])) == (0, 1)


@given(p_values=st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_a_p_value_below_its_level_is_one_that_holm_rejects(p_values):
    m, adjusted, largest = len(p_values), {}, 0.0
    for rank, i in enumerate(sorted(range(m), key=p_values.__getitem__)):
        largest = max(largest, (m - rank) * p_values[i])
        adjusted[i] = largest  # the textbook form: adjusted p-values against 0.05
    for i, level in enumerate(holm(p_values)):
        if abs(adjusted[i] - 0.05) > 1e-12:
            assert (p_values[i] <= level) == (adjusted[i] <= 0.05)


# --- what can be seen ---------------------------------------------------------------------


@pytest.mark.parametrize(("n", "factor"), [(5, 1.66), (8, 1.15), (10, 1.00), (20, 0.66)])
def test_the_detectable_effect_is_the_factor_of_the_evidence_times_the_spread(n, factor):
    s = 0.001
    assert detectable_share(s, n, 0.05) == pytest.approx(factor * s, rel=0.01)


def test_blocks_needed_follow_the_evidence():
    assert blocks_needed(0.06, 0.05) == math.ceil((2.8 * 0.06 / 0.03) ** 2 + 2)
    assert blocks_needed(0.0, 0.05) == 2


# --- verdicts -----------------------------------------------------------------------------


def around(center, spread, n=10):
    """Log-ratios with exactly this mean."""
    return [center + spread * (-1) ** i for i in range(n)]


@pytest.mark.parametrize(
    ("d", "words"),
    [
        (around(math.log(0.90), 0.01), "faster"),
        (around(math.log(1.10), 0.01), "slower"),
        (around(0.0, 0.01), "no practical difference"),
        (around(0.01, 0.001), "no practical difference"),  # sure, but nobody would notice
        (around(0.028, 0.01), "real but small"),
        (around(-0.028, 0.01), "real but small"),
        (around(0.0, 0.10), "inconclusive"),
        (around(math.log(0.9), 0.30), "inconclusive"),
    ],
)
def test_a_verdict_needs_certainty_and_size(d, words):
    assert judge([d], stable=True, blind=0.0) == [(0.05, words)]


def test_where_noise_hides_small_effects_only_these_have_no_verdict():
    none, small, large = ([x + 0.001 * (-1) ** i for i in range(8)] for x in (0, 0.05, -0.9))
    together = {"stable": True, "blind": math.log(1.06)}
    words = [word for _, word in judge([none, small, large], **together)]
    assert words == ["inconclusive", "inconclusive", "faster"]


def test_the_machine_is_blind_where_the_interval_of_a_over_a_is_wider_than_delta():
    assert blind_below([0.03, -0.03] * 4) == 0.0
    wide = [0.06, -0.06] * 4
    assert blind_below(wide) == pytest.approx(paired_interval(wide)[1])
    # An offset is the question of `is_stable`.
    assert blind_below([x + 0.5 for x in wide]) == pytest.approx(blind_below(wide))
    assert blind_below([0.7]) == blind_below([]) == 0.0


# --- the estimator, stability and outliers --------------------------------------------------


def test_a_machine_is_unstable_where_a_over_a_surely_differs_by_more_than_half_of_delta():
    assert is_stable([0.05, -0.04, 0.01])
    assert not is_stable([0.05, 0.06, 0.04])
    assert not is_stable([-0.05, -0.06, -0.04])
    # Reproducible, but too small to change a verdict.
    assert is_stable(around(0.005, 0.0001))
    assert is_stable(around(-0.005, 0.0001))
    assert is_stable(around(0.02, 0.01))  # half of DELTA is in its interval
    assert not is_stable(around(0.02, 0.001))
    assert is_stable([0.7])  # one block says nothing
    assert is_stable([])


@given(d=st.lists(st.floats(-1, 1), min_size=4, max_size=20))
def test_outliers_agree_with_numpys_quartiles(d):
    q1, q3 = np.percentile(d, [25, 75])
    reach = 3 * (q3 - q1)
    clearly = {i for i, x in enumerate(d) if x < q1 - reach - 1e-9 or x > q3 + reach + 1e-9}
    perhaps = {i for i, x in enumerate(d) if x < q1 - reach + 1e-9 or x > q3 + reach - 1e-9}
    assert clearly <= set(outliers(d)) <= perhaps
