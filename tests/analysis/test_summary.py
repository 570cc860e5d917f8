"""Rows, notes and verdicts of whole runs, against sums done by hand and scipy.stats.

Run: python -m pytest tests/analysis/test_summary.py
"""

import dataclasses
import math

import pytest
from fake_runs import fake_groups, fake_roofline
from fakes import (
    LABELS,
    MODELLED_DISK,
    SIMULATED_GPU,
    fake_info,
    fake_json,
    fake_logged,
    fake_trial,
    fake_trials,
)
from scipy import stats

from labkit.analysis.simulated import warnings
from labkit.analysis.statistics import blocks_needed
from labkit.analysis.summary import summarize
from labkit.runs.experiment import Experiment, Variant
from labkit.settings import AS_PUBLISHED, Settings


def two_variants(times_s, mode="full", **info):
    """Blocks of (A1, A2, other) seconds as a summary of `base` and `other`."""
    trials = []
    for block, (a1, a2, other) in enumerate(times_s):
        trials += [fake_trial("base", block, "A1", a1), fake_trial("base", block, "A2", a2)]
        trials.append(fake_trial("other", block, "", other))
    return summarize(fake_info(["base", "other"], mode=mode, **info), trials)


# --- rows ---------------------------------------------------------------------------------


def test_a_ratio_is_taken_against_the_geometric_mean_of_the_two_baseline_runs():
    base, other = two_variants([(1.0, 4.0, 1.0), (2.0, 2.0, 4.0)]).rows
    assert other.ratios == pytest.approx((0.5, 2.0))
    assert other.normalized_time == pytest.approx(1.0)
    assert other.time_s == pytest.approx(2.0)
    assert base.ratios == pytest.approx((0.5, 2.0, 1.0, 1.0))
    assert (base.normalized_time, base.ci_low, base.ci_high) == (1.0, None, None)


def test_the_noise_floor_is_the_second_baseline_run_over_the_first():
    # ln(A2/A1) = ln 2 and ln 8: mean ln 4.
    summary = two_variants([(1.0, 2.0, 1.0), (1.0, 8.0, 1.0)])
    assert summary.noise_floors[""].ratio == pytest.approx(4.0)


def test_only_blocks_with_the_variant_and_both_baseline_runs_count():
    trials = [
        fake_trial("base", 0, "A1", 2.0), fake_trial("base", 0, "A2", 2.0),
        fake_trial("other", 0, "", 1.0),
        fake_trial("base", 1, "A1", 2.0), fake_trial("other", 1, "", 50.0),
        fake_trial("base", 2, "A1", 2.0), fake_trial("base", 2, "A2", 2.0),
        fake_trial("other", 2, "", status="cancelled"),
    ]  # fmt: skip
    summary = summarize(fake_info(["base", "other"], blocks=3, status="cancelled"), trials)
    base, other = summary.rows
    assert (summary.n_blocks, base.blocks, other.blocks) == (2, 2, 1)
    assert other.ratios == pytest.approx((0.5,))
    assert (other.ci_low, other.ci_high, other.mde) == (None, None, None)
    assert "cancelled: 2 of 3 blocks count" in summary.notes


def test_variants_without_numbers_say_why():
    names = ["base", "asked", "broke", "lonely", "never"]
    trials = [
        fake_trial("base", 0, "A1", 2.0), fake_trial("base", 0, "A2", 2.0),
        fake_trial("broke", 0, "", status="failed", reason="out of memory"),
        fake_trial("lonely", 7, "", 2.0),
    ]  # fmt: skip
    summary = summarize(fake_info(names, skipped={"asked": "not installed"}), trials)
    assert [(row.status, row.reason) for row in summary.rows[1:]] == [
        ("skipped", "not installed"),
        ("failed", "out of memory"),
        ("missing", "no block in which this and the baseline are complete"),
        ("missing", "not measured"),
    ]
    assert all(row.normalized_time is row.time_s is row.ci_low is None for row in summary.rows[1:])


def test_rates_and_shares_are_sums_over_all_epochs():
    # fake_epoch: 160 images in 20 steps, 25 % waiting, 4 % transfer, 70 % compute, first
    # batch after 5 %; a trial has two.
    row = two_variants([(2.0, 2.0, 4.0), (2.0, 2.0, 6.0)]).rows[1]
    assert row.images_per_s == pytest.approx(640 / 10)
    assert row.steady_images_per_s == pytest.approx(640 / (10 * 0.95))
    assert row.epoch1_s == pytest.approx(0.6 * math.sqrt(4 * 6))
    assert row.epoch2_s == pytest.approx(0.4 * math.sqrt(4 * 6))
    shares = (row.wait_share, row.transfer_share, row.compute_share, row.stall_share)
    assert shares == pytest.approx((0.25, 0.04, 0.7, 0.3))
    assert (row.step_share, row.sync_share) == pytest.approx((0.0, 0.6))
    assert (row.startup_s, row.cpu_percent, row.gpu_util) == (pytest.approx(0.01), 150.0, None)


def with_epochs(trials, *, workers, **changes):
    """The same trials with so many workers and other facts of their epochs."""
    return [
        dataclasses.replace(
            trial,
            settings={"num_workers": workers},
            epochs=tuple(dataclasses.replace(epoch, **changes) for epoch in trial.epochs),
        )
        for trial in trials
    ]


# Four workers take 1 s for four batches of 8: 32 images/s.  The last round has two batches.
ROUNDS_S = (2.0,) * 4 + (3.0,) * 4 + (4.0,) * 4 + (5.0,) * 2
ROUNDS = {"steps": 14, "images": 112, "epoch_s": 5.5}


def test_the_steady_rate_is_that_of_whole_rounds_of_workers():
    trials = with_epochs(fake_trials({"base": 1.0}), workers=4, arrivals_s=ROUNDS_S, **ROUNDS)
    (row,) = summarize(fake_info(["base"]), trials).rows
    assert row.steady_images_per_s == pytest.approx(32.0)
    assert row.steady_rates == pytest.approx([32.0] * 6)
    assert row.steady_reason == ""


def test_variants_are_compared_by_their_time_or_by_their_steady_rate():
    trials = [
        trial
        for name, longer in (("base", 1), ("other", 2))  # twice as long, at the same rate
        for trial in with_epochs(
            [t for t in fake_trials({"base": 1.0, "other": 1.0}) if t.variant == name],
            workers=4, arrivals_s=ROUNDS_S, **{**ROUNDS, "epoch_s": longer * 5.5},
        )
    ]  # fmt: skip
    summary = summarize(fake_info(["base", "other"]), trials)
    base, other = summary.rows
    pair, key = [(other, base)], ("other", "base")
    assert summary.compare(pair)[key].ratio == pytest.approx(2)
    assert summary.compare(pair, steady=True)[key].ratio == pytest.approx(1)


def test_rows_that_have_waits_only_give_arrivals_through_them():
    waits_s = (1.9, 0.0, 0.0, 0.0) + (0.6, 0.0, 0.0, 0.0) * 2 + (0.6, 0.0)  # steps of 0.1 s
    trials = with_epochs(
        fake_trials({"base": 1.0}), workers=4, arrivals_s=None, waits_s=waits_s, transfer_s=0.0,
        launch_s=0.0, sync_s=1.4, **ROUNDS,
    )  # fmt: skip
    (row,) = summarize(fake_info(["base"]), trials).rows
    assert row.steady_images_per_s == pytest.approx(32.0)


@pytest.mark.parametrize(
    ("arrivals_s", "reason"),
    [
        (None, "when batches arrived was not recorded; run it again"),
        (ROUNDS_S[:11], "takes epochs of at least 12 batches with 4 workers, got 11; choose more"),
    ],
)
def test_without_arrivals_or_three_rounds_a_row_says_why_it_has_no_steady_rate(arrivals_s, reason):
    trials = with_epochs(fake_trials({"base": 1.0}), workers=4, arrivals_s=arrivals_s)
    (row,) = summarize(fake_info(["base"]), trials).rows
    assert (row.steady_images_per_s, row.steady_rates) == (None, ())
    assert reason in row.steady_reason


@pytest.mark.parametrize(("kind", "epochs"), [("epochs", 2), ("operation", 1)])
def test_a_run_without_rows_is_of_the_epochs_that_its_kind_has(kind, epochs):
    assert summarize(fake_info(["base"], kind=kind), []).epochs == epochs


def test_only_labels_that_all_rows_share_are_labels_of_the_summary():
    trials = fake_trials({"base": 1.0})
    other = {"storage": MODELLED_DISK, "device": SIMULATED_GPU}
    trials += [fake_trial("other", block, labels=other) for block in range(3)]
    summary = summarize(fake_info(["base", "other"]), trials)
    assert summary.hardware == (SIMULATED_GPU,)
    assert MODELLED_DISK in summary.rows[1].hardware


# --- verdicts -----------------------------------------------------------------------------


def equal_variants(d, count):
    """A judged run whose variants all have these log-ratios."""
    names, trials = [f"v{i}" for i in range(count)], []
    for block, x in enumerate(d):
        trials += [fake_trial("base", block, "A1", 1.0), fake_trial("base", block, "A2", 1.0)]
        trials += [fake_trial(name, block, "", math.exp(x)) for name in names]
    return summarize(fake_info(["base", *names], mode="full"), trials)


def test_every_interval_is_a_plain_95_percent_interval_however_many_variants():
    d = [math.log(x) for x in (0.9, 0.95, 0.85, 0.92, 0.93, 0.9)]
    expected = stats.ttest_1samp(d, 0).confidence_interval(0.95)
    for row in equal_variants(d, count=3).rows[1:]:
        assert math.log(row.ci_low) == pytest.approx(expected.low)
        assert math.log(row.ci_high) == pytest.approx(expected.high)


@pytest.mark.parametrize(
    ("d", "alone"),
    [
        ([-0.05 + 0.045 * (-1) ** i for i in range(8)], "faster"),
        ([0.016 * (-1) ** i + 0.017 for i in range(8)], "no practical difference"),
    ],
)
def test_the_verdicts_of_a_run_share_one_error_rate(d, alone):
    assert {row.verdict for row in equal_variants(d, count=1).rows[1:]} == {alone}
    assert alone not in {row.verdict for row in equal_variants(d, count=8).rows[1:]}


def test_an_inconclusive_row_says_what_it_would_take():
    trials = fake_trials({"base": 1.0, "other": 1.0}, blocks=8, noise=0.15)
    summary = summarize(fake_info(["base", "other"], mode="full"), trials)
    assert summary.rows[1].verdict == "inconclusive"
    d = [math.log(ratio) for ratio in summary.rows[1].ratios]
    needed = blocks_needed(stats.tstd(d), 0.05)
    assert f"other: about {needed} blocks would detect 3 %" in summary.notes


def test_a_machine_that_is_unstable_has_numbers_and_no_verdict():
    summary = two_variants([(1.0, 1.2 + 0.01 * i, 0.5) for i in range(6)], blocks=6)
    row = summary.rows[1]
    assert (row.verdict, summary.stable) == ("machine unstable", False)
    assert row.normalized_time == pytest.approx(0.45, abs=0.01) and row.ci_high < 0.5
    assert any(note.startswith("machine unstable: ") for note in summary.notes)


def test_a_noisy_machine_sees_a_large_saving_and_grants_no_equality():
    noisy = [1.0 + 0.08 * (-1) ** i for i in range(8)]  # A2/A1: known within 7 %
    saving = two_variants([(1.0, a2, 0.4) for a2 in noisy])
    assert (saving.stable, saving.rows[1].verdict) == (True, "faster")
    assert any("only within 7" in note for note in saving.notes)
    # Beside the mean of A1 and A2, this variant varies by nothing.
    for ratio in (1.0, 1.06):
        summary = two_variants([(1.0, a2, ratio * math.sqrt(a2)) for a2 in noisy])
        assert summary.rows[1].verdict == "inconclusive"
    quiet = [1.0 + 0.02 * (-1) ** i for i in range(8)]
    summary = two_variants([(1.0, a2, math.sqrt(a2)) for a2 in quiet])
    assert summary.rows[1].verdict == "no practical difference"


def test_each_group_is_judged_beside_its_own_noise():
    def make(group, name, block, role):
        second_s = 1.0 + 0.08 * (-1) ** block * (group == "loud")
        # Beside the mean of A1 and A2, the other variant varies by nothing.
        return fake_trial(name, block, role, {"A1": 1.0, "A2": second_s}.get(role, second_s**0.5))

    names = {"quiet": ["base", "v"], "loud": ["base", "v"]}
    more, trials = fake_groups(names, make, blocks=8)
    labels = list(more["groups"])
    summary = summarize(fake_info(labels, mode="full", **more), trials)
    verdicts = {row.variant: row.verdict for row in summary.rows if not row.is_baseline}
    assert verdicts == {"quiet: v": "no practical difference", "loud: v": "inconclusive"}
    assert any(note.startswith("noisy machine (loud): ") for note in summary.notes)


def test_only_a_judged_figure_is_compared_with_the_document():
    times = {"base": 1.0, "right": 0.5, "wrong": 0.5, "unpublished": 0.5}
    info = {"mode": "full", "published": {"base": 1.0, "right": 0.51, "wrong": 0.8}}
    given = fake_trials(times, blocks=8)
    summary = summarize(fake_info([*times], **info), given)
    assert [summary.agreement(row) for row in summary.rows] == [
        "", "as published", "saves more than published", ""
    ]  # fmt: skip
    assert [row.published for row in summary.rows] == [1.0, 0.51, 0.8, None]
    for less in ({"mode": "quick"}, {"shuffled": False, "protocol": AS_PUBLISHED}):
        summary = summarize(fake_info([*times], **{**info, **less}), given)
        assert {summary.agreement(row) for row in summary.rows} == {""}


def test_an_outlier_is_marked_and_counts():
    blocks = [(2.0, 2.0, 1.0 + 0.01 * i) for i in range(7)]
    row = two_variants([*blocks, (2.0, 2.0, 8.0)]).rows[1]
    assert row.outliers == (7,)
    ratios = [0.5 + 0.005 * i for i in range(7)] + [4.0]
    assert row.ratios == pytest.approx(ratios)
    assert row.normalized_time == pytest.approx(stats.gmean(ratios))
    assert (row.blocks, row.left_out) == (8, 0)
    assert row.ci_high > 1  # and it costs what it must: certainty
    assert two_variants(blocks).rows[1].outliers == ()


# --- what is left out -----------------------------------------------------------------------

COLD = {**LABELS, "cache": "cold"}


def cold_trials(blocks=8, not_cold=(), disturbed=()):
    """A run from cold caches; some trials (variant, block) were not, some (and role) disturbed."""
    trials = []
    for trial in fake_trials({"base": 1.0, "other": 0.5}, blocks=blocks, labels=COLD):
        if (trial.variant, trial.block) in not_cold:
            trial = dataclasses.replace(trial, cache_proof={"resident_share_before": 0.5})
        is_disturbed = (trial.variant, trial.block, trial.role) in disturbed
        trials.append(fake_logged(trial, other_cores=1.0) if is_disturbed else trial)
    return trials


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_a_variant_that_was_never_cold_has_a_reason_and_no_number(mode):
    trials = cold_trials(not_cold=[("other", block) for block in range(8)])
    # What went wrong once and was measured again is not the reason.
    killed = fake_trial("other", 0, status="failed", reason="killed")
    summary = summarize(fake_info(["base", "other"], mode=mode), [killed, *trials])
    base, other = summary.rows
    assert (other.status, other.reason) == (
        "failed", "not cold: 50.0 % of the files were in memory"
    )  # fmt: skip
    assert other.normalized_time is other.time_s is other.ci_low is other.mde is None
    assert (other.ratios, other.blocks, other.left_out, other.verdict) == ((), 0, 8, "")
    assert (base.status, base.blocks, base.left_out) == ("ok", 8, 0)
    assert (
        "other: 8 trials left out, last: not cold: 50.0 % of the files were in memory"
        in summary.notes
    )


@pytest.mark.parametrize(
    ("mode", "blocks", "note"),
    [
        ("full", 6, "2 blocks disturbed, left out of the verdicts: "),
        ("quick", 8, "2 blocks disturbed: "),
    ],
)
def test_disturbed_blocks_are_told_whether_they_count_or_not(mode, blocks, note):
    trials = cold_trials(disturbed={("other", 1, ""), ("base", 6, "A2")})
    summary = summarize(fake_info(["base", "other"], mode=mode, blocks=8), trials)
    assert [summary.n_blocks, *(row.blocks for row in summary.rows)] == [blocks] * 3
    why = "other programs took 100.0 % of a core"
    assert summary.valid.disturbed == {1: f"other: {why}", 6: f"base: {why}"}
    assert summary.valid.are_disturbed_left_out is (mode == "full")
    assert note + f"block 2, other: {why}; block 7, base: {why}" in summary.notes
    shown = [(1, 0.5), (6, 0.5)] if mode == "full" else []
    assert [(block, round(ratio, 1)) for block, ratio in summary.rows[1].disturbed] == shown
    assert ("6 of 8 blocks count" in summary.notes) is (mode == "full")
    assert summary.rows[1].left_out == 0  # that is said of the cache alone


def test_numbers_are_shown_where_too_few_blocks_are_left_for_a_verdict():
    every = {("other", block, "") for block in range(8)}
    for disturbed, left in ((every, 0), ({*sorted(every)[:3]}, 5)):
        trials = cold_trials(disturbed=disturbed)
        summary = summarize(fake_info(["base", "other"], mode="full", blocks=8), trials)
        assert not summary.judged
        base, other = summary.rows
        assert (other.status, other.verdict, other.blocks, base.blocks) == ("ok", "", 8, 8)
        assert other.normalized_time == pytest.approx(0.5, rel=0.05)
        assert other.time_s and other.ci_low < 0.5 < other.ci_high
        found = f"{left} complete blocks without disturbance"
        assert f"no verdicts: {found}, 6 needed" in summary.notes


def test_a_variant_that_swaps_again_and_again_is_named_and_judged():
    trials = [
        fake_logged(trial, swapped_out_pages=9) if trial.variant == "other" else trial
        for trial in cold_trials()
    ]
    summary = summarize(fake_info(["base", "other"], mode="full", blocks=8), trials)
    assert (summary.valid.disturbed, summary.rows[1].verdict) == ({}, "faster")
    assert any(note.startswith("other: swapped in 8 of 8 trials; ") for note in summary.notes)


# --- as in the document -------------------------------------------------------------------


def in_order(times_s, **info):
    """Blocks of (base, other) seconds, each run once and always in this order."""
    trials = []
    for block, (base, other) in enumerate(times_s):
        trials += [fake_trial("base", block, "A1", base), fake_trial("other", block, "", other)]
    given = {"protocol": AS_PUBLISHED, "shuffled": False, **info}
    return summarize(fake_info(["base", "other"], **given), trials)


def test_as_in_the_document_one_run_of_the_baseline_makes_a_block():
    summary = in_order([(4.0, 2.0), (2.0, 2.0), (2.0, 4.0)], blocks=3)
    assert summary.n_blocks == 3
    assert summary.rows[1].ratios == pytest.approx((0.5, 1.0, 2.0))
    assert summary.rows[1].normalized_time == pytest.approx(1.0)
    assert summary.rows[0].ratios == pytest.approx((1.0, 1.0, 1.0))
    # Without a second run of the baseline nothing says what noise alone does.
    floor = summary.noise_floors[""]
    assert (floor.ratio, floor.low, floor.high) == (None,) * 3


def test_floors_have_numbers_and_no_verdict_and_do_not_widen_the_others_intervals():
    times = {"original": 1.0, "fast": 0.8}
    floors = {f"floor {i}": 0.3 for i in range(6)}

    def interval(variants):
        stored = fake_json([*variants])["variants"]
        for name in floors.keys() & stored:
            stored[name]["step"] = "nothing"
        info = fake_info([*variants], mode="full", variants=stored)
        summary = summarize(info, fake_trials(variants, blocks=8))
        rows = {row.variant: row for row in summary.rows}
        assert rows["fast"].verdict == "faster"
        assert {rows[name].verdict for name in floors if name in rows} <= {""}
        return rows

    alone, beside = interval(times), interval({**times, **floors})
    assert beside["floor 0"].normalized_time == pytest.approx(0.3, rel=0.05)
    width = [math.log(rows["fast"].ci_high / rows["fast"].ci_low) for rows in (alone, beside)]
    # The noise differs, the level must not: eight blocks at 5 % against 5 % / 7 would be 1.6 times.
    assert width[1] < 1.5 * width[0]


@pytest.mark.parametrize("measures_loading_alone", [True, False])
def test_a_row_has_the_speed_of_the_device_that_was_reached_beside_the_one_in_its_group(
    measures_loading_alone,
):
    # The trials at 2 and 4 reach 0.8 of the calibrated rate, those that load alone all of it.
    run = fake_roofline(speeds=(1.0, 2.0, 4.0), noise=0.0, overlap=0.8)
    trials, info = run.trials, run.info
    if measures_loading_alone:
        facts = {
            label: dataclasses.replace(info.facts_of(label), trains_nothing="alone" in label)
            for label in info.variants
        }
        info = dataclasses.replace(info, facts=facts)
    else:
        trials = [trial for trial in trials if trial.group != "loading alone"]
    summary = summarize(info, trials)
    rows = {row.group: row for row in summary.rows if row.is_baseline}
    reached = 2.0 if measures_loading_alone else 2.5
    assert rows["x = 2"].device_images_per_s == pytest.approx(2 * 210)  # that was simulated
    assert rows["x = 2"].x == pytest.approx(reached, rel=0.02)
    assert rows["x = 1"].x == pytest.approx(reached / 2, rel=0.02)
    in_trials = "the baseline alone loads 210 images/s, in the trials 168 images/s: x = 1 is 1.25"
    assert any(in_trials in line for line in warnings(summary)) is not measures_loading_alone


def test_where_the_baseline_loads_nothing_either_its_variants_are_judged():
    times = {"nothing beside the step": 1.0, "checkpoint": 1.2, "no step": 0.5}
    variants = {name: {"loader": "resident"} for name in times}
    variants["no step"]["step"] = "nothing"
    info = fake_info([*times], mode="full", variants=variants)
    rows = summarize(info, fake_trials(times, blocks=8)).rows
    assert [row.verdict for row in rows] == ["baseline", "slower", ""]


# --- beside time ------------------------------------------------------------------------------


def with_waits(trial, *epochs_waits_s):
    epochs = [dataclasses.replace(e, waits_s=w) for e, w in zip(trial.epochs, epochs_waits_s)]
    return dataclasses.replace(trial, epochs=tuple(epochs))


def test_waits_of_all_epochs_are_pooled_and_those_of_older_rows_are_unknown():
    short, long = [0.001] * 99, [0.003] * 99 + [0.5, 0.5]
    runs = [with_waits(fake_trial("base", 0, role), short, long) for role in ("A1", "A2")]
    other = fake_trial("other", 0)  # as rows of schema 2 are read
    base, unknown = summarize(fake_info(["base", "other"]), [*runs, other]).rows
    assert (base.wait_p50_s, base.wait_p99_s) == (0.003, 0.003)
    longest = [with_waits(run, short, [0.003] * 98 + [0.5, 0.5, 0.5]) for run in runs]
    row = summarize(fake_info(["base"]), longest).rows[0]
    assert row.wait_p99_s == 0.5  # three of two hundred
    assert (unknown.wait_p50_s, unknown.wait_p99_s) == (None, None)


def test_cpu_seconds_are_those_of_a_thousand_images():
    runs = [fake_trial("base", 0, "A1", 2.0), fake_trial("base", 0, "A2", 4.0)]
    (row,) = summarize(fake_info(["base"]), runs).rows
    # 1.5 CPU-seconds per second; 2 trials of 2 epochs of 160 images
    assert row.cpu_s_per_1000_images == pytest.approx(1.5 * 6 / 640 * 1000)
    runs[1] = dataclasses.replace(runs[1], cpu_s=None)
    assert summarize(fake_info(["base"]), runs).rows[0].cpu_s_per_1000_images is None


def test_memory_is_the_most_that_any_trial_held():
    held = [(5, None), (7, 0)]
    runs = [
        dataclasses.replace(fake_trial("base", 0, role), peak_pss_bytes=pss, peak_shm_bytes=shm)
        for role, (pss, shm) in zip(("A1", "A2"), held)
    ]
    (row,) = summarize(fake_info(["base"]), runs).rows
    assert (row.peak_pss_bytes, row.peak_shm_bytes) == (7, 0)
    assert row.gpu_allocated_bytes is None
    runs[0] = dataclasses.replace(runs[0], gpu_allocated_bytes=3, gpu_reserved_bytes=5)
    (row,) = summarize(fake_info(["base"]), runs).rows
    assert (row.gpu_allocated_bytes, row.gpu_reserved_bytes) == (3, 5)


def test_a_variant_is_named_in_its_group_as_the_experiment_names_it():
    variants = {
        "1": Variant(settings=Settings(), group="cold", name="folder"),
        "2": Variant(settings=Settings(packing="lmdb"), group="cold"),
    }
    fields = Experiment("mine", question="?", variants=variants).run_fields(variants)
    summary = summarize(fake_info([*variants], **fields), fake_trials({"1": 1.0, "2": 0.5}))
    assert [row.name for row in summary.rows] == ["folder", "2"]
