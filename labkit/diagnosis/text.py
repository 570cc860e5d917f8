"""Sentences for what a diagnosis measured, in the language of the locale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from labkit import units
from labkit.diagnosis.bounds import UNEXPLAINED, Bounds
from labkit.diagnosis.remedies import COMPUTE, Remedy, bytes_in_words
from labkit.diagnosis.thresholds import (
    INPUT_BOUND_SHARE,
    LISTED_SHARE,
    SHOWN_SHARE,
    UNEXPLAINED_SHARE,
)  # fmt: skip
from labkit.language import Text, capitalized, shown
from labkit.machine import shared_memory

if TYPE_CHECKING:
    from labkit.diagnosis.diagnose import Diagnosis


def screen(diagnosis: Diagnosis) -> str:
    """Return verdict, ceiling, remedies and where the time goes: one screen."""
    return "\n".join(map(shown, _screen(diagnosis)))


def _screen(diagnosis: Diagnosis) -> Iterator[str]:
    facts, m = diagnosis.facts, diagnosis.bounds
    if diagnosis.broken:
        stopped = Text("Diagnosis stopped: {why}.").format(why=diagnosis.broken)
        below = Text(" What was measured until then is below.")
        yield stopped + below if facts.first_s else stopped
    if m is None or diagnosis.ceiling is None:
        if diagnosis.bottleneck:
            is_full = Text("Bottleneck: {bottleneck}. {why}")
            yield is_full.format(bottleneck=diagnosis.bottleneck, why=shared_memory.why_full())
        for number, remedy in enumerate(diagnosis.remedies, 1):
            line = Text("{number}. {name}: {reason}.")
            yield line.format(number=number, name=remedy.name, reason=remedy.reason)
            yield Text("   {change}").format(change=remedy.change)
        yield from _arms(diagnosis)
        return
    yield _verdict(diagnosis, m)
    now, unit = _per_s(m, m.epoch_s / m.steps), facts.batch.unit
    ceiling = Text("With a loader that takes no time: up to {ratio:.3g}× as fast ({rates}).")
    yield ceiling.format(ratio=1 / m.ceiling, rates=_rates(now, now / m.ceiling, unit))
    for number, remedy in enumerate(diagnosis.remedies, 1):
        rates = _rates(now, now / max(remedy.normalized_time, 1e-3), unit)
        line = Text("{number}. {name}: {gain}, {rates}; {reason}.")
        yield line.format(
            number=number, name=remedy.name, gain=_gain(remedy), rates=rates, reason=remedy.reason
        )
        yield Text("   {change}").format(change=remedy.change)
    if not diagnosis.remedies and diagnosis.bottleneck == COMPUTE:
        yield Text("Nothing to gain: no change that was tried or can be bounded saves 3 %.")
    elif not diagnosis.remedies:
        yield Text("No change that was tried or can be bounded saves 3 %.")
    alone, step = _per_s(m, m.alone_s), _per_s(m, m.now.step_s)
    by_itself = Text("The step alone ({device}): {step} {unit}/s; the loader alone: {alone}.")
    yield by_itself.format(device=facts.device, step=_rate(step), unit=unit, alone=_rate(alone))
    if rows := _rows(m):
        who = "A worker" if m.now.workers and facts.is_data_loader else "The main process"
        takes = Text("{who} takes {seconds} for a batch: {parts}.")
        yield takes.format(who=who, seconds=units.seconds(m.made_s), parts=rows)
    if words := bytes_in_words(m):
        yield Text("A sample: {size}.").format(size=words)
    yield from (Text("Note: {note}.").format(note=message) for message in diagnosis.failed)


def details(diagnosis: Diagnosis) -> str:
    """Return what the screen rests on."""
    return "\n".join(map(shown, _details(diagnosis)))


def _details(diagnosis: Diagnosis) -> Iterator[str]:
    yield from _arms(diagnosis)
    facts = diagnosis.facts
    for row in diagnosis.bounds.rows if diagnosis.bounds else ():
        if row.share > LISTED_SHARE:
            line = Text("{name} ({kind}): {seconds}, {share}")
            yield line.format(
                name=row.name, kind=row.kind, seconds=units.seconds(row.seconds),
                share=units.percent(row.share),
            )  # fmt: skip
    for remedy in diagnosis.proposed:
        if remedy.measured is not None and remedy not in diagnosis.remedies:
            line = Text("{name}: {gain}; {change}")
            yield line.format(name=remedy.name, gain=_gain(remedy), change=remedy.change)
    for remedy in diagnosis.remedies:
        if remedy.measured is None:
            line = Text("{name}: no epoch can take less than {least} of the time now")
            yield line.format(name=remedy.name, least=units.normalized(remedy.floor))
    how = Text("{blocks} of every arm in random order, on {device}; {size} a batch.")
    yield how.format(
        blocks=units.count(len(facts.of("resident")), "block"), device=facts.device,
        size=units.count_bytes(facts.batch.total_bytes),
    )  # fmt: skip
    yield from (Text("Note: {note}.").format(note=note) for note in facts.notes)


def _arms(diagnosis: Diagnosis) -> Iterator[str]:
    if first_s := diagnosis.facts.first_s:
        line = Text("first steps, loading and computing: {seconds} a step")
        yield line.format(seconds=units.seconds(first_s))
    for title, (step_s, *_) in diagnosis.arms().items():
        yield Text("{arm}: {seconds} a step").format(arm=title, seconds=units.seconds(step_s))


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _rates(now: float, then: float, unit: str) -> Text:
    rates = Text("{now} → {then} {unit}/s")
    return rates.format(now=_rate(now), then=_rate(then), unit=unit)


def _per_s(m: Bounds, step_s: float) -> float:
    return max(m.facts.batch.samples, 1) / step_s


def _verdict(diagnosis: Diagnosis, m: Bounds) -> Text:
    sentence = Text("{verdict}: data loading costs {share}").format(
        verdict=capitalized(diagnosis.verdict), share=units.percent(1 - m.ceiling)
    )
    if len(ends := m.stalls()) > 1:
        sentence += f" [{', '.join(map(units.percent, ends))}]"
    # Not only the waits, which `watch` counts: workers also slow the step down.
    sentence += Text(" of the training's time")
    if m.now.fetch_s:
        fetching = units.percent(m.now.fetch_s * m.steps / m.epoch_s)
        sentence += Text(", of which the medium takes {share}").format(share=fetching)
    bottleneck = Text(". Bottleneck: {bottleneck}").format(bottleneck=diagnosis.bottleneck)
    if m.share_of(UNEXPLAINED) > UNEXPLAINED_SHARE and diagnosis.bottleneck != COMPUTE:
        known = next((row for row in m.rows if row.kind != UNEXPLAINED), None)
        if diagnosis.bottleneck != UNEXPLAINED:
            sentence += bottleneck
        unexplained = Text(". Not explained: {share} of a batch's time")
        sentence += unexplained.format(share=units.whole_percent(m.share_of(UNEXPLAINED)))
        if known:
            largest = Text("; the largest known part is {name}, {share}")
            sentence += largest.format(name=known.name, share=units.whole_percent(known.share))
    elif diagnosis.bottleneck != COMPUTE:
        sentence += bottleneck
    elif max(m.stalls()) >= INPUT_BOUND_SHARE:
        sentence += Text(". Whether data loading is the bottleneck is not certain; raise budget_s")
    else:
        sentence += Text(". Data loading is not the bottleneck")
    return sentence + Text(".")


def _gain(remedy: Remedy) -> Text:
    """Return how much faster: "1.8× as fast [1.7, 2.0] (expected)"."""
    interval = ""
    if remedy.ci_low is not None:
        interval = f" [{1 / remedy.ci_high:.3g}, {1 / max(remedy.ci_low, 1e-3):.3g}]"
    return Text("{ratio:.3g}× as fast{interval} ({how})").format(
        ratio=1 / max(remedy.normalized_time, 1e-3),
        interval=interval,
        how="expected" if remedy.measured is None else "tried",
    )


def _rows(m: Bounds) -> str:
    shares = [row for row in m.rows if row.share >= SHOWN_SHARE and row.kind != UNEXPLAINED]
    named = [(row.name, row.share) for row in shares[:5]]
    named.append((UNEXPLAINED, m.share_of(UNEXPLAINED)))
    part = Text("{name} {share}")
    parts = [part.format(name=name, share=units.whole_percent(share)) for name, share in named]
    return Text(", ").join(parts) if m.rows else ""
