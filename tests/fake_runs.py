"""Whole runs to stand side by side, made without running anything."""

from __future__ import annotations

from pathlib import Path

from fakes import LABELS, fake_info, fake_trials

from labkit.results import Run, append_trial, create_run

TIMES = {"original": 1.0, "prefetch_generator": 0.894, "data_prefetcher": 0.7}
MINE = {
    "machine_id": "7a93da180d42", "cores": 2, "cpu_model": "AMD EPYC", "gpu": {"works": False},
    "versions": {"torch": "2.13.0"},
}  # fmt: skip
THEIRS = {
    "machine_id": "abcdef012345", "cores": 16, "cpu_model": "Intel Xeon",
    "gpu": {"works": True, "name": "NVIDIA H200"}, "versions": {"torch": "2.12.0"},
}  # fmt: skip
REAL = {"storage": "real", "accelerator": "cuda:H200"}
COLD = {**REAL, "cache": "cold"}
HERE = "here"  # the machine whose runs answer


def fake_machine_run(
    times=TIMES, *, name="mine", provenance=MINE, labels=LABELS, blocks=3, noise=0.02, seed=0,
    **info,
):  # fmt: skip
    """A run of prefetching; `name` is its folder's."""
    names = [*times, *info.get("skipped", {})]
    trials = fake_trials(times, labels=labels, blocks=blocks, noise=noise, seed=seed)
    told = {"blocks": blocks, "provenance": provenance, **info}
    return Run(
        folder=Path("/home/ada/results") / name, info=fake_info(names, **told), trials=tuple(trials)
    )


def their_run(**more):
    """The same experiment on a machine with a GPU, in full mode."""
    how = {
        "name": "theirs", "provenance": THEIRS, "labels": REAL, "mode": "full", "blocks": 8,
        "noise": 0.01, "created_utc": "2025-03-04T05:06:07Z",
    }  # fmt: skip
    return fake_machine_run(**{**how, **more})


def make_run(
    results,
    times=None,
    *,
    experiment="prefetching",
    name=None,
    mode="full",
    blocks=10,
    noise=0.01,
    labels=COLD,
    trials=None,
    machine_id=HERE,
    **info,
):
    """A run as it lies on disk; `name` gives it a place among the others."""
    times = times or {"original": 1.0, "prefetch_generator": 0.894}
    if trials is None:
        trials = fake_trials(times, blocks=blocks, noise=noise, labels=labels)
    provenance = {"machine_id": machine_id}
    wanted = fake_info([*times], mode=mode, experiment=experiment, provenance=provenance, **info)
    folder = create_run(results, wanted)
    for trial in trials:
        append_trial(folder, trial)
    return folder.rename(folder.with_name(name)) if name else folder
