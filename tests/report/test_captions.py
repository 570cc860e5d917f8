"""The words about a run: what stands in for what, and everything that a chart shows.

Run: python -m pytest tests/test_captions.py
"""

from dataclasses import replace

import pytest
from fakes import (
    LABELS,
    RATES,
    fake_info,
    fake_judged_trials,
    fake_media_info,
    fake_throttled_hdd,
    fake_trials,
)

from labkit.analysis.summary import summarize
from labkit.report import captions, row_words

TIMES = {"original": 1.0, "prefetch_generator": 0.894, "data_prefetcher": 0.891}


def make_summary(times=TIMES, *, labels=LABELS, **info):
    names = [*times, *info.get("skipped", {})]
    return summarize(fake_info(names, **info), fake_trials(times, labels=labels))


def test_stand_ins_are_said_with_the_variants_they_belong_to():
    summary = summarize(fake_info(["hdd", "ssd"]), fake_throttled_hdd())
    assert captions.stand_ins(summary) == ["Throttled storage (81 reads/s): hdd"]
    assert "accelerator: cuda:H200" in captions.conditions(summary)


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


def judged_summary(**info):
    """Ten blocks, of which one is rejected; ssd has an outlier and a trial that was not cold."""
    info = fake_media_info(mode="full", blocks=10, **info)
    return summarize(info, fake_judged_trials())


# --- the stand-ins' own checks ------------------------------------------------------------


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
    assert row_words.document(summary, summary.rows[1]) == "0.894"


# --- where the numbers come from: enough to find a run again, and nothing personal ---------

PROVENANCE = {
    "machine_id": "7a93da180d42",
    "cpu_model": "AMD EPYC",
    "cores": 2,
    "versions": {"torch": "2.13.0", "opencv": "5.0.0", "pillow": "13.0.0", "simplejpeg": "unknown"},
    "revision": "d3b547a28684a3e15409176c609ce62422561b00",
    "dirty": False,
    "gpu": {"works": False, "name": ""},
}
INFO = {
    "run": "20261121T191222Z-1f2e",
    "created_utc": "2026-11-21T19:12:22Z",
    "variants": {"a": {"decoder": "opencv", "data": "/home/ada/photos", "num_workers": 2}},
    "data": {"folder": "/home/ada/photos"},
    "provenance": PROVENANCE,
}
WHEN = "run 20261121T191222Z-1f2e · 2026-11-21 19:12 UTC"


def test_machine_used_versions_labkit_run_and_minute_stand_in_one_line():
    assert captions.origin(INFO) == (
        "2 cores, AMD EPYC, no GPU (machine 7a93da) · torch 2.13.0, opencv 5.0.0 · "
        f"labkit d3b547a · {WHEN}"
    )


def test_no_folder_of_the_person_is_in_it():
    assert "ada" not in captions.origin(INFO) and "/" not in captions.origin(INFO)
