"""Calibration: how fast the baseline is here, before anything is timed.

    the baseline's rate, with the step ─▶ how many images an epoch has, the same for all variants
    its loading rate alone             ─▶ the devices that are told as multiples of that
    reference pipeline, loading alone  ─▶ calibration.json: the device of every run here

A rate is taken over whole rounds of workers, from the last batch of the first round on; epochs with
less than three rounds have none (`labkit.steady_rate`).  The speed of an emulated device is part of
the question, so no run chooses it anew: it is measured once for a machine, its data and an input
size.
"""

from __future__ import annotations

import gc
import json
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock, Timeout

from labkit import units
from labkit.analysis.statistics import paired_interval
from labkit.contracts import Skip
from labkit.files import bar, write_whole
from labkit.machine import gpu, hardware
from labkit.machine.clock import Clock, SystemClock, utc_now
from labkit.parts.devices import DevicePart
from labkit.parts.preprocessing import Preprocessor
from labkit.pipeline import Pipeline, build
from labkit.records import ROOFLINE, Calibration
from labkit.resolve import complete_here, find_part, find_profile, open_data, original
from labkit.runs.active import ActiveRun, single_run_lock
from labkit.runs.check_images import check_images
from labkit.runs.check_simulated import check_simulated_gpu
from labkit.runs.process import Launcher, TrialFailed
from labkit.runs.store import explain_unwritable, fits
from labkit.runs.timing import open_trial, warm_up
from labkit.settings import INPUT_PX, Mode, Settings
from labkit.steady_rate import SteadyRate, fewest_batches, steady_rate

CALIBRATION_S = 1.2  # long enough to choose how many images an epoch has
LOADING_S = 2.4  # the speeds of a roofline are multiples of this rate
# Very short epochs leave many steps out, and each starts its workers anew: then it ends sooner.
LONGEST = 2  # times as long, in all
GPU_RATE_S = 1.0
STEPS_QUEUED = 8  # between two waits of the host for the device
# Times the mode's length that an epoch may have, so that variants with many workers have a steady
# rate: 3 × 8 batches of 8 images from a disk of 81 files/s take 2.4 s where quick mode has 1 s.
LONGEST_FOR_RATE = 2.5
SHORT_SHARE = 0.9  # epochs shorter than this share of the mode's are worth a note
FILE = "calibration.json"
# The documents' 39 % need a device at least 1.64 times as fast as the loader (EVIDENCE 2).
TIMES_THE_REFERENCE = 2
# The documents' original pipeline; data and input size come from the run.
REFERENCE = Settings(
    decoder="opencv", preprocessor="loops", loader="torch", num_workers=2, batch_size=8,
    cache="warm", device="cpu", step="nothing", pin_memory=False,
)  # fmt: skip
REFERENCE_IMAGES = 512  # a second's worth on most machines; epochs are repeated on faster ones
PROCESS_S = 1.0
WITHIN = 0.03  # half the 95 % interval of the mean, as a share of it
LONGEST_S = 60.0
LEAST_PROCESSES = 5  # an interval of fewer is narrow by chance too often


# --- a run --------------------------------------------------------------------------------------


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
    baseline, available = run.baseline, run.info.data.images
    # Only images that were looked at: calibration must not read, or evict, a whole big data set.
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
        # What several speeds, or several GPUs, are told by.
        several = not facts.repeats_one_batch and any(
            its.ranks > 1 for its in run.remaining.values()
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
    while run.images_looked_at < images + len(run.info.excluded):  # others replace bad ones
        check_images(run, images + len(run.info.excluded))
    images = min(images, available - len(run.info.excluded))
    # All variants that run do equal work: a multiple of each one's batches.
    multiple = math.lcm(*(its.batch_size * its.ranks for its in run.remaining.values()))
    images = max(images // multiple, 1) * multiple
    run.save(calibration=replace(calibration, images=images, images_per_s=rate))
    _note_short_epochs(run, mode)


def _device(run: ActiveRun) -> Calibration:
    """Return the rate of the baseline's emulated device, and the calibration that the run uses."""
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
        rate = 1 / find_profile(baseline).compute_s_per_image
        calibration = replace(calibration, device_images_per_s=rate)
    return calibration


def with_device(settings: Settings, calibration: Calibration) -> Settings:
    """Return a variant's settings with the speed of the calibrated device, if they use it."""
    if not is_calibrated(settings):
        return settings
    return replace(settings, device_speed=calibration.calibrated_images_per_s)


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
    if baseline.images or not mode.epoch_s or images_per_s is None:  # too few images for a rate
        return baseline.images or available
    wanted = round(images_per_s * mode.epoch_s)
    longest = max(wanted * LONGEST_FOR_RATE, 1)
    least = mode.min_steps * baseline.batch_size * baseline.ranks
    for its in run.remaining.values():
        steady = fewest_batches(its.num_workers // its.ranks) * its.batch_size * its.ranks
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
    if mode.judged and epoch_s and epoch_s < SHORT_SHARE * mode.epoch_s:
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
    name = "device_images_per_s" if own else "gpu_images_per_s"
    beside = calibration.load_images_per_s is not None and gpu.cuda().works
    if not (own or beside) or getattr(calibration, name) is not None:
        return
    run.progress.say("measuring this machine's GPU with the model alone")
    alone: dict[str, Any] = {"step_repeats": 1, "ranks": 1, "exchange": Settings.exchange}
    settings = replace(run.baseline, images=calibration.images, **alone)
    if not own:
        step = find_part(Preprocessor, settings.preprocessor).batch
        profile = Settings.profile
        settings = replace(settings, device="cuda", device_speed=None, profile=profile, step=step)
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
    while counted_s < seconds and (not epochs or clock.now() - began_s < LONGEST * seconds):
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
        speed of an emulated device.
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
    while (elapsed_s := clock.now() - start_s) < GPU_RATE_S:
        for _ in range(STEPS_QUEUED):
            loss = pipeline.forward(batch)
            if step.backward is not None:
                step.backward(loss)
        device.synchronize()
        steps += STEPS_QUEUED
    return steps * settings.batch_size / elapsed_s


# --- the calibrated device ----------------------------------------------------------------------

Ask = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class CalibratedDevice:
    """How fast the calibrated device trains, and what that was measured from."""

    machine_id: str
    manifest_hash: str
    """The data's, as of `Reader.data_hash`."""
    input_px: int
    device_images_per_s: float
    reference_images_per_s: float
    """Mean loading rate of the reference pipeline."""
    low: float
    high: float
    """The 95 % interval of that mean."""
    processes: int
    """How many measured it, each for about a second."""
    measured_utc: str
    reference: dict[str, Any]
    """Settings of the reference pipeline."""

    def __str__(self) -> str:
        half = (self.high - self.low) / 2 / self.reference_images_per_s
        advice = "close other programs and measure it again: labkit calibrate"
        why = f"; not within {units.limit(WITHIN)}, {advice}" if half > WITHIN else ""
        return (
            f"simulated GPU of {units.rate(self.device_images_per_s)} at {self.input_px} px: "
            f"{TIMES_THE_REFERENCE} × the reference's loading rate, "
            f"{units.rate(self.reference_images_per_s)} ± {units.percent(half)} "
            f"({self.processes} processes, {units.minute(self.measured_utc)})"
            f"{why}"
        )

    __repr__ = __str__


def calibrate(
    data: str = Settings.data,
    input_px: int = INPUT_PX,
    *,
    results: Path | str = "results",
    progress: bool = True,
) -> CalibratedDevice:
    """Measure again how fast the simulated GPU computes, and keep that speed for all later runs.

    It trains twice as many images per second as the documents' original pipeline loads on this
    machine, with this data and input size.

    Args:
        data: a folder of images or its URL, as in `Settings`.
        input_px: side of the model input; the documents' is 512.
        results: folder that holds the results; takes calibration.json.
        progress: show a bar.

    Raises:
        ValueError: the data cannot be read, or calibration.json is broken.
        RuntimeError: another process calibrates, or another run is in progress in this one.
        OSError: `results` cannot be written.

    Source: EVIDENCE 2, A device that stays put.
    """
    settings = Settings(data=data, input_px=input_px)
    return device_of(settings, results, progress=progress, anew=True)


def is_calibrated(settings: Settings) -> bool:
    """Return whether complete settings use the calibrated device, whose speed they do not say."""
    is_simulated = find_part(DevicePart, settings.device).is_simulated
    return is_simulated and find_profile(settings).compute_s_per_image is None


def device_of(
    settings: Settings,
    results: Path | str,
    *,
    ask: Ask | None = None,
    cancel: threading.Event | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: bool = True,
    anew: bool = False,
) -> CalibratedDevice:
    """Return the calibrated device of this machine, measuring it where none is kept.

    Args:
        settings: whose data and input_px count.
        results: folder that holds the results.
        ask: runs a job in a fresh process, as `Launcher.run`; None: one of its own.
        cancel: set by another thread to stop a launcher of its own.
        say: shows a sentence.
        progress: show a bar.
        anew: measure whatever is kept.

    Raises:
        ValueError: calibration.json is broken.
        RuntimeError: another process calibrates, another run is in progress in this one, or the
            data cannot be brought into memory here.
        Cancelled: `cancel` was set.
    """
    path, machine_id = Path(results) / FILE, hardware.provenance().machine_id
    data_hash = open_data(settings).data_hash
    key = (machine_id, data_hash, settings.input_px)
    known = read_devices(path.parent)
    kept = next((each for each in known if _key(each) == key), None)
    if kept and not anew:
        return kept
    if ask is None:
        with single_run_lock(), Launcher(Path(os.devnull), cancel) as launcher:
            return device_of(settings, results, ask=launcher.run, progress=progress, anew=anew)
    with explain_unwritable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{path}.lock", timeout=0):
            say(
                "calibrating the simulated GPU, once for this machine, data and input size: "
                "a minute at most"
            )
            if any(each.machine_id != machine_id for each in known):
                say(f"{FILE} also holds speeds of other machines, which are not used here")
            rates, reference = _reference_rates(settings, ask, progress, say)
            low, high = paired_interval(rates)
            device = CalibratedDevice(
                machine_id=machine_id,
                manifest_hash=data_hash,
                input_px=settings.input_px,
                device_images_per_s=TIMES_THE_REFERENCE * fmean(rates),
                reference_images_per_s=fmean(rates),
                low=low,
                high=high,
                processes=len(rates),
                measured_utc=utc_now(),
                reference=reference,
            )
            others = [asdict(each) for each in read_devices(path.parent) if _key(each) != key]
            with explain_unwritable(path.parent):
                write_whole(path, json.dumps([*others, asdict(device)], indent=1) + "\n")
    except Skip as reason:
        raise RuntimeError(
            f"the simulated GPU cannot be calibrated here: {reason}; or set its speed, such as "
            "--device-speed 200"
        ) from reason
    except Timeout:
        raise RuntimeError(
            f"another process calibrates the simulated GPU in {results}; wait until it is done, "
            "and start again"
        ) from None
    return device


def _reference_rates(
    settings: Settings, ask: Ask, progress: bool, say: Callable[[str], None]
) -> tuple[list[float], dict]:
    """Measure the reference's loading rate in separate processes, and return its settings."""
    as_it_is = original(settings)
    reference = replace(
        REFERENCE,
        data=as_it_is.data,
        packing=as_it_is.packing,
        stored=as_it_is.stored,
        input_px=settings.input_px,
    )
    reference = complete_here(reference)
    which = {"start": 0, "stop": REFERENCE_IMAGES, "decoders": [reference.decoder]}
    bad, _ = ask("find_bad_images", settings=reference, **which)
    excluded = [index for index, _ in bad]
    images = min(REFERENCE_IMAGES, len(open_data(settings))) - len(excluded)
    # Few images still make enough batches.
    most = images // fewest_batches(reference.num_workers)
    batch_size = max(min(reference.batch_size, most), 1)
    reference = replace(reference, images=max(images, 1), batch_size=batch_size)
    rates: list[float] = []
    began_s = time.monotonic()
    form = "{desc} {percentage:3.0f}%|{bar:15}| {elapsed} of at most 01:00{postfix}"
    with bar(
        total=LONGEST_S, desc="calibrating the simulated GPU", disable=not progress, bar_format=form
    ) as drawn:
        while len(rates) < LEAST_PROCESSES or (
            time.monotonic() - began_s < LONGEST_S and _half_share(rates) > WITHIN
        ):
            how = {"excluded": excluded, "seconds": PROCESS_S}
            rate, why_none = ask("measure_rate", settings=reference, **how)
            if why_none:
                raise Skip(why_none)
            rates.append(rate)
            drawn.n = min(time.monotonic() - began_s, LONGEST_S)
            if len(rates) > 1:
                known = f"{units.rate(fmean(rates))} ±{_half_share(rates):.1%}"
                drawn.set_postfix_str(known)
                if not progress:  # a form has a line in place of the bar
                    spent = f"{drawn.n:.0f} s of at most {LONGEST_S:.0f} s"
                    say(f"calibrating the simulated GPU: {spent}, {known}")
        drawn.n = drawn.total
        drawn.refresh()
    return rates, asdict(reference)


def _half_share(rates: list[float]) -> float:
    low, high = paired_interval(rates)
    return (high - low) / 2 / fmean(rates)


def _key(device: CalibratedDevice) -> tuple[str, str, int]:
    return device.machine_id, device.manifest_hash, device.input_px


def read_devices(results: Path | str) -> list[CalibratedDevice]:
    """Read which calibrated devices are kept, of any machine.

    Raises:
        ValueError: it is not what `device_of` writes.
    """
    path = Path(results) / FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if fits(stored, list[CalibratedDevice]):
            devices = [CalibratedDevice(**each) for each in stored]
            if all(map(_is_possible, devices)):
                return devices
    except (FileNotFoundError, NotADirectoryError):  # writing it says what is wrong
        return []
    except (OSError, ValueError, RecursionError):
        pass
    raise ValueError(
        f"{FILE} must be what `labkit calibrate` writes, got another file in {path.parent}; "
        "remove it, and the device is measured again"
    )


def _is_possible(device: CalibratedDevice) -> bool:
    rate, mean = device.device_images_per_s, device.reference_images_per_s
    ordered = -math.inf < device.low <= mean <= device.high < math.inf
    return ordered and rate == TIMES_THE_REFERENCE * mean > 0
