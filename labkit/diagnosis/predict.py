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
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from labkit.analysis.statistics import ratio_interval
from labkit.diagnosis import loaders
from labkit.diagnosis.stages import SAMPLER, SERIALIZATION, Stage, Stages
from labkit.diagnosis.thresholds import (
    BLOCKING_SYNCS_PER_STEP,
    CONTENTION_SHARE,
    IDLE_CORES_SHARE,
    LEAST_CPU_RATIO,
    MAIN_PROCESS_BUSY_SHARE,
    MANY_OBJECTS_PER_BATCH,
    OVERLAP_RATIO,
    SMALL_BATCH_BYTES,
    SMALL_WORK_RATIO,
)  # fmt: skip
from labkit.machine import hardware

if TYPE_CHECKING:
    from labkit.diagnosis.measure import Loop, Stretch
    from labkit.diagnosis.profile import Kind


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one step needs, in seconds; a mean over an epoch."""

    workers: int
    """0: the main process makes the batches."""
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
    """For which the device computes and copies; 0 where the host computes."""
    startup_s: float
    """From the start of an epoch to its steady state, divided among its steps."""
    fetch_s: float
    """What files that are not in memory take longer."""

    def busy_s(self) -> list[float]:
        """Return how long a step occupies main process, device, workers and cores, and takes."""
        main_s = self.host_s + (self.take_s if self.workers else self.wall_s)
        workers_s = self.wall_s / self.workers + self.hindered_s if self.workers else 0.0
        cores_s = (self.cpu_s + self.take_s + self.host_cpu_s) / self.cores
        return [main_s, self.device_s, workers_s, cores_s, self.step_s]

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


@dataclass(kw_only=True)
class Measured:
    """What was measured of a loop, kept when something breaks, and what `summarize` makes of it.

    Naming the bottleneck and proposing remedies depend on nothing else.
    """

    loop: Loop
    stretches: list[Stretch] = field(default_factory=list)
    """Stretches of all blocks, in the order in which they were measured."""
    first_s: float = 0.0
    """Mean of the first steps, with which a measurement begins."""
    probe: Stages = field(default_factory=Stages)
    """Stages of one worker."""
    host_kinds: dict[str, Kind] = field(default_factory=dict)
    """Kind of the step's work on the host -> share of the step; see `profile.kinds_of`."""
    resident_on_device: Stretch | None = None
    """The step on batches that are on CUDA, with its profile; None for other devices."""
    notes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Errors of the user's code in parts that the other measurements did not need."""
    broken: str = ""
    """Reason why the measurement ended early."""
    duplicated: bool = False
    """Whether several workers yield, or would yield, the same batches."""
    empty_s: float = 0.0
    """A batch of one tiny tensor through a DataLoader with as many workers."""
    copy_bytes_s: float = 0.0
    """A plain copy of a batch in memory."""
    decoders_s: dict[str, float] = field(default_factory=dict)
    """labkit's decoders -> seconds for one of the user's files."""
    pageable_s: float = 0.0
    """A copy of a batch to the device; 0 where not known."""
    pinned_s: float = 0.0
    """Such a copy from pinned memory."""

    now: Demand = None  # type: ignore[assignment]  # most code runs where it is there
    """None where an arm is missing; then all that follows is not known either."""
    steps: int = 1
    """Steps of an epoch."""
    epoch_s: float = 0.0
    """Seconds of an epoch as it is; cold if that takes longer in every block."""
    epoch_ci: tuple[float | None, float | None] = (None, None)
    """95 % interval of an epoch's time ÷ `epoch_s`, over blocks."""
    samples: int = 0
    """Samples of a batch; 0 if unknown."""
    unit: str = "samples"
    """"images", or "samples" where the batches hold no pictures."""
    ceiling_ci: tuple[float | None, float | None] = (None, None)
    """95 % interval of `ceiling`, over blocks."""
    alone_s: float = 0.0
    """Seconds of a step of the loader alone."""
    stages: tuple[Stage, ...] = ()
    """Stages at their speed while all workers run."""
    rows: tuple[Row, ...] = ()
    """A batch's way through a worker, most time first; "not explained" is one of them."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the DataLoader; empty for other loaders."""
    objects: int = 0
    """Objects of a batch, without tensors and arrays."""
    syncs_s: float = 0.0
    """Seconds of a step in which the host waits for the device to finish."""
    copy_s: float = 0.0
    """Seconds of a step in which a copy occupies the device."""
    copy_blocks: bool = False
    copy_beside: bool = False
    """Whether copies run beside computing: then `Demand.device_s` does not hold them."""

    def of(self, arm: str) -> list[Stretch]:
        """Return an arm's stretches."""
        return [stretch for stretch in self.stretches if stretch.arm == arm]

    @property
    def is_data_loader(self) -> bool:
        """Return whether the loader is torch's DataLoader."""
        return bool(self.arguments)

    @property
    def batch_bytes(self) -> int:
        """Return the bytes of a batch."""
        return sum(self.loop.sizes.values())

    @property
    def ahead(self) -> int:
        """Return how many batches each worker prepares ahead."""
        return int(self.arguments.get("prefetch_factor", loaders.DEFAULT_PREFETCH_FACTOR))

    @property
    def pace_s(self) -> float:
        """Return a step's seconds if workers never waited: those of the slower of both."""
        return max(self.now.wall_s / self.now.workers, self.now.step_s)

    @property
    def slowest_s(self) -> float:
        """Return the seconds in which a worker makes the slowest batch."""
        return self.probe.slowest * self.now.wall_s

    def kind_s(self, kind: str) -> float:
        """Return the seconds of a step in which the host does some kind of work."""
        return self.host_kinds[kind].share * self.now.step_s if kind in self.host_kinds else 0.0

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

    def stalls(self) -> list[float]:
        """Return the share of an epoch that waits for input: the ends of its interval, if any."""
        ends = [end for end in self.ceiling_ci if end is not None] or [self.ceiling]
        return [max(1 - end, 0.0) for end in reversed(ends)]

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
        return {
            "cpu_s": max(self.now.cpu_s - (1 - left) * sum(s.cpu_s for s in some), 0.0),
            "wall_s": wall_s,
            # Shorter work hinders the others less: at best, in proportion.
            "hindered_s": self.now.hindered_s * wall_s / (self.now.wall_s or 1.0),
        }

    @property
    def made_s(self) -> float:
        """Seconds in which a worker, or without any the main process, makes a batch."""
        return sum(row.seconds for row in self.rows)

    def share_of(self, kind: str) -> float:
        """Return the share of a kind in the time in which a batch is made."""
        return sum(row.share for row in self.rows if row.kind == kind)


UNEXPLAINED, EACH_OTHER, JITTER, NO_CORE, OVERHEAD, BYTES = (
    "not explained", "workers wait for each other", "jitter", "waiting for a core",
    "per-batch overhead", "bytes",
)  # fmt: skip


def summarize(m: Measured) -> None:
    """Set what follows from the arms, if all of them were measured."""
    loop, loader = m.loop, m.loop.loader
    resident, alone, warm = (m.of(arm) for arm in ("resident", "alone", "warm"))
    if not (resident and alone and warm):
        return
    resident_s, m.alone_s = (fmean(s.step_s for s in arm) for arm in (resident, alone))
    length = loaders.count_batches(loader)
    m.steps = length or max(stretch.steps for stretch in warm)
    epochs_s, cold = (
        [s.epoch_s or s.step_s * m.steps for s in m.of(arm)] for arm in ("warm", "cold")
    )
    warm_s, fetch_s = fmean(epochs_s), 0.0
    if cold and all(cold_s > warm_s for cold_s, warm_s in zip(cold, epochs_s)):
        epochs_s, fetch_s = cold, (fmean(cold) - warm_s) / m.steps
    m.epoch_s = fmean(epochs_s)
    m.epoch_ci = ratio_interval([math.log(epoch_s / m.epoch_s) for epoch_s in epochs_s])
    logs = [math.log(r.step_s * m.steps / epoch_s) for r, epoch_s in zip(resident, epochs_s)]
    m.ceiling_ci = ratio_interval(logs)

    first = loop.resident[0]
    arrays = loaders.arrays(first)
    m.samples = loaders.count_samples(first, getattr(loader, "batch_size", None))
    m.unit = "images" if any(map(_is_images, arrays)) else "samples"
    m.objects = len(loaders.leaves(first)) - len(arrays)
    m.arguments = loaders.arguments_of(loader) if loaders.is_data_loader(loader) else {}

    has_device = loop.device.has_queue
    if not has_device:  # there libraries compute the step
        m.host_kinds.pop("compute", None)
    m.copy_s, m.copy_blocks, m.copy_beside = _copying(m, resident_s)
    device_s, m.syncs_s = _device(m)
    host_s = resident_s
    if has_device and not m.syncs_s:
        seen = [m.resident_on_device] if m.resident_on_device else resident
        busy_s = fmean(stretch.busy_s for stretch in seen)
        # A copy that blocks also waits for the device: longer, the less other work the host has.
        host_s = min(busy_s + m.copy_s * m.copy_blocks, resident_s)

    # Another loader may prepare batches in a way of its own while the step runs.
    both_s, sum_s = fmean(s.step_s for s in warm), m.alone_s + resident_s
    workers = loader.num_workers if m.is_data_loader else int(both_s < OVERLAP_RATIO * sum_s)
    m.stages, wall_s, cpu_s = _stages(m, alone, workers)
    first_s = fmean(stretch.startup_s for stretch in warm)
    m.now = Demand(
        workers=workers,
        cores=_cores(),
        cpu_s=cpu_s,
        wall_s=wall_s,
        hindered_s=0.0,
        take_s=min(fmean(s.own_cpu_s for s in alone), m.alone_s) if workers else 0.0,
        step_s=resident_s,
        host_s=host_s,
        host_cpu_s=min(fmean(s.cpu_s for s in resident), _cores() * resident_s),
        device_s=device_s + (0.0 if m.copy_beside else m.copy_s),
        # An epoch of unknown length is steps only.
        # Without the first batch, which takes a worker as long as any later one.
        startup_s=max(first_s - m.alone_s * workers, 0.0) / m.steps
        if workers and m.is_data_loader and length
        else 0.0,
        fetch_s=fetch_s,
    )
    if workers:
        loading = replace(m.now, step_s=0.0, host_s=0.0, host_cpu_s=0.0, device_s=0.0,
                          startup_s=0.0, fetch_s=0.0)  # fmt: skip
        m.now = replace(m.now, hindered_s=max(m.alone_s - loading.least_s(), 0.0))
    m.rows = _rows(m, alone)


def _cores() -> int:
    """Return the cores of this process; ranks on this machine share them."""
    return max(hardware.cores() // int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)


def _is_images(array: Any) -> bool:
    """Return whether an array is a batch of pictures: four dimensions, one to four channels."""
    shape = tuple(array.shape)
    return len(shape) == 4 and (shape[1] in (1, 3, 4) or shape[3] in (1, 3, 4))


def _device(m: Measured) -> tuple[float, float]:
    """Return for which seconds of a step the device computes, and the host waits for its end."""
    seen = [m.resident_on_device] if m.resident_on_device else m.of("resident")
    readings = [stretch.readings for stretch in seen]
    waits_s = fmean(each.waited_s - each.copy_wait_s for each in readings)
    synchronizes = fmean(each.syncs for each in readings) > BLOCKING_SYNCS_PER_STEP
    return fmean(each.device_s for each in readings), waits_s if synchronizes else 0.0


def _copying(m: Measured, resident_s: float) -> tuple[float, bool, bool]:
    """Return a copy's seconds, whether it blocks the host, and whether it runs beside computing."""
    if not m.pageable_s:
        return 0.0, False, False
    if m.resident_on_device:  # CUDA: what the step takes less without copying
        tensors = [t for t in loaders.arrays(m.loop.resident[0]) if hasattr(t, "is_pinned")]
        pinned = [tensor.is_pinned() for tensor in tensors if tensor.device.type == "cpu"]
        if not pinned:
            return 0.0, False, False
        saved_s = resident_s - m.resident_on_device.step_s
        return max(saved_s, 0.0), not all(pinned), False
    how = m.loop.device.how
    return (m.pinned_s, False, how["side_stream"]) if how["pinned"] else (m.pageable_s, True, False)


def _stages(
    m: Measured, alone: Sequence[Stretch], workers: int
) -> tuple[tuple[Stage, ...], float, float]:
    """Return the stages, and wall and CPU seconds of making and sending a batch.

    CPU seconds are scaled to those without a probe, and with all workers: two busy cores do less
    than twice the work of one (hyper-threads, memory bandwidth).
    """
    seen, pickle_s = m.probe.stages, m.probe.pickle_s
    cpu_s = fmean(s.cpu_s - (s.own_cpu_s if workers else 0.0) for s in alone)
    probed_s = sum(stage.cpu_s for stage in seen) + pickle_s
    if not workers:
        # The probe makes calls take longer.
        scale = min(m.alone_s / (sum(stage.wall_s for stage in seen) or m.alone_s), 1.0)
        seen = tuple(replace(s, cpu_s=s.cpu_s * scale, wall_s=s.wall_s * scale) for s in seen)
        return seen, m.alone_s, min(cpu_s, _cores() * m.alone_s)
    if not probed_s:
        return seen, m.alone_s, fmean(s.cpu_s for s in alone)
    starts = any(stretch.epochs > 1 for stretch in alone)  # starting workers is in it
    scale = 1.0 if starts else max(cpu_s / probed_s, LEAST_CPU_RATIO)
    seen = tuple(
        replace(s, cpu_s=s.cpu_s * scale, wall_s=s.wait_s + (s.wall_s - s.wait_s) * scale)
        for s in seen
    )
    sums_s = (sum(getattr(s, name) for s in seen) for name in ("wall_s", "cpu_s"))
    wall_s, cpu_s = (sum_s + pickle_s * scale for sum_s in sums_s)
    return seen, wall_s, cpu_s


def _rows(measured: Measured, alone: Sequence[Stretch]) -> tuple[Row, ...]:
    """Return everything in a batch's time in a worker that has a name, and the rest as a row.

    The loader alone: its step's seconds × its workers.
    """
    now = measured.now
    total_s = measured.alone_s * max(now.workers, 1)
    if not measured.stages:
        return (Row(name=UNEXPLAINED, kind=UNEXPLAINED, seconds=total_s, share=1.0),)
    sent = BYTES if measured.batch_bytes > SMALL_BATCH_BYTES else OVERHEAD
    if measured.objects > MANY_OBJECTS_PER_BATCH:
        sent = SERIALIZATION
    parts = [] if now.workers else [("sampler", SAMPLER, measured.probe.sampler_s)]
    for stage in measured.stages:
        waits = "waiting" if stage.kind == "transform" else stage.kind
        parts += [
            (stage.name, stage.kind, stage.wall_s - stage.wait_s),
            (f"waiting in {stage.name}", waits, stage.wait_s),
        ]
    if now.workers:
        sent_s = now.wall_s - sum(stage.wall_s for stage in measured.stages)
        parts.append(("sending", sent, sent_s))
    known_s = sum(seconds for _, _, seconds in parts)
    rest_s = max(total_s - known_s, 0.0)
    queued = [stretch.queued_s for stretch in alone if stretch.queued_s is not None]
    idle = fmean(stretch.idle for stretch in alone) > IDLE_CORES_SHARE
    queued_s = min(fmean(queued) if queued else rest_s * (not idle), rest_s)
    parts.append((NO_CORE, NO_CORE, queued_s))
    rest_s -= queued_s
    if measured.is_data_loader:
        made_s = sum(stage.wall_s for stage in measured.stages)
        empty_s = measured.empty_s * max(now.workers, 1)
        is_small = made_s < SMALL_WORK_RATIO * measured.empty_s
        handed_s = rest_s if is_small else min(empty_s, rest_s)
        parts.append(("handing over a batch", OVERHEAD, handed_s))
        rest_s -= handed_s
    if now.workers and measured.is_data_loader:
        if now.take_s > MAIN_PROCESS_BUSY_SHARE * measured.alone_s:
            draws = measured.probe.sampler_s > 0.5 * now.take_s
            parts.append(("waiting for the main process", SAMPLER if draws else sent, rest_s))
            rest_s = 0.0
        elif now.workers > 1 and idle and rest_s > CONTENTION_SHARE * total_s:
            # Batches come in order: the others wait for a late one, once their queues are full.
            lasts_s = measured.ahead * now.workers * measured.pace_s
            late = ("waiting for a late batch", JITTER)
            why = late if measured.slowest_s > lasts_s else (EACH_OTHER, EACH_OTHER)
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
