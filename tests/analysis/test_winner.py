"""One rule says which variant of a run won, whoever asks."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import fake_info, fake_logged, fake_trials

from labkit.analysis.summary import summarize
from labkit.analysis.winner import reasons_against_others, winner
from labkit.parts.decoding import DECODERS, Decoder
from labkit.report.run import Run

OTHER_SHARE = "memory held another share of its data than of the baseline's"


def fake_run(times, *, mode="quick", blocks=3, **changes):
    """A run of made-up trials in memory; `changes` are settings by variant."""
    variants = {name: {"cache": "cold"} | changes.get(name, {}) for name in times}
    data = {"images": 160, "bytes": 10**7}
    info = fake_info([*times], mode=mode, data=data, variants=variants)
    trials = fake_trials(times, blocks=blocks)
    return Run(folder=Path("20250102T030405Z-abcd"), info=info, trials=tuple(trials))


@pytest.mark.parametrize(
    ("base", "less", "why"),
    [
        ({}, {"cache": "warm"}, "it began with cache warm, the baseline with cold"),
        ({"cache": "warm"}, {"cache": "as found"},
         "it began with cache as found, the baseline with warm"),
        ({"cache": "warm"}, {"cache": "cold"}, ""),
        ({}, {"cache": "warm", "storage": "tmpfs"}, ""),
        ({}, {"cache": 50}, OTHER_SHARE),
        ({"cache": 50}, {"cache": "cold"}, OTHER_SHARE),
        ({"cache": 50}, {"cache": 80}, OTHER_SHARE),
        ({"cache": 50}, {"cache": 50}, ""),
        ({}, {"shuffle": False}, "it trains on other images or in another order"),
        ({}, {"subset": "first"}, "it trains on other images or in another order"),
        ({}, {"prefetcher": "both_as_published"}, "it leaves out a step of each epoch"),
        ({}, {"decoder": "gray"}, "its decoder's pixels differ by design"),
        ({"decoder": "gray"}, {"decoder": "gray"}, ""),
        ({}, {"packing": "mapped", "storage_format": "yuv420"},
            "its images are stored with fewer pixels"),
        *(({}, more, "its loop does more than the baseline's, so its time is noise")
          for more in ({"report_every": 10}, {"checkpoint_every": 10}, {"metrics": "loops"},
                       {"progress_bar": "tqdm"})),
        ({"report_every": 10}, {"report_every": 20}, ""),
        ({}, {"loader": "resident"}, None),
        ({}, {"step": "nothing"}, None),
        ({"loader": "resident"}, {"loader": "resident"}, ""),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_other_work_never_wins(monkeypatch, base, less, why):
    monkeypatch.setitem(DECODERS, "gray", Decoder(len, other_pixels="in gray"))
    times = {"original": 1.0, "honest": 0.9, "less": 0.5}
    run = fake_run(times, original=base, honest=base, less=less)
    summary = run.summary
    assert winner(summary).variant == ("less" if why == "" else "honest")
    assert reasons_against_others(summary).get("less") == (why or None)
    best = "less" if why == "" else "honest"
    assert run.savings(epochs=10, images=160).notes[0].startswith(f"Winner: {best}")


@pytest.mark.parametrize(
    ("time", "how", "why"),
    [
        (0.995, {}, "its 95 % interval does not end below 1"),
        (0.98, {"mode": "full", "blocks": 20}, "its verdict is real but small"),
        (0.5, {"blocks": 1}, "a single block shows no difference"),
        (0.6, {}, None),
    ],
)
def test_a_winner_is_proved_in_every_mode_and_where_it_is_judged_by_its_verdict(time, how, why):
    summary = fake_run({"original": 1.0, "both": time}, **how).summary
    won = winner(summary)
    assert (won and won.variant) == (None if why else "both")
    assert reasons_against_others(summary) == ({"both": why} if why else {})


def test_too_much_disturbance_or_an_unstable_machine_shows_no_winner():
    times = {"original": 1.0, "fast": 0.5}
    variants = {name: {"cache": "cold"} for name in times}
    info = fake_info([*times], mode="full", variants=variants)
    for disturbed, why in ((3, "only 5 blocks without disturbance"), (2, None)):
        trials = [
            fake_logged(trial, other_cores=float(trial.block < disturbed))
            for trial in fake_trials(times, blocks=8)
        ]
        summary = summarize(info, trials)
        assert reasons_against_others(summary).get("fast") == why
        assert (winner(summary) is None) is (why is not None)
    for drift in (0.1, 0.0):
        trials = [
            replace(trial, epochs=tuple(
                replace(each, epoch_s=each.epoch_s * (1 + drift * (trial.role == "A2")))
                for each in trial.epochs
            ))
            for trial in fake_trials(times, noise=0.002, drift=0)
        ]  # fmt: skip
        summary = summarize(fake_info([*times], variants=variants), trials)
        assert (winner(summary) is None) is (drift > 0)


def test_among_equal_variants_a_quick_run_has_a_winner_in_at_most_5_percent():
    times = {"original": 1.0, **{f"equal {i}": 1.0 for i in range(6)}}
    info = fake_info([*times], variants={name: {"cache": "cold"} for name in times})
    count, runs, reasons = 0, 150, set()
    for seed in range(runs):
        summary = summarize(info, fake_trials(times, seed=seed))
        won = winner(summary)
        count += won is not None
        assert won is None or won.ci_high < 1
        shorter = [row.variant for row in summary.rows if row.normalized_time < 1]
        assert won is not None or {*shorter} == reasons_against_others(summary).keys()
        reasons |= {*reasons_against_others(summary).values()}
    assert count <= 0.05 * runs
    assert "with 6 variants compared, chance explains its interval" in reasons


@pytest.mark.parametrize(
    ("base", "copied"),
    [
        ({"storage": "far_20ms_1000mbit", "cache": "as found"}, {}),
        ({}, {"storage": "tmpfs", "cache": "warm"}),
    ],
)
def test_what_lies_in_memory_or_begins_cold_may_win(base, copied):
    run = fake_run({"base": 1.0, "copied": 0.5}, base=base, copied=copied)
    assert winner(run.summary).variant == "copied"
