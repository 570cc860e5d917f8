"""Every claim has one row, and its answer is no more than the runs here can carry.

Run: python -m pytest tests/test_claims.py
"""

import json
import re

import pytest
from fake_runs import COLD, HERE, OPERATION_TIMES, fake_grouped_run, make_run, save_run
from fakes import LABELS, fake_trial, fake_trials

from labkit.claims.ledger import CLAIMS, answers, claims_text
from labkit.experiments import catalog, request
from labkit.machine import hardware

FIGURES = {0.894, 0.891, 0.897, 0.860, 0.864, 0.661}  # the bar labels of the charts in [004]


def row_of(results, number):
    (row,) = [row for row in answers(results, machine_id=HERE) if row["number"] == number]
    return row


def answer_to(results, number):
    return row_of(results, number)["answer"]


# --- the list -----------------------------------------------------------------------------


def test_every_item_of_the_checklist_is_there_once_and_in_order():
    assert [claim.number for claim in CLAIMS] == list(range(1, 39))
    assert len({claim.claim for claim in CLAIMS}) == 38


def test_every_figure_is_a_bar_label_and_stands_in_the_published_text():
    given = {
        (claim.number, test.expected)
        for claim in CLAIMS
        for test in claim.tests
        if test.expected is not None
    }
    assert {expected for _, expected in given} == FIGURES
    for number, expected in given:
        assert f"{expected:.1%}".replace("%", " %") in CLAIMS[number - 1].published


def test_figures_and_labels_are_those_of_the_catalog():
    compared = set()
    for claim in CLAIMS:
        for test in claim.tests:
            name, variant = test.experiment, test.variant
            if name in catalog.CATALOG and variant:
                experiment = request.experiment(name)
                every = {**experiment.variants, **experiment.in_full}
                # A machine has NVMe or has not.
                in_groups = {label.rpartition(": ")[2] for label in experiment.groups}
                assert variant in {*every, *in_groups, "nvme"}, claim.number
                assert experiment.published.get(variant) == test.expected, claim.number
                compared.add(test.expected)
    assert compared >= FIGURES


# --- answers ------------------------------------------------------------------------------


def test_without_runs_every_claim_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.delitem(catalog.CATALOG, "packing", raising=False)
    rows = answers(tmp_path / "none", machine_id=HERE)
    assert [row["number"] for row in rows] == list(range(1, 39))
    assert all(row["run"] == "" for row in rows)
    assert {row["number"]: row["answer"] for row in rows}[19] == "not run"
    assert rows[9]["answer"] == "no experiment yet"


def test_a_full_run_that_agrees(tmp_path):
    folder = make_run(tmp_path)
    row = row_of(tmp_path, 19)
    assert re.fullmatch(
        r"agrees: 0\.\d{3} \[0\.\d+, 0\.\d+\] measured, 0\.894 published", row["answer"]
    )
    assert row["run"] == folder.name
    assert (row["document"], row["experiment"]) == ("[004]", "prefetching")


def test_a_full_run_too_noisy_for_the_published_effect(tmp_path):
    make_run(tmp_path, noise=0.15)
    assert answer_to(tmp_path, 19).startswith("inconclusive: ")


def test_media_of_unknown_kind_and_a_warm_baseline_are_named(tmp_path):
    labels = {**COLD, "storage": "unknown", "cache": "warm"}
    make_run(tmp_path, {"hdd": 1.0, "tmpfs": 0.864}, experiment="storage", labels=labels)
    said = "agrees (storage of unknown kind, warm cache): "
    assert answer_to(tmp_path, 9).startswith(said)


def test_quick_mode_gives_numbers_and_no_word(tmp_path):
    make_run(tmp_path, mode="quick", blocks=3)
    said = answer_to(tmp_path, 19)
    assert re.fullmatch(
        r"0\.\d{3} \[.+\] measured, 0\.894 published; no verdict in quick mode", said
    )


def test_an_unstable_machine_gives_no_word(tmp_path):
    trials = []
    for block in range(8):
        seconds = {"A1": 1.0, "A2": 1.2 + 0.01 * block}
        trials += [fake_trial("original", block, role, s) for role, s in seconds.items()]
        trials.append(fake_trial("prefetch_generator", block, "", 0.894))
    make_run(tmp_path, trials=trials)
    said = "machine unstable, no verdict (emulated accelerator): "
    assert answer_to(tmp_path, 19).startswith(said)


@pytest.mark.parametrize(
    ("true", "noise", "said"),
    [
        (0.8, 0.01, "agrees: faster, 0."),
        (1.2, 0.01, "differs: slower, 1."),
        (1.0, 0.002, "differs: no practical difference, "),
        (1.0, 0.15, "inconclusive: "),
        (0.978, 0.012, "inconclusive: real but small, 0."),
    ],
)
def test_a_claim_without_a_figure_is_held_to_its_direction(tmp_path, true, noise, said):
    times = {"original": 1.0, "vectorized": true}
    make_run(tmp_path, times, experiment="preprocessing", noise=noise)
    assert answer_to(tmp_path, 24).startswith(said)
    assert "published" not in answer_to(tmp_path, 24)


def test_a_variant_that_cannot_run_here_says_why(tmp_path):
    times = {"original": 1.0, "data_prefetcher": 0.891, "both": 0.897}
    trials = [t for t in fake_trials(times, blocks=8, labels=COLD) if t.variant == "original"]
    trials.append(fake_trial("both", 0, status="failed", reason="out of memory"))
    make_run(tmp_path, times, trials=trials, skipped={"data_prefetcher": "no CUDA here"})
    assert answer_to(tmp_path, 20) == (
        "data_prefetcher: not testable here: no CUDA here; "
        "both: not testable here: failed: out of memory"
    )


def test_a_claim_with_two_figures_is_answered_for_both(tmp_path):
    make_run(tmp_path, {"original": 1.0, "data_prefetcher": 0.891, "both": 1.0})
    said = answer_to(tmp_path, 20)
    assert said.startswith("data_prefetcher: agrees: ")
    assert "; both: differs: " in said


@pytest.mark.parametrize(
    ("crop", "mode", "said"),
    [
        (0.5, "full", "agrees: opencv faster in 3, slower in 0 of 3"),
        (1.5, "full", "agrees: opencv faster in 2, slower in 1 of 3"),
        (0.5, "quick", "opencv took less time in 3 of 3 groups; quick mode: no verdict"),
    ],
)
def test_a_variant_in_many_groups_is_answered_by_counting(tmp_path, crop, mode, said):
    times = {**OPERATION_TIMES, "crop, 320×240": {"pillow": 1.0, "opencv": crop}}
    made = fake_grouped_run(times, blocks=8, mode=mode, provenance={"machine_id": HERE})
    save_run(tmp_path, made)
    assert said in answer_to(tmp_path, 23)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"second": 1.5}, "machine unstable, no verdict"),
        ({"busy": (0, 1, 2)}, "in 3 of 3 groups; 5 complete blocks, a verdict needs 6"),
        ({"busy": range(8)}, "not run: every block was rejected"),
        ({"times": {"crop, 320×240": {"pillow": 1.0, "numpy": 0.5}}}, "not run: this run has no"),
    ],
)
def test_a_full_run_of_groups_without_verdicts_says_why(tmp_path, how, said):
    own = {"mode": "full", "provenance": {"machine_id": HERE}}
    save_run(tmp_path, fake_grouped_run(blocks=8, **own, **how))
    assert said in answer_to(tmp_path, 23)


# --- which run speaks ---------------------------------------------------------------------


def test_runs_are_by_default_those_of_the_machine_that_asks(tmp_path):
    make_run(tmp_path, machine_id=hardware.provenance()["machine_id"])
    assert answers(tmp_path)[18]["answer"].startswith("agrees: ")


@pytest.mark.parametrize("status", ["running", "cancelled", "failed"])
def test_a_run_that_broke_off_does_not_hide_the_one_before(tmp_path, status):
    make_run(tmp_path, name="20250101T000000Z-aaaa")
    make_run(tmp_path, name="20250201T000000Z-bbbb", status=status, trials=[])
    assert row_of(tmp_path, 19)["run"] == "20250101T000000Z-aaaa"


def test_a_full_run_speaks_before_a_newer_quick_one(tmp_path):
    make_run(tmp_path, name="20250101T000000Z-aaaa")
    make_run(tmp_path, name="20250201T000000Z-bbbb")
    make_run(tmp_path, name="20250301T000000Z-cccc", mode="quick", blocks=3)
    assert row_of(tmp_path, 19)["run"] == "20250201T000000Z-bbbb"


def test_a_run_in_the_documents_own_order_speaks_last_and_without_a_word(tmp_path):
    own = {"protocol": "as in the document", "shuffled": False}
    make_run(tmp_path, name="20250201T000000Z-bbbb", mode="full", **own)
    assert answer_to(tmp_path, 19).endswith("; no verdict for a run as in the document")
    make_run(tmp_path, name="20250101T000000Z-aaaa", mode="quick", blocks=3)
    assert row_of(tmp_path, 19)["run"] == "20250101T000000Z-aaaa"


# --- forms --------------------------------------------------------------------------------


def test_rows_are_json_with_the_same_keys_throughout(tmp_path):
    make_run(tmp_path)
    rows = answers(tmp_path, machine_id=HERE)
    keys = ["number", "document", "claim", "published", "experiment", "answer", "run"]
    assert all(list(row) == keys for row in rows)
    assert json.loads(json.dumps(rows)) == rows


def test_the_text_fits_a_terminal_and_shows_everything(tmp_path):
    make_run(tmp_path, labels=LABELS)
    rows = answers(tmp_path, machine_id=HERE)
    lines = claims_text(rows).splitlines()
    assert max(map(len, lines)) <= 100
    joined = " ".join(" ".join(lines).split())
    for row in rows:
        assert f"{row['number']} {row['claim']} {row['document']}" in joined
        assert f"{row['experiment']}: {row['answer']}" in joined
        assert row["published"] in joined


# --- the loader's knobs ------------------------------------------------------------------------


def test_a_fuller_gpu_is_asked_about_once_its_batches_are_known(tmp_path):
    asks = "not run: lab.largest_batch(…).experiment(), on CUDA, asks it"
    assert f"; 90 % of the largest: {asks}" in answer_to(tmp_path, 16)
    for experiment, base, larger in (
        ("batch_size_powers", "16", "64"),
        ("batch_size_fill", "50 % of the largest", "90 % of the largest"),
    ):
        make_run(tmp_path, {base: 1.0, larger: 0.85}, experiment=experiment)
        assert f"; {larger}: agrees: faster, 0.8" in answer_to(tmp_path, 16)
