"""The arms of a diagnosis: a loader and a step, run in stretches, in interleaved blocks.

    resident   the step on batches that are kept     what an epoch would be if loading were free
    alone      the loader, without a step            what loading takes
    warm       loader and step, files in memory      what an epoch is
    cold       the same, files evicted before it     what an epoch from the medium is

Differences between these arms show what preparing, fetching and copying add to the step.  A timer
inside one arm cannot show that, as loading goes on behind the step.  A loader starts with an empty
queue, so a stretch counts from the step at which every worker has delivered once.  A trial of a
remedy is a warm stretch with another loader or step.

Source: DS-Analyzer's differential method (VLDB 2021); EVIDENCE 1, "Stalls".
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from labkit.diagnosis import loaders
from labkit.diagnosis.batches import bytes_by_dtype, copy_batch, whole
from labkit.diagnosis.facts import Stretch
from labkit.diagnosis.gpu import Host
from labkit.diagnosis.thresholds import (
    BLOCKS,
    FEWEST_STRETCH_STEPS,
    FILLING_S,
    FIRST_TO_STALL_RATIO,
    LONGEST_STRETCH_S,
    RESTS_S,
    SHORTEST_STRETCH_S,
    STALL_S,
)  # fmt: skip
from labkit.language import Text
from labkit.machine import procfs
from labkit.machine.usage import cores_s, own_cpu_s, tree_read_bytes
from labkit.runs.failure_reasons import one_line
from labkit.steady_rate import fewest_batches, steady_rate

if TYPE_CHECKING:
    import torch

Arm = TypeVar("Arm")


class Stopped(Exception):  # noqa: N818 - a sentence for the user, whatever stopped it
    """What the user's loader or step did that ends the measurement."""


def in_one_line(error: Exception) -> str:
    """Return what the user's loader or step raised, in one line."""
    cause = error.__cause__  # torch's own error, where workers ended as well
    for each in (error, cause):
        if isinstance(each, Stopped):
            return each.args[0]
    message = one_line(error)
    if "Original Traceback" in str(error):
        return Text("{message} (in a loader worker)").format(message=message)
    if isinstance(error, EOFError | ConnectionError) or "DataLoader worker" in message:
        ended = Text(
            "a loader worker ended while it was waited for ({message}); memory may have run out"
        )
        return ended.format(message=message)
    return message


@dataclass
class Budget:
    """The time of a diagnosis, and what shows how much of it is over."""

    s: float
    over_s: float
    """When it is over, by the monotonic clock."""
    say: Callable[[str, float], None]
    """Called with what is measured next and the share that is done."""

    @property
    def left_s(self) -> float:
        """Seconds; less than 0 where it is over."""
        return self.over_s - time.monotonic()


class Loop:
    """The user's loader and step, run in stretches.

    Args:
        loader: any iterable of batches.
        step: called with every batch.
        model: what the step trains, where changes of it may be tried.
    """

    why_not_cold = "give files for that"
    """Why epochs are not measured cold where no files are known."""
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
        self.longest_s = LONGEST_STRETCH_S
        """What a stretch with few, slow steps lasts at most."""
        self.resident: list[object] = []
        """Batches kept for the resident arm."""

    def begin(self, arm: str, loader: Any) -> None:
        """Called before a stretch of an arm, with what it iterates over."""

    def as_trained(self, batches: Iterable) -> Iterable:
        """Return a loader's batches as the training gets them."""
        return batches

    def keep(self, batch: object) -> None:
        """Keep a copy of a batch while there is room: a loader may use its memory again."""
        # At most 8 batches and 512 MiB, but always one batch.
        room = (1 << 29) // max(sum(bytes_by_dtype(batch).values()), 1)
        if len(self.resident) < max(1, min(8, room)):
            with with_one_thread():
                self.resident.append(copy_batch(batch))

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
            seconds: of the steady state, which has eight steps and two rounds of workers, or
                `longest_s`, at least.  Where an epoch is shorter, the last one is finished: the
                first may be unlike those that follow.
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
                    wait_for("loader to begin an epoch", FIRST_TO_STALL_RATIO)
                    batches = iter(loader)
                before, epoch_s = done, now()
                over_s: list[float] = []
                rounds_s.append((over_s, 1))
                # By name, so that a loader that is left early ends its workers after the time.
                if arm != "resident":
                    batches = self.as_trained(batches)
                delivered = without_stalls(batches, wait_for)
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
                    enough = done >= skipped + fewest or counted_s >= self.longest_s
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
            own_queued_s=(last.own_queued_s - first.own_queued_s) / steps,
            idle=1 - (last.busy_cores_s - first.busy_cores_s) / (last.cores_s - first.cores_s or 1),
            readings=readings,
            pinning_s=None if pinning_s is None else pinning_s / steps,
            fetched_bytes=None if fetched_bytes is None else fetched_bytes / steps,
        )


def _skip_of(loader: object) -> int:
    """Return how many batches a loader delivers before its queue is in the steady state."""
    return max(1, loader.num_workers) if loaders.is_data_loader(loader) else 1


def _fewest_steps(loader: object) -> int:
    """Return how many steps after those a stretch has at least, where they take no longer."""
    skipped = _skip_of(loader)
    return max(FEWEST_STRETCH_STEPS, fewest_batches(skipped) - skipped)


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
def with_one_thread() -> Iterator[None]:
    """Have torch start no threads here: GNU's OpenMP hangs in processes forked after them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def without_stalls(loader: Iterable, wait_for: Callable) -> Iterator:
    """Yield the batches of a loader; raise `Stopped` where one is None or takes too long."""
    wait_for("loader to yield a batch", FIRST_TO_STALL_RATIO)
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
        awaited, limit_s = what, times * STALL_S
        # Again and again: a data set that tries once more after any error would swallow the first.
        signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)

    def stop(*_: object) -> None:
        why = Text(
            "waited {limit_s:g} s for {awaited}, got nothing; "
            "try it by hand with num_workers=0, where an error shows itself"
        )
        raise Stopped(why.format(limit_s=limit_s, awaited=awaited))

    own, since_s = set_alarm(Alarm(stop)), time.monotonic()
    try:
        yield wait_for
    finally:
        # The user's own one, at once where it is overdue.
        left_s = own.left_s and max(own.left_s - (time.monotonic() - since_s), 1e-6)
        set_alarm(own._replace(left_s=left_s))


class Alarm(NamedTuple):
    """What SIGALRM does in this process, and when it comes."""

    handler: Any = None
    """None: stays as it is."""
    left_s: float = 0.0
    """Seconds; 0: no alarm is set."""
    interval_s: float = 0.0


def set_alarm(alarm: Alarm) -> Alarm:
    """Set an alarm; return what was set before, with the time that is left.

    Only the main thread can: in another one nothing is set.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() != threading.main_thread():
        return alarm
    timer = signal.setitimer(signal.ITIMER_REAL, 0.0)
    handler = signal.getsignal(signal.SIGALRM)
    if alarm.handler is not None:
        signal.signal(signal.SIGALRM, alarm.handler)
    signal.setitimer(signal.ITIMER_REAL, alarm.left_s, alarm.interval_s)
    return Alarm(handler, *timer)


# --- blocks -----------------------------------------------------------------------------------


def stretch_s(seconds: float, arms: int) -> float:
    """Return the length of a stretch with which all blocks fit into some seconds."""
    return min(max(seconds / BLOCKS / arms, SHORTEST_STRETCH_S), LONGEST_STRETCH_S)


def count_arms(seconds: float, loop: Loop, step_s: float) -> int:
    """Return how many arms a block of some seconds has time for, whose stretches are shortest."""
    counted_s = min(_fewest_steps(loop.loader) * step_s, loop.longest_s)
    shortest_s = max(_skip_of(loop.loader) * step_s + counted_s, SHORTEST_STRETCH_S)
    return int(seconds / shortest_s)


def in_blocks(
    arms: Collection[Arm], ends_s: float, say: Callable[[str, float], None]
) -> Iterator[Arm]:
    """Yield all arms once a block, in random order.

    Persistent workers that were left in the middle of an epoch fill their queues before the next
    arm: they would delay its steps.

    Args:
        arms: may lose some meanwhile.
        ends_s: no arm begins after it, but those of the first block; by the monotonic clock.
        say: called with the block and the share that is done.
    """
    order = random.Random(0)
    for block in range(BLOCKS):
        for number, arm in enumerate(order.sample(list(arms), len(arms))):
            text = Text("block {n} of {blocks}").format(n=block + 1, blocks=BLOCKS)
            say(text, (block + number / len(arms)) / BLOCKS)
            left_s = ends_s - time.monotonic()
            if block and left_s < 0:
                return
            _let_queues_fill(min(FILLING_S, left_s))
            yield arm


def _let_queues_fill(seconds: float) -> None:
    """Wait until queues are full; those of the user's own workers are where they hardly compute.

    Args:
        seconds: at most.
    """
    ends_s, before_s = time.monotonic() + seconds, -1.0
    while (workers := _scheduled()) and time.monotonic() < ends_s:
        used_s = sum(ran_s for ran_s, _ in workers.values())
        if used_s - before_s < 0.1 * RESTS_S and loaders.have_filled_queues():
            return
        before_s = used_s
        time.sleep(RESTS_S)
