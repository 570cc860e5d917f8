"""`lab.diagnose` on trainings whose bottleneck is known, against what the remedies measure.

    python -m benchmarks.diagnosis [--data FOLDER] [--case huge_collate …] [--rounds 4]

Each case runs in a process of its own: diagnose the training with the planted bottleneck, then time
it beside the one with the remedy.  Where nothing helps, the other is the training with batches that
are there already.  A diagnosis is right if it names the planted bottleneck, and near if it predicts
the normalized epoch time within 15 %.  At least 90 % must be right and 80 % near.  A case that
cannot run on this machine is not counted; one that failed counts as wrong.

Magnitudes suit a machine of two to four cores; where many more are idle, a stage that is slow on
one core may be hidden.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import frame
from benchmarks import planted_samples as samples
from benchmarks import planted_steps as steps
from benchmarks import planted_workers as workers
from benchmarks.photo_training import Site
from labkit import units
from labkit.contracts import Skip
from labkit.files import bar
from labkit.machine import page_cache
from labkit.parts.storage import slow_disk

IMAGES = 200
BUDGET_S = 24
LIMIT_S = 240.0  # of a case
LEAST_RIGHT, LEAST_NEAR = 0.90, 0.80
MOST_ERROR = 0.15
NOTHING = "nothing"
ANSWER = "outcome.json"

# A mount namespace of its own, where /dev/shm is small; all that runs in it goes with it.
IN_SMALL_MEMORY = (
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    f"mount -t tmpfs -o size={steps.SMALL_MEMORY_BYTES} tmpfs {steps.SHARED_MEMORY}"
    ' && exec "$@"', "sh",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A training with a planted bottleneck."""

    make: Callable[[Site, bool], dict[str, object]]
    """Called with a site and `fixed`, returns the arguments of `lab.diagnose`."""
    bottleneck: str
    remedy: str | None
    """None: nothing helps."""
    inside: tuple[str, ...] = ()
    """A command that runs the case's process."""
    timed: bool = True
    """Whether the broken training runs at all."""


ALL = (
    Case(samples.slow_disk, "storage", "faster medium"),
    Case(samples.slow_transform, "transform", "faster transform"),
    Case(samples.config_per_sample, "transform", "faster transform"),
    Case(samples.conversion_chain, "transform", "faster transform"),
    Case(samples.list_scan, "transform", "faster transform"),
    Case(samples.python_decode, "decode", "faster decode"),
    Case(samples.large_files, "decode", "faster decode"),
    Case(workers.huge_collate, "collate", "faster collate"),
    Case(workers.objects_sent, "serialization", "cheaper serialization"),
    Case(workers.no_workers, "workers", "more workers"),
    Case(workers.one_worker, "workers", "more workers"),
    Case(workers.waiting_samples, "workers", "more workers"),
    Case(workers.late_samples, "jitter", "more prefetching"),
    Case(workers.restarted_workers, "start-up", "persistent workers"),
    Case(workers.too_many_threads, "threads", "limit threads"),
    Case(
        steps.small_shared_memory, "shared memory", "smaller batches to send",
        inside=IN_SMALL_MEMORY, timed=False,
    ),
    Case(steps.large_batches, "transfer", "smaller batches to send"),
    Case(steps.pageable_copies, "transfer", "pin memory"),
    Case(steps.wait_every_step, "synchronization", "synchronize less often"),
    Case(steps.checkpoint_storm, "checkpoint", "save less often"),
    Case(steps.slow_reports, "reports", "report less often"),
    Case(steps.metric_loops, "host work", "vectorize host work"),
    Case(steps.slow_device, "compute", None),
    Case(steps.small_steps, "compute", None),
    Case(steps.training_here, "compute", None),
)  # fmt: skip
CASES = {case.make.__name__: case for case in ALL}


@dataclass(kw_only=True)
class Outcome:
    """The result of one case."""

    name: str
    said: str = ""
    """The bottleneck of the diagnosis."""
    predicted: float | None = None
    """Normalized epoch time with the remedy; None: it was not among those proposed."""
    times_s: dict[str, list[float]] = field(default_factory=dict)
    """Epochs of every round, "broken" and "fixed"."""
    notes: list[str] = field(default_factory=list)
    """What stood in for something else."""
    skipped: str = ""
    failed: str = ""

    @property
    def case(self) -> Case:
        return CASES[self.name]

    @property
    def measured(self) -> frame.Ratio | None:
        """Normalized epoch time with the remedy."""
        if not self.times_s:
            return None
        return frame.ratio(self.times_s["fixed"], self.times_s["broken"])

    @property
    def error(self) -> float | None:
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted / self.measured.mean - 1

    @property
    def is_right(self) -> bool:
        return self.said == self.case.bottleneck

    @property
    def is_near(self) -> bool:
        return self.error is not None and abs(self.error) <= MOST_ERROR


# --- one case -------------------------------------------------------------------------------


def epoch_s(training: dict) -> float:
    """Time an epoch, from creating the iterator until the device has finished."""
    for path in set(training["files"] or ()):
        page_cache.evict(path)
    start_s = time.perf_counter()
    for batch in training["loader"]:
        training["step"](batch)
    if training["device"] is not None:
        training["device"].synchronize()
    return time.perf_counter() - start_s


def diagnose(case: Case, site: Site) -> dict[str, object]:
    """Diagnose the training with the bottleneck; return fields of an `Outcome`."""
    import labkit as lab

    found = lab.diagnose(**case.make(site, False), budget_s=BUDGET_S, progress=False)
    # The first remedy of a name gains most: the last in this order stays.
    predicted = {remedy.name: remedy.predicted for remedy in reversed(found.remedies)}
    return {
        "said": found.bottleneck or NOTHING,
        "predicted": predicted.get(case.remedy) if case.remedy else found.ceiling,
    }


def compare(case: Case, site: Site, rounds: int) -> dict[str, list[float]]:
    """Time epochs of the training with and without the bottleneck."""
    forms = {"broken": case.make(site, False), "fixed": case.make(site, True)}
    arms = {form: partial(epoch_s, training) for form, training in forms.items()}
    return frame.in_turn(arms, rounds)


def examine(name: str, data: Path, scratch: Path, rounds: int) -> Outcome:
    """Diagnose and time one case in this process."""
    case = CASES[name]
    with Site(data, scratch) as site:
        try:
            found = diagnose(case, site)
            times_s = compare(case, site, rounds) if case.timed else {}
        except Skip as reason:
            return Outcome(name=name, skipped=str(reason))
        finally:
            gc.collect()  # ends the workers, which must leave the slow disk before it is removed
        return Outcome(name=name, **found, times_s=times_s, notes=site.notes)


def in_own_process(name: str, data: Path, scratch: Path, rounds: int) -> Outcome:
    """Run one case in a process of its own, which leaves nothing in this one."""
    inside = CASES[name].inside
    if reason := why_not_inside(inside):
        return Outcome(name=name, skipped=reason)
    own = scratch / name
    own.mkdir()
    command = [
        *inside, sys.executable, "-m", "benchmarks.diagnosis", "--data", str(data),
        "--case", name, "--rounds", str(rounds), "--alone", str(own),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parents[1], stderr=subprocess.PIPE, text=True,
            timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome(name=name, failed=f"not done after {units.seconds(LIMIT_S)}")
    finally:
        if name == "slow_disk":  # what a killed process left; a live one's stays
            with contextlib.suppress(OSError):
                slow_disk.down()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Outcome(name=name, failed=f"exit status {done.returncode}: {last}")
    return Outcome(**json.loads((own / ANSWER).read_text()))


def why_not_inside(inside: tuple[str, ...]) -> str:
    """Try a command that a case's process must run in; return "" where it works."""
    if not inside:
        return ""
    try:
        tried = subprocess.run([*inside, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        return f"needs {inside[0]}, which is not installed"
    return f"needs root on Linux: {tried.stderr.strip()}" if tried.returncode else ""


# --- all cases ------------------------------------------------------------------------------


def row(outcome: Outcome) -> tuple[str, ...]:
    said = "skipped" if outcome.skipped else "failed" if outcome.failed else outcome.said
    return (
        outcome.name,
        outcome.case.bottleneck,
        said if outcome.is_right or outcome.skipped else f"WRONG {said}",
        outcome.case.remedy or NOTHING,
        units.normalized(outcome.predicted),
        str(outcome.measured or units.UNKNOWN),
        units.UNKNOWN if outcome.error is None else f"{outcome.error:+.0%}",
    )


def confusion(ran: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table: diagnosed bottlenecks by planted ones."""
    counts = Counter((one.case.bottleneck, one.said or "failed") for one in ran)
    planted = list(dict.fromkeys(one.case.bottleneck for one in ran))
    said = [word for word in dict.fromkeys([*planted, *(word for _, word in counts)])
            if any(counts[each, word] for each in planted)]  # fmt: skip
    rows = [[each, *(str(counts[each, word] or "") for word in said)] for each in planted]
    return ["planted / said", *said], rows


def judge(outcomes: Sequence[Outcome]) -> list[tuple[bool, str]]:
    """Return for both limits whether they are met, and a line of text."""
    ran = [outcome for outcome in outcomes if not outcome.skipped]
    limits = (
        ("the right bottleneck", [one.is_right for one in ran], LEAST_RIGHT),
        (
            f"predicted within {units.limit(MOST_ERROR)} of measured",
            [one.is_near for one in ran if one.case.timed],
            LEAST_NEAR,
        ),
    )
    return [
        (
            bool(hits) and sum(hits) >= least * len(hits),
            f"{what}: {sum(hits)} of {len(hits)}, at least {units.limit(least)}",
        )
        for what, hits, least in limits
    ]


def main() -> int:
    parser = frame.parser(__doc__, data=True, rounds=4)
    parser.add_argument("--case", action="append", choices=CASES, help="all unless given")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        [name] = options.case
        outcome = examine(name, Path(options.data), options.alone, options.rounds)
        (options.alone / ANSWER).write_text(json.dumps(asdict(outcome)))
        return 0
    report = frame.Report("Planted bottlenecks and what was said of them", options)
    with frame.photographs(options.data, IMAGES) as (data, scratch):
        outcomes = [
            in_own_process(name, data, scratch, options.rounds)
            for name in bar(options.case or list(CASES), desc="cases")
        ]
    for outcome in outcomes:
        for text in (outcome.skipped, outcome.failed, *outcome.notes):
            if text:
                report.line(f"{outcome.name}: {text}")
    report.line(f"emulated GPU but where the CPU trains, {units.count(options.rounds, 'round')}")
    report.table(*confusion([outcome for outcome in outcomes if not outcome.skipped]))
    header = ("", "planted", "said", "remedy", "predicted", "measured", "error")
    report.table(header, list(map(row, outcomes)))
    for met, text in judge(outcomes):
        report.limit(met, text)
    return report.finish(list(map(asdict, outcomes)))


if __name__ == "__main__":
    sys.exit(main())
