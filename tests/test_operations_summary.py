"""Ratios, intervals and verdicts of timed operations, from rows whose truth is known."""

import math
import re
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from fake_operations import BUSY, SIZES, TIMES_MS, fake_row, fake_run

from labkit.operations_summary import compare_twins, count_blocks, summarize_operations
from labkit.statistics import detectable_share, is_stable, paired_interval


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
    run = fake_run({}, more=[fake_row("flip", "opencv", 0, 1e-5, schema=3)])
    message = "schema must be at most 2, got 3; update labkit to read this run"
    with pytest.raises(ValueError, match=re.escape(message)):
        summarize_operations(run)


def test_full_mode_leaves_disturbed_blocks_out_and_quick_mode_counts_them():
    disturbed = fake_run(mode="full", blocks=9, busy=(2, 5))
    blocks = count_blocks(disturbed)
    assert blocks.rejected == dict.fromkeys((2, 5), "other programs took 70.0 % of a core")
    kept = tuple(row for row in disturbed.rows if row["block"] not in (2, 5))
    assert summarize_operations(disturbed) == summarize_operations(replace(disturbed, rows=kept))
    assert compare_twins(disturbed) == compare_twins(replace(disturbed, rows=kept))
    quick = fake_run(mode="quick", blocks=9, busy=(2, 5))
    assert count_blocks(quick).rejected == blocks.rejected
    assert {len(row.blocks_s) for row in summarize_operations(quick)} == {9}
    assert len(compare_twins(quick).log_ratios) == 9


def test_where_every_block_is_rejected_each_row_says_so():
    run = fake_run(mode="full", blocks=2, busy=(0, 1))
    rows = summarize_operations(run)
    assert {row.status for row in rows} == {"missing"}
    assert {row.reason for row in rows} == {"every block in which it was measured was rejected"}
    assert len(rows) == len(TIMES_MS) * len(SIZES)
    assert compare_twins(run) is None


def test_a_block_that_was_run_again_is_judged_by_its_later_rows():
    times = {("flip", "opencv"): 0.01}
    whole = fake_run(times, mode="full", blocks=1, sizes=SIZES[:1])
    half = fake_row("flip", "opencv", 0, 1e-4, disturbance=BUSY)
    assert count_blocks(replace(whole, rows=(half, *whole.rows))).rejected == {}
    assert list(count_blocks(replace(whole, rows=(*whole.rows, half))).rejected) == [0]


def test_rows_of_the_first_schema_are_read_and_nothing_speaks_against_them():
    run = fake_run(mode="full", blocks=6)
    old = [{k: v for k, v in row.items() if k != "disturbance"} | {"schema": 1} for row in run.rows]
    before = replace(run, rows=tuple(old))
    assert summarize_operations(before) == summarize_operations(run)
    assert count_blocks(before).rejected == {}
    assert len(count_blocks(before).unwatched) == 3
    assert count_blocks(run).unwatched == ()


@pytest.mark.parametrize("second", [0.9, 0.99, 1.0, 1.01, 1.1])
def test_twins_agree_by_the_rule_for_trials(second):
    twins = compare_twins(fake_run(blocks=6, second=second))
    assert twins.stable == is_stable(twins.log_ratios)
    assert len(twins.log_ratios) == 6
    assert fmean(twins.log_ratios) == pytest.approx(math.log(twins.ratio))


def test_noise_is_that_of_single_sizes_and_each_row_says_what_it_could_show():
    run = fake_run(mode="full", blocks=200, noise=0.05)
    assert compare_twins(run).noise == pytest.approx(0.05 * math.sqrt(2), rel=0.1)
    run = fake_run(
        times_ms={k: TIMES_MS[k] for k in list(TIMES_MS)[2:4]}, sizes=SIZES[:1], blocks=4
    )
    row = by_key(run)["resize", "opencv", "640x480"]
    times = {
        lib: [r["image_s"] for r in run.rows if r["library"] == lib] for lib in ("pillow", "opencv")
    }
    d = [math.log(a / b) for a, b in zip(times["opencv"], times["pillow"])]
    assert row.mde == pytest.approx(detectable_share(stdev(d), 4, 0.05))
