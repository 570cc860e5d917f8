"""Ratios of variants block by block, their verdicts, and the noise floor that limits these."""

import math

import pytest
from scipy import stats

from labkit.analysis.compare import Comparison, blind_below, compare, is_stable, judge
from labkit.analysis.statistics import detectable_share, paired_interval


def around(center, spread, n=10):
    """Log-ratios with exactly this mean."""
    return [center + spread * (-1) ** i for i in range(n)]


def logs(*times_s):
    """Block -> log time; None: the block has none."""
    return {block: math.log(time_s) for block, time_s in enumerate(times_s) if time_s}


def pair(d):
    """Log times of a variant with these log-ratios, and of a baseline."""
    return dict(enumerate(d)), dict.fromkeys(range(len(d)), 0.0)


def test_a_pair_is_compared_in_the_blocks_that_have_both():
    pairs = {"some": (logs(1.0, None, 8.0, 1.0), logs(2.0, 3.0, 2.0)), "none": (logs(1.0), {})}
    compared = compare(pairs)
    assert [*compared] == ["some"]
    some, d = compared["some"], [math.log(0.5), math.log(4.0)]
    assert some.ratios == pytest.approx((0.5, 4.0))
    assert (some.blocks, some.ratio) == (2, pytest.approx(math.sqrt(2.0)))
    expected = stats.ttest_1samp(d, 0).confidence_interval(0.95)
    assert (math.log(some.low), math.log(some.high)) == pytest.approx((expected.low, expected.high))
    assert some.s == pytest.approx(stats.tstd(d))
    assert some.mde == pytest.approx(detectable_share(some.s, 2, 0.05))
    one = compare({"one": (logs(1.0), logs(2.0))}, judged=True)["one"]
    assert one.ratio == pytest.approx(0.5)
    assert (one.low, one.high, one.s, one.level, one.mde, one.verdict) == (None,) * 5 + ("",)
    assert not one.excludes_1
    assert Comparison().ratio is None


def test_an_interval_shows_a_difference_where_it_does_not_hold_1():
    for shift, is_shown in ((0.0, False), (0.2, True), (-0.2, True)):
        assert Comparison(log_ratios=tuple(around(shift, 0.05))).excludes_1 is is_shown


# --- verdicts -----------------------------------------------------------------------------


def test_pairs_share_one_error_rate_but_for_those_that_stand_alone():
    pairs = dict.fromkeys("abcdefgh", pair(around(-0.05, 0.045, 8)))
    assert {one.verdict for one in compare(pairs, judged=True).values()} == {"inconclusive"}
    compared = compare(pairs, judged=True, unjudged="bcdefgh")
    assert (compared["a"].verdict, compared["a"].level) == ("faster", 0.05)
    assert {(compared[key].verdict, compared[key].level) for key in "bcdefgh"} == {("", 0.05)}


@pytest.mark.parametrize(
    ("blocks", "judged", "floor", "verdict"),
    [
        (6, True, (), "faster"),
        (5, True, (), ""),
        (6, False, (), ""),
        (6, True, around(0.2, 0.001, 8), "machine unstable"),
    ],
)
def test_verdicts_take_a_judged_run_enough_blocks_and_a_stable_machine(
    blocks, judged, floor, verdict
):
    pairs = dict.fromkeys("vw", pair(around(-0.5, 0.001, blocks)))
    floors = {"v": Comparison(log_ratios=tuple(floor))}
    compared = compare(pairs, noise_floors=floors, judged=judged)
    assert compared["v"].verdict == verdict
    assert (compared["w"].verdict == "faster") is (judged and blocks == 6)


@pytest.mark.parametrize(
    ("d", "words"),
    [
        (around(math.log(0.90), 0.01), "faster"),
        (around(math.log(1.10), 0.01), "slower"),
        (around(0.0, 0.01), "no practical difference"),
        (around(0.0301, 0.0005), "slower"),  # ln 1.03 is 0.0296
        (around(0.0290, 0.0005), "no practical difference"),
        (around(0.01, 0.001), "no practical difference"),  # sure, but nobody would notice
        (around(0.028, 0.01), "real but small"),
        (around(-0.028, 0.01), "real but small"),
        (around(0.0, 0.10), "inconclusive"),
        (around(math.log(0.9), 0.30), "inconclusive"),
    ],
)
def test_a_verdict_needs_certainty_and_size(d, words):
    assert judge([d], [[]]) == [(0.05, words)]


def test_where_noise_hides_small_effects_only_these_have_no_verdict():
    none, small, large = ([x + 0.001 * (-1) ** i for i in range(8)] for x in (0, 0.05, -0.9))
    noisy = [0.07, -0.07] * 4  # known within 6 %
    words = [word for _, word in judge([none, small, large] * 2, [noisy] * 3 + [[]] * 3)]
    hidden, seen = ["inconclusive", "inconclusive", "faster"], ["no practical difference", "slower"]
    assert words == [*hidden, *seen, "faster"]


# --- the noise floor --------------------------------------------------------------------------


def test_the_machine_is_blind_where_the_interval_of_a_over_a_is_wider_than_delta():
    assert blind_below([0.033, -0.033] * 4) == 0.0  # known within 2.95 %, of ln 1.03
    assert blind_below([0.0333, -0.0333] * 4) > 0.0
    wide = [0.06, -0.06] * 4
    assert blind_below(wide) == pytest.approx(paired_interval(wide)[1])
    # An offset is the question of `is_stable`.
    assert blind_below([x + 0.5 for x in wide]) == pytest.approx(blind_below(wide))
    assert blind_below([0.7]) == blind_below([]) == 0.0


@pytest.mark.parametrize(
    ("d", "stable"),
    [
        ([0.05, -0.04, 0.01], True),
        ([0.05, 0.06, 0.04], False),
        ([-0.05, -0.06, -0.04], False),
        # Reproducible, but too small to change a verdict.
        (around(0.0147, 0.0001), True),  # ln 1.015 is 0.0149
        (around(-0.0147, 0.0001), True),
        (around(0.0151, 0.0001), False),
        (around(0.02, 0.01), True),  # half of DELTA is in its interval
        (around(0.02, 0.001), False),
        ([0.7], True),  # one block says nothing
        ([], True),
    ],
)
def test_a_machine_is_unstable_where_a_over_a_surely_differs_by_more_than_half_of_delta(d, stable):
    assert is_stable(d) is stable
