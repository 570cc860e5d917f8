"""What `stages` puts around a person's data set and collate_fn, in a worker or in this process.

    Watched[key] ── seconds ──▶ Recorder ◀── seconds ── Collate(samples) ─▶ Made, not the batch

Every second batch is made under the tracer, the others are timed and nothing else.  Main trap:
what travels instead of the batch must cost next to nothing, so a worker packs the batch as it
would be sent, times that, and sends the packed bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

from labkit.diagnosis.stage_tracer import Totals, Tracer, clocks, event_cost
from labkit.machine import procfs


class BatchTimes(NamedTuple):
    """What one batch took in its worker; seconds as of a core that nobody else wants."""

    samples: int
    fetch_s: float
    """Reading, decoding, transforming all samples; wall."""
    fetch_cpu_s: float
    """Of all threads of the process."""
    fetch_thread_cpu_s: float
    """Of the loading thread; less than all: OpenCV or torch worked in more threads."""
    collate_s: float
    collate_cpu_s: float
    queued_s: float
    """Beside all of these: others had the cores; 0 where the platform does not tell."""


class Spent(NamedTuple):
    """Seconds that a call took."""

    alone_s: float = 0.0
    """Wall, without `queued_s`: what it takes on a core that nobody else wants."""
    cpu_s: float = 0.0
    """Of all threads of the process."""
    thread_cpu_s: float = 0.0
    queued_s: float = 0.0
    """The thread had no core, as others had them all; 0 where the platform does not tell."""


def timed(function: Callable, *args: object) -> tuple[object, Spent]:
    """Call a function, and say what that took."""
    queued_s, before = procfs.queued_s(), clocks()
    result = function(*args)
    wall_s, cpu_s, thread_cpu_s = (now - then for now, then in zip(clocks(), before))
    queued_s = procfs.queued_s() - queued_s
    return result, Spent(max(wall_s - queued_s, thread_cpu_s), cpu_s, thread_cpu_s, queued_s)


class Made(NamedTuple):
    """What comes out of the wrapped collate_fn instead of a batch."""

    times: BatchTimes
    totals: Totals | None
    """Of a traced batch."""
    number: int
    """In its worker."""
    event_cost: float
    """See `stage_tracer.event_cost`."""
    parcel: bytes | None
    """The batch as workers send it."""
    pickled: Spent
    """For packing the parcel."""
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
        self._spent = Spent()
        self._number = 0
        self._tracer: Tracer | None = None
        self._cost = 0.0

    def make(self, function: Callable, *args: object) -> object:
        """Make samples, and count the seconds; with the tracer in every second batch."""
        if self._tracer is None:  # only now: it belongs to the worker
            self._tracer, self._cost = Tracer(), event_cost()
        if self._number % 2:
            made, spent = timed(function, *args)
        else:
            made, spent = timed(self._tracer.call, function, *args)
        self._spent = Spent(*map(sum, zip(self._spent, spent)))
        return made

    def finish(self, collate: Callable[[], object]) -> Made:
        """Join the samples made so far, and say what all of it took."""
        batch, joining = timed(collate)
        times = BatchTimes(
            self.samples, self._spent.alone_s, self._spent.cpu_s, self._spent.thread_cpu_s,
            joining.alone_s, joining.cpu_s, self._spent.queued_s + joining.queued_s,
        )  # fmt: skip
        traced = self._tracer is not None and not self._number % 2
        totals, number = self._tracer.take() if traced else None, self._number
        self._number, self.samples, self._spent = number + 1, 0, Spent()
        parcel, pickled, trouble = None, Spent(), ""
        if self.sends:
            parcel, pickled, trouble = _pack(batch)
        else:
            self.batch = batch
        return Made(times, totals, number, self._cost, parcel, pickled, clocks()[0], trouble)


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


def _pack(batch: object) -> tuple[bytes | None, Spent, str]:
    """Pickle a batch as a worker does; say what is wrong where that cannot be done."""
    try:
        parcel, spent = timed(ForkingPickler.dumps, batch)
    except Exception as error:  # DataLoader itself would wait for it forever
        return None, Spent(), f"{type(error).__name__}: {error}"
    return bytes(parcel), spent, ""
