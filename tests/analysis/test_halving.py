"""Successive halving on made-up timings."""

import random
from collections import Counter

import pytest

from labkit.analysis.compare import Comparison
from labkit.analysis.halving import halve, is_as_fast

CANDIDATES = tuple("abcdefghijkl")


def noisy(times_s, seed, noise):
    """Return a measure whose times vary, and the times that each candidate was measured."""
    draw, measured = random.Random(seed), Counter()

    def measure(candidate):
        measured[candidate] += 1
        return times_s[candidate] * draw.lognormvariate(0, noise)

    return measure, measured


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_the_fastest_is_found(noise):
    times_s = {name: 1.0 + 0.1 * place for place, name in enumerate(reversed(CANDIDATES))}
    best = [halve(noisy(times_s, seed, noise)[0], CANDIDATES).best for seed in range(200)]
    assert best.count("l") >= 190


def test_what_is_slow_is_measured_least():
    times_s = {name: 1.0 + 0.2 * place for place, name in enumerate(CANDIDATES)}
    measure, measured = noisy(times_s, 1, 0.02)
    halve(measure, CANDIDATES)
    assert measured["l"] == 1
    assert measured["a"] > measured["f"] >= measured["l"]
    assert measured.total() < 4 * len(CANDIDATES)


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.03])
def test_of_equals_the_preferred_one_is_chosen(noise):
    times_s = dict.fromkeys(CANDIDATES, 1.0)
    best = [halve(noisy(times_s, seed, noise)[0], CANDIDATES).best for seed in range(100)]
    assert best.count("a") >= 50  # a first short block may be off by more than 6 %


def test_it_ends_once_the_rest_are_equal():
    measure, measured = noisy(dict.fromkeys("abcd", 1.0), 1, 0.002)
    assert halve(measure, "abcd").best == "a"
    assert measured.total() <= 16


def test_a_difference_within_the_noise_does_not_decide_for_the_less_preferred():
    times_s = {"a": 1.005, "b": 1.0, "c": 1.5}
    best = [halve(noisy(times_s, seed, 0.01)[0], "abc").best for seed in range(100)]
    assert best.count("a") >= 90


def test_a_real_difference_of_five_percent_decides():
    times_s = {"a": 1.05, "b": 1.0}
    best = [halve(noisy(times_s, seed, 0.03)[0], "ab").best for seed in range(100)]
    assert best.count("b") >= 80


def test_without_time_nothing_is_measured():
    measure, measured = noisy(dict.fromkeys("abc", 1.0), 1, 0.0)
    assert halve(measure, "abc", has_time=lambda: False).best is None
    assert not measured


def test_of_those_that_there_was_time_for_the_fastest_is_chosen():
    measure, measured = noisy(dict(zip(CANDIDATES, range(12, 0, -1))), 1, 0.0)
    halved = halve(measure, CANDIDATES, has_time=lambda: measured.total() < 5)
    assert set(measured.values()) == {1} and len(measured) == 5
    assert halved.best == max(measured)
    assert set(halved.blocks.measured) == set(measured)


@pytest.mark.parametrize("most", range(3, 12))
def test_time_that_ends_later_ends_the_search_at_once(most):
    measure, measured = noisy({"a": 1.0, "b": 1.5, "c": 1.02}, 1, 0.05)
    halved = halve(measure, "abc", has_time=lambda: measured.total() < most)
    assert measured.total() == most
    assert halved.best in "ac"


def test_candidates_that_cannot_be_measured_are_left_out():
    times_s = {"a": None, "b": 2.0, "c": 1.0}
    halved = halve(times_s.get, "abc")
    assert halved.best == "c"
    assert halved.blocks.failed == {"a"}
    assert halve({}.get, "abc").best is None


def test_candidates_are_compared_within_blocks():
    """Drift that slows down every later block does not change a ratio."""
    drift = iter(1.0 + 0.2 * n for n in range(100))
    seconds = {}

    def measure(candidate):
        if not seconds:  # the first of a block
            seconds.update(dict.fromkeys("ab", next(drift)))
        return seconds.pop(candidate) * {"a": 1.2, "b": 1.0}[candidate]

    halved = halve(measure, "ab")
    compared = halved.blocks.compared("a", "b")
    assert compared.ratios == pytest.approx([1.2] * compared.blocks)
    assert halved.best == "b"


@pytest.mark.parametrize(
    ("ratios", "is_fast"),
    [((1.02, 1.02), False), ((1.009, 1.009), True), ((1.06, 0.99), True), ((1.10, 0.99), False),
     ((1.02,), True), ((1.04,), False)],
)  # fmt: skip
def test_as_fast_is_at_most_three_percent_slower_and_not_shown_to_be(ratios, is_fast):
    import math

    assert is_as_fast(Comparison(log_ratios=tuple(map(math.log, ratios)))) == is_fast
