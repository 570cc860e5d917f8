"""Every dispute names both sides, and is answered with no more than runs and counts here carry.

Run: python -m pytest tests/test_disputes.py
"""

import json
import math
import re
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from fake_runs import COLD, HERE, make_run
from fakes import LABELS, fake_trial, fake_trials

from labkit import catalog, machine, notebook
from labkit.cli import main
from labkit.dispute_list import DISPUTES
from labkit.disputes import answers, dispute_table, disputes_text

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
        assert len({side.by for side in d.sides}) >= 2, d.number
        assert d.contrasts or d.footnote, d.number
        assert len(d.question) <= 90 and d.question.endswith("?")


def test_every_comparison_is_of_variants_that_the_experiments_have(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 16)
    for d in DISPUTES:
        for contrast in d.contrasts:
            experiment = catalog.experiment(contrast.experiment)
            known = {**experiment.variants, **experiment.in_full}
            assert {contrast.variant, contrast.against} <= known.keys(), d.number
            assert contrast.variant != contrast.against
            assert len(contrast.expected) in (0, len(d.sides))
            assert set(contrast.expected) <= {"", "faster", "slower", "no practical difference"}


def test_at_most_the_variants_compared_differ_between_them():
    # A thread against a deeper queue differs in both; nothing else may.
    allowed = {"prefetcher", "prefetch_factor"}
    for d in DISPUTES:
        if d.number in (1, 3, 4, 9):
            for c in d.contrasts:
                experiment = catalog.experiment(c.experiment)
                known = {**experiment.variants, **experiment.in_full}
                one, other = vars(known[c.variant]), vars(known[c.against])
                differ = {name for name in one if one[name] != other[name]}
                assert len(differ) == 1 or differ == allowed, (d.number, c)


def test_an_unknown_number_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"numbers must be of 1, 2, 3, 4, .*, got 5; leave"):
        answers("results", HERE, numbers=[1, 5])


# --- ratios -------------------------------------------------------------------------------


def test_a_ratio_is_that_of_two_variants_within_blocks(tmp_path):
    trials = fake_trials(ALONE, blocks=10, noise=0.05, labels=COLD)
    folder = in_depth(tmp_path, ALONE, trials=trials)
    one = found(tmp_path, 1, f"“no workers, {THREAD}” ÷ “no workers”")
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


def test_only_blocks_that_have_both_are_paired(tmp_path):
    trials = [
        t
        for t in fake_trials(ALONE, blocks=8, noise=0.05, labels=COLD)
        if (t.variant, t.block) not in {("no workers", 0), (f"no workers, {THREAD}", 1)}
    ]
    in_depth(tmp_path, ALONE, trials=trials)
    time_s = {(t.variant, t.block): t.time_s for t in trials}
    d = [
        math.log(time_s[f"no workers, {THREAD}", block] / time_s["no workers", block])
        for block in range(2, 8)
    ]
    one = found(tmp_path, 1, f"“no workers, {THREAD}” ÷ “no workers”")
    assert one["ratio"] == pytest.approx(math.exp(fmean(d)))
    assert one["verdict"] == "faster"


def test_all_that_is_asked_of_a_run_is_judged_together(tmp_path):
    trials = fake_trials(DEPTH, blocks=10, noise=0.05, labels=COLD)
    in_depth(tmp_path, DEPTH, trials=trials)
    time_s = {(t.variant, t.block): t.time_s for t in trials}
    d = [math.log(time_s[THREAD, b] / time_s["equal depth", b]) for b in range(10)]
    one = found(tmp_path, 1, f"{THREAD} ÷ “equal depth”")
    # The larger p-value of two: its level is 5 % if the other was below 2.5 %.
    half = 2.262157 * stdev(d) / math.sqrt(10)
    assert one["high"] / one["low"] == pytest.approx(math.exp(2 * half), rel=1e-6)
    d = [
        math.log(time_s[THREAD, b] ** 2 / math.prod(base))
        for b in range(10)
        for base in [[t.time_s for t in trials if (t.variant, t.block) == ("original", b)]]
    ]
    half = 2.685011 * stdev([x / 2 for x in d]) / math.sqrt(10)  # 97.5 %
    one = found(tmp_path, 1, f"{THREAD} ÷ original")
    assert one["high"] / one["low"] == pytest.approx(math.exp(2 * half), rel=1e-6)


def test_a_result_bears_out_the_side_that_expects_it(tmp_path):
    in_depth(tmp_path, DEPTH, trials=fake_trials(DEPTH, blocks=10, noise=0.004, labels=COLD))
    deeper = found(tmp_path, 1, f"{THREAD} ÷ “equal depth”")["answer"]
    assert deeper.startswith("no practical difference: ")
    assert deeper.endswith("; agrees with Lightning #1454, lightly #1304")
    assert found(tmp_path, 1, f"{THREAD} ÷ original")["answer"].endswith("; agrees with [004] 2.1")


def test_what_no_side_expects_is_said_and_what_is_undecided_bears_nobody_out(tmp_path):
    times = {**DEPTH, THREAD: 1.2}
    in_depth(tmp_path, times)
    answer = found(tmp_path, 1, f"{THREAD} ÷ original")["answer"]
    assert answer.startswith("slower: 1.") and answer.endswith("; no side expects that")
    in_depth(tmp_path, DEPTH, name="z", noise=0.3)
    answer = found(tmp_path, 1, f"{THREAD} ÷ “equal depth”")["answer"]
    assert answer.startswith("inconclusive: ") and answer.endswith("]")


def test_over_a_stand_in_a_result_is_consistent_and_no_more(tmp_path):
    in_depth(tmp_path, ALONE, labels=LABELS)
    answer = found(tmp_path, 1, f"“no workers, {THREAD}” ÷ “no workers”")["answer"]
    assert answer.startswith("faster (emulated accelerator): 0.")
    assert answer.endswith("; consistent, emulated, with [004] 2.1")
    assert "agrees" not in answer


def test_an_unstable_machine_gives_no_word(tmp_path):
    trials = [
        replace(t, epochs=tuple(replace(e, epoch_s=1.2 * e.epoch_s) for e in t.epochs))
        if t.role == "A2"
        else t
        for t in fake_trials(ALONE, blocks=8, labels=COLD)
    ]
    in_depth(tmp_path, ALONE, trials=trials)
    answer = found(tmp_path, 1, f"“no workers, {THREAD}” ÷ “no workers”")["answer"]
    assert re.fullmatch(r"machine unstable, no verdict: 0\.\d+ \[0\.\d+, 0\.\d+\]", answer)


# --- what is missing ----------------------------------------------------------------------


def test_what_was_not_run_says_how_to(tmp_path):
    for row in answers(tmp_path, HERE):
        for one in row["found"]:
            if one["experiment"]:
                assert one["answer"] == f"not run: labkit run {one['experiment']} --mode full"
                assert (one["ratio"], one["verdict"], one["run"]) == (None, "", "")


def test_quick_mode_gives_numbers_and_no_verdict(tmp_path):
    in_depth(tmp_path, ALONE, mode="quick", blocks=3)
    one = found(tmp_path, 1, f"“no workers, {THREAD}” ÷ “no workers”")
    assert re.fullmatch(r"0\.\d{3} \[.+\]; quick mode speaks no verdict", one["answer"])
    assert one["verdict"] == ""
    # What only full mode measures was not left out by anybody.
    missing = found(tmp_path, 1, f"“{THREAD}, not pinned” ÷ “original, not pinned”")
    assert missing["answer"] == "not run: labkit run prefetching_in_depth --mode full"
    assert missing["run"] == ""


def test_one_quick_block_is_a_number_without_an_interval(tmp_path):
    in_depth(tmp_path, ALONE, mode="quick", blocks=1)
    one = found(tmp_path, 1, f"“no workers, {THREAD}” ÷ “no workers”")
    assert re.fullmatch(r"0\.\d{3}; quick mode speaks no verdict", one["answer"])


def test_too_few_blocks_of_a_full_run_give_no_verdict(tmp_path):
    in_depth(tmp_path, ALONE, blocks=5)
    answer = found(tmp_path, 1, f"“no workers, {THREAD}” ÷ “no workers”")["answer"]
    assert answer.endswith("; 5 complete blocks, a verdict needs 6")


def test_a_full_run_without_a_variant_says_so(tmp_path):
    in_depth(tmp_path, ALONE)
    answer = found(tmp_path, 1, f"{THREAD} ÷ original")["answer"]
    assert answer == "not run: this run has no such variant"


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


def test_two_variants_that_share_no_block_are_not_compared(tmp_path):
    trials = [
        t
        for t in fake_trials(ALONE, blocks=8, labels=COLD)
        if t.variant == "original" or (t.variant == "no workers") == (t.block < 4)
    ]
    in_depth(tmp_path, ALONE, trials=trials)
    one = found(tmp_path, 1, f"“no workers, {THREAD}” ÷ “no workers”")
    assert one["answer"] == "not run: no block has both"


def test_a_run_of_another_machine_is_not_this_ones(tmp_path):
    in_depth(tmp_path, ALONE, machine_id="elsewhere")
    one = found(tmp_path, 1, f"“no workers, {THREAD}” ÷ “no workers”")
    assert one["answer"].startswith("not run: labkit run")


# --- equal work ---------------------------------------------------------------------------


def test_losses_stand_beside_the_times_of_the_prefetcher(tmp_path):
    times = {"original": 1.0, "data_prefetcher": 0.9, "no workers": 1.5}
    losses = {"original": 0.6931, "data_prefetcher": 0.6934, "no workers": 9.0}
    trials = [replace(t, loss=losses[t.variant]) for t in fake_trials(times, blocks=6, labels=COLD)]
    refused = {"no workers": "not the same work as original: the last loss"}
    in_depth(tmp_path, times, trials=trials, failed=refused)
    assert found(tmp_path, 3, "equal work")["answer"] == (
        "last losses: 0.6931 to 0.6934 in 18 trials; a variant that differs is refused"
    )


@pytest.mark.parametrize(
    ("means", "said"),
    [
        ([-0.5, 0.25, 0.1], "nothing is trained, so no losses; mean pixels of the last batches: -"),
        (0.0, "nothing is trained, so no losses; mean pixels of the last batches: 0 to 0 in 12"),
        (None, "not recorded"),
    ],
)
def test_where_nothing_is_trained_batches_are_compared(tmp_path, means, said):
    times = {"original": 1.0, "data_prefetcher": 0.9}
    last = None if means is None else {"image": means}
    trials = [
        replace(t, epochs=tuple(replace(e, last_means=last) for e in t.epochs))
        for t in fake_trials(times, blocks=4)
    ]
    in_depth(tmp_path, times, trials=trials, blocks=4)
    assert found(tmp_path, 3, "equal work")["answer"].startswith(said)


# --- forms --------------------------------------------------------------------------------


def test_rows_are_json(tmp_path):
    in_depth(tmp_path, ALONE)
    rows = answers(tmp_path, HERE)
    assert [row["number"] for row in rows] == [d.number for d in DISPUTES]
    assert json.loads(json.dumps(rows)) == rows


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


def test_a_table_says_what_it_rests_on_where_nothing_was_run(tmp_path):
    assert "no run on this machine has it" in dispute_table(dispute(tmp_path, 9))._repr_html_()
    footnote = "Batches of each worker"
    assert footnote in dispute_table(dispute(tmp_path, 2))._repr_html_()
    assert footnote in disputes_text([dispute(tmp_path, 2)])


def test_a_notebook_shows_those_asked_for_in_html_and_text(tmp_path):
    shown = notebook.disputes(tmp_path, numbers=[9, 1])
    assert [row["number"] for row in shown] == [9, 1]
    html = shown._repr_html_()
    assert html.index("9. Does it save") < html.index("1. Does a thread")
    assert repr(shown) == disputes_text(shown)


def test_the_text_fits_a_terminal_and_shows_everything(tmp_path):
    in_depth(tmp_path, ALONE, labels=LABELS)
    rows = answers(tmp_path, HERE)
    lines = disputes_text(rows).splitlines()
    assert max(map(len, lines)) <= 100
    joined = " ".join(" ".join(lines).split())
    for row in rows:
        assert f"{row['number']} {row['question']}" in joined
        for side in row["sides"]:
            assert f"{side['by']}: {side['says']}" in joined
        for one in row["found"]:
            assert one["compared"] in joined and one["answer"] in joined


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
