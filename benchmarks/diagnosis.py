"""`lab.diagnose` on trainings whose bottleneck is known, against what the remedies measure.

    python -m benchmarks.diagnosis [--data FOLDER] [--case huge_collate …] [--rounds 4]
    python -m benchmarks.diagnosis --quick      8 cases, with shorter diagnoses
    python -m benchmarks.diagnosis --held-out   also those with which no rule was written
    python -m benchmarks.diagnosis --real       slow-downs that real projects reported and fixed
    python -m benchmarks.diagnosis --fresh      cases of someone who had not seen the rules

Each case runs in a process of its own: diagnose the training with the planted bottleneck, then time
it beside the one with the remedy.  Where nothing helps, the other is the training with batches that
are there already.  Three things must be right:

    bottleneck    the planted one is named
    first remedy  it removes what is planted
    number        of the remedy: its interval holds the measured ratio, or it is within 15 %

Floors, below which no epoch can be, must not be beaten by more than noise.

A case that cannot run on this machine is not counted; one that failed counts as wrong.  What is
right in a case was written down before the rules; an answer in other words counts as wrong.

Of real slow-downs (`real_cases`) the same is counted, but no limit is set; their table has gains,
with the published ones beside them.

Of fresh cases (`planted_fresh`), whose author had not seen the rules, the same is counted, with
Wilson's 95 % intervals and without limits.

Magnitudes suit a machine of two to four cores; where many more are idle, a stage that is slow on
one core may be hidden.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median

from benchmarks import frame
from benchmarks import planted_fresh as fresh
from benchmarks import planted_held_out as held_out
from benchmarks import planted_samples as samples
from benchmarks import planted_steps as steps
from benchmarks import planted_unseen as unseen
from benchmarks import planted_workers as workers
from benchmarks.photo_training import Site
from benchmarks.real_cases import REAL_CASES
from labkit import units
from labkit.contracts import Skip
from labkit.files import bar
from labkit.machine import page_cache
from labkit.parts.storage import slow_disk

IMAGES = 200
BUDGET_S, QUICK_BUDGET_S = 24.0, 12.0
LIMIT_S = 240.0  # of a case
LEAST = {"bottleneck": 0.90, "first remedy": 0.85, "number": 0.90}
MOST_ERROR = 0.15
MOST_BEATEN_SHARE = 0.05
NOTHING, HELD_OUT, REAL, FRESH = "nothing", "held out", "real", "fresh"
FEWER_BYTES = "fewer bytes"
PLANTED = ("", "planted", "named", "remedy", "first named", "its number", "measured", "error")

# A mount namespace of its own, where /dev/shm is small; all that runs in it goes with it.
IN_SMALL_MEMORY = (
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    f"mount -t tmpfs -o size={steps.SMALL_MEMORY_BYTES} tmpfs {steps.SHARED_MEMORY}"
    ' && exec "$@"', "sh",
)  # fmt: skip


def names(text: str) -> set[str]:
    """Return the names in a text with " or " between them."""
    return {name for name in text.split(" or ") if name}


@dataclass(frozen=True)
class Case:
    """A training with a planted bottleneck; between names that are right stands " or "."""

    make: Callable[[Site, bool], dict[str, object]]
    """Called with a site and `fixed`, returns the arguments of `lab.diagnose`."""
    bottleneck: str
    remedy: str = NOTHING
    """What was done in the fixed form."""
    also: str = ""
    """Other first remedies that are right; the fixed form does not tell what they gain."""
    kind: str = "seen"
    """Whether rules were written with it: seen, unseen, held out or fresh (seen last), or real."""
    inside: tuple[str, ...] = ()
    """A command that runs the case's process."""
    timed: bool = True
    """Whether the broken training runs at all."""


ALL = (
    Case(samples.slow_disk, "storage", "faster medium"),
    Case(samples.shared_disk, "shared storage", "faster shared storage"),
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
    Case(workers.late_samples, "jitter", "more prefetching", "more workers"),
    Case(workers.restarted_workers, "start-up", "persistent workers"),
    Case(workers.too_many_threads, "threads", "limit threads"),
    Case(
        steps.small_shared_memory, "shared memory", FEWER_BYTES,
        inside=IN_SMALL_MEMORY, timed=False,
    ),
    Case(steps.large_batches, "transfer", FEWER_BYTES),
    Case(steps.pageable_copies, "transfer", "pin memory"),
    Case(steps.wait_every_step, "synchronization", "synchronize less often"),
    Case(steps.checkpoint_storm, "checkpoint", "save less often"),
    Case(steps.slow_reports, "reports", "report less often"),
    Case(steps.metric_loops, "host work", "vectorize host work"),
    Case(steps.slow_device, "compute"),
    Case(steps.small_steps, "compute"),
    Case(steps.training_here, "compute"),
    *(replace(case, kind="unseen") for case in (
        Case(unseen.shared_lock, "workers wait for each other", "share no lock"),
        Case(
            unseen.batches_of_one, "per-batch overhead", "larger batches",
            "no workers or fewer workers",
        ),
        Case(unseen.float64_samples, "bytes or collate", FEWER_BYTES),
        Case(unseen.pil_numpy_chain, "transform", "faster transform"),
        Case(unseen.item_every_loss, "synchronization", "synchronize less often"),
        Case(
            unseen.main_thread_transform, "main thread or host work", "transform in workers",
            "transform on the device",
        ),
        Case(
            unseen.deep_queue, "shared memory", "less prefetching",
            f"fewer workers or {FEWER_BYTES}", inside=IN_SMALL_MEMORY, timed=False,
        ),
        Case(unseen.everything_twice, "duplicated work", "split between workers"),
        Case(unseen.million_objects, "start-up", "persistent workers", "arrays, not objects"),
        Case(unseen.json_per_sample, "transform or parsing", "faster transform or parse once"),
        Case(unseen.one_connection, "workers wait for each other", "connection per worker"),
    )),
    *(replace(case, kind=HELD_OUT) for case in (
        Case(held_out.slow_sampler, "sampler or main thread", "faster sampler"),
        Case(
            held_out.hdf5_chunks, "read amplification or packing", "smaller chunks",
            "read in order",
        ),
        Case(held_out.ragged_collate, "collate", "faster collate"),
        Case(
            held_out.sent_views, "serialization or bytes", FEWER_BYTES,
            "cheaper serialization or no workers",
        ),
        Case(held_out.deep_copies, "transform", "faster transform", "arrays, not objects"),
    )),
    *(replace(case, kind=FRESH) for case in (
        Case(fresh.resampled_in_python, "transform", "faster transform"),
        Case(
            fresh.tokenized_per_sample, "transform or parsing", "faster transform or parse once",
        ),
        Case(fresh.fields_made_per_sample, "transform", "faster transform"),
        Case(fresh.log_formatted_per_sample, "transform", "faster transform"),
        Case(
            fresh.mapped_array_converted, "transform or reading or read amplification",
            "faster transform or cheaper reads",
        ),
        Case(fresh.depth_maps_compressed, "decode", "faster decode"),
        Case(fresh.decoded_for_each_view, "decode", "faster decode"),
        Case(fresh.frames_decoded_and_dropped, "decode", "faster decode"),
        Case(fresh.archive_opened_per_sample, "reading or read amplification", "cheaper reads"),
        Case(
            fresh.folder_listed_per_sample, "reading or transform",
            "cheaper reads or faster transform",
        ),
        Case(
            fresh.query_without_index, "reading or read amplification or transform",
            "cheaper reads or faster transform",
        ),
        Case(
            fresh.shard_unpacked_per_sample, "reading or read amplification",
            "cheaper reads or smaller chunks", "read in order",
        ),
        Case(fresh.lock_on_a_file, "workers wait for each other", "share no lock"),
        Case(fresh.one_shard, "workers", "split between workers"),
        Case(fresh.spectrograms_without_workers, "workers", "more workers"),
        Case(
            fresh.service_asked_per_batch, "workers or collate", "more workers", "faster collate",
        ),
        Case(fresh.cold_rows, "jitter", "more prefetching", "more workers"),
        Case(fresh.vocabulary_read_every_epoch, "start-up", "persistent workers"),
        Case(fresh.sorted_for_every_batch, "sampler or main thread", "faster sampler"),
        Case(fresh.graphs_joined_in_python, "collate", "faster collate"),
        Case(
            fresh.padded_to_the_longest_of_all, "bytes or collate or transfer", FEWER_BYTES,
            "faster collate",
        ),
        Case(fresh.dense_labels, "bytes or collate or transfer", FEWER_BYTES),
        Case(
            fresh.clips_as_float64, "bytes or transform or collate",
            f"{FEWER_BYTES} or faster transform",
        ),
        Case(fresh.tensor_per_object, "serialization", "cheaper serialization"),
        Case(
            fresh.windows_in_pairs, "per-batch overhead", "larger batches",
            "no workers or fewer workers",
        ),
        Case(
            fresh.spectrograms_in_the_loop, "main thread or host work", "transform in workers",
            "transform on the device",
        ),
        Case(fresh.norms_read_per_layer, "synchronization", "synchronize less often"),
        Case(fresh.pixels_counted_in_python, "host work", "vectorize host work"),
        Case(
            fresh.pictures_every_step, "reports or host work", "report less often",
            "vectorize host work",
        ),
        Case(fresh.compressed_checkpoints, "checkpoint", "save less often"),
        Case(fresh.clouds_from_ordinary_memory, "transfer", "pin memory", FEWER_BYTES),
        Case(fresh.recurrent_network_here, "compute"),
        Case(fresh.rows_of_a_table_here, "compute"),
        Case(fresh.gradients_accumulated, "compute"),
        Case(fresh.slow_tokens_hidden, "compute"),
        Case(fresh.tensors_in_memory, "compute"),
        Case(fresh.as_fast_as_the_device, f"compute or {NOTHING}"),
        Case(fresh.cold_rows_hidden, "compute"),
    )),
)  # fmt: skip
CASES = {case.make.__name__: case for case in ALL} | {
    name: Case(case.make, case.bottleneck, case.remedy, kind=REAL)
    for name, case in REAL_CASES.items()
}
QUICK = (  # with short steps, of which every diagnosis takes some hundred
    "pil_numpy_chain", "huge_collate", "one_worker", "metric_loops",
    "shared_lock", "batches_of_one", "float64_samples", "main_thread_transform",
)  # fmt: skip


@dataclass(kw_only=True)
class Outcome:
    """The result of one case."""

    name: str
    bottleneck: str = ""
    """The bottleneck of the diagnosis."""
    first: str = ""
    """The first remedy it proposed."""
    claim: float | None = None
    """Normalized epoch time with the case's remedy; None: it was not among those proposed."""
    interval: tuple[float, float] | None = None
    """Of the claim, where it has one."""
    is_predicted: bool = False
    """Whether the claim is what is expected, and was not tried."""
    floor: float | None = None
    """Normalized time below which no epoch with the remedy can be; None where it was tried."""
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
        if self.claim is None or self.measured is None:
            return None
        return self.claim / self.measured.mean - 1

    @property
    def right(self) -> dict[str, bool]:
        """Whether each thing of LEAST is right; without those that this case does not show."""
        if self.skipped:
            return {}
        case = self.case
        right = {
            "bottleneck": self.bottleneck in names(case.bottleneck),
            "first remedy": self.first in names(case.remedy) | names(case.also),
        }
        return {**right, "number": self.is_number_right} if case.timed else right

    @property
    def is_number_right(self) -> bool:
        if self.error is None:
            return False
        low, high = self.interval or (math.inf, -math.inf)
        return abs(self.error) <= MOST_ERROR or low <= self.measured.mean <= high


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


def diagnose(case: Case, site: Site, budget_s: float) -> dict[str, object]:
    """Diagnose the training with the bottleneck; return fields of an `Outcome`."""
    import labkit as lab

    diagnosis = lab.diagnose(**case.make(site, False), budget_s=budget_s, progress=False)
    bottleneck = diagnosis.bottleneck or NOTHING
    named = {"bottleneck": bottleneck, "claim": diagnosis.ceiling, "first": NOTHING}
    if diagnosis.remedies:
        named["first"] = diagnosis.remedies[0].name
    if case.remedy == NOTHING:
        return named
    remedy = next((one for one in diagnosis.remedies if one.name in names(case.remedy)), None)
    if remedy is None:
        return {**named, "claim": None}
    return {
        **named,
        "claim": remedy.normalized_time,
        "interval": None if remedy.ci_low is None else (remedy.ci_low, remedy.ci_high),
        "is_predicted": remedy.measured is None,
        "floor": None if remedy.measured is not None else remedy.floor,
    }


def compare(case: Case, site: Site, rounds: int) -> dict[str, list[float]]:
    """Time epochs of the training with and without the bottleneck."""
    forms = {"broken": case.make(site, False), "fixed": case.make(site, True)}
    arms = {form: partial(epoch_s, training) for form, training in forms.items()}
    return frame.in_turn(arms, rounds)


def examine(name: str, data: Path, scratch: Path, rounds: int, budget_s: float) -> Outcome:
    """Diagnose and time one case in this process."""
    case = CASES[name]
    with Site(data, scratch) as site:
        try:
            diagnosed = diagnose(case, site, budget_s)
            times_s = compare(case, site, rounds) if case.timed else {}
        except Skip as reason:
            return Outcome(name=name, skipped=str(reason))
        finally:
            gc.collect()  # ends the workers, which must leave the slow disk before it is removed
        return Outcome(name=name, **diagnosed, times_s=times_s, notes=site.notes)


def in_own_process(name: str, data: Path, scratch: Path, rounds: int, budget_s: float) -> Outcome:
    """Run one case in a process of its own."""
    own = scratch / name
    own.mkdir()
    words = [
        "benchmarks.diagnosis", "--data", str(data), "--case", name, "--rounds", str(rounds),
        "--budget-s", str(budget_s),
    ]  # fmt: skip
    try:
        known = frame.in_own_process(words, own, limit_s=LIMIT_S, inside=CASES[name].inside)
    finally:
        if name in ("slow_disk", "shared_disk"):  # what a killed process left; a live one's stays
            with contextlib.suppress(OSError):
                slow_disk.down()
    return Outcome(**({"name": name} | known))


# --- all cases ------------------------------------------------------------------------------


def marked(outcome: Outcome, what: str, text: str) -> str:
    """Say so where something is wrong."""
    return text if outcome.right.get(what, True) else f"WRONG {text}"


def answer(outcome: Outcome) -> str:
    return "skipped" if outcome.skipped else "failed" if outcome.failed else outcome.bottleneck


def row(outcome: Outcome) -> tuple[str, ...]:
    claim = "expected " * outcome.is_predicted + units.normalized(outcome.claim)
    if outcome.interval:
        claim += f" {units.interval(*outcome.interval)}"
    return (
        outcome.name,
        outcome.case.bottleneck,
        marked(outcome, "bottleneck", answer(outcome)),
        outcome.case.remedy,
        marked(outcome, "first remedy", outcome.first),
        marked(outcome, "number", claim),
        str(outcome.measured or units.UNKNOWN),
        units.UNKNOWN if outcome.error is None else f"{outcome.error:+.0%}",
    )


def judge(outcomes: Sequence[Outcome]) -> list[tuple[bool, str]]:
    """Return for every limit whether it is met, and a line of text."""
    lines = []
    for what, least in LEAST.items():
        hits: dict[str, list[bool]] = {}  # by kind
        for one in outcomes:
            if what in one.right:
                hits.setdefault(one.case.kind, []).append(one.right[what])
        every = list(chain.from_iterable(hits.values()))
        parts = ", ".join(f"{kind} {sum(some)} of {len(some)}" for kind, some in hits.items())
        lines.append((
            bool(every) and sum(every) >= least * len(every),
            f"right {what}: {sum(every)} of {len(every)}, at least {units.limit(least)} ({parts})",
        ))  # fmt: skip
    return lines


def errors(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield lines that say how far the numbers of remedies are off what was measured."""
    for kind, is_predicted in (("expected", True), ("tried", False)):
        apart = [
            one.error
            for one in outcomes
            if one.error is not None and one.case.remedy != NOTHING
            if one.is_predicted == is_predicted
        ]
        if apart:
            yield (
                f"{units.count(len(apart), f'{kind} time')}: {median(map(abs, apart)):.0%} off "
                f"what was measured in the median, {min(apart):+.0%} to {max(apart):+.0%}"
            )


def judge_floors(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    """Return whether there are floors and hardly any is beaten by more than noise, and a text."""
    floors = [one for one in outcomes if one.floor is not None and one.measured is not None]
    beaten = [one.name for one in floors if one.measured.high < one.floor]
    share = units.percent(len(beaten) / len(floors)) if floors else units.UNKNOWN
    return (
        bool(floors) and len(beaten) <= MOST_BEATEN_SHARE * len(floors),
        f"floors beaten by more than noise: {len(beaten)} of {len(floors)} ({share}), "
        f"at most {units.limit(MOST_BEATEN_SHARE)}" + f": {', '.join(beaten)}" * bool(beaten),
    )


def report_planted(report: frame.Report, outcomes: Sequence[Outcome]) -> None:
    report.table(PLANTED, list(map(row, outcomes)))
    for text in errors(outcomes):
        report.line(text)
    report.limit(*judge_floors(outcomes))
    for met, text in judge(outcomes):
        report.limit(met, text)


# --- cases that are looked at once ------------------------------------------------------------


def share(right: Sequence[bool]) -> str:
    """Write how many are right: "3 of 4 (75.0 %, 95 % interval 30.1 to 95.4 %)"."""
    counted = f"{sum(right)} of {len(right)}"
    if not right:
        return counted
    from scipy.stats import binomtest

    ends = binomtest(sum(right), len(right)).proportion_ci(0.95, method="wilson")
    interval = f"95 % interval {100 * ends.low:.1f} to {100 * ends.high:.1f} %"
    return f"{counted} ({units.percent(sum(right) / len(right))}, {interval})"


def report_fresh(report: frame.Report, outcomes: Sequence[Outcome]) -> None:
    """Add a table, and how much of it is right; there are no limits."""
    report.table(PLANTED, list(map(row, outcomes)))
    for text in errors(outcomes):
        report.line(text)
    for what in LEAST:
        right = [one.right[what] for one in outcomes if what in one.right]
        report.line(f"right {what}: {share(right)}")


# --- slow-downs of real projects --------------------------------------------------------------


def gain(time: float, low: float | None = None, high: float | None = None) -> str:
    """Write a normalized time as a gain: "2.00×", with its interval "2.00× [1.80, 2.20]"."""
    ends = f" [{1 / high:.2f}, {1 / low:.2f}]" if low and high else ""
    return f"{1 / time:.2f}×{ends}"


def real_row(outcome: Outcome) -> tuple[str, ...]:
    claimed, measured = units.UNKNOWN, outcome.measured
    if outcome.claim is not None:
        kind = "expected" if outcome.is_predicted else "tried"
        claimed = f"{gain(outcome.claim, *(outcome.interval or ()))} {kind}"
    return (
        outcome.name,
        outcome.case.bottleneck,
        marked(outcome, "bottleneck", answer(outcome)),
        outcome.case.remedy,
        marked(outcome, "first remedy", outcome.first),
        marked(outcome, "number", claimed),
        gain(measured.mean, measured.low, measured.high) if measured else units.UNKNOWN,
        REAL_CASES[outcome.name].published or units.UNKNOWN,
    )


def report_real(report: frame.Report, outcomes: Sequence[Outcome]) -> None:
    """Add a table, how much of it is right, and what the projects wrote; there are no limits."""
    header = (
        "", "project's cause", "named", "project's fix", "first named", "its gain", "measured gain",
        "published gain",
    )  # fmt: skip
    report.table(header, list(map(real_row, outcomes)))
    for what in LEAST:
        right = [one.right[what] for one in outcomes if what in one.right]
        report.line(f"right {what}: {sum(right)} of {len(right)}")
    ratios = [one.measured for one in outcomes if one.measured is not None]
    faster = sum(ratio.high < 1 for ratio in ratios)
    report.line(f"faster with the project's fix by more than noise: {faster} of {len(ratios)}")
    for one in outcomes:
        case = REAL_CASES[one.name]
        figures = f" ({case.published}: {case.published_for})" if case.published else ""
        report.line(f"{one.name}: {case.source}, {case.cause}{figures}")


def choose(options: argparse.Namespace) -> Sequence[str]:
    """Return the names of the cases that the options ask for."""
    if options.case:
        return options.case
    if options.quick:
        return QUICK
    if options.real:
        return list(REAL_CASES)
    if options.fresh:
        return [name for name, case in CASES.items() if case.kind == FRESH]
    left_out = {REAL, FRESH} if options.held_out else {REAL, FRESH, HELD_OUT}
    return [name for name, case in CASES.items() if case.kind not in left_out]


def main() -> int:
    parser = frame.parser(__doc__, data=True, rounds=4)
    parser.add_argument("--case", action="append", choices=CASES, help="default: the planted ones")
    parser.add_argument("--quick", action="store_true", help="8 cases, shorter diagnoses")
    parser.add_argument("--held-out", action="store_true", help="also the cases looked at last")
    parser.add_argument("--real", action="store_true", help="slow-downs of real projects")
    parser.add_argument("--fresh", action="store_true", help="cases that were looked at once")
    parser.add_argument("--budget-s", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    budget_s = options.budget_s or (QUICK_BUDGET_S if options.quick else BUDGET_S)
    if options.alone:
        [name] = options.case
        outcome = examine(name, Path(options.data), options.alone, options.rounds, budget_s)
        frame.write_outcome(outcome, options.alone)
        return 0
    report = frame.Report("Known bottlenecks, and which were named", options)
    with frame.photographs(options.data, IMAGES) as (data, scratch):
        outcomes = [
            in_own_process(name, data, scratch, options.rounds, budget_s)
            for name in bar(choose(options), desc="cases")
        ]
    for outcome in outcomes:
        for text in (outcome.skipped, outcome.failed, *outcome.notes):
            if text:
                report.line(f"{outcome.name}: {text}")
    report.line(f"simulated GPU but where the CPU trains, {units.count(options.rounds, 'round')}")
    real = [one for one in outcomes if one.case.kind == REAL]
    looked_at_once = [one for one in outcomes if one.case.kind == FRESH]
    if planted := [one for one in outcomes if one.case.kind not in (REAL, FRESH)]:
        report_planted(report, planted)
    if real:
        report_real(report, real)
    if looked_at_once:
        report_fresh(report, looked_at_once)
    return report.finish(list(map(asdict, outcomes)))


if __name__ == "__main__":
    sys.exit(main())
