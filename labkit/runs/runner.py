"""Runner: takes a run folder from preflight to the last block.

    preflight ─ calibrate ─ block 1 ─ block 2 ─ … ─ finished
    (equal work) (how many    each variant once, the baseline twice (A1, A2),
                  images)     in random order; every trial saved as it ends

Trials run one after another, each in a fresh process, and the runner sleeps meanwhile: nothing
may run beside a measurement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from labkit import units
from labkit.analysis.equal_work import unequal_work
from labkit.analysis.forecast import forecast
from labkit.analysis.summary import second_attempt_note
from labkit.analysis.validity import a_over_a, attempt_of, baselines_of, disturbance, valid_trials
from labkit.contracts import Cancelled, Skip, Trial, utc_now
from labkit.parts.prefetching import STEPS_SHORT
from labkit.runs import operation_trials
from labkit.runs.active import ActiveRun
from labkit.runs.preparation import prepare, stage
from labkit.runs.process import TrialFailed, TrialKilled
from labkit.runs.schedule import Planned, next_trials
from labkit.runs.stand_ins import check_stand_ins
from labkit.runs.store import Run, append_trial, earlier_runs, load_run
from labkit.settings import field_kinds

FAILURES_BEFORE_DROPPED = 2
# What a row says of the medium, of what was found out when the data was put there.
MEDIUM = ("filesystem", "device", "rotational", "scheduler", "readahead_kb", "cold_reads_per_s")


class UnequalWork(RuntimeError):  # noqa: N818 - no error of the lab's: the variant is out
    """A variant did other work than it was asked to: its times compare with nothing."""


@dataclass(frozen=True)
class Kind:
    """What the trials of an experiment time."""

    prepare: Callable[[ActiveRun, ExitStack], None]
    """Does what comes before the first trial; also called when a run is resumed."""
    measure: Callable[[ActiveRun, Planned], Trial]
    """Runs one trial."""
    knobs: frozenset[str]
    """The settings that matter to them."""
    trial_s: Callable[[str], float | None]
    """Mode -> how long one takes, where that is known before a run."""


def run_to_the_end(run: ActiveRun) -> Run:
    """Do everything that is missing; what is finished stays whatever happens."""
    for note in [*run.info["notes"], *run.info.get("local_notes", ())]:
        run.progress.say(note)
    run.save(status="running", reason="")
    kind = KINDS[run.info.get("kind", EPOCHS)]
    try:
        # The processes end first: they may still read what is cleaned up after them.
        with ExitStack() as places, run.launcher:
            run.check_baselines()
            kind.prepare(run, places)
            _run_blocks(run, kind.measure)
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
    return load_run(run.folder)


def _prepare_epochs(run: ActiveRun, places: ExitStack) -> None:
    stage(run, places)
    if "calibration" not in run.info:
        prepare(run)
        calibration = run.info["calibration"]
        _say_forecast(run, epoch_s=calibration["images"] / calibration["images_per_s"])
    else:  # resumed: the disks are new ones
        check_stand_ins(run, run.info["excluded"])


def _prepare_operations(run: ActiveRun, places: ExitStack) -> None:
    """Drop the libraries that are missing here or do other work than the baseline."""
    if "calibration" in run.info:  # resumed
        return
    run.progress.say("preflight: every library's output, compared with the baseline's")
    tasks = {name: run.info["tasks"][name] for name in run.variants if name not in run.dropped}
    verdicts = run.ask("compare_operations", settings=asdict(run.baseline), tasks=tasks)
    for name, (status, reason) in verdicts.items():
        if status != "ok" and name not in run.dropped:
            run.drop(name, status, reason)
    run.save(calibration={})
    _say_forecast(run, trial_s=operation_trials.trial_s(run.mode.name))


def _say_forecast(run: ActiveRun, **known: float) -> None:
    """Print how long a judged run takes and what it can detect."""
    if not run.mode.judged:
        return
    mode, machine_id = run.mode.name, run.info["provenance"]["machine_id"]
    name = run.info["experiment"]
    earlier = earlier_runs(run.folder.parents[1], name, machine_id=machine_id, mode=mode)
    expected = forecast(
        (before.summary for before in earlier),
        mode=mode,
        blocks=run.info["blocks"],
        variants={
            name: asdict(run.variants[name]) for name in run.variants if name not in run.dropped
        },
        baselines=baselines_of(run.info).values(),
        **known,
    )
    run.progress.say(str(expected))
    run.save(forecast={**asdict(expected), "mde": expected.mde(expected.blocks)})


def _run_blocks(run: ActiveRun, measure: Callable[[ActiveRun, Planned], Trial]) -> None:
    """Run what is planned and not yet there, and what the rows then ask for."""
    trials = list(load_run(run.folder).trials)
    failures, victims = dict.fromkeys(run.variants, 0), set()
    _drop_unequal(run, trials)  # whoever was killed may not have come to it
    while waiting := deque(next_trials(run.info, trials, run.dropped)):
        done = len({(t.block, t.variant, t.role) for t in trials if t.status == "ok"})
        run.progress.start(total=done + len(waiting), done=done)
        _say_why_more(run, trials, waiting[0].block)
        while waiting:
            trial = waiting.popleft()
            if trial.variant not in run.dropped:
                name = f"{trial.variant} {trial.role}".rstrip()
                run.progress.next(f"block {trial.block + 1}: {name}")
                try:
                    trials.append(measure(run, trial))
                    append_trial(run.folder, trials[-1])
                    run.progress.rate(units.rate(trials[-1].images / trials[-1].time_s))
                    _say_rejected(run, trials)
                except Skip as reason:
                    run.drop(trial, "skipped", str(reason))
                except UnequalWork as failure:
                    run.drop(trial.variant, "failed", str(failure))
                except TrialFailed as failure:
                    failures[trial.variant] += 1
                    if isinstance(failure, TrialKilled):
                        victims.add(trial.variant)
                    if failures[trial.variant] < FAILURES_BEFORE_DROPPED:
                        run.append(trial, "failed", str(failure))
                        run.progress.say(f"{trial.variant} failed, again later: {failure}")
                        _put_off(trial, waiting)
                        continue
                    # Whoever was killed even once may be a victim: it is tried again on resume.
                    is_victim = trial.variant in victims
                    run.drop(trial if is_victim else trial.variant, "failed", str(failure))
                except (Cancelled, KeyboardInterrupt):
                    run.append(trial, "cancelled", "cancelled by the person")
                    raise
            run.progress.advance()
            _drop_unequal(run, trials)


def _say_rejected(run: ActiveRun, trials: Sequence[Trial]) -> None:
    """Print that a block will not count, while the user can do something about it."""
    *before, last = trials
    why = disturbance(last) if run.mode.judged else ""
    if why and not any(disturbance(trial) for trial in before if trial.block == last.block):
        run.progress.say(f"block {last.block + 1} does not count: {why}")


def _put_off(trial: Planned, waiting: deque[Planned]) -> None:
    """Run a trial again at the end of its own block: later, the machine may be another."""
    rest = [i for i, other in enumerate(waiting) if other.block == trial.block]
    waiting.insert(rest[-1] + 1 if rest else 0, trial)


def _drop_unequal(run: ActiveRun, trials: Sequence[Trial]) -> None:
    """Take out what trained on something else than the baseline."""
    for variant, reason in unequal_work(run.info, trials).items():
        if variant not in run.dropped:
            run.drop(variant, "failed", reason)


def _say_why_more(run: ActiveRun, trials: Sequence[Trial], block: int) -> None:
    """Print why there are blocks beyond the planned ones."""
    n = run.info["blocks"]
    if attempt_of(block, n):
        run.note(second_attempt_note(a_over_a(valid_trials(run.info, trials, attempt=0))))
        run.save()
    elif block >= n:
        rejected = valid_trials(run.info, trials, attempt=0).rejected
        run.progress.say(
            f"{units.count(len(rejected), 'block')} rejected, run again: "
            f"{next(reversed(rejected.values()))}"
        )


def _measure_epochs(run: ActiveRun, planned: Planned) -> Trial:
    calibration = run.info["calibration"]
    settings = replace(run.variants[planned.variant], images=calibration["images"])
    started_utc = utc_now()
    measured = run.ask(
        "measure",
        settings=asdict(settings),
        excluded=run.info["excluded"],
        compute_s_per_image=calibration["compute_s_per_image"],
    )
    row = run.row(planned, status="ok", settings=asdict(settings), started_utc=started_utc)
    # What a probe found the medium to be outranks what it is called.
    facts = run.info["storages"][settings.storage]
    measured["labels"]["storage"] = facts["label"]
    medium = {name: facts[name] for name in MEDIUM}
    trial = Trial.from_row({**row, **measured, "medium": medium})
    left_out = STEPS_SHORT.get(settings.prefetcher, 0) * settings.batch_size
    expected = (settings.images - left_out) * settings.epochs
    if trial.images != expected:
        raise UnequalWork(
            f"the loader must deliver {expected} images, got {trial.images}: "
            "not the same work as the others"
        )
    return trial


def _measure_operation(run: ActiveRun, planned: Planned) -> Trial:
    task, started_utc = run.info["tasks"][planned.variant], utc_now()
    measured = run.ask(
        "time_operation",
        settings=asdict(run.variants[planned.variant]),
        task=task,
        seconds=operation_trials.TRIAL_S[run.mode.name],
    )
    settings = {**run.info["variants"][planned.variant], **task}
    row = run.row(planned, status="ok", settings=settings, started_utc=started_utc)
    return Trial.from_row({**row, **measured})


EPOCHS = "epochs"
KINDS: dict[str, Kind] = {
    EPOCHS: Kind(
        prepare=_prepare_epochs,
        measure=_measure_epochs,
        knobs=frozenset(field_kinds()),
        trial_s=lambda mode: None,
    ),
    "operation": Kind(
        prepare=_prepare_operations,
        measure=_measure_operation,
        knobs=frozenset({"data", "seed"}),
        trial_s=operation_trials.trial_s,
    ),
}
