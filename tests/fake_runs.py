"""Whole runs to stand side by side, made without running anything."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

from fakes import (
    H200,
    LABELS,
    REAL_DISK,
    SIMULATED_GPU,
    fake_epoch,
    fake_info,
    fake_logged,
    fake_trial,
    fake_trials,
)

from labkit.records import OperationTrial
from labkit.report.run import Run
from labkit.runs.store import append_trials, create_run

TIMES = {"original": 1.0, "prefetch_generator": 0.894, "data_prefetcher": 0.7}
MINE = {
    "machine_id": "7a93da180d42", "cores": 2, "cpu_model": "AMD EPYC", "gpu": {"works": False},
    "versions": {"torch": "2.13.0"},
}  # fmt: skip
THEIRS = {
    "machine_id": "abcdef012345", "cores": 16, "cpu_model": "Intel Xeon",
    "gpu": {"works": True, "name": "NVIDIA H200"}, "versions": {"torch": "2.12.0"},
}  # fmt: skip
REAL = {"storage": REAL_DISK, "device": H200}
COLD = {**REAL, "cache": "cold"}
HERE = "here"  # the machine whose runs answer


def fake_machine_run(
    times=TIMES, *, name="mine", provenance=MINE, labels=LABELS, blocks=3, noise=0.02, **info,
):  # fmt: skip
    """A run of prefetching; `name` is its folder's."""
    names = [*times, *info.get("skipped", {})]
    trials = fake_trials(times, labels=labels, blocks=blocks, noise=noise)
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
    folder = save_rows(results, wanted, trials)
    return folder.rename(folder.with_name(name)) if name else folder


OPERATION_TIMES = {
    "decode, 320×240": {"pillow": 1.0, "opencv": 0.7, "simplejpeg": 0.6},
    "decode, 640×480": {"pillow": 1.0, "opencv": 0.7, "simplejpeg": 0.6},
    "crop, 320×240": {"pillow": 1.0, "opencv": 0.5},
    "normalize, 320×240": {"numpy": 1.0, "torch": 1.3},
}
BASE_S = (0.001, 0.004, 0.000_01, 0.000_05)  # of an image, group by group


def fake_groups(arms, make, *, blocks=3):
    """What run.json says of groups, and their trials; the first of each group is its baseline.

    Args:
        arms: group -> names of its variants.
        make: returns the trial of group, name, block and role; where it lies is filled in.
        blocks: repetitions.
    """
    groups, baselines, trials = {}, {}, []
    for group, names in arms.items():
        labels = {name: f"{group}: {name}" for name in names}
        groups |= dict.fromkeys(labels.values(), group)
        baselines[group] = next(iter(labels.values()))
        for block in range(blocks):
            for name, label in labels.items():
                for role in ("A1", "A2") if label == baselines[group] else ("",):
                    place = {"variant": label, "block": block, "role": role}
                    trials.append(replace(make(group, name, block, role), **place))
    return {"groups": groups, "baselines": baselines, "blocks": blocks}, tuple(trials)


def fake_grouped_run(times=OPERATION_TIMES, *, second=1.0, busy=(), blocks=3, noise=0.01, **more):
    """A run of variants in groups; the first of each group is its baseline.

    Args:
        times: group -> variant -> true time over the baseline's.
        second: what the second run of a baseline takes over the first.
        busy: blocks in which another program ran.
        more: of `fake_info`.
    """
    rng, base_s = random.Random(1), dict(zip(times, BASE_S))

    def make(group, name, block, role):
        time_s = base_s[group] * times[group][name] * (1 + 0.05 * block)
        time_s *= rng.lognormvariate(0, noise) * (second if role == "A2" else 1)
        trial = OperationTrial(
            variant=name, block=block, position=0, status="ok", image_s=time_s, calls=40,
            labels={"input": "in memory"},
        )  # fmt: skip
        return fake_logged(trial, other_cores=1.0) if block in busy else trial

    told, trials = fake_groups(times, make, blocks=blocks)
    tasks = {}
    for label, group in told["groups"].items():
        operation, _, size = group.rpartition(", ")
        if operation:
            sides = dict(zip(("width_px", "height_px"), map(int, size.split("×"))))
            tasks[label] = {"operation": operation, "library": label.rpartition(": ")[2], **sides}
    told |= {"experiment": "operations", "kind": "operation", "tasks": tasks}
    told |= {"provenance": MINE, **more}
    told["variants"] = {label: {"data": "data/photos", "seed": 0} for label in told["groups"]}
    info = fake_info([*told["groups"]], **told)
    return Run(folder=Path("/home/ada/results/operations/grouped"), info=info, trials=trials)


SAVED_AT = {
    1.0: {"original": 1.0, "prefetch_generator": 0.89, "both": 1.0},
    2.0: {"original": 1.0, "prefetch_generator": 1.0, "both": 1.0},
}


def fake_run_at_speeds(saved_at=SAVED_AT, *, blocks=10, mode="full", published=None, **more):
    """A run of the experiment prefetching at several speeds of the device.

    Args:
        saved_at: x -> variant -> true normalized time.
        blocks: repetitions.
        mode: of the run.
        published: variant -> the document's figure.
        more: of `fake_info`.
    """
    rng, groups = random.Random(1), {f"x = {x:g}": times for x, times in saved_at.items()}

    def make(group, name, block, role):
        time_s = 2.0 * groups[group][name] * rng.lognormvariate(0, 0.005)
        gpu = replace(SIMULATED_GPU, details=f"{80 * float(group[4:]):.3g} images/s")
        labels = {**LABELS, "cache": "cold", "device": gpu}
        return fake_trial(name, block, role, time_s, labels=labels)

    told, trials = fake_groups(groups, make, blocks=blocks)
    labels = told["groups"]
    told |= {
        "experiment": "prefetching", "mode": mode, "provenance": {"machine_id": HERE},
        "tasks": {label: {"x": float(group[4:])} for label, group in labels.items()},
        "published": {
            f"{group}: {name}": time for group in groups for name, time in (published or {}).items()
        },
        "calibration": {"images": 80, "load_images_per_s": 80.0, "device_images_per_s": 160.0},
    }  # fmt: skip
    its = {"device": "simulated", "num_workers": 2, "cache": "cold"}
    told["variants"] = dict.fromkeys(labels, its)
    info = fake_info([*labels], **{**told, **more})
    return Run(folder=Path("/home/ada/results/prefetching"), info=info, trials=trials)


def cancelled_after_a_row():
    """Return what `lab.run` takes to be cancelled after its first row."""
    cancel = threading.Event()

    class Cancels:
        shown = False

        def rate(self, rate):
            cancel.set()

        def __getattr__(self, name):
            return lambda *given, **named: None

    return {"cancel": cancel, "progress": Cancels()}


def save_run(results, run):
    """Write a run to disk and return its folder."""
    return save_rows(results, run.info, run.trials)


def save_rows(results, info, trials):
    """Write run.json and rows to a new folder and return it."""
    folder = create_run(results, info)
    for trial in trials:
        append_trials(folder, trial)
    return folder


# Images per second of each pipeline's loading alone; the first is the baseline.
LOADING = {"original": 210.0, "vectorized": 260.0, "simplified": 400.0}
SPEEDS = (0.5, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)


def fake_roofline(
    loading=LOADING, *, speeds=SPEEDS, blocks=5, noise=0.01, device=480.0, overlap=0.97,
    published=None, mode="quick", **more,
):  # fmt: skip
    """A roofline's run, in which every pipeline reaches nearly the ideal.

    Args:
        loading: variant -> its loading rate alone.
        speeds: of the device, as multiples of the baseline's loading rate.
        device: images/s of the calibrated device.
        overlap: what is reached of the ideal.
        published: variant -> the document's figure.
        more: of `fake_info`.
    """
    rng, images, start_s, base = random.Random(1), 160, 0.4, next(iter(loading.values()))
    x_of = {"loading alone" if x is None else f"x = {x:g}": x for x in (*speeds, None)}

    def make(group, name, block, role):
        x = x_of[group]
        compute_s = images / (x * base) if x else 0.0
        ideal_s = max(images / loading[name], compute_s)
        time_s = ideal_s * rng.lognormvariate(0, noise) / (overlap if x else 1)
        gpu = replace(SIMULATED_GPU, details=f"{x * base:.3g} images/s" if x else "480 images/s")
        later_s = time_s - (time_s - compute_s) / 20  # of 20 steps
        epoch = fake_epoch(start_s + later_s, images=images)
        arrivals_s = tuple(start_s + step * time_s / 20 for step in range(20))
        epoch = replace(epoch, first_batch_s=start_s, compute_s=compute_s, arrivals_s=arrivals_s)
        trial = fake_trial(name, block, labels={**LABELS, "device": gpu})
        return replace(trial, epochs=(epoch,), experiment="preprocessing_roofline")

    told, trials = fake_groups(dict.fromkeys(x_of, loading), make, blocks=blocks)
    labels = told["groups"]
    told |= {
        "experiment": "preprocessing_roofline", "kind": "roofline", "mode": mode,
        "question": "How fast would preprocessing train on a slower or faster GPU?",
        "tasks": {label: {"x": x_of[group]} for label, group in labels.items()},
        "published": {f"loading alone: {name}": x for name, x in (published or {}).items()},
        "calibration": {
            "images": images, "load_images_per_s": base, "device_images_per_s": device,
        },
        "provenance": MINE, "source": "[004] section 3.3, experiment 3",
    }  # fmt: skip
    told["variants"] = {label: {"device": "simulated", "num_workers": 2} for label in labels}
    info = fake_info([*labels], **{**told, **more})
    return Run(folder=Path("/home/ada/results/roofline"), info=info, trials=trials)
