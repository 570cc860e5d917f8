"""How near `lab.tune` comes to the optimum: twelve loops whose optimum an exhaustive search finds.

    python -m benchmarks.tune [--case NAME] [--rounds 6] [--budget-s 60]

Each loop has a planted cost: samples that wait or compute, a slow collate, uneven batches, …  Every
combination of workers, prefetch_factor, persistent_workers, in_order and, with OpenCV, threads is
timed over a whole epoch, in random order, and those near the fastest again.  The fastest one and
what `lab.tune` chose are then timed in paired rounds, more of them where these vary: the best of
many noisy numbers looks better than it is.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

import labkit as lab
from benchmarks import frame
from labkit import units
from labkit.diagnosis.loaders import OneThread
from labkit.diagnosis.tune import end_opencv_threads
from labkit.files import bar
from labkit.machine import hardware

# Rounds of the exhaustive search: of the fastest one's time, that up to which a candidate is timed
# again.  An epoch alone is off by some percent.
KEPT_RATIOS = (1.15, 1.08, 1.0)
MOST_BEHIND = 0.03  # of the optimum's time
MOST_ROUNDS = 30  # of paired ones: more are added where the interval is wider than that
LEAST_RIGHT = 11  # of the twelve
LONGEST_TUNING_S = 120
STALL_S = 10.0  # a worker without room in shared memory stalls
LIMIT_S = 600.0  # of one case
SAME = (1.0, 1.0, 1.0)  # a ratio with its interval
BUFFER = bytes(1 << 20)
SMALL_MEMORY_BYTES = 48 << 20  # of /dev/shm in one case
# A mount namespace of its own, where /dev/shm is small; what runs in it takes it along as it ends.
IN_SMALL_MEMORY = (
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    f"mount -t tmpfs -o size={SMALL_MEMORY_BYTES} tmpfs /dev/shm" ' && exec "$@"', "sh",
)  # fmt: skip


# --- the loops --------------------------------------------------------------------------------


@dataclass
class Work(Dataset):
    """Samples with a planted cost."""

    samples: int
    wait_s: Callable[[int], float] = lambda i: 0.0
    """Seconds that a sample waits, as for a disk or a server."""
    blocks: int = 0
    """MiB of which a sample computes a checksum."""
    shape: tuple[int, ...] = (16,)
    extra: Callable[[], object] = lambda: None
    """What else a sample does."""

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> torch.Tensor:
        if seconds := self.wait_s(i):
            time.sleep(seconds)
        compute(self.blocks)
        self.extra()
        return torch.zeros(self.shape)


def compute(blocks: int) -> None:
    for _ in range(blocks):
        zlib.crc32(BUFFER)


@dataclass(frozen=True)
class Case:
    """A training loop."""

    name: str
    dataset: Dataset
    batch_size: int
    step: Callable[[object], object]
    now: dict[str, Any] = field(default_factory=dict)
    """Arguments of its DataLoader that the search may change."""
    options: dict[str, Any] = field(default_factory=dict)
    """Other arguments."""
    inside: tuple[str, ...] = ()
    """A command that runs the case's process."""

    def loader(self, arguments: dict[str, Any]) -> DataLoader:
        if not arguments.get("num_workers"):
            arguments = {"num_workers": 0}
        options = {**self.options, **arguments}
        return DataLoader(self.dataset, self.batch_size, **options)


def waits(seconds: float) -> Callable[[object], None]:
    """Return a step that leaves the cores to others, as one on a GPU does."""
    return lambda batch: time.sleep(seconds)


def multiply(batch: object) -> None:
    """Compute on the CPU, with all threads that torch has."""
    matrix = torch.ones(500, 500)
    for _ in range(3):
        matrix = matrix @ matrix.T * 1e-3


def collate_slowly(samples: list[torch.Tensor]) -> torch.Tensor:
    compute(60)
    return torch.stack(samples)


def start_slowly(number: int) -> None:
    time.sleep(0.3)  # such as reading an index


def resize() -> None:
    import cv2
    import numpy as np

    image = np.zeros((1200, 1600, 3), np.uint8)
    cv2.resize(cv2.GaussianBlur(image, (9, 9), 2), (224, 224), interpolation=cv2.INTER_AREA)


def with_opencv() -> Dataset:
    import cv2  # before the search looks for it

    cv2.setNumThreads(-1)  # as many threads as cores, its default
    return Work(24 * 4, extra=resize)


CASES: dict[str, Callable[[], Case]] = {}


def planted(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CASES[make.__name__] = lambda: Case(make.__name__, **make())
    return make


@planted
def waiting_samples() -> dict[str, Any]:
    dataset = Work(30 * 8, wait_s=lambda i: 0.005)
    return {"dataset": dataset, "batch_size": 8, "step": waits(0.010)}


@planted
def computed_samples() -> dict[str, Any]:
    return {"dataset": Work(30 * 8, blocks=6), "batch_size": 8, "step": waits(0.010)}


@planted
def slow_step() -> dict[str, Any]:
    """Nothing is worth changing."""
    dataset = Work(30 * 8, blocks=2)
    return {"dataset": dataset, "batch_size": 8, "step": waits(0.050), "now": {"num_workers": 1}}


@planted
def tiny_samples() -> dict[str, Any]:
    """Handing over a batch takes longer than making it."""
    dataset = Work(3000 * 4)
    now = {"num_workers": 2, "persistent_workers": True}
    return {"dataset": dataset, "batch_size": 4, "step": lambda batch: None, "now": now}


@planted
def large_batches() -> dict[str, Any]:
    dataset = Work(24 * 8, wait_s=lambda i: 0.003, shape=(3, 512, 512))
    return {"dataset": dataset, "batch_size": 8, "step": waits(0.020)}


@planted
def slow_collate() -> dict[str, Any]:
    dataset, options = Work(30 * 8), {"collate_fn": collate_slowly}
    return {"dataset": dataset, "batch_size": 8, "step": waits(0.015), "options": options}


@planted
def uneven_batches() -> dict[str, Any]:
    """Every second batch is slow, so that in order one worker makes all slow ones."""
    dataset = Work(32 * 4, wait_s=lambda i: 0.020 if i // 4 % 2 else 0.001)
    now = {"num_workers": 2}
    return {"dataset": dataset, "batch_size": 4, "step": waits(0.010), "now": now}


@planted
def late_batches() -> dict[str, Any]:
    """One batch of twelve is late by eight steps."""
    dataset = Work(36 * 4, wait_s=lambda i: 0.050 if i // 4 % 12 == 5 else 0.003)
    now = {"num_workers": 2}
    return {"dataset": dataset, "batch_size": 4, "step": waits(0.025), "now": now}


@planted
def small_shared_memory() -> dict[str, Any]:
    """Batches of 6 MB: deep queues of two workers do not fit into 48 MiB."""
    dataset = Work(30 * 8, wait_s=lambda i: 0.004, shape=(3, 256, 256))
    case = {"dataset": dataset, "batch_size": 8, "step": waits(0.010)}
    return case | {"inside": IN_SMALL_MEMORY}


@planted
def restarted_workers() -> dict[str, Any]:
    """Epochs are short, and workers take long to start."""
    dataset, options = Work(20 * 8, wait_s=lambda i: 0.005), {"worker_init_fn": start_slowly}
    now = {"num_workers": 2}
    case = {"dataset": dataset, "batch_size": 8, "step": waits(0.010), "now": now}
    return case | {"options": options}


@planted
def step_on_the_cpu() -> dict[str, Any]:
    return {"dataset": Work(40 * 8, blocks=3), "batch_size": 8, "step": multiply}


@planted
def threads_in_workers() -> dict[str, Any]:
    """OpenCV starts as many threads in each worker as there are cores."""
    now = {"num_workers": 2}
    return {"dataset": with_opencv(), "batch_size": 4, "step": waits(0.010), "now": now}


# --- one loop ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one loop."""

    name: str
    tuned: str = ""
    """The line of `lab.tune`; "" where nothing is worth changing."""
    claim: tuple[float, float, float] | None = None
    """How many times as fast it says that is, with its interval."""
    took_s: float = 0.0
    optimum: str = ""
    is_optimum: bool = False
    """Whether what was tuned has the same arguments as the optimum."""
    behind: tuple[float, float, float] = SAME
    """The tuned time divided by the optimum's, with its interval."""
    gain: tuple[float, float, float] = SAME
    """The time as it is divided by the tuned one."""
    times_s: dict[str, list[float]] = field(default_factory=dict)
    """Of an epoch, by arguments, in the exhaustive search."""
    skipped: str = ""
    failed: str = ""

    @property
    def is_near(self) -> bool:
        return not self.failed and self.behind[0] <= 1 + MOST_BEHIND


class FirstSamples(Sampler):
    """The first samples of a data set, in their order; by default all of them."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


def candidates(case: Case) -> list[dict[str, Any]]:
    """Return all arguments that the exhaustive search tries."""
    all_of_them: list[dict[str, Any]] = [{"num_workers": 0}]
    inits = [None]
    if "cv2" in sys.modules:
        inits.append(OneThread(case.options.get("worker_init_fn"), True))
    for workers in range(1, hardware.cores() + 1):
        orders = (True, False) if workers > 1 else (True,)
        for factor, kept, order, init in itertools.product((2, 4, 8), (False, True), orders, inits):
            arguments = {
                "num_workers": workers, "prefetch_factor": factor, "persistent_workers": kept,
                "in_order": order,
            }  # fmt: skip
            all_of_them.append(arguments | ({"worker_init_fn": init} if init else {}))
    return all_of_them


def time_epoch(case: Case, arguments: dict[str, Any]) -> float:
    """Return the seconds of an epoch; with persistent workers, of one that finds them started."""
    end_opencv_threads()
    workers, samples = arguments.get("num_workers", 0), len(case.dataset)
    if not workers:
        return epoch_s(case, case.loader(arguments))
    order = FirstSamples(samples)
    loader = case.loader(arguments | {"timeout": STALL_S, "sampler": order})
    if loader.persistent_workers:
        order.samples = workers * case.batch_size  # a batch of each starts them
        for _ in loader:
            pass
        order.samples = samples
    return epoch_s(case, loader)


def epoch_s(case: Case, loader: DataLoader) -> float:
    begun_s = time.perf_counter()
    for batch in loader:
        case.step(batch)
    return time.perf_counter() - begun_s


def search(case: Case) -> dict[str, list[float]]:
    """Return the seconds of an epoch of each candidate that works, by its arguments as JSON."""
    tried = {written(each): each for each in candidates(case)}
    times_s: dict[str, list[float]] = {name: [] for name in tried}
    kept = list(tried)
    for kept_ratio in KEPT_RATIOS:
        for name in random.sample(kept, len(kept)):
            try:
                times_s[name].append(time_epoch(case, tried[name]))
            except RuntimeError:  # it has no room in shared memory
                del times_s[name]
        typical_s = {name: statistics.median(times_s[name]) for name in kept if name in times_s}
        most_s = kept_ratio * min(typical_s.values())
        kept = [name for name, each_s in typical_s.items() if each_s <= most_s]
    return {name: times_s[name] for name in (*kept, *times_s) if name in times_s}


def written(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in arguments.items())


def examine(name: str, rounds: int, budget_s: float) -> Outcome:
    case = CASES[name]()
    begun_s = time.monotonic()
    tuned = lab.tune(case.loader(case.now), case.step, budget_s=budget_s, progress=False)
    took_s = time.monotonic() - begun_s
    times_s = search(case)
    best = next(iter(times_s))
    optimum = next(each for each in candidates(case) if written(each) == best)
    chosen = {**case.now, **tuned.changes}
    defaults = {"num_workers": 0, "prefetch_factor": 2, "persistent_workers": False,
                "in_order": True}  # fmt: skip
    full = defaults | chosen
    is_optimum = written(full if full["num_workers"] else {"num_workers": 0}) == best
    arms = {"tuned": chosen}
    if not is_optimum:
        arms["optimum"] = optimum
    if tuned.changes:
        arms["now"] = case.now
    timed = {arm: partial(time_epoch, case, arguments) for arm, arguments in arms.items()}
    taken_s = frame.in_turn(timed, rounds) if len(arms) > 1 else {}
    behind = ratio(taken_s, "tuned", "optimum")
    while _is_too_wide(behind) and len(taken_s["tuned"]) < MOST_ROUNDS:
        more_s = frame.in_turn(timed, rounds)
        taken_s = {arm: taken_s[arm] + more_s[arm] for arm in arms}
        behind = ratio(taken_s, "tuned", "optimum")
    gain = ratio(taken_s, "now", "tuned")
    return Outcome(
        name=name,
        tuned=tuned.line,
        claim=None if tuned.interval is None else (tuned.times_as_fast, *tuned.interval),
        took_s=took_s,
        optimum=best,
        is_optimum=is_optimum,
        behind=behind,
        gain=gain,
        times_s=times_s,
    )


def _is_too_wide(interval: tuple[float, float, float]) -> bool:
    """Return whether it does not tell a time from one that is `MOST_BEHIND` longer."""
    _, low, high = interval
    return high - low > MOST_BEHIND


def ratio(taken_s: dict[str, list[float]], one: str, other: str) -> tuple[float, float, float]:
    if not {one, other} <= taken_s.keys():  # they have the same arguments
        return SAME
    return astuple(frame.ratio(taken_s[one], taken_s[other]))


def in_own_process(name: str, rounds: int, budget_s: float) -> Outcome:
    """Examine a loop in a process of its own: what one loop imports does not change another."""
    words = [
        "benchmarks.tune", "--case", name, "--rounds", str(rounds), "--budget-s", str(budget_s),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="labkit-benchmark-") as folder:
        known = frame.in_own_process(
            words, Path(folder), limit_s=LIMIT_S, inside=CASES[name]().inside
        )
    return Outcome(**({"name": name} | known))


# --- all loops --------------------------------------------------------------------------------


def row(outcome: Outcome) -> tuple[str, ...]:
    if outcome.skipped or outcome.failed:
        return (outcome.name, "skipped" if outcome.skipped else "FAILED", "", "", "", "", "")
    claim = "" if outcome.claim is None else units.normalized(*outcome.claim)
    behind = "the same" if outcome.is_optimum else units.normalized(*outcome.behind)
    return (
        outcome.name,
        outcome.tuned.removeprefix("DataLoader(..., ").removesuffix(")") or "as it is",
        outcome.optimum,
        behind if outcome.is_near else f"MISSED {behind}",
        claim,
        units.normalized(*outcome.gain),
        f"{outcome.took_s:.0f} s",
    )


def main() -> int:
    parser = frame.parser(__doc__, rounds=6)
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--budget-s", type=float, default=60.0, help="of lab.tune")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        [name] = options.case
        outcome = examine(name, options.rounds, options.budget_s)
        frame.write_outcome(outcome, options.alone)
        return 0
    report = frame.Report("How near lab.tune comes to the optimum", options)
    chosen = options.case or list(CASES)
    outcomes = [
        in_own_process(name, options.rounds, options.budget_s) for name in bar(chosen, desc="loops")
    ]
    for outcome in outcomes:
        if text := outcome.skipped or outcome.failed:
            report.line(f"{outcome.name}: {text}")
    report.line(
        f"{units.count(options.rounds, 'round')}; the exhaustive search timed each candidate once, "
        f"and the fastest {len(KEPT_RATIOS)} times; a budget of "
        f"{units.whole_seconds(options.budget_s)} each"
    )
    header = (
        "loop", "tuned", "optimum", "tuned ÷ optimum", "times as fast, printed", "measured", "took",
    )  # fmt: skip
    report.table(header, list(map(row, outcomes)))
    measured = [one for one in outcomes if not one.skipped]
    near = sum(one.is_near for one in measured)
    least = round(LEAST_RIGHT / len(CASES) * len(measured))
    report.limit(
        near >= least,
        f"within {units.limit(MOST_BEHIND)} of the optimum: {near} of {len(measured)}, at least "
        f"{least}",
    )
    slowest_s = max((one.took_s for one in measured), default=0.0)
    report.limit(
        slowest_s <= LONGEST_TUNING_S,
        f"the longest search took {slowest_s:.0f} s, at most {LONGEST_TUNING_S}",
    )
    return report.finish(list(map(asdict, outcomes)))


if __name__ == "__main__":
    sys.exit(main())
