"""Every dispute names both sides, and is answered with no more than runs and counts here carry.

Run: python -m pytest tests/test_disputes.py
"""

import json
import math
import re
import subprocess
import sys
from statistics import fmean, stdev

import pytest
from fake_runs import COLD, HERE, make_run
from fakes import LABELS, fake_trial, fake_trials

from labkit.claims.disputes import DISPUTES, answers, dispute_table
from labkit.cli import main
from labkit.experiments import request
from labkit.machine import hardware

THREAD = "prefetch_generator"
ALONE = {"original": 1.0, "no workers": 1.5, f"no workers, {THREAD}": 0.9}
DEPTH = {"original": 1.0, THREAD: 0.9, "equal depth": 0.9}


def dispute(results, number):
    (row,) = answers(results, HERE, numbers=[number])
    return row


def found(results, number, compared, experiment="prefetching_in_depth"):
    (one,) = [
        one
        for one in dispute(results, number)["found"]
        if (one["compared"], one["experiment"]) == (compared, experiment)
    ]
    return one


def in_depth(results, times, **more):
    return make_run(results, times, experiment="prefetching_in_depth", **more)


# --- the list -----------------------------------------------------------------------------


def test_each_dispute_is_there_once_with_two_sides_and_what_settles_it():
    numbers = [d.number for d in DISPUTES]
    assert numbers == sorted(set(numbers))
    assert {1, 2, 3, 4, 9} <= set(numbers)
    for d in DISPUTES:
        assert len({side["by"] for side in d.sides}) >= 2, d.number
        assert d.contrasts or d.footnote, d.number
        assert len(d.question) <= 90 and d.question.endswith("?")


def test_every_comparison_is_of_variants_that_the_experiments_have(monkeypatch):
    monkeypatch.setattr(hardware, "cores", lambda: 16)
    for d in DISPUTES:
        for contrast in d.contrasts:
            experiment = request.experiment(contrast.experiment)
            known = {**experiment.variants, **experiment.in_full}
            assert {contrast.variant, contrast.against} <= known.keys(), d.number
            assert contrast.variant != contrast.against
            assert len(contrast.expected) in (0, len(d.sides))
            assert set(contrast.expected) <= {"", "faster", "slower", "no practical difference"}


def test_an_unknown_number_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"numbers must be of 1, 2, 3, 4, .*, got 5; leave"):
        answers("results", HERE, numbers=[1, 5])


# --- ratios -------------------------------------------------------------------------------


def test_a_ratio_is_that_of_two_variants_within_blocks(tmp_path):
    trials = fake_trials(ALONE, blocks=10, noise=0.05, labels=COLD)
    folder = in_depth(tmp_path, ALONE, trials=trials)
    one = found(tmp_path, 1, f"no workers, {THREAD} ÷ no workers")
    time_s = {(t.variant, t.block): t.time_s for t in trials}
    d = [
        math.log(time_s[f"no workers, {THREAD}", block] / time_s["no workers", block])
        for block in range(10)
    ]
    half = 2.262157 * stdev(d) / math.sqrt(10)  # Student's t, 9 degrees of freedom, 95 %
    assert one["ratio"] == pytest.approx(math.exp(fmean(d)))
    assert one["low"] == pytest.approx(math.exp(fmean(d) - half), rel=1e-6)
    assert one["high"] == pytest.approx(math.exp(fmean(d) + half), rel=1e-6)
    assert (one["verdict"], one["run"]) == ("faster", folder.name)
    assert re.fullmatch(
        r"faster: 0\.\d{3} \[0\.\d+, 0\.\d+\]; agrees with \[004\] 2\.1", one["answer"]
    )


def test_intervals_are_plain_95_percent_intervals_however_much_is_asked_of_a_run(tmp_path):
    trials = fake_trials(DEPTH, blocks=10, noise=0.05, labels=COLD)
    in_depth(tmp_path, DEPTH, trials=trials)
    time_s = {(t.variant, t.block): t.time_s for t in trials}
    d = [math.log(time_s[THREAD, b] / time_s["equal depth", b]) for b in range(10)]
    one = found(tmp_path, 1, f"{THREAD} ÷ equal depth")
    half = 2.262157 * stdev(d) / math.sqrt(10)
    assert one["high"] / one["low"] == pytest.approx(math.exp(2 * half), rel=1e-6)
    d = [
        math.log(time_s[THREAD, b] ** 2 / math.prod(base))
        for b in range(10)
        for base in [[t.time_s for t in trials if (t.variant, t.block) == ("original", b)]]
    ]
    half = 2.262157 * stdev([x / 2 for x in d]) / math.sqrt(10)
    one = found(tmp_path, 1, f"{THREAD} ÷ original")
    assert one["high"] / one["low"] == pytest.approx(math.exp(2 * half), rel=1e-6)


def test_a_result_bears_out_the_side_that_expects_it(tmp_path):
    in_depth(tmp_path, DEPTH, trials=fake_trials(DEPTH, blocks=10, noise=0.004, labels=COLD))
    deeper = found(tmp_path, 1, f"{THREAD} ÷ equal depth")["answer"]
    assert deeper.startswith("no practical difference: ")
    assert deeper.endswith("; agrees with Lightning #1454, lightly #1304")
    assert found(tmp_path, 1, f"{THREAD} ÷ original")["answer"].endswith("; agrees with [004] 2.1")


def test_over_a_stand_in_a_result_is_consistent_and_no_more(tmp_path):
    in_depth(tmp_path, ALONE, labels=LABELS)
    answer = found(tmp_path, 1, f"no workers, {THREAD} ÷ no workers")["answer"]
    assert answer.startswith("faster (emulated accelerator): 0.")
    assert answer.endswith("; consistent, emulated, with [004] 2.1")
    assert "agrees" not in answer


# --- what is missing ----------------------------------------------------------------------


def test_what_was_not_run_says_how_to(tmp_path):
    for row in answers(tmp_path, HERE):
        for one in row["found"]:
            if one["experiment"]:
                assert one["answer"] == f"not run: labkit run {one['experiment']} --mode full"
                assert (one["ratio"], one["verdict"], one["run"]) == (None, "", "")


def test_a_variant_that_was_skipped_or_failed_gives_its_reason(tmp_path):
    times = {"original": 1.0, "data_prefetcher": 0.9, THREAD: 0.9}
    trials = [t for t in fake_trials(times, blocks=8, labels=COLD) if t.variant == "original"]
    trials.append(fake_trial(THREAD, 0, status="failed", reason="out of memory"))
    in_depth(tmp_path, times, trials=trials, skipped={"data_prefetcher": "no CUDA here"})
    assert found(tmp_path, 3, "data_prefetcher ÷ original")["answer"] == (
        "data_prefetcher: not testable here: no CUDA here"
    )
    assert found(tmp_path, 1, f"{THREAD} ÷ original")["answer"] == (
        f"{THREAD}: not testable here: failed: out of memory"
    )


# --- forms --------------------------------------------------------------------------------


def test_the_table_shows_both_sides_and_this_machine(tmp_path):
    folder = in_depth(tmp_path, ALONE, labels=LABELS)
    shown = dispute_table(dispute(tmp_path, 1))
    who = list(shown.index)
    assert who[:2] == ["[004] 2.1", "Lightning #1454, lightly #1304"]
    assert all(name.startswith("here, prefetching_in_depth: ") for name in who[2:])
    assert "consistent, emulated" in shown._repr_html_()
    assert set(shown.second_lines.values()) == {"", f"run {folder.name}"}
    # What is said alike of several comparisons is said once.
    (missing,) = shown.index[shown["says"] == "not run: this run has no such variant"]
    assert "; " in missing


def test_the_command_prints_text_or_json(tmp_path, capsys):
    assert main(["disputes", "9", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(" 9  Does it save time to keep workers")
    assert main(["disputes", "9", "11", "--json", "--results", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["number"] for row in rows] == [9, 11]
    assert main(["disputes", "8", "--results", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        "labkit: numbers must be of 1, 2, 3, 4, 6, 7, 9, 10, 11, got 8; leave them out for all\n"
    )


def test_showing_disputes_builds_no_loader(tmp_path):
    code = "import sys, labkit; repr(labkit.disputes(sys.argv[1])); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"
