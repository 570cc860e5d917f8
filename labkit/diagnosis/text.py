"""Sentences and tables for what was measured: an epoch's phases, and a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from labkit import units
from labkit.machine import shared_memory

if TYPE_CHECKING:
    from labkit.diagnosis.diagnose import Diagnosis
    from labkit.diagnosis.watch import EpochPhases

PHASES = ("wait", "transfer", "forward", "backward", "rest")
IN_FULL = {"backward": "backward+optimizer"}
NO_CUDA = (
    "No CUDA: seconds of the host's clock. On a CPU the work is done when a call returns; a device "
    "that works on its own may do it in a later phase."
)


# --- phases -----------------------------------------------------------------------------------


def epoch_line(phases: EpochPhases, total: int | None) -> str:
    """Return a running epoch's phases as one line of a terminal.

    Args:
        phases: so far.
        total: batches of the epoch, where that is known.
    """
    shown = f"{phases.steps}/{total}" if total else units.count(phases.steps, "step")
    if not phases.timed_steps:
        wait, step = units.seconds(phases.first_wait_s), units.seconds(phases.first_step_s)
        return f"{shown}: first batch {wait}, first step {step}"
    split = _split(phases.host_s)
    all_s = sum(split.values())
    if total and total > phases.steps:
        left_s = (total - phases.steps) * all_s / phases.timed_steps
        shown += f", {units.whole_seconds(left_s)} left"
    shares = ", ".join(f"{name} {units.whole_percent(x)}" for name, x in _shares(split).items())
    return f"{shown}: {shares}"


def epoch_text(phases: EpochPhases, number: int) -> str:
    """Return a finished epoch's phases per step, as a table with sentences below.

    Args:
        phases: of the epoch.
        number: of the epoch, from 1.
    """
    apart = {
        "start-up": phases.startup_s,
        "first batch": phases.first_wait_s,
        "first step": phases.first_step_s,
        "shutdown": phases.shutdown_s,
    }
    known = ", ".join(f"{name} {units.seconds(s)}" for name, s in apart.items() if s is not None)
    lines = [
        f"epoch {number}: {units.count(phases.steps, 'step')} in {units.seconds(phases.epoch_s)}; "
        f"not in the table: {known}"
    ]
    if phases.timed_steps:
        lines += _table(phases)
    said = list(_epoch_sentences(phases))
    if phases.timed_steps and not phases.device_s and number == 1:  # once is enough
        said.append(NO_CUDA)
    return "\n".join([*lines, *(f"- {sentence}" for sentence in said)])


def _epoch_sentences(phases: EpochPhases) -> Iterator[str]:
    """Yield what is missing from the numbers, and where they mislead."""
    if phases.ended == "stopped":
        yield "The loop stopped before the loader did; its last step is not in the table."
    if phases.ended == "failed":
        yield "The loader failed; this is what was measured until then."
    if not phases.steps:
        yield (
            "The loader yielded no batch: a generator is used up after one epoch, and drop_last "
            "drops a batch that is not full."
        )
    if not phases.timed_steps:
        return
    if phases.host_s["forward"] is None:
        yield (
            "Only wait and step are known: no torch module with parameters was called in the loop "
            "(models that are compiled in place, or called in a compiled function, are not seen)."
        )
    elif phases.host_s["backward"] is None:
        yield "What follows the forward is not split: no torch optimizer made a step."
    if phases.device_s:
        yield (
            "CUDA's column tells where its time went: the host only queues work, and waits for it "
            "in a later phase."
        )


def _table(phases: EpochPhases) -> list[str]:
    columns = [("host, per step", _split(phases.host_s), phases.timed_steps)]
    if phases.device_s is not None:
        columns.append(("CUDA, per step", _split(phases.device_s), phases.device_steps))
    lines = [" " * 18 + "".join(f"   {title:>18}" for title, _, _ in columns)]
    for name in columns[0][1]:
        cells = [
            f"   {units.seconds(split[name] / steps):>9} {units.percent(_shares(split)[name]):>8}"
            for _, split, steps in columns
        ]
        lines.append(f"{IN_FULL.get(name, name):18}" + "".join(cells))
    return lines


def _split(seconds: Mapping[str, float | None]) -> dict[str, float]:
    """Return the phases that are known, and the rest of the step as one."""
    known = {phase: s for phase in PHASES if (s := seconds[phase]) is not None}
    if seconds["forward"] is None:
        known["step"] = seconds["step"]
    elif seconds["backward"] is None:
        known["after the forward"] = seconds["step"] - seconds["transfer"] - seconds["forward"]
    return known


def _shares(split: Mapping[str, float]) -> dict[str, float]:
    all_s = sum(split.values()) or 1.0  # a clock may be too coarse for a loop that does nothing
    return {name: s / all_s for name, s in split.items()}


# --- a diagnosis ------------------------------------------------------------------------------


def sentences(found: Diagnosis) -> Iterator[str]:
    """Yield verdict, bottleneck, ceiling, remedies, and what they rest on."""
    if found.broken:
        yield f"Broke off: {found.broken}. What was measured until then is below."
    if found.measured is None:
        if found.bottleneck:
            yield f"Bottleneck: {found.bottleneck}. {shared_memory.why_full()}"
        return
    yield from _verdict(found)
    for number, remedy in enumerate(found.remedies, 1):
        bound = "at best " if remedy.at_most else ""
        line = (
            f"{number}. {remedy.name}: predicted {bound}{units.normalized(remedy.predicted)} of "
            f"the time, because {remedy.reason}. Change: {remedy.change}."
        )
        if remedy.measured is not None:
            interval = units.interval(remedy.ci_low, remedy.ci_high)
            line += f" Tried: measured {units.normalized(remedy.measured)} {interval}."
        yield line
    if not found.remedies:
        yield (
            "Data loading is not the bottleneck: no loading change is predicted to save 3 %. The "
            "step itself is: try a smaller model or input, mixed precision, a faster device."
        )
    blocks, loop = len(found.collected.of("resident")), found.collected.loop
    cold = "" if found.collected.of("cold") else " No arm was cold: give files for that."
    yield (
        f"{units.count(blocks, 'block')} of every arm in random order, on {loop.device.label}; "
        f"{units.count_bytes(loop.batch_bytes)} a batch.{cold}"
    )
    yield from (f"Note: {note}." for note in found.notes)


def _verdict(found: Diagnosis) -> Iterator[str]:
    stalls = found.stalls
    parts = f"preparing {stalls['preparation']}"
    if "fetch" in stalls:
        parts += f", fetching from the medium {stalls['fetch']}"
    yield (
        f"{found.verdict[0].upper()}{found.verdict[1:]}: {parts} of an epoch's time is not "
        "hidden behind computing."
    )
    if found.remedies:
        yield (
            f"Bottleneck: {found.bottleneck}; removing it is predicted to save "
            f"{units.percent(found.share)} of an epoch."
        )
    faster = 1 / found.ceiling if found.ceiling else 1.0
    yield (
        f"Ceiling: a loader that took no time would leave {units.normalized(found.ceiling)} of the "
        f"time, so no change of loading gains more than {faster:.2f} times."
    )
