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

import copy
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from labkit import units
from labkit.contracts import Skip
from labkit.diagnosis import loaders, stages
from labkit.diagnosis.devices import Cuda, Host, find_device
from labkit.diagnosis.facts import Batch, Copies, Facts, Stretch
from labkit.diagnosis.profile import NO_DATALOADER, kinds_of
from labkit.language import Text
from labkit.machine import hardware, procfs
from labkit.machine.usage import cores_s, own_cpu_s, tree_read_bytes
from labkit.parts.decoding import DECODERS
from labkit.parts.devices import SimulatedGpu
from labkit.parts.storage import cache_state
from labkit.runs.failure_reasons import one_line
from labkit.steady_rate import fewest_batches, steady_rate

if TYPE_CHECKING:
    import torch

BLOCKS, FEWEST_BLOCKS = 5, 3
# Of the budget: the arms, the probe inside a worker, the profile of the step, trials of remedies.
# The rest is for workers to start and to end.  The bar shows the same shares.
ARMS_SHARE, STAGES_SHARE, PROFILE_SHARE, TRIALS_SHARE = 0.4, 0.1, 0.03, 0.4
SHORTEST_S, LONGEST_S = 0.25, 4.0  # a stretch
FEWEST_STEPS = 8
RESTS_S = 0.03  # in which workers that have full queues use hardly any CPU
FILLING_S = 4.0  # at most, until persistent workers have filled their queues
EMPTY_BATCHES = 200
Arm = TypeVar("Arm")


class Stopped(Exception):  # noqa: N818 - a sentence for the user, whatever stopped it
    """What the user's loader or step did that ends the measurement."""


class Loop:
    """The user's loader and step, run in stretches.

    Args:
        loader: any iterable of batches.
        step: called with every batch.
        model: what the step trains, where changes of it may be tried.
    """

    waits_for_step = True
    """Whether a step that takes much too long is interrupted."""

    def __init__(
        self,
        loader: Any,
        step: Callable[[object], object],
        model: torch.nn.Module | None = None,
    ) -> None:
        self.loader, self.step = loader, step
        self.model: torch.nn.Module | None = model
        self.has_opencv: bool = "cv2" in sys.modules  # before labkit's decoders import it
        self.device: Any = Host()  # until the first step has run
        self.resident: list[object] = []
        """Batches kept for the resident arm."""

    def begin(self, arm: str, loader: Any) -> None:
        """Called before a stretch of an arm, with what it iterates over."""

    def keep(self, batch: object) -> None:
        """Keep a copy of a batch while there is room: a loader may use its memory again."""
        # At most 8 batches and 512 MiB, but always one batch.
        room = (1 << 29) // max(sum(loaders.bytes_by_dtype(batch).values()), 1)
        if len(self.resident) < max(1, min(8, room)):
            with _one_thread():
                self.resident.append(loaders.copy_batch(batch))

    def compute(self, seconds: float, batches: Sequence[object] = ()) -> Stretch:
        """Call the step with the batches that are kept, or with others.

        Args:
            seconds: how long, as in `run`.
            batches: instead of those that are kept.
        """
        stretch = self.run("resident", map(whole, cycle(batches or self.resident)), seconds)
        # What workers do that still fill their queues is no part of the step.
        return replace(stretch, cpu_s=stretch.own_cpu_s)

    def run(self, arm: str, loader: Any, seconds: float, *, once: bool = False) -> Stretch:
        """Iterate over a loader and, unless it runs alone, call the step with its batches.

        Args:
            arm: its name.
            loader: iterated over again and again.
            seconds: of the steady state, which has eight steps and two rounds of workers, or four
                seconds, at least.  Where an epoch is shorter, the last one is finished: the first
                may be unlike those that follow.
            once: whether to end with the first epoch, or where that is too short, with the one that
                reaches the steady state; only the first counts for `Stretch.epoch_s`.
        """
        self.begin(arm, loader)
        now, device, skipped = time.perf_counter, self.device, _skip_of(loader)
        fewest = _fewest_steps(loader)
        startups_s: list[float] = []
        rounds_s: list[tuple[list[float], int]] = []  # of each epoch, when its steps were over
        epochs_s: list[float] = []
        done = 0
        head_s = begun_s = left_s = apart_s = called_s = 0.0
        enough = False
        with device, stall_limit() as wait_for:
            while not enough:
                batches = loader
                persistent = loaders.is_data_loader(loader) and loader.persistent_workers
                if not done and persistent and loader._iterator is not None:
                    # It first receives what its workers still have of an epoch that was left.
                    wait_for("loader to begin an epoch", loaders.FIRST)
                    batches = iter(loader)
                before, epoch_s = done, now()
                over_s: list[float] = []
                rounds_s.append((over_s, 1))
                # By name, so that a loader that is left early ends its workers after the time.
                delivered = _without_stalls(batches, wait_for)
                for batch in delivered:
                    arrived_s = now()
                    if done == before:
                        startups_s.append(arrived_s - epoch_s)
                        apart_s += arrived_s - epoch_s if done > skipped else 0.0
                        left_s = arrived_s
                    if done == skipped:
                        cpu_s = time.process_time()
                        device.synchronize()
                        begun_s = now() - (arrived_s - left_s)
                        spun_s = time.process_time() - cpu_s  # no part of the time that counts
                        head_s, called_s = begun_s - epoch_s, 0.0
                    start_s = now()
                    if arm != "alone":
                        wait_for("step to return", 1 if self.waits_for_step else 0)
                        self.step(batch)
                    left_s = now()
                    done, called_s = done + 1, called_s + left_s - start_s
                    over_s.append(left_s)
                    if done == skipped:  # the next batch counts from waiting for it
                        first, left_s = _usage(loader), now()
                    counted_s = left_s - begun_s
                    enough = done >= skipped + fewest or counted_s >= LONGEST_S
                    enough = enough and done > skipped and counted_s >= seconds
                    # Workers deliver in bursts, so that only whole rounds of them have a mean.
                    if enough and not epochs_s and (done - skipped) % skipped == 0:
                        break
                else:
                    device.synchronize()
                    epochs_s.append(now() - epoch_s)
                    apart_s += now() - left_s if done > skipped else 0.0
                    enough = enough or (once and done > skipped)
                    if done == before:
                        raise Stopped(
                            "loader must yield batches in every epoch, got none; "
                            "give one that can be iterated again"
                        )
            device.synchronize()
            ended_s, last = now(), _usage(loader)
        del delivered
        steps, readings = done - skipped, device.readings.per_step(done)
        queued_s = sum(last.queued_s.values()) - sum(first.queued_s.values())
        called_s -= last.own_queued_s - first.own_queued_s
        # Both with what the device had queued until then.
        rounds_s[0][0][skipped - 1 : skipped] = [begun_s]
        if not epochs_s:
            rounds_s[-1][0][-1] = ended_s
        pinning_s, fetched_bytes = None, None
        if first.pinning_s and last.pinning_s.keys() == first.pinning_s.keys():
            pinning_s = sum(last.pinning_s.values()) - sum(first.pinning_s.values())
        if first.fetched_bytes is not None and last.fetched_bytes is not None:
            # A worker that ended meanwhile may not be counted.
            fetched_bytes = max(last.fetched_bytes - first.fetched_bytes, 0)
        steps_per_s, _ = steady_rate(rounds_s, skipped)
        step_s = (ended_s - begun_s - apart_s) / steps
        # In whole epochs a device that queues work hides when a round of steps was over.
        if steps_per_s and (not epochs_s or type(device) is Host):
            step_s = 1 / steps_per_s
        length, epoch_s = loaders.count_batches(loader), None
        if length is not None and epochs_s:
            # The first may have started workers for all.
            epoch_s = epochs_s[0] if once else statistics.fmean(epochs_s[1:] or epochs_s)
        elif length is not None:
            epoch_s = head_s + max(length - skipped, 0) * step_s
        return Stretch(
            arm=arm,
            steps=steps,
            busy_s=max(called_s / steps - readings.waited_s, 0.0),
            step_s=step_s,
            startup_s=statistics.fmean(startups_s),
            epochs=len(epochs_s),
            epoch_s=epoch_s,
            cpu_s=(last.cpu_s - first.cpu_s - spun_s) / steps,
            own_cpu_s=(last.own_cpu_s - first.own_cpu_s - spun_s) / steps,
            queued_s=queued_s / steps if last.queued_s.keys() == first.queued_s.keys() else None,
            idle=1 - (last.busy_cores_s - first.busy_cores_s) / (last.cores_s - first.cores_s or 1),
            readings=readings,
            pinning_s=None if pinning_s is None else pinning_s / steps,
            fetched_bytes=None if fetched_bytes is None else fetched_bytes / steps,
        )


def whole(batch: object) -> object:
    """Return a kept batch for a step, which may take things out of what holds them."""
    return copy.copy(batch) if isinstance(batch, Mapping | list) else batch


def _skip_of(loader: object) -> int:
    """Return how many batches a loader delivers before its queue is in the steady state."""
    return max(1, loader.num_workers) if loaders.is_data_loader(loader) else 1


def _fewest_steps(loader: object) -> int:
    """Return how many steps after those a stretch has at least, where they take no longer."""
    skipped = _skip_of(loader)
    return max(FEWEST_STEPS, fewest_batches(skipped) - skipped)


class _Usage(NamedTuple):
    """What processes and cores have used so far."""

    cpu_s: float
    own_cpu_s: float
    own_queued_s: float
    """Seconds in which this thread waited for a core."""
    queued_s: dict[int, float]
    """Seconds in which each descendant's first thread, or else this thread, waited for a core."""
    pinning_s: dict[int, float]
    """CPU seconds of each thread that pins batches."""
    fetched_bytes: int | None
    busy_cores_s: float
    cores_s: float


def _usage(loader: Iterable) -> _Usage:
    # Without workers, descendants are none of the loader's.
    alone = loaders.is_data_loader(loader) and not loader.num_workers
    queued = {} if alone else {pid: queued_s for pid, (_, queued_s) in _scheduled().items()}
    _, own_queued_s = procfs.scheduled_s()
    queued = queued or {0: own_queued_s}
    pinning = {
        thread.native_id: procfs.scheduled_s(f"self/task/{thread.native_id}")[0]
        for thread in loaders.pinning_threads(loader)
    }
    return _Usage(
        own_cpu_s(), time.process_time(), own_queued_s, queued, pinning, tree_read_bytes(),
        *map(sum, zip(*cores_s().values())),
    )  # fmt: skip


def _scheduled() -> dict[int, tuple[float, float]]:
    """Return for how long each descendant's first thread ran, and waited for a core."""
    below = procfs.processes_below(os.getpid()) or ()
    counted = {pid: procfs.scheduled_s(pid) for pid in below}
    return {pid: seconds for pid, seconds in counted.items() if any(seconds)}


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


def _without_stalls(loader: Iterable, wait_for: Callable) -> Iterator:
    wait_for("loader to yield a batch", loaders.FIRST)
    for batch in loader:
        if batch is None:
            raise Stopped("loader must yield batches, got None; does its collate_fn return one?")
        yield batch
        wait_for("loader to yield a batch")


@contextmanager
def stall_limit() -> Iterator[Callable]:
    """Interrupt what stalls, where this thread can be interrupted.

    Yields:
        A function to call when a wait begins: for what, and how many times `STALL_S` it may take;
        0: as long as it likes.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() != threading.main_thread():
        yield lambda *_: None
        return
    awaited, limit_s = "", 0.0

    def wait_for(what: str, times: float = 1) -> None:
        nonlocal awaited, limit_s
        awaited, limit_s = what, times * loaders.STALL_S
        # Again and again: a data set that tries once more after any error would swallow the first.
        signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)

    def stop(*_: object) -> None:
        why = Text(
            "waited {limit_s:g} s for {awaited}, got nothing; "
            "try it by hand with num_workers=0, where an error shows itself"
        )
        raise Stopped(why.format(limit_s=limit_s, awaited=awaited))

    before, since_s = signal.signal(signal.SIGALRM, stop), time.monotonic()
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0.0)
    try:
        yield wait_for
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if left_s:  # the user's own alarm, at once where it is overdue
            left_s = max(left_s - (time.monotonic() - since_s), 1e-6)
            signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)


# --- all that a diagnosis measures ------------------------------------------------------------


class _Record:
    """What was measured until now."""

    def __init__(self) -> None:
        self.facts = Facts()

    def set(self, **changes: Any) -> None:
        """Set some of the facts."""
        self.facts = replace(self.facts, **changes)

    def note(self, text: str) -> None:
        """Add a note."""
        self.set(notes=(*self.facts.notes, text))


def collect(
    loop: Loop,
    *,
    files: Sequence[Path] = (),
    device: SimulatedGpu | None = None,
    budget_s: float,
    say: Callable[[str, float], None],
) -> Facts:
    """Measure everything that the conclusions need.

    Args:
        loop: its model is changed by the steps.
        files: what an epoch reads; without them there is no cold arm.
        device: a simulated one that the step uses.
        budget_s: for all of it.
        say: called with what is measured next and the share that is done.

    Returns:
        What was measured, also where the loader or the step raised: see `broken`.
    """
    record = _Record()
    try:
        try:
            _measure(record, loop, files, device, budget_s, say)
        except Exception as error:  # the user's own code may raise anything
            record.set(broken=in_one_line(error))
    except RuntimeError as late:  # of torch, whose signal of a dead worker came in the line above
        record.set(broken=in_one_line(late))
    if record.facts.broken and not loop.resident and record.facts.workers:
        copied = loaders.copied(loop.loader, num_workers=0)
        with suppress(Exception), copied as twin, stall_limit() as wait_for:
            # Its bytes tell whether memory is short.
            wait_for("loader to yield a batch")
            loop.keep(next(iter(twin)))
    if loop.resident:
        record.set(batch=batch_facts(loop.resident[0], getattr(loop.loader, "batch_size", None)))
    return replace(record.facts, device=loop.device.label, has_queue=loop.device.has_queue)


def batch_facts(batch: object, size: int | None) -> Batch:
    """Return what the rules need to know of a batch.

    Args:
        batch: its first one.
        size: the loader's batch size.
    """
    arrays = loaders.arrays(batch)
    return Batch(
        bytes_by_dtype=loaders.bytes_by_dtype(batch),
        samples=loaders.count_samples(batch, size),
        unit="images" if any(map(_is_images, arrays)) else "samples",
        objects=len(loaders.leaves(batch)) - len(arrays),
    )


def _is_images(array: Any) -> bool:
    """Return whether an array is a batch of pictures: four dimensions, one to four channels."""
    shape = tuple(array.shape)
    return len(shape) == 4 and (shape[1] in (1, 3, 4) or shape[3] in (1, 3, 4))


def in_one_line(error: Exception) -> str:
    """Return what the user's loader or step raised, in one line."""
    if isinstance(error, Stopped):
        return error.args[0]
    message = one_line(error)
    if "Original Traceback" in str(error):
        return Text("{message} (in a loader worker)").format(message=message)
    if isinstance(error, EOFError | ConnectionError) or "DataLoader worker" in message:
        ended = Text(
            "a loader worker ended while it was waited for ({message}); memory may have run out"
        )
        return ended.format(message=message)
    return message


def _measure(
    record: _Record,
    loop: Loop,
    files: Sequence[Path],
    device: SimulatedGpu | None,
    budget_s: float,
    say: Callable[[str, float], None],
) -> None:
    is_data_loader = loaders.is_data_loader(loop.loader)
    record.set(
        arguments=loaders.arguments_of(loop.loader) if is_data_loader else {},
        length=loaders.count_batches(loop.loader),
        cores=cores_of_rank(),
        has_model=loop.model is not None,
        has_opencv=loop.has_opencv,
    )
    say("first steps", 0.0)
    record.set(first_s=look(loop, device))
    record.set(duplicated=are_duplicated(loop))
    arms = ["warm", "alone", "resident"] + (["cold"] if files else [])
    if not files:
        record.note("cold was not measured: give files for that")
    seconds = stretch_s(ARMS_SHARE * budget_s, len(arms))
    too_large = _too_large(files)
    if too_large:
        record.note(Text("warm is as found: {why}").format(why=too_large))
    fits, warmed = bool(files) and not too_large, False
    ends_s = time.monotonic() + ARMS_SHARE * budget_s
    for arm in in_blocks(arms, ends_s, lambda text, share: say(text, ARMS_SHARE * share)):
        if arm == "cold":
            if reason := why_not_evicted(files):
                record.note(Text("cold was not measured: {why}").format(why=reason))
                arms.remove("cold")
                continue
            warmed = False
        elif arm in ("warm", "alone") and fits and not warmed:
            cache_state.make_warm(files)
            warmed = True
        if arm == "resident":
            stretch = loop.compute(seconds)
        else:
            stretch = loop.run(arm, loop.loader, seconds, once=arm == "cold")
        record.set(stretches=(*record.facts.stretches, stretch))
    say("inside the workers", ARMS_SHARE)
    with stall_limit() as wait_for:
        wait_for("loader to yield a batch", 1 + budget_s / loaders.STALL_S)
        probe = stages.probe_stages(loop.loader, seconds=STAGES_SHARE * budget_s)
    record.set(probe=probe)
    if probe.error:
        early = Text("looking into a worker ended early: {why}")
        record.set(failed=(early.format(why=in_one_line(probe.error)),))
    if any(stage.kind == "decode" for stage in probe.stages):
        record.set(decoders_s=_decoders_s(files))
    if is_data_loader:
        record.set(empty_s=_empty_batch_s(loop.loader.num_workers))
    else:
        record.note(NO_DATALOADER)
    say("profile of the step", 1 - TRIALS_SHARE - PROFILE_SHARE)
    _look_into_step(record, loop, PROFILE_SHARE * budget_s)


def cores_of_rank() -> int:
    """Return how many cores this process may use: ranks on this machine share them."""
    return max(hardware.cores() // int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)


def look(loop: Loop, device: SimulatedGpu | None) -> float:
    """Run some steps, find out what they compute on, keep batches; return mean seconds."""
    at_s = [time.perf_counter()]
    with stall_limit() as wait_for:
        for batch in _without_stalls(loop.loader, wait_for):
            loop.keep(batch)
            # Times as long as usual: the first steps may compile.
            wait_for("step to return", 20 if loop.waits_for_step else 0)
            loop.step(batch)
            if len(at_s) == 1:
                loop.device = find_device(device)
            at_s.append(time.perf_counter())
            # 12 steps, or 3 s without the first step.
            if len(at_s) > 12 or (len(at_s) > 2 and at_s[-1] - at_s[1] > 3.0):
                break
    if len(at_s) == 1:
        raise Stopped("loader must yield at least one batch, got an empty one; look at its length")
    loop.device.synchronize()
    begun_s, *later_s = at_s[1:] if len(at_s) > 2 else at_s  # the first step is slow
    return (time.perf_counter() - begun_s) / len(later_s)


def are_duplicated(loop: Loop) -> bool:
    """Return whether two workers of an iterable data set would yield the same.

    Batches that are equal in a worker, too, do not tell.
    """
    import numpy as np
    from torch.utils.data import IterableDataset

    if not isinstance(getattr(loop.loader, "dataset", None), IterableDataset):
        return False
    try:
        with loaders.copied(loop.loader, num_workers=2) as twin, stall_limit() as wait_for:
            wait_for("two workers")
            first, of_other, second = (
                [np.asarray(array).tobytes() for array in loaders.arrays(batch)]
                for batch in islice(twin, 3)
            )
    except Exception:  # fewer batches, or what goes wrong in two workers only
        return False
    return first == of_other != second


def stretch_s(seconds: float, arms: int) -> float:
    """Return the length of a stretch with which all blocks fit into some seconds."""
    return min(max(seconds / BLOCKS / arms, SHORTEST_S), LONGEST_S)


def count_arms(seconds: float, loader: Iterable, step_s: float) -> int:
    """Return how many arms the fewest blocks have time for, whose stretches are the shortest."""
    counted_s = min(_fewest_steps(loader) * step_s, LONGEST_S)
    shortest_s = max(_skip_of(loader) * step_s + counted_s, SHORTEST_S)
    return int(seconds / FEWEST_BLOCKS / shortest_s)


def in_blocks(
    arms: Collection[Arm], ends_s: float, say: Callable[[str, float], None]
) -> Iterator[Arm]:
    """Yield all arms once a block, in random order; no block begins late, but for the first three.

    Persistent workers that were left in the middle of an epoch fill their queues before the next
    arm: they would delay its steps.

    Args:
        arms: may lose some meanwhile.
        ends_s: by the monotonic clock.
        say: called with the block and the share that is done.
    """
    order = random.Random(0)
    for block in range(BLOCKS):
        if block >= FEWEST_BLOCKS and time.monotonic() > ends_s:
            return
        for number, arm in enumerate(order.sample(list(arms), len(arms))):
            text = Text("block {n} of {blocks}").format(n=block + 1, blocks=BLOCKS)
            say(text, (block + number / len(arms)) / BLOCKS)
            _let_queues_fill()
            yield arm


def _let_queues_fill() -> None:
    """Wait until queues are full; those of the user's own workers are where they hardly compute."""
    ends_s, before_s = time.monotonic() + FILLING_S, -1.0
    while (workers := _scheduled()) and time.monotonic() < ends_s:
        used_s = sum(ran_s for ran_s, _ in workers.values())
        if used_s - before_s < 0.1 * RESTS_S and loaders.have_filled_queues():
            return
        before_s = used_s
        time.sleep(RESTS_S)


def why_not_evicted(files: Sequence[Path]) -> str:
    """Evict files from memory and check that they are; return why they are not, or ""."""
    try:
        cache_state.prepare(files, "cold")
    except Skip as skip:
        return str(skip)
    return ""


def _too_large(files: Sequence[Path]) -> str:
    """Return why files cannot be read into memory; "" if they can."""
    total_bytes = sum(path.stat().st_size for path in files)
    if total_bytes > 0.4 * hardware.memory_bytes():  # at most 40 % of it
        too_large = Text("{size} of files do not fit into memory")
        return too_large.format(size=units.count_bytes(total_bytes))
    return ""


def _decoders_s(files: Sequence[Path]) -> dict[str, float]:
    """Return the seconds that each of labkit's decoders takes for one of some JPEG files."""
    paths = [path for path in files if path.suffix.lower() in (".jpg", ".jpeg")][:8]
    jpegs = [path.read_bytes() for path in paths]
    took_s = {}
    for name, decode in DECODERS.items() if jpegs else ():
        with suppress(Skip, ImportError, ValueError):  # not installed, or refuses a file
            decode(jpegs[0])
            begun_s = time.perf_counter()
            for jpeg in jpegs:
                decode(jpeg)
            took_s[name] = (time.perf_counter() - begun_s) / len(jpegs)
    return took_s


def _empty_batch_s(workers: int) -> float:
    """Return the seconds of a batch that takes no work, through a DataLoader of torch's own."""
    import torch
    from torch.utils.data import DataLoader

    skipped = 4 * workers + 1
    samples: Any = [torch.zeros(1)] * (skipped + EMPTY_BATCHES)
    tiny: DataLoader = DataLoader(
        samples,
        num_workers=workers,
        timeout=loaders.STALL_S if workers else 0,
    )
    at_s = [time.perf_counter() for _ in tiny][skipped:]
    # The fastest stretch: what another program delayed is no part of it.
    quarter = EMPTY_BATCHES // 4
    return min(later - first for first, later in zip(at_s, at_s[quarter:])) / quarter


def _look_into_step(record: _Record, loop: Loop, seconds: float) -> None:
    """Profile the step on kept batches, and time copies by themselves."""
    device, batch = loop.device, loop.resident[0]
    try:
        kinds = kinds_of(lambda: loop.compute(seconds), on_cuda=isinstance(device, Cuda))
        if not device.has_queue:  # there libraries compute the step
            kinds.pop("compute", None)
        record.set(host_kinds=kinds)
    except ImportError as missing:
        not_seen = Text("what the host does in a step was not looked at: {missing}")
        record.note(not_seen.format(missing=missing))
    with _one_thread():
        record.set(copy_bytes_s=_median_s(device, partial(loaders.copy_batch, batch)))
    copies = [device.copying(batch, pinned=pinned) for pinned in (False, True)]
    how = device.how_copied(batch)
    if how is not None and all(copies):
        pageable_s, pinned_s = (_median_s(device, copy) for copy in copies)
        are_pinned, are_beside = how
        record.set(copies=Copies(pageable_s=pageable_s, pinned_s=pinned_s,
                                 are_pinned=are_pinned, are_beside=are_beside))  # fmt: skip
    if isinstance(device, Cuda):
        try:
            batches = [loaders.move_batch(each, device.torch_device) for each in loop.resident]
            loop.step(whole(batches[0]))
        except Exception as error:  # such as batch.numpy(), or no memory for them
            message = in_one_line(error)
            no_step = Text("copying was not timed: no step with batches on the device: {message}")
            record.note(no_step.format(message=message))
            record.set(copies=Copies())
            batches = loop.resident
        # Waiting spins, so only CUDA's profile tells it from work.  One step more is skipped.
        readings = device.profile(lambda: loop.compute(0.0, batches), 1 + FEWEST_STEPS)
        # With an empty queue: the host also waits, inside a launch, where that is full.
        called_s = _median_s(device, lambda: loop.step(whole(batches[0])), host_only=True)
        stretch = replace(
            loop.compute(seconds, batches),
            readings=readings,
            busy_s=max(called_s - readings.waited_s, 0.0),
        )
        record.set(resident_on_device=stretch)


def _median_s(device: Host, run: Callable[[], object], *, host_only: bool = False) -> float:
    """Return the median seconds of what the host does, and the device after it."""
    took_s = []
    for _ in range(5):
        device.synchronize()
        start_s = time.perf_counter()
        run()
        if not host_only:
            device.synchronize()
        took_s.append(time.perf_counter() - start_s)
    return statistics.median(took_s)
