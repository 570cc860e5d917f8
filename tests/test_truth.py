"""The arithmetic of `benchmarks.truth`, which itself measures for the better part of an hour.

Run: python -m pytest tests/test_truth.py
"""

import math

import pytest

import labkit as lab
from benchmarks import truth
from benchmarks.truth import Noise, compare_lengths, describe_length, judge, needed_s, uncertainty


def test_twice_the_noise_takes_four_times_the_length():
    assert needed_s(1.0, truth.TARGET) == pytest.approx(1.0)
    assert needed_s(1.5, 2 * truth.TARGET) == pytest.approx(6.0)


def test_what_is_steady_enough_needs_no_longer_epochs():
    assert describe_length(1.0, 0.025) == "already below"
    assert describe_length(1.0, 0.05) == "epochs of 4.00 s"


def test_ten_blocks_leave_the_noise_uncertain():
    low, high = uncertainty(10)  # from a table of chi-square at 9 degrees: 19.02 and 2.700
    assert low == pytest.approx(math.sqrt(9 / 19.02), abs=1e-3)
    assert high == pytest.approx(math.sqrt(9 / 2.700), abs=1e-3)


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


def test_an_experiment_that_cannot_run_is_listed_with_its_reason():
    unknown = Noise(name="storage", reason="no disk")
    assert unknown.to_lines() == ["  storage: not measured: no disk"]
    assert compare_lengths(unknown, unknown) == unknown.to_lines()


def test_what_stands_in_for_an_experiment_keeps_its_name_and_its_size():
    stand_in = lab.experiment("storage", storage="modelled_hdd")
    whole = truth.replace(
        lab.experiment("combined"), in_full={"x": lab.Settings()}, otherwise=lambda why: stand_in
    )
    arms = truth.quick_arms(whole, "truth_noise_combined", 96)
    other = arms.otherwise("no disk")
    assert (arms.name, arms.in_full, other.name) == ("truth_noise_combined", {}, arms.name)
    sizes = {(s.images, s.input_px, s.batch_size) for s in other.variants.values()}
    assert sizes == {(96, 256, 8)}


def test_the_delay_keeps_the_host_busy_for_as_long_as_planted(monkeypatch):
    monkeypatch.setattr(lab, "STEPS", {})
    seconds = iter([5.0, 5.001, 5.002, 5.0031])
    monkeypatch.setattr(truth.time, "perf_counter", lambda: next(seconds))
    lab.STEPS[truth.plant(3000)](lab.Settings(), object()).forward({})
    assert list(seconds) == []
