"""What a diagnosis says: sentences for people, and rows for a table."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import TYPE_CHECKING

from labkit import shared_memory, units
from labkit.diagnosis import phase_words

if TYPE_CHECKING:
    from labkit.diagnosis.conclusion import Diagnosis

ARMS = {
    "resident": "computing alone (batches are kept)",
    "alone": "loading alone",
    "warm": "as it is",
    "cold": "as it is, files evicted before",
}


def sentences(found: Diagnosis) -> Iterator[str]:
    """Say verdict, bottleneck, ceiling, remedies, and what it rests on."""
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
            "Nothing to gain from loading: no change of it is predicted to save 3 %. What is left "
            "is the step itself: a smaller model or input, mixed precision, a faster device."
        )
    yield from _phases(found)
    yield _rests_on(found)
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


def _phases(found: Diagnosis) -> Iterator[str]:
    """Say what a stopwatch in the loop would have shown."""
    phases = found.collected.phases
    if phases is not None and phases.timed_steps:
        seen = phase_words.line(phases, None)
        yield f"A stopwatch in the loop shows, by when calls return: {seen}."
        stopped = phases.ended == "stopped"  # by the diagnosis, which had seen enough
        yield from phase_words.sentences(phases)[stopped:]


def _rests_on(found: Diagnosis) -> str:
    collected = found.collected
    blocks = len(collected.of("resident"))
    device = collected.loop.device.label
    cold = "" if collected.of("cold") else " Nothing was made cold: give files for that."
    return (
        f"{units.count(blocks, 'block')} of every arm in random order, on {device}; "
        f"{units.count_bytes(collected.loop.batch_bytes)} a batch.{cold}"
    )


def rows(found: Diagnosis) -> list[dict[str, object]]:
    """List what each arm took."""
    listed = []
    steps = found.measured.parts.steps if found.measured else None
    for arm, title in ARMS.items():
        stretches = found.collected.of(arm)
        if stretches:
            epochs_s = [stretch.of_epoch(steps) for stretch in stretches]
            epoch_s = None if None in epochs_s or arm == "resident" else fmean(epochs_s)
            listed.append(
                {
                    "arm": title,
                    "a step": units.seconds(fmean(s.step_s for s in stretches)),
                    "an epoch": units.seconds(epoch_s),
                    "CPU a step": units.seconds(fmean(s.cpu_s for s in stretches)),
                }
            )
    return listed


def stage_rows(found: Diagnosis) -> list[dict[str, object]]:
    """List what making and sending a batch takes, stage by stage, inside a worker."""
    stages = found.collected.stages
    return [
        {
            "stage": stage.name,
            "kind": stage.kind,
            "a batch": units.seconds(stage.batch_s),
            "CPU a batch": units.seconds(stage.batch_cpu_s),
            "share": units.percent(stage.share),
            "functions": ", ".join(stage.functions[:2]),
        }
        for stage in (stages.stages if stages else ())
    ]
