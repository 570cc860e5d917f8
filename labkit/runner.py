"""Runner: takes a run folder from preflight to the last block.

    preflight ─ calibrate ─ block 1 ─ block 2 ─ … ─ finished
    (equal work) (how many    each variant once, the baseline twice (A1, A2),
                  images)     in random order; every trial saved as it ends

Comparing single runs in a fixed order is how the documents came by their
figures; blocks in random order with the baseline twice are how ours are made
(EVIDENCE 1).  Main trap: nothing may run beside a measurement, so trials run one
after another, each in a fresh process, and the runner sleeps meanwhile.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import asdict, replace

from labkit import units
from labkit.launcher import TrialFailed
from labkit.parts.prefetching import STEPS_SHORT
from labkit.plan import Planned, plan
from labkit.preparation import check_stand_ins, prepare, stage
from labkit.results import Run, append_trial, load_run
from labkit.trial import Cancelled, Skip, Trial, utc_now
from labkit.underway import UnderWay

FAILURES_BEFORE_DROPPED = 2


def run_to_the_end(run: UnderWay) -> Run:
    """Do everything that is missing; what is finished stays whatever happens."""
    for note in run.info["notes"]:
        run.progress.say(note)
    run.save(status="running", reason="")
    try:
        # The processes end first: they may still read what is cleaned up after them.
        with ExitStack() as places, run.launcher:
            if run.info["baseline"] in run.dropped:
                raise run.no_baseline(run.dropped[run.info["baseline"]])
            stage(run, places)
            if "calibration" not in run.info:
                prepare(run)
            else:  # resumed: the disks are new ones
                check_stand_ins(run, run.info["excluded"])
            _run_blocks(run)
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


def _run_blocks(run: UnderWay) -> None:
    """Run what is planned and not yet there."""
    calibration = run.info["calibration"]
    planned = plan(
        list(run.variants),
        run.info["baseline"],
        shuffled=run.info["shuffled"],
        blocks=run.info["blocks"],
        seed=run.info["order_seed"],
    )
    done = {
        (trial.block, trial.variant, trial.role)
        for trial in load_run(run.folder).trials
        if trial.status == "ok"
    }
    waiting = deque(p for p in planned if (p.block, p.variant, p.role) not in done)
    failures = dict.fromkeys(run.variants, 0)
    run.progress.start(total=len(planned), done=len(planned) - len(waiting))
    while waiting:
        trial = waiting.popleft()
        if trial.variant not in run.dropped:
            run.progress.next(f"block {trial.block + 1}: {trial.variant} {trial.role}".rstrip())
            try:
                _measure(run, trial, calibration)
            except Skip as reason:
                run.drop(trial, "skipped", str(reason))
            except TrialFailed as failure:
                failures[trial.variant] += 1
                if failures[trial.variant] >= FAILURES_BEFORE_DROPPED:
                    run.drop(trial, "failed", str(failure))
                else:
                    run.append(trial, "failed", str(failure))
                    run.progress.say(f"{trial.variant} failed, again later: {failure}")
                    waiting.append(trial)
                    continue
            except (Cancelled, KeyboardInterrupt):
                run.append(trial, "cancelled", "cancelled by the person")
                raise
        run.progress.advance()


def _measure(run: UnderWay, planned: Planned, calibration: dict) -> None:
    """Run one trial and append its row."""
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
    measured["labels"]["storage"] = run.info["storages"][settings.storage]["label"]
    trial = Trial.from_row({**row, **measured})
    left_out = STEPS_SHORT.get(settings.prefetcher, 0) * settings.batch_size
    expected = (settings.images - left_out) * settings.epochs
    if trial.images != expected:
        raise TrialFailed(
            f"the loader must deliver {expected} images, got {trial.images}: "
            "not the same work as the others"
        )
    append_trial(run.folder, trial)
    run.progress.rate(units.rate(trial.images / trial.time_s))
