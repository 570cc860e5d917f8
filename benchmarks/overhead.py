"""What the measuring costs: a bare loop against `timing.time_epoch`, and a trial's start.

Both loops run the same loader in one process, turn about, so that drift hits
them alike; the ratio is the result.  Exits with 1 where a limit is missed.

    python -m benchmarks.overhead [DATA]
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from labkit import units
from labkit.analysis.statistics import paired_interval
from labkit.machine import hardware
from labkit.pipeline import build
from labkit.runs.process import Launcher
from labkit.runs.timing import SystemClock, time_epoch
from labkit.settings import MODES, Settings, complete

ROUNDS = 40
IMAGES = 64
FREE_STEPS = 100
OVERHEAD_LIMIT = 0.01
TRIAL_START_LIMIT_S = 0.100


def run_bare_epoch(pipeline) -> None:
    """The loop anyone would write."""
    for batch in pipeline.batches(pipeline.loader, pipeline.device):
        pipeline.forward(batch)
        pipeline.device.synchronize()
    pipeline.device.synchronize()


def compare_loops(pipeline, rounds: int) -> tuple[list[float], list[float]]:
    """Run both loops turn about; return their seconds, bare and measured, round by round."""
    clock = SystemClock()
    runs = {"bare": [], "measured": []}
    run_bare_epoch(pipeline)
    for number in range(rounds):
        for kind in sorted(runs, reverse=bool(number % 2)):
            start_s = clock.now()
            if kind == "bare":
                run_bare_epoch(pipeline)
            else:
                time_epoch(pipeline, clock)
            runs[kind].append(clock.now() - start_s)
    return runs["bare"], runs["measured"]


def trial_starts_s(settings: Settings, count: int = 10) -> list[float]:
    """Seconds from asking for a process to its answer, the server already running."""
    nothing = {"settings": asdict(settings), "start": 0, "stop": 0, "decoders": []}
    starts_s = []
    with tempfile.TemporaryDirectory() as folder:
        with Launcher(Path(folder) / "worker.log", fork=hardware.can_fork()) as launcher:
            for _ in range(count + 1):
                start_s = time.perf_counter()
                launcher.run("find_bad_images", nothing)
                starts_s.append(time.perf_counter() - start_s)
    return starts_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", default="data/photos")
    data = parser.parse_args().data
    settings = complete(
        Settings(data=data, device="emulated", num_workers=0, pin_memory=False, images=IMAGES),
        MODES["quick"],
        cores=hardware.cores(),
        has_cuda=False,
        can_fork=hardware.can_fork(),
    )
    first_s, *later_s = trial_starts_s(settings)
    start_s = max(later_s)
    print(f"first trial's start, with the server's: {units.seconds(first_s)}")
    print(
        f"later trials' starts: {units.seconds(min(later_s))} to {units.seconds(start_s)} "
        f"(limit {units.seconds(TRIAL_START_LIMIT_S)})"
    )
    # Compute costs nothing here, so that the loop's own work is as large a share as it can be.
    pipeline = build(settings, SystemClock(), compute_s_per_image=0.0)
    bare_s, measured_s = compare_loops(pipeline, ROUNDS)
    log_ratios = [math.log(measured / bare) for measured, bare in zip(measured_s, bare_s)]
    low, high = map(math.exp, paired_interval(log_ratios, alpha=0.05))
    print(
        "measured loop / bare loop on the real loader: "
        f"{math.exp(statistics.fmean(log_ratios)):.4f} [{low:.4f}, {high:.4f}], "
        f"{ROUNDS} rounds of {IMAGES} images"
    )
    # That interval is the machine's noise.  With batches that are already there, nothing else is
    # left to be noisy, and the same difference shows to a fraction of a microsecond.
    steps = IMAGES // settings.batch_size
    resident = replace(pipeline, loader=[pipeline.resident_batch()] * FREE_STEPS)
    free_bare_s, free_measured_s = compare_loops(resident, ROUNDS)
    extra_s = (statistics.median(free_measured_s) - statistics.median(free_bare_s)) / FREE_STEPS
    share = extra_s / (statistics.median(bare_s) / steps)
    print(
        f"measuring costs {units.seconds(extra_s)} a step, {100 * share:.3f} % of a step on the "
        f"real loader (limit {units.percent(OVERHEAD_LIMIT)})"
    )
    good = share < OVERHEAD_LIMIT and low < 1 + OVERHEAD_LIMIT and start_s < TRIAL_START_LIMIT_S
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
