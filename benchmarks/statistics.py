"""How often the lab's verdicts are wrong, shown by simulation (EVIDENCE 1, last paragraph).

    python -m benchmarks.statistics [--experiments 1000] [--seed 1]

    machine of known behaviour -> plan -> simulated trials -> summary -> verdicts -> shares
    training of known behaviour -> times of its steps -> `labkit compare` -> verdicts -> shares

The truth is known, so errors can be counted: differences found where there are none, equality
granted where there is none, intervals that miss the truth.  Trials are planned, summarized and
judged by the lab's own code, steps recorded as in a watched training; no formula is repeated here.
"""

import math
import random
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace

import numpy as np
from scipy import signal, stats

from benchmarks import frame
from labkit import units
from labkit.analysis.rows import Row
from labkit.analysis.statistics import detectable_share
from labkit.analysis.summary import Summary, summarize
from labkit.analysis.thresholds import ALPHA, DELTA
from labkit.analysis.two_runs import RunComparison, compare_runs, step_time
from labkit.diagnosis.stretches import Stretches
from labkit.records import Data, Epoch, Provenance, RunInfo, Trial
from labkit.runs.schedule import next_trials
from labkit.settings import Settings

BASELINE = "baseline"
BLOCKS = 10  # the default of full mode
FOUR_EQUAL = {f"equal {i}": 1.0 for i in range(4)}
DIFFERENT = {"faster", "slower", "real but small"}
# At a difference of exactly DELTA equality is granted in 5 % by construction, and half of all
# correct simulations show more: only an excess that chance hardly explains is an error.
TOLERANCE_SE = 3


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What changes a trial's log time besides its variant."""

    noise: float
    """Standard deviation from trial to trial."""
    drift: float = 0.0
    """How much slower the machine is at the end of a run than at its start."""
    walk: float = 0.0
    """Standard deviation of a random walk's steps, one per trial."""
    spikes: float = 0.0
    """Share of trials that take 10 to 30 % longer."""
    blocks: float = 0.0
    """Standard deviation from block to block: what pairing cancels entirely."""


# Noise that the lab has to expect.  With less of it, equality is granted before any other
# verdict is looked at, and false positives become rarer.
DRIFTING = Machine(noise=0.03, drift=0.05, walk=0.003)
SPIKY = Machine(noise=0.02, drift=0.05, walk=0.003, spikes=0.1)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A share of simulated experiments with its limits."""

    name: str
    value: float
    times: int
    least: float = 0.0
    most: float = 1.0
    tolerance_se: float = 0.0
    """Standard errors by which a limit may be missed: the simulation's own error."""

    def standard_error(self, share: float) -> float:
        return math.sqrt(share * (1 - share) / self.times)

    def passes(self, tolerance_se: float = 0.0) -> bool:
        allowed_se = max(tolerance_se, self.tolerance_se)
        least = self.least - allowed_se * self.standard_error(self.least)
        return least <= self.value <= self.most + allowed_se * self.standard_error(self.most)

    def to_cells(self) -> tuple[str, ...]:
        limit = f"{100 * self.least:g} to {100 * self.most:g} %"
        limit += f" + {self.tolerance_se} SE" if self.tolerance_se else ""
        word = "met" if self.passes() else "MISSED"
        if (self.least, self.most) == (0, 1):
            limit = word = ""  # nothing was promised
        shares = (f"{100 * x:.2f} %" for x in (self.value, self.standard_error(self.value)))
        return self.name, limit, *shares, f"{self.times:,}", word


def rate(
    name: str, happens: Callable[[random.Random], bool], times: int, seed: int, **limits: float
) -> Rate:
    """Count how often something happens; every rate has its own random sequence."""
    rng = random.Random(f"{seed}/{name}")
    hits = sum(happens(rng) for _ in range(times))
    return Rate(name=name, value=hits / times, times=times, **limits)


# --- simulated experiments ------------------------------------------------------------------


def log_times(machine: Machine, count: int, rng: random.Random) -> list[float]:
    """Return the log times of successive trials of the same work."""
    walked, logs = 0.0, []
    for i in range(count):
        walked += rng.gauss(0, machine.walk)
        spike = math.log(rng.uniform(1.1, 1.3)) if rng.random() < machine.spikes else 0.0
        logs.append(machine.drift * i / count + walked + spike + rng.gauss(0, machine.noise))
    return logs


def trial(variant: str, block: int, position: int, role: str, time_s: float) -> Trial:
    """Return a trial with the given time."""
    epoch = Epoch(
        epoch_s=time_s, startup_s=0.0, first_batch_s=0.0, wait_s=0.0, transfer_s=0.0,
        forward_s=None, backward_s=None, launch_s=0.0, sync_s=0.0, steps=50, images=800,
        batch_bytes=0, compute_s=None,
    )  # fmt: skip
    return Trial(
        experiment="simulated", variant=variant, block=block, position=position, role=role,
        settings={}, status="ok", epochs=(epoch,),
    )  # fmt: skip


def experiment(
    machine: Machine, ratios: Mapping[str, float], rng: random.Random, blocks: int = BLOCKS
) -> Summary:
    """Simulate one experiment as the lab runs it.

    `ratios` are the true normalized times; the baseline's is 1.
    """
    info = RunInfo(
        experiment="simulated", question="", mode="full", baseline=BASELINE, blocks=blocks,
        variants=dict.fromkeys((BASELINE, *ratios), Settings()), order_seed=rng.getrandbits(32),
        status="finished", created_utc="", data=Data(), provenance=Provenance(),
    )  # fmt: skip
    trials, planned = [], next_trials(info, ())
    block_logs = {p.block: rng.gauss(0, machine.blocks) for p in planned}
    for p, log_s in zip(planned, log_times(machine, len(planned), rng)):
        time_s = ratios.get(p.variant, 1.0) * math.exp(log_s + block_logs[p.block])
        trials.append(trial(p.variant, p.block, p.position, p.role, time_s))
    return summarize(info, trials)


def excludes(row: Row, ratio: float) -> bool:
    return not row.ci_low <= ratio <= row.ci_high


def differs(row: Row) -> bool:
    """Whether the test at the row's own level, Holm included, finds a difference."""
    return row.compared.p_value <= row.level


# --- what is shown -------------------------------------------------------------------------


def false_positives(times: int, seed: int) -> list[Rate]:
    """All variants equal the baseline: how often is one of them called different?"""

    def finds_one(machine: Machine) -> Callable[[random.Random], bool]:
        return lambda rng: any(
            row.verdict in DIFFERENT for row in experiment(machine, FOUR_EQUAL, rng).rows
        )

    name = "false positives, 4 equal variants, drift and"
    return [
        rate(f"{name} spikes", finds_one(SPIKY), times, seed, most=0.07),
        rate(f"{name} normal noise", finds_one(DRIFTING), times, seed, most=0.07),
    ]


def called_unstable(times: int, seed: int) -> list[Rate]:
    """A1 and A2 differ by chance, or because the machine slows down by 20 % in every block."""

    def is_unstable(machine: Machine) -> Callable[[random.Random], bool]:
        return lambda rng: not experiment(machine, FOUR_EQUAL, rng).stable

    steady = Machine(noise=0.03)
    slowing_down = Machine(noise=0.015, drift=BLOCKS * math.log(1.2))
    name = "machine that slows down by 20 % in every block called unstable"
    return [
        rate("steady machine called unstable", is_unstable(steady), times, seed, most=0.01),
        rate(name, is_unstable(slowing_down), times, seed, least=0.8),
    ]


def power(times: int, seed: int) -> list[Rate]:
    """The effect is what the lab says it can detect: how often is it found?"""
    s = 0.02
    # s is that of ln T - mean(ln A1, ln A2): three trials' noise, with weights 1, 1/2 and 1/2.
    machine = Machine(noise=s / math.sqrt(1.5), blocks=0.05)

    def sees(blocks: int, alpha: float, equal: int) -> Callable[[random.Random], bool]:
        ratios = {"different": 1 + detectable_share(s, blocks, alpha)}
        ratios |= {f"equal {i}": 1.0 for i in range(equal)}
        return lambda rng: differs(experiment(machine, ratios, rng, blocks).rows[1])

    rates = [
        rate(f"power at the MDE, {n} blocks", sees(n, ALPHA, 0), times, seed, least=0.75, most=0.85)
        for n in (6, 8, 10, 20)
    ]
    # Holm's level is alpha/3 or more, so what is detectable at alpha/3 is seen at least as often.
    one_of_three = sees(BLOCKS, ALPHA / 3, 2)
    name = "power at the MDE of alpha/3, 1 of 3 variants differs"
    return [*rates, rate(name, one_of_three, times, seed, least=0.75)]


def equality_granted(times: int, seed: int) -> list[Rate]:
    """All differences are exactly DELTA: how often is one of them called none?"""

    def grants(ratio: float, s: float, variants: int) -> Callable[[random.Random], bool]:
        machine, equal = Machine(noise=s / math.sqrt(1.5)), "no practical difference"
        ratios = {f"v{i}": ratio for i in range(variants)}
        return lambda rng: any(
            row.verdict == equal for row in experiment(machine, ratios, rng).rows
        )

    limits = {"most": 0.05, "tolerance_se": TOLERANCE_SE}
    ratios = {"1.03": 1 + DELTA, "1/1.03": 1 / (1 + DELTA)}
    return [
        rate(
            f"called equal at {words}, s = {100 * s:g} %, {units.count(n, 'variant')}",
            grants(x, s, n),
            times,
            seed,
            **limits,
        )
        for words, x in ratios.items()
        for s, n in ((0.005, 1), (0.03, 1), (0.005, 4))
    ]


def coverage(times: int, seed: int) -> list[Rate]:
    """How often does the 95 % interval hold the truth?"""

    def holds(machine: Machine, blocks: int) -> Callable[[random.Random], bool]:
        return lambda rng: not excludes(experiment(machine, {"v": 1.1}, rng, blocks).rows[1], 1.1)

    return [
        rate(f"coverage, {n} blocks, {words}", holds(machine, n), times, seed, least=0.93)
        for words, machine in {"normal noise": DRIFTING, "10 % spikes": SPIKY}.items()
        for n in (6, 10, 20)
    ]


def documents_way(times: int, seed: int) -> list[Rate]:
    """The same drift and two equal arms, one after the other instead of in blocks."""
    machine, n = replace(DRIFTING, noise=0.015), 8

    def in_sequence(rng: random.Random) -> bool:
        logs = log_times(machine, 2 * n, rng)
        return stats.ttest_ind(logs[:n], logs[n:], equal_var=False).pvalue < ALPHA

    def in_blocks(rng: random.Random) -> bool:
        return excludes(experiment(machine, {"equal": 1.0}, rng, n).rows[1], 1.0)

    return [
        rate("for contrast, false positives of A...AB...B, 8 each", in_sequence, times, seed),
        rate("same machine, 8 shuffled blocks: interval excludes 1", in_blocks, times, seed),
    ]


# --- two watched trainings ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the times of a training's steps vary; times are in multiples of a usual step's."""

    spread: float = 0.1
    """Standard deviation of a step's log time."""
    correlation: float = 0.0
    """Of the log times of neighbouring steps: an AR(1) process."""
    stall_every: int = 0
    """Steps from one stall to the next, as of late workers or starts of epochs; 0: no stalls."""
    stall: float = 0.0
    """How long a stall takes."""

    def steps(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return the times of successive steps, (count,)."""
        innovations = rng.standard_normal(count) * math.sqrt(1 - self.correlation**2)
        innovations[0] = rng.standard_normal()  # the process is in its steady state
        times = np.exp(self.spread * signal.lfilter([1], [1, -self.correlation], innovations))
        if self.stall_every:
            times[rng.integers(self.stall_every) :: self.stall_every] += self.stall
        return times


def compared(
    training: Training, steps: tuple[int, int], ratio: float, rng: random.Random
) -> RunComparison:
    """Simulate two runs, of which the second is `ratio` times as fast, and compare them."""
    draw, step_times = np.random.default_rng(rng.getrandbits(64)), []
    for count, speed in zip(steps, (1.0, ratio)):
        stretches = Stretches()
        for time_s in (training.steps(count, draw) / speed).tolist():
            stretches.add(1, time_s)
        step_times.append(step_time(stretches.pairs()))
    return compare_runs(*step_times)


# Words -> a training, and how many steps before and after.
TRAININGS = {
    "independent steps": (Training(), (1000, 1000)),
    "50 steps, AR(1), φ = 0.9": (Training(correlation=0.9), (50, 50)),
    "AR(1), φ = 0.5": (Training(correlation=0.5), (1000, 1000)),
    "AR(1), φ = 0.9": (Training(correlation=0.9), (1000, 1000)),
    "AR(1), φ = 0.9, 300 and 4,000 steps": (Training(correlation=0.9), (300, 4000)),
    "every 4th step late": (Training(stall_every=4, stall=4.0), (1000, 1000)),
    "starts of epochs": (Training(stall_every=300, stall=100.0), (1000, 3000)),
    "heavy tails": (Training(spread=1.0), (1000, 1000)),
    "all of them": (
        Training(spread=0.5, correlation=0.7, stall_every=8, stall=6.0),
        (1000, 2000),
    ),
}


def compared_runs(times: int, seed: int) -> list[Rate]:
    """Two watched trainings: does the interval hold the truth, and are verdicts right?"""

    def holds(training: Training, steps: tuple[int, int]) -> Callable[[random.Random], bool]:
        def check(rng: random.Random) -> bool:
            result = compared(training, steps, 1.5, rng)
            return result.low <= 1.5 <= result.high

        return check

    def judges(
        verdicts: set[str], ratio: float, training: Training, steps: tuple[int, int]
    ) -> Callable[[random.Random], bool]:
        return lambda rng: compared(training, steps, ratio, rng).verdict in verdicts

    rates = []
    for words, how in TRAININGS.items():
        name = f"two runs, {words}"
        wrong = judges({"faster", "slower"}, 1.0, *how)
        rates += [
            rate(f"{name}: coverage", holds(*how), times, seed, least=0.93),
            rate(f"{name}: equal runs called faster or slower", wrong, times, seed, most=0.07),
        ]
    limits = {"most": 0.05, "tolerance_se": TOLERANCE_SE}
    for ratio, words in ((1 + DELTA, "1.03"), (1 / (1 + DELTA), "1/1.03")):
        equal = judges({"no difference"}, ratio, Training(correlation=0.5), (4000, 4000))
        rates.append(rate(f"two runs called equal at {words}", equal, times, seed, **limits))
    seen = judges({"faster"}, 1.2, *TRAININGS["AR(1), φ = 0.9"])
    return [*rates, rate("two runs, φ = 0.9: 1.2 times as fast is seen", seen, times, seed)]


# Simulations per rate, in multiples of --experiments: more where the truth is near the limit.
SIMULATIONS = {
    false_positives: 1, called_unstable: 1, power: 2, equality_granted: 5, coverage: 5,
    documents_way: 1, compared_runs: 1,
}  # fmt: skip


def main() -> int:
    parser = frame.parser(__doc__)
    parser.add_argument("--experiments", type=int, default=1000, help="simulated per A/A rate")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    n, seed = options.experiments, options.seed
    report = frame.Report("How often verdicts are wrong", options)
    with ProcessPoolExecutor() as pool:
        proofs = [pool.submit(prove, share * n, seed) for prove, share in SIMULATIONS.items()]
        rates = [rate for proof in proofs for rate in proof.result()]
    header = ("share of simulated experiments", "limit", "simulated", "SE", "of", "")
    report.table(header, [rate.to_cells() for rate in rates])
    missed = sum(not rate.passes() for rate in rates)
    report.limit(not missed, f"seed {seed}, {units.count(missed, 'limit')} missed")
    return report.finish([asdict(rate) for rate in rates])


if __name__ == "__main__":
    sys.exit(main())
