"""Conclusions: from what was collected to a verdict word, a bottleneck, a ceiling and remedies.

    stretches ─▶ stall shares, block by block ─▶ word     parts, simulated ─▶ remedies ─▶ bottleneck

Main trap: "nothing to gain" is an answer.  A loader that could be made free for a gain of two
percent is left alone, however its settings look.

Source: EVIDENCE 1, "Stalls", for shares and words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.statistics import paired_interval
from labkit.diagnosis import knobs, phase_words
from labkit.diagnosis.assemble import measured_of
from labkit.diagnosis.collect import Collected, length
from labkit.diagnosis.measured import Measured
from labkit.diagnosis.model import simulate
from labkit.diagnosis.remedies import Remedy, bottleneck_of, propose
from labkit.diagnosis.timeline import Timeline, record_timeline
from labkit.machine import shared_memory

if TYPE_CHECKING:
    import pandas as pd

# EVIDENCE 1: below, between and above these shares of the time.
MODERATELY, HIGHLY = 0.05, 0.20
WORDS = ("not input-bound", "moderately input-bound", "highly input-bound")
# A simulation further off than this is said to be.
FITS = 0.15
NOTHING_TO_GAIN = "compute"
FULL_SHARE = 0.1  # of /dev/shm is free: too little for a batch

ARMS = {
    "resident": "computing alone (batches are kept)",
    "alone": "loading alone",
    "warm": "as it is",
    "cold": "as it is, files evicted before",
}


class Lines(tuple):
    """Sentences that a notebook shows as a list and a shell as lines."""

    def __str__(self) -> str:
        return "\n".join(f"- {line}" for line in self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in self)}</ul>"


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of an epoch's time, of every block; the interval is at 95 %."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None:
            return units.percent(self.mean)
        return f"{units.percent(self.mean)} [{units.percent(self.low)}, {units.percent(self.high)}]"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found; shows itself as sentences."""

    verdict: str
    """How much the training waits for its input, in EVIDENCE's words."""
    bottleneck: str
    """What to remove first; "compute" where nothing is to be gained, "" where it broke off."""
    share: float | None
    """Of an epoch, what removing it is predicted to save."""
    ceiling: float | None
    """Normalized time of an epoch with a loader that takes no time."""
    remedies: tuple[Remedy, ...]
    stalls: dict[str, Share]
    """preparation, fetch -> share of an epoch."""
    notes: tuple[str, ...]
    broken: str
    """What ended the measuring before its time; "" where nothing did."""
    measured: Measured | None
    collected: Collected

    def sentences(self) -> Lines:
        """Say it all on one screen."""
        return Lines(_sentences(self))

    def __repr__(self) -> str:
        return str(self.sentences())

    def _repr_html_(self) -> str:
        return self.sentences()._repr_html_()

    def table(self) -> pd.DataFrame:
        """Give what each arm took."""
        import pandas as pd

        return pd.DataFrame(_rows(self))

    @cached_property
    def timeline(self) -> Timeline:
        """Device, cores, disk and host over some more seconds of the loop, run when first asked."""
        loop = self.collected.loop
        if loop is None or loop.is_one_shot:  # nothing is left to run
            return Timeline(duration_s=0.0)
        with knobs.random_state_kept(loop.loader):
            return record_timeline(loop.loader, loop.run, device=loop.device.emulated)

    def stages(self) -> pd.DataFrame:
        """Give what making and sending a batch takes, stage by stage, inside a worker."""
        import pandas as pd

        return pd.DataFrame(_stage_rows(self))


def conclude(found: Collected) -> Diagnosis:
    """Draw the conclusions from what was measured, however much that is."""
    notes = list(found.notes)
    whole = all(found.of(arm) for arm in ("warm", "alone", "resident"))
    if not whole:
        return Diagnosis(
            verdict="not measured",
            bottleneck=_broken_by(found),
            share=None,
            ceiling=None,
            remedies=(),
            stalls=_stalls(found),
            notes=tuple(notes),
            broken=found.broken,
            measured=None,
            collected=found,
        )
    measured = measured_of(found)
    stalls = _stalls(found)
    remedies = propose(measured)
    said_s = simulate(measured.parts).epoch_s
    if len(found.loop.shapes) > 1:
        notes.append(
            f"batches came in {len(found.loop.shapes)} forms, as "
            + " and ".join(", ".join(form) for form in list(found.loop.shapes)[:2])
        )
    if abs(said_s / measured.warm_s - 1) > FITS:
        notes.append(
            f"the simulation takes {units.seconds(said_s)} for an epoch that took "
            f"{units.seconds(measured.warm_s)}: predictions may be off by as much"
        )
    bottleneck = bottleneck_of(remedies) if remedies else NOTHING_TO_GAIN
    return Diagnosis(
        verdict=_word(stalls["input"]),
        bottleneck=_broken_by(found) or bottleneck,
        share=_saved(remedies, bottleneck),
        ceiling=_ceiling(found, measured),
        remedies=remedies,
        stalls=stalls,
        notes=tuple(notes),
        broken=found.broken,
        measured=measured,
        collected=found,
    )


def _saved(remedies: Sequence[Remedy], bottleneck: str) -> float:
    """Say what removing the bottleneck is predicted to save of an epoch."""
    return max((1 - r.predicted for r in remedies if r.bottleneck == bottleneck), default=0.0)


def _broken_by(found: Collected) -> str:
    """Tell what the bottleneck is from what ended the measuring, where that tells."""
    words = ("shared memory", "bus error", "no space left on device", "shm")
    if any(word in found.broken.lower() for word in words):
        return "shared memory"
    # A worker that finds no room for a batch says so on its stderr, loses it, and is waited for.
    stopped = found.broken and knobs.is_data_loader(found.loop.loader if found.loop else None)
    return "shared memory" if stopped and _lacks_shared_memory(found) else ""


def _lacks_shared_memory(found: Collected) -> bool:
    """Say whether the batches that may be on their way are more than /dev/shm holds."""
    loader, usage = found.loop.loader, shared_memory.usage()
    if usage is None or not loader.num_workers:
        return False
    ahead = loader.num_workers * (loader.prefetch_factor or knobs.DEFAULT_PREFETCH_FACTOR)
    needed_bytes = (ahead + 1) * found.loop.batch_bytes
    return needed_bytes > usage.total or usage.free < FULL_SHARE * usage.total


def _ceiling(found: Collected, measured: Measured) -> float:
    """Compare an epoch on kept batches with one as it is."""
    step_s = fmean(stretch.step_s for stretch in found.of("resident"))
    now_s = measured.cold_s or measured.warm_s
    return min(step_s * measured.parts.steps / now_s, 1.0)


def _stalls(found: Collected) -> dict[str, Share]:
    """Compare arms block by block: what preparing and fetching add to an epoch."""
    warm, resident, cold = found.of("warm"), found.of("resident"), found.of("cold")
    steps = length(found.loop.loader) if found.loop else None
    steps = steps or 1
    preparation, fetch, both = [], [], []
    for number in range(min(len(warm), len(resident))):
        t1 = resident[number].step_s * steps
        t3 = warm[number].of_epoch(steps)
        t2 = cold[number].of_epoch(steps) if number < len(cold) else t3
        preparation.append((t3 - t1) / t2)
        fetch.append((t2 - t3) / t2)
        both.append((t2 - t1) / t2)
    if not both:
        return {}
    found_shares = {"input": _interval(both), "preparation": _interval(preparation)}
    return found_shares | ({"fetch": _interval(fetch)} if cold else {})


def _interval(values: Sequence[float]) -> Share:
    low, high = paired_interval(values) if len(values) > 1 else (None, None)
    return Share(mean=fmean(values), low=low, high=high)


def _word(share: Share) -> str:
    """Say how input-bound it is, if the whole interval says so."""
    bands = [sum(value >= limit for limit in (MODERATELY, HIGHLY)) for value in _ends(share)]
    if len(set(bands)) == 1:
        return WORDS[bands[0]]
    return f"between {WORDS[min(bands)]} and {WORDS[max(bands)]}"


def _ends(share: Share) -> tuple[float, float]:
    return (share.mean, share.mean) if share.low is None else (share.low, share.high)


def _sentences(found: Diagnosis) -> Iterator[str]:
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


def _rows(found: Diagnosis) -> list[dict[str, object]]:
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


def _stage_rows(found: Diagnosis) -> list[dict[str, object]]:
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
