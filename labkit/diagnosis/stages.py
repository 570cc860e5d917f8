"""What making a batch takes, stage by stage: read, decode, each transform, collate; and sending it.

    one worker, alone     batch 0   batch 1   batch 2 …     every second one under the tracer,
                          traced    timed     traced        the others only timed
    traced batches  ─▶ shares of read, decode, each transform ┐
    timed batches   ─▶ seconds of fetching and collating      ┴─▶ Stage, Stage, …
    all batches     ─▶ seconds of pickling and unpickling

The user's loader runs as a copy with one worker, so that the work is measured and not the
competition for cores; with num_workers=0 it runs in this process.  Time in which other programs had
the cores is subtracted; wall time without CPU time is then waiting: for a disk, a server, a sleep.
The tracer slows code with many small calls up to tenfold, so its seconds are used as shares only.
"""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, NamedTuple

from labkit.diagnosis import tracer
from labkit.diagnosis.loaders import copied, epochs, is_data_loader
from labkit.diagnosis.profile import NO_DATALOADER
from labkit.diagnosis.tracer import Counted, Totals, Tracer, clocks, event_cost
from labkit.machine import procfs

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

COLLATE, SERIALIZATION, SAMPLER = "collate", "serialization", "sampler"
MOST_BATCHES = 400  # enough for any share
PATIENCE = 3  # times the seconds that were asked for, to get at least two batches
DRAWN, DRAWING_S = 100, 0.3  # batches, of which the sampler is timed
MOST_OF_PYTHON = 0.4  # of loops' seconds under a hook; Python 3.11 makes them 1.6 times as long


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of making and sending a batch, in seconds per batch in one worker."""

    name: str
    """The function that took most of its time; "collate" has none."""
    kind: str
    """read, decode, transform or collate."""
    wall_s: float
    cpu_s: float
    """Of all threads of the process."""

    @property
    def wait_s(self) -> float:
        """Wall seconds in which no thread of the process computed."""
        return max(0.0, self.wall_s - self.cpu_s)


@dataclass(frozen=True, kw_only=True)
class Stages:
    """What `probe_stages` measured."""

    stages: tuple[Stage, ...]
    """Most time first; empty where no batch came."""
    batches: tuple[Made, ...]
    """Those that were timed, in the order of the epoch."""
    pickle_s: float
    """CPU of the worker to send a batch, with the copy to shared memory; 0 without workers."""
    send_s: float
    """The same, and CPU of the process that receives it."""
    notes: tuple[str, ...]
    error: Exception | None
    """What ended the probe early; what was measured until then is kept."""
    sampler_s: float = 0.0
    """Of the main process, to draw the samples of a batch."""


def probe_stages(loader: Iterable, *, seconds: float = 8.0) -> Stages:
    """Measure every stage of making and sending batches.

    Args:
        loader: a DataLoader, which is not changed; or any other iterable of batches, of which only
            this thread is seen.
        seconds: how long to measure; up to three times as long until there are two batches.

    Returns:
        What was measured, also where the data set raised or its worker died.
    """
    from torch.utils.data import DataLoader

    recorder = Recorder()
    if not is_data_loader(loader):
        made, error = _take(lambda: _timed_batches(loader, recorder), seconds)
        return _summarize(made, error, (NO_DATALOADER,))
    recorder.sends = loader.num_workers > 0
    changes = {
        "dataset": _watched(loader.dataset, recorder),
        "collate_fn": _Collate(loader.collate_fn, recorder),
        "num_workers": min(1, loader.num_workers),
        "pin_memory": False,
    }
    with copied(loader, start=partial(_show_own, loader.dataset), **changes) as twin:
        # Not iter(twin): a subclass may do with batches what cannot be done with `Made`.
        made, error = _take(lambda: DataLoader.__iter__(twin), seconds)
    return replace(_summarize(made, error, ()), sampler_s=_sampler_s(loader))


def _sampler_s(loader: DataLoader) -> float:
    """Return the seconds in which a batch's samples are drawn."""
    keys = iter(loader._index_sampler)
    next(keys, None)  # draws an order for the whole epoch
    begun_s, drawn = time.perf_counter(), 0
    for _ in islice(keys, DRAWN):
        drawn += 1
        if time.perf_counter() - begun_s > DRAWING_S:
            break
    return (time.perf_counter() - begun_s) / max(drawn, 1)


def _take(
    begin: Callable[[], Iterator[Made]], seconds: float
) -> tuple[list[Made], Exception | None]:
    """Return what came in time, and what ended it early."""
    made = []
    begun_s = time.perf_counter()
    try:
        for one in epochs(begin):
            made.append(_received(one))  # at once: its memory is held until then
            limit_s = seconds if len(made) > 1 else PATIENCE * seconds
            if time.perf_counter() - begun_s > limit_s or len(made) >= MOST_BATCHES:
                break
    except Exception as error:
        return made, error
    return made, None


def _timed_batches(loader: Iterable, recorder: Recorder) -> Iterator[Made]:
    iterator, end = iter(loader), object()
    while (batch := recorder.make(next, iterator, end)) is not end:
        yield recorder.finish(lambda batch=batch: batch)


def _received(made: Made) -> Made:
    if made.parcel is None:
        return made
    with suppress(OSError):  # its worker has died meanwhile; the iterator is about to say so
        _, spent = _timed(ForkingPickler.loads, made.parcel)
        made = made._replace(unpickle_s=spent.cpu_s)
    return made._replace(parcel=None)


# --- in the worker ----------------------------------------------------------------------------


class Spent(NamedTuple):
    """Seconds that a call took."""

    alone_s: float = 0.0
    """Wall, without `queued_s`: what it takes on a core without competition."""
    cpu_s: float = 0.0
    """Of all threads of the process."""
    thread_cpu_s: float = 0.0
    queued_s: float = 0.0
    """Waited for a core that others had; 0 where the platform does not tell."""


def _timed(function: Callable, *args: object) -> tuple[object, Spent]:
    queued_s, before = procfs.queued_s(), clocks()
    result = function(*args)
    wall_s, cpu_s, thread_cpu_s = (now - then for now, then in zip(clocks(), before))
    queued_s = procfs.queued_s() - queued_s
    return result, Spent(max(wall_s - queued_s, thread_cpu_s), cpu_s, thread_cpu_s, queued_s)


class Made(NamedTuple):
    """What the wrapped collate_fn returns instead of a batch."""

    fetch: Spent
    """On the samples, without collate."""
    collate: Spent
    totals: Totals | None
    """Of a traced batch."""
    number: int
    """In its worker."""
    event_cost: float
    parcel: bytes | None = None
    """The batch as workers send it, which costs less to send than the batch."""
    pickle_s: float = 0.0
    """CPU for packing the parcel."""
    unpickle_s: float = 0.0
    """CPU of the main process for opening it."""


class Recorder:
    """What the wrapped data set and collate_fn of one process share."""

    def __init__(self) -> None:
        self.sends = False
        self._spent = Spent()
        self._number = 0
        self._tracer: Tracer | None = None
        self._cost = 0.0

    def make(self, function: Callable, *args: object) -> object:
        """Make samples and count the seconds; every second batch under the tracer."""
        if self._tracer is None:  # only now: it belongs to the worker
            self._tracer, self._cost = Tracer(), event_cost()
        traced = () if self._number % 2 else (self._tracer.call,)
        made, spent = _timed(*traced, function, *args)
        self._spent = Spent(*map(sum, zip(self._spent, spent)))
        return made

    def finish(self, collate: Callable[[], object]) -> Made:
        """Collate the samples made so far, and return what all of it took."""
        batch, joining = _timed(collate)
        traced = self._tracer is not None and not self._number % 2
        totals = self._tracer.take() if traced else None
        made = Made(self._spent, joining, totals, self._number, self._cost)
        self._number, self._spent = self._number + 1, Spent()
        if self.sends:
            parcel, spent = _timed(ForkingPickler.dumps, batch)
            made = made._replace(parcel=bytes(parcel), pickle_s=spent.cpu_s)
        return made


class _Watched:
    """A map-style data set whose samples are timed."""

    def __init__(self, dataset: object, recorder: Recorder) -> None:
        self._dataset, self._recorder = dataset, recorder

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: object) -> object:
        return self._recorder.make(operator.getitem, self._dataset, key)


class _WatchedInBatches(_Watched):
    """A data set that makes all samples of a batch in one call."""

    def __getitems__(self, keys: Sequence) -> object:
        # No function of ours between the tracer and the data set.
        return self._recorder.make(operator.methodcaller("__getitems__", keys), self._dataset)


class _WatchedIterable(_Watched):
    """A data set that can only be iterated over."""

    def __iter__(self) -> Iterator:
        iterator, end = iter(self._dataset), object()
        while (sample := self._recorder.make(next, iterator, end)) is not end:
            yield sample


def _watched(dataset: object, recorder: Recorder) -> _Watched:
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset):
        return _WatchedIterable(dataset, recorder)
    if getattr(dataset, "__getitems__", None):
        return _WatchedInBatches(dataset, recorder)
    return _Watched(dataset, recorder)


class _Collate:
    """The user's collate_fn, timed; it returns the timings in place of the batch."""

    def __init__(self, collate: Callable, recorder: Recorder) -> None:
        self._collate, self._recorder = collate, recorder

    def __call__(self, samples: object) -> Made:
        return self._recorder.finish(lambda: self._collate(samples))


def _show_own(dataset: object, _: int) -> None:
    """Let `get_worker_info().dataset` be the user's, which their worker_init_fn may change."""
    from torch.utils.data import get_worker_info

    object.__setattr__(get_worker_info(), "dataset", dataset)


# --- from what was timed and traced to stages --------------------------------------------------


def _summarize(taken: list[Made], error: Exception | None, notes: tuple[str, ...]) -> Stages:
    # The first batch of a worker opens files and imports modules; it counts only if it is alone.
    made = [one for one in taken if one.number] or taken
    batches = [one for one in made if one.totals is None] or made
    traced = [one for one in made if one.totals] or [one for one in taken if one.totals]
    # Medians, as one process that was scheduled late does not count.
    sent = [one for one in taken if one.unpickle_s]
    return Stages(
        stages=summarize_stages(batches, traced) if batches else (),
        batches=tuple(batches),
        pickle_s=statistics.median(one.pickle_s for one in sent) if sent else 0.0,
        send_s=statistics.median(one.pickle_s + one.unpickle_s for one in sent) if sent else 0.0,
        notes=notes,
        error=error,
    )


def summarize_stages(batches: Sequence[Made], traced: Sequence[Made]) -> tuple[Stage, ...]:
    """Return the stages of timed and traced batches, most wall time first.

    Args:
        batches: timed; at least one.
        traced: others of the same worker, made under the tracer.
    """
    rows = _fetching(batches, traced)
    collate = _mean_of(one.collate for one in batches)
    rows.append((collate.alone_s, collate.cpu_s, COLLATE, COLLATE))
    return tuple(
        Stage(name=name, kind=kind, wall_s=wall_s, cpu_s=cpu_s)
        for wall_s, cpu_s, kind, name in sorted(rows, key=lambda row: -row[0])
    )


def _mean_of(spent: Iterable[Spent]) -> Spent:
    return Spent(*map(statistics.fmean, zip(*spent)))


class _Slowdown(NamedTuple):
    """How much longer the tracer makes computing."""

    event_s: float
    """For each call and return."""
    python: float
    """Share of the seconds in Python itself that are only there because of the hook."""

    def corrected_s(self, counted: Counted, cpu_s: float) -> float:
        """Subtract from a stage's CPU seconds what the tracer added."""
        slowed_s = self.python * self.python_s(counted)
        return max(0.0, cpu_s - counted.events * self.event_s - slowed_s)

    def python_s(self, counted: Counted) -> float:
        """Return a stage's traced seconds that are neither in C nor the hook's."""
        return max(0.0, counted.thread_cpu_s - counted.c_s - counted.events * self.event_s)


def _slowdown(batches: Sequence[Made], traced: Sequence[Made]) -> _Slowdown:
    """Return what makes traced batches take longer than the others.

    Each call first costs what `event_cost` measured, and loops take the rest; what is more than
    loops can be slowed, or negative, is the calls' again.  Bounded, as the difference has the noise
    of both.
    """
    stages = [counted for one in traced for counted in one.totals.values()]
    events = sum(counted.events for counted in stages)
    if not events:
        return _Slowdown(0.0, 0.0)
    apart = _Slowdown(traced[0].event_cost, 0.0)
    plain_s = statistics.fmean(one.fetch.thread_cpu_s for one in batches)
    more_s = sum(one.fetch.thread_cpu_s - plain_s for one in traced)
    rest_s = more_s - events * apart.event_s
    python_s = sum(map(apart.python_s, stages))
    python = min(max(rest_s / python_s, 0.0), MOST_OF_PYTHON) if python_s else 0.0
    event_s = (more_s - python * python_s) / events
    return _Slowdown(min(max(event_s, apart.event_s / 2), 2 * apart.event_s), python)


def _fetching(batches: Sequence[Made], traced: Sequence[Made]) -> list[tuple]:
    """Return wall seconds, CPU seconds, kind and name of every stage of fetching.

    Computing and waiting are divided separately: their shares are those of the traced batches and
    their sums those of the timed ones, as the tracer makes only computing longer.
    """
    slowdown = _slowdown(batches, traced)
    spent: dict[tuple[str, str], list[float]] = {}  # computed by the thread, waited, all computed
    wall_s: dict[tuple[str, str], float] = {}
    for one in traced:
        # A thread that computes is also queued for a core; that is not waiting.
        thread_cpu_s = sum(counted.thread_cpu_s for counted in one.totals.values())
        queued = (one.fetch.queued_s + one.collate.queued_s) / (thread_cpu_s or 1.0)
        for (kind, function), counted in one.totals.items():
            wall_s[kind, function] = wall_s.get((kind, function), 0.0) + counted.wall_s
            stage = spent.setdefault(_stage_of(kind, function), [0.0, 0.0, 0.0])
            stage[0] += slowdown.corrected_s(counted, counted.thread_cpu_s)
            stage[1] += max(0.0, counted.wall_s - counted.thread_cpu_s * (1 + queued))
            stage[2] += slowdown.corrected_s(counted, counted.cpu_s)
    fetch = _mean_of(one.fetch for one in batches)
    wholes_s = (fetch.thread_cpu_s, fetch.alone_s - fetch.thread_cpu_s, fetch.cpu_s)
    # From seconds of all traced batches to those of a timed one.
    scales = [
        whole_s / traced_s if traced_s else 0.0
        for whole_s, traced_s in zip(wholes_s, map(sum, zip(*spent.values())))
    ]
    rows = []
    for stage, sums_s in spent.items():
        computed_s, waited_s, cpu_s = (s * scale for s, scale in zip(sums_s, scales))
        functions = [key for key in wall_s if _stage_of(*key) == stage]
        rows.append((computed_s + waited_s, cpu_s, stage[0], max(functions, key=wall_s.get)[1]))
    return rows


def _stage_of(kind: str, function: str) -> tuple[str, str]:
    """Return what stage a function belongs to: every transform is a stage of its own."""
    return kind, function if kind == tracer.TRANSFORM else kind
