"""What was measured beside what a document published: words that have a direction."""

import pytest
from fakes import make_summary

from labkit.analysis.published import WORDS, agreement, answer, bound

NONE = "no practical difference"
SMALL = "real but small"
WAITS = make_summary().rows[0]  # waits for 30 % of its epochs


def near(ratio):
    return ratio - 0.01, ratio + 0.01


@pytest.mark.parametrize(
    ("interval", "expected", "verdict", "word"),
    [
        # A published time.
        ((0.85, 0.90), 0.86, "faster", "as published"),
        ((0.80, 0.84), 0.86, "faster", "as published"),  # 0.84 * 1.03 = 0.865
        ((0.80, 0.83), 0.86, "faster", "saves more than published"),  # 0.83 * 1.03 = 0.855
        ((0.409, 0.418), 0.661, "faster", "saves more than published"),
        ((0.88, 0.92), 0.86, "faster", "as published"),  # 0.88 / 1.03 = 0.854
        ((0.89, 0.95), 0.86, "faster", "saves less than published"),  # 0.89 / 1.03 = 0.864
        ((0.97, 0.98), 0.86, SMALL, "saves less than published"),
        ((0.96, 1.02), 0.86, "inconclusive", "saves less than published (if anything)"),
        ((0.99, 1.01), 0.86, NONE, "no saving here"),
        ((0.98, 1.00), 0.98, NONE, "as published"),
        ((1.05, 1.08), 0.86, "slower", "takes longer here"),
        ((1.01, 1.02), 0.86, SMALL, "takes longer here"),
        ((0.80, 0.95), 0.86, "faster", "inconclusive"),  # 0.15 wide, for an effect of 0.14
        ((0.50, 0.70), 0.86, "faster", "inconclusive"),  # wide comes before far away
        ((0.75, 0.875), 0.875, "faster", "as published"),  # as wide as the effect is not wider
        ((1.19, 1.21), 1.20, "slower", "as published"),  # slower is an effect too
        # A direction: any real effect in it confirms it.
        (near(0.5), "faster", "faster", "confirmed"),
        (near(0.98), "faster", SMALL, "confirmed"),
        (near(1.0), "faster", NONE, "no saving here"),
        (near(1.02), "faster", SMALL, "takes longer here"),
        (near(1.2), "faster", "slower", "takes longer here"),
        (near(1.0), "faster", "inconclusive", "inconclusive"),
        (near(1.02), "slower", SMALL, "confirmed"),
        (near(1.0), "slower", NONE, "no loss here"),
        (near(0.8), "slower", "faster", "takes less time here"),
        (near(1.0), NONE, NONE, "confirmed"),
        (near(1.2), NONE, "slower", "takes longer here"),
        (near(0.98), NONE, SMALL, "inconclusive"),
    ],
)
def test_a_published_time_or_direction_is_compared(interval, expected, verdict, word):
    low, high = interval
    assert agreement(expected, (low + high) / 2, low, high, verdict) == word


@pytest.mark.parametrize(
    ("ratio", "verdict", "word"),
    [
        (0.9, "faster", "not reproducible here"),
        (1.0, NONE, "not reproducible here"),
        (1.2, "slower", "takes longer here"),  # harm is not explained by the bound
    ],
)
def test_a_time_below_what_the_device_computes_is_not_reproducible(ratio, verdict, word):
    assert agreement(0.6, ratio, *near(ratio), verdict, WAITS) == word
    assert bound(WAITS) == "waiting is 30 % of the epoch"


def test_an_answer_is_one_sentence_that_counts_every_word_once():
    assert answer([]) == ""
    assert answer(["no saving here", "as published", "as published", ""]) == (
        "Of 4 variants with a published time, "
        "2 are as published, 1 shows no saving here and 1 has no verdict."
    )
    assert answer(list(WORDS)).startswith(
        f"Of {len(WORDS)} variants with a published time, 1 is as published, "
    )
    assert not [word for word in WORDS if "mulat" in word]  # that stands beside the words
