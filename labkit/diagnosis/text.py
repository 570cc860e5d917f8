"""Sentences for what a diagnosis measured."""

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
from labkit.machine import shared_memory

if TYPE_CHECKING:
    from labkit.diagnosis.diagnose import Diagnosis


def screen(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield verdict, ceiling, remedies and where the time goes: one screen."""
    facts, m = diagnosis.facts, diagnosis.bounds
    if diagnosis.broken:
        below = ". What was measured until then is below" * bool(facts.first_s)
        yield f"Diagnosis stopped: {diagnosis.broken}{below}."
    if m is None or diagnosis.ceiling is None:
        if diagnosis.bottleneck:
            yield f"Bottleneck: {diagnosis.bottleneck}. {shared_memory.why_full()}"
        for number, remedy in enumerate(diagnosis.remedies, 1):
            yield f"{number}. {remedy.name}: {remedy.reason}."
            yield f"   {remedy.change}"
        yield from _arms(diagnosis)
        return
    yield _verdict(diagnosis, m)
    now, unit = _per_s(m, m.epoch_s / m.steps), facts.batch.unit
    yield (
        f"With a loader that takes no time: up to {1 / m.ceiling:.3g}× as fast "
        f"({_rate(now)} → {_rate(now / m.ceiling)} {unit}/s)."
    )
    for number, remedy in enumerate(diagnosis.remedies, 1):
        rates = f"{_rate(now)} → {_rate(now / max(remedy.normalized_time, 1e-3))} {unit}/s"
        yield f"{number}. {remedy.name}: {_gain(remedy)}, {rates}; {remedy.reason}."
        yield f"   {remedy.change}"
    if not diagnosis.remedies:
        reason = "no change that was tried or can be bounded saves 3 %."
        yield f"Nothing to gain: {reason}" if diagnosis.bottleneck == COMPUTE else f"N{reason[1:]}"
    alone, step = _per_s(m, m.alone_s), _per_s(m, m.now.step_s)
    yield (
        f"The step alone ({facts.device}): {_rate(step)} {unit}/s; the loader alone: "
        f"{_rate(alone)}."
    )
    if rows := _rows(m):
        who = "A worker" if m.now.workers and facts.is_data_loader else "The main process"
        yield f"{who} takes {units.seconds(m.made_s)} for a batch: {rows}."
    if words := bytes_in_words(m):
        yield f"A sample: {words}."
    yield from (f"Note: {message}." for message in diagnosis.failed)


def details(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what the screen rests on."""
    yield from _arms(diagnosis)
    facts = diagnosis.facts
    for row in diagnosis.bounds.rows if diagnosis.bounds else ():
        if row.share > LISTED_SHARE:
            took = f"{units.seconds(row.seconds)}, {units.percent(row.share)}"
            yield f"{row.name} ({row.kind}): {took}"
    for remedy in diagnosis.proposed:
        if remedy.measured is not None and remedy not in diagnosis.remedies:
            yield f"{remedy.name}: {_gain(remedy)}; {remedy.change}"
    for remedy in diagnosis.remedies:
        if remedy.measured is None:
            least = units.normalized(remedy.floor)
            yield f"{remedy.name}: no epoch can take less than {least} of the time now"
    blocks = units.count(len(facts.of("resident")), "block")
    yield (
        f"{blocks} of every arm in random order, on {facts.device}; "
        f"{units.count_bytes(facts.batch.total_bytes)} a batch."
    )
    yield from (f"Note: {note}." for note in facts.notes)


def _arms(diagnosis: Diagnosis) -> Iterator[str]:
    if first_s := diagnosis.facts.first_s:
        yield f"first steps, loading and computing: {units.seconds(first_s)} a step"
    for title, (step_s, *_) in diagnosis.arms().items():
        yield f"{title}: {units.seconds(step_s)} a step"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _per_s(m: Bounds, step_s: float) -> float:
    return max(m.facts.batch.samples, 1) / step_s


def _verdict(diagnosis: Diagnosis, m: Bounds) -> str:
    verdict = f"{diagnosis.verdict[0].upper()}{diagnosis.verdict[1:]}"
    sentence = f"{verdict}: data loading costs {units.percent(1 - m.ceiling)}"
    if len(ends := m.stalls()) > 1:
        sentence += f" [{', '.join(map(units.percent, ends))}]"
    # Not only the waits, which `watch` counts: workers also slow the step down.
    sentence += " of the training's time"
    if m.now.fetch_s:
        fetching = units.percent(m.now.fetch_s * m.steps / m.epoch_s)
        sentence += f", of which the medium takes {fetching}"
    if m.share_of(UNEXPLAINED) > UNEXPLAINED_SHARE and diagnosis.bottleneck != COMPUTE:
        known = next((row for row in m.rows if row.kind != UNEXPLAINED), None)
        if diagnosis.bottleneck != UNEXPLAINED:
            sentence += f". Bottleneck: {diagnosis.bottleneck}"
        unexplained = units.whole_percent(m.share_of(UNEXPLAINED))
        sentence += f". Not explained: {unexplained} of a batch's time"
        if known:
            share = units.whole_percent(known.share)
            sentence += f"; the largest known part is {known.name}, {share}"
        return f"{sentence}."
    if diagnosis.bottleneck == COMPUTE and max(m.stalls()) >= INPUT_BOUND_SHARE:
        return f"{sentence}. Whether data loading is the bottleneck is not certain; raise budget_s."
    if diagnosis.bottleneck == COMPUTE:
        return f"{sentence}. Data loading is not the bottleneck."
    return f"{sentence}. Bottleneck: {diagnosis.bottleneck}."


def _gain(remedy: Remedy) -> str:
    """Return how much faster: "1.8× as fast [1.7, 2.0] (expected)"."""
    fast = f"{1 / max(remedy.normalized_time, 1e-3):.3g}× as fast"
    if remedy.ci_low is not None:
        fast += f" [{1 / remedy.ci_high:.3g}, {1 / max(remedy.ci_low, 1e-3):.3g}]"
    return f"{fast} ({'expected' if remedy.measured is None else 'tried'})"


def _rows(m: Bounds) -> str:
    shown = [row for row in m.rows if row.share >= SHOWN_SHARE and row.kind != UNEXPLAINED]
    parts = [f"{row.name} {units.whole_percent(row.share)}" for row in shown[:5]]
    rest = m.share_of(UNEXPLAINED)
    return ", ".join([*parts, f"{UNEXPLAINED} {units.whole_percent(rest)}"]) if m.rows else ""
