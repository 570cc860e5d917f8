"""Ratios, intervals and verdicts of timed operations, from rows whose truth is known."""

import math
import re
from statistics import fmean, stdev

import pytest
from fake_operations import SIZES, TIMES_MS, fake_row, fake_run

from labkit.operations_summary import compare_twins, summarize_operations
from labkit.statistics import paired_interval


def by_key(run):
    return {(row.operation, row.library, row.size): row for row in summarize_operations(run)}


def test_ratios_are_paired_within_blocks_so_that_drift_cancels():
    rows = by_key(fake_run(blocks=4, noise=0.0, drift=2.0))
    for size in SIZES:
        row = rows["decode", "opencv", size]
        assert row.ratio == pytest.approx(0.7)
        assert (row.ci_low, row.ci_high) == (pytest.approx(0.7), pytest.approx(0.7))
        assert row.high_s > 1.5 * row.low_s  # the times themselves drift
    assert rows["decode", "pillow", "1280x960"].image_s == pytest.approx(
        4 * rows["decode", "pillow", "640x480"].image_s
    )


def test_the_interval_is_students_over_the_blocks_log_ratios():
    run = fake_run(blocks=3, noise=0.1)
    row = by_key(run)["resize", "opencv", "640x480"]
    times = {
        (r["library"], r["block"]): r["image_s"]
        for r in run.rows
        if (r["operation"], r["size"]) == ("resize", "640x480")
    }
    d = [math.log(times["opencv", b] / times["pillow", b]) for b in range(3)]
    half = 4.302653 * stdev(d) / math.sqrt(3)  # Student's t, 2 degrees of freedom, 97.5 %
    assert row.ratio == pytest.approx(math.exp(fmean(d)))
    assert row.ci_low == pytest.approx(math.exp(fmean(d) - half))
    assert row.ci_high == pytest.approx(math.exp(fmean(d) + half))


def test_what_is_timed_twice_counts_once_by_its_geometric_mean():
    run = fake_run(blocks=2, noise=0.0, drift=0.0, second=4.0)
    rows = by_key(run)
    assert rows["decode", "pillow", "640x480"].image_s == pytest.approx(2e-3 * 2)
    assert rows["decode", "opencv", "640x480"].ratio == pytest.approx(0.7 / 2)
    twins = compare_twins(run)
    assert twins.ratio == pytest.approx(4)
    assert not twins.stable


def test_twins_of_a_steady_machine_are_stable_and_one_block_judges_nothing():
    assert compare_twins(fake_run(blocks=6, noise=0.05)).stable
    alone = compare_twins(fake_run(blocks=1))
    assert (alone.low, alone.stable) == (None, True)
    assert compare_twins(fake_run(blocks=0)) is None


def test_pillow_is_the_baseline_where_it_has_the_operation_and_else_the_first():
    rows = by_key(fake_run())
    assert rows["decode", "opencv", "640x480"].baseline == "pillow"
    assert rows["normalize", "torch", "640x480"].baseline == "numpy"
    assert rows["normalize", "torch", "640x480"].ratio == pytest.approx(1.2, rel=0.1)
    assert rows["normalize", "numpy", "640x480"].ratio is None


def test_one_block_has_numbers_and_no_intervals():
    row = by_key(fake_run(blocks=1))["decode", "opencv", "640x480"]
    assert row.ratio == pytest.approx(0.7, rel=0.2)
    assert (row.ci_low, row.low_s) == (None, None)


def test_only_full_mode_judges_and_only_after_six_blocks():
    def verdicts(**how):
        return {row.verdict for row in summarize_operations(fake_run(**how))}

    assert verdicts(mode="quick", blocks=8) == {""}
    assert verdicts(mode="full", blocks=5) == {""}
    rows = by_key(fake_run(mode="full", blocks=8, noise=0.01))
    assert rows["decode", "opencv", "640x480"].verdict == "faster"
    assert rows["normalize", "torch", "640x480"].verdict == "slower"
    assert rows["decode", "pillow", "640x480"].verdict == ""
    unstable = fake_run(mode="full", blocks=8, noise=0.01, second=1.5)
    assert by_key(unstable)["decode", "opencv", "640x480"].verdict == "machine unstable"


def test_full_mode_shares_one_level_over_all_comparisons():
    quick, full = (by_key(fake_run(mode=mode, blocks=8, noise=0.05)) for mode in ("quick", "full"))
    compared = [key for key, row in full.items() if row.ratio is not None]
    wider = [
        math.log(full[key].ci_high / full[key].ci_low)
        / math.log(quick[key].ci_high / quick[key].ci_low)
        for key in compared
    ]
    # The strictest of six levels is 0.05 / 6: t with 7 degrees of freedom is 3.64, not 2.36.
    unit = [-1.0, 1.0] * 4
    expected = paired_interval(unit, 0.05 / 6)[1] / paired_interval(unit, 0.05)[1]
    assert max(wider) == pytest.approx(expected)
    assert min(wider) >= 1 - 1e-12


def test_a_library_without_numbers_keeps_its_row_and_reason():
    times = {key: ms for key, ms in TIMES_MS.items() if key[0] == "decode"}
    failed = [
        fake_row("decode", "simplejpeg", b, None, status="failed", reason="not the same work")
        for b in range(3)
    ]
    row = by_key(fake_run(times, more=failed))["decode", "simplejpeg", "640x480"]
    assert (row.status, row.reason) == ("failed", "not the same work")
    assert (row.image_s, row.ratio, row.blocks_s) == (None, None, ())


def test_without_pillow_the_next_library_is_the_baseline():
    skipped = [fake_row("flip", "pillow", b, None, status="skipped") for b in range(2)]
    measured = [
        fake_row("flip", library, b, image_s)
        for b in range(2)
        for library, image_s in (("opencv", 1e-5), ("numpy", 3e-5))
    ]
    rows = by_key(fake_run({}, more=[*skipped, *measured]))
    assert rows["flip", "numpy", "640x480"].baseline == "opencv"
    assert rows["flip", "numpy", "640x480"].ratio == pytest.approx(3)
    assert rows["flip", "pillow", "640x480"].baseline == "opencv"


def test_of_a_block_that_was_run_again_the_later_rows_count():
    rows = [fake_row("flip", "opencv", 0, s) for s in (5.0, 1e-5)]
    (block_s,) = by_key(fake_run({}, more=rows))["flip", "opencv", "640x480"].blocks_s
    assert block_s == pytest.approx(1e-5)


def test_rows_of_a_newer_labkit_say_so():
    run = fake_run({}, more=[fake_row("flip", "opencv", 0, 1e-5, schema=2)])
    message = "schema must be at most 1, got 2; update labkit to read this run"
    with pytest.raises(ValueError, match=re.escape(message)):
        summarize_operations(run)
