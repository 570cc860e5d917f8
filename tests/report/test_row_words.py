"""The words beside one row: what its number rests on, and why there is none.

Run: python -m pytest tests/test_row_words.py
"""

from dataclasses import replace

import pytest
from fakes import (
    LABELS,
    THROTTLED,
    fake_info,
    fake_judged_trials,
    fake_media_info,
    fake_trials,
)

from labkit.analysis.summary import summarize
from labkit.report import captions, row_words

TIMES = {"original": 1.0, "prefetch_generator": 0.894, "data_prefetcher": 0.891}


def make_summary(times=TIMES, *, labels=LABELS, **info):
    names = [*times, *info.get("skipped", {})]
    return summarize(fake_info(names, **info), fake_trials(times, labels=labels))


# --- the second line ----------------------------------------------------------------------


def judged_summary(**info):
    """Ten blocks, of which one is rejected; ssd has an outlier and a trial that was not cold."""
    info = fake_media_info(mode="full", blocks=10, **info)
    return summarize(info, fake_judged_trials())


def second_lines(summary):
    return {row.variant: row_words.second_line(summary, row) for row in summary.rows}


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
        f"8 of 9 blocks · smallest detectable effect {100 * row.mde:.1f} % · "
        "cold (0.0 % in memory before, 50.2 % of bytes from disk) · real storage · "
        f"1 outlier, kept: {row.ratios[place]:.3f} · 1 trial left out: not known to be cold"
    )


def test_a_row_without_a_number_has_no_second_line():
    summary = make_summary(skipped={"dali": "not installed"})
    assert second_lines(summary)["dali"] == ""
    assert all(line for name, line in second_lines(summary).items() if name != "dali")


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
    cells = {row.variant: row_words.document(summary, row) for row in summary.rows}
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
    assert row_words.document(summary, summary.rows[1]) == "0.894, consistent (emulated)"
    assert "published 0.894, consistent (emulated), faster" in captions.describe(summary)
