"""Measuring: the user's loop under four conditions, in interleaved blocks, and its parts alone.

    resident   the step on batches that are kept     what an epoch would be if loading were free
    alone      the loader, without a step            what loading takes
    warm       loader and step, files in memory      what an epoch is
    cold       the same, files evicted before it     what an epoch from the medium is

Differences between these arms show what preparing, fetching and copying add to the step.  A timer
inside one arm cannot show that, as loading goes on behind the step.  A loader starts with an empty
queue, so a stretch counts from the step at which every worker has delivered once.

Source: DS-Analyzer's differential method (VLDB 2021); EVIDENCE 1, "Stalls".
"""

from __future__ import annotations

import math
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

from labkit import units
from labkit.diagnosis import loaders, stages
from labkit.diagnosis.devices import Cuda, Host, Readings, find_device
from labkit.diagnosis.profile import kinds_of
from labkit.machine import hardware, page_cache, procfs
from labkit.machine.usage import own_cpu_s
from labkit.parts.devices import EmulatedDevice
from labkit.runs.checks import one_line

KEPT_BATCHES, KEPT_BYTES = 8, 1 << 29  # of the resident arm
LOOK_S, LOOK_STEPS = 3.0, 12
BLOCKS = 5
# Of the budget: the arms, the probe inside a worker, the profile of the step.  The rest is for
# knobs that are tried, and for workers to start and to end.
ARMS_SHARE, STAGES_SHARE, PROFILE_SHARE = 0.6, 0.12, 0.03
ARMS_END = 0.8  # of the bar
SHORTEST_S, LONGEST_S = 0.5, 4.0  # a stretch
FEWEST_STEPS, MOST_STEPS = 8, 2000
COLD_SHARE = 0.01  # of the files' pages may still be in memory
MOST_WARMED = 0.4  # of the machine's memory
SEED = 0


class Stopped(Exception):  # noqa: N818 - a sentence for the user, whatever stopped it
    """What the user's loader or step did that ends the measurement."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One step, in seconds of the host."""

    wait_s: float
    step_s: float = 0.0
    cpu_s: float = 0.0
    """Of the calling thread, in the step."""
    device_wait_s: float = 0.0
    """Of the step, waited for the device: copies, its queue, its end."""
    queued_s: float = 0.0
    """Of the step, waited for a core that others had."""
    syncs: int = 0
    """How often the step waited for the device to finish."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """One arm, measured once."""

    arm: str
    steps: tuple[StepTimes, ...]
    """Those that count."""
    step_s: float
    """Mean of a step in the steady state, what the device had queued included."""
    startup_s: float
    """From asking for an iterator to its first batch, mean of the epochs begun."""
    head_s: float
    """From asking for an iterator to the steady state."""
    skipped: int
    """Steps until the steady state."""
    epoch_s: tuple[float, ...]
    """Of whole epochs, if there were any."""
    cpu_s: float
    """Per step, of this process and its workers."""
    readings: Readings
    """Of the device, per step."""

    def of_epoch(self, steps: int | None) -> float | None:
        """Return the seconds of an epoch: as measured, or its head and the steady state."""
        later_s = self.epoch_s[1:] or self.epoch_s  # the first may have started workers for all
        if later_s:
            return statistics.fmean(later_s)
        return None if steps is None else self.head_s + max(steps - self.skipped, 0) * self.step_s


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The length of a stretch."""

    counted: int
    skipped: int = 1
    whole: bool = False
    """Whether the last epoch is finished, though enough steps are counted."""


class Loop:
    """The user's loader and step, run in stretches.

    Args:
        loader: any iterable of batches.
        step: called with every batch.
        device: where the step computes; found later unless given.
    """

    def __init__(
        self,
        loader: Iterable,
        step: Callable[[object], object],
        device: Host | None = None,
    ) -> None:
        self.loader, self.step = loader, step
        self.device = device or Host()
        self.is_one_shot = hasattr(loader, "__next__")
        self.resident: list[object] = []
        """Batches kept for the resident arm."""
        self.batch_bytes = 0
        """Of the first batch."""

    def keep(self, batch: object) -> None:
        """Keep a copy of a batch while there is room: a loader may use its memory again."""
        self.batch_bytes = self.batch_bytes or loaders.count_bytes(batch)
        room = KEPT_BYTES // max(self.batch_bytes, 1)
        if len(self.resident) < max(1, min(KEPT_BATCHES, room)):
            with _one_thread():
                self.resident.append(loaders.copy_batch(batch))

    def compute(self, *, steps: int, on: str | None = None) -> Stretch:
        """Call the step with the batches that are kept.

        Args:
            steps: how often.
            on: a device to which they are copied before.
        """
        kept = [loaders.move_batch(batch, on) for batch in self.resident] if on else self.resident
        return self.run("resident", cycle(kept), Steps(counted=steps))

    def run(self, arm: str, loader: Iterable, steps: Steps) -> Stretch:
        """Iterate over a loader and, unless it runs alone, call the step with its batches."""
        run = None if arm == "alone" else self.step
        now, device = time.perf_counter, self.device
        wanted = steps.skipped + steps.counted
        times: list[StepTimes] = []
        startups_s, epochs_s = [], []
        head_s = begun_s = cpu_s = left_s = apart_s = 0.0
        with device:
            while len(times) < wanted:
                before, epoch_s = len(times), now()
                # By name, so that a loader that is left early ends its workers within the time.
                delivered = _without_stalls(loader)
                for batch in delivered:
                    arrived_s = now()
                    if len(times) == before:
                        startups_s.append(arrived_s - epoch_s)
                        apart_s += arrived_s - epoch_s if before > steps.skipped else 0.0
                        left_s = arrived_s
                    if len(times) == steps.skipped:
                        device.synchronize()
                        begun_s, cpu_s = now() - (arrived_s - left_s), own_cpu_s()
                        head_s = begun_s - epoch_s
                    times.append(self._one(run, batch, arrived_s - left_s))
                    left_s = now()
                    if len(times) >= wanted and not steps.whole:
                        break
                else:
                    device.synchronize()
                    epochs_s.append(now() - epoch_s)
                    apart_s += now() - left_s if len(times) > steps.skipped else 0.0
                self._check_goes_on(len(times), before, wanted, arm)
            device.synchronize()
            ended_s, used_s = now(), own_cpu_s() - cpu_s
            del delivered
        counted = times[steps.skipped :]
        return Stretch(
            arm=arm,
            steps=tuple(counted),
            step_s=(ended_s - begun_s - apart_s) / len(counted),
            startup_s=statistics.fmean(startups_s),
            head_s=head_s,
            skipped=steps.skipped,
            epoch_s=tuple(epochs_s),
            cpu_s=used_s / len(counted),
            readings=device.readings.per_step(len(times)),
        )

    def _check_goes_on(self, done: int, before: int, wanted: int, arm: str) -> None:
        if done == before:
            raise Stopped("loader must yield batches in every epoch, got none; look at its length")
        if self.is_one_shot and done < wanted:
            raise Stopped(
                f"loader must have {wanted} batches more to measure {arm}, got {done}; "
                "give one that can be iterated again"
            )

    def _one(self, run: Callable | None, batch: object, wait_s: float) -> StepTimes:
        _check_batch(batch)
        if run is None:
            return StepTimes(wait_s=wait_s)
        device, readings = self.device, self.device.readings
        waited_s, syncs, queued_s = readings.waited_s, device.syncs, procfs.queued_s()
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        device.before_step()
        with _stall_limit("step to return"):
            run(batch)
        device.after_step()
        ended_s, cpu_s = time.perf_counter(), time.thread_time() - start_cpu_s
        return StepTimes(
            wait_s=wait_s,
            step_s=ended_s - start_s,
            cpu_s=cpu_s,
            queued_s=procfs.queued_s() - queued_s,
            device_wait_s=readings.waited_s - waited_s,
            syncs=device.syncs - syncs,
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Have torch start no threads here: GNU's OpenMP hangs in processes forked after them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_batch(batch: object) -> None:
    if batch is None:
        raise Stopped("loader must yield batches, got None; does its collate_fn return one?")


def _without_stalls(loader: Iterable) -> Iterator:
    with _stall_limit("loader to start"):
        iterator = iter(loader)
    while True:
        with _stall_limit("loader to yield a batch"):
            try:
                batch = next(iterator)
            except StopIteration:
                return
        yield batch


@contextmanager
def _stall_limit(for_what: str) -> Iterator[None]:
    """Interrupt what takes longer than `STALL_S`, where this thread can be interrupted."""
    if not hasattr(signal, "setitimer") or threading.current_thread() != threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise Stopped(
            f"waited {loaders.STALL_S:g} s for {for_what}, got nothing; "
            "try it by hand with num_workers=0, where an error shows itself"
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, loaders.STALL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


# --- all that a diagnosis measures ------------------------------------------------------------


@dataclass(kw_only=True)
class Collected:
    """What was measured so far; it is kept when something breaks."""

    loop: Loop
    stretches: list[Stretch] = field(default_factory=list)
    """Of the blocks, in the order of measuring."""
    stages: stages.Stages | None = None
    host_kinds: dict[str, float] = field(default_factory=dict)
    """Kind of work -> its share of the step; see `profile.kinds_of`."""
    alone_full: Stretch | None = None
    """The loader alone with a worker per core, where it has fewer."""
    limited: Stretch | None = None
    """The loader alone with one thread in each worker."""
    resident_on_device: Stretch | None = None
    pageable_s: float | None = None
    pinned_s: float | None = None
    notes: list[str] = field(default_factory=list)
    broken: str = ""
    """What ended the measurement early."""

    def of(self, arm: str) -> list[Stretch]:
        """Return an arm's stretches."""
        return [stretch for stretch in self.stretches if stretch.arm == arm]


def collect(
    loop: Loop,
    *,
    files: Sequence[Path] = (),
    device: EmulatedDevice | None = None,
    budget_s: float,
    say: Callable[[str, float], None],
) -> Collected:
    """Measure everything that the conclusions need.

    Args:
        loop: its model is changed by the steps.
        files: what an epoch reads; without them there is no cold arm.
        device: an emulated one that the step uses.
        budget_s: for all of it.
        say: called with what is measured next and the share that is done.

    Returns:
        What was measured, also where the loader or the step raised: see `broken`.
    """
    found = Collected(loop=loop)
    try:
        with loaders.random_state_kept(loop.loader):
            _measure(found, files, device, budget_s, say)
    except Stopped as stopped:
        found.broken = str(stopped)
    except Exception as error:  # the user's own code may raise anything
        found.broken = _in_one_line(error)
    return found


def _in_one_line(error: Exception) -> str:
    said = one_line(error)
    if "Original Traceback" in str(error):
        return f"{said} (in a loader worker)"
    if isinstance(error, EOFError | ConnectionError) or "DataLoader worker" in said:
        return f"a loader worker ended while it was waited for ({said}); was memory left?"
    return said


def _measure(
    found: Collected,
    files: Sequence[Path],
    device: EmulatedDevice | None,
    budget_s: float,
    say: Callable[[str, float], None],
) -> None:
    loop, ends_s = found.loop, time.monotonic() + budget_s
    say("first steps", 0.0)
    step_s = _look(loop, device)
    arms = ["warm", "alone", "resident"] + (["cold"] if files else [])
    stretch_s = min(max(budget_s * ARMS_SHARE / BLOCKS / len(arms), SHORTEST_S), LONGEST_S)
    plan = Plan(loop, step_s, stretch_s)
    order = random.Random(SEED)
    fits, warmed = bool(files) and _fit_into_memory(files, found), False
    for block in range(BLOCKS):
        left_s = ends_s - time.monotonic() - (1 - ARMS_SHARE) / 2 * budget_s
        if block >= 2 and left_s < len(arms) * stretch_s:
            found.notes.append(f"{block} blocks of {BLOCKS}: the budget allowed no more")
            break
        for number, arm in enumerate(order.sample(arms, len(arms))):
            done = (block + number / len(arms)) / BLOCKS
            say(f"block {block + 1} of {BLOCKS}: {arm}", ARMS_END * done)
            if arm == "cold":
                if not _evict(files, found):
                    arms.remove("cold")
                    continue
                warmed = False
            elif arm in ("warm", "alone") and fits and not warmed:
                for path in files:
                    path.read_bytes()
                warmed = True
            found.stretches.append(plan.run(arm))
    say("inside the workers", ARMS_END)
    if not loop.is_one_shot:
        found.stages = stages.probe_stages(loop.loader, seconds=STAGES_SHARE * budget_s)
        if loaders.is_data_loader(loop.loader):
            _try_knobs(found, plan)
    say("profile of the step", 0.95)
    _look_into_step(found, PROFILE_SHARE * budget_s)


def _look(loop: Loop, device: EmulatedDevice | None) -> float:
    """Run some steps, find out what they compute on, keep batches; return mean seconds."""
    begun_s, count = time.perf_counter(), 0
    first_s = 0.0
    for batch in _without_stalls(loop.loader):
        _check_batch(batch)
        loop.keep(batch)
        loop.step(batch)
        count += 1
        if count == 1:
            loop.device = find_device(device)
            first_s = time.perf_counter() - begun_s
            begun_s = time.perf_counter()
        looked_s = time.perf_counter() - begun_s
        if count > LOOK_STEPS or (count > 1 and looked_s > LOOK_S):
            break
    if not count:
        raise Stopped("loader must yield at least one batch, got an empty one; look at its length")
    loop.device.synchronize()
    return (time.perf_counter() - begun_s) / (count - 1) if count > 1 else first_s


class Plan:
    """How long the stretches are, and how each arm is run."""

    def __init__(self, loop: Loop, step_s: float, stretch_s: float) -> None:
        self._loop, self._stretch_s = loop, stretch_s
        self.epoch_steps = loaders.count_batches(loop.loader)
        skip, counted = _skip_of(loop.loader), self._count(step_s)
        whole = self.epoch_steps is not None and self.epoch_steps <= skip + counted
        if whole:  # two epochs at least: the first may be unlike those that follow
            counted = max(counted, self.epoch_steps + 1 - skip)
        self.steps = Steps(counted=counted, skipped=skip, whole=whole)
        self._compute_steps = 4 * FEWEST_STEPS

    def _count(self, step_s: float) -> int:
        return max(FEWEST_STEPS, math.ceil(self._stretch_s / max(step_s, 1e-6)))

    def run(self, arm: str) -> Stretch:
        """Measure an arm once."""
        loop = self._loop
        if arm == "resident":
            stretch = loop.compute(steps=self._compute_steps)
            self._compute_steps = min(self._count(stretch.step_s), MOST_STEPS)
            return stretch
        return loop.run(arm, loop.loader, self._once() if arm == "cold" else self.steps)

    def epoch_s(self, loader: object) -> float:
        """Measure an epoch with another loader."""
        steps = replace(self.steps, skipped=_skip_of(loader))
        stretch = self._loop.run("warm", loader, steps)
        return stretch.of_epoch(self.epoch_steps or steps.counted + steps.skipped)

    def _once(self) -> Steps:
        """One epoch at most: in the next, the files would be warm."""
        steps, length = self.steps, self.epoch_steps
        if length is None or length > steps.skipped + steps.counted:
            return steps
        return Steps(counted=max(1, length - steps.skipped), skipped=steps.skipped, whole=True)


def _skip_of(loader: object) -> int:
    """Return how many batches a loader delivers before its queue is in the steady state."""
    return max(1, loader.num_workers) if loaders.is_data_loader(loader) else 1


def _evict(files: Sequence[Path], found: Collected) -> bool:
    """Evict files from memory and check that they are; note it where they are not."""
    if not page_cache.can_evict():
        found.notes.append("cold was not measured: this platform cannot evict files from memory")
        return False
    for path in files:
        page_cache.evict(path)
    share, how = page_cache.residency(files)
    if share is None or share > COLD_SHARE:
        held = "an unknown share" if share is None else units.percent(share)
        found.notes.append(f"cold was not measured: {held} of the files stayed in memory ({how})")
        return False
    return True


def _fit_into_memory(files: Sequence[Path], found: Collected) -> bool:
    """Return whether files can be read into memory; note it where they cannot."""
    total_bytes = sum(path.stat().st_size for path in files)
    if total_bytes > MOST_WARMED * hardware.memory_bytes():
        found.notes.append(
            f"warm is as found: {units.count_bytes(total_bytes)} of files do not fit into memory"
        )
        return False
    return True


def _try_knobs(found: Collected, plan: Plan) -> None:
    """Measure the loader alone where the simulation needs a number that it cannot know."""
    loop, loader, cores = found.loop, found.loop.loader, hardware.cores()
    if loader.num_workers < cores and cores > 1:
        with loaders.copied(loader, num_workers=cores) as twin:
            found.alone_full = loop.run("alone", twin, replace(plan.steps, skipped=cores))
    if loader.num_workers and loader.num_workers * worker_threads(found.stages) > cores:
        with loaders.copied(loader, worker_init_fn=loaders.limited_threads(loader)) as twin:
            found.limited = loop.run("alone", twin, plan.steps)


def worker_threads(seen: stages.Stages | None) -> float:
    """Return how many threads a worker keeps busy: measured, or those OpenCV would start.

    Args:
        seen: what was measured inside a worker.
    """
    usual = max(1, sys.modules["cv2"].getNumThreads()) if "cv2" in sys.modules else 1
    own_s = sum(batch.fetch_thread_cpu_s for batch in seen.batches) if seen else 0.0
    busy = sum(batch.fetch_cpu_s for batch in seen.batches) / own_s if own_s else 1.0
    return max(float(usual), busy)


def _look_into_step(found: Collected, seconds: float) -> None:
    """Profile the step on kept batches, and time copies by themselves."""
    loop, resident = found.loop, found.of("resident")[-1]
    steps = max(2, math.ceil(seconds / max(resident.step_s, 1e-6)))
    found.host_kinds = kinds_of(lambda: loop.compute(steps=min(steps, MOST_STEPS)))
    device, batch = loop.device, loop.resident[0]
    if device.has_queue:
        found.pageable_s = _median(lambda: device.copy_s(batch, pinned=False))
        found.pinned_s = _median(lambda: device.copy_s(batch, pinned=True))
    if isinstance(device, Cuda):
        found.resident_on_device = loop.compute(steps=steps, on="cuda")


def _median(measure: Callable[[], float | None]) -> float | None:
    values = [measure() for _ in range(5)]
    return None if None in values else statistics.median(values)
