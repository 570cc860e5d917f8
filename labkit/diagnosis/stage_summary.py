"""Stages of making a batch from what was timed and traced; pure.

    traced batches ─▶ shares of read, decode, each transform ┐
    timed batches  ─▶ seconds of fetching and collating      ├─▶ Stage, Stage, …: shares of 1
    sent batches   ─▶ seconds of serialization               ┘

Main trap: the tracer slows what calls many small functions, up to tenfold, so its seconds serve
as shares only, less what the hook itself cost; that is known from the batches that it did not
touch, whose seconds are taken.  Time in which others had the core counts for no stage.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit.diagnosis import stage_rules as rules
from labkit.diagnosis.stage_tracer import Counted
from labkit.diagnosis.stage_worker import BatchTimes, Made

COLLATE, SERIALIZATION = "collate", "serialization"
SMALLEST_SHARE = 0.01  # of making a batch; transforms below it are added up as "other"
OTHER = "other"
MOST_OF_PYTHON = 0.4  # of loops' seconds under a hook; Python 3.11 makes them 1.6 times as long


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
    collate_s = [one.collate_s for one in batches]
    collate_cpu_s = statistics.fmean(one.collate_cpu_s for one in batches)
    rows = _fetching(batches, traced)
    rows.append(
        (COLLATE, COLLATE, (), statistics.fmean(collate_s), collate_cpu_s, _error(collate_s))
    )
    if sent:
        spent_s = [one.pickle_s + (one.hand_over_s or 0.0) + one.unpickle_s for one in sent]
        cpu_s = statistics.median(one.pickle_cpu_s + one.unpickle_cpu_s for one in sent)
        # A median, as one late process is nothing of serialization's.
        sending = statistics.median(spent_s), cpu_s, _error(spent_s)
        rows.append((SERIALIZATION, SERIALIZATION, (), *sending))
    samples = max(1.0, statistics.fmean(one.samples for one in batches))
    whole_s = sum(row[3] for row in rows) or 1.0
    stages = [
        Stage(
            name=name,
            kind=kind,
            functions=functions,
            batch_s=batch_s,
            batch_cpu_s=cpu_s,
            sample_s=batch_s / samples,
            share=batch_s / whole_s,
            share_error=None if error_s is None else error_s / whole_s,
        )
        for kind, name, functions, batch_s, cpu_s, error_s in rows
    ]
    return tuple(sorted(_without_small_ones(stages), key=lambda stage: -stage.share))


class _Slowdown(NamedTuple):
    """What the tracer made of the seconds of computing."""

    event_s: float
    """For each call and return."""
    python: float
    """The part of the seconds in Python itself that is only there because of the hook."""

    def corrected_s(self, counted: Counted, cpu_s: float) -> float:
        """Take off of a stage's CPU seconds what the tracer put on."""
        return max(
            0.0, cpu_s - counted.events * self.event_s - self.python * self.python_s(counted)
        )

    def python_s(self, counted: Counted) -> float:
        """Give a stage's traced seconds that are neither in C nor the hook's."""
        return max(0.0, counted.thread_cpu_s - counted.c_s - counted.events * self.event_s)


def _slowdown(batches: Sequence[BatchTimes], traced: Sequence[Made]) -> _Slowdown:
    """Find what traced batches took more than the others, and lay it to calls and to loops.

    First to loops, each call costing what was measured apart; what is more than loops can be
    slowed, or negative, to calls.  Bounded, as the difference has the noise of both.
    """
    stages = [counted for one in traced for counted in one.totals.values()]
    events = sum(counted.events for counted in stages)
    if not events:
        return _Slowdown(0.0, 0.0)
    apart = _Slowdown(traced[0].event_cost, 0.0)
    plain_s = statistics.fmean(one.fetch_thread_cpu_s for one in batches)
    more_s = sum(one.times.fetch_thread_cpu_s - plain_s for one in traced)
    rest_s = more_s - events * apart.event_s
    python_s = sum(map(apart.python_s, stages))
    python = min(max(rest_s / python_s, 0.0), MOST_OF_PYTHON) if python_s else 0.0
    event_s = (more_s - python * python_s) / events
    return _Slowdown(min(max(event_s, apart.event_s / 2), 2 * apart.event_s), python)


def _fetching(batches: Sequence[BatchTimes], traced: Sequence[Made]) -> list[tuple]:
    """Give every stage of fetching: kind, name, functions, wall and CPU seconds, wall's error.

    Computing and waiting are shared out apart, each as in the traced batches and all in all as
    much as in the untouched ones, for the tracer makes the first longer and not the second.
    Source of the error: the ratio estimator of survey sampling, batches being the sample.
    """
    slowdown = _slowdown(batches, traced)
    each = [_seconds(one, slowdown) for one in traced]
    stages = dict.fromkeys(stage for found in each for stage in found)
    sums = [sum(spent[i] for found in each for spent in found.values()) for i in range(3)]
    thread_cpu_s = statistics.fmean(one.fetch_thread_cpu_s for one in batches)
    waiting_s = statistics.fmean(one.fetch_s for one in batches) - thread_cpu_s
    cpu_s = statistics.fmean(one.fetch_cpu_s for one in batches)
    # From seconds of all traced batches to those of one that is untouched.
    scales = [
        whole_s / spent_s if spent_s else 0.0
        for whole_s, spent_s in zip((thread_cpu_s, waiting_s, cpu_s), sums)
    ]

    def wall_s(found: Mapping[tuple[str, str], Sequence[float]], stage: tuple[str, str]) -> float:
        computing_s, waiting_s, _ = found.get(stage, (0.0, 0.0, 0.0))
        return computing_s * scales[0] + waiting_s * scales[1]

    wholes_s = [sum(wall_s(found, stage) for stage in found) for found in each]
    rows = []
    for kind, name in stages:
        parts_s = [wall_s(found, (kind, name)) for found in each]
        share = sum(parts_s) / (sum(wholes_s) or 1.0)
        error_s = _error([part - share * whole for part, whole in zip(parts_s, wholes_s)])
        stage_cpu_s = scales[2] * sum(found.get((kind, name), (0, 0, 0))[2] for found in each)
        rows.append(
            (
                kind,
                name,
                _functions(traced, kind, name),
                sum(parts_s),
                stage_cpu_s,
                # Of the mean of what is here, for each batch, 1 / len(each) of it.
                None if error_s is None else error_s * len(each),
            )
        )
    return rows


def _seconds(one: Made, slowdown: _Slowdown) -> dict[tuple[str, str], list[float]]:
    """Give (kind, name) -> seconds that the thread computed, waited, and that all computed."""
    found: dict[tuple[str, str], list[float]] = {}
    # Who computes queues for a core; that is nobody's waiting.
    thread_cpu_s = sum(counted.thread_cpu_s for counted in one.totals.values())
    queued = one.times.queued_s / (thread_cpu_s or 1.0)
    for (kind, function), counted in one.totals.items():
        spent = found.setdefault((kind, _name(kind, function)), [0.0, 0.0, 0.0])
        spent[0] += slowdown.corrected_s(counted, counted.thread_cpu_s)
        spent[1] += max(0.0, counted.wall_s - counted.thread_cpu_s * (1 + queued))
        spent[2] += slowdown.corrected_s(counted, counted.cpu_s)
    return found


def _name(kind: str, function: str) -> str:
    return function if kind == rules.TRANSFORM else kind


def _functions(traced: Sequence[Made], kind: str, name: str) -> tuple[str, ...]:
    """List what was seen at a stage, most wall time first."""
    seen: dict[str, float] = {}
    for one in traced:
        for (of_kind, function), counted in one.totals.items():
            if of_kind == kind and _name(kind, function) == name:
                seen[function] = seen.get(function, 0.0) + counted.wall_s
    return tuple(sorted(seen, key=lambda function: -seen[function]))


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
