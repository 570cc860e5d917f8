"""What a step needs of each resource, and so what a change gains: expected, and at best.

    main process   receives (without workers: makes) a batch, and does the host's part of the step
    device         copies and computes
    workers        each makes a batch at a time
    cores          all of it that computes

No step is shorter than the busiest of them, so what a change leaves for each bounds its gain: that
is the *floor* of an epoch's time.  Steps take longer than that, as all that is done at once delays
each other; how much longer is measured, and what is *expected* assumes as much of it for what is
left.  Every number is measured; nothing is fitted.

Source: Denning and Buzen, "The Operational Analysis of Queueing Network Models" (1978), for the
bounds; DS-Analyzer (VLDB 2021) for measuring the parts apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from labkit.analysis.statistics import ratio_interval
from labkit.diagnosis.facts import Facts, Stage
from labkit.diagnosis.thresholds import (
    ADDED_READS_SHARE,
    BLOCKING_SYNCS_PER_STEP,
    CONTENTION_SHARE,
    IDLE_CORES_SHARE,
    LEAST_CPU_RATIO,
    LEAST_FETCHED_BYTES,
    MAIN_PROCESS_BUSY_SHARE,
    MANY_OBJECTS_PER_BATCH,
    OVERLAPPED_SHARE,
    PINNING_BUSY_SHARE,
    SMALL_BATCH_BYTES,
    SMALL_WORK_RATIO,
    UNEXPLAINED_SHARE,
)  # fmt: skip
from labkit.language import Text


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one step needs, in seconds; a mean over an epoch."""

    workers: int
    """Those of the DataLoader; 0: it has none, and the main process makes the batches."""
    cores: int
    cpu_s: float
    """CPU of making and sending a batch, of all threads."""
    wall_s: float
    """Making and sending a batch in one worker, on a core of its own."""
    hindered_s: float
    """In addition, per delivered batch: workers that run together hinder each other."""
    take_s: float
    """CPU of the main process to receive a batch from a worker."""
    step_s: float
    """The step on batches that are there."""
    host_s: float
    """The part of it in which the host can do nothing else."""
    host_cpu_s: float
    """CPU of the step, of all threads."""
    device_s: float
    """For which the device computes and copies; 0 where the host computes, or where not known."""
    startup_s: float
    """From the start of an epoch to its steady state, divided among its steps."""
    fetch_s: float
    """What files that are not in memory take longer."""
    pinning_s: float = 0.0
    """CPU of the thread of the main process that copies a batch into pinned memory."""
    is_ahead: bool = False
    """Whether batches are made beside the step without workers, as by a thread that loads ahead."""

    def busy_s(self) -> list[float]:
        """Return how long a step occupies each resource, and takes."""
        is_beside = self.workers > 0 or self.is_ahead
        main_s = self.host_s + (self.take_s if is_beside else self.wall_s)
        workers_s = self.wall_s / max(self.workers, 1) + self.hindered_s if is_beside else 0.0
        return [main_s, self.device_s, workers_s, self.cores_s, self.step_s, self.pinning_s]

    @property
    def cores_s(self) -> float:
        """Return for how long a step occupies all cores."""
        return (self.cpu_s + self.take_s + self.pinning_s + self.host_cpu_s) / self.cores

    def least_s(self) -> float:
        """Return the seconds below which no step can be."""
        return max(self.busy_s()) + self.startup_s + self.fetch_s


@dataclass(frozen=True, kw_only=True)
class Row:
    """A named part of the time in which a batch is made."""

    name: str
    kind: str
    seconds: float
    share: float


class Copy(NamedTuple):
    """The copy of a batch to the device, in a step."""

    s: float = 0.0
    """Seconds in which it occupies the device."""
    blocks: bool = False
    """Whether the host waits for it."""
    is_beside: bool = False
    """Whether it runs beside computing: then `Demand.device_s` does not hold it."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What follows from facts: the demands of a step, and where a batch's time goes."""

    facts: Facts
    now: Demand
    steps: int
    """Steps of an epoch."""
    epoch_s: float
    """Seconds of an epoch as it is; cold if that takes longer in every block."""
    epoch_ci: tuple[float | None, float | None] = (None, None)
    """95 % interval of an epoch's time ÷ `epoch_s`, over blocks."""
    ceiling_ci: tuple[float | None, float | None] = (None, None)
    """95 % interval of `ceiling`, over blocks."""
    alone_s: float
    """Seconds of a step of the loader alone."""
    stages: tuple[Stage, ...] = ()
    """Stages at their speed while all workers run."""
    rows: tuple[Row, ...] = ()
    """A batch's way through a worker, most time first; "not explained" is one of them."""
    syncs_s: float = 0.0
    """Seconds of a step in which the host waits for the device to finish."""
    copy: Copy = field(default_factory=Copy)

    @property
    def pace_s(self) -> float:
        """Return a step's seconds if workers never waited: those of the slower of both."""
        return max(self.now.wall_s / self.now.workers, self.now.step_s)

    @property
    def slowest_s(self) -> float:
        """Return the seconds in which a worker makes the slowest batch."""
        return self.facts.probe.slowest * self.now.wall_s

    @property
    def fetched_per_s(self) -> tuple[float, float] | None:
        """Return the bytes per second that one worker, and all together, read from storage.

        Returns:
            None where not known, or where samples come from memory.
        """
        one = self.facts.probe.fetched_per_s
        batch_bytes = _mean_known(stretch.fetched_bytes for stretch in self.facts.of("alone"))
        least_bytes = LEAST_FETCHED_BYTES * max(self.facts.batch.samples, 1)
        if not one or batch_bytes is None or batch_bytes < least_bytes:
            return None
        return one, batch_bytes / self.alone_s

    def kind_s(self, kind: str) -> float:
        """Return the seconds of a step in which the host does some kind of work."""
        kinds = self.facts.host_kinds
        return kinds[kind].share * self.now.step_s if kind in kinds else 0.0

    @property
    def ceiling(self) -> float:
        """Normalized time of an epoch with a loader that takes no time."""
        return min(self.now.step_s * self.steps / self.epoch_s, 1.0)

    def interval_of(self, expected: float) -> tuple[float | None, float | None]:
        """Return the 95 % interval of an expected time, as far as it depends on the epoch's."""
        low, high = self.epoch_ci
        if low is None or high is None:
            return None, None
        return expected / high, min(expected / low, 1.0)

    @property
    def loading_cost_share(self) -> float:
        """Share of the training's time that data loading costs: that free loading would save."""
        return 1 - self.ceiling

    @property
    def loading_cost_share_interval(self) -> tuple[float, float]:
        """95 % interval of `loading_cost_share`; both ends are the share where it is not known."""
        low, high = self.ceiling_ci
        if low is None or high is None:
            return self.loading_cost_share, self.loading_cost_share
        return max(1 - high, 0.0), max(1 - low, 0.0)

    def floor(self, shorter: float = 1.0, **changes: Any) -> float:
        """Return the least normalized time of an epoch with some demands changed.

        Args:
            shorter: the epoch's steps, as a share of those now.
            **changes: fields of `Demand`.
        """
        now_s = max(self.epoch_s / self.steps, self.now.least_s())
        # Whether what is left hinders other workers as before is not known.
        left = replace(self.now, **{**changes, "hindered_s": 0.0})
        return shorter * min(left.least_s() / now_s, 1.0)

    def expected(self, shorter: float = 1.0, **changes: Any) -> float:
        """Return the expected normalized time of an epoch with some demands changed.

        Args:
            shorter: the epoch's steps, as a share of those now.
            **changes: fields of `Demand`.
        """
        now, left = self.now, replace(self.now, **changes)
        now_s = max(self.epoch_s / self.steps, now.least_s())
        busy_s, left_s = now.busy_s(), left.busy_s()
        # If everything took half as long, so would a step, whatever delays what: it shrinks no
        # more than what shrinks most.
        before = [*busy_s, now.startup_s, now.fetch_s]
        after = [*left_s, left.startup_s, left.fetch_s]
        shrinks = min(x_s / before_s for x_s, before_s in zip(after, before) if before_s)
        # A step takes longer than the busiest of these, which all that is done at once delays.
        # What is gone neither is delayed nor delays the rest; what nothing waits for has no delay.
        most = busy_s.index(max(busy_s))
        delay = (now_s - now.startup_s - now.fetch_s) / busy_s[most] - 1
        left_s[most] *= 1 + delay * min(left_s[most] / busy_s[most], 1.0)
        least_s = max(left_s) + left.startup_s + left.fetch_s
        ceiling = left.step_s * self.steps / self.epoch_s  # measured, so it holds in any case
        return shorter * min(max(least_s / now_s, shrinks, ceiling), 1.0)

    def without(self, some: Iterable[Stage], left: float = 0.0) -> dict[str, float]:
        """Return the demands with a share left of some stages."""
        some = list(some)
        wall_s = max(self.now.wall_s - (1 - left) * sum(s.wall_s for s in some), 0.0)
        # Shorter work hinders the others less: at best, in proportion.  What waits for the main
        # process waits as long as before.
        waits = any(row.name == MAIN_PROCESS for row in self.rows)
        hindered_share = 1.0 if waits else wall_s / (self.now.wall_s or 1.0)
        return {
            "cpu_s": max(self.now.cpu_s - (1 - left) * sum(s.cpu_s for s in some), 0.0),
            "wall_s": wall_s,
            "hindered_s": self.now.hindered_s * hindered_share,
        }

    @property
    def made_s(self) -> float:
        """Seconds in which a worker, or without any the main process, makes a batch."""
        return sum(row.seconds for row in self.rows)

    def share_of(self, kind: str) -> float:
        """Return the share of a kind in the time in which a batch is made."""
        return sum(row.share for row in self.rows if row.kind == kind)

    @property
    def is_unexplained(self) -> bool:
        """Return whether so much of a batch's time has no name that no part of it is blamed."""
        return self.share_of(UNEXPLAINED) > UNEXPLAINED_SHARE


UNEXPLAINED, EACH_OTHER, JITTER, NO_CORE, OVERHEAD, BYTES, SERIALIZATION, SAMPLER = (
    "not explained", "workers wait for each other", "jitter", "waiting for a core",
    "per-batch overhead", "bytes", "serialization", "sampler",
)  # fmt: skip
SHARED_STORAGE, PINNING = "shared storage", "pinning"
MAIN_PROCESS = "waiting for the main process"  # a row


def bounds_of(facts: Facts) -> Bounds | None:
    """Return what follows from the arms; None unless all of them were measured."""
    resident, alone, warm = (facts.of(arm) for arm in ("resident", "alone", "warm"))
    if not (resident and alone and warm):
        return None
    resident_s, alone_s = (fmean(s.step_s for s in arm) for arm in (resident, alone))
    steps = facts.length or max(stretch.steps for stretch in warm)
    epochs_s, cold = (
        [s.epoch_s or s.step_s * steps for s in facts.of(arm)] for arm in ("warm", "cold")
    )
    warm_s, fetch_s = fmean(epochs_s), 0.0
    if cold and all(cold_s > warm_s for cold_s, warm_s in zip(cold, epochs_s)):
        epochs_s, fetch_s = cold, (fmean(cold) - warm_s) / steps
    epoch_s = fmean(epochs_s)
    logs = [math.log(r.step_s * steps / epoch_s) for r, epoch_s in zip(resident, epochs_s)]

    copy = _copying(facts, resident_s)
    device_s, syncs_s = _device(facts)
    host_s = resident_s
    if facts.has_queue and not syncs_s:
        busy_s = fmean(stretch.busy_s for stretch in facts.computing)
        # A copy that blocks also waits for the device: longer, the less other work the host has.
        host_s = min(busy_s + copy.s * copy.blocks, resident_s)

    workers = facts.workers
    saved_s = alone_s + host_s - fmean(s.step_s for s in warm)
    stages, wall_s, cpu_s = _work_of_batch(facts, alone_s)
    first_s = fmean(stretch.startup_s for stretch in warm)
    pinning_s = min(_mean_known(stretch.pinning_s for stretch in alone) or 0.0, alone_s)
    own_cpu_s = fmean(s.own_cpu_s for s in alone)
    now = Demand(
        workers=workers,
        cores=facts.cores,
        cpu_s=cpu_s,
        wall_s=wall_s,
        hindered_s=0.0,
        take_s=min(max(own_cpu_s - pinning_s, 0.0), alone_s) if workers else 0.0,
        step_s=resident_s,
        host_s=host_s,
        host_cpu_s=min(fmean(s.cpu_s for s in resident), facts.cores * resident_s),
        device_s=device_s + (0.0 if copy.is_beside else copy.s),
        # An epoch of unknown length is steps only.
        # Without the first batch, which takes a worker as long as any later one.
        startup_s=max(first_s - alone_s * workers, 0.0) / steps
        if workers and facts.length
        else 0.0,
        fetch_s=fetch_s,
        pinning_s=pinning_s,
        # Then both together take less than one after the other.
        is_ahead=not workers and saved_s > OVERLAPPED_SHARE * min(alone_s, host_s),
    )
    if workers:
        loading = replace(now, step_s=0.0, host_s=0.0, host_cpu_s=0.0, device_s=0.0,
                          startup_s=0.0, fetch_s=0.0)  # fmt: skip
        now = replace(now, hindered_s=max(alone_s - loading.least_s(), 0.0))
    bounds = Bounds(
        facts=facts,
        now=now,
        steps=steps,
        epoch_s=epoch_s,
        epoch_ci=ratio_interval([math.log(each_s / epoch_s) for each_s in epochs_s]),
        ceiling_ci=ratio_interval(logs),
        alone_s=alone_s,
        stages=stages,
        syncs_s=syncs_s,
        copy=copy,
    )
    return replace(bounds, rows=_rows(bounds))


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _device(facts: Facts) -> tuple[float, float]:
    """Return for which seconds of a step the device computes, and the host waits for its end."""
    readings = [stretch.readings for stretch in facts.computing]
    waits_s = fmean(each.waited_s - each.copy_wait_s for each in readings)
    synchronizes = fmean(each.syncs for each in readings) > BLOCKING_SYNCS_PER_STEP
    return fmean(each.device_s for each in readings), waits_s if synchronizes else 0.0


def _copying(facts: Facts, resident_s: float) -> Copy:
    copies = facts.copies
    if not copies.pageable_s:
        return Copy()
    if facts.resident_on_device:  # CUDA: what the step takes less without copying
        saved_s = max(resident_s - facts.resident_on_device.step_s, 0.0)
        return Copy(saved_s, not copies.are_pinned)
    if copies.are_pinned:
        return Copy(copies.pinned_s, is_beside=copies.are_beside)
    return Copy(copies.pageable_s, blocks=True)


def _work_of_batch(facts: Facts, alone_s: float) -> tuple[tuple[Stage, ...], float, float]:
    """Return the stages, and wall and CPU seconds of making and sending a batch.

    CPU seconds are scaled to those without a probe, and with all workers: two busy cores do less
    than twice the work of one (hyper-threads, memory bandwidth).
    """
    seen, pickle_s, alone = facts.probe.stages, facts.probe.pickle_s, facts.of("alone")
    cpu_s = fmean(s.cpu_s - (s.own_cpu_s if facts.workers else 0.0) for s in alone)
    probed_s = sum(stage.cpu_s for stage in seen) + pickle_s
    if not facts.workers:
        # The probe makes calls take longer.
        scale = min(alone_s / (sum(stage.wall_s for stage in seen) or alone_s), 1.0)
        seen = tuple(replace(s, cpu_s=s.cpu_s * scale, wall_s=s.wall_s * scale) for s in seen)
        return seen, alone_s, min(cpu_s, facts.cores * alone_s)
    if not probed_s:
        return seen, alone_s, fmean(s.cpu_s for s in alone)
    starts = any(stretch.epochs > 1 for stretch in alone)  # starting workers is in it
    scale = 1.0 if starts else max(cpu_s / probed_s, LEAST_CPU_RATIO)
    seen = tuple(
        replace(s, cpu_s=s.cpu_s * scale, wall_s=s.wait_s + (s.wall_s - s.wait_s) * scale)
        for s in seen
    )
    sums_s = (sum(getattr(s, name) for s in seen) for name in ("wall_s", "cpu_s"))
    wall_s, cpu_s = (sum_s + pickle_s * scale for sum_s in sums_s)
    return seen, wall_s, cpu_s


def _is_storage_saturated(bounds: Bounds) -> bool:
    """Return whether several workers get hardly more bytes per second from storage than one."""
    if bounds.fetched_per_s is None:
        return False
    waits_s = sum(stage.wait_s for stage in bounds.stages)
    files = ("read", "decode")  # cv2.imread does both
    reads_s = sum(stage.wait_s for stage in bounds.stages if stage.kind in files)
    one, together = bounds.fetched_per_s
    added = (together - one) / (one * (bounds.now.workers - 1))
    return reads_s > 0.5 * waits_s and added < ADDED_READS_SHARE


def _rows(bounds: Bounds) -> tuple[Row, ...]:
    """Return everything in a batch's time in a worker that has a name, and the rest as a row.

    The loader alone: its step's seconds × its workers.
    """
    facts, now, alone = bounds.facts, bounds.now, bounds.facts.of("alone")
    total_s = bounds.alone_s * max(now.workers, 1)
    if not bounds.stages:
        return (Row(name=UNEXPLAINED, kind=UNEXPLAINED, seconds=total_s, share=1.0),)
    sent = BYTES if facts.batch.total_bytes > SMALL_BATCH_BYTES else OVERHEAD
    if facts.batch.objects > MANY_OBJECTS_PER_BATCH:
        sent = SERIALIZATION
    parts = [] if now.workers else [("sampler", SAMPLER, facts.probe.sampler_s)]
    for stage in bounds.stages:
        waits = "waiting" if stage.kind == "transform" else stage.kind
        parts += [
            (stage.name, stage.kind, stage.wall_s - stage.wait_s),
            (Text("waiting in {name}").format(name=stage.name), waits, stage.wait_s),
        ]
    if now.workers:
        sent_s = now.wall_s - sum(stage.wall_s for stage in bounds.stages)
        parts.append(("sending", sent, sent_s))
    known_s = sum(seconds for _, _, seconds in parts)
    rest_s = max(total_s - known_s, 0.0)
    queued_s = _mean_known(stretch.queued_s for stretch in alone)
    idle = fmean(stretch.idle for stretch in alone) > IDLE_CORES_SHARE
    queued_s = min(rest_s * (not idle) if queued_s is None else queued_s, rest_s)
    parts.append((NO_CORE, NO_CORE, queued_s))
    rest_s -= queued_s
    if now.pinning_s > PINNING_BUSY_SHARE * bounds.alone_s:
        parts.append(("waiting for the thread that pins batches", PINNING, rest_s))
        rest_s = 0.0
    if facts.is_data_loader:
        made_s = sum(stage.wall_s for stage in bounds.stages)
        empty_s = facts.empty_s * max(now.workers, 1)
        is_small = made_s < SMALL_WORK_RATIO * facts.empty_s
        handed_s = rest_s if is_small else min(empty_s, rest_s)
        parts.append(("handing over a batch", OVERHEAD, handed_s))
        rest_s -= handed_s
    if now.workers:
        ran_s = bounds.alone_s - fmean(stretch.own_queued_s for stretch in alone)
        if now.take_s > MAIN_PROCESS_BUSY_SHARE * ran_s:
            draws = facts.probe.sampler_s > 0.5 * now.take_s
            parts.append((MAIN_PROCESS, SAMPLER if draws else sent, rest_s))
            rest_s = 0.0
        elif now.workers > 1 and rest_s > CONTENTION_SHARE * total_s:
            # Batches come in order: the others wait for a late one, once their queues are full.
            is_late = bounds.slowest_s > facts.ahead * now.workers * bounds.pace_s
            why = (EACH_OTHER, EACH_OTHER) if idle else (UNEXPLAINED, UNEXPLAINED)
            if is_late and idle:
                why = ("waiting for a late batch", JITTER)
            elif not is_late and _is_storage_saturated(bounds):
                why = ("waiting for shared storage", SHARED_STORAGE)
            parts.append((*why, rest_s))
            rest_s = 0.0
    parts.append((UNEXPLAINED, UNEXPLAINED, rest_s))
    whole_s = max(total_s, known_s) or 1.0
    rows = [
        Row(name=name, kind=kind, seconds=seconds, share=seconds / whole_s)
        for name, kind, seconds in parts
        if seconds > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))
