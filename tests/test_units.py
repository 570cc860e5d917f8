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


@pytest.mark.parametrize(
    "write", [units.seconds, units.count_bytes, units.rate, units.percent, units.normalized]
)
def test_unknown_is_a_dash_and_zero_is_a_number(write):
    assert write(None) == "–"
    assert write(0).startswith("0")


def test_an_interval_with_an_unknown_end_is_a_dash():
    assert units.interval(None, 1.0) == units.interval(0.5, None) == "–"


def test_counts_have_separators_and_the_plural():
    assert [units.count(n, "page") for n in (0, 1, 1234)] == ["0 pages", "1 page", "1,234 pages"]
    assert [units.count(1234), units.count(None)] == ["1,234", "–"]


def test_what_was_delivered_stands_beside_what_was_asked_for_in_one_unit():
    assert units.delivered(104_857_600, 106_168_320, "bytes") == "104.9 of 106.2 MB/s"
    assert units.delivered(80.0, 81, "files") == "80.0 of 81.0 files/s"
    assert units.delivered(998.6, 12_987, "files") == "999 of 12,987 files/s"
    assert units.delivered(512e6, None, "bytes") == "512.0 MB/s"


def test_a_limit_has_no_needless_zero_and_a_moment_no_seconds():
    assert [units.limit(share) for share in (0.05, 0.99, 0.125)] == ["5 %", "99 %", "12.5 %"]
    assert units.minute("2026-11-21T14:03:22Z") == "2026-11-21 14:03 UTC"


def test_small_print_breaks_between_its_parts_where_it_can():
    parts = [f"part {i} of a second line" for i in range(6)]
    lines = units.small_print(" · ".join(parts), width=60)
    assert " ".join(line.strip() for line in lines) == " · ".join(parts)
    assert all(line.startswith("    part ") and len(line) <= 60 for line in lines)
    assert units.small_print("") == []
    long = units.small_print("one part that is far too long for a line of this width", width=30)
    assert max(map(len, long)) <= 30
