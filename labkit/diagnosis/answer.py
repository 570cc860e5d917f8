"""Is data loading the problem of a watched training?  From what was measured to a few lines.

Phases + Gpu + Cpu ─▶ Facts ─▶ Answer ─▶ at most six lines
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from labkit import units
from labkit.diagnosis.loops import Loader, Phase, Phases
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
from labkit.language import Text, columns, shown
from labkit.machine.cores import CoreLimits

Verdict = Literal["problem", "small problem", "no problem", "cannot tell"]
Device = Literal["cpu", "cuda", "mps", "xpu"]

WRAP = "wrap it in the training loop: `for batch in lab.watch(loader)`"
UNSEEN: dict[str, str] = {
    "nothing": "no DataLoader of torch was iterated over in this process",
    "short": "the run was too short: no step was seen after the first one and the batches that "
    "had been loaded meanwhile",
    "loader": Text(
        "the training takes its batches from a loader that watch does not see (not a DataLoader of "
        "torch, or in another process); {wrap}"
    ).format(wrap=WRAP),
    "thread": Text(
        "a thread takes the batches from the loader, and how they reach the training was not seen; "
        "{wrap}"
    ).format(wrap=WRAP),
}
LOADING_IS = Text("Data loading is {problem}: {effect}.")
PROBLEMS = {"problem": "the problem", "small problem": "a small part of the problem"}
IN_VALIDATION = {
    "problem": "the problem in the validation",
    "small problem": "a small part of the problem in the validation",
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
    limits: CoreLimits = field(default_factory=CoreLimits)
    """Why they are not all of the machine's."""


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

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> Facts:
        """Return the facts that `as_json` gave, with whatever else."""

        def phase(name: str) -> Phase:
            loaders = tuple(_made(Loader, each) for each in known[name]["loaders"])
            return _made(Phase, known[name], loaders=loaders)

        gpu, cpu = known["gpu"], known["cpu"]
        return _made(
            cls,
            known,
            phases=_made(Phases, known, training=phase("training"), validation=phase("validation")),
            gpu=gpu and _made(Gpu, gpu),
            cpu=cpu and _made(Cpu, cpu, limits=_made(CoreLimits, cpu["limits"])),
        )


def _made(kind: Any, known: Mapping[str, Any], **parts: object) -> Any:
    """Return a dataclass from its fields, among others, some of which are made already."""
    values = {**known, **parts}
    return kind(**{field.name: values[field.name] for field in fields(kind)})


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
    who = "the training" if phases.trains else "the loop"
    waits = Text("{who} waits for data {share} of its time")
    waits = waits.format(who=who, share=units.percent(share))
    if share >= REPORTED_SHARE and facts.computes_on != "cpu":
        if gpu is None or gpu.utilization is None:
            where = Text("on {device}").format(device=facts.computes_on)
            why = Text("{waits}, but whether the GPU computes meanwhile cannot be seen {where}")
            is_cuda = facts.computes_on == "cuda"
            return _cannot_tell(why.format(waits=waits, where="without NVML" if is_cuda else where))
        if (gpu.others or 0.0) >= OTHER_PROGRAMS_SHARE:
            return _cannot_tell(waits + Text(", but other programs use the GPU as well"))
        idle = 1 - gpu.utilization
        if idle < REPORTED_SHARE:
            computes = Text(", but the GPU computes meanwhile (utilization {busy})")
            waits += computes.format(busy=units.percent(gpu.utilization))
        share = min(share, idle)  # no loader makes a GPU busier than all of the time
    run_s = phases.run_s or 1.0  # on a clock that stands still
    in_validation_s = validation.loading_share * validation.s
    saved = (share * training.s + in_validation_s) / run_s
    if in_validation_s >= REPORTED_SHARE * run_s:
        more = Text("; the validation waits {share} of its time, which is {of_run} of the run")
        of_run = units.percent(in_validation_s / run_s)
        waits += more.format(share=units.percent(validation.loading_share), of_run=of_run)
    worst = max(share, saved)
    if worst < MODERATELY_INPUT_BOUND_SHARE:
        if gpu and gpu.utilization is not None and 1 - gpu.utilization >= GPU_IDLE_SHARE:
            is_idle = Text("; the GPU is idle {share} of it because of the CPU work in a step")
            waits += is_idle.format(share=units.percent(1 - gpu.utilization))
        sentence = Text("Data loading is not the problem: {why}.").format(why=waits)
        return Answer(verdict="no problem", sentence=sentence)
    verdict: Verdict = "problem" if worst >= INPUT_BOUND_SHARE else "small problem"
    speed_up, effect = None, Text("")
    if facts.ranks > 1:
        effect = Text("the rest may include waiting for other ranks")
    elif _cores_are_busy(facts.cpu):
        effect = Text("its workers keep the cores busy, which slows down the rest as well")
    else:
        speed_up = 1 / max(1 - saved, 1e-3)
        effect = Text(
            "with loading that takes no time {what} would be at most {speed_up:.3g} times as fast"
        )
        what = "the run" if phases.trains else "the loop"
        effect = effect.format(what=what, speed_up=speed_up)
    is_in_validation = in_validation_s > share * training.s
    problem = (IN_VALIDATION if is_in_validation else PROBLEMS)[verdict]
    if is_in_validation or not speed_up:
        effect = Text("; ").join([waits, effect])
    phase = training if share >= MODERATELY_INPUT_BOUND_SHARE else validation
    return Answer(
        verdict=verdict,
        sentence=LOADING_IS.format(problem=problem, effect=effect),
        cause=_cause(phase, facts.cpu),
        speed_up=speed_up,
    )


def _cannot_tell(why: str) -> Answer:
    sentence = Text("Whether data loading is the problem cannot be told: {why}.").format(why=why)
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
        return Text("the training process itself prepares batches after the loader")
    if workers and not any(workers):
        return Text("num_workers=0, so the training process loads every batch itself")
    if phase.starts_s > MAIN_CAUSE_SHARE * phase.wait_s:
        return Text("most of the waiting is at the start of epochs, while workers start")
    if cpu is None or cpu.per_worker is None:
        return ""
    if _cores_are_busy(cpu):
        busy = Text("all {cores} cores are busy, so more workers would not help")
        busy = busy.format(cores=cpu.cores)
        few = cpu.limits.in_words()
        return busy + Text("; ") + few if few else busy
    each = Text("a worker uses {share} of a core").format(share=units.percent(cpu.per_worker))
    if cpu.per_worker >= WORKER_BUSY_SHARE:
        return each + Text(" and cores are idle, so more workers may help")
    if (cpu.busy_share or 0.0) >= CORES_BUSY_SHARE:
        return each + Text(", and other programs keep the cores busy")
    if cpu.per_worker < WORKER_IDLE_SHARE:
        return each + Text(": workers wait as well, for storage, a lock or one late batch")
    return ""


# --- lines ------------------------------------------------------------------------------------


def lines(facts: Facts, following: str = "", conclusion: Answer | None = None) -> list[str]:
    """Return what was measured and the answer, in at most six lines, in the locale's language.

    Args:
        facts: what was measured.
        following: the command that goes on where loading is, or may be, the problem.
        conclusion: the answer to print.  Default: `answer(facts)`.
    """
    conclusion = conclusion or answer(facts)
    rows = [] if facts.phases.unseen else [phase_line(facts), *_run_line(facts.phases)]
    rows += [_machine_line(facts)] if rows else []
    rows.append(conclusion.sentence)
    if conclusion.cause:
        rows.append(Text("Cause: {cause}.").format(cause=conclusion.cause))
    if following and conclusion.verdict != "no problem":
        rows.append(Text("Next: {command}").format(command=following))
    return list(map(shown, rows))


def phase_line(facts: Facts) -> Text:
    """Return steps, rate and waits of the training in a line."""
    phases, training = facts.phases, facts.phases.training
    steps = Text("{n:,} batches").format(n=training.steps)
    if phases.batches_per_update and phases.batches_per_update > 1.05:
        to_step = Text(" ({n:.3g} to an optimizer step)")
        steps += to_step.format(n=phases.batches_per_update)
    waits = Text("waiting for data {share} of the time")
    waits = waits.format(share=units.percent(training.loading_share))
    if training.median_wait_s is not None:
        median, p99 = map(units.seconds, (training.median_wait_s, training.p99_wait_s))
        waits += Text(" (median {median}, 99th percentile {p99}").format(median=median, p99=p99)
        if training.cycle and training.wait_s >= REPORTED_SHARE * training.s:
            waits += Text("; most of it every {n} batches").format(n=training.cycle)
        waits += Text(")")
    parts = [steps, units.rate(training.images_per_s), waits]
    if training.prepare_s >= REPORTED_SHARE * training.s:
        prepares = Text("{share} of the time preparing batches after the loader")
        parts.append(prepares.format(share=units.percent(training.prepare_s / training.s)))
    measured = Text(", ").join(parts)
    line = Text("Training: {measured}") if phases.trains else Text("Loop: {measured}")
    return line.format(measured=measured)


def _run_line(phases: Phases) -> list[str]:
    """Return what else the run did, if it is worth a line."""
    run_s, validation = phases.run_s, phases.validation
    if run_s - phases.training.s < REPORTED_SHARE * run_s:
        return []
    loops = Text("training {share}") if phases.trains else Text("loops {share}")
    parts = [loops.format(share=units.percent(phases.training.s / run_s))]
    if validation.s:
        of_it = Text("validation {share} (waiting for data {waits} of it)")
        waits = units.percent(validation.loading_share)
        parts.append(of_it.format(share=units.percent(validation.s / run_s), waits=waits))
    outside = Text("outside loops {share}")
    parts.append(outside.format(share=units.percent(phases.outside_s / run_s)))
    return [Text("Run: {parts}").format(parts=Text(", ").join(parts))]


def _machine_line(facts: Facts) -> Text:
    parts, gpu, cpu = [], facts.gpu, facts.cpu
    if gpu is not None and gpu.utilization is not None:
        known = Text("GPU: utilization {share}").format(share=units.percent(gpu.utilization))
        if (gpu.others or 0.0) >= OTHER_PROGRAMS_SHARE:
            known += Text(" (other programs: {share})").format(share=units.percent(gpu.others))
        if gpu.used_bytes is not None:
            known += Text(", memory {used}").format(used=units.count_bytes(gpu.used_bytes))
            if gpu.total_bytes:
                known += Text(" of {total}").format(total=units.count_bytes(gpu.total_bytes))
            known += Text(" (memory in use says nothing about utilization)")
        parts.append(known)
    elif facts.computes_on == "cpu":
        parts.append(Text("No GPU in use"))
    else:
        parts.append(Text("GPU: utilization unknown"))
    if cpu is not None:
        used = Text("cores in use, of {cores}: training {process:.2g}")
        used = used.format(cores=cpu.cores, process=cpu.process)
        if cpu.per_worker is not None:
            used += Text(", workers {n:.2g}").format(n=cpu.workers)
        parts.append(used)
    return Text("; ").join(parts)


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
    by_share = sorted(rows, key=lambda row: row["training"]["loading_share"], reverse=True)
    slowest, second, *_ = by_share
    share, most = (row["training"]["loading_share"] for row in (slowest, second))
    conclusion = answer(Facts.from_json(slowest))
    problem = PROBLEMS.get(conclusion.verdict)
    start = conclusion.sentence.partition(":")[0]
    is_training = problem is not None and not start.endswith("validation")
    if is_training and share - most >= REPORTED_SHARE:
        waits = Text(
            "rank {rank} waits for data {share} of its time, and the other ranks, which wait for "
            "data at most {most} of theirs, wait for it"
        )
        waits = waits.format(
            rank=slowest["rank"], share=units.percent(share), most=units.percent(most)
        )
        sentence = LOADING_IS.format(problem=problem, effect=waits)
        conclusion = replace(conclusion, sentence=sentence)
    table = [list(map(shown, ("rank", "images/s", "waiting for data", "step")))]
    for row in rows:
        training = row["training"]
        rate = units.rate(training["images_per_s"]).removesuffix(" images/s")
        step = units.seconds(training["step_s"] / training["steps"])
        table.append([str(row["rank"]), rate, units.percent(training["loading_share"]), step])
    widths = [max(map(columns, column)) for column in zip(*table)]
    table_lines = [
        "  ".join(" " * (width - columns(cell)) + cell for cell, width in zip(row, widths))
        for row in table
    ]
    return [*table_lines, *lines(facts, following, conclusion)]
