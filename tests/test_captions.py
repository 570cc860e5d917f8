"""The words about a run: what stands in for what, and everything that a chart shows.

Run: python -m pytest tests/test_captions.py
"""

from fakes import LABELS, fake_info, fake_throttled_hdd, fake_trials

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
