"""Blocks: every variant once and the baseline twice (A1, A2), in random order, block after block.

Each trial has a fresh process, and its row is saved as it ends.  The runner sleeps meanwhile:
nothing may run beside a measurement.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from labkit import units
from labkit.analysis.equal_work import unequal_work
from labkit.analysis.summary import second_attempt_note
from labkit.analysis.validity import a_over_a, attempt_of, valid_trials, why_disturbed
from labkit.contracts import Cancelled, Skip, Trial
from labkit.runs.active import ActiveRun
from labkit.runs.kinds import UnequalWork
from labkit.runs.process import TrialFailed, TrialKilled
from labkit.runs.schedule import Planned, next_trials
from labkit.runs.store import append_trial, load_run

FAILURES_BEFORE_DROPPED = 2


def run_blocks(run: ActiveRun, measure: Callable[[ActiveRun, Planned], Trial]) -> None:
    """Run the trials that the plan and the rows so far ask for."""
    trials = list(load_run(run.folder).trials)
    failures, killed = Counter(), set()
    _drop_unequal(run, trials)  # a run that was killed may not have come to it
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
