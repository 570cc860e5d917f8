"""Prediction: the pipeline's parts, put together from what was measured, and their simulation.

    worker ─ wait, work ─┐                          ┌─▶ device ─ compute
    worker ─ wait, work ─┴─ in order ─▶ host ─ take, copy, launch, (sync)

Every worker and the host have a timeline of their own; those that compute at the same time share
the cores.  As in torch's DataLoader, worker k mod W makes batch k, the host takes batches in order,
and batch k may begin once k - W × prefetch_factor batches were taken.  The device works beside the
host, which may run a few steps ahead.  Two busy cores do less than twice the work of one
(hyper-threads, memory bandwidth), so `share_when_full` is fitted to what the loader alone took.

Source: torch/utils/data/dataloader.py for the order of hand-over; the idea of predicting from
parts is DS-Analyzer's (VLDB 2021).
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import cycle, islice

from labkit.diagnosis import loaders
from labkit.diagnosis.measure import Collected, Stretch, worker_threads
from labkit.diagnosis.stages import SERIALIZATION, Stage
from labkit.machine import hardware

AHEAD_STEPS = 3  # as far as a host may be ahead of the device
LONGEST_STEPS = 400  # simulated; longer epochs continue as their second half did
# Of an epoch: less waiting is none, and its measure would be noise.
LEAST_WAIT = 0.03
MOST_OFF = 2.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """What making one batch takes on a core without competition."""

    wait_s: float
    """For a disk, a network, a lock: needs no core."""
    cpu_s: float
    """Of all its threads."""
    threads: float = 1.0
    """Cores that it keeps busy at once."""


@dataclass(frozen=True, kw_only=True)
class HostStep(Work):
    """What one step takes on the host: launching or computing it, saving, reporting."""

    synchronizes: bool = False
    """Whether the host then waits for the device."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A pipeline's parts, in seconds per step."""

    works: tuple[Work, ...]
    """One per batch that was measured; they repeat in this order."""
    workers: int
    prefetch_factor: int = 2
    send_s: float = 0.0
    """CPU of a worker to send a batch: pickling, copying into shared memory."""
    take_s: float = 0.0
    """CPU of the host to receive one: unpickling."""
    copy_s: float = 0.0
    """Copy of a batch to the device, which computes nothing meanwhile."""
    copy_blocks: bool = False
    """Whether the host waits for all queued work and the copy: pageable memory."""
    copy_beside: bool = False
    """Whether copies run beside the computing, on a stream of their own."""
    host: tuple[HostStep, ...] = (HostStep(wait_s=0.0, cpu_s=0.0),)
    """One per step that was measured; they repeat in this order."""
    after_sync: float = 0.0
    """Share of the host's work that follows a step's wait for the device."""
    device_s: float = 0.0
    """For which the device is busy with a step; 0 where the host computes."""
    startup_s: float = 0.0
    """Of every epoch, before work on the first batch begins."""
    steps: int = 100
    """Of an epoch."""
    cores: float = 1.0
    share_when_full: float = 1.0
    """How much of a core each thread gets when all cores are busy."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """A simulated epoch."""

    epoch_s: float
    first_s: float
    """Until the first batch arrives."""


@lru_cache(64)
def simulate(parts: Parts) -> Epoch:
    """Simulate an epoch of a pipeline.

    Epochs of more than `LONGEST_STEPS` are extrapolated from their second half.
    """
    steps = min(parts.steps, LONGEST_STEPS)
    whole = _Run(parts, steps).epoch()
    if steps == parts.steps:
        return whole
    half = _Run(parts, steps // 2).epoch()
    more = (parts.steps - steps) / (steps - steps // 2)
    return Epoch(
        first_s=whole.first_s,
        epoch_s=whole.epoch_s + more * (whole.epoch_s - half.epoch_s),
    )


# What an actor waits for: ("cpu", seconds, cores), ("sleep", until_s) or ("until", condition).
Request = tuple


class _Run:
    """One epoch: host and workers are generators that yield what they wait for."""

    def __init__(self, parts: Parts, steps: int) -> None:
        self._parts, self._steps = parts, steps
        self._now_s = self._first_s = 0.0
        self._ready: set[int] = set()  # batches made and not taken yet
        self._taken = 0
        works = list(islice(cycle(parts.works), steps))
        actors = [self._host(works)]
        actors += [self._worker(number, works) for number in range(parts.workers)]
        self._actors = actors

    def _worker(self, number: int, works: list[Work]) -> Iterator[Request]:
        depth = self._parts.workers * self._parts.prefetch_factor
        yield "sleep", self._parts.startup_s
        for k in range(number, self._steps, self._parts.workers):
            yield "until", lambda k=k: self._taken > k - depth
            yield from self._make(works[k])
            yield "cpu", self._parts.send_s, 1.0
            self._ready.add(k)

    def _host(self, works: list[Work]) -> Iterator[Request]:
        parts = self._parts
        yield "sleep", parts.startup_s
        free_s = copied_s = self._now_s
        ends_s: list[float] = []
        host = list(islice(cycle(parts.host), self._steps))
        for k in range(self._steps):
            if parts.workers:
                yield "until", lambda k=k: k in self._ready
                self._ready.discard(k)
                yield "cpu", parts.take_s, 1.0
            else:
                yield from self._make(works[k])
            self._first_s = self._first_s or self._now_s
            self._taken = k + 1
            copied_s = max(self._now_s, copied_s if parts.copy_beside else free_s) + parts.copy_s
            if parts.copy_blocks:
                yield "sleep", copied_s
            launched_s = self._now_s
            later = parts.after_sync if host[k].synchronizes else 0.0
            yield from self._make(host[k], 1 - later)
            if parts.device_s:
                free_s = max(launched_s, free_s, copied_s) + parts.device_s
                heapq.heappush(ends_s, free_s)
                if host[k].synchronizes:
                    yield "sleep", free_s
                elif len(ends_s) > AHEAD_STEPS:
                    yield "sleep", heapq.heappop(ends_s)
            yield from self._make(host[k], later)
        yield "sleep", free_s  # what was queued belongs to the epoch

    def _make(self, work: Work, share: float = 1.0) -> Iterator[Request]:
        yield "sleep", self._now_s + work.wait_s * share
        yield "cpu", work.cpu_s * share, work.threads

    def epoch(self) -> Epoch:
        host = self._actors[0]
        asked: dict[Iterator, list] = {actor: list(next(actor)) for actor in self._actors}
        while host in asked:
            if not self._go_on(asked):
                self._let_time_pass(asked)
        return Epoch(first_s=self._first_s, epoch_s=self._now_s)

    def _go_on(self, asked: dict[Iterator, list]) -> bool:
        """Resume all actors that wait no longer; return whether there was one."""
        moved = False
        for actor in list(asked):
            while actor in asked and self._is_fulfilled(asked[actor]):
                moved = True
                try:
                    asked[actor] = list(next(actor))
                except StopIteration:
                    del asked[actor]
        return moved

    def _is_fulfilled(self, asked: list) -> bool:
        kind, value = asked[0], asked[1]
        if kind == "cpu":
            return value <= 1e-12
        return value() if kind == "until" else value <= self._now_s + 1e-12

    def _let_time_pass(self, asked: dict[Iterator, list]) -> None:
        """Advance the time until the next actor waits no longer."""
        working = [each for each in asked.values() if each[0] == "cpu"]
        speed = self._speed(sum(each[2] for each in working))
        moments = [each[1] / (each[2] * speed) for each in working]
        moments += [each[1] - self._now_s for each in asked.values() if each[0] == "sleep"]
        if not moments:
            raise RuntimeError("no actor of the simulation can continue")
        passed_s = min(moments)
        for each in working:
            each[1] -= passed_s * each[2] * speed
        self._now_s += passed_s

    def _speed(self, wanted: float) -> float:
        """Return how much of a core each thread gets when `wanted` threads compute."""
        parts = self._parts
        full = parts.cores * parts.share_when_full
        if wanted <= 1.0 or parts.cores <= 1.0:
            return 1.0 if wanted <= parts.cores else parts.cores / wanted
        # Between one busy core and all of them, the work done grows linearly.
        busy = min(wanted, parts.cores)
        got = 1.0 + (full - 1.0) * (busy - 1.0) / (parts.cores - 1.0)
        return got / wanted


# --- what a diagnosis measured ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A pipeline's parts, and what else remedies depend on; None where not measured."""

    parts: Parts
    warm_s: float
    """An epoch with the files in memory, or as they were found."""
    stages: tuple[Stage, ...] = ()
    cold_s: float | None = None
    """An epoch with the files evicted before, where that took longer in every block."""
    is_data_loader: bool = True
    """Whether the loader is torch's DataLoader."""
    persistent_workers: bool = False
    batch_bytes: int = 0
    float_share: float = 0.0
    """Share of a batch's bytes that are float32 and float64."""
    pinned_s: float | None = None
    """Copy of a batch to the device from pinned memory."""
    limited: float | None = None
    """Normalized time of the loader alone with one thread in each worker; measured only where the
    workers' threads need more cores than there are."""
    worker_threads: float = 1.0
    """Threads that each worker keeps busy, or that OpenCV would start in it."""
    host_kinds_s: Mapping[str, float] = field(default_factory=dict)
    """Kind of the step's work on the host -> seconds in a step; see `profile.KINDS`."""
    has_device: bool = False

    def predict(self, **changes: object) -> float:
        """Return the predicted normalized time of an epoch with some parts changed.

        What a cold epoch takes longer than a warm one stays as it is.
        """
        ratio = self._ratio(simulate(replace(self.parts, **changes)).epoch_s)
        if self.cold_s is None:
            return ratio
        return (ratio * self.warm_s + self.cold_s - self.warm_s) / self.cold_s

    def _ratio(self, changed_s: float) -> float:
        """Return a simulated epoch's time, normalized by the pipeline as it is.

        Where the simulated waiting for batches differs from the measured one (the workers hinder
        each other), the waiting that is left is scaled by the same factor.
        """
        now_s = simulate(self.parts).epoch_s
        nothing = Work(wait_s=0.0, cpu_s=0.0)
        free = {"works": (nothing,), "send_s": 0.0, "take_s": 0.0, "startup_s": 0.0}
        computing_s = simulate(replace(self.parts, **free)).epoch_s
        waited_s = now_s - computing_s
        if waited_s < LEAST_WAIT * now_s or changed_s < computing_s:
            return changed_s / now_s
        more = min(max((self.warm_s - computing_s) / waited_s, 1 / MOST_OFF), MOST_OFF)
        return (computing_s + more * (changed_s - computing_s)) / (computing_s + more * waited_s)

    def works_without(self, *stages: Stage, waits_only: bool = False) -> tuple[Work, ...]:
        """Return the work of batches without some stages."""
        cpu = 1 - _part_of(self.stages, stages, "cpu_s")
        wait = 1 - _part_of(self.stages, stages, "wait_s")
        return tuple(
            Work(
                wait_s=work.wait_s * wait,
                cpu_s=work.cpu_s * (1.0 if waits_only else cpu),
                threads=work.threads,
            )
            for work in self.parts.works
        )


def _part_of(every: tuple[Stage, ...], some: tuple[Stage, ...], what: str) -> float:
    total = sum(getattr(stage, what) for stage in every)
    return sum(getattr(stage, what) for stage in some) / total if total else 0.0


# --- from what was measured to parts ----------------------------------------------------------


def _parts_of(found: Collected) -> Parts:
    """Return the parts that the simulation needs, from stretches of every arm."""
    loop = found.loop
    loader, resident, warm = loop.loader, found.of("resident"), found.of("warm")
    is_torch = loaders.is_data_loader(loader)
    workers = loader.num_workers if is_torch else 0
    works = _works(found)
    readings = [stretch.readings for stretch in resident]
    copy_s, how = _copying(found)
    sent = found.stages.sent if found.stages else ()
    host = _host(resident, loop.device.has_queue)
    device_s = _mean(each.device_s for each in readings)
    # In a step that waits for the device, what is neither device nor copy follows that wait.
    host_s = _mean(work.wait_s + work.cpu_s for work in host)
    apart_s = _mean(s.step_s for s in resident) - device_s - copy_s
    waits = _mean(step.synchronizes for step in host) > 0.5
    later = min(max(apart_s / host_s, 0.0), 1.0) if waits and host_s else 0.0
    parts = Parts(
        works=works,
        workers=workers,
        prefetch_factor=(is_torch and loader.prefetch_factor) or loaders.DEFAULT_PREFETCH_FACTOR,
        send_s=_median(one.pickle_cpu_s for one in sent),
        take_s=_median(one.unpickle_cpu_s for one in sent),
        copy_s=copy_s,
        copy_blocks=how == "blocks",
        copy_beside=how == "beside",
        host=host,
        after_sync=later,
        device_s=device_s,
        steps=loaders.count_batches(loader) or max(len(stretch.steps) for stretch in warm),
        cores=float(hardware.cores()),
    )
    parts = _calibrated(parts, found)
    # Persistent workers are not started.  What they still did when an arm broke off delays the
    # next arm's start, but not a whole epoch's.
    if not workers or loader.persistent_workers:
        return parts
    first_s = _mean(stretch.startup_s for stretch in warm)
    return replace(parts, startup_s=max(first_s - simulate(parts).first_s, 0.0))


def _works(found: Collected) -> tuple[Work, ...]:
    """Return the work of batches, measured inside a worker or from the loader alone."""
    if found.stages is None or not found.stages.batches:
        alone = (step for stretch in found.of("alone") for step in stretch.steps)
        return tuple(Work(wait_s=0.0, cpu_s=step.wait_s) for step in alone)
    works = []
    for one in found.stages.batches:
        cpu_s = one.fetch_cpu_s + one.collate_cpu_s
        caller_s = one.fetch_thread_cpu_s + one.collate_cpu_s
        threads = max(1.0, cpu_s / caller_s) if caller_s else 1.0
        wait_s = max(one.fetch_s + one.collate_s - cpu_s / threads, 0.0)
        works.append(Work(wait_s=wait_s, cpu_s=cpu_s, threads=threads))
    return tuple(works)


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return statistics.fmean(values) if values else 0.0


def _median(values: Iterable[float]) -> float:
    values = list(values)
    return statistics.median(values) if values else 0.0


def _host(resident: Sequence[Stretch], has_queue: bool) -> tuple[HostStep, ...]:
    """Return the work of steps on the host, without waiting for the device."""
    works = []
    for stretch in resident:
        own_s = _mean(step.cpu_s for step in stretch.steps)
        # Where the host computes, the threads of its libraries do, too.
        threads = 1.0 if has_queue or not own_s else max(1.0, stretch.cpu_s / own_s)
        for step in stretch.steps:
            busy_s = step.cpu_s + step.device_wait_s + step.queued_s
            idle_s = max(step.step_s - busy_s, 0.0)
            works.append(
                HostStep(
                    wait_s=idle_s,
                    cpu_s=step.cpu_s * threads,
                    threads=threads,
                    synchronizes=has_queue and step.syncs > 0,
                )
            )
    return tuple(works)


def _copying(found: Collected) -> tuple[float, str]:
    """Return a copy's seconds, and whether it blocks the host or runs beside the computing."""
    device = found.loop.device
    if not device.has_queue or found.pageable_s is None:
        return 0.0, ""
    if found.resident_on_device is not None:  # CUDA: what the step takes less without copying
        saved_s = _mean(s.step_s for s in found.of("resident")) - found.resident_on_device.step_s
        pinned = all(t.is_pinned() for t in loaders.arrays(found.loop.resident[0]))
        return max(saved_s, 0.0), "" if pinned else "blocks"
    readings = found.of("resident")[-1].readings
    if readings.copy_wait_s > 0.5 * found.pinned_s:
        return found.pageable_s, "blocks"
    return found.pinned_s, "beside" if readings.side_stream else ""


def _calibrated(parts: Parts, found: Collected) -> Parts:
    """Return parts whose simulated loader alone takes as long as the real one."""
    alone_s = _mean(stretch.step_s for stretch in found.of("alone"))
    nothing = {"host": (HostStep(wait_s=0.0, cpu_s=0.0),), "device_s": 0.0, "copy_s": 0.0}
    nothing |= {"startup_s": 0.0, "steps": 200}
    if parts.workers < parts.cores and found.alone_full is not None:
        full = replace(parts, **nothing, workers=int(parts.cores))
        parts = replace(parts, share_when_full=_fitted_share(full, found.alone_full.step_s))
    if parts.workers > 1:
        bare = replace(parts, **nothing)
        return replace(parts, share_when_full=_fitted_share(bare, alone_s))
    took_s = simulate(replace(parts, **nothing)).epoch_s / nothing["steps"]
    waits_s = _mean(work.wait_s for work in parts.works)
    cpu_s = took_s - waits_s
    scale = max(alone_s - waits_s, 0.1 * cpu_s) / cpu_s if cpu_s > 0 else 1.0
    return replace(parts, works=tuple(replace(w, cpu_s=w.cpu_s * scale) for w in parts.works))


def _fitted_share(parts: Parts, wanted_s: float) -> float:
    """Return the `share_when_full` with which a simulated step takes `wanted_s`."""
    low, high = 0.2, 1.3
    for _ in range(12):
        middle = (low + high) / 2
        took_s = simulate(replace(parts, share_when_full=middle)).epoch_s / parts.steps
        low, high = (middle, high) if took_s > wanted_s else (low, middle)
    return (low + high) / 2


def _cold_s(found: Collected, steps: int) -> float | None:
    """Return the seconds of a cold epoch, if it is longer than the warm one in every block."""
    pairs = [
        (cold.of_epoch(steps), warm.of_epoch(steps))
        for cold, warm in zip(found.of("cold"), found.of("warm"))
    ]
    if not pairs or any(cold_s <= warm_s for cold_s, warm_s in pairs):
        return None
    return _mean(cold_s for cold_s, _ in pairs)


def measured_of(found: Collected) -> Measured:
    """Return everything that remedies depend on."""
    loop = found.loop
    parts, loader = _parts_of(found), loop.loader
    is_torch = loaders.is_data_loader(loader)
    alone_s, resident_s = (
        _mean(stretch.step_s for stretch in found.of(arm)) for arm in ("alone", "resident")
    )
    measured = found.stages.stages if found.stages else ()
    floats = sum(
        array.nbytes
        for array in loaders.arrays(loop.resident[0])
        if str(array.dtype).removeprefix("torch.") in ("float32", "float64")
    )
    return Measured(
        parts=parts,
        stages=tuple(one for one in measured if one.kind != SERIALIZATION),
        warm_s=_mean(stretch.of_epoch(parts.steps) for stretch in found.of("warm")),
        cold_s=_cold_s(found, parts.steps),
        is_data_loader=is_torch,
        persistent_workers=is_torch and loader.persistent_workers,
        batch_bytes=loop.batch_bytes,
        float_share=floats / loop.batch_bytes if loop.batch_bytes else 0.0,
        pinned_s=found.pinned_s,
        limited=found.limited.step_s / alone_s if found.limited else None,
        worker_threads=worker_threads(found.stages),
        host_kinds_s={kind: share * resident_s for kind, share in found.host_kinds.items()},
        has_device=loop.device.has_queue,
    )
