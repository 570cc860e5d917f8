"""What measuring costs: loops with and without labkit, and the start of a trial's process.

    python -m benchmarks.overhead [--data FOLDER] [--rounds 40]

Two loops are compared: a bare one with `timing.time_epoch`, and one with steps of 2 ms with the
same under `lab.watch`.  Their ratio includes the machine's noise, so the same calls are also timed
on batches that are already there, where the difference shows to a fraction of a microsecond.
"""

import contextlib
import io
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import frame
from labkit import units
from labkit.diagnosis.watch import watch
from labkit.machine.clock import SystemClock
from labkit.pipeline import Pipeline, build
from labkit.resolve import complete_here
from labkit.runs.launcher import Launcher
from labkit.runs.timing import time_epoch
from labkit.settings import Settings

IMAGES = 64
FREE_STEPS = 500
OVERHEAD_LIMIT = 0.01  # of a step
WATCHED_STEP_S = 0.002
TRIAL_START_LIMIT_S = 0.040
TRIALS = 10

Arms = tuple[Callable[[], object], Callable[[], object]]  # bare, with labkit


def measured_loops(pipeline: Pipeline) -> Arms:
    """Return a bare loop over a pipeline and labkit's own."""

    def run_bare() -> None:
        for batch in pipeline.batches(pipeline.loader, pipeline.device):
            pipeline.forward(batch)
            pipeline.device.synchronize()

    return run_bare, partial(time_epoch, pipeline, SystemClock())


def watched_loops(batches: object, step_s: float) -> Arms:
    """Return a loop over batches and the same under a watch."""

    def run(batches: object) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            for _ in batches:
                SystemClock().spin_until(time.perf_counter() + step_s)

    return partial(run, batches), partial(run, watch(batches))


def compare(
    report: frame.Report, name: str, real: Arms, real_steps: int, free: Arms, rounds: int
) -> dict[str, list[float]]:
    """Compare bare loops with labkit's: the ratio, and the cost of a step."""
    free_bare, free_measured = free
    bare, measured = real
    taken_s = frame.in_turn(
        {
            "bare": partial(frame.timed, bare),
            "measured": partial(frame.timed, measured),
            # Nothing waits here, so CPU seconds are all of it, and other programs are left out.
            "free bare": partial(frame.timed, free_bare, time.process_time),
            "free measured": partial(frame.timed, free_measured, time.process_time),
        },
        rounds,
    )
    ratio = frame.ratio(taken_s["measured"], taken_s["bare"])
    report.limit(
        ratio.low < 1 + OVERHEAD_LIMIT,
        f"{name} / bare loop: {ratio}, {rounds} rounds of {real_steps} steps "
        f"(lower bound: at most {1 + OVERHEAD_LIMIT:g})",
    )
    differences_s = [b - a for a, b in zip(taken_s["free bare"], taken_s["free measured"])]
    extra_s = statistics.median(differences_s) / FREE_STEPS
    share = extra_s / (statistics.median(taken_s["bare"]) / real_steps)
    report.limit(
        share < OVERHEAD_LIMIT,
        f"{name} costs {units.seconds(extra_s)} a step, {100 * share:.3f} % of that step "
        f"(at most {units.limit(OVERHEAD_LIMIT)})",
    )
    return taken_s


def trial_starts_s(settings: Settings, scratch: Path) -> list[float]:
    """Time requests from asking for a process to its answer; the first also starts the server."""
    nothing = {"settings": asdict(settings), "start": 0, "stop": 0, "decoders": []}
    with Launcher(scratch / "worker.log") as launcher:
        ask = partial(launcher.run, "find_bad_images", **nothing)
        return [frame.timed(ask) for _ in range(TRIALS + 1)]


def main() -> int:
    options = frame.parser(__doc__, data=True, rounds=40).parse_args()
    report = frame.Report("What measuring costs", options)
    with frame.photographs(options.data, IMAGES) as (data, scratch):
        base = Settings(
            data=str(data), device="simulated", num_workers=0, pin_memory=False, images=IMAGES,
            gpu_images_per_s=1e9,
        )  # fmt: skip
        settings = complete_here(base)
        first_s, *later_s = trial_starts_s(settings, scratch)
        report.line(f"the first trial's start, with the server's: {units.seconds(first_s)}")
        report.limit(
            statistics.median(later_s) <= TRIAL_START_LIMIT_S,
            f"later trials' starts: median {units.seconds(statistics.median(later_s))}, up to "
            f"{units.seconds(max(later_s))} (median: at most {units.seconds(TRIAL_START_LIMIT_S)})",
        )
        # Compute costs nothing here, so that the loop's own work is as large a share as it can be.
        pipeline = build(settings, SystemClock())
        resident = replace(pipeline, loader=[pipeline.resident_batch()] * FREE_STEPS)
        loops = measured_loops(pipeline), IMAGES // settings.batch_size, measured_loops(resident)
        measured = compare(report, "time_epoch", *loops, options.rounds)
        # The same loop with a worker differs from itself by up to 6 % on two cores.
        batches = DataLoader(TensorDataset(torch.ones(FREE_STEPS, 1)))
        free = watched_loops([torch.ones(1, 1)] * FREE_STEPS, 0.0)
        loops = watched_loops(batches, WATCHED_STEP_S), FREE_STEPS, free
        watched = compare(report, "lab.watch", *loops, options.rounds)
    return report.finish(
        {"trial_starts_s": later_s, "time_epoch_s": measured, "lab.watch_s": watched}
    )


if __name__ == "__main__":
    sys.exit(main())
