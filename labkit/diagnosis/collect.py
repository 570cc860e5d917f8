"""Collecting: the arms in interleaved blocks, the probes, and the pipeline's parts out of them.

    first look ─▶ blocks of arms in random order ─▶ one worker alone ─▶ step, profiled ─▶ Parts

Everything that is measured is kept as it comes, so what breaks off leaves what was there.  Main
trap: cold means evicted and looked at, and what comes after a cold arm has to be made warm again.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from labkit import units
from labkit.contracts import SystemClock
from labkit.diagnosis import devices, knobs, stages, step_work
from labkit.diagnosis.arms import Loop, Steps, Stopped, Stretch, skip_of
from labkit.diagnosis.phases import EpochPhases, Phases
from labkit.machine import hardware, page_cache
from labkit.parts.devices import EmulatedDevice

LOOK_S, LOOK_STEPS = 3.0, 12
BLOCKS = 5
# Of the budget: the arms, the probe inside a worker, the profile of the step.  The rest is for
# knobs that are tried, and for workers to start and to end.
ARMS_SHARE, STAGES_SHARE, PROFILE_SHARE = 0.6, 0.12, 0.03
ARMS_END = 0.8  # of the bar
SHORTEST_S, LONGEST_S = 0.5, 4.0  # a stretch
FEWEST_STEPS = 8
COLD_SHARE = 0.01  # of the files' pages may still be in memory
MOST_WARMED = 0.4  # of the machine's memory
SEED = 0


@dataclass(kw_only=True)
class Collected:
    """What was measured so far; grows, and is kept when something breaks."""

    loop: Loop | None = None
    stretches: list[Stretch] = field(default_factory=list)
    """Of the blocks, in the order of measuring."""
    phases: EpochPhases | None = None
    """Of the first look: the document's phases on the host's clock, and on CUDA's."""
    stages: stages.Stages | None = None
    host_kinds: dict[str, float] = field(default_factory=dict)
    alone_full: Stretch | None = None
    """The loader alone with a worker per core, where it has fewer."""
    limited: Stretch | None = None
    """The loader alone with one thread in each worker."""
    resident_on_device: Stretch | None = None
    pageable_s: float | None = None
    pinned_s: float | None = None
    notes: list[str] = field(default_factory=list)
    broken: str = ""
    """What ended the measuring before its time."""

    def of(self, arm: str) -> list[Stretch]:
        """Give an arm's stretches."""
        return [stretch for stretch in self.stretches if stretch.arm == arm]


def collect(
    loader: Iterable,
    step: Callable[[object], object],
    *,
    files: Sequence[Path] = (),
    device: EmulatedDevice | None = None,
    transfer: Callable[[object], object] | None = None,
    budget_s: float,
    say: Callable[[str, float], None],
) -> Collected:
    """Measure everything that the conclusions need.

    Args:
        loader: any iterable of batches.
        step: called with every batch; its model is changed by it.
        files: what an epoch reads; without them nothing is made cold.
        device: an emulated one that the step uses.
        transfer: called with a batch before the step.
        budget_s: for all of it.
        say: hears what is measured next and the share that is done.

    Returns:
        What was measured, also where the loader or the step raised: `broken` then says what.
    """
    found = Collected()
    ends_s = time.monotonic() + budget_s
    try:
        with knobs.random_state_kept(loader):
            _measure(found, loader, step, files, device, transfer, budget_s, ends_s, say)
    except Stopped as stopped:
        found.broken = str(stopped)
    except Exception as error:  # whatever a person's own code raises
        found.broken = in_one_line(error)
    return found


def in_one_line(error: Exception) -> str:
    """Say what was raised, also in a worker, whose whole traceback torch puts into the message."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    if "Original Traceback" in str(error):
        return f"{lines[-1].strip()} (in a loader worker)"
    said = f"{type(error).__name__}: {lines[0]}".rstrip(": ")
    if isinstance(error, EOFError | ConnectionError) or "DataLoader worker" in lines[0]:
        return f"a loader worker ended while it was waited for ({said}); was memory left?"
    return said


def _measure(
    found: Collected,
    loader: Iterable,
    step: Callable,
    files: Sequence[Path],
    device: EmulatedDevice | None,
    transfer: Callable | None,
    budget_s: float,
    ends_s: float,
    say: Callable[[str, float], None],
) -> None:
    loop = found.loop = Loop(loader, step, devices.Host(), transfer)
    say("first look", 0.0)
    recorder = Phases(SystemClock())
    try:
        look_s = _look(loop, device, recorder)
    finally:
        found.phases = recorder.result()
    arms = ["warm", "alone", "resident"] + (["cold"] if files else [])
    stretch_s = min(max(budget_s * ARMS_SHARE / BLOCKS / len(arms), SHORTEST_S), LONGEST_S)
    plan = Plan(loop, look_s, stretch_s)
    order = random.Random(SEED)
    warmed = not files
    for block in range(BLOCKS):
        left_s = ends_s - time.monotonic() - (1 - ARMS_SHARE) / 2 * budget_s
        if block >= 2 and left_s < len(arms) * stretch_s:
            found.notes.append(f"{block} blocks of {BLOCKS}: there was not time for more")
            break
        for number, arm in enumerate(order.sample(arms, len(arms))):
            done = (block + number / len(arms)) / BLOCKS
            say(f"block {block + 1} of {BLOCKS}: {arm}", ARMS_END * done)
            if arm == "cold":
                if not _evict(files, found):
                    arms.remove("cold")
                    continue
                warmed = False
            elif arm in ("warm", "alone") and not warmed:
                warmed = _warm(files, found)
            found.stretches.append(plan.run(arm))
    say("inside the workers", ARMS_END)
    if not loop.is_one_shot:
        found.stages = stages.probe_stages(loader, seconds=STAGES_SHARE * budget_s)
        if knobs.is_data_loader(loader):
            _try_knobs(found, loader, plan)
    say("the step's own work", 0.95)
    _look_into_step(found, loop, PROFILE_SHARE * budget_s)


def _look(loop: Loop, device: EmulatedDevice | None, recorder: Phases) -> float:
    """Run some steps as they are, find out what they compute on, and keep batches; mean seconds."""
    begun_s, count = time.perf_counter(), 0
    loop.device = devices.find(device) if device is not None else loop.device
    first_s = 0.0
    batches = recorder.over(loop.asked())
    for batch in batches:
        if batch is None:
            raise Stopped("loader must yield batches, got None; does its collate_fn return one?")
        loop.keep(batch)
        loop.run(batch)
        count += 1
        if count == 1:
            loop.device = devices.find(device)
            first_s = time.perf_counter() - begun_s
            begun_s = time.perf_counter()
        looked_s = time.perf_counter() - begun_s
        if count > LOOK_STEPS or (count > 1 and looked_s > LOOK_S):
            break
    if not count:
        raise Stopped("loader must yield at least one batch, got an empty one; look at its length")
    batches.close()  # takes the recorder's hooks off
    loop.device.synchronize()
    return (time.perf_counter() - begun_s) / (count - 1) if count > 1 else first_s


class Plan:
    """How long the stretches are, and how each arm is run."""

    def __init__(self, loop: Loop, step_s: float, stretch_s: float) -> None:
        self._loop, self.stretch_s = loop, stretch_s
        self.epoch_steps = length(loop.loader)
        skip, counted = skip_of(loop.loader), self.count(step_s)
        whole = self.epoch_steps is not None and self.epoch_steps <= skip + counted
        if whole:  # two epochs at least: the first may be unlike those that follow
            counted = max(counted, self.epoch_steps + 1 - skip)
        self.steps = Steps(counted=counted, skipped=skip, whole=whole)
        self._compute_steps = 4 * FEWEST_STEPS

    def count(self, step_s: float) -> int:
        """Say how many steps a stretch has where one takes so long."""
        return max(FEWEST_STEPS, math.ceil(self.stretch_s / max(step_s, 1e-6)))

    def run(self, arm: str) -> Stretch:
        """Measure an arm once."""
        loop = self._loop
        if arm == "resident":
            stretch = loop.compute(steps=self._compute_steps)
            self._compute_steps = min(self.count(stretch.step_s), 2000)
            return stretch
        if arm == "alone":
            return loop.alone(loop.loader, self.steps)
        if arm == "cold":
            return loop.together(loop.loader, self._once(), "cold")
        return loop.together(loop.loader, self.steps)

    def epoch_s(self, loader: object) -> float:
        """Say how long an epoch with another loader takes."""
        steps = replace(self.steps, skipped=skip_of(loader))
        stretch = self._loop.together(loader, steps)
        return stretch.of_epoch(self.epoch_steps or steps.counted + steps.skipped)

    def _once(self) -> Steps:
        """One epoch at most: in the next, the files would be warm."""
        steps, length = self.steps, self.epoch_steps
        if length is None or length > steps.skipped + steps.counted:
            return steps
        return Steps(counted=max(1, length - steps.skipped), skipped=steps.skipped, whole=True)


def length(loader: object) -> int | None:
    """Say how many batches an epoch has; None where the loader does not."""
    try:
        return len(loader)
    except TypeError:
        return None


def _evict(files: Sequence[Path], found: Collected) -> bool:
    """Make files cold, and look whether they are; say so once where they are not."""
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


def _warm(files: Sequence[Path], found: Collected) -> bool:
    """Read files into memory, where they fit."""
    total_bytes = sum(path.stat().st_size for path in files)
    if total_bytes > MOST_WARMED * hardware.memory_bytes():
        found.notes.append(
            f"warm is as found: {units.count_bytes(total_bytes)} of files do not fit into memory"
        )
        return True
    for path in files:
        path.read_bytes()
    return True


def _try_knobs(found: Collected, loader: object, plan: Plan) -> None:
    """Measure the loader alone where the simulation needs a number that it cannot know."""
    loop, cores = found.loop, hardware.cores()
    if loader.num_workers < cores and cores > 1:
        twin = knobs.with_knobs(loader, num_workers=cores)
        found.alone_full = loop.alone(twin, replace(plan.steps, skipped=cores))
        knobs.end(twin)
    if loader.num_workers and loader.num_workers * worker_threads(found.stages) > cores:
        twin = knobs.with_knobs(loader, worker_init_fn=knobs.limited_threads(loader))
        found.limited = loop.alone(twin, plan.steps)
        knobs.end(twin)


def worker_threads(seen: stages.Stages | None) -> float:
    """Say how many threads a worker keeps busy: those it was seen with, or OpenCV would start.

    Args:
        seen: what was seen inside a worker.
    """
    import sys

    usual = max(1, sys.modules["cv2"].getNumThreads()) if "cv2" in sys.modules else 1
    own_s = sum(batch.fetch_thread_cpu_s for batch in seen.batches) if seen else 0.0
    busy = sum(batch.fetch_cpu_s for batch in seen.batches) / own_s if own_s else 1.0
    return max(float(usual), busy)


def _look_into_step(found: Collected, loop: Loop, seconds: float) -> None:
    """Profile the step on kept batches, and time copies by themselves."""
    resident = found.of("resident")[-1]
    steps = max(2, math.ceil(seconds / max(resident.step_s, 1e-6)))
    found.host_kinds = dict(step_work.kinds_of(lambda: loop.compute(steps=min(steps, 2000))))
    device, batch = loop.device, loop.resident[0]
    if device.has_queue:
        found.pageable_s = _median(lambda: device.copy_s(batch, pinned=False))
        found.pinned_s = _median(lambda: device.copy_s(batch, pinned=True))
    if isinstance(device, devices.Cuda):
        found.resident_on_device = loop.compute(steps=steps, on="cuda")


def _median(measure: Callable[[], float | None]) -> float | None:
    values = [measure() for _ in range(5)]
    return None if None in values else statistics.median(values)
