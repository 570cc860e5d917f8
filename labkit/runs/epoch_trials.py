"""Trials of epochs: what comes before the first, and what each one measures.

epochs:     stage ─ images ─ simulated hardware ─ equal work ─ calibration ─▶ trials time epochs
roofline:   the same ─ the device's speeds ─▶ trials time an epoch at a speed of the device

A block has every variant once and the baseline twice (A1, A2), in random order.  Each trial has a
fresh process, and its row is saved as it ends.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from labkit import units
from labkit.analysis.equal_work import unequal_work
from labkit.analysis.validity import cores_of, disturbed_blocks
from labkit.contracts import Cancelled, Skip
from labkit.machine.clock import utc_now
from labkit.records import AnyTrial
from labkit.runs.active_run import ActiveRun
from labkit.runs.calibration import calibrate_run, measure_gpu
from labkit.runs.check_equal_work import check_equal_work
from labkit.runs.check_images import check_images
from labkit.runs.check_simulated import check_storages_and_links
from labkit.runs.launcher import TrialFailed, TrialKilled
from labkit.runs.read_counts import save_read_counts
from labkit.runs.schedule import Planned, next_trials
from labkit.runs.staging import stage
from labkit.runs.thresholds import EPOCH_LENGTH_SHARES, FAILURES_BEFORE_DROPPED
from labkit.runs.trial_speeds import check_speeds, trial_settings


def prepare_epochs(run: ActiveRun, cleanup: ExitStack) -> None:
    """Do what comes before the first trial, also when a run is resumed.

    Args:
        run: the active run.
        cleanup: undoes it.
    """
    stage(run, cleanup)
    if run.info.calibration is not None:  # resumed: only the disks are new
        check_storages_and_links(run)
        measure_gpu(run)
        check_speeds(run)
        return
    check_images(run)
    check_storages_and_links(run)
    check_equal_work(run)
    calibrate_run(run, EPOCH_LENGTH_SHARES[run.info.kind])
    measure_gpu(run)
    save_read_counts(run)
    check_speeds(run)


def measure_epochs(run: ActiveRun, label: str) -> dict[str, Any]:
    """Run a trial of the variant with this label and return fields of `Trial`."""
    settings = trial_settings(run, label)
    measured = run.ask(
        "measure",
        settings=settings,
        excluded=run.info.excluded,
        last_images=run.info.compared_images,
        gpu_slowdown=run.info.gpu_slowdown_of(label),
    )
    # What a probe measured the medium to be outranks its name.
    staged = run.info.storages[settings.storage]
    hardware = [
        staged.hardware if each["kind"] == "storage" else each for each in measured["hardware"]
    ]
    return {
        **measured,
        "settings": asdict(settings),
        "hardware": hardware,
        "medium": staged.medium,
    }


def run_blocks(run: ActiveRun, trials: list[AnyTrial]) -> None:
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
                    started_utc, measured = utc_now(), measure_epochs(run, trial.variant)
                    trials.append(run.append(trial, "ok", started_utc=started_utc, **measured))
                    run.progress.rate(units.rate(trials[-1].images_per_s))
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


def _say_disturbed(run: ActiveRun, trials: Sequence[AnyTrial]) -> None:
    """Print that the block before this one was disturbed, while users can do something."""
    last = trials[-1].block
    if run.mode.judged and sum(trial.block == last for trial in trials) == 1:
        done = [trial for trial in trials if trial.block < last]
        if why := disturbed_blocks(done, cores_of(run.info)).get(last - 1):
            run.progress.say(f"block {last} was disturbed: {why}")


def _put_off(trial: Planned, waiting: deque[Planned]) -> None:
    """Move a failed trial to the end of its block: the cause of the failure may be gone by then."""
    rest = [i for i, other in enumerate(waiting) if other.block == trial.block]
    waiting.insert(rest[-1] + 1 if rest else 0, trial)


def _drop_unequal(run: ActiveRun, trials: Sequence[AnyTrial]) -> None:
    """Drop the variants whose batches differed from the baseline's."""
    for variant, reason in unequal_work(run.info, trials).items():
        if variant not in run.dropped:
            run.drop(variant, "failed", reason)
