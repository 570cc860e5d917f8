"""Speeds of the device in a run: those of each trial, and those that cannot be reached here.

A variant's task may name its device's speed as a multiple of the baseline's loading rate (`x`).
A real device is slowed down by training on each batch several times (`gpu_slowdown`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from labkit.contracts import Skip
from labkit.resolve import find_gpu_speeds
from labkit.runs.active_run import ActiveRun
from labkit.runs.calibrated_device import with_device
from labkit.runs.check_simulated import check_simulated_gpu
from labkit.settings import Settings


def trial_settings(run: ActiveRun, label: str) -> Settings:
    """Return a variant's settings with the images of an epoch and the device's speed."""
    settings = with_device(run.variants[label], run.info.calibration)
    if (x := run.info.x_of(label)) and run.info.facts_of(label).is_simulated:
        rate = x * run.info.calibration.load_images_per_s
        settings = replace(settings, gpu_images_per_s=rate)
    if isinstance(settings.gpu_images_per_s, float):
        rate = _at_batch_size(settings, settings.gpu_images_per_s, run.baseline.batch_size)
        settings = replace(settings, gpu_images_per_s=rate)
    return replace(settings, images=run.info.calibration.images)


def _at_batch_size(settings: Settings, images_per_s: float, given_for: int) -> float:
    """Return the speed of a variant's device, images/s, from that in batches of another size."""
    if settings.batch_size == given_for:
        return images_per_s
    speeds = replace(find_gpu_speeds(settings), batch_size=given_for)
    return settings.batch_size / speeds.step_s(settings.batch_size)


def check_speeds(run: ActiveRun) -> None:
    """Leave out the speeds that the device cannot reach here."""
    groups: dict[float, list[str]] = {}
    for label in run.remaining:
        if x := run.info.x_of(label):
            groups.setdefault(x, []).append(label)
    if groups and not run.baseline_facts.is_simulated:
        _slow_down(run, groups)
        return
    for x in sorted(groups, reverse=True):
        try:
            check_simulated_gpu(run, trial_settings(run, groups[x][0]))
            return  # the slower ones are easier
        except Skip as reason:
            run.skip(groups[x], reason)


def _slow_down(run: ActiveRun, groups: Mapping[float, Sequence[str]]) -> None:
    """Set how often a real device trains on each batch, so that its speed is close to each x."""
    fastest = run.info.calibration.device_images_per_s / run.info.calibration.load_images_per_s
    near: dict[int, list[float]] = {}  # times -> the x that it is the nearest to
    for x in groups:
        near.setdefault(round(fastest / x), []).append(x)
    chosen = {
        min(speeds, key=lambda x: abs(math.log(fastest / times / x))): times
        for times, speeds in near.items()
        if times > 1
    }
    for x, labels in groups.items():
        if x not in chosen:
            why = f"not reachable: this GPU trains {fastest:.2g} × as fast as the baseline loads"
            if x < fastest:
                why = "no closer speed: each batch can only be trained on a whole number of times"
            run.skip(labels[::-1], why)  # the baseline last: without it the others have no reason
    slowed = {
        label: {**run.info.tasks[label], "gpu_slowdown": times}
        for x, times in chosen.items()
        for label in groups[x]
    }
    run.save(tasks={**run.info.tasks, **slowed})
