"""`lab.tune` beside an exhaustive sweep of the same knobs: its choice over the sweep's fastest.

    python -m benchmarks.tuning [--data FOLDER] [--case light …] [--rounds 6] [--images N]

For each case: `lab.tune`; then every combination of the knobs that it turns.  The fastest of many
noisy measurements looks faster than it is, so tune's choice and the sweep's fastest are then
measured again, in a run of their own.  The choice may take at most 1.03 times as long, and tuning
less than two minutes.
"""

import itertools
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import labkit as lab
from benchmarks import frame
from labkit import units
from labkit.experiments import tuning
from labkit.files import bar
from labkit.machine import hardware
from labkit.resolve import complete_here
from labkit.runs.device_speed import complete_with_device
from labkit.settings import MODES, Settings

IMAGES = 1000
SWEEP_BLOCKS = 2
MOST_RATIO, MOST_S = 1.03, 120.0
# Where nothing but loading takes time, pinning has no effect: the cpu device has none.
LOADING_ALONE = {"device": "cpu", "step": "nothing", "cache": "warm"}
CASES = {
    # Small samples, no training: sending them costs as much as making them.
    "light": {**LOADING_ALONE, "preprocessor": "classification"},
    # The documents' preprocessing beside an emulated GPU.
    "heavy": {"device": "emulated", "preprocessor": "loops", "cache": "warm"},
    # Samples that are up to 40 ms late: workers that wait need no core.
    "uneven": {**LOADING_ALONE, "preprocessor": "classification", "jitter_ms": 40},
}


def sweep(default: Settings) -> dict[str, Settings]:
    """Return every combination of the values that tune may try, without the default."""
    cores = hardware.cores()
    counts = sorted({0, 1, cores, 2 * cores, default.num_workers})
    factors = (default.prefetch_factor, 2 * default.prefetch_factor)
    pinning = (True, False) if default.device != "cpu" else (default.pin_memory,)
    found = {}
    for workers, factor, kept, pinned in itertools.product(counts, factors, (False, True), pinning):
        knobs = {"num_workers": workers, "pin_memory": pinned}
        if workers:  # the others have no effect without
            knobs |= {"prefetch_factor": factor, "persistent_workers": kept}
        settings = replace(default, **knobs)
        if settings != default:
            found[", ".join(f"{name}={value}" for name, value in knobs.items())] = settings
    return found


def measure(variants: dict[str, Settings], blocks: int, results: Path) -> list:
    """Run variants, the default as the baseline; return the rows that have a time."""
    experiment = lab.Experiment(
        "tuning", question="How good is what lab.tune finds?", variants=variants,
        baseline=tuning.DEFAULT,
    )  # fmt: skip
    run = lab.run(experiment, "quick", blocks=blocks, results=results, progress=False)
    return [row for row in run.summary.rows if row.normalized_time is not None]


def compare(
    chosen: Settings, best: Settings, default: Settings, blocks: int, results: Path
) -> frame.Ratio:
    """Divide the time of tune's choice by that of the sweep's fastest, block by block."""
    # The default stays the baseline: an emulated device is as fast as suits the baseline.
    named = {"chosen": chosen, "best": best}
    others = {name: settings for name, settings in named.items() if settings != default}
    rows = measure({tuning.DEFAULT: default, **others}, blocks, results)
    ratios = {row.variant: row.ratios for row in rows[1:]}
    return frame.ratio(*(ratios.get(name, [1.0] * blocks) for name in named))


def main() -> int:
    parser = frame.parser(__doc__, data=True, rounds=6)
    parser.add_argument("--case", action="append", choices=CASES, help="all unless given")
    parser.add_argument("--images", type=int, help="per epoch, for a short try; else calibrated")
    options = parser.parse_args()
    report = frame.Report("lab.tune beside an exhaustive sweep", options)
    with frame.photographs(options.data, IMAGES) as (data, scratch):
        results = scratch / "results"
        for name in bar(options.case or list(CASES), desc="cases"):
            base = Settings(data=str(data), images=options.images, **CASES[name])
            default, tuned = complete_here(base, MODES["quick"]), []
            complete_with_device(base, results)  # once, and no part of what tune may take
            tune = partial(lab.tune, base, results=results)
            tune_s = frame.timed(lambda tune=tune, tuned=tuned: tuned.append(tune()))
            report.limit(tune_s < MOST_S, f"{name}: lab.tune took {units.seconds(tune_s)}")
            variants = {tuning.DEFAULT: default, **sweep(default)}
            rows = measure(variants, SWEEP_BLOCKS, results)
            fastest = min(rows, key=lambda row: row.normalized_time).variant
            [found] = tuned
            chosen, best = found.measured[found.label].settings, variants[fastest]
            text = f"{name}: tune chose {found.label}, the fastest of {len(rows)} is {fastest}"
            if chosen == best:
                report.limit(True, text)
                continue
            ratio = compare(chosen, best, default, options.rounds, results)
            report.limit(ratio.mean <= MOST_RATIO, f"{text}: {ratio}, at most {MOST_RATIO:g}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
