"""Run an experiment, resume a run, and forecast how long one takes.

    run:    check ─▶ run folder ─┐
    resume: check_resumable ─────┴▶ prepare: stage ─ check the work ─ calibrate ─▶ blocks

A block has every variant once and the baseline twice (A1, A2), in random order.  Each trial has a
fresh process, and its row is saved as it ends.  The runner sleeps meanwhile: nothing may run beside
a measurement.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from labkit import units
from labkit.analysis.equal_work import unequal_work
from labkit.analysis.forecast import Forecast
from labkit.analysis.summary import second_attempt_note
from labkit.analysis.validity import a_over_a, attempt_of, valid_trials, why_disturbed
from labkit.contracts import Cancelled, Skip, Trial
from labkit.runs.active import ActiveRun, Progress, single_run_lock
from labkit.runs.experiment import EPOCHS, Experiment
from labkit.runs.kinds import KINDS, UnequalWork, expect
from labkit.runs.preconditions import check, check_resumable
from labkit.runs.process import TrialFailed, TrialKilled
from labkit.runs.schedule import Planned, check_blocks, next_trials
from labkit.runs.store import StoredRun, append_trial, create_run, hold, load_run
from labkit.settings import MODES, pick

FAILURES_BEFORE_DROPPED = 2


def forecast(
    experiment: Experiment,
    mode: str = "full",
    *,
    blocks: int | None = None,
    results: Path | str = "results",
) -> Forecast:
    """Forecast how long a run takes and the smallest effect that it can detect.

    Args:
        experiment: what would be compared.
        mode: quick, document or full.
        blocks: repetitions; unset: the mode's.
        results: folder with earlier runs, whose noise is taken.

    Returns:
        Shows itself as a sentence.
    """
    chosen = pick(MODES, mode, "mode")
    wanted = {**experiment.variants, **(experiment.in_full if chosen.judged else {})}
    return expect(
        results,
        experiment.name,
        kind=experiment.kind,
        mode=mode,
        blocks=check_blocks(chosen, blocks),
        variants={label: asdict(settings) for label, settings in wanted.items()},
        baselines=experiment.grouped(wanted).get("baselines", {"": experiment.baseline}).values(),
    )


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
    info = check(experiment, mode, blocks, cancel)
    folder = create_run(Path(results), info)
    with hold(folder):
        return _complete(ActiveRun(folder, info, cancel=cancel, progress=progress))


@single_run_lock()
def resume(
    folder: Path | str,
    *,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> StoredRun:
    """Run what a run lacks; arguments and errors as of `lab.resume`."""
    found = load_run(folder)
    check_resumable(found)
    with hold(found.folder):
        info = load_run(folder).info  # as the process that had it last left it
        return _complete(ActiveRun(found.folder, info, cancel=cancel, progress=progress))


def _complete(run: ActiveRun) -> StoredRun:
    """Do everything that is missing; finished rows stay whatever happens."""
    for note in [*run.info["notes"], *run.info.get("local_notes", ())]:
        run.progress.say(note)
    kind = KINDS[run.info.get("kind", EPOCHS)]
    # The processes end before the cleanup: they may still read what it removes.
    with _status_saved(run), ExitStack() as cleanup, run.launcher:
        run.check_baselines()
        kind.prepare(run, cleanup)
        _run_blocks(run, kind.measure)
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


def _run_blocks(run: ActiveRun, measure: Callable[[ActiveRun, Planned], Trial]) -> None:
    """Run the trials that the plan and the rows so far ask for."""
    trials = list(load_run(run.folder).trials)
    failures, killed = Counter(), set()
    _drop_unequal(run, trials)  # a run that was killed may not have come to it
    while waiting := deque(next_trials(run.info, trials, run.dropped)):
        done = len({(t.block, t.variant, t.role) for t in trials if t.status == "ok"})
        run.progress.start(total=done + len(waiting), done=done)
        if attempt_of(waiting[0].block, run.info["blocks"]):
            run.note(second_attempt_note(a_over_a(valid_trials(run.info, trials, attempt=0))))
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
                        killed.add(trial.variant)
                    if failures[trial.variant] < FAILURES_BEFORE_DROPPED:
                        run.append(trial, "failed", str(failure))
                        run.progress.say(f"{trial.variant} failed, again later: {failure}")
                        _put_off(trial, waiting)
                        continue
                    # It may have been killed for lack of memory: a resumed run tries it again.
                    dropped = trial if trial.variant in killed else trial.variant
                    run.drop(dropped, "failed", str(failure))
                except (Cancelled, KeyboardInterrupt):
                    run.append(trial, "cancelled", "cancelled by the user")
                    raise
            run.progress.advance()
            _drop_unequal(run, trials)


def _say_rejected(run: ActiveRun, trials: Sequence[Trial]) -> None:
    """Print that a block will not count, while the user can do something about it."""
    *before, last = trials
    why = why_disturbed(last) if run.mode.judged else ""
    if why and not any(why_disturbed(trial) for trial in before if trial.block == last.block):
        run.progress.say(f"block {last.block + 1} does not count: {why}")


def _put_off(trial: Planned, waiting: deque[Planned]) -> None:
    """Run a trial again at the end of its block: what failed it may have passed by then."""
    rest = [i for i, other in enumerate(waiting) if other.block == trial.block]
    waiting.insert(rest[-1] + 1 if rest else 0, trial)


def _drop_unequal(run: ActiveRun, trials: Sequence[Trial]) -> None:
    """Drop the variants whose batches differed from the baseline's."""
    for variant, reason in unequal_work(run.info, trials).items():
        if variant not in run.dropped:
            run.drop(variant, "failed", reason)
