"""What a diagnosis found, as text and as JSON holds it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from labkit import units
from labkit.diagnosis.bounds import UNEXPLAINED, Bounds
from labkit.diagnosis.facts import Facts
from labkit.diagnosis.rules import COMPUTE, Findings, Remedy, bytes_in_words
from labkit.diagnosis.thresholds import (
    INPUT_BOUND_SHARE,
    LISTED_SHARE,
    SHOWN_SHARE,
)  # fmt: skip
from labkit.machine import shared_memory

ARMS = {
    "resident": "computing alone (batches are kept)",
    "alone": "loading alone",
    "warm": "loading and computing",
    "cold": "loading and computing, files evicted before",
}


def screen(diagnosis: Findings) -> Iterator[str]:
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
        yield from _arm_lines(diagnosis.facts)
        return
    yield _verdict(diagnosis, m)
    now, unit = _per_s(m, m.epoch_s / m.steps), facts.batch.unit
    yield (
        f"With a loader that takes no time: up to {1 / m.ceiling:.3g}× as fast "
        f"({_rate(now)} → {_rate(now / m.ceiling)} {unit}/s)."
    )
    for number, remedy in enumerate(diagnosis.remedies, 1):
        rates = f"{_rate(now)} → {_rate(now * remedy.speed_up)} {unit}/s"
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
    if rows := _parts_in_words(m):
        who = "A worker" if m.now.workers and facts.is_data_loader else "The main process"
        yield f"{who} takes {units.seconds(m.made_s)} for a batch: {rows}."
    if words := bytes_in_words(m):
        yield f"A sample: {words}."
    yield from (f"Note: {message}." for message in facts.failed)


def details(diagnosis: Findings) -> Iterator[str]:
    """Yield what the screen rests on."""
    yield from _arm_lines(diagnosis.facts)
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


def arms(facts: Facts) -> dict[str, tuple[float, float | None, float]]:
    """Return arm -> step_s, epoch_s and CPU seconds of a step, each the mean of its blocks."""
    means = {}
    for arm, title in ARMS.items():
        if stretches := facts.of(arm):
            epochs_s = [s.epoch_s for s in stretches if s.epoch_s is not None]
            means[title] = (
                fmean(s.step_s for s in stretches),
                fmean(epochs_s) if epochs_s else None,
                fmean(s.cpu_s for s in stretches),
            )
    return means


def as_json(diagnosis: Findings) -> dict[str, Any]:
    """Return the conclusions as JSON holds them: numbers, strings, lists and dicts."""
    facts, m = diagnosis.facts, diagnosis.bounds
    is_known = m is not None and diagnosis.ceiling is not None
    has_interval = is_known and m.ceiling_ci[0] is not None
    return {
        "verdict": diagnosis.verdict,
        "bottleneck": diagnosis.bottleneck,
        "broken": diagnosis.broken,
        "loading_cost_share": m.loading_cost_share if is_known else None,
        "loading_cost_share_interval": m.loading_cost_share_interval if has_interval else None,
        "samples_per_s": _per_s(m, m.epoch_s / m.steps) if m else None,
        "unit": facts.batch.unit,
        "device": facts.device,
        "remedies": [
            {
                "name": one.name,
                "bottleneck": one.bottleneck,
                "reason": one.reason,
                "change": one.change,
                "normalized_time": one.normalized_time,
                "interval": [one.ci_low, one.ci_high],
                "is_measured": one.measured is not None,
                "floor": one.floor,
            }
            for one in diagnosis.remedies
        ],
        "arms": {title: {"step_s": step_s} for title, (step_s, *_) in arms(facts).items()},
        "parts_of_a_batch": [
            {"name": row.name, "kind": row.kind, "s": row.seconds} for row in (m.rows if m else ())
        ],
    }


def _arm_lines(facts: Facts) -> Iterator[str]:
    if first_s := facts.first_s:
        yield f"first steps, loading and computing: {units.seconds(first_s)} a step"
    for title, (step_s, *_) in arms(facts).items():
        yield f"{title}: {units.seconds(step_s)} a step"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _per_s(m: Bounds, step_s: float) -> float:
    return max(m.facts.batch.samples, 1) / step_s


def _verdict(diagnosis: Findings, m: Bounds) -> str:
    verdict = f"{diagnosis.verdict[0].upper()}{diagnosis.verdict[1:]}"
    sentence = f"{verdict}: data loading costs {units.percent(m.loading_cost_share)}"
    low, high = m.loading_cost_share_interval
    if low < high:
        sentence += f" [{units.percent(low)}, {units.percent(high)}]"
    # Not only the waits, which `watch` counts: workers also slow the step down.
    sentence += " of the training's time"
    if m.now.fetch_s:
        fetching = units.percent(m.now.fetch_s * m.steps / m.epoch_s)
        sentence += f", of which the medium takes {fetching}"
    if m.is_unexplained and diagnosis.bottleneck != COMPUTE:
        known = next((row for row in m.rows if row.kind != UNEXPLAINED), None)
        if diagnosis.bottleneck != UNEXPLAINED:
            sentence += f". Bottleneck: {diagnosis.bottleneck}"
        unexplained = units.whole_percent(m.share_of(UNEXPLAINED))
        sentence += f". Not explained: {unexplained} of a batch's time"
        if known:
            share = units.whole_percent(known.share)
            sentence += f"; the largest known part is {known.name}, {share}"
        return f"{sentence}."
    if diagnosis.bottleneck == COMPUTE and high >= INPUT_BOUND_SHARE:
        return f"{sentence}. Whether data loading is the bottleneck is not certain; raise budget_s."
    if diagnosis.bottleneck == COMPUTE:
        return f"{sentence}. Data loading is not the bottleneck."
    return f"{sentence}. Bottleneck: {diagnosis.bottleneck}."


def _gain(remedy: Remedy) -> str:
    """Return how much faster: "1.8× as fast [1.7, 2.0] (expected)"."""
    fast = f"{remedy.speed_up:.3g}× as fast"
    if remedy.ci_low is not None:
        fast += f" [{1 / remedy.ci_high:.3g}, {1 / max(remedy.ci_low, 1e-3):.3g}]"
    return f"{fast} ({'expected' if remedy.measured is None else 'tried'})"


def _parts_in_words(m: Bounds) -> str:
    shown = [row for row in m.rows if row.share >= SHOWN_SHARE and row.kind != UNEXPLAINED]
    parts = [f"{row.name} {units.whole_percent(row.share)}" for row in shown[:5]]
    rest = m.share_of(UNEXPLAINED)
    return ", ".join([*parts, f"{UNEXPLAINED} {units.whole_percent(rest)}"]) if m.rows else ""
