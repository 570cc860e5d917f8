"""Whether the same run gives the same answer again, with one calibrated device.

    python -m benchmarks.repeat [--data FOLDER] [--times 8] [--experiment preprocessing …]

Each experiment runs some times in quick mode, the experiments in turn, and once in full mode with
the same variants.  A run's 95 % intervals promise how far its figures may be from those of other
runs, and a mode must not change what is measured.  The promise is kept if

    the interval of one run holds the mean of all others, in at least 85 % of (variant, run) pairs
    the spread between runs is at most 1.5 times what the intervals stand for
    the mean of the quick runs is within 5 % of the full run's, for 80 % of the variants
    no variant is faster in one mode and slower in the other, with intervals that exclude 1

Source: EVIDENCE 2, "A device that stays put".
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev, variance

import labkit as lab
from benchmarks import frame
from labkit import units
from labkit.analysis.rows import Row
from labkit.analysis.statistics import paired_interval
from labkit.files import bar

EXPERIMENTS = ("preprocessing", "combined", "storage", "prefetching")
IMAGES = 1000
LEAST_HELD = 0.85
MOST_SPREAD = 1.5
FULL_BLOCKS = 6  # the least that verdicts take
MOST_APART, LEAST_CLOSE = 0.05, 0.80


@dataclass(frozen=True)
class Repeated:
    """One variant in all runs of an experiment."""

    name: str
    rows: tuple[Row, ...]
    full: Row
    """In full mode."""

    def apart(self) -> float:
        """Return the logarithm of the quick runs' mean over the full run's time."""
        return fmean(self._logs()) - math.log(self.full.normalized_time)

    def is_reversed(self) -> bool:
        """Return whether both modes exclude 1, on different sides."""
        logs = self._logs()
        quick_low, quick_high = map(math.exp, paired_interval(logs))
        low, high = self.full.ci_low, self.full.ci_high
        return quick_high < 1 < low or high < 1 < quick_low

    def held(self) -> list[bool]:
        """Return for each run whether its interval holds the mean of the others."""
        logs = self._logs()
        others = [fmean(logs[:place] + logs[place + 1 :]) for place in range(len(logs))]
        return [
            row.ci_low <= math.exp(other) <= row.ci_high for row, other in zip(self.rows, others)
        ]

    def between(self) -> float:
        """Return the variance of the logarithms between runs."""
        return variance(self._logs())

    def promised(self) -> float:
        """Return the variance that the runs' own blocks let expect."""
        return fmean(row.s**2 / row.blocks for row in self.rows)

    def cells(self) -> tuple[str, ...]:
        """Return the table's line."""
        logs = self._logs()
        return (
            self.name,
            " ".join(units.normalized(row.normalized_time) for row in self.rows),
            units.percent(stdev(logs)),
            units.percent(math.sqrt(self.promised())),
            f"{sum(self.held())} of {len(self.rows)}",
            f"{units.normalized(self.full.normalized_time)}, {self.apart():+.1%}",
        )

    def _logs(self) -> list[float]:
        return [math.log(row.normalized_time) for row in self.rows]


def judge(variants: Sequence[Repeated]) -> list[tuple[bool, str]]:
    """Return for both limits whether they are met, and the figure."""
    held = [met for variant in variants for met in variant.held()]
    between = fmean(variant.between() for variant in variants)
    promised = fmean(variant.promised() for variant in variants)
    share, spread = fmean(held), math.sqrt(between / promised)
    close = fmean(abs(variant.apart()) <= MOST_APART for variant in variants)
    turned = [variant.name for variant in variants if variant.is_reversed()]
    return [
        (
            share >= LEAST_HELD,
            f"{sum(held)} of {len(held)} intervals hold the mean of the other runs: "
            f"{share:.0%}, at least {LEAST_HELD:.0%}",
        ),
        (
            spread <= MOST_SPREAD,
            f"the spread between runs is {spread:.2f} times what the intervals promise, "
            f"at most {MOST_SPREAD}",
        ),
        (
            close >= LEAST_CLOSE,
            f"{close:.0%} of the variants have a quick mean within {MOST_APART:.0%} of the full "
            f"run's, at least {LEAST_CLOSE:.0%}",
        ),
        (
            not turned,
            f"faster in one mode and slower in the other: {', '.join(turned) or 'none'}",
        ),
    ]


def repeat(
    names: Sequence[str], times: int, data: Path, results: Path
) -> Mapping[str, list[lab.Run]]:
    """Run every experiment so often, each round beginning with another one."""
    runs: dict[str, list[lab.Run]] = {name: [] for name in names}
    turns = [(turn, place) for turn in range(times) for place in range(len(names))]
    for turn, place in bar(turns, total=len(turns), desc="runs"):
        name = names[(turn + place) % len(names)]
        experiment = lab.experiment(name, data=str(data), device="simulated")
        runs[name].append(lab.run(experiment, "quick", results=results, progress=False))
    return runs


def in_full(name: str, data: Path, results: Path) -> lab.Run:
    """Run the variants of quick mode in full mode."""
    experiment = lab.experiment(name, data=str(data), device="simulated")
    same = replace(experiment, variants=experiment.measured(in_full=False))
    return lab.run(same, "full", results=results, blocks=FULL_BLOCKS, progress=False)


def repeated(name: str, runs: Sequence[lab.Run], full: lab.Run) -> list[Repeated]:
    """Return the variants, without the baseline, with the rows that have an interval."""
    known = {row.variant: row for row in full.summary.rows}
    rows_by_variant: dict[str, list[Row]] = {}
    for run in runs:
        for row in run.summary.rows:
            if row.ci_low is not None:
                rows_by_variant.setdefault(row.variant, []).append(row)
    return [
        Repeated(f"{name}: {variant}", tuple(rows), known[variant])
        for variant, rows in rows_by_variant.items()
    ]


def main() -> int:
    parser = frame.parser(__doc__, data=True)
    parser.add_argument("--times", type=int, default=8, help="runs of each experiment, at least 3")
    parser.add_argument("--experiment", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS)
    options = parser.parse_args()
    if options.times < 3:
        parser.error(f"--times must be at least 3, got {options.times}")
    report = frame.Report("The same answer twice", options)
    with frame.photographs(options.data, IMAGES) as (data, scratch):
        runs = repeat(options.experiment, options.times, data, scratch / "results")
        full = {name: in_full(name, data, scratch / "results") for name in runs}
    repeated_variants = [one for name in runs for one in repeated(name, runs[name], full[name])]
    variants = [variant for variant in repeated_variants if len(variant.rows) == options.times]
    header = ("", "normalized times of the runs", "between runs", "promised", "held", "in full")
    report.table(header, [variant.cells() for variant in variants])
    for variant in repeated_variants:
        if variant not in variants:
            report.line(f"{variant.name}: left out, no interval in some of the runs")
    for name in runs:
        device = {units.rate(run.summary.calibration.device_images_per_s) for run in runs[name]}
        x = [run.summary.x for run in runs[name]]
        report.line(f"{name}: device {', '.join(device)}, x {min(x):.2f} to {max(x):.2f}")
    for met, text in judge(variants):
        report.limit(met, text)
    measured = {
        variant.name: [
            [row.normalized_time, row.ci_low, row.ci_high] for row in (*variant.rows, variant.full)
        ]
        for variant in variants
    }
    return report.finish(measured)


if __name__ == "__main__":
    sys.exit(main())
