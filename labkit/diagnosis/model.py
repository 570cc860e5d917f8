"""The pipeline simulated from its measured parts: what a change would do, before it is made.

    worker ─ wait, work ─┐                          ┌─▶ device ─ compute
    worker ─ wait, work ─┴─ in order ─▶ host ─ take, copy, launch, (sync)

Every worker and the host are simulated on their own timeline; whoever works at the same time
shares the cores.  What torch's DataLoader does is kept: batch k is made by worker k mod W, is
handed over in order, and may be begun once k - W × prefetch_factor batches were taken.  The
device works beside the host, which may run a few steps ahead.  Main trap: a second core is not a
second core's worth (hyper-threads, memory bandwidth), so `share_when_full` is measured.

Source: torch/utils/data/dataloader.py for the order of hand-over; the idea of predicting from
parts is DS-Analyzer's (VLDB 2021).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice

AHEAD_STEPS = 3  # as far as a host may be ahead of the device
LONGEST_STEPS = 400  # simulated; longer epochs go on as their second half did


@dataclass(frozen=True, kw_only=True)
class Work:
    """What making one batch takes on a core that nobody else wants."""

    wait_s: float
    """For a disk, a network, a lock: no core is needed."""
    cpu_s: float
    """Of all its threads together."""
    threads: float = 1.0
    """How many cores it keeps busy at once."""


@dataclass(frozen=True, kw_only=True)
class HostStep(Work):
    """What one step takes on the host: launching or computing it, saving, reporting, counting."""

    synchronizes: bool = False
    """Whether the host then waits for the device."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A pipeline's parts, all in seconds per step."""

    works: tuple[Work, ...]
    """One per batch that was looked at; they come again in this order."""
    workers: int
    prefetch_factor: int = 2
    send_s: float = 0.0
    """CPU of a worker for sending a batch: pickling, copying into shared memory."""
    take_s: float = 0.0
    """CPU of the host for getting one that was sent: unpickling, pinning."""
    copy_s: float = 0.0
    """For a batch on its way to the device, which computes nothing meanwhile."""
    copy_blocks: bool = False
    """Whether the host waits until what was queued is done and the copy, too: pageable memory."""
    copy_beside: bool = False
    """Whether copies go on beside the computing: on a stream of their own."""
    host: tuple[HostStep, ...] = (HostStep(wait_s=0.0, cpu_s=0.0),)
    """One per step that was looked at; they come again in this order."""
    after_sync: float = 0.0
    """The share of that work that comes after a step's wait for the device, where it waits."""
    device_s: float = 0.0
    """For which the device is busy with a step; 0 where the host computes."""
    startup_s: float = 0.0
    """Of every epoch, before the first batch is begun."""
    steps: int = 100
    """Of an epoch."""
    cores: float = 1.0
    share_when_full: float = 1.0
    """How much of a core each gets when all cores are busy."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What the simulation says of an epoch."""

    epoch_s: float
    first_s: float
    """Until the first batch is there."""
    wait_s: float
    """The host's, for batches."""
    device_busy_s: float


def simulate(parts: Parts) -> Epoch:
    """Let an epoch go by.

    Args:
        parts: of the pipeline as it is, or as it would be.

    Returns:
        Its seconds; epochs of very many steps are continued from their second half.
    """
    steps = min(parts.steps, LONGEST_STEPS)
    whole = _Run(parts, steps).end()
    if steps == parts.steps:
        return whole
    half = _Run(parts, steps // 2).end()
    more = (parts.steps - steps) / (steps - steps // 2)
    return Epoch(
        first_s=whole.first_s,
        epoch_s=whole.epoch_s + more * (whole.epoch_s - half.epoch_s),
        wait_s=whole.wait_s + more * (whole.wait_s - half.wait_s),
        device_busy_s=whole.device_busy_s + more * (whole.device_busy_s - half.device_busy_s),
    )


# What an actor asks for: ("cpu", seconds, cores), ("sleep", until_s) or ("until", condition).
Request = tuple


class _Run:
    """Actors that share the cores, until none of them has anything left to do."""

    def __init__(self, parts: Parts, steps: int) -> None:
        self._parts, self._steps = parts, steps
        self._now_s = self._first_s = self._waited_s = self._busy_s = 0.0
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
            begins_s = self._now_s
            if parts.workers:
                yield "until", lambda k=k: k in self._ready
                self._ready.discard(k)
                yield "cpu", parts.take_s, 1.0
            else:
                yield from self._make(works[k])
            self._first_s = self._first_s or self._now_s
            self._waited_s += self._now_s - begins_s
            self._taken = k + 1
            copied_s = max(self._now_s, copied_s if parts.copy_beside else free_s) + parts.copy_s
            if parts.copy_blocks:
                yield "sleep", copied_s
            launched_s = self._now_s
            later = parts.after_sync if host[k].synchronizes else 0.0
            yield from self._make(host[k], 1 - later)
            if parts.device_s:
                free_s = max(launched_s, free_s, copied_s) + parts.device_s
                self._busy_s += parts.device_s
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

    def end(self) -> Epoch:
        host = self._actors[0]
        asked: dict[Iterator, list] = {actor: list(next(actor)) for actor in self._actors}
        while host in asked:
            if not self._go_on(asked):
                self._let_time_pass(asked)
        return Epoch(
            first_s=self._first_s,
            epoch_s=self._now_s,
            wait_s=self._waited_s,
            device_busy_s=self._busy_s,
        )

    def _go_on(self, asked: dict[Iterator, list]) -> bool:
        """Let everyone go on whose wish is fulfilled; say whether anyone did."""
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
        """Go to the next moment at which somebody gets what it waits for."""
        working = [each for each in asked.values() if each[0] == "cpu"]
        speed = self._speed(sum(each[2] for each in working))
        moments = [each[1] / (each[2] * speed) for each in working]
        moments += [each[1] - self._now_s for each in asked.values() if each[0] == "sleep"]
        if not moments:
            raise RuntimeError("nobody in the simulation can go on; a part of it is wrong")
        passed_s = min(moments)
        for each in working:
            each[1] -= passed_s * each[2] * speed
        self._now_s += passed_s

    def _speed(self, wanted: float) -> float:
        """Say how much of a core each thread gets where so many are wanted."""
        parts = self._parts
        full = parts.cores * parts.share_when_full
        if wanted <= 1.0 or parts.cores <= 1.0:
            return 1.0 if wanted <= parts.cores else parts.cores / wanted
        # Between one busy core and all of them, what is got grows in a straight line.
        busy = min(wanted, parts.cores)
        got = 1.0 + (full - 1.0) * (busy - 1.0) / (parts.cores - 1.0)
        return got / wanted
