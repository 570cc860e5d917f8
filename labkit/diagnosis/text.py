"""Sentences and tables for what was measured: an epoch's phases, and a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from labkit import units
from labkit.diagnosis.predict import UNEXPLAINED, Measured
from labkit.diagnosis.remedies import COMPUTE, Remedy, bytes_in_words
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

SHOWN_SHARE, MOST_ROWS = 0.03, 5


def screen(found: Diagnosis) -> Iterator[str]:
    """Yield verdict, ceiling, remedies and where the time goes: one screen."""
    if found.broken:
        yield f"Broke off: {found.broken}. What was measured until then is below."
    m = found.measured
    if m is None:
        if found.bottleneck:
            yield f"Bottleneck: {found.bottleneck}. {shared_memory.why_full()}"
        for number, remedy in enumerate(found.remedies, 1):
            yield f"{number}. {remedy.name}: {remedy.reason}."
            yield f"   {remedy.change}"
        yield from _arms(found)
        return
    yield _verdict(found)
    now = _per_s(m, m.epoch_s / m.steps)
    yield (
        f"An infinitely fast loader: at most {1 / m.ceiling:.2f} × faster "
        f"({_rate(now)} → {_rate(now / m.ceiling)} {m.unit}/s)."
    )
    for number, remedy in enumerate(found.remedies, 1):
        yield from _remedy(number, remedy, now, m)
    if not found.remedies:
        yield "Nothing to gain: no change that was tried or can be bounded saves 3 %."
    alone, step = _per_s(m, m.alone_s), _per_s(m, m.resident_s)
    label = found.collected.loop.device.label
    yield (
        f"The step alone ({label}): {_rate(step)} {m.unit}/s; your loader alone: {_rate(alone)}; "
        f"two such devices would need {_rate(2 * step)}."
    )
    if rows := _rows(m):
        who = "A worker" if m.now.workers and m.is_data_loader else "The main process"
        made_s = m.alone_s * max(m.now.workers, 1)
        yield f"{who} takes {units.seconds(made_s)} for a batch: {rows}."
    if words := bytes_in_words(m):
        yield f"A sample: {words}."


def details(found: Diagnosis) -> Iterator[str]:
    """Yield what the screen rests on."""
    yield from _arms(found)
    loop = found.collected.loop
    if found.measured:
        for row in found.measured.rows:
            took = f"{units.seconds(row.seconds)}, {units.percent(row.share)}"
            yield f"{row.name} ({row.kind}): {took}"
    for remedy in found.proposed:
        if remedy.measured is not None and remedy not in found.remedies:
            yield f"{remedy.name}: tried, {_measured(remedy)}; {remedy.change}"
    blocks = units.count(len(found.collected.of("resident")), "block")
    cold = "" if found.collected.of("cold") else " No arm was cold: give files for that."
    yield (
        f"{blocks} of every arm in random order, on {loop.device.label}; "
        f"{units.count_bytes(loop.batch_bytes)} a batch.{cold}"
    )
    yield from (f"Note: {note}." for note in found.notes)


def _arms(found: Diagnosis) -> Iterator[str]:
    for title, row in found.table().iterrows():
        yield f"{title}: {units.seconds(row['step_s'])} a step"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _per_s(m: Measured, step_s: float) -> float:
    return max(m.samples, 1) / step_s


def _verdict(found: Diagnosis) -> str:
    m, stall = found.measured, found.stalls["input"]
    said = f"{found.verdict[0].upper()}{found.verdict[1:]}: {stall} of the time is not hidden"
    said += " behind computing"
    if "fetch" in found.stalls:
        said += f", of which the medium takes {found.stalls['fetch']}"
    if found.bottleneck == UNEXPLAINED:
        known = next((row for row in m.rows if row.kind != UNEXPLAINED), None)
        named = f"; the largest known part is {known.name}, {units.whole_percent(known.share)}"
        return (
            f"{said}. Not explained: {units.whole_percent(m.share_of(UNEXPLAINED))} of a batch's "
            f"time{named if known else ''}."
        )
    if found.bottleneck == COMPUTE:
        return f"{said}. Data loading is not the bottleneck."
    return f"{said}. Bottleneck: {found.bottleneck}."


def _remedy(number: int, remedy: Remedy, now: float, m: Measured) -> Iterator[str]:
    time = remedy.normalized_time
    how = f"at best {units.normalized(time)}"
    if remedy.measured is not None:
        how = f"tried, {_measured(remedy)}"
    gain = f"{_rate(now)} → {_rate(now / time)} {m.unit}/s"
    yield f"{number}. {remedy.name}: {how} of the time ({gain}); {remedy.reason}."
    yield f"   {remedy.change}"


def _measured(remedy: Remedy) -> str:
    interval = units.interval(remedy.ci_low, remedy.ci_high)
    return f"{units.normalized(remedy.measured)} {interval}"


def _rows(m: Measured) -> str:
    shown = [row for row in m.rows if row.share >= SHOWN_SHARE and row.kind != UNEXPLAINED]
    said = [f"{row.name} {units.whole_percent(row.share)}" for row in shown[:MOST_ROWS]]
    rest = m.share_of(UNEXPLAINED)
    return ", ".join([*said, f"{UNEXPLAINED} {units.whole_percent(rest)}"]) if m.rows else ""
