"""What `stages` puts around a person's data set and collate_fn, in a worker or in this process.

    Watched[key] ── seconds ──▶ Recorder ◀── seconds ── Collate(samples) ─▶ Made, not the batch

Every second batch is made under the tracer, the others are timed and nothing else.  Main trap:
what travels instead of the batch must cost next to nothing, so a worker packs the batch as it
would be sent, times that, and sends the packed bytes.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

from labkit.diagnosis.stage_tracer import Totals, Tracer, event_cost


class BatchTimes(NamedTuple):
    """What one batch took, alone in its worker and untouched by the tracer."""

    samples: int
    fetch_s: float
    """Reading, decoding, transforming all samples; wall."""
    fetch_cpu_s: float
    """Of all threads of the process."""
    fetch_thread_cpu_s: float
    """Of the loading thread alone; less than all: OpenCV or torch worked in more threads."""
    collate_s: float
    collate_cpu_s: float


class Made(NamedTuple):
    """What comes out of the wrapped collate_fn instead of a batch."""

    times: BatchTimes
    totals: Totals | None
    """Of a traced batch."""
    number: int
    """In its worker."""
    event_cost: tuple[float, float]
    parcel: bytes | None
    """The batch as workers send it."""
    pickled: tuple[float, float]
    """Wall and CPU seconds of packing the parcel."""
    ready_s: float
    """By a clock that all processes of this machine share."""
    trouble: str
    """Why there is no parcel where there should be one."""


class Recorder:
    """What the wrapped data set and collate_fn of one process share."""

    def __init__(self) -> None:
        self.sends = False
        self.batch: object = None
        """The last one, where it is not sent."""
        self.samples = 0
        """Of the batch in the making."""
        self._spent = 0.0, 0.0, 0.0
        self._number = 0
        self._tracer: Tracer | None = None
        self._cost = 0.0, 0.0

    def make(self, function: Callable, *args: object) -> object:
        """Make samples, and count the seconds; with the tracer in every second batch."""
        if self._tracer is None:  # only now: it belongs to the worker
            self._tracer, self._cost = Tracer(), event_cost()
        before = clocks()
        try:
            if self._number % 2:
                return function(*args)
            return self._tracer.call(function, *args)
        finally:
            self._spent = tuple(map(sum, zip(self._spent, since(before))))

    def finish(self, collate: Callable[[], object]) -> Made:
        """Join the samples made so far, and say what all of it took."""
        before = clocks()
        batch = collate()
        collate_s, collate_cpu_s, _ = since(before)
        times = BatchTimes(self.samples, *self._spent, collate_s, collate_cpu_s)
        traced = self._tracer is not None and not self._number % 2
        totals, number = self._tracer.take() if traced else None, self._number
        self._number, self.samples, self._spent = number + 1, 0, (0.0, 0.0, 0.0)
        parcel, pickled, trouble = None, (0.0, 0.0), ""
        if self.sends:
            parcel, pickled, trouble = _pack(batch)
        else:
            self.batch = batch
        return Made(
            times, totals, number, self._cost, parcel, pickled, time.perf_counter(), trouble
        )


def clocks() -> tuple[float, float, float]:
    """Read wall seconds, CPU seconds of the process, CPU seconds of this thread."""
    return time.perf_counter(), time.process_time(), time.thread_time()


def since(before: tuple[float, float, float]) -> tuple[float, float, float]:
    """Give what the clocks advanced."""
    return tuple(now - then for now, then in zip(clocks(), before))


class Watched:
    """A map-style data set whose samples are timed; all else is the data set's own."""

    def __init__(self, dataset: object, recorder: Recorder) -> None:
        self._dataset, self._recorder = dataset, recorder

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: object) -> object:
        self._recorder.samples += 1
        return self._recorder.make(operator.getitem, self._dataset, key)


class WatchedInBatches(Watched):
    """One that makes all samples of a batch in one call."""

    def __getitems__(self, keys: Sequence) -> object:
        self._recorder.samples += len(keys)
        # No function of ours between the tracer and the data set.
        return self._recorder.make(operator.methodcaller("__getitems__", keys), self._dataset)


class WatchedIterable(Watched):
    """One that can only be iterated over."""

    def __iter__(self) -> Iterator:
        iterator, end = iter(self._dataset), object()
        while (sample := self._recorder.make(next, iterator, end)) is not end:
            self._recorder.samples += 1
            yield sample


def watched(dataset: object, recorder: Recorder) -> Watched:
    """Wrap a data set of any of torch's three kinds."""
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset):
        return WatchedIterable(dataset, recorder)
    if getattr(dataset, "__getitems__", None):
        return WatchedInBatches(dataset, recorder)
    return Watched(dataset, recorder)


class Collate:
    """The person's collate_fn, timed; the timings are the batch."""

    def __init__(self, collate: Callable, recorder: Recorder) -> None:
        self._collate, self._recorder = collate, recorder

    def __call__(self, samples: object) -> Made:
        """Join samples; what it gives is not the batch."""
        return self._recorder.finish(lambda: self._collate(samples))


class ShowOwnDataset:
    """Lets `get_worker_info().dataset` be the person's, which their start-up may change."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset

    def __call__(self, worker_id: int) -> None:
        """Take our own wrapper out of what the worker knows of itself."""
        from torch.utils.data import get_worker_info

        object.__setattr__(get_worker_info(), "dataset", self._dataset)


def _pack(batch: object) -> tuple[bytes | None, tuple[float, float], str]:
    """Pickle a batch as a worker does; say what is wrong where that cannot be done."""
    before = clocks()
    try:
        parcel = bytes(ForkingPickler.dumps(batch))
    except Exception as error:  # DataLoader itself would wait for it forever
        return None, (0.0, 0.0), f"{type(error).__name__}: {error}"
    return parcel, since(before)[:2], ""
