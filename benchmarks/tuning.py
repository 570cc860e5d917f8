"""lab.tune against an exhaustive sweep of the same knobs, where different settings are best.

For each case: lab.tune; then every combination of the knobs that it turns, beside the default in
the same blocks; then, as the best of many noisy numbers is too good to be true, tune's choice
against the sweep's fastest in a run of their own.  Exits with 1 where tune's choice takes more than
1.03 of the sweep's, or tune took 2 minutes.

    python -m benchmarks.tuning [DATA] [--case light …] [--images N]
        [--budget-s 105] [--sweep-blocks 2] [--final-blocks 6] [--results FOLDER]
"""

import argparse
import itertools
import math
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import labkit as lab
from data_scripts.make_photos import make_photos
from labkit import tuning, units
from labkit.analysis.statistics import ALPHA, ratio_interval
from labkit.machine import hardware
from labkit.resolve import complete_here
from labkit.settings import MODES, Settings

IMAGES = 1000
MOST_RATIO, MOST_S = 1.03, 120.0
TRIAL_S = 2.7  # two epochs of a second, and what is around them; for the ETA alone
# Where nothing but loading takes time, pinning has no effect: the cpu device has none.
LOADING_ALONE = {"device": "cpu", "step": "nothing", "cache": "warm"}
CASES = {
    "light": {**LOADING_ALONE, "preprocessor": "classification"},
    "heavy": {"device": "emulated", "preprocessor": "loops", "cache": "warm"},
    "uneven": {**LOADING_ALONE, "preprocessor": "classification", "jitter_ms": 40},
}
WHAT = {
    "light": "small samples, no training: sending them costs as much as making them",
    "heavy": "the document's preprocessing beside an emulated GPU",
    "uneven": "samples up to 40 ms late: workers that wait need no core",
}


def sweep(default: Settings) -> dict[str, Settings]:
    """List every combination of the values that tune may try, without the default."""
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


def measure(name: str, variants: dict[str, Settings], blocks: int, results: Path):
    """Run variants, the first as the baseline; give the rows of the table."""
    experiment = lab.Experiment(
        f"tuning_{name}",
        question="How good is what lab.tune finds?",
        variants=variants,
        baseline=next(iter(variants)),
    )
    return lab.summarize(lab.run(experiment, "quick", blocks=blocks, results=results)).rows


def ratio_of(
    chosen: Settings, best: Settings, default: Settings, blocks: int, results: Path
) -> float:
    """Measure tune's choice against the sweep's fastest, block by block.

    The default stays the baseline: an emulated device is as fast as suits the baseline.
    """
    if chosen == best:
        say("  the same settings: nothing to compare")
        return 1.0
    named = {"tune's": chosen, "sweep's": best}
    rivals = {label: settings for label, settings in named.items() if settings != default}
    rows = measure("final", {tuning.DEFAULT: default, **rivals}, blocks, results)
    taken = {row.variant: row.ratios for row in rows[1:]}
    as_default = [1.0] * blocks
    logs = [
        math.log(tunes / sweeps)
        for tunes, sweeps in zip(*(taken.get(label, as_default) for label in named), strict=True)
    ]
    low, high = ratio_interval(logs, ALPHA)
    ratio = math.exp(statistics.fmean(logs))
    say(f"  tune's / sweep's: {units.normalized(ratio)} {units.interval(low, high)}")
    return ratio


def run_case(name: str, base: Settings, options: argparse.Namespace, results: Path) -> bool:
    """Tune, sweep and compare; say whether the targets are met."""
    default = complete_here(base, MODES["quick"])
    start_s = time.monotonic()
    tuned = lab.tune(base, results=results, budget_s=options.budget_s)
    tune_s = time.monotonic() - start_s
    say(f"  lab.tune took {units.seconds(tune_s)}:\n{tuned}")
    chosen = tuned.measured[tuned.label].settings
    variants = {tuning.DEFAULT: default, **sweep(default)}
    rows = [
        row
        for row in measure("sweep", variants, options.sweep_blocks, results)
        if row.normalized_time is not None
    ]
    fastest = min(rows, key=lambda row: row.normalized_time)
    time_of_default = units.normalized(fastest.normalized_time)
    say(f"  sweep of {len(rows)}: {fastest.variant} took {time_of_default} of the default's time")
    best = variants[fastest.variant]
    ratio = ratio_of(chosen, best, default, options.final_blocks, results)
    met = ratio <= MOST_RATIO and tune_s < MOST_S
    targets = f"targets {MOST_RATIO:g} and {MOST_S:.0f} s"
    took = f"{units.normalized(ratio)} in {units.seconds(tune_s)}"
    say(f"{'met   ' if met else 'MISSED'} {name}: {took}, {targets}")
    return met


def say(line: str) -> None:
    print(line, flush=True)


def expected_s(base: Settings, options: argparse.Namespace) -> float:
    """Say about how long a case takes."""
    variants = len(sweep(complete_here(base, MODES["quick"]))) + 2
    return options.budget_s + TRIAL_S * (variants * options.sweep_blocks + 4 * options.final_blocks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", help=f"folder of .jpg files; else {IMAGES} are made")
    parser.add_argument("--case", action="append", choices=CASES, help="all unless given")
    parser.add_argument("--images", type=int, help="per epoch, for a quick try; else calibrated")
    parser.add_argument("--budget-s", type=float, default=tuning.BUDGET_S)
    parser.add_argument("--sweep-blocks", type=int, default=2)
    parser.add_argument("--final-blocks", type=int, default=6)
    parser.add_argument("--results", help="folder that keeps the runs; else they are removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = options.data or str(Path(folder) / "photos")
        if options.data is None:
            make_photos(data, IMAGES)
        results = Path(options.results or folder) / "results"
        bases = {
            name: Settings(data=data, images=options.images, **CASES[name])
            for name in options.case or CASES
        }
        met = []
        for name, base in bases.items():
            left_s = sum(expected_s(each, options) for each in [*bases.values()][len(met) :])
            which = f"case {len(met) + 1} of {len(bases)}, {name}"
            say(f"{which}: {WHAT[name]}; about {units.seconds(left_s)} left")
            met.append(run_case(name, base, options, results))
    say(f"{sum(met)} of {len(met)} cases met")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
