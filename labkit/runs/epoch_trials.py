"""Trials of epochs: what comes before the first, and what each one measures.

epochs:     stage ─ images ─ simulated hardware ─ equal work ─ calibration ─▶ trials time epochs
roofline:   the same ─ the device's speeds ─▶ trials time an epoch at a speed of the device
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from labkit.records import EPOCHS, ROOFLINE
from labkit.runs.active import ActiveRun
from labkit.runs.calibration import calibrate_run, measure_gpu
from labkit.runs.check_equal_work import check_equal_work
from labkit.runs.check_images import check_images
from labkit.runs.check_simulated import check_storages_and_links
from labkit.runs.reads import save_read_counts
from labkit.runs.speeds import check_speeds, trial_settings
from labkit.runs.staging import stage

# How long epochs should be, as a share of the mode's: a roofline has many trials.
EPOCH_SHARE = {EPOCHS: 1.0, ROOFLINE: 0.5}


def prepare_epochs(run: ActiveRun, cleanup: ExitStack) -> None:
    """Do what comes before the first trial, also when a run is resumed.

    Args:
        run: the active run.
        cleanup: undoes it.
    """
    stage(run, cleanup)
    if run.info.calibration is not None:  # resumed: only the disks are new
        check_storages_and_links(run)
        measure_gpu(run)
        check_speeds(run)
        return
    check_images(run)
    check_storages_and_links(run)
    check_equal_work(run)
    calibrate_run(run, EPOCH_SHARE[run.info.kind])
    measure_gpu(run)
    save_read_counts(run)
    check_speeds(run)


def measure_epochs(run: ActiveRun, label: str) -> dict[str, Any]:
    """Run a trial of the variant with this label and return fields of `Trial`."""
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
