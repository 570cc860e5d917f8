"""Run an experiment, or resume a run.

    run:    check_run ─▶ run folder ─┐
    resume: check_resumable ─────────┴▶ prepare ─▶ trials ─▶ the run as it lies on disk

The runner sleeps while a trial's process works: nothing may run beside a measurement.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from labkit.contracts import Cancelled, Skip
from labkit.records import (
    OPERATION,
    AnyTrial,
    Calibration,
)
from labkit.runs.active_run import ActiveRun, Progress, single_run_lock
from labkit.runs.check_run import check_resumable, check_run
from labkit.runs.epoch_trials import measure_epochs, prepare_epochs, run_blocks
from labkit.runs.experiment import Experiment
from labkit.runs.forecasts import say_forecast
from labkit.runs.operation_trials import run_operations
from labkit.runs.store import StoredRun, create_run, hold, load_run


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
    info, parts = check_run(experiment, mode, blocks, results, cancel)
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
    """Run the trials that a run lacks; arguments and errors as of `lab.resume`."""
    stored = load_run(folder)
    parts = check_resumable(stored)
    with hold(stored.folder):
        stored = load_run(folder)  # as the process that had it last left it
        active = ActiveRun(
            stored.folder, stored.info, parts=parts, cancel=cancel, progress=progress
        )
        return _complete(active, list(stored.trials))


@contextmanager
def open_trials(
    experiment: Experiment, results: Path | str, *, progress: bool
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Prepare a run whose trials the caller chooses, one after the other; no row is kept.

    Args:
        experiment: what may be measured; its baseline sets the number of images.
        results: folder that takes the run.
        progress: show lines.

    Yields:
        A function that runs a trial of a variant, by its label, and returns fields of `Trial`.  It
        raises Skip or TrialFailed where the variant does not work here.

    Raises:
        ValueError: settings or data that cannot work.
        RuntimeError: the baseline cannot run here, or another run is in progress.
    """
    with single_run_lock():
        info, parts = check_run(experiment, "quick", None, results)
        folder = create_run(Path(results), info)
        with hold(folder):
            run = ActiveRun(folder, info, parts=parts, cancel=None, progress=progress)

            def measure(label: str) -> dict[str, Any]:
                if label in run.dropped:
                    raise Skip(run.dropped[label])
                return measure_epochs(run, label)

            with ExitStack() as cleanup, run.launcher:
                run.check_baselines()
                prepare_epochs(run, cleanup)
                yield measure


def _complete(run: ActiveRun, trials: list[AnyTrial]) -> StoredRun:
    """Do everything that is missing; finished rows stay whatever happens.

    Args:
        run: the active run.
        trials: its rows so far.
    """
    for note in run.info.notes:
        run.progress.say(note)
    # The processes end before the cleanup: they may still read what it removes.
    with _save_status(run), ExitStack() as cleanup, run.launcher:
        run.check_baselines()
        is_new = run.info.calibration is None
        times_operations = run.info.kind == OPERATION
        if times_operations:  # there is nothing to prepare: who times a group also checks it
            run.save(calibration=Calibration())
        else:
            prepare_epochs(run, cleanup)
        if is_new:
            say_forecast(run)
        measure = run_operations if times_operations else run_blocks
        measure(run, trials)
    return load_run(run.folder)


@contextmanager
def _save_status(run: ActiveRun) -> Iterator[None]:
    """Save how a run ends: finished, cancelled, or failed with the reason."""
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
