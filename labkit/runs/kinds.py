"""Kinds of experiments: what comes before their first trial, and what a trial measures.

epochs:     stage ─ images ─ simulated hardware ─ equal work ─ calibration ─▶ trials time epochs
roofline:   the same ─ the device's speeds ─▶ trials time an epoch at a speed of the device
operation:  equal work ─▶ trials time one operation
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.records import (
    EPOCHS,
    OPERATION,
    OPERATION_SETTINGS,
    ROOFLINE,
    Calibration,
)
from labkit.runs import operation_trials
from labkit.runs.active import ActiveRun
from labkit.runs.calibration import calibrate_run, measure_gpu
from labkit.runs.check_equal_work import check_equal_work
from labkit.runs.check_images import check_images
from labkit.runs.check_simulated import check_storages_and_links
from labkit.runs.reads import save_read_counts
from labkit.runs.speeds import check_speeds, trial_settings
from labkit.runs.staging import stage
from labkit.settings import field_kinds


@dataclass(frozen=True)
class Kind:
    """What the trials of an experiment time."""

    prepare: Callable[[ActiveRun, ExitStack], None]
    """Does what comes before the first trial, also when a run is resumed; the stack undoes it."""
    measure: Callable[[ActiveRun, str], dict[str, Any]]
    """Runs a trial of the variant with this label and returns fields of `Trial`."""
    settings: frozenset[str] = frozenset(field_kinds())
    """Names of the settings that have an effect."""
    trial_s: Mapping[str, float] = field(default_factory=dict)
    """Mode -> seconds of a trial, where they are known before a run."""
    epoch_share: float = 1.0
    """How long epochs should be, as a share of the mode's."""


def _prepare_epochs(run: ActiveRun, cleanup: ExitStack) -> None:
    stage(run, cleanup)
    if run.info.calibration is not None:  # resumed: only the disks are new
        check_storages_and_links(run)
        measure_gpu(run)
        check_speeds(run)
        return
    check_images(run)
    check_storages_and_links(run)
    check_equal_work(run)
    calibrate_run(run, KINDS[run.info.kind].epoch_share)
    measure_gpu(run)
    save_read_counts(run)
    check_speeds(run)


def _prepare_operations(run: ActiveRun, cleanup: ExitStack) -> None:
    if run.info.calibration is not None:  # resumed
        return
    run.progress.say("checks: every library's output, compared with the baseline's")
    tasks = {label: run.info.tasks[label] for label in run.remaining}
    run.drop_all(run.ask("compare_operations", settings=run.baseline, tasks=tasks))
    run.save(calibration=Calibration())


def _measure_epochs(run: ActiveRun, label: str) -> dict[str, Any]:
    settings = trial_settings(run, label)
    measured = run.ask(
        "measure",
        settings=settings,
        excluded=run.info.excluded,
        last_images=run.info.compared_images,
    )
    # What a probe measured the medium to be outranks its name.
    staged = run.info.storages[settings.storage]
    hardware = [
        staged.hardware if each["kind"] == "storage" else each for each in measured["hardware"]
    ]
    return {
        **measured,
        "settings": asdict(settings),
        "hardware": hardware,
        "medium": staged.medium,
    }


def _measure_operation(run: ActiveRun, label: str) -> dict[str, Any]:
    task, seconds = run.info.tasks[label], operation_trials.TRIAL_S[run.mode.name]
    measured = run.ask("time_operation", settings=run.variants[label], task=task, seconds=seconds)
    return {**measured, "settings": {**run.info.settings_of(label), **task}}


KINDS: dict[str, Kind] = {
    EPOCHS: Kind(prepare=_prepare_epochs, measure=_measure_epochs),
    # There are many trials, so epochs are shorter.
    ROOFLINE: Kind(prepare=_prepare_epochs, measure=_measure_epochs, epoch_share=0.5),
    OPERATION: Kind(
        prepare=_prepare_operations,
        measure=_measure_operation,
        settings=OPERATION_SETTINGS,
        trial_s={
            mode: seconds + operation_trials.TRIAL_OVERHEAD_S
            for mode, seconds in operation_trials.TRIAL_S.items()
        },
    ),
}
