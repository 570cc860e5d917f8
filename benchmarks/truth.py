"""Do the lab's verdicts find what is really there?  Real runs, with differences that we planted.

    a delay of 10 % in one arm   -> must be called slower
    nothing in any arm, 20 times -> faster or slower at most twice
    the catalog's experiments    -> their noise, and how long epochs must be to bring it to 2.5 %

Designs are full mode's (10 blocks, the baseline twice, verdicts) with quick mode's lengths (256
px, batches of 8, epochs of about 1 s).  The delay is a step that keeps host or device busy; with no
loader workers, nothing pinned and a wait after every step it overlaps with nothing, so it adds to
the epoch.  Main trap: how much 10 % is depends on the machine's speed at that moment, so what was
planted is computed anew from each design's own baseline.  Exits with 1 where a verdict is wrong.

    python -m benchmarks.truth [--designs 20] [--blocks 10] [--results DIR] [--only planted|noise]
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from scipy.special import chdtri

import labkit as lab
from labkit import units
from labkit.analysis.summary import Summary
from labkit.analysis.validity import valid_trials
from labkit.catalog import MAIN_ROAD
from labkit.machine import hardware
from labkit.machine.page_cache import can_evict
from labkit.runs.store import list_runs, load_run

DELAY_SHARE = 0.10
TARGET = 0.025  # EVIDENCE 1: the noise s with which 10 blocks see 3 %
MAX_WRONG_SHARE = 0.1  # two of twenty
PREPARING_BLOCKS = 3
LONGER = 3  # --two-lengths: how many times as long the second epochs are
QUICK = {"input_px": 256, "batch_size": 8}
BASELINE, ARM = "baseline", "planted"


class Bench:
    """Runs designs, or takes them from the results folder; says how long the rest will take."""

    def __init__(self, results: Path, trials: int) -> None:
        self._results, self._left, self._done, self._taken_s = results, trials, 0, 0.0

    def run(self, experiment: lab.Experiment, blocks: int, mode: str = "full") -> lab.Run:
        """Return a finished run: one that lies there, one that is resumed, or a new one."""
        trials, start_s = trials_of(experiment, blocks), time.perf_counter()
        shown = sys.stderr.isatty()  # a log needs no bars
        run = self._find(experiment, blocks, mode)
        self._left -= trials
        if run is not None and run.info["status"] == "finished":
            print(f"{experiment.name}: taken from {run.folder}", file=sys.stderr)
            return run
        if run is not None:
            run = lab.resume(run.folder, progress=shown)
        else:
            folder = self._results
            run = lab.run(experiment, mode, results=folder, blocks=blocks, progress=shown)
        taken_s = time.perf_counter() - start_s
        self._done, self._taken_s = self._done + trials, self._taken_s + taken_s
        left = units.seconds(self._left * self._taken_s / self._done)
        found = ", ".join(row.verdict for row in run.summary.rows[1:]) or "done"
        line = f"{experiment.name}: {found}; {units.seconds(taken_s)}, about {left} left"
        print(line, file=sys.stderr, flush=True)
        return run

    def _find(self, experiment: lab.Experiment, blocks: int, mode: str) -> lab.Run | None:
        wanted = experiment.variants[experiment.baseline]
        for folder in reversed(list_runs(self._results, experiment.name)):
            info = load_run(folder).info
            images = info["variants"][info["baseline"]]["images"]
            here = hardware.provenance()["machine_id"] == info["provenance"]["machine_id"]
            same = (info["mode"], info["blocks"], info["data"]["folder"], images)
            if here and same == (mode, blocks, wanted.data, wanted.images):
                return load_run(folder)
        return None


def trials_of(experiment: lab.Experiment, blocks: int) -> int:
    return blocks * (len(experiment.variants) + 1)  # the baseline runs twice


def describe_repeats(run: lab.Run) -> str:
    """Say what was run again and what does not count; empty where there is nothing."""
    last = valid_trials(run.info, run.trials)
    attempts = [valid_trials(run.info, run.trials, attempt) for attempt in range(last.attempt + 1)]
    rejected = sum(len(each.rejected) for each in attempts)
    violations = sum(len(each) for valid in attempts for each in valid.cache_violations.values())
    return (
        (", everything run twice" if last.attempt else "")
        + (f", {units.count(rejected, 'block')} rejected" if rejected else "")
        + (f", {units.count(violations, 'trial')} in the wrong cache state" if violations else "")
    )


# --- planted differences --------------------------------------------------------------------


def plant(delay_us: int) -> str:
    """Enter a step that takes so long into the lab's table; return its name.

    On the emulated device the delay is computing time; elsewhere the host is kept busy.
    """
    delay_s = delay_us / 1e6

    def open_step(settings: lab.Settings, device: object) -> lab.Step:
        def forward(batch: dict) -> None:
            if device.emulated:
                device.compute(len(batch["sample_id"]))
                device.run(delay_s)
                return
            end_s = time.perf_counter() + delay_s
            while time.perf_counter() < end_s:
                pass

        return lab.Step(forward=forward, backward=None, loss=lambda: None, batch=None)

    name = f"waits {delay_us} us"
    lab.STEPS[name] = open_step
    return name


def serial(name: str, base: lab.Settings, delays_us: Mapping[str, int]) -> lab.Experiment:
    """Let loading and the step take turns; `delays_us` is label -> delay of every step."""
    # Pinning would bring a thread that loads while the device works.
    base = replace(base, num_workers=0, pin_memory=False, sync_every=1, **QUICK)
    variants = {label: replace(base, step=plant(us)) for label, us in delays_us.items()}
    question = "Is what was planted found?"
    return lab.Experiment(name, question=question, variants=variants, baseline=BASELINE)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One design of which the truth is known."""

    name: str
    delay_us: int
    summary: Summary
    truth: float
    """The ratio that was planted: one, and the delays over the baseline's time."""
    repeats: str

    def to_line(self) -> str:
        row = self.summary.rows[1]
        if row.ci_low is None:
            return f"  {self.name}: no verdict ({row.reason or 'too few blocks'}){self.repeats}"
        place = "inside" if row.ci_low <= self.truth <= row.ci_high else "outside"
        return (
            f"  {self.name:22}  {row.verdict or 'no verdict':23}  "
            f"{units.normalized(row.normalized_time)} {units.interval(row.ci_low, row.ci_high)}, "
            f"planted {units.normalized(self.truth)} is {place}; s {units.percent(row.s)}, "
            f"floor {units.percent(self.summary.aa_s)}{self.repeats}"
        )


def run_planted(bench: Bench, data: str, designs: int, blocks: int) -> list[Planted]:
    """Run a delayed design on each device, and on the first those without any difference."""
    found = []
    for device in ("cpu", "emulated"):
        base = lab.Settings(data=data, device=device, cache="cold" if can_evict() else "warm")
        alone = serial(f"truth_prepare_{device}", base, {BASELINE: 0})
        prepared = bench.run(alone, PREPARING_BLOCKS, "quick")
        images = prepared.info["calibration"]["images"]
        steps = base.epochs * images // QUICK["batch_size"]
        delay_us = round(DELAY_SHARE * prepared.summary.rows[0].time_s / steps * 1e6)
        delays_us = {f"truth_delayed_{device}": delay_us}
        if device == "cpu":
            delays_us |= {f"truth_equal_{number:02}": 0 for number in range(designs)}
        for name, us in delays_us.items():
            design = serial(name, replace(base, images=images), {BASELINE: 0, ARM: us})
            run = bench.run(design, blocks)
            summary = run.summary
            truth = 1 + steps * us / 1e6 / (summary.rows[0].time_s or math.nan)
            repeats = describe_repeats(run)
            planted = Planted(name=name, delay_us=us, summary=summary, truth=truth, repeats=repeats)
            found.append(planted)
    return found


def count_wrong(verdicts: Sequence[str]) -> int:
    """Count how many equal arms are called different."""
    return sum(word in ("faster", "slower") for word in verdicts)


def most_wrong(designs: int) -> int:
    return math.floor(MAX_WRONG_SHARE * designs)


def judge(delayed: Sequence[str], equal: Sequence[str]) -> list[str]:
    """Say what is wrong with the verdicts; nothing where they are as they must be."""
    errors = [f"a delayed arm is called {w or 'nothing'}" for w in delayed if w != "slower"]
    if (wrong := count_wrong(equal)) > most_wrong(len(equal)):
        errors.append(f"{wrong} of {len(equal)} equal arms are called faster or slower")
    return errors


def describe_planted(found: Sequence[Planted]) -> tuple[list[str], list[str]]:
    """Put the designs into lines; return what is wrong with them, too."""
    delayed, equal = [p for p in found if p.delay_us], [p for p in found if not p.delay_us]
    said, equals = ([p.summary.rows[1].verdict for p in some] for some in (delayed, equal))
    counts = ", ".join(f"{n} x {word or 'none'}" for word, n in Counter(equals).most_common())
    most = f"at most {most_wrong(len(equal))} of {len(equal)} may be faster or slower"
    lines = ["Planted: 10 % longer, must be called slower", *(p.to_line() for p in delayed)]
    lines += [f"Planted: nothing, {most}", *(p.to_line() for p in equal)]
    lines.append(f"  faster or slower: {count_wrong(equals)} of {len(equals)}; found: {counts}")
    return lines, judge(said, equals)


# --- the catalog's noise --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What one experiment of the catalog showed, or why it could not be run."""

    name: str
    reason: str = ""
    summary: Summary | None = None
    images: int = 0
    available: int = 0
    repeats: str = ""

    @property
    def s(self) -> float | None:
        """Of all variants, as a root mean square."""
        known = [row.s for row in self.summary.rows if row.s is not None] if self.summary else []
        return math.sqrt(fmean(s * s for s in known)) if known else None

    @property
    def epoch_s(self) -> float:
        return fmean(s for trial in self.summary.rows[0].epochs_s for s in trial)

    def to_lines(self) -> list[str]:
        if self.s is None:
            return [f"  {self.name}: not measured: {self.reason or 'too few blocks'}{self.repeats}"]
        epoch_s, floor = self.epoch_s, units.percent(self.summary.aa_s)
        unstable = "" if self.summary.stable else ", machine unstable"
        lines = [
            f"  {self.name}: baseline's epochs {units.seconds(epoch_s)} "
            f"({self.images:,} images), floor {floor}{self.repeats}{unstable}"
        ]
        noises = {row.variant: (row.s, row.reason) for row in self.summary.rows[1:]}
        for label, (s, reason) in {**noises, "all variants pooled": (self.s, "")}.items():
            length = reason or "too few blocks" if s is None else describe_length(epoch_s, s)
            lines.append(f"    {label:28}  s {units.percent(s):>6}  {length}")
        if self.images * needed_s(epoch_s, self.s) / epoch_s > self.available:
            lines.append(f"    which takes more than the {self.available:,} images there are")
        return lines


def needed_s(epoch_s: float, s: float) -> float:
    """Extrapolate: the noise is assumed to fall with the square root of the epoch's length."""
    return epoch_s * (s / TARGET) ** 2


def describe_length(epoch_s: float, s: float) -> str:
    return "already below" if s <= TARGET else f"epochs of {units.seconds(needed_s(epoch_s, s))}"


def uncertainty(blocks: int) -> tuple[float, float]:
    """Bound the true s by one that was found, as factors of it (95 %, normal noise)."""
    df = blocks - 1
    return math.sqrt(df / chdtri(df, 0.025)), math.sqrt(df / chdtri(df, 0.975))


def quick_arms(whole: lab.Experiment, name: str, images: int | None = None) -> lab.Experiment:
    """Keep an experiment's main arms at quick mode's size; images unset: its baseline alone."""
    variants = {
        label: replace(settings, images=images, **QUICK)
        for label, settings in whole.variants.items()
        if images or label == whole.baseline
    }
    other = whole.otherwise and (lambda why: quick_arms(whole.otherwise(why), name, images))
    kept = {"name": name, "variants": variants, "otherwise": other}
    return replace(whole, published={}, in_full={}, **kept)


def measure_noise(bench: Bench, data: str, name: str, blocks: int, times: int = 1) -> Noise:
    """Run one experiment of the catalog with epochs of about a second, or `times` as long."""
    whole, label = lab.experiment(name, data=data), f"{name}_{times}_times" if times > 1 else name
    try:
        prepared = bench.run(quick_arms(whole, f"truth_prepare_{name}"), 1, "quick")
        available, images = (prepared.info[i]["images"] for i in ("data", "calibration"))
        whole_batches = available // QUICK["batch_size"] * QUICK["batch_size"]
        images = min(times * images, whole_batches)
        run = bench.run(quick_arms(whole, f"truth_noise_{label}", images), blocks)
    except (RuntimeError, ValueError) as reason:  # it cannot run here
        return Noise(name=label, reason=str(reason))
    found = {"images": images, "available": available, "repeats": describe_repeats(run)}
    return Noise(name=label, summary=run.summary, **found)


def compare_lengths(short: Noise, long: Noise) -> list[str]:
    """Hold the assumption against two lengths of one experiment."""
    if short.s is None or long.s is None:
        return long.to_lines()
    times, found = long.epoch_s / short.epoch_s, long.s / short.s
    line = f"    {times:.2f} times as long, {found:.2f} times the noise; assumed {times**-0.5:.2f}"
    return [*long.to_lines(), line]


def run_noise(bench: Bench, data: str, blocks: int, twice: str | None) -> list[str]:
    lines = ["Paired noise s of the catalog's experiments (combined: its main arms only)"]
    for name in MAIN_ROAD:
        noise = measure_noise(bench, data, name, blocks)
        lines += noise.to_lines()
        if name == twice:
            lines += compare_lengths(noise, measure_noise(bench, data, name, blocks, LONGER))
    low, high = uncertainty(blocks)
    return [
        *lines,
        f"  Lengths bring s to {units.limit(TARGET)} if noise falls with the square root of the",
        "  epoch's length: an assumption.  A variant's true s is within "
        f"{low:.2f} to {high:.2f} times",
        f"  what {blocks} blocks show (95 %), the length within {low**2:.2f} to {high**2:.2f}.",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="data/photos")
    parser.add_argument("--designs", type=int, default=20, help="without any difference")
    parser.add_argument("--blocks", type=int, default=10, help="of each design, at least 6")
    parser.add_argument("--results", type=Path, help="keeps rows and text; finished ones are taken")
    parser.add_argument("--only", choices=("planted", "noise"))
    twice_help = "measure this one of the catalog with epochs of 3 s as well"
    parser.add_argument("--two-lengths", choices=MAIN_ROAD, help=twice_help)
    options = parser.parse_args()
    data, blocks, twice = options.data, options.blocks, options.two_lengths
    if not Path(data).is_dir():
        parser.error(
            f"--data must be a folder, got {data}; python data_scripts/make_photos.py {data}"
        )
    planted, noise, start_s = options.only != "noise", options.only != "planted", time.time()
    trials = 2 * 2 * PREPARING_BLOCKS + (2 + options.designs) * 3 * blocks if planted else 0
    for name in MAIN_ROAD if noise else ():
        one = trials_of(lab.experiment(name, data=data), blocks)
        trials += 2 + one + (2 + LONGER * one if name == twice else 0)
    lines, errors = [], []
    with ExitStack() as places:
        folder = options.results or Path(places.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(folder, trials)
        if planted:
            lines, errors = describe_planted(run_planted(bench, data, options.designs, blocks))
        lines += run_noise(bench, data, blocks, twice) if noise else []
        taken = units.seconds(time.time() - start_s)
        lines.append(f"{hardware.cores()} cores, {taken}: {'; '.join(errors) or 'as it must be'}")
        print("\n".join(lines))
        if options.results:
            (folder / "truth.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
