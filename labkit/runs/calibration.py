"""Calibration: how fast the baseline is here, before anything is timed.

    the baseline's rate ─▶ how many images an epoch has, the same for all variants
                        ─▶ how fast the matched device computes, so that it stalls 30 %
    a free loader       ─▶ how busy the emulated device can be at most

Right after the start the loader's queues fill or drain, and batches come at another rate than
later; those steps are left out.
"""

from __future__ import annotations

import gc
import math
from dataclasses import asdict, replace

from labkit import units
from labkit.contracts import Clock, Device, Skip, SystemClock
from labkit.parts.devices import MATCHED_STALL_SHARE, PROFILES, with_compute
from labkit.parts.training import VECTORIZED
from labkit.pipeline import Pipeline, build
from labkit.resolve import traits
from labkit.runs.active import ActiveRun
from labkit.runs.checks import check_emulator, check_images
from labkit.runs.process import TrialFailed
from labkit.runs.timing import time_epoch, warm_up
from labkit.settings import Settings

CALIBRATION_S = 1.2  # long enough for a rate within some percent on two noisy cores
# Very short epochs leave most steps out, and each starts its workers anew: then it ends sooner.
LONGEST = 2  # times CALIBRATION_S, in all
FREE_LOADER_S = 0.3
UNSETTLED_STEPS_PER_WORKER = 1
MATCHING_TRIES = 4
MATCHED_WITHIN = 0.03  # of stall share; the documents' own figure is no sharper than 0.1
SHORT_SHARE = 0.9  # epochs shorter than this share of the mode's are worth a note


def calibrate(run: ActiveRun) -> None:
    """Find the baseline's rate, and from it how many images an epoch has.

    Raises:
        RuntimeError: the baseline cannot run here, or the emulated device is too slow.
    """
    run.progress.say("calibrating: how fast is the baseline here?")
    baseline, available = run.baseline, run.info["data"]["images"]
    # Only images that were looked at: calibration must not read, or evict, a whole big data set.
    usable = min(run.images_looked_at, available) - len(run.info["excluded"])
    tried = replace(baseline, images=min(baseline.images or usable, usable))
    try:
        calibration = run.ask(
            "measure_baseline",
            settings=asdict(tried),
            seconds=CALIBRATION_S,
            excluded=run.info["excluded"],
        )
        of = traits(vars(baseline))
        if of.emulated and "computing" not in of.leaves_out:
            calibration |= check_emulator(run, tried, calibration["compute_s_per_image"])
    except (TrialFailed, Skip) as reason:
        raise run.no_baseline(reason) from reason
    images = _epoch_images(run, calibration["images_per_s"])
    while run.images_looked_at < images + len(run.info["excluded"]):  # others replace bad ones
        check_images(run, images + len(run.info["excluded"]))
    images = min(images, available - len(run.info["excluded"]))
    # All variants that run do equal work: a multiple of each one's batch size.
    multiple = math.lcm(*(settings.batch_size for settings in run.remaining.values()))
    calibration["images"] = max(images // multiple, 1) * multiple
    run.save(calibration=calibration)
    _note_short_epochs(run)


def _epoch_images(run: ActiveRun, images_per_s: float) -> int:
    baseline, available = run.baseline, run.info["data"]["images"]
    if baseline.images or not run.mode.epoch_s:
        return baseline.images or available
    least = run.mode.min_steps * baseline.batch_size
    return min(max(least, round(images_per_s * run.mode.epoch_s)), available)


def _note_short_epochs(run: ActiveRun) -> None:
    calibration, mode = run.info["calibration"], run.mode
    steps = calibration["images"] // run.baseline.batch_size
    epoch_s = calibration["images"] / calibration["images_per_s"]
    if steps < mode.min_steps:
        why = "as images is set" if run.baseline.images else "as there are no more images"
        run.note(f"epochs of {steps} steps, {why}: {mode.name} mode wants {mode.min_steps}")
    if mode.judged and epoch_s < SHORT_SHARE * mode.epoch_s:
        run.note(
            f"epochs of about {units.seconds(epoch_s)} where {mode.name} mode wants "
            f"{units.seconds(mode.epoch_s)}: shorter ones are noisier"
        )
    run.save()
    run.progress.say(
        f"{calibration['images']} images per epoch, about {units.seconds(epoch_s)} each"
    )


def measure_baseline(
    settings: Settings,
    *,
    seconds: float = CALIBRATION_S,
    excluded: frozenset[int] = frozenset(),
) -> dict[str, float | None]:
    """Measure how fast the baseline is here, and match the emulated device's speed to it.

    Args:
        settings: the baseline's, complete; `images` is how many to try it on.
        seconds: how long each rate is measured.
        excluded: indices of unreadable images.

    Returns:
        images_per_s and, for the matched profile, compute_s_per_image and the stall_share that
        it gave.
    """
    import torch

    torch.set_num_threads(settings.torch_threads)
    clock = SystemClock()
    of = traits(vars(settings))
    matched = of.emulated and PROFILES[settings.profile].compute_s_per_image is None
    pipeline = build(
        settings, clock, compute_s_per_image=0.0 if matched else None, excluded=excluded
    )
    pipeline.source.start_worker(0)
    warm_up(pipeline)
    pipeline.source.prepare_cache(settings.cache_state)
    pipeline.parts.storage.enter()
    images_per_s, stall_share = steady_rate(pipeline, clock, seconds)
    compute_s_per_image = None
    if matched and "computing" in of.leaves_out:  # there is nothing to match
        compute_s_per_image = 0.0
    elif matched:
        # First guess: the loader alone sets the pace.  Then correct by what launching and
        # copying took away from the loader's workers, until it holds.
        compute_s_per_image = (1 - MATCHED_STALL_SHARE) / images_per_s
        # Epochs that end before their queues have settled get no closer by trying again.
        settles = _steps(pipeline) > _unsettled(settings)
        for _ in range(MATCHING_TRIES if settles else 1):
            pipeline = build(
                settings, clock, compute_s_per_image=compute_s_per_image, excluded=excluded
            )
            pipeline.source.prepare_cache(settings.cache_state)
            images_per_s, stall_share = steady_rate(pipeline, clock, seconds)
            if abs(stall_share - MATCHED_STALL_SHARE) <= MATCHED_WITHIN:
                break
            compute_s_per_image *= (1 - MATCHED_STALL_SHARE) / (1 - stall_share)
    return {
        "images_per_s": images_per_s,
        "compute_s_per_image": compute_s_per_image,
        "stall_share": stall_share,
    }


def steady_rate(pipeline: Pipeline, clock: Clock, seconds: float) -> tuple[float, float | None]:
    """Measure the rate once the queues have settled, over some epochs if they are short.

    Every step is waited for, whatever `sync_every` says: the rate is the loader's.

    Returns:
        Images per second, and the share of time in which the emulated device was idle.
    """
    device = pipeline.device
    # A very short epoch has nothing to spare.
    skipped = min(_unsettled(pipeline.settings), _steps(pipeline) - 1)
    images, elapsed_s, computed_s = 0, 0.0, 0.0
    began_s = clock.now()
    while elapsed_s < seconds and (not images or clock.now() - began_s < LONGEST * seconds):
        start_s, before_s = clock.now(), _computed_s(device)
        batches = pipeline.batches(pipeline.loader, device)
        for step, batch in enumerate(batches, 1):
            loss = pipeline.forward(batch)
            if pipeline.step.backward is not None:
                pipeline.step.backward(loss)
            device.synchronize()
            if step <= skipped:
                start_s, before_s = clock.now(), _computed_s(device)
                continue
            images += pipeline.settings.batch_size
            if elapsed_s + clock.now() - start_s >= seconds:
                break
        elapsed_s += clock.now() - start_s
        computed_s += _computed_s(device) - before_s
        del batches  # stops the workers before the next measurement
        pipeline.source.order.epoch += 1
    return images / elapsed_s, 1 - computed_s / elapsed_s if device.emulated else None


def _steps(pipeline: Pipeline) -> int:
    return len(pipeline.source) // pipeline.settings.batch_size


def _unsettled(settings: Settings) -> int:
    """Count the steps until the loader's queues have settled."""
    return 1 + UNSETTLED_STEPS_PER_WORKER * settings.num_workers


def _computed_s(device: Device) -> float:
    return device.compute_s if device.emulated else 0.0


def free_loader_utilization(settings: Settings, compute_s_per_image: float | None) -> float:
    """Measure the emulated device with a loader that costs nothing (EVIDENCE 2, Accelerator).

    Returns:
        Accelerator utilization, compute time over running time; what is missing from 1 is the
        emulation's own.
    """
    import torch

    clock = SystemClock()
    # Without what the emulated training loop costs on purpose: a loss in a Python loop, a host
    # that waits for the device before it launches the next step, or for a copy.
    settings = replace(settings, loss=VECTORIZED, sync_every=0, pin_memory=True)
    pipeline = build(settings, clock, compute_s_per_image=compute_s_per_image)
    profile = with_compute(PROFILES[settings.profile], compute_s_per_image)
    step_s = profile.compute_s_per_image * settings.batch_size
    steps = max(5, round(FREE_LOADER_S / step_s))
    empty = {"sample_id": torch.zeros(settings.batch_size, dtype=torch.int64)}
    time_epoch(replace(pipeline, loader=[empty]), clock)  # imports, once in a process
    gc.collect()
    gc.disable()  # as in trials
    epoch, _ = time_epoch(replace(pipeline, loader=[empty] * steps), clock)
    gc.enable()
    return epoch.compute_s / epoch.epoch_s
