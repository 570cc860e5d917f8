"""Claims that no normalized time answers: by phases, GPU-util, CPU use; each rule can fail.

Run: python -m pytest tests/test_claim_answers.py
"""

import json
from dataclasses import replace

import pytest
from fake_runs import COLD, HERE, make_run
from fakes import LABELS, fake_trials

import labkit as lab
from labkit.claims.ledger import answers
from labkit.resolve import resolve
from labkit.settings import MODES, complete

# Shares of an epoch: waiting for batches, transfer, forward and backward, waiting for the device.
KNOWN = {
    "loading": (0.80, 0.02, 0.02, 0.15),
    "computing": (0.00, 0.02, 0.20, 0.77),
    "loss in loops": (0.00, 0.02, 0.90, 0.07),
    "computing, not synchronized": (0.00, 0.79, 0.20, 0.00),
}
NAIVE = "computing, not synchronized"


def make_bottlenecks(results, phases=KNOWN, *, labels=LABELS, utils=None, **more):
    """A run whose variants' epochs have these phases; start-up takes the remaining hundredth."""
    trials = []
    for trial in fake_trials(dict.fromkeys(phases, 1.0), blocks=8, noise=0.002, labels=labels):
        wait, transfer, step, sync = phases[trial.variant]
        epochs = tuple(
            replace(
                epoch, startup_s=0.01 * epoch.epoch_s, wait_s=wait * epoch.epoch_s,
                transfer_s=transfer * epoch.epoch_s, launch_s=step * epoch.epoch_s,
                sync_s=sync * epoch.epoch_s,
            )
            for epoch in trial.epochs
        )  # fmt: skip
        busy = None if utils else trial.emulated_busy_share
        util = (utils or {}).get(trial.variant)
        trials.append(replace(trial, epochs=epochs, gpu_util_mean=util, emulated_busy_share=busy))
    return make_run(
        results, dict.fromkeys(phases, 1.0), experiment="bottlenecks", trials=trials, **more
    )


def answer_to(results, number):
    (row,) = [row for row in answers(results, machine_id=HERE) if row["number"] == number]
    return row["answer"]


def test_reading_is_seen_where_it_was_put_in_and_nowhere_else(tmp_path):
    make_bottlenecks(tmp_path, labels=COLD)
    said = answer_to(tmp_path, 1)
    assert said == (
        "loading: agrees: waiting for batches 81.0 %, transfer 2.0 %, forward and backward 17.0 %; "
        "computing: agrees: waiting for batches 1.0 %, transfer 2.0 %, forward and backward "
        "97.0 %; loss in loops: agrees: waiting for batches 1.0 %, transfer 2.0 %, forward and "
        "backward 97.0 %"
    )


def test_naive_phases_blame_loading_for_the_devices_work(tmp_path):
    make_bottlenecks(tmp_path, labels=COLD)
    assert answer_to(tmp_path, 2) == (
        "computing: agrees: loading with transfer 3.0 %, forward and backward 97.0 %; "
        f"{NAIVE}: differs: loading with transfer 80.0 %, forward and backward 20.0 %"
    )
    make_bottlenecks(tmp_path, {**KNOWN, NAIVE: (0.0, 0.04, 0.95, 0.0)}, labels=COLD, name="z")
    assert f"{NAIVE}: agrees: " in answer_to(tmp_path, 2)


@pytest.mark.parametrize(
    ("loading", "word"), [(0.2, "agrees"), (0.95, "differs"), (0.9, "differs")]
)
def test_waiting_for_data_lowers_gpu_util_or_does_not(tmp_path, loading, word):
    make_bottlenecks(tmp_path, labels=COLD, utils={"loading": loading, "computing": 0.98})
    said = f"{word}: GPU-util {100 * loading:.1f} % loading, 98.0 % computing"
    assert answer_to(tmp_path, 3) == said


def test_without_nvml_gpu_util_is_not_made_up(tmp_path):
    make_bottlenecks(tmp_path)
    assert answer_to(tmp_path, 3) == (
        "not testable here: GPU-util is NVML's, of an NVIDIA GPU; the device computed for 70.0 % "
        "loading, 70.0 % computing of the time (emulated accelerator)"
    )


def make_workers(results, waits, cpu_percents):
    """A run of the workers experiment: number of workers -> share waited, CPU percent."""
    names = {2: "as many as cores", 0: "no workers", 1: "1 worker", 4: "twice as many"}
    labels = {names[n]: n for n in (2, *(n for n in waits if n != 2))}
    trials = [
        replace(
            trial,
            cpu_percent=cpu_percents[labels[trial.variant]],
            epochs=tuple(
                replace(epoch, wait_s=waits[labels[trial.variant]] * epoch.epoch_s)
                for epoch in trial.epochs
            ),
        )
        for trial in fake_trials(dict.fromkeys(labels, 1.0), blocks=8, noise=0, drift=0)
    ]
    folder = make_run(results, dict.fromkeys(labels, 1.0), experiment="workers", trials=trials)
    info = json.loads((folder / "run.json").read_text())
    info["variants"] = {name: {"num_workers": n} for name, n in labels.items()}
    (folder / "run.json").write_text(json.dumps(info))


CPU = {0: 90.0, 1: 120.0, 2: 170.0, 4: 190.0}


def test_of_workers_that_load_equally_fast_the_cheapest_is_taken(tmp_path):
    make_workers(tmp_path, {0: 0.6, 1: 0.3, 2: 0.06, 4: 0.05}, CPU)
    assert answer_to(tmp_path, 5) == (
        "by this rule 2 workers; workers, waiting, CPU: 0: 1.20 s, 90 %; 1: 600 ms, 120 %; "
        "2: 120 ms, 170 %; 4: 100 ms, 190 % (emulated accelerator)"
    )


# --- the experiment -----------------------------------------------------------------------


def everything(experiment):
    return {**experiment.variants, **experiment.in_full}


@pytest.mark.parametrize("device", ["emulated", "cpu"])
def test_each_bottleneck_stands_with_and_without_the_wait_for_the_device(photos, device):
    every = everything(lab.experiment("bottlenecks", data=str(photos), device=device))
    assert len(every) == len(set(every.values())) == 6
    for name in ("loading", "computing", "loss in loops"):
        assert replace(every[name], sync_every=0) == every[f"{name}, not synchronized"]
    for settings in every.values():
        step = "timed" if device == "emulated" else "detector"
        resolve(
            complete(
                settings, MODES["quick"], cores=2, has_cuda=False, can_fork=True, real_step=step
            )
        )


@pytest.mark.thorough
def test_a_real_run_finds_what_was_put_in(photos, tmp_path):
    experiment = lab.experiment(
        "bottlenecks", data=str(photos), device="emulated", images=24, input_px=64
    )
    run = lab.run(experiment, blocks=1, results=tmp_path, progress=False)
    assert {trial.status for trial in run.trials} == {"ok"}
    said = answers(tmp_path)
    shares = {row["number"]: row["answer"] for row in said}
    rows = {row.variant: row for row in run.summary.rows}
    for name, row in rows.items():
        parts = (row.wait_share, row.transfer_share, row.step_share, row.sync_share)
        known = sum(parts) + row.startup_s / row.time_s
        assert known <= 1.01
        assert known > 0.9 or name == "loading"  # which also stops its worker in the end
    assert rows["loading"].wait_share > rows["computing"].wait_share
    assert rows[NAIVE].transfer_share > rows["computing"].transfer_share
    assert "loading with transfer" in shares[2]
