"""Kinds of experiments: what comes before their first trial, and what a trial measures.

epochs:     stage ─ images ─ stand-ins ─ equal work ─ calibration ─▶ trials time epochs
roofline:   the same ─ the device's speeds ─▶ trials time an epoch at a speed of the device
operation:  equal work ─▶ trials time one operation
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit.analysis.forecast import Forecast, forecast
from labkit.contracts import Skip
from labkit.machine import gpu, hardware
from labkit.machine.clock import utc_now
from labkit.parts.devices import PROFILES, DevicePart
from labkit.parts.preprocessing import Preprocessor
from labkit.records import (
    EPOCHS,
    OPERATION,
    OPERATION_SETTINGS,
    ROOFLINE,
    Calibration,
    Cost,
    StagedStorage,
    Trial,
)
from labkit.resolve import Resolved, find_part
from labkit.runs import operation_trials
from labkit.runs.active import ActiveRun
from labkit.runs.calibration import calibrate_run, with_device
from labkit.runs.checks import (
    check_emulator,
    check_images,
    check_stand_ins,
    check_work,
    drop_failed,
    skip,
)
from labkit.runs.packs import ensure_pack
from labkit.runs.process import TrialFailed
from labkit.runs.reads import save_read_counts
from labkit.runs.schedule import Planned
from labkit.runs.staging import staged
from labkit.runs.store import earlier_runs
from labkit.settings import Settings, field_kinds

# Facts of staging that every row repeats.
MEDIUM = ("filesystem", "device", "rotational", "cold_reads_per_s")


@dataclass(frozen=True)
class Kind:
    """What the trials of an experiment time."""

    prepare: Callable[[ActiveRun, ExitStack], None]
    """Does what comes before the first trial, also when a run is resumed; the stack undoes it."""
    measure: Callable[[ActiveRun, Planned], Trial]
    """Runs one trial."""
    settings: frozenset[str] = frozenset(field_kinds())
    """Names of the settings that have an effect."""
    trial_s: Mapping[str, float] = field(default_factory=dict)
    """Mode -> seconds of a trial, where they are known before a run."""
    epoch_share: float = 1.0
    """How long epochs should be, as a share of the mode's."""


def _prepare_epochs(run: ActiveRun, cleanup: ExitStack) -> None:
    _stage(run, cleanup)
    if run.info.calibration is not None:  # resumed: only the disks are new
        check_stand_ins(run)
        _measure_gpu(run)
        _check_speeds(run)
        return
    check_images(run)
    check_stand_ins(run)
    check_work(run)
    calibrate_run(run, KINDS[run.info.kind].epoch_share)
    _measure_gpu(run)
    save_read_counts(run)
    _check_speeds(run)
    _say_forecast(run)


def _check_speeds(run: ActiveRun) -> None:
    """Leave out the speeds that the device cannot have here."""
    groups: dict[float, list[str]] = {}
    for label in run.remaining:
        if x := run.info.x_of(label):
            groups.setdefault(x, []).append(label)
    if groups and not run.baseline_facts.is_simulated:
        _slow_down(run, groups)
        return
    for x in sorted(groups, reverse=True):
        try:
            check_emulator(run, _settings_of(run, groups[x][0]))
            return  # the slower ones are easier
        except Skip as reason:
            skip(run, groups[x], reason)


def _slow_down(run: ActiveRun, groups: Mapping[float, Sequence[str]]) -> None:
    """Let a real device train on each batch several times, so that it comes close to each x."""
    fastest = run.info.calibration.device_images_per_s / run.info.calibration.load_images_per_s
    near: dict[int, list[float]] = {}  # times -> the x that it is the nearest to
    for x in groups:
        near.setdefault(round(fastest / x), []).append(x)
    chosen = {
        min(found, key=lambda x: abs(math.log(fastest / times / x))): times
        for times, found in near.items()
        if times > 1
    }
    for x, labels in groups.items():
        if x not in chosen:
            why = f"not reachable: this GPU trains {fastest:.2g} × as fast as the baseline loads"
            if x < fastest:
                why = "no closer speed: each batch can only be trained on a whole number of times"
            skip(run, labels[::-1], why)  # the baseline last: without it the others have no reason
    slower = {
        label: replace(run.variants[label], step_repeats=times)
        for x, times in chosen.items()
        for label in groups[x]
    }
    run.save(variants={**run.variants, **slower})


def _measure_gpu(run: ActiveRun) -> None:
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


def _prepare_operations(run: ActiveRun, cleanup: ExitStack) -> None:
    if run.info.calibration is not None:  # resumed
        return
    run.progress.say("checks: every library's output, compared with the baseline's")
    tasks = {label: run.info.tasks[label] for label in run.remaining}
    drop_failed(run, run.ask("compare_operations", settings=run.baseline, tasks=tasks))
    run.save(calibration=Calibration())
    _say_forecast(run)


def _stage(run: ActiveRun, cleanup: ExitStack) -> None:
    """Pack the data and copy it to every medium; drop the variants where that is impossible."""
    how: dict[str, Any] = {
        "say": run.progress.say,
        "cancel": run.cancel,
        "progress": run.progress.shown,
    }
    storages: dict[str, StagedStorage] = {}
    costs = dict(run.info.costs)
    for labels in _grouped(run, lambda parts: parts.folder):
        settings = run.variants[labels[0]]
        try:
            made = ensure_pack(settings, **how)
        except Skip as reason:
            skip(run, labels, reason)
            continue
        if made is not None:
            recorded = {name: made[name] for name in ("bytes", "source_bytes", "pack_s")}
            costs |= dict.fromkeys(labels, Cost(**recorded))
    on_medium = _grouped(run, lambda parts: (parts.settings.storage, parts.folder))
    for labels in on_medium:
        parts = run.parts(labels[0])
        settings = parts.settings
        others = [run.parts(other[0]) for other in on_medium if other is not labels]
        others = [other for other in others if other.settings.storage == settings.storage]
        try:
            facts = StagedStorage(**cleanup.enter_context(staged(parts, **how, others=others)))
        except Skip as reason:
            skip(run, labels, reason)
            continue
        if facts.remark:
            run.note(facts.remark)
        storages.setdefault(settings.storage, facts)
        if parts.storage.hardware.how == "simulated" and facts.copied_bytes is not None:
            copied = Cost(bytes=facts.copied_bytes)
            for label in labels:  # a pack's own bytes leave out its boxes and its manifest
                costs[label] = replace(costs.get(label, copied), copy_s=facts.copied_s)
    run.save(storages=storages, costs=costs)


def _grouped(run: ActiveRun, place: Callable[[Resolved], Hashable]) -> list[list[str]]:
    """Group the labels of the remaining variants by the place of their data."""
    found: dict[Hashable, list[str]] = {}
    for label in run.remaining:
        try:
            found.setdefault(place(run.parts(label)), []).append(label)
        except Skip as reason:  # a resumed run, whose disk is gone
            skip(run, [label], reason)
    return list(found.values())


def _say_forecast(run: ActiveRun) -> None:
    """Print how long a run with verdicts takes and what it can detect."""
    if not run.mode.judged:
        return
    images, rate = run.info.calibration.images, run.info.calibration.images_per_s
    expected = expect(
        run.folder.parents[1],
        run.info.experiment,
        kind=run.info.kind,
        mode=run.mode.name,
        blocks=run.info.blocks,
        variants=run.remaining,
        baselines=run.info.baseline_by_group.values(),
        facts={label: run.info.facts_of(label) for label in run.variants},
        epoch_s=images and rate and images / rate,
    )
    run.progress.say(str(expected))


def expect(results: Path | str, experiment: str, *, kind: str, mode: str, **known: Any) -> Forecast:
    """Forecast a run from the earlier ones of this machine.

    Args:
        results: folder with earlier runs.
        experiment: its name.
        kind: of its trials, a key of `KINDS`.
        mode: quick, document or full.
        **known: the other arguments of `analysis.forecast.forecast`.
    """
    machine_id = hardware.provenance().machine_id
    earlier = earlier_runs(results, experiment, machine_id=machine_id, mode=mode)
    summaries = (run.summary for run in earlier)
    known |= {"trial_s": KINDS[kind].trial_s.get(mode), "epoch_share": KINDS[kind].epoch_share}
    return forecast(summaries, mode=mode, **known)


def _settings_of(run: ActiveRun, label: str) -> Settings:
    """Return what a trial of epochs gets: the images of an epoch and the device's speed, too."""
    settings = with_device(run.variants[label], run.info.calibration)
    if (x := run.info.x_of(label)) and run.info.facts_of(label).is_simulated:
        device_speed = x * run.info.calibration.load_images_per_s
        has_its_own = PROFILES[settings.profile].compute_s_per_image is not None
        profile = Settings.profile if has_its_own else settings.profile
        settings = replace(settings, profile=profile, device_speed=device_speed)
    if settings.device_speed is not None:
        device_speed = _at_batch_size(settings, run.baseline.batch_size)
        settings = replace(settings, device_speed=device_speed)
    return replace(settings, images=run.info.calibration.images)


def _at_batch_size(settings: Settings, given_for: int) -> float:
    """Return the speed of a variant's device, images/s, from that in batches of another size."""
    if settings.batch_size == given_for:
        return settings.device_speed
    profile = replace(
        PROFILES[settings.profile],
        compute_s_per_image=1 / settings.device_speed,
        batch_size=given_for,
    )
    return settings.batch_size / profile.step_s(settings.batch_size)


def _measure_epochs(run: ActiveRun, planned: Planned) -> Trial:
    settings = _settings_of(run, planned.variant)
    started_utc = utc_now()
    measured = run.ask(
        "measure",
        settings=settings,
        excluded=run.info.excluded,
        last_images=run.info.compared_images,
    )
    row = run.row(planned, status="ok", settings=asdict(settings), started_utc=started_utc)
    # What a probe measured the medium to be outranks its name.
    facts = run.info.storages[settings.storage]
    measured["hardware"] = [
        facts.hardware if hardware["kind"] == "storage" else hardware
        for hardware in measured["hardware"]
    ]
    medium = {name: getattr(facts, name) for name in MEDIUM}
    return Trial.from_row({**row, **measured, "medium": medium})


def _measure_operation(run: ActiveRun, planned: Planned) -> Trial:
    task, started_utc = run.info.tasks[planned.variant], utc_now()
    measured = run.ask(
        "time_operation",
        settings=run.variants[planned.variant],
        task=task,
        seconds=operation_trials.TRIAL_S[run.mode.name],
    )
    settings = {**run.info.settings_of(planned.variant), **task}
    row = run.row(planned, status="ok", settings=settings, started_utc=started_utc)
    return Trial.from_row({**row, **measured})


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
