"""Rows, notes and verdicts of whole runs, against sums done by hand and scipy.stats."""

import math
from dataclasses import replace

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
    # The noise floor is A2 over A1: ln 2 and ln 8 have the mean ln 4.
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
        replace(
            trial,
            settings={"num_workers": workers},
            epochs=tuple(replace(epoch, **changes) for epoch in trial.epochs),
        )
        for trial in trials
    ]


# Four workers take 1 s for four batches of 8: 32 images/s.  The last round has two batches.
ROUNDS_S = (2.0,) * 4 + (3.0,) * 4 + (4.0,) * 4 + (5.0,) * 2
ROUNDS = {"steps": 14, "images": 112, "epoch_s": 5.5}


WAITS_S = (1.9, 0.0, 0.0, 0.0) + (0.6, 0.0, 0.0, 0.0) * 2 + (0.6, 0.0)  # steps of 0.1 s


@pytest.mark.parametrize(
    ("changes", "rates", "reason"),
    [
        ({"arrivals_s": ROUNDS_S, **ROUNDS}, [32.0] * 6, ""),
        # Rows that have waits only give arrivals through them.
        ({"arrivals_s": None, "waits_s": WAITS_S, "transfer_s": 0.0, "sync_s": 1.4, **ROUNDS},
         [32.0] * 6, ""),
        ({"arrivals_s": None}, [], "when batches arrived was not recorded; run it again"),
        ({"arrivals_s": ROUNDS_S[:11]}, [],
         "takes epochs of at least 12 batches with 4 workers, got 11; choose more"),
    ],
)  # fmt: skip
def test_a_row_has_the_steady_rate_of_whole_rounds_or_says_why_not(changes, rates, reason):
    trials = with_epochs(fake_trials({"base": 1.0}), workers=4, **changes)
    (row,) = summarize(fake_info(["base"]), trials).rows
    assert row.steady_images_per_s == (pytest.approx(32.0) if rates else None)
    assert row.steady_rates == pytest.approx(rates)
    assert reason in row.steady_reason and bool(reason) is bool(row.steady_reason)


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


def test_a_summary_has_the_labels_that_all_rows_share_and_the_epochs_of_its_kind():
    trials = fake_trials({"base": 1.0})
    other = {"storage": MODELLED_DISK, "device": SIMULATED_GPU}
    trials += [fake_trial("other", block, labels=other) for block in range(3)]
    summary = summarize(fake_info(["base", "other"]), trials)
    assert summary.hardware == (SIMULATED_GPU,)
    assert MODELLED_DISK in summary.rows[1].hardware
    for kind, epochs in (("epochs", 2), ("operation", 1)):  # without rows
        assert summarize(fake_info(["base"], kind=kind), []).epochs == epochs


# --- verdicts -----------------------------------------------------------------------------


def equal_variants(d, count):
    """A judged run whose variants all have these log-ratios."""
    names, trials = [f"v{i}" for i in range(count)], []
    for block, x in enumerate(d):
        trials += [fake_trial("base", block, "A1", 1.0), fake_trial("base", block, "A2", 1.0)]
        trials += [fake_trial(name, block, "", math.exp(x)) for name in names]
    return summarize(fake_info(["base", *names], mode="full"), trials)


@pytest.mark.parametrize(
    ("d", "alone"),
    [
        ([-0.05 + 0.045 * (-1) ** i for i in range(8)], "faster"),
        ([0.016 * (-1) ** i + 0.017 for i in range(8)], "no practical difference"),
    ],
)
def test_the_verdicts_of_a_run_share_one_error_rate_and_intervals_are_plain(d, alone):
    assert {row.verdict for row in equal_variants(d, count=1).rows[1:]} == {alone}
    rows = equal_variants(d, count=8).rows[1:]
    assert alone not in {row.verdict for row in rows}
    expected = stats.ttest_1samp(d, 0).confidence_interval(0.95)
    for row in rows:
        assert math.log(row.ci_low) == pytest.approx(expected.low)
        assert math.log(row.ci_high) == pytest.approx(expected.high)


def test_an_inconclusive_row_says_what_it_would_take():
    trials = fake_trials({"base": 1.0, "other": 1.0}, blocks=8, noise=0.15)
    summary = summarize(fake_info(["base", "other"], mode="full"), trials)
    assert summary.rows[1].verdict == "inconclusive"
    needed = blocks_needed(stats.tstd([math.log(ratio) for ratio in summary.rows[1].ratios]), 0.05)
    assert f"other: about {needed} blocks would detect 3 %" in summary.notes


def test_an_unstable_machine_gives_no_verdict_and_a_noisy_one_none_of_small_effects():
    summary = two_variants([(1.0, 1.2 + 0.01 * i, 0.5) for i in range(6)], blocks=6)
    row = summary.rows[1]
    assert (row.verdict, summary.stable) == ("machine unstable", False)
    assert row.normalized_time == pytest.approx(0.45, abs=0.01) and row.ci_high < 0.5
    assert any(note.startswith("machine unstable: ") for note in summary.notes)
    noisy = [1.0 + 0.08 * (-1) ** i for i in range(8)]  # A2/A1: known within 7 %
    saving = two_variants([(1.0, a2, 0.4) for a2 in noisy])
    assert (saving.stable, saving.rows[1].verdict) == (True, "faster")
    assert any("only within 7" in note for note in saving.notes)


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
    ratios = [0.5 + 0.005 * i for i in range(7)] + [4.0]
    assert (row.outliers, row.blocks, row.left_out) == ((7,), 8, 0)
    assert row.ratios == pytest.approx(ratios)
    assert row.normalized_time == pytest.approx(stats.gmean(ratios))
    assert row.ci_high > 1  # and it costs what it must: certainty
    assert two_variants(blocks).rows[1].outliers == ()


# --- notes ----------------------------------------------------------------------------------

PAIR = fake_trials({"base": 1.0, "other": 0.5}, blocks=8, noise=0.005)
KILLED = fake_trial("other", 0, status="failed", reason="killed")
WATCHED = ("steal_share", "other_cores", "other_gpu_share", "swapped_in_pages")
UNREADABLE = [f"{number}.jpg" for number in range(6)]


@pytest.mark.parametrize(
    ("trials", "info", "set_aside", "notes"),
    [
        (PAIR, {}, 0, []),
        (PAIR, {"mode": "quick", "notes": ["own"]}, 0, ["own", "no verdicts in quick mode"]),
        (PAIR, {"protocol": AS_PUBLISHED, "shuffled": False}, 0,
         ["as in the document: variants in its order, only the first of a block starts cold; no "
          "verdicts, as the order may explain a difference"]),
        ([t for t in PAIR if t.block < 5], {}, 0, ["no verdicts: 5 complete blocks, 6 needed"]),
        (PAIR, {"blocks": 9}, 0, ["8 of 9 blocks count"]),
        ([fake_logged(t, **dict.fromkeys(WATCHED)) for t in PAIR], {}, 0,
         ["not monitored on this machine: CPU time stolen by other machines, other programs, other "
          "programs on the GPU, swapping"]),
        (PAIR, {}, 2, ["2 incomplete lines of trials.jsonl skipped, after a killed process or a "
                       "full disk; resume the run to measure the trial again"]),
        ([replace(t, unreadable_images=6) for t in PAIR], {"unreadable": UNREADABLE}, 0,
         ["6 unreadable images left out for all variants",
          f"{'; '.join(UNREADABLE[:5])}; run.json lists all"]),
        (PAIR, {"unreadable": UNREADABLE[:5]}, 0, ["; ".join(UNREADABLE[:5])]),
        ([KILLED, *PAIR, replace(KILLED, reason="out of memory")], {}, 0,
         ["other: failed 2×, last: out of memory"]),
    ],
)  # fmt: skip
def test_notes_say_what_is_missing_or_was_left_out(trials, info, set_aside, notes):
    info = fake_info(["base", "other"], **{"mode": "full", **info})
    assert [*summarize(info, trials, set_aside=set_aside).notes] == notes


# --- what is left out -----------------------------------------------------------------------

COLD = {**LABELS, "cache": "cold"}


def cold_trials(blocks=8, not_cold=(), disturbed=()):
    """A run from cold caches; some trials (variant, block) were not, some (and role) disturbed."""
    trials = []
    for trial in fake_trials({"base": 1.0, "other": 0.5}, blocks=blocks, labels=COLD):
        if (trial.variant, trial.block) in not_cold:
            trial = replace(trial, cache_proof={"resident_share_before": 0.5})
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
        fake_logged(trial, swapped_out_pages=9 * (trial.variant == "other"))
        for trial in cold_trials()
    ]
    summary = summarize(fake_info(["base", "other"], mode="full", blocks=8), trials)
    assert (summary.valid.disturbed, summary.rows[1].verdict) == ({}, "faster")
    assert any(note.startswith("other: swapped in 8 of 8 trials; ") for note in summary.notes)


# --- as in the document -------------------------------------------------------------------


def test_as_in_the_document_one_run_of_the_baseline_makes_a_block():
    trials = [
        fake_trial(name, block, role, time_s)
        for block, times_s in enumerate([(4.0, 2.0), (2.0, 2.0), (2.0, 4.0)])
        for name, role, time_s in zip(("base", "other"), ("A1", ""), times_s)
    ]
    info = fake_info(["base", "other"], protocol=AS_PUBLISHED, shuffled=False, blocks=3)
    summary = summarize(info, trials)
    assert summary.n_blocks == 3
    assert summary.rows[1].ratios == pytest.approx((0.5, 1.0, 2.0))
    assert summary.rows[1].normalized_time == pytest.approx(1.0)
    assert summary.rows[0].ratios == pytest.approx((1.0, 1.0, 1.0))
    # Without a second run of the baseline nothing says what noise alone does.
    floor = summary.noise_floors[""]
    assert (floor.ratio, floor.low, floor.high) == (None,) * 3


def test_floors_have_numbers_and_no_verdict_and_do_not_count_among_the_others():
    times = {"original": 1.0, "fast": 0.8, **{f"floor {i}": 0.3 for i in range(6)}}
    stored = fake_json([*times])["variants"]
    for name in stored:
        stored[name] |= {"step": "nothing"} if "floor" in name else {}
    summary = summarize(
        fake_info([*times], mode="full", variants=stored), fake_trials(times, blocks=8)
    )
    _, fast, *floors = summary.rows
    assert (fast.verdict, fast.compared.level) == ("faster", 0.05)  # not a seventh of it
    assert {row.verdict for row in floors} == {""}
    assert floors[0].normalized_time == pytest.approx(0.3, rel=0.05)
    # Where the baseline loads nothing either, its variants are judged.
    times = {"nothing beside the step": 1.0, "checkpoint": 1.2, "no step": 0.5}
    variants = {name: {"loader": "resident"} for name in times}
    variants["no step"]["step"] = "nothing"
    info = fake_info([*times], mode="full", variants=variants)
    rows = summarize(info, fake_trials(times, blocks=8)).rows
    assert [row.verdict for row in rows] == ["baseline", "slower", ""]


@pytest.mark.parametrize("measures_loading_alone", [True, False])
def test_a_row_has_the_speed_of_the_device_that_was_reached_beside_the_one_in_its_group(
    measures_loading_alone,
):
    # The trials at 2 and 4 reach 0.8 of the calibrated rate, those that load alone all of it.
    run = fake_roofline(speeds=(1.0, 2.0, 4.0), noise=0.0, overlap=0.8)
    trials, info = run.trials, run.info
    if measures_loading_alone:
        facts = {
            label: replace(info.facts_of(label), trains_nothing="alone" in label)
            for label in info.variants
        }
        info = replace(info, facts=facts)
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


# --- beside time ------------------------------------------------------------------------------


def of_two(**fields):
    """The baseline's row where its two trials, 2 and 4 s long, have these values each."""
    runs = [fake_trial("base", 0, "A1", 2.0), fake_trial("base", 0, "A2", 4.0)]
    for place, values in enumerate(zip(*fields.values())):
        known = dict(zip(fields, values))
        waits_s = known.pop("waits_s", (None, None))
        epochs = [
            replace(epoch, waits_s=waits) for epoch, waits in zip(runs[place].epochs, waits_s)
        ]
        runs[place] = replace(runs[place], epochs=tuple(epochs), **known)
    (row,) = summarize(fake_info(["base"]), runs).rows
    return row


SHORT, LONG = [0.001] * 99, [0.003] * 98


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # Waits of all epochs are pooled: three of two hundred are more than one percent.
        ({"waits_s": [(SHORT, [*LONG, 0.003, 0.5, 0.5])] * 2},
         {"wait_p50_s": 0.003, "wait_p99_s": 0.003}),
        ({"waits_s": [(SHORT, [*LONG, 0.5, 0.5, 0.5])] * 2}, {"wait_p99_s": 0.5}),
        ({"waits_s": [(None, None)] * 2}, {"wait_p50_s": None, "wait_p99_s": None}),
        # 1.5 CPU-seconds per second; 2 trials of 2 epochs of 160 images.
        ({"cpu_s": (3.0, 6.0)}, {"cpu_s_per_1000_images": pytest.approx(9 / 640 * 1000)}),
        ({"cpu_s": (3.0, None)}, {"cpu_s_per_1000_images": None}),
        ({"gpu_util_mean": (0.2, 0.4)}, {"gpu_util": pytest.approx(0.3)}),
        # Memory is the most that any trial held.
        ({"peak_pss_bytes": (5, 7), "peak_shm_bytes": (None, 0)},
         {"peak_pss_bytes": 7, "peak_shm_bytes": 0, "gpu_allocated_bytes": None}),
        ({"gpu_allocated_bytes": (3, None), "gpu_reserved_bytes": (5, None)},
         {"gpu_allocated_bytes": 3, "gpu_reserved_bytes": 5}),
    ],
)  # fmt: skip
def test_beside_time_a_row_has_waits_cpu_time_and_memory(fields, expected):
    row = of_two(**fields)
    assert {name: getattr(row, name) for name in expected} == expected


def test_a_variant_is_named_in_its_group_as_the_experiment_names_it():
    variants = {
        "1": Variant(settings=Settings(), group="cold", name="folder"),
        "2": Variant(settings=Settings(packing="lmdb"), group="cold"),
    }
    fields = Experiment("mine", question="?", variants=variants).run_fields(variants)
    summary = summarize(fake_info([*variants], **fields), fake_trials({"1": 1.0, "2": 0.5}))
    assert [row.name for row in summary.rows] == ["folder", "2"]
