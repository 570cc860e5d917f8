"""Successive halving on made-up timings."""

import math
import random
from collections import Counter

import pytest

from labkit.analysis.compare import Comparison
from labkit.analysis.halving import halve, is_as_fast

CANDIDATES = tuple("abcdefghijkl")
SLOWER = {name: 1.0 + 0.1 * place for place, name in enumerate(reversed(CANDIDATES))}
EQUAL = dict.fromkeys(CANDIDATES, 1.0)


def noisy(times_s, seed, noise):
    """Return a measure whose times vary, and the times that each candidate was measured."""
    draw, measured = random.Random(seed), Counter()

    def measure(candidate):
        measured[candidate] += 1
        return times_s[candidate] * draw.lognormvariate(0, noise)

    return measure, measured


@pytest.mark.parametrize(
    ("times_s", "noise", "best", "least"),
    [
        *((SLOWER, noise, "l", 0.95) for noise in (0.0, 0.02, 0.05)),
        # Of equals the first is preferred; a short block may be off by more than 6 %.
        *((EQUAL, noise, "a", 0.5) for noise in (0.0, 0.005, 0.03)),
        ({"a": 1.005, "b": 1.0, "c": 1.5}, 0.01, "a", 0.9),  # within the noise
        ({"a": 1.05, "b": 1.0}, 0.03, "b", 0.8),  # a real difference decides
    ],
)
def test_the_fastest_or_of_equals_the_preferred_one_is_chosen(times_s, noise, best, least):
    chosen = [halve(noisy(times_s, seed, noise)[0], tuple(times_s)).best for seed in range(60)]
    assert chosen.count(best) >= least * 60


def test_what_is_slow_is_measured_least_and_the_search_ends_once_the_rest_are_equal():
    times_s = {name: 1.0 + 0.2 * place for place, name in enumerate(CANDIDATES)}
    measure, measured = noisy(times_s, 1, 0.02)
    halve(measure, CANDIDATES)
    assert measured["l"] == 1
    assert measured["a"] > measured["f"] >= measured["l"]
    assert measured.total() < 4 * len(CANDIDATES)
    measure, measured = noisy(dict.fromkeys("abcd", 1.0), 1, 0.002)
    assert halve(measure, "abcd").best == "a"
    assert measured.total() <= 16


@pytest.mark.parametrize("most", range(12))
def test_time_that_ends_ends_the_search_at_once_with_the_fastest_so_far(most):
    measure, measured = noisy({"a": 1.5, "b": 1.0, "c": 1.02}, 1, 0.05)
    halved = halve(measure, "abc", has_time=lambda: measured.total() < most)
    assert measured.total() == most
    slowest = {"a"} if len(set(measured)) > 1 else set()
    assert halved.best in (set(measured) - slowest or {None})
    assert set(halved.blocks.measured) == set(measured)


def test_candidates_that_cannot_be_measured_are_left_out():
    halved = halve({"a": None, "b": 2.0, "c": 1.0}.get, "abc")
    assert (halved.best, halved.blocks.failed) == ("c", {"a"})
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
    assert is_as_fast(Comparison(log_ratios=tuple(map(math.log, ratios)))) == is_fast
