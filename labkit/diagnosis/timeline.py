"""Timeline: what GPU, cores, disk and host did, moment by moment, while a loop ran.

    thread, 10 times a second ─ GPU-Util, GPU memory (NVML) ┐
                              ─ every core (psutil)         ├─▶ Timeline ─▶ timeline_chart
                              ─ bytes fetched from disks    │
    the loop ─ mark("wait", start_s, end_s) ────────────────┤
    emulated device ─ start and end of all it computes ─────┘

Main trap: a thread that looks takes time from the loop it looks at; so it rests 100 times as long
as a look took, and at 10 looks a second only marks and the emulated device's bands show what lasts
less than 0.1 s.  Cores are the whole machine's, other programs included; bytes are those that this
process and its workers had to fetch, not what the page cache gave them.
Source: proc(5) for stat and io; nvml.h, nvmlUtilization_t.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from labkit.contracts import Clock, Skip, SystemClock
from labkit.machine.gpu import Reading, open_gpu
from labkit.machine.usage import tree_read_bytes
from labkit.parts.devices import EmulatedDevice

PERIOD_S = 0.1
SECONDS = 4.0  # of a loop that is recorded: several of NVML's periods
RESTS = 100  # times the CPU time of a look: at most one percent of one core
NO_CUDA = "torch used no GPU"
NO_CORES = "this platform does not count its cores' time"
NO_READS = "this platform does not tell what a process fetched from disks"

Band = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What was seen; every second counts from the start, and None is what was not measured."""

    duration_s: float
    at_s: tuple[float, ...] = ()
    """When it was looked: each value of a rate or share is that since the look before."""
    gpu_util: tuple[float | None, ...] | None = None
    """Shares, as NVML reports them: of its own period, some kernel or other ran."""
    gpu_memory_bytes: tuple[int | None, ...] | None = None
    """Of the whole GPU, in use by whatever program."""
    cores: tuple[tuple[float, ...] | None, ...] | None = None
    """Per look the busy share of every core that this process may use."""
    read_bytes_per_s: tuple[float | None, ...] | None = None
    """Fetched from devices by this process and those below it."""
    host: Mapping[str, tuple[Band, ...]] = field(default_factory=dict)
    """What the loop marked, as "wait": start and end of each."""
    device: tuple[Band, ...] | None = None
    """When the emulated device computed, touching bands as one; None: there is none."""
    device_label: str = ""
    """As "emulated(matched, 11.2 ms/image)"."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Field that is None -> why."""


class Recorder:
    """Looks until its context ends; keeps everything, so it is for minutes, not for hours.

    Args:
        clock: tells the time, the emulated device's too; a fake one in tests.
        period_s: between two looks, if they do not take longer than a hundredth of it.
    """

    def __init__(self, clock: Clock | None = None, *, period_s: float = PERIOD_S) -> None:
        self._clock = clock or SystemClock()
        self._period_s = period_s
        self._looks: list[dict[str, object]] = []
        self._host: dict[str, list[Band]] = {}
        self._device: EmulatedDevice | None = None
        self._device_bands: list[Band] = []
        self._fetched_bytes = 0
        self._read_gpu: Callable[[], Reading] | None = None
        self._why_no_gpu = NO_CUDA

    def __enter__(self) -> Recorder:
        """Start looking."""
        self._start_s = self._clock.now()
        self._end_s: float | None = None
        self._looks.append(self._look())  # what counters are counted from
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look once more, stop, and leave the device as it was."""
        self._stop.set()
        self._thread.join()
        self.look()
        self._end_s = self._clock.now()
        if self._device is not None:
            self._device.on_run = None

    def mark(self, name: str, start_s: float, end_s: float) -> None:
        """Note that the host did something, as waiting for a batch.

        Args:
            name: "wait", "compute", or what else has a row of its own.
            start_s: by the same clock.
            end_s: likewise.
        """
        self._host.setdefault(name, []).append((start_s, end_s))

    def watch(self, device: EmulatedDevice) -> None:
        """Note when an emulated device computes, until the context ends; it gets no slower."""
        self._device = device
        device.on_run = self._ran

    def look(self) -> None:
        """Look once; the thread does so by itself."""
        self._looks.append(self._look())

    def recorded(self) -> Timeline:
        """Give what was seen so far."""
        duration_s = (self._clock.now() if self._end_s is None else self._end_s) - self._start_s
        looks, missing = list(self._looks), {}
        columns = {
            "gpu_util": [look["busy_percent"] for look in looks[1:]],
            "gpu_memory_bytes": [look["used_bytes"] for look in looks[1:]],
            "cores": _pairwise(_busy_shares, looks),
            "read_bytes_per_s": _pairwise(_read_rate, looks),
        }
        columns["gpu_util"] = [None if x is None else x / 100 for x in columns["gpu_util"]]
        whys = (self._why_no_gpu, self._why_no_gpu, NO_CORES, NO_READS)
        for (name, values), why in zip(columns.items(), whys):
            if all(value is None for value in values):
                columns[name], missing[name] = None, why
        return Timeline(
            duration_s=duration_s,
            at_s=tuple(look["at_s"] - self._start_s for look in looks[1:]),
            **{name: values and tuple(values) for name, values in columns.items()},
            host={name: self._from_start(bands) for name, bands in self._host.items()},
            device=None if self._device is None else self._from_start(self._device_bands),
            device_label="" if self._device is None else self._device.label,
            missing=missing,
        )

    def _watch(self) -> None:
        rest_s = self._period_s
        while not self._stop.wait(rest_s):
            before_s = time.thread_time()  # waiting for a core costs the others nothing
            self.look()
            rest_s = max(self._period_s, RESTS * (time.thread_time() - before_s))

    def _look(self) -> dict[str, object]:
        fetched = tree_read_bytes()
        if fetched is not None:
            # What an ended worker fetched is nowhere until it is waited for, then its parent's.
            fetched = self._fetched_bytes = max(self._fetched_bytes, fetched)
        return {
            "cpu": _core_times(),
            "read_bytes": fetched,
            **self._ask_gpu(),
            "at_s": self._clock.now(),
        }

    def _ask_gpu(self) -> Reading:
        torch = sys.modules.get("torch")
        # Whoever trains on the CPU gets no CUDA context for being looked at.
        if self._read_gpu is None and torch is not None and torch.cuda.is_initialized():
            try:
                self._read_gpu = open_gpu()
            except Skip as reason:
                self._why_no_gpu = str(reason)
        nothing = {"busy_percent": None, "used_bytes": None}
        return nothing if self._read_gpu is None else self._read_gpu()

    def _ran(self, start_s: float, end_s: float) -> None:
        bands = self._device_bands
        if bands and start_s <= bands[-1][1]:  # right behind: one band, not thousands
            bands[-1] = (bands[-1][0], end_s)
        else:
            bands.append((start_s, end_s))

    def _from_start(self, bands: Sequence[Band]) -> tuple[Band, ...]:
        return tuple(
            (max(start_s - self._start_s, 0.0), end_s - self._start_s)
            for start_s, end_s in list(bands)
            if end_s > self._start_s
        )


def record_timeline(
    loader: Iterable,
    step: Callable[[object], object],
    *,
    device: EmulatedDevice | None = None,
    seconds: float = SECONDS,
    clock: Clock | None = None,
) -> Timeline:
    """Run a loop for some seconds, epoch after epoch, and record what everything did meanwhile.

    Args:
        loader: any iterable of batches; one that can be iterated over only once is used up.
        step: called with each; may train a model, which should be one to throw away.
        device: an emulated device that the step uses.
        seconds: begin no step after so many.
        clock: tells the time; the emulated device's.

    Returns:
        With the host's bands "wait" (for a batch, or for an epoch's start or end) and "compute"
        (the step's call).
    """
    clock = clock or SystemClock()
    now = clock.now
    with Recorder(clock) as timeline:
        if device is not None:
            timeline.watch(device)
        until_s, batches, is_new = now() + seconds, None, True
        while (asked_s := now()) < until_s:
            try:
                if is_new:
                    batches = iter(loader)
                batch = next(batches)
            except StopIteration:
                if is_new:  # an epoch of nothing: there will be no other
                    break
                is_new = True
                continue
            finally:
                arrived_s = now()
                timeline.mark("wait", asked_s, arrived_s)
            is_new = False
            step(batch)
            timeline.mark("compute", arrived_s, now())
        _finish(device)
    return timeline.recorded()


def _finish(device: EmulatedDevice | None) -> None:
    """Wait for what was queued: it belongs to what is recorded."""
    torch = sys.modules.get("torch")
    if device is not None:
        device.synchronize()
    elif torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _pairwise(
    of_two: Callable[[dict, dict], object | None], looks: Sequence[dict]
) -> list[object | None]:
    return [of_two(before, after) for before, after in itertools.pairwise(looks)]


def _core_times() -> list[tuple[float, float]] | None:
    """Give busy and total seconds of every core that this process may use."""
    import psutil

    try:
        times = psutil.cpu_times(percpu=True)
    except (OSError, RuntimeError):  # a sandbox without /proc/stat
        return None
    if hasattr(os, "sched_getaffinity"):
        mine = [core for core in sorted(os.sched_getaffinity(0)) if core < len(times)]
        times = [times[core] for core in mine]
    # A guest's time is in its user's already, and a core that waits for a disk is idle.
    totals = [
        sum(core) - getattr(core, "guest", 0) - getattr(core, "guest_nice", 0) for core in times
    ]
    idle = [core.idle + getattr(core, "iowait", 0) for core in times]
    return [(total - rest, total) for total, rest in zip(totals, idle)] or None


def _busy_shares(before: Mapping, after: Mapping) -> tuple[float, ...] | None:
    if before["cpu"] is None or after["cpu"] is None or len(before["cpu"]) != len(after["cpu"]):
        return None  # a core came or went
    spent = [(b1 - b0, t1 - t0) for (b0, t0), (b1, t1) in zip(before["cpu"], after["cpu"])]
    if not any(total_s > 0 for _, total_s in spent):
        return None  # a sandbox's counters may be there and never count
    return tuple(min(max(b / t, 0.0), 1.0) if t > 0 else 0.0 for b, t in spent)


def _read_rate(before: Mapping, after: Mapping) -> float | None:
    if before["read_bytes"] is None or after["read_bytes"] is None:
        return None
    seconds = after["at_s"] - before["at_s"]
    return (after["read_bytes"] - before["read_bytes"]) / seconds if seconds > 0 else None
