"""The words about a run: what stands in for what, and everything that a chart shows.

Run: python -m pytest tests/test_captions.py
"""

from dataclasses import replace

import pytest
from fakes import (
    LABELS,
    MEDIA,
    fake_info,
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
