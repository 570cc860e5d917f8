"""The words about a run: what stands in for what, and everything that a chart shows.

Run: python -m pytest tests/test_captions.py
"""

from dataclasses import replace

import pytest
from fakes import (
    CHECKED,
    LABELS,
    MEDIA,
    RATES,
    THROTTLED,
    fake_info,
    fake_judged_trials,
    fake_media_info,
    fake_media_trials,
    fake_throttled_hdd,
    fake_trials,
)

from labkit import captions
from labkit.summary import summarize

TIMES = {"original": 1.0, "prefetch_generator": 0.894, "data_prefetcher": 0.891}


def make_summary(times=TIMES, *, labels=LABELS, **info):
    names = [*times, *info.get("skipped", {})]
    return summarize(fake_info(names, **info), fake_trials(times, labels=labels))


def test_stand_ins_are_said_with_the_variants_they_belong_to():
    summary = summarize(fake_info(["hdd", "ssd"]), fake_throttled_hdd())
    assert captions.stand_ins(summary) == ["Throttled storage (81 reads/s): hdd"]
    assert "accelerator: cuda:H200" in captions.conditions(summary)


def test_names_of_several_words_are_told_apart_where_they_are_listed():
    assert captions.join(["hdd"]) == "hdd"
    assert captions.join(["hdd", "hdd, warm"]) == "hdd and “hdd, warm”"
    assert captions.join(["a_1", "数据，热", "c d"]) == "a_1, “数据，热” and “c d”"


def test_a_disk_that_nobody_believes_is_named_like_a_stand_in():
    doubtful = "unknown(claims to be rotational, 6,012 cold reads/s)"
    media = MEDIA | {"ssd": replace(MEDIA["ssd"], label=doubtful)}
    summary = summarize(fake_media_info(media), fake_media_trials(media))
    assert captions.stand_ins(summary)[1:] == [
        "Throttled storage (7200 rpm: 81 reads/s, 106 MB/s): hdd and “hdd, warm”",
        "Unknown storage (claims to be rotational, 6,012 cold reads/s): ssd",
    ]
    summary = make_summary(labels={"storage": "unknown", "accelerator": "cuda:H200"})
    assert captions.stand_ins(summary) == ["Unknown storage"]


def test_emulation_is_said_once_for_all_rows_and_real_devices_raise_nothing():
    assert captions.stand_ins(make_summary()) == ["Emulated accelerator (matched, 11.2 ms/image)"]
    assert "emulated" not in captions.conditions(make_summary())
    real = make_summary(labels={"storage": "real", "accelerator": "cuda:H200"})
    assert captions.stand_ins(real) == []


def test_the_description_says_all_that_the_picture_shows():
    summary = make_summary(published=TIMES, skipped={"dali": "not installed"})
    said = captions.describe(summary)
    row = summary.rows[1]
    assert said.startswith(summary.question)
    for part in (
        "Emulated accelerator",
        "quick mode · 3 blocks",
        f"prefetch_generator: {row.normalized_time:.3f}, 95 % interval [",
        "published 0.894",
        "dali: skipped: not installed.",
    ):
        assert part in said
    assert "\n" not in said


def test_a_question_in_chinese_keeps_its_own_mark():
    assert "？." not in captions.describe(make_summary(question="哪一种方法最有帮助？"))


def test_only_a_variant_without_a_number_has_a_reason():
    rows = make_summary(skipped={"dali": "not installed", "ffcv": ""}).rows
    assert [captions.reason(row) for row in rows] == [
        "", "", "", "skipped: not installed", "skipped",
    ]  # fmt: skip


def test_the_description_of_single_epochs_says_where_their_bytes_came_from():
    media = MEDIA | {"tmpfs": replace(MEDIA["tmpfs"], swapped_pages=1_500, read_share=None)}
    info = fake_media_info(media, skipped={"nvme": "not named"})
    info["variants"]["nvme"] = {"storage": "nvme", "cache": "cold"}
    said = captions.describe_epochs(summarize(info, fake_media_trials(media, noise=0)))
    for part in (
        "Does a faster disk shorten the epoch? Emulated",
        "Throttled storage",
        "quick mode · 3 blocks",
        "hdd: epoch 1 2.05 s, epoch 2 1.42 s; in memory before epoch 1: 0.0 % (cold); "
        "bytes read from disk: 50.1 %; pages swapped: 0.",
        "tmpfs: epoch 1 1.43 s, epoch 2 1.41 s; in memory before epoch 1: 100.0 % (warm); "
        "bytes read from disk: unknown; pages swapped: 4,500.",
        "nvme: skipped: not named.",
    ):
        assert part in said


def test_epochs_after_the_second_are_averaged_with_it():
    media = {"hdd": replace(MEDIA["hdd"], epochs_s=(3.0, 1.0, 1.5, 2.0))}
    (row,) = summarize(fake_media_info(media), fake_media_trials(media, noise=0)).rows
    first, later = captions.epoch_bars(row)
    assert (first.name, first.mean_s, first.all_s) == ("epoch 1", pytest.approx(3), (3.0,) * 6)
    assert (later.name, later.mean_s) == ("epochs 2 to 4 (mean)", pytest.approx(1.5))
    assert sorted(set(later.all_s)) == [1.0, 1.5, 2.0]


def test_many_variants_are_counted_not_listed():
    assert captions.join(["a", "b, warm", "c", "d"]) == "a, “b, warm”, c and d"
    assert captions.join(["a", "b", "c", "d", "e"]) == "5 variants"


# --- the second line ----------------------------------------------------------------------


def judged_summary(**info):
    """Ten blocks, of which one is rejected; ssd has an outlier and a trial that was not cold."""
    info = fake_media_info(mode="full", blocks=10, **info)
    return summarize(info, fake_judged_trials())


def second_lines(summary):
    return {row.variant: captions.second_line(summary, row) for row in summary.rows}


def test_the_baselines_second_line_says_blocks_noise_floor_proof_and_medium():
    summary = judged_summary()
    ratio = f"A/A {summary.aa_ratio:.3f} [{summary.aa_low:.3f}, {summary.aa_high:.3f}]"
    assert second_lines(summary)["hdd"] == (
        f"9 blocks · noise floor {100 * summary.aa_s:.1f} % ({ratio}) · "
        "cold (0.0 % in memory before, 50.1 % of bytes from disk) · throttled storage"
    )


def test_a_variants_second_line_marks_what_is_odd_about_it():
    summary = judged_summary()
    row = summary.rows[1]
    (place,) = row.outliers
    assert second_lines(summary)["ssd"] == (
        f"8 of 9 blocks · shows effects from {100 * row.mde:.1f} % up · "
        "cold (0.0 % in memory before, 50.2 % of bytes from disk) · real storage · "
        f"1 outlier, kept: {row.ratios[place]:.3f} · 1 trial left out: not known to be cold"
    )


def test_a_row_without_a_number_has_no_second_line():
    summary = make_summary(skipped={"dali": "not installed"})
    assert second_lines(summary)["dali"] == ""
    assert all(line for name, line in second_lines(summary).items() if name != "dali")


def test_one_block_has_neither_interval_nor_visible_effect():
    trials = fake_trials(TIMES, blocks=1)
    summary = summarize(fake_info(list(TIMES)), trials)
    assert second_lines(summary)["original"] == f"1 block · A/A {summary.aa_ratio:.3f}"
    assert second_lines(summary)["data_prefetcher"] == "1 block"


def test_a_cache_state_that_nobody_looked_at_is_said_to_be_so():
    unknown = replace(MEDIA["tmpfs"], cache="as found", resident_share=None, read_share=None)
    media = {**MEDIA, "tmpfs": unknown}
    summary = summarize(fake_media_info(media), fake_media_trials(media))
    assert "as found (not measured)" in second_lines(summary)["tmpfs"]


def test_swapping_is_said_beside_the_cache():
    media = {**MEDIA, "tmpfs": replace(MEDIA["tmpfs"], swapped_pages=500)}
    summary = summarize(fake_media_info(media), fake_media_trials(media))
    assert "0.0 % of bytes from disk, 1,500 pages swapped)" in second_lines(summary)["tmpfs"]
    assert "swapped" not in second_lines(summary)["ssd"]


def test_labels_stand_in_a_row_only_where_they_differ_and_in_full_only_where_they_must():
    assert not any("storage" in line for line in second_lines(make_summary()).values())
    other = "throttled(5400 rpm: 60 reads/s, 80 MB/s)"
    media = {**MEDIA, "old hdd": replace(MEDIA["hdd"], label=other)}
    lines = second_lines(summarize(fake_media_info(media), fake_media_trials(media)))
    assert lines["old hdd"].endswith(f" · storage: {other}")
    assert lines["hdd"].endswith(f" · storage: {THROTTLED}")
    assert lines["ssd"].endswith(" · real storage")


# --- agreement ----------------------------------------------------------------------------

REAL = {"storage": "real", "accelerator": "cuda:H200"}
PUBLISHED = {"true": 0.894, "far": 0.6, "none": 0.999}
TRUE = {"base": 1.0, "true": 0.894, "far": 0.9, "none": 0.9}


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (REAL, ("agrees", "differs")),
        (REAL | {"storage": "unknown"}, ("agrees", "differs")),
        (
            REAL | {"accelerator": "emulated(matched, 2 ms/image)"},
            ("consistent (emulated)", "not consistent (emulated)"),
        ),
        (
            REAL | {"storage": "modelled(7200 rpm)"},
            ("consistent (emulated)", "not consistent (emulated)"),
        ),
        (
            REAL | {"storage": THROTTLED},
            ("consistent (emulated)", "not consistent (emulated)"),
        ),
    ],
)
def test_agreement_over_a_stand_in_is_never_said_as_of_the_real_thing(labels, words):
    trials = fake_trials(TRUE, blocks=10, noise=0.01, labels=labels)
    info = fake_info(list(TRUE), mode="full", published=PUBLISHED)
    summary = summarize(info, trials)
    cells = {row.variant: captions.document(summary, row) for row in summary.rows}
    assert cells["base"] == "–"
    assert (cells["true"], cells["far"]) == (f"0.894, {words[0]}", f"0.600, {words[1]}")
    emulated = " (emulated)" if "emulated" in words[0] else ""
    assert cells["none"] == f"0.999, inconclusive{emulated}"


def test_a_baseline_on_a_stand_in_makes_the_comparison_emulated():
    trials = [
        replace(t, labels={**REAL, "storage": THROTTLED} if t.variant == "base" else REAL)
        for t in fake_trials(TRUE, blocks=10, noise=0.01)
    ]
    summary = summarize(fake_info(list(TRUE), mode="full", published=PUBLISHED), trials)
    assert captions.document(summary, summary.rows[1]) == "0.894, consistent (emulated)"
    assert "published 0.894, consistent (emulated), faster" in captions.describe(summary)


def test_no_word_of_agreement_where_nothing_is_judged():
    summary = make_summary(published=TIMES)
    assert captions.document(summary, summary.rows[1]) == "0.894"


# --- the stand-ins' own checks ------------------------------------------------------------


def test_the_stand_ins_checks_are_said_in_figures():
    assert captions.self_checks(make_summary(**CHECKED)) == [
        "Emulated accelerator checked: 99.7 % busy with a free loader (at least 99 % wanted)",
        "throttled checked: 80.0 of 81.0 files/s at random, 104.9 of 106.2 MB/s in sequence, "
        "2 readers (within 5 % wanted)",
    ]


def test_a_check_says_when_it_was_made_with_how_many_readers_and_what_was_refused():
    random, sequential = RATES
    off = {**random, "readers": 8, "delivered_per_s": 41.0, "refused": True}
    free = {**sequential, "requested_per_s": None}
    facts = {"rates": [off, free], "rates_checked_utc": "2026-11-20T09:05:59Z"}
    checked = {"free_loader_au": 0.99512, "free_loader_checked_utc": "2026-11-21T14:03:22Z"}
    said = captions.self_checks(make_summary(calibration=checked, storages={"hdd": facts}))
    assert said == [
        "Emulated accelerator checked on 2026-11-21 14:03 UTC: "
        "99.5 % busy with a free loader (at least 99 % wanted)",
        "hdd refused on 2026-11-20 09:05 UTC: 41.0 of 81.0 files/s at random with 8 readers, "
        "104.9 MB/s in sequence with 2 readers, not slowed down (within 5 % wanted)",
    ]


def test_a_run_without_stand_ins_or_older_than_the_checks_says_nothing_of_them():
    assert captions.self_checks(make_summary()) == []
    assert captions.self_checks(make_summary(storages={"here": {"rates": []}, "a": {}})) == []


def test_the_descriptions_hold_the_checks_and_the_outliers():
    summary = judged_summary(**CHECKED)
    for said in (captions.describe(summary), captions.describe_epochs(summary)):
        for check in captions.self_checks(summary):
            assert f"{check}." in said
    assert ", inconclusive; 1 outlier, kept: 1." in captions.describe(summary)


# --- what the machine did -----------------------------------------------------------------


def test_rejected_blocks_are_counted_where_they_are_left_out_and_disturbed_where_not():
    assert "full mode · 9 blocks, 1 rejected · " in captions.conditions(judged_summary())
    trials = fake_judged_trials(blocks=3)
    summary = summarize(fake_media_info(blocks=3), trials)
    assert "quick mode · 3 blocks, 1 disturbed · " in captions.conditions(summary)


@pytest.mark.parametrize(("mode", "said"), [("full", True), ("quick", False)])
def test_an_unstable_machine_is_stamped_on_everything_that_is_judged(mode, said):
    trials = [
        replace(t, epochs=tuple(replace(e, epoch_s=1.3 * e.epoch_s) for e in t.epochs))
        if t.role == "A2"
        else t
        for t in fake_trials(TIMES, blocks=10)
    ]
    summary = summarize(fake_info(list(TIMES), mode=mode, published=TIMES), trials)
    assert ("machine unstable, no verdicts" in captions.conditions(summary)) is said
    assert captions.document(summary, summary.rows[1]) == "0.894"
