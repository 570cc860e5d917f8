"""What people read: units, rounding at their borders, and unknown values."""

import pytest

from labkit import units


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (units.seconds, 0, "0 s"),
        (units.seconds, 0.00085, "850 µs"),
        (units.seconds, 0.0124, "12.4 ms"),
        (units.seconds, 0.1, "100 ms"),
        (units.seconds, 1.8349, "1.83 s"),
        (units.seconds, 59.94, "59.9 s"),
        (units.seconds, 125, "2 min 5 s"),
        (units.seconds, 3661, "1 h 1 min"),
        (units.seconds, -0.00085, "-850 µs"),
        (units.seconds, -125, "-2 min 5 s"),
        # What rounds up moves to the next unit.
        (units.seconds, 0.0009996, "1.00 ms"),
        (units.seconds, 0.9996, "1.00 s"),
        (units.seconds, 9.996, "10.0 s"),
        (units.seconds, 59.96, "1 min 0 s"),
        (units.seconds, 3599.8, "1 h 0 min"),
        (units.count_bytes, 0, "0 B"),
        (units.count_bytes, 133_000, "133 KB"),
        (units.count_bytes, 999_600, "1.0 MB"),
        (units.count_bytes, 9_960_000, "10 MB"),
        (units.count_bytes, 1_234_567_890, "1.2 GB"),
        (units.count_bytes, 5e15, "5000 TB"),
        (units.rate, 123.4, "123 images/s"),
        (units.rate, 8.5, "8.50 images/s"),
        (units.rate, 20345, "20,300 images/s"),
        (units.percent, 0.1234, "12.3 %"),
        (units.normalized, 0.8941, "0.894"),
        (units.normalized, 9.9999, "10.0"),
        (units.normalized, 40.2, "40.2"),
        (units.normalized, 0.00002, "0.00002"),
    ],
)
def test_a_number_has_a_fitting_unit_and_three_digits(write, value, text):
    assert write(value) == text


def test_an_interval_never_hides_on_which_side_of_one_it_lies():
    assert units.interval(0.81, 0.97) == "[0.81, 0.97]"
    assert units.interval(1.002, 1.2) == "[1.002, 1.200]"
    assert units.interval(0.7, 0.998) == "[0.700, 0.998]"
    assert units.interval(0.882, 0.896) == "[0.882, 0.896]"
    assert units.interval(0.0001, 11218.4) == "[0.00, over 999]"
    assert units.interval(0.9996, 1.3) == "[0.9996, 1.3000]"
    assert units.interval(0.7, 1.00004) == "[0.70000, 1.00004]"
    assert units.interval(1.0, 1.3) == "[1.00, 1.30]"
    assert units.interval(0.000018, 0.000021) == "[0.000018, 0.000021]"


def test_a_normalized_time_is_written_with_the_interval_that_it_has():
    assert units.normalized(0.894, 0.8814, 0.9066) == "0.894 [0.881, 0.907]"
    assert units.normalized(1.00043, 1.0004, 1.0005) == "1.0004 [1.0004, 1.0005]"
    assert units.normalized(0.894, None, None) == "0.894"
    assert units.normalized(None, None, None) == units.UNKNOWN


@pytest.mark.parametrize(
    "write", [units.seconds, units.count_bytes, units.rate, units.percent, units.normalized]
)
def test_unknown_is_a_dash_and_zero_is_a_number(write):
    assert write(None) == "–"
    assert write(0).startswith("0")


def test_a_change_has_a_sign_and_its_interval():
    assert units.change(1.004) == "+0.4 %"
    assert units.change(0.996, 0.94, 1.06) == "−0.4 % (−6.0 to +6.0 %)"


def test_an_interval_with_an_unknown_end_is_a_dash():
    assert units.interval(None, 1.0) == units.interval(0.5, None) == "–"
