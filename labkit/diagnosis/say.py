"""What a diagnosis found: text in the language of the locale, and JSON, which is English."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from statistics import fmean
from typing import Any

from labkit import units
from labkit.diagnosis.bounds import UNEXPLAINED, Bounds
from labkit.diagnosis.facts import Facts
from labkit.diagnosis.rules import COMPUTE, Findings, Remedy, bytes_in_words
from labkit.diagnosis.thresholds import (
    CORES_BUSY_SHARE,
    INPUT_BOUND_SHARE,
    LISTED_SHARE,
    SHOWN_SHARE,
)  # fmt: skip
from labkit.language import Text, capitalized, shown
from labkit.machine import shared_memory

ARMS = {
    "resident": "computing alone (batches are kept)",
    "alone": "loading alone",
    "warm": "loading and computing",
    "cold": "loading and computing, files evicted before",
}


def screen(diagnosis: Findings) -> str:
    """Return verdict, ceiling, remedies and where the time goes: one screen."""
    return "\n".join(map(shown, _screen(diagnosis)))


def _screen(diagnosis: Findings) -> Iterator[str]:
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
        yield from _arm_lines(diagnosis.facts)
        return
    yield _verdict(diagnosis, m)
    now, unit = _per_s(m, m.epoch_s / m.steps), facts.batch.unit
    ceiling = Text("With a loader that takes no time: up to {ratio:.3g}× as fast ({rates}).")
    yield ceiling.format(ratio=1 / m.ceiling, rates=_rates(now, now / m.ceiling, unit))
    for number, remedy in enumerate(diagnosis.remedies, 1):
        rates = _rates(now, now * remedy.speed_up, unit)
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
    if parts := _parts_in_words(m):
        who = "A worker" if m.now.workers else "The main process"
        takes = Text("{who} takes {seconds} for a batch: {parts}.")
        yield takes.format(who=who, seconds=units.seconds(m.made_s), parts=parts)
    if words := bytes_in_words(m):
        yield Text("A sample: {size}.").format(size=words)
    if words := facts.limits.in_words():
        yield capitalized(words) + Text(".") + _busy_cores(m)
    yield from (Text("Note: {note}.").format(note=message) for message in facts.failed)
    if facts.left_out:
        no_time = Text("Not measured for lack of time: {what}; raise budget_s.")
        yield no_time.format(what=Text(", ").join(facts.left_out))


def details(diagnosis: Findings) -> str:
    """Return what the screen rests on."""
    return "\n".join(map(shown, _details(diagnosis)))


def _details(diagnosis: Findings) -> Iterator[str]:
    yield from _arm_lines(diagnosis.facts)
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
        "left_out": list(facts.left_out),
        "loading_cost_share": m.loading_cost_share if is_known else None,
        "loading_cost_share_interval": m.loading_cost_share_interval if has_interval else None,
        "samples_per_s": _per_s(m, m.epoch_s / m.steps) if m else None,
        "unit": facts.batch.unit,
        "device": facts.device,
        "cores": {"usable": facts.cores} | asdict(facts.limits),
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
        line = Text("first steps, loading and computing: {seconds} a step")
        yield line.format(seconds=units.seconds(first_s))
    for title, (step_s, *_) in arms(facts).items():
        yield Text("{arm}: {seconds} a step").format(arm=title, seconds=units.seconds(step_s))


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _rates(now: float, then: float, unit: str) -> Text:
    rates = Text("{now} → {then} {unit}/s")
    return rates.format(now=_rate(now), then=_rate(then), unit=unit)


def _per_s(m: Bounds, step_s: float) -> float:
    return max(m.facts.batch.samples, 1) / step_s


def _verdict(diagnosis: Findings, m: Bounds) -> Text:
    sentence = Text("{verdict}: data loading costs {share}").format(
        verdict=capitalized(diagnosis.verdict), share=units.percent(m.loading_cost_share)
    )
    low, high = m.loading_cost_share_interval
    if low < high:
        sentence += f" [{units.percent(low)}, {units.percent(high)}]"
    # Not only the waits, which `watch` counts: workers also slow the step down.
    sentence += Text(" of the training's time")
    if m.now.fetch_s:
        fetching = units.percent(m.now.fetch_s * m.steps / m.epoch_s)
        sentence += Text(", of which the medium takes {share}").format(share=fetching)
    bottleneck = Text(". Bottleneck: {bottleneck}").format(bottleneck=diagnosis.bottleneck)
    known = next((row for row in m.rows if row.kind != UNEXPLAINED), None)
    if m.is_unexplained and diagnosis.bottleneck != COMPUTE:
        if diagnosis.bottleneck != UNEXPLAINED:
            sentence += bottleneck
        unexplained = Text(". Not explained: {share} of a batch's time")
        sentence += unexplained.format(share=units.whole_percent(m.share_of(UNEXPLAINED)))
        if known:
            largest = Text("; the largest known part is {name}, {share}")
            sentence += largest.format(name=known.name, share=units.whole_percent(known.share))
    elif diagnosis.bottleneck != COMPUTE:
        sentence += bottleneck
        if known and diagnosis.bottleneck == UNEXPLAINED:
            most = Text("; the largest part of a batch's time is {name}, {share}")
            sentence += most.format(name=known.name, share=units.whole_percent(known.share))
    elif high >= INPUT_BOUND_SHARE:
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
        ratio=remedy.speed_up,
        interval=interval,
        how="expected" if remedy.measured is None else "tried",
    )


def _busy_cores(m: Bounds) -> str:
    """Return that the cores are the limit, where they are."""
    share = min(m.now.cores_s * m.steps / m.epoch_s, 1.0)
    if share < CORES_BUSY_SHARE:
        return ""
    busy = Text(" They are busy {share} of the time: give the training more cores.")
    return busy.format(share=units.whole_percent(share))


def _parts_in_words(m: Bounds) -> str:
    shares = [row for row in m.rows if row.share >= SHOWN_SHARE and row.kind != UNEXPLAINED]
    named = [(row.name, row.share) for row in shares[:5]]
    named.append((UNEXPLAINED, m.share_of(UNEXPLAINED)))
    part = Text("{name} {share}")
    parts = [part.format(name=name, share=units.whole_percent(share)) for name, share in named]
    return Text(", ").join(parts) if m.rows else ""
