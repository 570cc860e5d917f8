"""Is data loading the problem of a watched training?  From what was measured to a few lines.

Phases + Gpu + Cpu ─▶ Facts ─▶ Answer ─▶ at most six lines
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from labkit import units
from labkit.diagnosis.loops import Phase, Phases
from labkit.diagnosis.thresholds import (
    CORES_BUSY_SHARE,
    GPU_IDLE_SHARE,
    INPUT_BOUND_SHARE,
    MAIN_CAUSE_SHARE,
    MODERATELY_INPUT_BOUND_SHARE,
    OTHER_PROGRAMS_SHARE,
    REPORTED_SHARE,
    WORKER_BUSY_SHARE,
    WORKER_IDLE_SHARE,
)  # fmt: skip

Verdict = Literal["problem", "small problem", "no problem", "cannot tell"]
Device = Literal["cpu", "cuda", "mps", "xpu"]

WRAP = "wrap it in the training loop: `for batch in lab.watch(loader)`"
UNSEEN = {
    "nothing": "no DataLoader of torch was iterated over in this process",
    "short": "the run was too short: no step was seen after the first one and the batches that "
    "had been loaded meanwhile",
    "loader": "the training takes its batches from a loader that watch does not see (not a "
    f"DataLoader of torch, or in another process); {WRAP}",
    "thread": "a thread takes the batches from the loader, and how they reach the training was not "
    f"seen; {WRAP}",
}


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Measurements of the GPU by NVML during the training's steps."""

    utilization: float | None
    """Share of the time in which a kernel of any program ran."""
    others: float | None
    """Utilization by other programs; None if NVML does not report it."""
    used_bytes: int | None
    total_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Cores in use in the loops of the thread that trains."""

    cores: int
    """That this process may use."""
    process: float
    """That it uses."""
    workers: float
    """Cores that all workers use together."""
    per_worker: float | None
    """None without workers."""
    busy_share: float | None
    """Share of the process's available cores that all programs use."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was measured of a training."""

    phases: Phases
    computes_on: Device
    gpu: Gpu | None
    """None without NVML."""
    cpu: Cpu | None
    ranks: int = 1
    """Processes that train together."""

    def as_json(self) -> dict[str, Any]:
        """Return all facts, and the answer, as JSON can hold them."""
        facts = asdict(self)
        phases = facts.pop("phases")
        for name in ("training", "validation"):
            phase = getattr(self.phases, name)
            more = {"images_per_s": phase.images_per_s, "loading_share": phase.loading_share}
            phases[name] |= more
        return phases | {"run_s": self.phases.run_s} | facts | {"answer": asdict(answer(self))}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether data loading is the problem."""

    verdict: Verdict
    sentence: str
    cause: str = ""
    speed_up: float | None = None
    """Largest possible speed-up of the whole run if loading took no time; None if unknown."""


def answer(facts: Facts) -> Answer:
    """Return whether data loading holds the training back, why, and by how much."""
    phases = facts.phases
    if phases.unseen:
        return _cannot_tell(UNSEEN[phases.unseen])
    training, validation, gpu = phases.training, phases.validation, facts.gpu
    share = training.loading_share
    waits = f"the {'training' if phases.trains else 'loop'} waits for data"
    waits = f"{waits} {units.percent(share)} of its time"
    if share >= REPORTED_SHARE and facts.computes_on != "cpu":
        if gpu is None or gpu.utilization is None:
            where = "without NVML" if facts.computes_on == "cuda" else f"on {facts.computes_on}"
            why = f"whether the GPU computes meanwhile cannot be seen {where}"
            return _cannot_tell(f"{waits}, but {why}")
        if (gpu.others or 0.0) >= OTHER_PROGRAMS_SHARE:
            return _cannot_tell(f"{waits}, but other programs use the GPU as well")
        idle = 1 - gpu.utilization
        if idle < REPORTED_SHARE:
            busy = units.percent(gpu.utilization)
            waits = f"{waits}, but the GPU computes meanwhile (utilization {busy})"
        share = min(share, idle)  # no loader makes a GPU busier than all of the time
    run_s = phases.run_s or 1.0  # on a clock that stands still
    in_validation_s = validation.loading_share * validation.s
    saved = (share * training.s + in_validation_s) / run_s
    if in_validation_s >= REPORTED_SHARE * run_s:
        waits += f"; the validation waits {units.percent(validation.loading_share)} of its time"
        waits += f", which is {units.percent(in_validation_s / run_s)} of the run"
    worst = max(share, saved)
    if worst < MODERATELY_INPUT_BOUND_SHARE:
        words = [waits]
        if gpu and gpu.utilization is not None and 1 - gpu.utilization >= GPU_IDLE_SHARE:
            idle_share = units.percent(1 - gpu.utilization)
            words.append(f"the GPU is idle {idle_share} of it because of the CPU work in a step")
        sentence = f"Data loading is not the problem: {'; '.join(words)}."
        return Answer(verdict="no problem", sentence=sentence)
    verdict: Verdict = "problem" if worst >= INPUT_BOUND_SHARE else "small problem"
    speed_up = None
    if facts.ranks > 1:
        effect = "the rest may include waiting for other ranks"
    elif _cores_are_busy(facts.cpu):
        effect = "its workers keep the cores busy, which slows down the rest as well"
    else:
        speed_up = 1 / max(1 - saved, 1e-3)
        what = f"the {'run' if phases.trains else 'loop'} would be at most {speed_up:.3g} times"
        effect = f"with loading that takes no time {what} as fast"
    which = "the" if verdict == "problem" else "a small part of the"
    if in_validation_s > share * training.s:
        which, effect = f"{which} problem in the validation", f"{waits}; {effect}"
    else:
        which, effect = f"{which} problem", effect if speed_up else f"{waits}; {effect}"
    phase = training if share >= MODERATELY_INPUT_BOUND_SHARE else validation
    return Answer(
        verdict=verdict,
        sentence=f"Data loading is {which}: {effect}.",
        cause=_cause(phase, facts.cpu),
        speed_up=speed_up,
    )


def _cannot_tell(why: str) -> Answer:
    sentence = f"Whether data loading is the problem cannot be told: {why}."
    return Answer(verdict="cannot tell", sentence=sentence)


def _cores_are_busy(cpu: Cpu | None) -> bool:
    """Return whether workers compete for cores with each other, the training or other programs."""
    if cpu is None or cpu.per_worker is None:
        return False
    if cpu.process + cpu.workers >= CORES_BUSY_SHARE * cpu.cores:
        return True
    return (cpu.busy_share or 0.0) >= CORES_BUSY_SHARE and cpu.per_worker >= WORKER_IDLE_SHARE


def _cause(phase: Phase, cpu: Cpu | None) -> str:
    """Return why batches come late, as far as it shows; "" where it does not."""
    workers = [loader.workers for loader in phase.loaders if loader.workers is not None]
    if phase.prepare_s > MAIN_CAUSE_SHARE * (phase.wait_s + phase.prepare_s):
        return "the training process itself prepares batches after the loader"
    if workers and not any(workers):
        return "num_workers=0, so the training process loads every batch itself"
    if phase.starts_s > MAIN_CAUSE_SHARE * phase.wait_s:
        return "most of the waiting is at the start of epochs, while workers start"
    if cpu is None or cpu.per_worker is None:
        return ""
    if _cores_are_busy(cpu):
        return f"all {cpu.cores} cores are busy, so more workers would not help"
    each = f"a worker uses {units.percent(cpu.per_worker)} of a core"
    if cpu.per_worker >= WORKER_BUSY_SHARE:
        return f"{each} and cores are idle, so more workers may help"
    if (cpu.busy_share or 0.0) >= CORES_BUSY_SHARE:
        return f"{each}, and other programs keep the cores busy"
    if cpu.per_worker < WORKER_IDLE_SHARE:
        return f"{each}: workers wait as well, for storage, a lock or one late batch"
    return ""


# --- lines ------------------------------------------------------------------------------------


def lines(facts: Facts, following: str = "", conclusion: Answer | None = None) -> list[str]:
    """Return what was measured and the answer, in at most six lines.

    Args:
        facts: what was measured.
        following: the command that goes on where loading is, or may be, the problem.
        conclusion: the answer to print.  Default: `answer(facts)`.
    """
    conclusion = conclusion or answer(facts)
    rows = [] if facts.phases.unseen else [phase_line(facts), *_run_line(facts.phases)]
    rows += [_machine_line(facts)] if rows else []
    rows.append(conclusion.sentence)
    rows += [f"Cause: {conclusion.cause}."] if conclusion.cause else []
    if following and conclusion.verdict != "no problem":
        rows.append(f"Next: {following}")
    return rows


def phase_line(facts: Facts) -> str:
    """Return steps, rate and waits of the training in a line."""
    phases, training = facts.phases, facts.phases.training
    steps = f"{training.steps:,} batches"
    if phases.batches_per_update and phases.batches_per_update > 1.05:
        steps += f" ({phases.batches_per_update:.3g} to an optimizer step)"
    parts = [steps, units.rate(training.images_per_s)]
    waits = f"waiting for data {units.percent(training.loading_share)} of the time"
    if training.median_wait_s is not None:
        median, p99 = map(units.seconds, (training.median_wait_s, training.p99_wait_s))
        waits += f" (median {median}, 99th percentile {p99}"
        often = training.cycle and training.wait_s >= REPORTED_SHARE * training.s
        waits += f"; most of it every {training.cycle} batches)" if often else ")"
    parts.append(waits)
    if training.prepare_s >= REPORTED_SHARE * training.s:
        share = units.percent(training.prepare_s / training.s)
        parts.append(f"{share} of the time preparing batches after the loader")
    return f"{'Training' if phases.trains else 'Loop'}: {', '.join(parts)}"


def _run_line(phases: Phases) -> list[str]:
    """Return what else the run did, if it is worth a line."""
    run_s, validation = phases.run_s, phases.validation
    if run_s - phases.training.s < REPORTED_SHARE * run_s:
        return []
    parts = [
        f"{'training' if phases.trains else 'loops'} {units.percent(phases.training.s / run_s)}"
    ]
    if validation.s:
        waits = units.percent(validation.loading_share)
        parts.append(
            f"validation {units.percent(validation.s / run_s)} (waiting for data {waits} of it)"
        )
    parts.append(f"outside loops {units.percent(phases.outside_s / run_s)}")
    return [f"Run: {', '.join(parts)}"]


def _machine_line(facts: Facts) -> str:
    parts, gpu, cpu = [], facts.gpu, facts.cpu
    if gpu is not None and gpu.utilization is not None:
        known = f"GPU: utilization {units.percent(gpu.utilization)}"
        if (gpu.others or 0.0) >= OTHER_PROGRAMS_SHARE:
            known += f" (other programs: {units.percent(gpu.others)})"
        if gpu.used_bytes is not None:
            of = f" of {units.count_bytes(gpu.total_bytes)}" if gpu.total_bytes else ""
            known += f", memory {units.count_bytes(gpu.used_bytes)}{of}"
            known += " (memory in use says nothing about utilization)"
        parts.append(known)
    elif facts.computes_on == "cpu":
        parts.append("no GPU in use")
    else:
        parts.append("GPU: utilization unknown")
    if cpu is not None:
        workers = f", workers {cpu.workers:.2g}" if cpu.per_worker is not None else ""
        parts.append(f"cores in use, of {cpu.cores}: training {cpu.process:.2g}{workers}")
    return "; ".join(parts)[:1].upper() + "; ".join(parts)[1:]


def lines_of_ranks(
    facts: Facts, all_ranks: Sequence[Mapping[str, Any]], following: str = ""
) -> list[str]:
    """Return the lines of one of the processes that train together, and a table of all.

    The answer is that of the rank that waits longest: the others wait for it in every step.

    Args:
        facts: what was measured of this rank.
        all_ranks: `Facts.as_json` of every rank that is known, with its number, "rank".
        following: as in `lines`.
    """
    known = [each for each in all_ranks if each["rank"] is not None and each["training"]["steps"]]
    rows = sorted(known, key=lambda each: each["rank"])
    if len(rows) < 2:
        return lines(facts, following)
    shares = {row["rank"]: row["training"]["loading_share"] for row in rows}
    slowest = max(shares, key=shares.get)
    most_of_others = max(share for rank, share in shares.items() if rank != slowest)
    (conclusion,) = (Answer(**row["answer"]) for row in rows if row["rank"] == slowest)
    apart = shares[slowest] - most_of_others
    start = conclusion.sentence.partition(":")[0]
    is_problem = conclusion.verdict in ("problem", "small problem")
    is_training = is_problem and not start.endswith("validation")
    if is_training and apart >= REPORTED_SHARE:
        share, most = units.percent(shares[slowest]), units.percent(most_of_others)
        waits = f"rank {slowest} waits for data {share} of its time, and the other ranks"
        waits = f"{waits}, which wait for data at most {most} of theirs, wait for it"
        conclusion = replace(conclusion, sentence=f"{start}: {waits}.")
    table = [["rank", "images/s", "waiting for data", "step"]]
    for row in rows:
        training = row["training"]
        rate = units.rate(training["images_per_s"]).removesuffix(" images/s")
        step = units.seconds(training["step_s"] / training["steps"])
        table.append([str(row["rank"]), rate, units.percent(training["loading_share"]), step])
    widths = [max(map(len, column)) for column in zip(*table)]
    table_lines = ["  ".join(map(str.rjust, row, widths)) for row in table]
    return [*table_lines, *lines(facts, following, conclusion)]
