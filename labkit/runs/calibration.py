"""Calibration: how fast the baseline is here, before anything is timed.

    the baseline's rate, with the step ─▶ how many images an epoch has, the same for all variants
    its loading rate alone             ─▶ device speeds that are multiples of it

A rate is taken over whole rounds of workers, from the last batch of the first round on; epochs with
less than three rounds have none (`labkit.steady_rate`).
"""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from typing import Any

from labkit import units
from labkit.contracts import Skip
from labkit.machine import gpu
from labkit.machine.clock import Clock, SystemClock
from labkit.parts.devices import DevicePart
from labkit.parts.preprocessing import Preprocessor
from labkit.pipeline import Pipeline, build
from labkit.records import ROOFLINE, Calibration
from labkit.resolve import find_gpu_speeds, find_part
from labkit.runs.active_run import ActiveRun
from labkit.runs.calibrated_device import FILE, device_of, is_calibrated, with_device
from labkit.runs.check_images import check_images
from labkit.runs.check_simulated import check_simulated_gpu
from labkit.runs.launcher import TrialFailed
from labkit.runs.thresholds import (
    CALIBRATION_S,
    LOADING_S,
    MAX_EPOCH_LENGTH_RATIO,
    SHORT_EPOCH_SHARE,
)  # fmt: skip
from labkit.runs.trial import open_trial, warm_up
from labkit.settings import Mode, Settings
from labkit.steady_rate import SteadyRate, fewest_batches, steady_rate


def calibrate_run(run: ActiveRun, epoch_share: float) -> None:
    """Find the device's rate and the baseline's, and from them how many images an epoch has.

    Args:
        run: the active run.
        epoch_share: how long epochs should be, as a share of the mode's.

    Raises:
        RuntimeError: the baseline cannot run here, or the simulated GPU is too slow.
    """
    calibration = _device(run)
    run.progress.say("calibrating: how fast is the baseline here?")
    baseline, available = run.baseline, run.info.data.images
    # Only images that were looked at: calibration must not read, or evict, a whole big data set.
    a_round = baseline.num_workers * baseline.batch_size
    enough = fewest_batches(baseline.num_workers) * baseline.batch_size + a_round
    _look_at(run, min(baseline.images or enough, enough))
    usable = min(run.images_looked_at, available) - len(run.info.excluded)
    tried = with_device(baseline, calibration)
    tried = replace(
        tried, images=min(baseline.images or usable, usable), ranks=1, exchange=Settings.exchange
    )
    facts, excluded = run.baseline_facts, run.info.excluded
    try:
        trained_per_s, why_none = run.ask(
            "measure_rate", settings=tried, seconds=CALIBRATION_S, excluded=excluded
        )
        # The speeds of several simulated GPUs, and the rate of several ranks, depend on it.
        several = not facts.repeats_one_batch and any(
            settings.ranks > 1 for settings in run.remaining.values()
        )
        if run.info.tasks or several:
            loaded_per_s, why_unknown = run.ask(
                "measure_rate",
                settings=replace(tried, step="nothing"),
                seconds=LOADING_S,
                excluded=excluded,
            )
            if why_unknown and any(map(run.info.x_of, run.variants)):
                raise Skip(why_unknown)  # the devices' speeds are multiples of it
            calibration = replace(calibration, load_images_per_s=loaded_per_s)
        if facts.is_simulated and not facts.trains_nothing:
            calibration = replace(calibration, **check_simulated_gpu(run, tried))
    except (TrialFailed, Skip) as reason:
        raise run.no_baseline(reason) from reason
    rate = _of_all_ranks(trained_per_s, calibration.load_images_per_s, baseline.ranks)
    if why_none:
        run.note(f"the baseline's rate is not known: {why_none}")
    mode = replace(run.mode, epoch_s=epoch_share * run.mode.epoch_s)
    images = _epoch_images(run, mode, rate)
    _look_at(run, images)
    images = min(images, available - len(run.info.excluded))
    # All variants that run do equal work: a multiple of each one's batches.
    multiple = math.lcm(
        *(settings.batch_size * settings.ranks for settings in run.remaining.values())
    )
    images = max(images // multiple, 1) * multiple
    run.save(calibration=replace(calibration, images=images, images_per_s=rate))
    _note_short_epochs(run, mode)


def _look_at(run: ActiveRun, images: int) -> None:
    """Find unreadable images until so many readable ones, or all there are, were looked at."""
    while run.images_looked_at < min(images + len(run.info.excluded), run.info.data.images):
        check_images(run, images + len(run.info.excluded))  # others replace bad ones


def _device(run: ActiveRun) -> Calibration:
    """Return the rate of the baseline's simulated GPU, and the calibration that the run uses."""
    calibration = Calibration()
    if any(map(is_calibrated, run.remaining.values())):
        how: dict[str, Any] = {
            "ask": run.ask,
            "say": run.progress.say,
            "progress": run.progress.shown,
        }
        kept = device_of(run.baseline, run.folder.parents[1], **how)
        run.progress.say(f"{kept}, kept in {run.folder.parents[1] / FILE}")
        calibration = Calibration(
            calibrated_images_per_s=kept.device_images_per_s, calibrated=str(kept)
        )
    baseline = with_device(run.baseline, calibration)
    if run.baseline_facts.is_simulated:
        rate = find_gpu_speeds(baseline).gpu_images_per_s
        calibration = replace(calibration, device_images_per_s=rate)
    return calibration


def _of_all_ranks(
    trained_per_s: float | None, loaded_per_s: float | None, ranks: int
) -> float | None:
    """Return how many images per second the baseline's ranks train together; None: not known.

    Args:
        trained_per_s: of one rank with the workers of all.
        loaded_per_s: of the same workers without a step; None where it was not measured.
        ranks: as many devices, which share those workers.
    """
    if trained_per_s is None:
        return None
    return min(ranks * trained_per_s, loaded_per_s or math.inf) if ranks > 1 else trained_per_s


def _epoch_images(run: ActiveRun, mode: Mode, images_per_s: float | None) -> int:
    """Return how many images an epoch has: of the mode's length, with steady rates if possible."""
    baseline, available = run.baseline, run.info.data.images
    if baseline.images or not mode.epoch_s:
        return baseline.images or available
    if images_per_s is None:  # too few images for a rate
        return min(run.images_looked_at, available)
    wanted = round(images_per_s * mode.epoch_s)
    longest = max(wanted * MAX_EPOCH_LENGTH_RATIO, 1)
    least = mode.min_steps * baseline.batch_size * baseline.ranks
    for settings in run.remaining.values():
        steady = (
            fewest_batches(settings.num_workers // settings.ranks)
            * settings.batch_size
            * settings.ranks
        )
        if steady <= longest:
            least = max(least, steady)
    return min(max(least, wanted), available)


def _note_short_epochs(run: ActiveRun, mode: Mode) -> None:
    images, rate = run.info.calibration.images, run.info.calibration.images_per_s
    steps = images // (run.baseline.batch_size * run.baseline.ranks)
    epoch_s = rate and images / rate
    if steps < mode.min_steps:
        why = "as images is set" if run.baseline.images else "as there are no more images"
        run.note(f"epochs of {steps} steps, {why}: {mode.name} mode wants {mode.min_steps}")
    if mode.judged and epoch_s and epoch_s < SHORT_EPOCH_SHARE * mode.epoch_s:
        run.note(
            f"epochs of about {units.seconds(epoch_s)} where {mode.name} mode wants "
            f"{units.seconds(mode.epoch_s)}: shorter ones are noisier"
        )
    about = f", about {units.seconds(epoch_s)} each" if epoch_s else ""
    run.progress.say(f"{images} images per epoch{about}")


def measure_gpu(run: ActiveRun) -> None:
    """Save how fast the run's device trains with the model alone, or one beside a simulated GPU.

    Raises:
        RuntimeError: it could not be measured, and the speeds of a roofline depend on it.
    """
    facts, calibration = run.baseline_facts, run.info.calibration
    depends = run.info.kind == ROOFLINE and not facts.is_simulated
    is_on_cuda = find_part(DevicePart, run.baseline.device).is_cuda
    own = depends or (is_on_cuda and not facts.trains_nothing)
    name = "device_images_per_s" if own else "real_gpu_images_per_s"
    beside = calibration.load_images_per_s is not None and gpu.cuda().works
    if not (own or beside) or getattr(calibration, name) is not None:
        return
    run.progress.say("measuring this machine's GPU with the model alone")
    settings = replace(run.baseline, images=calibration.images, ranks=1, exchange=Settings.exchange)
    if not own:
        step = find_part(Preprocessor, settings.preprocessor).batch
        settings = replace(settings, device="cuda", gpu_images_per_s=None, step=step)
    try:
        rate = run.ask("gpu_rate", settings=settings)
    except (TrialFailed, Skip) as reason:
        if depends:
            raise run.no_baseline(reason) from reason
        run.note("the speed of this machine's GPU was not measured")
        run.progress.say(str(reason))  # it may name a file, and notes are shared
        return
    run.save(calibration=replace(calibration, **{name: rate}))


def measure_rate(
    settings: Settings, *, seconds: float, excluded: frozenset[int] = frozenset()
) -> SteadyRate:
    """Measure how many images per second a pipeline trains, or loads, here.

    Args:
        settings: a run's baseline's or the reference's, complete; `images` is how many to take.
        seconds: how long to measure.
        excluded: indices of unreadable images.
    """
    clock = SystemClock()
    pipeline, _ = open_trial(settings, clock, excluded)
    gc.collect()
    gc.disable()  # as in trials
    return time_arrivals(pipeline, clock, seconds)


def time_arrivals(pipeline: Pipeline, clock: Clock, seconds: float) -> SteadyRate:
    """Measure images per second over whole rounds of workers, in several epochs if they are short.

    Every step is waited for, whatever `sync_every` says: the rate is the loader's.
    """
    device, settings = pipeline.device, pipeline.settings
    fewest, a_round = fewest_batches(settings.num_workers), max(settings.num_workers, 1)
    epochs: list[tuple[list[float], int]] = []
    counted_s, began_s = 0.0, clock.now()
    # Very short epochs leave many steps out, and each starts its workers anew: the measurement then
    # ends after twice the time.
    while counted_s < seconds and (not epochs or clock.now() - began_s < 2 * seconds):
        arrivals_s: list[float] = []
        batches = pipeline.batches(pipeline.loader, device)
        for batch in batches:
            arrivals_s.append(clock.now())
            done = len(arrivals_s)
            if done >= fewest and done % a_round == 0:
                if counted_s + arrivals_s[-1] - arrivals_s[a_round - 1] >= seconds:
                    break
            loss = pipeline.forward(batch)
            if pipeline.step.backward is not None:
                pipeline.step.backward(loss)
            device.synchronize()
        del batches  # stops the workers before the next measurement
        pipeline.source.order.epoch += 1
        epochs.append((arrivals_s, settings.batch_size))
        if len(arrivals_s) < fewest:
            break
        counted_s += arrivals_s[-1] - arrivals_s[a_round - 1]
    return steady_rate(epochs, settings.num_workers)


def gpu_rate(settings: Settings) -> float:
    """Measure how many images per second a real device trains with the model alone.

    Args:
        settings: complete, with `images` set.

    Returns:
        The rate with a batch that stays on the device and a host that hardly waits for it, as the
        speed of a simulated GPU.
    """
    clock = SystemClock()
    pipeline = build(replace(settings, loader="resident", prefetcher="none"), clock)
    warm_up(pipeline)
    device, step = pipeline.device, pipeline.step
    batch = device.put(pipeline.resident_batch(), pinned=False, side_stream=False)
    gc.collect()
    gc.disable()  # as in trials
    device.synchronize()
    steps, start_s = 0, clock.now()
    queued_steps = 8  # between two waits of the host for the device
    while (elapsed_s := clock.now() - start_s) < 1.0:
        for _ in range(queued_steps):
            loss = pipeline.forward(batch)
            if step.backward is not None:
                step.backward(loss)
        device.synchronize()
        steps += queued_steps
    return steps * settings.batch_size / elapsed_s
