"""Whether verdicts find what is there: real runs with planted differences.

    python -m benchmarks.truth [--data FOLDER] [--designs 20] [--blocks 10]

    a delay of 10 % in one variant   -> must be called slower
    no difference, in 20 experiments -> faster or slower at most twice

Designs are full mode's (10 blocks, the baseline twice, verdicts) at 256 px with batches of 8 and
epochs of about 1 s.  The delay is a step that keeps host or device busy.  With
no loader workers, nothing pinned and a wait after every step it overlaps with nothing, so it adds
to the epoch.  How much 10 % is depends on the machine's speed at that moment, so the planted ratio
is computed from each design's own baseline.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import labkit as lab
from benchmarks import frame
from labkit import units
from labkit.analysis.rows import Row
from labkit.files import bar
from labkit.machine.page_cache import can_evict

IMAGES = 1000
DELAY_SHARE = 0.10
MOST_WRONG_SHARE = 0.1  # two of twenty
PREPARING_BLOCKS = 3
QUICK = {"input_px": 256, "batch_size": 8}
BASELINE, ARM = "baseline", "planted"


def plant(delay_us: int) -> str:
    """Add a step of this length to the lab's table; return its name.

    On the simulated GPU the delay is computing time; elsewhere the host is kept busy.
    """
    delay_s = delay_us / 1e6

    def open_step(settings: lab.Settings, device: object) -> lab.Step:
        def forward(batch: dict) -> None:
            if device.is_simulated:
                device.compute(len(batch["sample_id"]))
                device.run(delay_s)
                return
            end_s = time.perf_counter() + delay_s
            while time.perf_counter() < end_s:
                pass

        return lab.Step(forward=forward, backward=None, loss=lambda: None)

    name = f"waits {delay_us} us"
    lab.STEPS[name] = open_step
    return name


def serial(name: str, base: lab.Settings, delays_us: Mapping[str, int]) -> lab.Experiment:
    """Make an experiment in which loading and the step take turns.

    Args:
        name: of the experiment.
        base: the settings that all variants share.
        delays_us: variant -> delay of every step.
    """
    # Pinning would add a thread that loads while the device works.
    base = replace(base, num_workers=0, pin_memory=False, sync_every=1, **QUICK)
    variants = {label: replace(base, step=plant(us)) for label, us in delays_us.items()}
    question = "Is what was planted found?"
    return lab.Experiment(name, question=question, variants=variants, baseline=BASELINE)


@dataclass(frozen=True)
class Design:
    """One experiment of which the truth is known."""

    name: str
    planted: float
    """The true ratio."""
    row: Row

    def to_cells(self) -> tuple[str, ...]:
        row, place = self.row, units.UNKNOWN
        if row.ci_low is not None:
            place = "inside" if row.ci_low <= self.planted <= row.ci_high else "outside"
        measured = units.normalized(row.normalized_time, row.ci_low, row.ci_high)
        verdict = row.verdict or row.reason or "too few blocks"
        return self.name, verdict, measured, units.normalized(self.planted), place


def run_designs(data: Path, results: Path, designs: int, blocks: int) -> Iterator[Design]:
    """Run a delayed design on each device, and on the CPU those without any difference."""

    def run(experiment: lab.Experiment, mode: str, blocks: int) -> lab.Run:
        return lab.run(experiment, mode, results=results, blocks=blocks, progress=False)

    for device in ("cpu", "simulated"):
        cache = "cold" if can_evict() else "warm"
        base = lab.Settings(data=str(data), device=device, cache=cache)
        alone = serial(f"truth_prepare_{device}", base, {BASELINE: 0})
        prepared = run(alone, "quick", PREPARING_BLOCKS)
        images = prepared.info.calibration.images
        steps = base.epochs * images // QUICK["batch_size"]
        delay_us = round(DELAY_SHARE * prepared.summary.rows[0].time_s / steps * 1e6)
        delays_us = {f"delayed, {device}": delay_us}
        if device == "cpu":
            delays_us |= {f"equal {number}": 0 for number in range(designs)}
        for name, us in delays_us.items():
            design = serial("truth", replace(base, images=images), {BASELINE: 0, ARM: us})
            baseline, arm = run(design, "full", blocks).summary.rows
            planted = 1 + steps * us / 1e6 / (baseline.time_s or math.nan)
            yield Design(name, planted, arm)


def judge(delayed: Sequence[str], equal: Sequence[str]) -> list[tuple[bool, str]]:
    """Check the verdicts of delayed and of equal variants; return whether and what is met."""
    slower = sum(verdict == "slower" for verdict in delayed)
    wrong = sum(verdict in ("faster", "slower") for verdict in equal)
    most = math.floor(MOST_WRONG_SHARE * len(equal))
    return [
        (slower == len(delayed), f"{slower} of {len(delayed)} delayed variants are called slower"),
        (
            wrong <= most,
            f"{wrong} of {len(equal)} equal variants are called faster or slower, at most {most}",
        ),
    ]


def main() -> int:
    parser = frame.parser(__doc__, data=True)
    parser.add_argument("--designs", type=int, default=20, help="without any difference")
    parser.add_argument("--blocks", type=int, default=10, help="of each design, at least 6")
    options = parser.parse_args()
    report = frame.Report("Verdicts on planted differences", options)
    with frame.photographs(options.data, IMAGES) as (data, scratch):
        designs = run_designs(data, scratch / "results", options.designs, options.blocks)
        measured = list(bar(designs, total=2 + options.designs, desc="designs"))
    header = ("", "verdict", "measured", "planted", "planted is in the interval")
    report.table(header, [design.to_cells() for design in measured])
    delayed = [design.row.verdict for design in measured if design.planted > 1]
    equal = [design.row.verdict for design in measured if design.planted == 1]
    for met, text in judge(delayed, equal):
        report.limit(met, text)
    return report.finish([asdict(design) for design in measured])


if __name__ == "__main__":
    sys.exit(main())
