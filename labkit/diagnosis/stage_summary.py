"""Stages of making a batch from what was timed and traced; pure.

    traced batches ─▶ shares of read, decode, each transform ┐
    timed batches  ─▶ seconds of fetching and collating      ├─▶ Stage, Stage, …: shares of 1
    sent batches   ─▶ seconds of serialization               ┘

Main trap: the tracer slows what calls many small functions, so its seconds serve as shares only,
less what the hook itself cost; the seconds are those of batches that it did not touch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit.diagnosis import stage_rules as rules
from labkit.diagnosis.stage_worker import BatchTimes, Made

COLLATE, SERIALIZATION = "collate", "serialization"
SMALLEST_SHARE = 0.01  # of making a batch; transforms below it are added up as "other"
OTHER = "other"
MOST_COST = 3.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of making and sending a batch."""

    name: str
    """"read", "decode", a transform's own name, "collate" or "serialization"."""
    kind: str
    """read, decode, transform, collate or serialization."""
    functions: tuple[str, ...]
    """What was seen at it, most time first."""
    batch_s: float
    """Wall seconds for each batch."""
    batch_cpu_s: float
    """CPU seconds for each batch, of all threads of the process."""
    sample_s: float
    share: float
    """Of the wall seconds of all stages."""
    share_error: float | None
    """Standard error of the share over the batches; None with fewer than two."""

    @property
    def waiting_s(self) -> float:
        """Wall seconds for each batch in which no thread of the process computed."""
        return max(0.0, self.batch_s - self.batch_cpu_s)


class Sent(NamedTuple):
    """What sending one batch from a worker to the training loop took."""

    pickle_s: float
    """In the worker, with the copy to shared memory."""
    pickle_cpu_s: float
    hand_over_s: float | None
    """From there to here through the pipe; None where nobody waited for it."""
    unpickle_s: float
    unpickle_cpu_s: float
    pipe_bytes: int
    """Through the pipe; tensors go through shared memory instead."""


def summarize_stages(
    batches: Sequence[BatchTimes], traced: Sequence[Made], sent: Sequence[Sent]
) -> tuple[Stage, ...]:
    """Turn timed, traced and sent batches into stages.

    Args:
        batches: timed; at least one.
        traced: others of the same worker, made under the tracer.
        sent: empty where nothing is sent.

    Returns:
        Most time first; their shares add up to 1.
    """
    samples = max(1.0, statistics.fmean(one.samples for one in batches))
    fetch_s = statistics.fmean(one.fetch_s for one in batches)
    fetch_cpu_s = statistics.fmean(one.fetch_cpu_s for one in batches)
    rows = []
    cost = _event_cost(traced, fetch_s, fetch_cpu_s)
    for (kind, name), (functions, share, cpu_share, error) in _shares(traced, cost).items():
        rows.append((kind, name, functions, share * fetch_s, cpu_share * fetch_cpu_s, error))
    fetch_rows = len(rows)
    collate = [one.collate_s for one in batches]
    collate_cpu_s = statistics.fmean(one.collate_cpu_s for one in batches)
    rows.append((COLLATE, COLLATE, (), statistics.fmean(collate), collate_cpu_s, _error(collate)))
    if sent:
        spent = [one.pickle_s + (one.hand_over_s or 0.0) + one.unpickle_s for one in sent]
        cpu_s = statistics.median(one.pickle_cpu_s + one.unpickle_cpu_s for one in sent)
        median_s = statistics.median(spent)
        rows.append((SERIALIZATION, SERIALIZATION, (), median_s, cpu_s, _error(spent)))
    whole_s = sum(row[3] for row in rows) or 1.0
    stages = [
        Stage(
            name=name, kind=kind, functions=functions, batch_s=batch_s, batch_cpu_s=cpu_s,
            sample_s=batch_s / samples, share=batch_s / whole_s,
            share_error=None if error is None
            else error * (fetch_s if i < fetch_rows else 1.0) / whole_s,
        )
        for i, (kind, name, functions, batch_s, cpu_s, error) in enumerate(rows)
    ]  # fmt: skip
    return tuple(sorted(_without_small_ones(stages), key=lambda stage: -stage.share))


def _event_cost(traced: Sequence[Made], fetch_s: float, fetch_cpu_s: float) -> tuple[float, float]:
    """Say what the tracer took for each call it saw: what traced batches took more than others.

    Where calls are few that is noise, so it is no more than some times what was measured for
    calls of a function that does nothing.
    """
    totals = [counted for one in traced for counted in one.totals.values()]
    events = sum(counted[2] for counted in totals) / len(traced) if traced else 0.0
    if not events:
        return 0.0, 0.0
    found = []
    for which, untouched_s in enumerate((fetch_s, fetch_cpu_s)):
        took_s = sum(counted[which] for counted in totals) / len(traced)
        most_s = MOST_COST * statistics.fmean(one.event_cost[which] for one in traced)
        found.append(min(max((took_s - untouched_s) / events, 0.0), most_s))
    return found[0], found[1]


def _shares(
    traced: Sequence[Made], event_cost: tuple[float, float]
) -> dict[tuple[str, str], tuple[tuple[str, ...], float, float, float | None]]:
    """Add up traced batches: (kind, name) -> functions, shares of wall and CPU, the first's error.

    Source of the error: the ratio estimator of survey sampling, batches being the sample.
    """
    each: list[dict[tuple[str, str], list[float]]] = []
    functions: dict[tuple[str, str], dict[str, float]] = {}
    for one in traced:
        found: dict[tuple[str, str], list[float]] = {}
        for (kind, function), (wall_s, cpu_s, events) in one.totals.items():
            stage = (kind, function if kind == rules.TRANSFORM else kind)
            wall_s = max(0.0, wall_s - events * event_cost[0])
            cpu_s = max(0.0, cpu_s - events * event_cost[1])
            spent = found.setdefault(stage, [0.0, 0.0])
            spent[0] += wall_s
            spent[1] += cpu_s
            seen = functions.setdefault(stage, {})
            seen[function] = seen.get(function, 0.0) + wall_s
        each.append(found)
    wholes = [sum(wall_s for wall_s, _ in found.values()) for found in each]
    whole_cpu_s = sum(cpu_s for found in each for _, cpu_s in found.values())
    if not sum(wholes):
        return {}
    shares = {}
    for stage, seen in functions.items():
        wall = [found.get(stage, (0.0, 0.0))[0] for found in each]
        cpu_s = sum(found.get(stage, (0.0, 0.0))[1] for found in each)
        share = sum(wall) / sum(wholes)
        off = _error([part - share * whole for part, whole in zip(wall, wholes)])
        error = None if off is None else off / statistics.fmean(wholes)
        names = tuple(sorted(seen, key=lambda name: -seen[name]))
        shares[stage] = names, share, cpu_s / whole_cpu_s if whole_cpu_s else 0.0, error
    return shares


def _error(values: Sequence[float]) -> float | None:
    """Give the standard error of a mean."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def _without_small_ones(stages: Sequence[Stage]) -> list[Stage]:
    def is_small(stage: Stage) -> bool:
        return stage.kind == rules.TRANSFORM and stage.share < SMALLEST_SHARE

    kept, small = [s for s in stages if not is_small(s)], [s for s in stages if is_small(s)]
    if not small:
        return kept
    errors = [stage.share_error for stage in small]
    other = Stage(
        name=OTHER,
        kind=rules.TRANSFORM,
        functions=tuple(stage.name for stage in sorted(small, key=lambda stage: -stage.share)),
        batch_s=sum(stage.batch_s for stage in small),
        batch_cpu_s=sum(stage.batch_cpu_s for stage in small),
        sample_s=sum(stage.sample_s for stage in small),
        share=sum(stage.share for stage in small),
        share_error=None if None in errors else sum(error**2 for error in errors) ** 0.5,
    )
    return [*kept, other]
