"""The calibrated device: how fast the simulated GPU of all runs on this machine computes.

    reference pipeline, loading alone ─▶ calibration.json ─▶ `with_device`: settings with that speed

The speed of a simulated device is part of the question, so no run chooses it anew: it is measured
once for a machine, as many of its cores as may be used, its data and an input size.
"""

from __future__ import annotations

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
from labkit.machine import hardware, shared_memory
from labkit.machine.clock import utc_now
from labkit.parts.devices import DevicePart
from labkit.records import Calibration
from labkit.resolve import complete_here, find_part, open_data, original
from labkit.runs.active_run import single_run_lock
from labkit.runs.failure_reasons import batch_bytes
from labkit.runs.launcher import Launcher, TrialFailed
from labkit.runs.store import explain_unwritable, fits
from labkit.runs.thresholds import (
    CALIBRATION_PROCESS_S,
    GPU_TO_LOADER_RATIO,
    MAX_CALIBRATION_S,
    MAX_HALF_INTERVAL_SHARE,
    MIN_CALIBRATION_PROCESSES,
)  # fmt: skip
from labkit.settings import INPUT_PX, Settings
from labkit.steady_rate import fewest_batches

FILE = "calibration.json"


Ask = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class CalibratedDevice:
    """The calibrated device's training rate, and the measurements behind it."""

    machine_id: str
    cores: int | None = None
    """How many cores it was measured with; None: an early version did not record it."""
    data_hash: str
    """The data's, as of `Reader.data_hash`."""
    input_px: int
    device_images_per_s: float
    reference_images_per_s: float
    """Mean loading rate of the reference pipeline."""
    low: float
    high: float
    """The 95 % interval of that mean."""
    processes: int
    """Number of processes that measured it, each for about a second."""
    measured_utc: str
    reference: dict[str, Any]
    """Settings of the reference pipeline."""

    def __str__(self) -> str:
        half = (self.high - self.low) / 2 / self.reference_images_per_s
        advice = "close other programs and measure it again: labkit calibrate"
        why = (
            f"; not within {units.limit(MAX_HALF_INTERVAL_SHARE)}, {advice}"
            if half > MAX_HALF_INTERVAL_SHARE
            else ""
        )
        return (
            f"simulated GPU of {units.rate(self.device_images_per_s)} at {self.input_px} px: "
            f"{GPU_TO_LOADER_RATIO} × the reference's loading rate, "
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
    """Return whether complete settings use the calibrated device, so that they contain no speed."""
    is_simulated = find_part(DevicePart, settings.device).is_simulated
    return is_simulated and settings.gpu_images_per_s is None


def with_device(settings: Settings, calibration: Calibration) -> Settings:
    """Return a variant's settings with the speed of the calibrated device, if they use it."""
    if not is_calibrated(settings):
        return settings
    return replace(settings, gpu_images_per_s=calibration.calibrated_images_per_s)


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
            reference cannot be measured here.
        Cancelled: `cancel` was set.
    """
    path, machine_id = Path(results) / FILE, hardware.provenance().machine_id
    cores = hardware.cores()
    data_hash = open_data(settings).data_hash
    key = (machine_id, cores, data_hash, settings.input_px)
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
                "half a minute at most"
            )
            if any(each.machine_id != machine_id for each in known):
                say(f"{FILE} also holds speeds of other machines, which are not used here")
            rates, reference = _reference_rates(settings, ask, progress, say)
            low, high = paired_interval(rates)
            device = CalibratedDevice(
                machine_id=machine_id,
                cores=cores,
                data_hash=data_hash,
                input_px=settings.input_px,
                device_images_per_s=GPU_TO_LOADER_RATIO * fmean(rates),
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
    except (Skip, TrialFailed) as reason:
        raise RuntimeError(
            f"the simulated GPU cannot be calibrated here: {reason}; or set its speed, such as "
            "--gpu-images-per-s 200"
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
    # The documents' original pipeline, with the run's data and input size.
    as_it_is = original(settings)
    reference = complete_here(
        Settings(
            data=as_it_is.data,
            packing=as_it_is.packing,
            storage_format=as_it_is.storage_format,
            input_px=settings.input_px,
            decoder="opencv",
            preprocessor="loops",
            loader="torch",
            num_workers=2,
            batch_size=8,
            cache="warm",
            device="cpu",
            step="nothing",
            pin_memory=False,
        )
    )
    wanted = 512  # a second's worth on most machines; epochs are repeated on faster ones
    which = {"start": 0, "stop": wanted, "decoders": [reference.decoder]}
    bad, _ = ask("find_bad_images", settings=reference, **which)
    excluded = [index for index, _ in bad]
    images = min(wanted, len(open_data(settings))) - len(excluded)
    # Few images still make enough batches.
    most = images // fewest_batches(reference.num_workers)
    batch_size = max(min(reference.batch_size, most), 1)
    reference = replace(reference, images=max(images, 1), batch_size=batch_size)
    shared_memory.check_room(
        batch_bytes(reference),
        workers=reference.num_workers,
        prefetch_factor=reference.prefetch_factor,
        advice="use a smaller input_px",
    )
    rates: list[float] = []
    began_s = time.monotonic()
    form = "{desc} {percentage:3.0f}%|{bar:15}| {elapsed} of at most 00:{total:02.0f}{postfix}"
    with bar(
        total=MAX_CALIBRATION_S,
        desc="calibrating the simulated GPU",
        disable=not progress,
        bar_format=form,
    ) as drawn:
        while len(rates) < MIN_CALIBRATION_PROCESSES or (
            time.monotonic() - began_s < MAX_CALIBRATION_S
            and _half_share(rates) > MAX_HALF_INTERVAL_SHARE
        ):
            how = {"excluded": excluded, "seconds": CALIBRATION_PROCESS_S}
            rate, why_none = ask("measure_rate", settings=reference, **how)
            if why_none:
                raise Skip(why_none)
            rates.append(rate)
            drawn.n = min(time.monotonic() - began_s, MAX_CALIBRATION_S)
            if len(rates) > 1:
                known = f"{units.rate(fmean(rates))} ±{_half_share(rates):.1%}"
                drawn.set_postfix_str(known)
                if not progress:  # a form has a line in place of the bar
                    spent = f"{drawn.n:.0f} s of at most {MAX_CALIBRATION_S:.0f} s"
                    say(f"calibrating the simulated GPU: {spent}, {known}")
        drawn.n = drawn.total
        drawn.refresh()
    return rates, asdict(reference)


def _half_share(rates: list[float]) -> float:
    low, high = paired_interval(rates)
    return (high - low) / 2 / fmean(rates)


def _key(device: CalibratedDevice) -> tuple[str, int | None, str, int]:
    return device.machine_id, device.cores, device.data_hash, device.input_px


def read_devices(results: Path | str) -> list[CalibratedDevice]:
    """Read which calibrated devices are kept, of any machine.

    Raises:
        ValueError: it is not what `device_of` writes.
    """
    path = Path(results) / FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if fits(stored, list[dict[str, Any]]):  # data_hash had another name once
            stored = [{"data_hash": each.pop("manifest_hash", None), **each} for each in stored]
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
    return ordered and rate == GPU_TO_LOADER_RATIO * mean > 0
