"""Check what a run is asked for, before a folder is made or anything is started.

    check_run:        an experiment, its mode and data ─▶ what is known at the start of the run
    check_resumable:  a stored run, this machine and its data

`labkit.resolve` refuses the settings of one variant that do not fit together; here variants are
compared with each other and with the data.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from labkit import pipeline
from labkit.contracts import Reader, Skip
from labkit.machine import gpu, hardware
from labkit.machine.clock import utc_now
from labkit.parts.devices import DevicePart
from labkit.parts.packing.folder import UNFINISHED
from labkit.parts.packing.manifest import MANIFEST
from labkit.parts.storage.slow_disk import why_not_throttled
from labkit.photos.make import make_photos
from labkit.records import (
    KINDS,
    OPERATION,
    UNKNOWN,
    Data,
    Provenance,
    RunInfo,
    effective_settings,
)
from labkit.resolve import (
    Resolved,
    complete_here,
    find_part,
    gather_facts,
    own_parts,
    reopen_data,
    resolve,
)
from labkit.runs.active_run import NO_BASELINE
from labkit.runs.calibrated_device import is_calibrated, read_devices
from labkit.runs.experiment import Experiment
from labkit.runs.schedule import check_blocks
from labkit.runs.store import StoredRun
from labkit.settings import CORRECTED, MODES, SAME_FOR_ALL, Settings, pick


class BaselineSkipped(RuntimeError):  # noqa: N818 - no error: it is shown as skipped
    """No baseline can run on this machine, and so nothing of the experiment."""


def check_run(
    experiment: Experiment,
    mode: str,
    blocks: int | None,
    results: Path | str = "results",
    cancel: threading.Event | None = None,
) -> tuple[RunInfo, dict[str, Resolved]]:
    """Refuse what cannot work, before anything is made or started.

    Args:
        experiment: what to compare.
        mode: quick, document or full.
        blocks: repetitions; None: the mode's.
        results: folder that will take the run, and may hold a calibrated device.
        cancel: set by another thread to stop.

    Returns:
        What is known at the start of a run; and the parts by label, of the variants that can run
        here.

    Raises:
        ValueError: settings, data, parts or a calibrated device that cannot work, or a chosen
            variant that this mode does not measure.
        BaselineSkipped: nothing could be compared.
        OSError: the photographs that runs take where no data is named cannot be made.
        Cancelled: `cancel` was set while they were made, or data at a URL was copied.
    """
    chosen_mode = pick(MODES, mode, "mode")
    request = {**(experiment.request or {}), "mode": mode, "blocks": blocks}
    blocks = check_blocks(chosen_mode, blocks, experiment.kind)
    measured = experiment.measured(in_full=chosen_mode.judged)
    experiment.check_measured(request.get("variants", ()), mode)
    experiment = replace(experiment, variants=measured).change(complete_here)
    groups = experiment.run_fields(measured)
    baselines = [experiment.baseline, *groups.get("baselines", {}).values()]
    _check_equal_work(experiment.settings)
    parts, skipped = _resolve_all(experiment.settings, baselines)
    own_parts()  # refuses those that no other process can be sent
    base = experiment.settings[experiment.baseline]
    if base.data == Settings.data:  # nobody named any
        _make_photos_once(Path(base.data), cancel)
    reader = reopen_data(base, cancel)
    if experiment.fallback is not None and (reason := why_not_throttled(reader)):
        experiment = experiment.fallback(experiment, reason)  # the same variants on other disks
        parts, skipped = _resolve_all(experiment.settings, baselines)
    notes = (*experiment.notes, *_notes(experiment.settings))
    data = _describe_data(reader, base.data)
    _check_together(parts, data.images)
    names = effective_settings(experiment.kind)
    stored = {
        label: Settings(**{name: x for name, x in vars(settings).items() if name in names})
        for label, settings in experiment.settings.items()
    }
    if any(map(is_calibrated, stored.values())):
        read_devices(results)
    info = RunInfo(
        kind=experiment.kind,
        experiment=experiment.name,
        question=experiment.question,
        mode=mode,
        request=request,
        protocol=experiment.protocol,
        shuffled=chosen_mode.shuffled and experiment.protocol == CORRECTED,
        blocks=blocks,
        baseline=experiment.baseline,
        variants=stored,
        facts={label: gather_facts(vars(settings)) for label, settings in stored.items()},
        **groups,
        published={
            label: variant.published
            for label, variant in experiment.variants.items()
            if variant.published is not None
        },
        source=experiment.source,
        x_axis=experiment.x_axis,
        # Of the last batches: as many as the smallest has.
        compared_images=min(settings.batch_size for settings in experiment.settings.values()),
        skipped=skipped,
        status="running",
        notes=notes,
        order_seed=secrets.randbits(32),
        created_utc=utc_now(),
        data=data,
        provenance=hardware.provenance(),
    )
    return info, parts


def check_resumable(run: StoredRun) -> dict[str, Resolved]:
    """Refuse to resume a run whose new rows would not be comparable with its old ones.

    Returns:
        The parts by label, of the variants that can run here.

    Raises:
        ValueError: it came from another machine, other cores or another version, a part of it is
            not known here, or its data changed.
    """
    info = run.info
    if info.shared_from:
        raise ValueError(
            f"run must be one of this machine's to be resumed, got one from {info.shared_from}; "
            f"start one here: labkit run {info.experiment}"
        )
    variants = {label: info.check_settings(label) for label in info.variants}
    devices = [find_part(DevicePart, settings.device) for settings in variants.values()]
    simulates = any(device.is_simulated for device in devices)
    if simulates and info.schema < 3:
        raise ValueError(
            "run must have a simulated GPU that this version knows, got one whose host sleeps "
            "while it waits; start a new run"
        )
    pick(MODES, info.mode, "mode")
    pick(dict.fromkeys(KINDS), info.kind, "kind")
    if info.kind == OPERATION and any(trial.schema < 7 for trial in run.trials):
        raise ValueError(
            "run must have operations that were timed in rounds, got one of a version that timed "
            "each in a process of its own; start a new run"
        )
    parts = {}
    for label, settings in variants.items():
        with suppress(Skip):  # its row says why
            parts[label] = resolve(complete_here(settings))
    base = info.base_settings
    data_then, data_now = asdict(info.data), asdict(_describe_data(reopen_data(base), base.data))
    if any(value and value != data_now[name] for name, value in data_then.items()):
        raise ValueError(
            f"data must be what the run began with ({data_then}), got {data_now}; start a new run"
        )
    began_on, machine = info.provenance, hardware.provenance()
    is_same_place = hardware.began_here(began_on, machine)
    if not all(device.is_cpu or device.is_simulated for device in devices):
        is_same_place &= _gpu_name(began_on) == _gpu_name(machine)
    if not is_same_place:
        raise ValueError(
            f"run must be resumed on the machine, the cores and the GPU it began on "
            f"({hardware.describe(began_on)}), got {hardware.describe(machine)}; start a new run"
        )
    return parts


def _gpu_name(provenance: Provenance) -> str:
    return provenance.gpu.name if provenance.gpu else ""


def _make_photos_once(folder: Path, cancel: threading.Event | None) -> None:
    """Make photographs where there is no such folder, or a stopped run has not finished it."""
    is_stopped = (folder / UNFINISHED).is_file() and not (folder / MANIFEST).is_file()
    if is_stopped or not folder.exists():
        try:
            make_photos(folder, cancel=cancel)
        except Skip as reason:  # there is no room; nothing can run then
            raise OSError(str(reason)) from reason


def _resolve_all(
    variants: Mapping[str, Settings], baselines: Sequence[str]
) -> tuple[dict[str, Resolved], dict[str, str]]:
    """Return the parts of the variants that can run here, and why the others cannot, by label.

    Args:
        variants: label -> complete settings.
        baselines: labels; the experiment's own first.

    Raises:
        ValueError: parts that do not fit together.
        BaselineSkipped: no baseline can run here.
    """
    parts, skipped = {}, {}
    for label, settings in variants.items():
        try:
            parts[label] = resolve(settings, cuda=gpu.cuda)
        except Skip as reason:
            skipped[label] = str(reason)
    if skipped.keys() >= set(baselines):
        raise BaselineSkipped(NO_BASELINE.format(baselines[0], skipped[baselines[0]]))
    return parts, skipped


def _describe_data(reader: Reader, data: str) -> Data:
    return Data(
        folder=data,
        images=len(reader),
        bytes=int(reader.image_bytes.sum()),
        boxes=reader.boxes,
        kind=getattr(reader, "kind", "") or "the user's own images",
        data_hash=reader.data_hash if reader.has_manifest else UNKNOWN,
    )


def _check_equal_work(variants: Mapping[str, Settings]) -> None:
    """Refuse variants whose settings ask for different work, whether or not they run here."""
    for name in SAME_FOR_ALL:
        values = sorted({str(getattr(settings, name)) for settings in variants.values()})
        if len(values) > 1:
            raise ValueError(
                f"{name} must be the same for all variants, got {', '.join(values)}; "
                "make them experiments of their own"
            )


def _check_together(running: Mapping[str, Resolved], available: int) -> None:
    """Refuse variants that cannot be compared on this machine or that need too many images.

    Args:
        running: label -> parts; a variant that cannot run here must not limit the others.
        available: images there are.
    """
    real = [label for label, parts in running.items() if parts.storage.hardware.how != "modelled"]
    if 0 < len(real) < len(running):
        raise ValueError(
            f"storage must be modelled for all variants or for none, got {', '.join(real)} on "
            "real storage; a model's figures must not stand beside measured ones"
        )
    settings = [parts.settings for parts in running.values()]
    for chosen in settings:
        pipeline.choose_images(chosen, available)
    sizes = sorted({chosen.batch_size * chosen.ranks for chosen in settings})
    wanted = min((chosen.images or available for chosen in settings), default=available)
    if math.lcm(*sizes) > wanted:
        several = " × ranks" * any(chosen.ranks > 1 for chosen in settings)
        raise ValueError(
            f"batch_size{several} must have a common multiple of at most {wanted} images in all "
            f"variants, got {', '.join(map(str, sizes))}; choose sizes that divide each other"
        )


def _notes(variants: Mapping[str, Settings]) -> list[str]:
    most = max(settings.num_workers for settings in variants.values())
    if most > hardware.cores():
        return [f"num_workers {most} is more than this machine's {hardware.cores()} cores"]
    return []
