"""Formulas against scipy.stats, the textbook's form of Holm and small seeded simulations.

They use `scipy.special` directly, so `scipy.stats.ttest_1samp` is an independent reference.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labkit.analysis.statistics import (
    blocks_needed,
    detectable_share,
    equivalence_p_value,
    holm,
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
    s, both = 0.001, stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.8, n - 1)
    assert detectable_share(s, n, 0.05) == pytest.approx(factor * s, rel=0.01)
    assert detectable_share(s, n, 0.05) == pytest.approx(math.expm1(both * s / math.sqrt(n)))


def test_blocks_needed_follow_the_evidence():
    assert blocks_needed(0.06, 0.05) == math.ceil((2.8 * 0.06 / 0.03) ** 2 + 2)
    assert blocks_needed(0.0, 0.05) == 2


# --- outliers ------------------------------------------------------------------------------


@given(d=st.lists(st.floats(-1, 1), min_size=4, max_size=20))
def test_outliers_agree_with_numpys_quartiles(d):
    q1, q3 = np.percentile(d, [25, 75])
    reach = 3 * (q3 - q1)
    clearly = {i for i, x in enumerate(d) if x < q1 - reach - 1e-9 or x > q3 + reach + 1e-9}
    perhaps = {i for i, x in enumerate(d) if x < q1 - reach + 1e-9 or x > q3 + reach - 1e-9}
    assert clearly <= set(outliers(d)) <= perhaps
