"""Calibration: how fast the baseline is here, before anything is timed.

    the baseline's rate, with the step ─▶ how many images an epoch has, the same for all variants
    its loading rate alone             ─▶ x, the device's rate ÷ that
    a free loader                      ─▶ how busy the emulated device can be at most

Right after the start the loader's queues fill or drain, and batches come at another rate than
later; those steps are left out.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping
from dataclasses import replace

from labkit import units
from labkit.contracts import Clock, Skip, SystemClock
from labkit.parts.training import VECTORIZED
from labkit.pipeline import Pipeline, build
from labkit.resolve import resolve, traits
from labkit.runs.active import ActiveRun
from labkit.runs.checks import check_emulator, check_images
from labkit.runs.device_speed import FILE, device_of, is_calibrated
from labkit.runs.process import TrialFailed
from labkit.runs.timing import open_trial, time_epoch
from labkit.settings import Mode, Settings

CALIBRATION_S = 1.2  # long enough for a rate within some percent on two noisy cores
# Very short epochs leave most steps out, and each starts its workers anew: then it ends sooner.
LONGEST = 2  # times CALIBRATION_S, in all
FREE_LOADER_S = 0.3
UNSETTLED_STEPS_PER_WORKER = 1
SHORT_SHARE = 0.9  # epochs shorter than this share of the mode's are worth a note


def calibrate_run(run: ActiveRun, epoch_share: float) -> None:
    """Find the device's rate and the baseline's, and from them how many images an epoch has.

    Args:
        run: the active run.
        epoch_share: how long epochs should be, as a share of the mode's.

    Raises:
        RuntimeError: the baseline cannot run here, or the emulated device is too slow.
    """
    calibration = _device(run)
    run.progress.say("calibrating: how fast is the baseline here?")
    baseline, available = run.baseline, run.info["data"]["images"]
    # Only images that were looked at: calibration must not read, or evict, a whole big data set.
    usable = min(run.images_looked_at, available) - len(run.info["excluded"])
    tried = with_device(baseline, calibration)
    tried = replace(
        tried, images=min(baseline.images or usable, usable), ranks=1, exchange=Settings.exchange
    )
    of = traits(vars(baseline))
    try:
        calibration |= run.ask(
            "measure_rates",
            settings=tried,
            seconds=CALIBRATION_S,
            excluded=run.info["excluded"],
        )
        if of.emulated and "computing" not in of.leaves_out:
            calibration |= check_emulator(run, tried)
    except (TrialFailed, Skip) as reason:
        raise run.no_baseline(reason) from reason
    device_rate = calibration["device_images_per_s"]
    # Where variants have speeds of their own, this is none's.
    if device_rate is not None and not of.leaves_out and "tasks" not in run.info:
        calibration["x"] = device_rate / calibration["load_images_per_s"]
    mode = replace(run.mode, epoch_s=epoch_share * run.mode.epoch_s)
    images = _epoch_images(run, mode, calibration["images_per_s"])
    while run.images_looked_at < images + len(run.info["excluded"]):  # others replace bad ones
        check_images(run, images + len(run.info["excluded"]))
    images = min(images, available - len(run.info["excluded"]))
    # All variants that run do equal work: a multiple of each one's batches.
    multiple = math.lcm(*(its.batch_size * its.ranks for its in run.remaining.values()))
    calibration["images"] = max(images // multiple, 1) * multiple
    run.save(calibration=calibration)
    _note_short_epochs(run)


def _device(run: ActiveRun) -> dict[str, object]:
    """Return the rate of the baseline's emulated device, and the calibration that the run uses."""
    calibration = {"device_images_per_s": None, "x": None}
    if any(map(is_calibrated, run.remaining.values())):
        how = {"ask": lambda job, arguments: run.ask(job, **arguments), "say": run.progress.say}
        kept = device_of(run.baseline, run.folder.parents[1], **how, progress=run.progress.shown)
        run.progress.say(f"{kept}, kept in {run.folder.parents[1] / FILE}")
        calibration |= {
            "calibrated_images_per_s": kept.device_images_per_s,
            "calibrated": str(kept),
        }
    baseline = with_device(run.baseline, calibration)
    if traits(vars(baseline)).emulated:
        calibration["device_images_per_s"] = 1 / resolve(baseline).profile.compute_s_per_image
    return calibration


def with_device(settings: Settings, calibration: Mapping[str, object]) -> Settings:
    """Return the settings with the speed of the calibrated device, if they use it.

    Args:
        settings: a variant's, complete.
        calibration: what `run.json` holds of it.
    """
    if not is_calibrated(settings):
        return settings
    return replace(settings, device_speed=calibration["calibrated_images_per_s"])


def _epoch_images(run: ActiveRun, mode: Mode, images_per_s: float) -> int:
    baseline, available = run.baseline, run.info["data"]["images"]
    if baseline.images or not mode.epoch_s:
        return baseline.images or available
    least = mode.min_steps * baseline.batch_size
    return min(max(least, round(images_per_s * mode.epoch_s)), available)


def _note_short_epochs(run: ActiveRun) -> None:
    calibration, mode = run.info["calibration"], run.mode
    steps = calibration["images"] // (run.baseline.batch_size * run.baseline.ranks)
    epoch_s = calibration["images"] / calibration["images_per_s"]
    if steps < mode.min_steps:
        why = "as images is set" if run.baseline.images else "as there are no more images"
        run.note(f"epochs of {steps} steps, {why}: {mode.name} mode wants {mode.min_steps}")
    if mode.judged and epoch_s < SHORT_SHARE * mode.epoch_s:
        run.note(
            f"epochs of about {units.seconds(epoch_s)} where {mode.name} mode wants "
            f"{units.seconds(mode.epoch_s)}: shorter ones are noisier"
        )
    run.progress.say(
        f"{calibration['images']} images per epoch, about {units.seconds(epoch_s)} each"
    )


def measure_rates(
    settings: Settings, *, seconds: float, excluded: frozenset[int] = frozenset()
) -> dict[str, float]:
    """Measure how fast a pipeline is here.

    Args:
        settings: a run's baseline's or the reference's, complete; `images` is how many to take.
        seconds: how long each rate is measured.
        excluded: indices of unreadable images.

    Returns:
        images_per_s, with the step, and load_images_per_s, without device and step.
    """
    clock = SystemClock()
    pipeline, _ = open_trial(settings, clock, excluded)
    rate = steady_rate(pipeline, clock, seconds)
    if "computing" in traits(vars(settings)).leaves_out:  # this is loading alone
        return {"images_per_s": rate, "load_images_per_s": rate}
    pipeline.source.prepare_cache(settings.cache_state)
    load_rate = steady_rate(pipeline, clock, seconds, load_only=True)
    return {"images_per_s": rate, "load_images_per_s": load_rate}


def steady_rate(
    pipeline: Pipeline, clock: Clock, seconds: float, *, load_only: bool = False
) -> float:
    """Measure images per second once the queues have settled, over some epochs if they are short.

    Every step is waited for, whatever `sync_every` says: the rate is the loader's.
    """
    device = pipeline.device
    # A very short epoch has nothing to spare.
    steps = len(pipeline.source) // pipeline.settings.batch_size
    unsettled = 1 + UNSETTLED_STEPS_PER_WORKER * pipeline.settings.num_workers
    skipped = min(unsettled, steps - 1)
    images, elapsed_s = 0, 0.0
    began_s = clock.now()
    while elapsed_s < seconds and (not images or clock.now() - began_s < LONGEST * seconds):
        start_s = clock.now()
        batches = pipeline.loader if load_only else pipeline.batches(pipeline.loader, device)
        for step, batch in enumerate(batches, 1):
            if not load_only:
                loss = pipeline.forward(batch)
                if pipeline.step.backward is not None:
                    pipeline.step.backward(loss)
                device.synchronize()
            if step <= skipped:
                start_s = clock.now()
                continue
            images += pipeline.settings.batch_size
            if elapsed_s + clock.now() - start_s >= seconds:
                break
        elapsed_s += clock.now() - start_s
        del batches  # stops the workers before the next measurement
        pipeline.source.order.epoch += 1
    return images / elapsed_s


def free_loader_utilization(settings: Settings) -> float:
    """Measure the emulated device with a loader that costs nothing (EVIDENCE 2, Accelerator).

    Returns:
        Accelerator utilization, compute time over running time; what is missing from 1 is the
        emulation's own.
    """
    import torch

    clock = SystemClock()
    # Without what the emulated training loop costs on purpose: a loss in a Python loop, a host
    # that waits for the device before it launches the next step, or for a copy.
    settings = replace(settings, loss=VECTORIZED, sync_every=0, pin_memory=True, ranks=1)
    pipeline = build(settings, clock)
    step_s = pipeline.parts.profile.compute_s_per_image * settings.batch_size
    steps = max(5, round(FREE_LOADER_S / step_s))
    empty = {"sample_id": torch.zeros(settings.batch_size, dtype=torch.int64)}
    time_epoch(replace(pipeline, loader=[empty]), clock)  # imports, once in a process
    gc.collect()
    gc.disable()  # as in trials
    epoch, _ = time_epoch(replace(pipeline, loader=[empty] * steps), clock)
    gc.enable()
    return epoch.compute_s / epoch.epoch_s
