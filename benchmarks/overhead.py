"""What the measuring costs: a bare loop against `timing.time_epoch`, and a trial's start.

Both loops run the same loader in one process, turn about, so that drift hits
them alike; the ratio is the result.  Exits with 1 where a limit is missed.

    python -m benchmarks.overhead [DATA]
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from labkit import machine, units
from labkit.launcher import Launcher
from labkit.pipeline import build
from labkit.settings import MODES, Settings, complete
from labkit.timing import SystemClock, time_epoch

ROUNDS = 30
OVERHEAD_LIMIT = 0.01
TRIAL_START_LIMIT_S = 0.100


def bare_epoch_s(pipeline) -> float:
    """The loop anyone would write, timed from outside."""
    start_s = time.perf_counter()
    for batch in pipeline.batches(pipeline.loader, pipeline.device):
        pipeline.forward(batch)
        pipeline.device.synchronize()
    pipeline.device.synchronize()
    return time.perf_counter() - start_s


def loop_overhead(settings: Settings) -> tuple[float, float]:
    """Ratio of the measured loop to the bare one: median of the rounds' ratios, and its spread."""
    clock = SystemClock()
    # Compute costs nothing here, so that the loop's own work is as large a share as it can be.
    pipeline = build(settings, clock, compute_s_per_image=0.0)
    bare_epoch_s(pipeline)
    ratios = []
    for number in range(ROUNDS):
        runs = {}
        for kind in ("bare", "measured") if number % 2 else ("measured", "bare"):
            if kind == "bare":
                runs[kind] = bare_epoch_s(pipeline)
            else:
                start_s = time.perf_counter()
                time_epoch(pipeline, clock)
                runs[kind] = time.perf_counter() - start_s
        ratios.append(runs["measured"] / runs["bare"])
    return statistics.median(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5


def trial_starts_s(settings: Settings, count: int = 10) -> list[float]:
    """Seconds from asking for a process to its answer, the server already running."""
    nothing = {"settings": asdict(settings), "start": 0, "stop": 0}
    starts_s = []
    with tempfile.TemporaryDirectory() as folder:
        with Launcher(Path(folder) / "worker.log", fork=machine.can_fork()) as launcher:
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
        Settings(data=data, device="emulated", num_workers=0, images=64),
        MODES["quick"],
        cores=machine.cores(),
        has_cuda=False,
        can_fork=machine.can_fork(),
    )
    first_s, *later_s = trial_starts_s(settings)
    start_s = max(later_s)
    print(f"first trial's start, with the server's: {units.seconds(first_s)}")
    print(
        f"later trials' starts: {units.seconds(min(later_s))} to {units.seconds(start_s)} "
        f"(limit {units.seconds(TRIAL_START_LIMIT_S)})"
    )
    resident = replace(settings, cache="warm")
    ratio, error = loop_overhead(resident)
    print(
        f"measured loop / bare loop: {ratio:.4f} ± {error:.4f} "
        f"(median of {ROUNDS} pairs of 64 images; limit {1 + OVERHEAD_LIMIT})"
    )
    return 0 if ratio < 1 + OVERHEAD_LIMIT and start_s < TRIAL_START_LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
