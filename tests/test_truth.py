"""The arithmetic of `benchmarks.truth`, which itself measures for the better part of an hour.

Run: python -m pytest tests/test_truth.py
"""

import pytest

from benchmarks.truth import judge


def test_two_of_twenty_equal_arms_may_be_called_different():
    equal = ["faster", "slower", *["no practical difference"] * 14, *["inconclusive"] * 2]
    assert judge(["slower"], [*equal, "real but small", "machine unstable"]) == []
    assert judge(["slower"], [*equal, "real but small", "slower"]) == [
        "3 of 20 equal arms are called faster or slower"
    ]


def test_one_equal_arm_alone_may_not_be_called_different():
    assert judge([], ["faster"]) == ["1 of 1 equal arms are called faster or slower"]


@pytest.mark.parametrize("said", ["faster", "inconclusive", "machine unstable"])
def test_a_delayed_arm_must_be_called_slower(said):
    assert judge(["slower", said], []) == [f"a delayed arm is called {said}"]


def test_a_delayed_arm_without_a_verdict_is_an_error():
    assert judge([""], []) == ["a delayed arm is called nothing"]
