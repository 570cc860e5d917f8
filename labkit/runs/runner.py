"""Run an experiment, or resume a run.

    run:    check ─▶ run folder ─┐
    resume: check_resumable ─────┴▶ prepare: stage ─ check the work ─ calibrate ─▶ blocks

`labkit.resolve` refuses the settings of one variant that do not fit together; before a folder is
made, variants are compared here with each other and with the data.

A block has every variant once and the baseline twice (A1, A2), in random order.  Each trial has a
fresh process, and its row is saved as it ends.  The runner sleeps meanwhile: nothing may run beside
a measurement.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from labkit import pipeline, units
from labkit.analysis.equal_work import unequal_work
from labkit.analysis.validity import cores_of, disturbed_blocks
from labkit.contracts import Cancelled, Skip
from labkit.machine import gpu, hardware
from labkit.machine.clock import utc_now
from labkit.parts.devices import DevicePart
from labkit.parts.packing.manifest import read_manifest
from labkit.parts.packing.remote import download
from labkit.photos.make import make_photos
from labkit.records import UNKNOWN, Data, Provenance, RunInfo, Trial
from labkit.resolve import (
    Resolved,
    complete_here,
    find_part,
    gather_facts,
    open_data,
    open_reader,
    own_parts,
    resolve,
)
from labkit.runs.active import NO_BASELINE, ActiveRun, Progress, single_run_lock
from labkit.runs.calibrated_device import is_calibrated, read_devices
from labkit.runs.experiment import Experiment
from labkit.runs.forecasts import say_forecast
from labkit.runs.kinds import KINDS, Kind
from labkit.runs.process import TrialFailed, TrialKilled
from labkit.runs.schedule import Planned, check_blocks, next_trials
from labkit.runs.staging import why_not_throttled
from labkit.runs.store import StoredRun, create_run, hold, load_run
from labkit.settings import CORRECTED, MODES, Settings, pick

# Variants that differed in these would do different work.
SAME_FOR_ALL = ("data", "images", "subset", "seed", "epochs", "on_bad_image")
FAILURES_BEFORE_DROPPED = 2


class BaselineSkipped(RuntimeError):  # noqa: N818 - no error: it is shown as skipped
    """No baseline can run on this machine, and so nothing of the experiment."""


@single_run_lock()
def run(
    experiment: Experiment,
    mode: str = "quick",
    *,
    results: Path | str = "results",
    blocks: int | None = None,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> StoredRun:
    """Run an experiment; arguments and errors as of `lab.run`."""
    info, parts = check(experiment, mode, blocks, cancel)
    if any(map(is_calibrated, info.variants.values())):
        read_devices(results)  # a broken file is refused before there is a run
    folder = create_run(Path(results), info)
    with hold(folder):
        active = ActiveRun(folder, info, parts=parts, cancel=cancel, progress=progress)
        return _complete(active, [])


@single_run_lock()
def resume(
    folder: Path | str,
    *,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> StoredRun:
    """Run what a run lacks; arguments and errors as of `lab.resume`."""
    found = load_run(folder)
    parts = check_resumable(found)
    with hold(found.folder):
        found = load_run(folder)  # as the process that had it last left it
        active = ActiveRun(found.folder, found.info, parts=parts, cancel=cancel, progress=progress)
        return _complete(active, list(found.trials))


# --- before a folder is made ------------------------------------------------------------------


def check(
    experiment: Experiment,
    mode: str,
    blocks: int | None,
    cancel: threading.Event | None = None,
) -> tuple[RunInfo, dict[str, Resolved]]:
    """Refuse what cannot work, before anything is made or started.

    Returns:
        What is known at the start of a run; and the parts by label, of the variants that can run
        here.

    Raises:
        ValueError: settings, data or parts that cannot work.
        BaselineSkipped: nothing could be compared.
        Cancelled: `cancel` was set while data at a URL was copied to this machine.
    """
    chosen = pick(MODES, mode, "mode")
    request = {**(experiment.request or {}), "mode": mode, "blocks": blocks}
    blocks = check_blocks(chosen, blocks)
    folder = experiment.settings[experiment.baseline].data
    if folder == Settings.data and not Path(folder).exists():  # nobody named any
        make_photos(folder)
    if experiment.fallback is not None:
        baseline = experiment.settings[experiment.baseline]
        if reason := why_not_throttled(complete_here(baseline)):
            experiment = experiment.fallback(experiment, reason)
    wanted = experiment.measured(in_full=chosen.judged)
    variants = {label: complete_here(variant.settings) for label, variant in wanted.items()}
    parts, skipped = {}, {}
    for label, settings in variants.items():
        try:
            parts[label] = resolve(settings, cuda=gpu.cuda)
        except Skip as reason:
            skipped[label] = str(reason)
    groups = experiment.grouped(variants)
    if {experiment.baseline, *groups.get("baselines", {}).values()} <= skipped.keys():
        raise BaselineSkipped(NO_BASELINE.format(experiment.baseline, skipped[experiment.baseline]))
    own_parts()  # refuses those that no other process can be sent
    _check_equal_work(variants)
    download(folder, cancel=cancel)
    data = _describe_data(variants[experiment.baseline])
    _check_together(parts, data.images)
    names = pick(KINDS, experiment.kind, "kind").settings
    stored = {
        label: Settings(**{name: x for name, x in vars(settings).items() if name in names})
        for label, settings in variants.items()
    }
    info = RunInfo(
        kind=experiment.kind,
        experiment=experiment.name,
        question=experiment.question,
        mode=mode,
        request=request,
        protocol=experiment.protocol,
        shuffled=chosen.shuffled and experiment.protocol == CORRECTED,
        blocks=blocks,
        baseline=experiment.baseline,
        variants=stored,
        facts={label: gather_facts(vars(settings)) for label, settings in stored.items()},
        **groups,
        published={
            label: variant.published
            for label, variant in wanted.items()
            if variant.published is not None
        },
        singles=dict(experiment.single_effects),
        source=experiment.source,
        dial=experiment.dial,
        # Of the last batches: as many as the smallest has.
        compared_images=min(filter(None, (s.batch_size for s in variants.values())), default=None),
        skipped=skipped,
        status="running",
        notes=(*experiment.notes, *_notes(variants)),
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
        ValueError: it came from another machine or version, a part of it is not known here, or
            its data changed.
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
    pick(KINDS, info.kind, "kind")
    parts = {}
    for label, settings in variants.items():
        with suppress(Skip):  # its row says why
            parts[label] = resolve(complete_here(settings))
    began_with, data = (asdict(one) for one in (info.data, _describe_data(info.base_settings)))
    if any(value and value != data[name] for name, value in began_with.items()):
        raise ValueError(
            f"data must be what the run began with ({began_with}), got {data}; start a new run"
        )
    on_gpu = not all(device.is_cpu or device.is_simulated for device in devices)

    def where(provenance: Provenance) -> tuple:
        gpu_name = provenance.gpu.name if provenance.gpu else ""
        return provenance.machine_id, on_gpu and gpu_name

    began_on, here = info.provenance, hardware.provenance()
    if where(began_on) != where(here):
        raise ValueError(
            f"run must be resumed on the machine and the GPU it began on "
            f"({hardware.describe(began_on)}), got {hardware.describe(here)}; start a new run"
        )
    return parts


def _describe_data(settings: Settings) -> Data:
    open_reader.cache_clear()  # a notebook lives long, and its data may change
    reader = open_data(settings)
    return Data(
        folder=settings.data,
        images=len(reader),
        bytes=int(reader.image_bytes.sum()),
        boxes=reader.boxes,
        kind=read_manifest(reader.root).get("kind", "the user's own images"),
        manifest_hash=reader.data_hash if reader.has_manifest else UNKNOWN,
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


# --- the trials --------------------------------------------------------------------------------


def _complete(run: ActiveRun, trials: list[Trial]) -> StoredRun:
    """Do everything that is missing; finished rows stay whatever happens.

    Args:
        run: the active run.
        trials: its rows so far.
    """
    for note in run.info.notes:
        run.progress.say(note)
    kind = KINDS[run.info.kind]
    # The processes end before the cleanup: they may still read what it removes.
    with _status_saved(run), ExitStack() as cleanup, run.launcher:
        run.check_baselines()
        is_new = run.info.calibration is None
        kind.prepare(run, cleanup)
        if is_new:
            say_forecast(run)
        _run_blocks(run, kind, trials)
    return load_run(run.folder)


@contextmanager
def _status_saved(run: ActiveRun) -> Iterator[None]:
    run.save(status="running", reason="")
    try:
        yield
    except Cancelled:
        run.save(status="cancelled")
    except KeyboardInterrupt:
        run.save(status="cancelled")
        run.progress.say(f"cancelled; complete it with: labkit run --resume {run.folder}")
        raise
    except Exception as error:
        run.save(status="failed", reason=str(error))
        raise
    else:
        run.save(status="finished")
    finally:
        run.progress.close()


def _run_blocks(run: ActiveRun, kind: Kind, trials: list[Trial]) -> None:
    """Run the trials that the plan and the rows so far ask for."""
    failures: Counter = Counter()
    passing = set()  # skipped, or killed for lack of memory: a resumed run tries these again
    _drop_unequal(run, trials)  # a run that was killed may not have come to it
    while waiting := deque(next_trials(run.info, trials, run.dropped)):
        done = len({(t.block, t.variant, t.role) for t in trials if t.status == "ok"})
        run.progress.start(total=done + len(waiting), done=done)
        while waiting:
            trial = waiting.popleft()
            if trial.variant not in run.dropped:
                name = f"{trial.variant} {trial.role}".rstrip()
                run.progress.next(f"block {trial.block + 1}: {name}")
                try:
                    started_utc, measured = utc_now(), kind.measure(run, trial.variant)
                    trials.append(run.append(trial, "ok", started_utc=started_utc, **measured))
                    run.progress.rate(units.rate(trials[-1].images / trials[-1].time_s))
                    _say_disturbed(run, trials)
                except (Skip, TrialFailed) as failure:
                    is_skipped = isinstance(failure, Skip)
                    status = "skipped" if is_skipped else "failed"
                    # A cache state may fail once in any block.
                    key = trial if is_skipped else trial.variant
                    failures[key] += 1
                    if is_skipped or isinstance(failure, TrialKilled):
                        passing.add(trial.variant)
                    if failures[key] < FAILURES_BEFORE_DROPPED:
                        run.append(trial, status, str(failure))
                        run.progress.say(f"{trial.variant} {status}, again later: {failure}")
                        _put_off(trial, waiting)
                        continue
                    dropped = trial if trial.variant in passing else trial.variant
                    run.drop(dropped, status, str(failure))
                except (Cancelled, KeyboardInterrupt):
                    run.append(trial, "cancelled", "cancelled by the user")
                    raise
            run.progress.advance()
            _drop_unequal(run, trials)


def _say_disturbed(run: ActiveRun, trials: Sequence[Trial]) -> None:
    """Print that the block before this one was disturbed, while users can do something."""
    last = trials[-1].block
    if run.mode.judged and sum(trial.block == last for trial in trials) == 1:
        done = [trial for trial in trials if trial.block < last]
        if why := disturbed_blocks(done, cores_of(run.info)).get(last - 1):
            run.progress.say(f"block {last} was disturbed: {why}")


def _put_off(trial: Planned, waiting: deque[Planned]) -> None:
    """Run a trial again at the end of its block: what failed it may have passed by then."""
    rest = [i for i, other in enumerate(waiting) if other.block == trial.block]
    waiting.insert(rest[-1] + 1 if rest else 0, trial)


def _drop_unequal(run: ActiveRun, trials: Sequence[Trial]) -> None:
    """Drop the variants whose batches differed from the baseline's."""
    for variant, reason in unequal_work(run.info, trials).items():
        if variant not in run.dropped:
            run.drop(variant, "failed", reason)
