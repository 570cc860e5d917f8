"""Arms: the same training under four conditions, in interleaved blocks.

    resident   the step on batches that are kept       what it would be if loading were free
    alone      the loader, and nobody to use it        what loading takes
    warm       loader and step, files in memory        what it is
    cold       the same, files evicted before it       what an epoch from the medium is

Differences between arms say what preparing, fetching and copying cost beside the step, which
no timer inside one of them can say: loading goes on behind it.  Main traps: a loader starts with
an empty queue, so a stretch begins to count when every worker has delivered once; and an epoch
that is shorter than a stretch starts its workers anew each time.

Source: DS-Analyzer's differential method (VLDB 2021); EVIDENCE 1, "Stalls".
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

from labkit.diagnosis import batches, knobs
from labkit.diagnosis.devices import Host, Readings
from labkit.machine import procfs
from labkit.machine.usage import own_cpu_s

SILENT_S = 30.0  # a loader that gives nothing for so long has stalled
KEPT_BATCHES, KEPT_BYTES = 8, 1 << 29


class Stopped(Exception):  # noqa: N818 - a sentence for people, whatever stopped it
    """What a person's loader or step did that nothing more can be measured with."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One step, seconds of the host."""

    wait_s: float
    step_s: float
    cpu_s: float
    """Of the calling thread, in the step."""
    device_wait_s: float
    """Of the step, waited for the device: copies, its queue, its end."""
    queued_s: float = 0.0
    """Of the step, waited for a core that others had."""
    syncs: int = 0
    """How often it waited for the device's end."""


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
    """From the same to where the steady state begins."""
    skipped: int
    """Steps until there."""
    epoch_s: tuple[float, ...]
    """Of whole epochs, if there were any."""
    cpu_s: float
    """Per step, of this process and its workers."""
    readings: Readings
    """Of the device, per step."""

    def of_epoch(self, steps: int | None) -> float | None:
        """Say how long an epoch takes: as measured, or from its head and the steady state."""
        later_s = self.epoch_s[1:] or self.epoch_s  # the first may have started workers for all
        if later_s:
            return sum(later_s) / len(later_s)
        return None if steps is None else self.head_s + max(steps - self.skipped, 0) * self.step_s


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How long a stretch is."""

    counted: int
    skipped: int = 1
    whole: bool = False
    """Whether the epoch that is begun is gone through to its end, though there are enough."""


class Loop:
    """A person's loader and step, run in stretches.

    Args:
        loader: any iterable of batches.
        step: called with every batch.
        device: where the step computes.
        transfer: called with a batch before the step, which gets what it returns.
    """

    def __init__(
        self,
        loader: Iterable,
        step: Callable[[object], object],
        device: Host,
        transfer: Callable[[object], object] | None = None,
    ) -> None:
        self.loader, self.step, self.device, self._transfer = loader, step, device, transfer
        self.is_one_shot = iter_is_itself(loader)
        self.resident: list[object] = []
        """Batches kept for the resident arm."""
        self.shapes: dict[tuple[str, ...], int] = {}
        """What batches look like -> how many did."""
        self.images = 0
        """In the first batch."""
        self.batch_bytes = 0

    def keep(self, batch: object) -> None:
        """Take a batch in: look at it, and keep a copy while there is room."""
        form = batches.shapes(batch)
        self.shapes[form] = self.shapes.get(form, 0) + 1
        if not self.images:
            self.images, self.batch_bytes = (
                batches.count_images(batch),
                batches.count_bytes(batch),
            )
        room = KEPT_BYTES // max(self.batch_bytes, 1)
        if len(self.resident) < max(1, min(KEPT_BATCHES, room)):
            with one_thread():
                self.resident.append(batches.copied(batch))

    def asked(self) -> Iterator:
        """Iterate over the loader, and do not wait for ever."""
        return _asked(self.loader, "a batch")

    def run(self, batch: object) -> object:
        """Do what a person's loop does with a batch."""
        return self.step(batch if self._transfer is None else self._transfer(batch))

    def alone(self, loader: Iterable, steps: Steps) -> Stretch:
        """Let a loader deliver, and do nothing with it."""
        return self._stretch("alone", loader, None, steps)

    def together(self, loader: Iterable, steps: Steps, arm: str = "warm") -> Stretch:
        """Let a loader deliver, and the step work."""
        return self._stretch(arm, loader, self.run, steps)

    def compute(self, *, steps: int, on: str | None = None) -> Stretch:
        """Let the step work on batches that are kept.

        Args:
            steps: how many.
            on: a device to which they are copied before.
        """
        kept = [batches.moved(batch, on) for batch in self.resident] if on else self.resident
        return self._stretch("resident", cycle(kept), self.run, Steps(counted=steps, skipped=1))

    def _stretch(
        self, arm: str, loader: Iterable, run: Callable[[object], object] | None, steps: Steps
    ) -> Stretch:
        now, device = time.perf_counter, self.device
        times: list[StepTimes] = []
        startups_s, epochs_s = [], []
        head_s = begun_s = cpu_s = left_s = apart_s = 0.0
        with device:
            while len(times) < steps.skipped + steps.counted:
                before, epoch_s = len(times), now()
                # Kept by name: what is dropped at a break ends its workers within the time.
                delivered = _asked(loader, "a batch")
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
                    if len(times) >= steps.skipped + steps.counted and not steps.whole:
                        break
                else:
                    device.synchronize()
                    epochs_s.append(now() - epoch_s)
                    apart_s += now() - left_s if len(times) > steps.skipped else 0.0
                self._check_goes_on(len(times), before, steps.skipped + steps.counted, arm)
            device.synchronize()
            ended_s, used_s = now(), own_cpu_s() - cpu_s
            del delivered
        counted = times[steps.skipped :]
        return Stretch(
            arm=arm,
            steps=tuple(counted),
            step_s=(ended_s - begun_s - apart_s) / len(counted),
            startup_s=sum(startups_s) / len(startups_s),
            head_s=head_s,
            skipped=steps.skipped,
            epoch_s=tuple(epochs_s),
            cpu_s=used_s / len(counted),
            readings=device.readings.per_step(len(times)),
        )

    def _check_goes_on(self, done: int, before: int, wanted: int, arm: str) -> None:
        """Raise where an epoch's end leaves nothing more to measure."""
        if done == before:
            what = "at least one batch" if not done else "batches in every epoch"
            raise Stopped(f"loader must yield {what}, got an empty one; look at its length")
        if self.is_one_shot and done < wanted:
            raise Stopped(
                f"loader must have {wanted} batches more to measure {arm}, got {done}; "
                "give one that can be iterated again"
            )

    def _one(self, run: Callable | None, batch: object, wait_s: float) -> StepTimes:
        if batch is None:
            raise Stopped("loader must yield batches, got None; does its collate_fn return one?")
        if run is None:
            return StepTimes(wait_s=wait_s, step_s=0.0, cpu_s=0.0, device_wait_s=0.0)
        readings, now = self.device.readings, time.perf_counter
        waited_s, syncs = readings.waited_s, self.device.syncs
        before_queued_s = procfs.queued_s()
        start_s, start_cpu_s = now(), time.thread_time()
        self.device.before_step()
        with _asking("step to return"):
            run(batch)
        self.device.after_step()
        ended_s, cpu_s = now(), time.thread_time() - start_cpu_s
        return StepTimes(
            wait_s=wait_s,
            step_s=ended_s - start_s,
            cpu_s=cpu_s,
            queued_s=procfs.queued_s() - before_queued_s,
            device_wait_s=readings.waited_s - waited_s,
            syncs=self.device.syncs - syncs,
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch start no threads here: GNU's OpenMP hangs in whatever is forked after them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def iter_is_itself(loader: object) -> bool:
    """Say whether an iterable can be gone through only once, as a generator.

    Raises:
        ValueError: it is no iterable.
    """
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ValueError(
            f"loader must be an iterable of batches, got {type(loader).__name__}; "
            "give what your training loop iterates over"
        )
    return hasattr(loader, "__next__")


def skip_of(loader: object) -> int:
    """Say how many batches a loader delivers before its queue is as it stays."""
    return max(1, loader.num_workers) if knobs.is_data_loader(loader) else 1


def _asked(loader: Iterable, what: str) -> Iterator:
    """Iterate, and do not wait for ever."""
    with _asking("loader to start"):
        iterator = iter(loader)
    while True:
        with _asking(f"loader to yield {what}"):
            try:
                batch = next(iterator)
            except StopIteration:
                return
        yield batch


@contextmanager
def _asking(for_what: str) -> Iterator[None]:
    """Interrupt what takes longer than `SILENT_S`, where this thread can be interrupted."""
    if not hasattr(signal, "setitimer") or threading.current_thread() != threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise Stopped(
            f"waited {SILENT_S:g} s for {for_what}, got nothing; "
            "try it by hand with num_workers=0, where an error shows itself"
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SILENT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
