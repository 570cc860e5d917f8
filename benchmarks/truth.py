"""Do the lab's verdicts find what is really there?  Real runs, with differences that we planted.

    a delay of 10 % in one arm   -> must be called slower
    nothing in any arm, 20 times -> faster or slower at most twice
    the catalog's experiments    -> their noise, and how long epochs must be to bring it to 2.5 %

Designs are full mode's (10 blocks, the baseline twice, verdicts) with quick mode's lengths (256
px, batches of 8, epochs of about 1 s).  The delay is a step that keeps host or device busy; without
loader workers, and with a wait after every step, it overlaps with nothing, so the epoch takes as
much longer.  Main trap: how slow the delayed arm truly is depends on the baseline's speed during
that very design, so the planted figure is computed from it.  Exits with 1 where a verdict is wrong.

    python -m benchmarks.truth [--designs 20] [--blocks 10] [--results DIR] [--only planted]
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from scipy.special import chdtri

import labkit as lab
from labkit import machine, units
from labkit.counted import count
from labkit.pagecache import can_evict
from labkit.results import list_runs, load_run
from labkit.summary import Row, Summary

DELAY_SHARE = 0.10
TARGET_S = 0.025  # EVIDENCE 1: the noise with which 10 blocks see 3 %
DIFFERENT = ("faster", "slower")
PREPARING_BLOCKS = 3
LONGER = 3  # --two-lengths: how many times as long the second epoch is
QUICK = {"input_px": 256, "batch_size": 8}
BASELINE, ARM = "baseline", "planted"


class Bench:
    """Runs designs, or takes them from the results folder; says how long the rest will take."""

    def __init__(self, results: Path, trials: int) -> None:
        self._results, self._left = results, trials
        self._trials, self._taken_s = 0, 0.0

    def run(self, experiment: lab.Experiment, blocks: int, mode: str = "full") -> lab.Run:
        """Return a finished run: one that lies there, one resumed, or a new one."""
        start_s, shown = time.perf_counter(), sys.stderr.isatty()
        run, trials = self._find(experiment, blocks, mode), trials_of(experiment, blocks)
        self._left -= trials
        if run is not None and run.info["status"] == "finished":
            self._say(f"{experiment.name}: taken from {run.folder}")
            return run
        if run is not None:
            run = lab.resume(run.folder, progress=shown)
        else:
            results = self._results
            run = lab.run(experiment, mode, results=results, blocks=blocks, progress=shown)
        taken_s = time.perf_counter() - start_s
        self._trials += trials
        self._taken_s += taken_s
        rest_s = self._left * self._taken_s / self._trials
        verdicts = [row.verdict for row in lab.summarize(run).rows[1:] if row.verdict]
        words = f"{', '.join(verdicts) or 'done'}, {units.seconds(taken_s)}"
        self._say(f"{experiment.name}: {words}; about {units.seconds(rest_s)} left")
        return run

    def _find(self, experiment: lab.Experiment, blocks: int, mode: str) -> lab.Run | None:
        settings = experiment.variants[experiment.baseline]
        for folder in reversed(list_runs(self._results, experiment.name)):
            run = load_run(folder)
            info, baseline = run.info, run.info["variants"][run.info["baseline"]]
            if (
                (info["mode"], info["blocks"], info["data"]["folder"])
                == (mode, blocks, settings.data)
                and settings.images in (None, baseline["images"])
                and info["provenance"]["machine_id"] == machine.provenance()["machine_id"]
            ):
                return run
        return None

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def trials_of(experiment: lab.Experiment, blocks: int) -> int:
    return blocks * (len(experiment.variants) + 1)  # the baseline runs twice


# --- planted differences --------------------------------------------------------------------


def plant(delay_us: int) -> str:
    """Enter a step that takes so long into the lab's table and return its name.

    On the emulated device the delay is computing time; elsewhere the host is kept busy.
    """
    delay_s = delay_us / 1e6

    def open_step(settings: lab.Settings, device: object) -> lab.Step:
        def forward(batch: dict) -> None:
            if hasattr(device, "compute"):
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


def serial(name: str, data: str, device: str, images: int | None, delays_us: Mapping[str, int]):
    """Make an experiment in which loading and the step take turns; label -> delay per step."""
    base = lab.Settings(
        data=data, device=device, images=images, num_workers=0, sync_every=1, **QUICK,
        cache="cold" if can_evict() else "warm",
    )  # fmt: skip
    return lab.Experiment(
        name,
        question="Is what was planted found?",
        variants={label: replace(base, step=plant(us)) for label, us in delays_us.items()},
        baseline=BASELINE,
    )


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One design of which the truth is known."""

    run: lab.Run
    summary: Summary
    delay_us: int

    @property
    def row(self) -> Row:
        return self.summary.rows[1]

    @property
    def truth(self) -> float | None:
        """The ratio that was planted: the delays over the baseline's time in this design."""
        base_s = self.summary.rows[0].time_s
        trial = next((t for t in self.run.trials if t.status == "ok"), None)
        if base_s is None or trial is None:
            return None
        return 1 + sum(epoch.steps for epoch in trial.epochs) * self.delay_us / 1e6 / base_s

    def to_line(self) -> str:
        row, truth = self.row, self.truth
        interval = units.interval(row.ci_low, row.ci_high)
        outside = (
            "" if None in (truth, row.ci_low) or row.ci_low <= truth <= row.ci_high else "not "
        )
        return (
            f"  {self.run.info['experiment']:24} planted {units.normalized(truth)}, found "
            f"{units.normalized(row.normalized_time)} {interval:16} "
            f"{row.verdict or row.reason or 'no verdict':24} planted {outside}in it; "
            f"s {units.percent(row.s)}, floor {units.percent(self.summary.aa_s)}"
            f"{describe_repeats(self.run)}"
        )


def describe_repeats(run: lab.Run) -> str:
    """Say what was run again, and what does not count; empty where nothing was."""
    last = count(run.info, run.trials)
    attempts = [count(run.info, run.trials, attempt) for attempt in range(last.attempt + 1)]
    rejected = sum(len(attempt.rejected) for attempt in attempts)
    doubts = sum(len(reasons) for each in attempts for reasons in each.doubts.values())
    parts = [
        "everything run twice" if last.attempt else "",
        f"{units.count(rejected, 'block')} rejected" if rejected else "",
        f"{units.count(doubts, 'trial')} in another cache state" if doubts else "",
    ]
    return "".join(f", {part}" for part in parts if part)


def run_planted(bench: Bench, data: str, designs: int, blocks: int) -> list[Planted]:
    """Run the delayed designs, one per device, and those without any difference."""
    found = []
    for device in ("cpu", "emulated"):
        prepared = bench.run(
            serial(f"truth_prepare_{device}", data, device, None, {BASELINE: 0}),
            PREPARING_BLOCKS,
            "quick",
        )
        images = prepared.info["calibration"]["images"]
        steps = len(lab.summarize(prepared).rows[0].epochs_s[0]) * (images // QUICK["batch_size"])
        delay_us = round(DELAY_SHARE * 1e6 * lab.summarize(prepared).rows[0].time_s / steps)
        names = {f"truth_delayed_{device}": delay_us}
        if device == "cpu":
            names |= {f"truth_equal_{number:02}": 0 for number in range(designs)}
        for name, us in names.items():
            run = bench.run(serial(name, data, device, images, {BASELINE: 0, ARM: us}), blocks)
            found.append(Planted(run=run, summary=lab.summarize(run), delay_us=us))
    return found


def most_wrong(designs: int) -> int:
    """At most two of twenty, and of other numbers the same share."""
    return designs // 10


def judge(delayed: Sequence[str], equal: Sequence[str]) -> list[str]:
    """Say what is wrong with the verdicts; nothing where they are as they must be."""
    errors = [
        f"a delayed arm is called {word or 'nothing'}" for word in delayed if word != "slower"
    ]
    wrong = sum(word in DIFFERENT for word in equal)
    if wrong > most_wrong(len(equal)):
        errors.append(f"{wrong} of {len(equal)} equal arms are called faster or slower")
    return errors


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
    def epoch_s(self) -> float:
        return fmean(s for trial in self.summary.rows[0].epochs_s for s in trial)

    @property
    def pooled_s(self) -> float | None:
        return pool([row.s for row in self.summary.rows if row.s is not None])

    def to_lines(self) -> list[str]:
        if self.reason or self.pooled_s is None:
            return [f"  {self.name}: not measured: {self.reason or 'too few blocks count'}"]
        epoch_s, s = self.epoch_s, self.pooled_s
        lines = [
            f"  {self.name}: {units.count(self.images, 'image')}, baseline's epochs "
            f"{units.seconds(epoch_s)}, noise floor {units.percent(self.summary.aa_s)}"
            f"{self.repeats}{'' if self.summary.stable else ', machine unstable'}"
        ]
        for row in self.summary.rows[1:]:
            needed = describe_length(epoch_s, row.s) if row.s is not None else row.reason
            lines.append(f"    {row.variant:30} s {units.percent(row.s):>7}   {needed}")
        images = math.ceil(self.images * needed_s(epoch_s, s) / epoch_s)
        many = f" = {images:,} images" if s > TARGET_S else ""
        many += f", more than the {self.available:,} there are" if images > self.available else ""
        lines.append(
            f"    {'pooled':30} s {units.percent(s):>7}   {describe_length(epoch_s, s)}{many}"
        )
        return lines


def pool(noises: Sequence[float]) -> float | None:
    """Root mean square; None of none."""
    return math.sqrt(fmean(s * s for s in noises)) if noises else None


def needed_s(epoch_s: float, s: float, target: float = TARGET_S) -> float:
    """Extrapolate the epoch's length: noise is assumed to fall with the length's square root."""
    return epoch_s * (s / target) ** 2


def describe_length(epoch_s: float, s: float) -> str:
    return "already below" if s <= TARGET_S else f"epochs of {units.seconds(needed_s(epoch_s, s))}"


def uncertainty(blocks: int) -> tuple[float, float]:
    """Bound the true s by what one s of so many blocks says (95 %), as factors of it."""
    df = blocks - 1
    return math.sqrt(df / chdtri(df, 0.025)), math.sqrt(df / chdtri(df, 0.975))


def main_arms(experiment: lab.Experiment, name: str, images: int | None, *, alone: bool = False):
    """Keep an experiment's main arms (or its baseline alone), at quick mode's size."""
    variants = {
        label: replace(settings, images=images, **QUICK)
        for label, settings in experiment.variants.items()
        if not alone or label == experiment.baseline
    }
    otherwise: Callable | None = experiment.otherwise and (
        lambda why: main_arms(experiment.otherwise(why), name, images, alone=alone)
    )
    return replace(
        experiment, name=name, variants=variants, published={}, in_full={}, otherwise=otherwise
    )


def measure_noise(bench: Bench, data: str, name: str, blocks: int, times: int = 1) -> Noise:
    """Run one experiment of the catalog with epochs of about a second, or of some seconds."""
    whole, word = lab.experiment(name, data=data), f"{name} x {times}" if times > 1 else name
    try:
        alone = main_arms(whole, f"truth_prepare_{name}", None, alone=True)
        prepared = bench.run(alone, 1, "quick")
        available = prepared.info["data"]["images"]
        images = times * prepared.info["calibration"]["images"]
        images = min(images, available // QUICK["batch_size"] * QUICK["batch_size"])
        long = f"_{times}_times" if times > 1 else ""
        run = bench.run(main_arms(whole, f"truth_noise_{name}{long}", images), blocks)
    except (RuntimeError, ValueError) as reason:  # it cannot run here
        return Noise(name=word, reason=str(reason))
    return Noise(
        name=word, summary=lab.summarize(run), images=images, available=available,
        repeats=describe_repeats(run),
    )  # fmt: skip


def compare_lengths(short: Noise, long: Noise) -> str:
    """Hold the assumption against two lengths of one experiment."""
    if any(n.reason or n.pooled_s is None for n in (short, long)):
        return "  two lengths: not measured"
    factor = long.epoch_s / short.epoch_s
    return (
        f"  two lengths of {short.name}: epochs {factor:.2f} times as long have "
        f"{long.pooled_s / short.pooled_s:.2f} times the noise; assumed: {factor**-0.5:.2f} times"
    )


# --- report ---------------------------------------------------------------------------------


def describe_planted(found: Sequence[Planted]) -> tuple[list[str], list[str]]:
    """Put the planted designs into lines; return what is wrong with them as well."""
    delayed, equal = ([p for p in found if bool(p.delay_us) is late] for late in (True, False))
    verdicts = [p.row.verdict for p in equal]
    wrong = sum(word in DIFFERENT for word in verdicts)
    counts = ", ".join(f"{n} x {word or 'none'}" for word, n in Counter(verdicts).most_common())
    lines = ["Planted delay of 10 %: must be called slower", *(p.to_line() for p in delayed)]
    lines += [
        f"Nothing planted: faster or slower at most {most_wrong(len(equal))} of {len(equal)} times",
        *(p.to_line() for p in equal),
        f"  faster or slower: {wrong} of {len(equal)}; verdicts: {counts or 'none'}",
    ]
    return lines, judge([p.row.verdict for p in delayed], verdicts)


def describe_noise(found: Sequence[Noise], blocks: int) -> list[str]:
    low, high = uncertainty(blocks)
    return [
        "Noise of the catalog's experiments (s of the paired log-ratios; combined: main arms only)",
        *(line for noise in found for line in noise.to_lines()),
        "  assumed, not measured: noise falls with the square root of the epoch's length",
        f"  one s of {blocks} blocks is known to within {low:.2f} to {high:.2f} times (95 %), "
        f"so a length to within {low**2:.2f} to {high**2:.2f} times",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="data/photos")
    parser.add_argument("--designs", type=int, default=20, help="without any difference")
    parser.add_argument("--blocks", type=int, default=10, help="of each design, at least 6")
    parser.add_argument("--results", type=Path, help="keeps the rows; finished designs are reused")
    parser.add_argument("--only", choices=("planted", "noise"))
    parser.add_argument(
        "--two-lengths", choices=tuple(lab.CATALOG), metavar="EXPERIMENT",
        help="check the assumption on noise and length: one experiment, epochs of 1 s and of 3 s",
    )  # fmt: skip
    options = parser.parse_args()
    data, blocks, start_s = options.data, options.blocks, time.perf_counter()
    if not Path(data).is_dir():
        parser.error(f"--data must be a folder, got {data}; python data_scripts/make_photos.py it")
    planted = options.only != "noise"
    names = () if options.only == "planted" else tuple(lab.CATALOG)
    two = options.two_lengths if names else None
    trials = (2 * 2 * PREPARING_BLOCKS + (2 + options.designs) * blocks * 3) if planted else 0
    for name in names:
        times = 1 + (LONGER if name == two else 0)
        trials += 2 + times * trials_of(lab.experiment(name, data=data), blocks)
    lines, errors = [], []
    with ExitStack() as places:
        folder = options.results or Path(places.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(folder, trials)
        if planted:
            lines, errors = describe_planted(run_planted(bench, data, options.designs, blocks))
        noises = {name: measure_noise(bench, data, name, blocks) for name in names}
        if noises:
            lines += describe_noise(list(noises.values()), blocks)
        if two:
            long = measure_noise(bench, data, two, blocks, LONGER)
            lines += [*long.to_lines(), compare_lengths(noises[two], long)]
        taken = units.seconds(time.perf_counter() - start_s)
        lines.append(f"{machine.cores()} cores, {taken}: {'; '.join(errors) or 'as it must be'}")
        text = "\n".join(lines) + "\n"
        print(text, end="")
        if options.results:
            (folder / "truth.txt").write_text(text, encoding="utf-8")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
