"""What people read: units, rounding at their borders, and unknown values."""

import pytest

from labkit import units


@pytest.mark.parametrize(
    ("s", "text"),
    [
        (0, "0 s"),
        (0.00085, "850 µs"),
        (0.0124, "12.4 ms"),
        (0.1, "100 ms"),
        (1.8, "1.80 s"),
        (1.8349, "1.83 s"),
        (59.94, "59.9 s"),
        (125, "2 min 5 s"),
        (3661, "1 h 1 min"),
    ],
)
def test_seconds_have_three_digits_and_a_fitting_unit(s, text):
    assert units.seconds(s) == text


@pytest.mark.parametrize(
    ("s", "text"),
    [
        (0.0009996, "1.00 ms"),
        (0.9996, "1.00 s"),
        (9.996, "10.0 s"),
        (59.96, "1 min 0 s"),
        (119.7, "2 min 0 s"),
        (3599.8, "1 h 0 min"),
        (7199.0, "2 h 0 min"),
    ],
)
def test_a_duration_that_rounds_up_moves_to_the_next_unit(s, text):
    assert units.seconds(s) == text


@pytest.mark.parametrize(
    ("s", "text"), [(-0.00085, "-850 µs"), (-1.8, "-1.80 s"), (-125, "-2 min 5 s")]
)
def test_negative_seconds_have_the_unit_of_positive_ones(s, text):
    assert units.seconds(s) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (7, "7 B"),
        (133_000, "133 KB"),
        (999_600, "1.0 MB"),
        (9_960_000, "10 MB"),
        (1_234_567_890, "1.2 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_bytes_are_decimal(n, text):
    assert units.count_bytes(n) == text


def test_rates_shares_and_ratios_carry_their_unit():
    assert units.rate(123.4) == "123 images/s"
    assert units.rate(8.5) == "8.50 images/s"
    assert units.rate(20345) == "20,300 images/s"
    assert units.percent(0.1234) == "12.3 %"
    assert units.normalized(0.8941) == "0.894"
    assert units.normalized(9.9999) == "10.0"
    assert units.normalized(40.2) == "40.2"


def test_an_interval_never_hides_on_which_side_of_one_it_lies():
    assert units.interval(0.81, 0.97) == "[0.81, 0.97]"
    assert units.interval(1.002, 1.2) == "[1.002, 1.200]"
    assert units.interval(0.7, 0.998) == "[0.700, 0.998]"
    assert units.interval(0.882, 0.896) == "[0.882, 0.896]"
    assert units.interval(0.0001, 11218.4) == "[0.00, over 999]"
    assert units.interval(0.9996, 1.3) == "[0.9996, 1.3000]"
    assert units.interval(0.7, 1.00004) == "[0.70000, 1.00004]"
    assert units.interval(1.0, 1.3) == "[1.00, 1.30]"


@pytest.mark.parametrize(
    "write", [units.seconds, units.count_bytes, units.rate, units.percent, units.normalized]
)
def test_unknown_is_a_dash_and_zero_is_a_number(write):
    assert write(None) == "–"
    assert write(0).startswith("0")


def test_an_interval_with_an_unknown_end_is_a_dash():
    assert units.interval(None, 1.0) == units.interval(0.5, None) == "–"
