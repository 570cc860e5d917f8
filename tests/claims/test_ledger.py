"""Each claim has one record, and its answer is no more than the runs here can carry."""

import json
import math
import random
import re
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from fake_runs import (
    COLD,
    HERE,
    OPERATION_TIMES,
    fake_grouped_run,
    fake_groups,
    fake_roofline,
    fake_run_at_speeds,
    make_run,
    save_rows,
    save_run,
)
from fakes import H200, LABELS, fake_info, fake_trial, fake_trials

import labkit as lab
from labkit.claims import ledger
from labkit.claims.ledger import CLAIMS, JUDGES, answers
from labkit.cli import main
from labkit.experiments.request import Request
from labkit.machine import gpu, hardware
from labkit.records import Hardware

VERDICTS = {"faster", "slower", "no practical difference"}
THREAD = "prefetch_generator"


@pytest.fixture(autouse=True)
def own_reference(tmp_path, monkeypatch):
    """Reference runs are those that a test makes."""
    monkeypatch.setattr(ledger, "REFERENCE", tmp_path / "examples")


def record(results, number):
    (found,) = answers(results, HERE, numbers=[number])
    return found


def answer_to(results, number):
    return record(results, number)["answer"]


def contrast(results, number, compared):
    """One contrast of the experiment prefetching_in_depth."""
    (found,) = [
        one
        for one in record(results, number)["contrasts"]
        if (one["experiment"], one["compared"]) == ("prefetching_in_depth", compared)
    ]
    return found


# --- claims.toml --------------------------------------------------------------------------


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim.number))
def test_contrasts_name_variants_of_the_catalog_and_figures_that_were_published(claim, monkeypatch):
    monkeypatch.setattr(hardware, "cores", lambda: 16)
    assert claim.contrasts or claim.reason
    for c in claim.contrasts:
        assert bool(c.made_by) == (c.experiment not in lab.CATALOG)
        if not c.made_by:
            experiment = Request(experiment=c.experiment).whole()
            known = {*experiment.variants, ""}
            known |= {label.rpartition(": ")[2] for label in experiment.variants}
            known |= {"nvme"}  # which this machine may not have
            assert {c.variant, c.against} <= known
            assert c.against != experiment.baseline, "is what an empty `against` stands for"
        if isinstance(c.expected, float):
            published = experiment.variants[c.variant].published
            if c.against:  # both are rounded
                step = published / experiment.variants[c.against].published
                assert step == pytest.approx(c.expected, rel=0.05)
            else:
                assert published == c.expected
            assert f"{c.expected:.1%}".replace("%", " %") in claim.published
        elif c.judge:
            assert c.judge in JUDGES
        elif isinstance(c.expected, list):
            assert len(c.expected) == len(claim.sides)
            assert set(c.expected) <= {"", *VERDICTS}
        else:
            assert c.expected in {"", *VERDICTS}


# --- against the baseline -----------------------------------------------------------------


def test_a_claim_says_at_which_speeds_of_the_gpu_it_holds(tmp_path):
    save_run(tmp_path, fake_run_at_speeds(published={"prefetch_generator": 0.894}))
    found = record(tmp_path, 19)
    assert found["answer"].startswith("holds at x = 1 of 1, 2; prefetch_generator at x = 1: as pub")
    assert "prefetch_generator at x = 2: no saving here" in found["answer"]
    assert found["group"] == "confirmed in part"
    mine = [one for one in found["contrasts"] if one["experiment"] == "prefetching"]
    assert [(one["x"], round(one["ratio"], 2)) for one in mine] == [(1.0, 0.89), (2.0, 1.0)]


def test_a_roofline_tells_what_a_published_time_takes(tmp_path):
    published = {"simplified": 0.661}
    run = fake_roofline(noise=0.0, published=published, provenance={"machine_id": HERE})
    save_run(tmp_path, run)
    assert record(tmp_path, 25)["roofline"] == (
        "0.661 (simplified) takes a loader at least 1.51 times as fast, here 1.90 [1.905, 1.905], "
        "and a GPU at least 1.51 times as fast as the loader"
    )


def test_without_runs_every_claim_says_what_is_missing(tmp_path):
    rows = answers(tmp_path / "none", HERE)
    assert [row["number"] for row in rows] == list(range(1, 48))
    assert {row["run"] for row in rows} == {""}
    assert {row["group"] for row in rows} == {"not run", "not testable"}
    said = {row["number"]: row["answer"] for row in rows}
    assert said[19] == "not run"
    made = "batch_size_fill: not run: lab.largest_batch(settings).experiment() makes it"
    assert made in said[16]


@pytest.mark.parametrize(
    ("gpus", "said"), [(1, "not testable here: it takes two or more GPUs, "), (2, "not run")]
)
def test_a_claim_on_several_gpus_is_not_run_where_there_are_several(
    tmp_path, monkeypatch, gpus, said
):
    monkeypatch.setattr(gpu, "nvidia_driver", lambda: ("570.86", gpus))
    assert answer_to(tmp_path, 35).startswith(said)


PREPROCESSING, UNKNOWN = (
    "preprocessing",
    {**COLD, "storage": Hardware("storage", "unconfirmed"), "cache": "warm"},
)
STALLS = {"checkpoint every 10 steps": 1.3, "metrics in loops": 1.0}
UNSTABLE = [
    fake_trial(name, block, role, time_s)
    for block in range(8)
    for name, role, time_s in (
        ("original", "A1", 1.0), ("original", "A2", 1.2 + 0.01 * block), ("vectorized", "", 0.7)
    )
]  # fmt: skip
NO_CUDA = {"original": 1.0, "data_prefetcher": 0.891, "both": 0.897}
NO_TENSORFLOW = "tensorflow is not installed"
ONE = "one after the other"


@pytest.mark.parametrize(
    ("number", "experiment", "times", "how", "group", "said"),
    [
        (19, "prefetching", {THREAD: 0.894}, {}, None,
            r"prefetching: as published: 0\.\d{3} \[0\.\d+, 0\.\d+\] measured, 0\.894 published; "),
        # A claim without a figure is held to its direction.
        (24, PREPROCESSING, {"vectorized": 0.8}, {}, "confirmed", r"confirmed: faster, 0\."),
        (24, PREPROCESSING, {"vectorized": 1.2}, {}, "takes longer here",
            r"takes longer here: slower, 1\."),
        (24, PREPROCESSING, {"vectorized": 1.0}, {"noise": 0.002}, "no saving here",
            "no saving here: no practical difference, "),
        (24, PREPROCESSING, {"vectorized": 1.0}, {"noise": 0.15}, "inconclusive",
            "inconclusive: "),
        (24, PREPROCESSING, {"vectorized": 0.978}, {"noise": 0.012}, "confirmed",
            r"confirmed: real but small, 0\."),
        (24, PREPROCESSING, {"vectorized": 0.7}, {"trials": UNSTABLE}, None,
            r"machine unstable, no verdict \(simulated GPU, 460 images/s\): "),
        # What was simulated stands beside the word.
        (24, PREPROCESSING, {"vectorized": 0.8}, {"labels": LABELS}, "confirmed",
            r"confirmed \(simulated GPU, 460 images/s.*\): faster, 0\."),
        # Smaller data shortens training: saving more than published does not refute that.
        (25, PREPROCESSING, {"simplified": 0.413}, {"labels": LABELS}, "saves more than published",
            r"saves more than published \(simulated GPU, .*\): 0\.4.* measured, 0\.661 published$"),
        # The document's figure, 0.661, saves more than the baseline waits.
        (25, PREPROCESSING, {"simplified": 0.85}, {}, "not reproducible here",
            r"not reproducible here: 0\.8.*; waiting is 30 % of the epoch, .* saved 34 %$"),
        # Its contrasts come out differently.
        (4, "stalls", STALLS, {"noise": 0.002}, "confirmed in part", ""),
        (9, "storage", {"tmpfs": 0.864}, {"labels": UNKNOWN}, "as published",
            r"as published \(unconfirmed storage, warm cache\): "),
        # What cannot run here says why.
        (20, "prefetching", NO_CUDA, {
            "trials": [t for t in fake_trials(NO_CUDA, blocks=8, labels=COLD)
                       if t.variant == "original"]
            + [fake_trial("both", 0, status="failed", reason="out of memory")],
            "skipped": {"data_prefetcher": "no CUDA here"}}, None,
            "prefetching data_prefetcher: not testable here: no CUDA here; "
            "prefetching both: not testable here: failed: out of memory; "
            "pin_memory: not run; prefetching_in_depth: not run$"),
        (22, "tf_data", {ONE: 1.0}, {
            "trials": [fake_trial(ONE, 0, status="skipped", reason=NO_TENSORFLOW)],
            "status": "failed", "skipped": {ONE: NO_TENSORFLOW}}, None,
            f".*tf_data: not testable here: {NO_TENSORFLOW}"),
        (20, "prefetching_in_depth", {"no workers": 1.4}, {"mode": "quick"}, None,
            ".*in_depth: not run: only full mode measures it"),
    ],
)  # fmt: skip
def test_an_answer_is_what_its_run_can_carry(tmp_path, number, experiment, times, how, group, said):
    baseline = lab.experiment(experiment).baseline
    folder = make_run(tmp_path, {baseline: 1.0, **times}, experiment=experiment, **how)
    row = record(tmp_path, number)
    assert group in (None, row["group"])
    assert re.match(said, row["answer"])
    assert json.loads(json.dumps(row)) == row
    assert row["run"] == folder.name


# --- between other variants, and with sides -----------------------------------------------


def in_depth(results, times, **more):
    return make_run(results, times, experiment="prefetching_in_depth", **more)


def test_variants_are_compared_within_blocks_with_a_plain_95_percent_interval(tmp_path):
    times = {"original": 1.0, THREAD: 0.9, "equal depth": 0.9}
    trials = fake_trials(times, blocks=10, noise=0.05, labels=COLD)
    in_depth(tmp_path, times, trials=trials)
    time_s = {(t.variant, t.block): t.time_s for t in trials}
    d = [math.log(time_s[THREAD, b] / time_s["equal depth", b]) for b in range(10)]
    half = 2.262157 * stdev(d) / math.sqrt(10)  # Student's t, 9 degrees of freedom, 95 %
    one = contrast(tmp_path, 19, f"{THREAD} ÷ equal depth")
    assert one["ratio"] == pytest.approx(math.exp(fmean(d)))
    assert one["low"] == pytest.approx(math.exp(fmean(d) - half), rel=1e-6)
    assert one["high"] == pytest.approx(math.exp(fmean(d) + half), rel=1e-6)


@pytest.mark.parametrize(
    ("times", "how", "against", "begins", "ends"),
    [
        ({THREAD: 0.9, "equal depth": 0.9}, {"noise": 0.004}, " ÷ equal depth",
         "no practical difference: ", ", as expected by Lightning #1454, lightly #1304"),
        ({THREAD: 0.9}, {"noise": 0.004}, "", "faster: 0.", ", as expected by [004] 2.1"),
        ({THREAD: 1.3}, {"noise": 0.004}, "", "slower: 1.", ", contradicts all sources"),
        ({THREAD: 0.9}, {"labels": LABELS}, "",
         "faster (simulated GPU, 460 images/s): 0.", ", as expected by [004] 2.1"),
    ],
)  # fmt: skip
def test_a_result_names_the_side_that_expects_it(tmp_path, times, how, against, begins, ends):
    in_depth(tmp_path, {"original": 1.0, **times}, **how)
    answer = contrast(tmp_path, 19, f"{THREAD}{against}")["answer"]
    assert answer.startswith(begins) and answer.endswith(ends)
    assert record(tmp_path, 19)["simulated"] == ("simulated GPU" if "labels" in how else "")


# --- which run speaks ---------------------------------------------------------------------


def test_a_full_run_speaks_first_one_as_in_the_document_last_and_one_that_broke_off_never(tmp_path):
    own = {"protocol": "as in the document", "shuffled": False}
    make_run(tmp_path, name="20250401T000000Z-dddd", **own)
    assert "published, no verdict for a run as in the document" in answer_to(tmp_path, 19)
    make_run(tmp_path, name="20250301T000000Z-cccc", mode="quick", blocks=3)
    assert "published, no verdict in quick mode" in answer_to(tmp_path, 19)
    make_run(tmp_path, name="20250101T000000Z-aaaa")
    for number, status in enumerate(("running", "cancelled", "failed")):
        make_run(tmp_path, name=f"20250501T00000{number}Z-bbbb", status=status, trials=[])
    assert record(tmp_path, 19)["run"] == "20250101T000000Z-aaaa"
    for day, baseline in enumerate((THREAD, "original"), 1):  # the experiment's is original
        asked = {"experiment": "prefetching", "mode": "full", "baseline": baseline}
        make_run(tmp_path, name=f"2025060{day}T000000Z-eeee", request=asked)
        newest = {THREAD: "20250101T000000Z-aaaa", "original": "20250602T000000Z-eeee"}
        assert record(tmp_path, 19)["run"] == newest[baseline]
        assert lab.newest_run("prefetching", tmp_path).info.request == asked


def test_a_baseline_of_the_users_own_that_cannot_run_is_no_reason(tmp_path):
    asked = {"experiment": "prefetching", "mode": "full", "baseline": THREAD}
    how = {"status": "failed", "skipped": {THREAD: "no CUDA here"}, "trials": []}
    make_run(tmp_path, {THREAD: 1.0, "original": 1.0}, request=asked, **how)
    assert "no CUDA here" not in answer_to(tmp_path, 19)


# --- answers that are no normalized time --------------------------------------------------

NAIVE = "computing, not synchronized"
# Shares of an epoch: waiting for batches, transfer, forward and backward, waiting for the device.
PHASES = {
    "loading": (0.80, 0.02, 0.02, 0.15),
    "computing": (0.00, 0.02, 0.20, 0.77),
    "loss in loops": (0.00, 0.02, 0.90, 0.07),
    NAIVE: (0.00, 0.79, 0.20, 0.00),
}


def make_bottlenecks(results, *, labels=COLD, utils=None):
    """A run whose epochs have these phases; start-up takes the remaining hundredth."""
    trials = []
    for trial in fake_trials(dict.fromkeys(PHASES, 1.0), blocks=8, noise=0.002, labels=labels):
        wait, transfer, step, sync = PHASES[trial.variant]
        epochs = tuple(
            replace(
                epoch, startup_s=0.01 * epoch.epoch_s, wait_s=wait * epoch.epoch_s,
                transfer_s=transfer * epoch.epoch_s, launch_s=step * epoch.epoch_s,
                sync_s=sync * epoch.epoch_s,
            )
            for epoch in trial.epochs
        )  # fmt: skip
        busy = None if utils else trial.simulated_busy_share
        util = (utils or {}).get(trial.variant)
        trials.append(replace(trial, epochs=epochs, gpu_util_mean=util, simulated_busy_share=busy))
    times = dict.fromkeys(PHASES, 1.0)
    make_run(results, times, experiment="bottlenecks", trials=trials)


def test_phases_show_the_bottleneck_only_where_the_loop_waits_for_the_device(tmp_path):
    make_bottlenecks(tmp_path)
    parts = "transfer 2.0 %, forward and backward"
    assert answer_to(tmp_path, 1) == (
        f"loading: confirmed: waiting for batches 81.0 %, {parts} 17.0 %; computing and loss in "
        f"loops: confirmed: waiting for batches 1.0 %, {parts} 97.0 %"
    )
    assert answer_to(tmp_path, 2) == (
        "computing: confirmed: loading with transfer 3.0 %, forward and backward 97.0 %; "
        f"{NAIVE}: not confirmed here: loading with transfer 80.0 %, forward and backward 20.0 %"
    )


@pytest.mark.parametrize(
    ("loading", "word"),
    [(0.2, "confirmed"), (0.95, "not confirmed here"), (0.9, "not confirmed here"), (None, "")],
)
def test_waiting_for_data_lowers_gpu_util_or_does_not_and_none_is_made_up(tmp_path, loading, word):
    if loading:
        make_bottlenecks(tmp_path, utils={"loading": loading, "computing": 0.98})
        answer = f"{word}: GPU-util {100 * loading:.1f} % loading, 98.0 % computing"
    else:
        make_bottlenecks(tmp_path, labels=LABELS)
        answer = (
            "not testable here: GPU-util is NVML's, of an NVIDIA GPU; the device computed for "
            "70.0 % loading, 70.0 % computing of the time (simulated GPU, 460 images/s)"
        )
    assert answer_to(tmp_path, 3) == answer


def test_of_workers_that_load_equally_fast_the_cheapest_is_taken(tmp_path):
    waits, cpu_percents = (0.06, 0.6, 0.3, 0.05, 0.9), (170.0, 90.0, 120.0, 190.0, 10.0)
    counts = {"as many as cores": 2, "no workers": 0, "1 worker": 1, "twice as many": 4}
    counts |= {"decoder=pillow": 2}  # of the user's own
    measured = dict(zip(counts, zip(waits, cpu_percents)))
    trials = []
    for trial in fake_trials(dict.fromkeys(counts, 1.0), blocks=8, noise=0, drift=0):
        wait, cpu_percent = measured[trial.variant]
        epochs = tuple(replace(epoch, wait_s=wait * epoch.epoch_s) for epoch in trial.epochs)
        trials.append(replace(trial, cpu_percent=cpu_percent, epochs=epochs))
    folder = make_run(tmp_path, dict.fromkeys(counts, 1.0), experiment="workers", trials=trials)
    stored = json.loads((folder / "run.json").read_text())
    stored["variants"] = {name: {"num_workers": n} for name, n in counts.items()}
    stored["variants"]["decoder=pillow"] |= {"decoder": "pillow"}
    (folder / "run.json").write_text(json.dumps(stored))
    assert answer_to(tmp_path, 5) == (
        "by this rule 2 workers; workers, waiting, CPU: 0: 1.20 s, 90 %; 1: 600 ms, 120 %; "
        "2: 120 ms, 170 %; 4: 100 ms, 190 % (simulated GPU, 460 images/s)"
    )


CROP = "crop, 320×240"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, "confirmed: opencv faster in 3, slower in 0 of 3"),
        (
            {"times": {**OPERATION_TIMES, CROP: {"pillow": 1.0, "opencv": 1.5}}},
            "confirmed: opencv faster in 2, slower in 1 of 3",
        ),
        ({"mode": "quick"}, "opencv took less time in 3 of 3 groups, no verdict in quick mode"),
        ({"second": 1.5}, "machine unstable, no verdict"),
        ({"busy": (0, 1, 2)}, "in 3 of 3 groups, 5 undisturbed blocks, a verdict needs 6"),
        ({"busy": range(8)}, "in 3 of 3 groups, 0 undisturbed blocks, a verdict needs 6"),
        ({"times": {CROP: {"pillow": 1.0, "numpy": 0.5}}}, "not run: this run has no"),
    ],
)
def test_a_variant_in_many_groups_is_answered_by_counting(tmp_path, how, said):
    own = {"mode": "full", "provenance": {"machine_id": HERE}, **how}
    save_run(tmp_path, fake_grouped_run(blocks=8, **own))
    assert said in answer_to(tmp_path, 23)


@pytest.mark.parametrize(
    ("links", "how", "said"),
    [
        ({400: 1.1, 50: 2.0}, {}, r"confirmed \(simulated network, .*\): slower, 1\.8"),
        ({400: 1.1}, {"skipped": {"2 machines: 50 Mbit/s": "no tc here"}},
         "2 machines: 50 Mbit/s: not testable here: no tc here$"),
        ({50: 2.0}, {}, "not run: this run has no such variant$"),
    ],
)  # fmt: skip
def test_links_between_machines_are_named_with_their_answer(tmp_path, links, how, said):
    times = {"no exchange": 1.0, **{f"{n} Mbit/s": time for n, time in links.items()}}
    rng = random.Random(1)

    def make(group, name, block, role):
        network = () if name == "no exchange" else (Hardware("network", "simulated", name),)
        trial = fake_trial(name, block, role, times[name] * rng.lognormvariate(0, 0.005))
        return replace(trial, hardware=(H200, *network))

    told, trials = fake_groups({"2 machines": times}, make, blocks=10)
    for label in how.get("skipped", {}):
        told["groups"][label] = "2 machines"
    info = fake_info(
        [*told["groups"]], mode="full", experiment="communication",
        provenance={"machine_id": HERE}, **told, **how,
    )  # fmt: skip
    save_rows(tmp_path, info, trials)
    assert re.match(said, answer_to(tmp_path, 38))
    assert record(tmp_path, 38)["simulated"] == "simulated network"


def test_reference_runs_stand_beside_this_machines_with_their_machine(tmp_path, capsys):
    make_run(tmp_path, mode="quick")
    make_run(tmp_path / "examples", name="prefetching", machine_id="another")
    make_run(tmp_path / "examples", name="prefetching_quick", mode="quick", machine_id="another")
    row = record(tmp_path, 19)
    assert "no verdict in quick mode" in row["answer"]
    assert row["reference"].startswith("as published: 0.")
    assert row["reference_group"] == "as published"
    assert row["reference"].endswith("; on unknown cores, GPU unknown (machine anothe)")
    shown = lab.claims(tmp_path, numbers=[19])._repr_html_()
    assert "reference runs" in shown and "machine anothe" in shown
    assert main(["claims", "19", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "here: prefetching" in said and "reference runs: as published: 0." in said
    assert record(tmp_path, 9)["reference"] == ""


def test_the_answer_comes_first_in_one_sentence(tmp_path, capsys):
    make_run(
        tmp_path, {"original": 1.0, "simplified": 0.413}, experiment=PREPROCESSING, labels=LABELS
    )
    rows = answers(tmp_path, HERE, numbers=[19, 24, 25])
    answer = "Of 3 claims of the documents: 1 confirmed here, 2 not run; 1 of them on simulated"
    assert ledger.answer_in_short(rows).startswith(answer)
    assert main(["claims", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Of 47 claims of the documents: ")


# --- what users call ----------------------------------------------------------------------


def test_a_table_shows_the_claims_asked_for_and_who_says_otherwise(tmp_path):
    make_run(tmp_path, machine_id=hardware.provenance().machine_id)
    shown = lab.claims(tmp_path, numbers=[14, 19])._repr_html_()
    assert "as published: 0." in shown and "PyTorch #100703" in shown
    with pytest.raises(ValueError, match="numbers must be from 1 to 47, got 48; leave them out"):
        lab.claims(tmp_path, numbers=[48])
