"""One rule says which variant of a run won, whoever asks.

Run: python -m pytest tests/analysis/test_winner.py
"""

from pathlib import Path

import pytest
from fakes import fake_info, fake_trials

from labkit.analysis.winner import passed_over, winner
from labkit.report.run import Run


def fake_run(times, *, mode="quick", blocks=3, **changes):
    """A run of made-up trials in memory; `changes` are settings by variant."""
    info = fake_info([*times], mode=mode, data={"images": 160, "bytes": 10**7})
    info["variants"] = {name: {"cache": "cold"} | changes.get(name, {}) for name in times}
    trials = fake_trials(times, blocks=blocks)
    return Run(folder=Path("20250102T030405Z-abcd"), info=info, trials=tuple(trials))


@pytest.mark.parametrize(
    ("less", "why"),
    [
        ({"cache": "warm"}, "it began with cache warm, the baseline with cold"),
        ({"order": "sequential"}, "it trains on other images or in another order"),
        ({"subset": "first"}, "it trains on other images or in another order"),
        ({"prefetcher": "both_as_published"}, "it leaves out a step of each epoch"),
        ({"report_every": 10}, "its loop does more than the baseline's, so its time is noise"),
        ({"loader": "resident"}, None),
        ({"step": "nothing"}, None),
    ],
    ids=str,
)
def test_what_does_other_work_never_wins(less, why):
    run = fake_run({"original": 1.0, "honest": 0.9, "less": 0.5}, less=less)
    summary = run.summary
    assert winner(summary).variant == "honest"
    assert passed_over(summary).get("less") == why
    assert run.savings(epochs=10, images=160).notes[0].startswith("Winner: honest")


def test_the_fastest_wins_where_nothing_is_judged_and_only_what_is_judged_faster_elsewhere():
    times = {"original": 1.0, "both": 0.995}
    quick, full = fake_run(times), fake_run(times, mode="full", blocks=10)
    assert winner(quick.summary).variant == "both"
    assert winner(full.summary).variant == "original"
    assert passed_over(full.summary) == {"both": "its verdict is no practical difference"}


def test_what_lies_in_memory_or_begins_cold_may_win():
    far = {"storage": "far_20ms_1000mbit", "cache": "as found"}
    run = fake_run({"far": 1.0, "copied": 0.5}, far=far)
    assert winner(run.summary).variant == "copied"
    tmpfs = {"storage": "tmpfs", "cache": "warm"}
    run = fake_run({"hdd": 1.0, "tmpfs": 0.5}, tmpfs=tmpfs)
    assert winner(run.summary).variant == "tmpfs"
