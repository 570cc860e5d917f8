"""What making a batch takes, stage by stage: read, decode, each transform, collate; and sending it.

    one worker, alone ── samples of its stack ──▶ read, decode, each transform, collate
                      ── its batches, pickled ──▶ sending

The user's loader runs as a copy with one worker, so that the work is measured and not the
competition for cores; with num_workers=0 it runs in this process.  Time in which other programs had
the cores is subtracted; wall time without CPU time is then waiting: for a disk, a server, a sleep.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from multiprocessing.reduction import ForkingPickler
from operator import truediv
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.diagnosis import tracer
from labkit.diagnosis.facts import COLLATE, Stage, Stages
from labkit.diagnosis.loaders import copied, epochs, is_data_loader
from labkit.diagnosis.thresholds import MAIN_CAUSE_SHARE
from labkit.diagnosis.tracer import Totals, Tracer
from labkit.language import Name, Text
from labkit.machine import procfs

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def probe_stages(loader: Iterable, *, seconds: float) -> Stages:
    """Measure every stage of making and sending batches.

    Args:
        loader: a DataLoader, which is not changed; or any other iterable of batches, of which only
            this thread is seen.
        seconds: how long to measure; up to three times as long until there are two batches.

    Returns:
        What was measured, also where the data set raised or its worker died.
    """
    from torch.utils.data import DataLoader

    begin: Callable[[], Iterator]
    with ExitStack() as stack:
        if is_data_loader(loader):
            recorder = Recorder(loader.collate_fn, sends=loader.num_workers > 0)
            changes: dict[str, Any] = {
                "collate_fn": recorder,
                "num_workers": min(1, loader.num_workers),
            }
            twin = copied(loader, start=recorder.start, pin_memory=False, **changes)
            # Not iter(twin): a subclass may do with batches what cannot be done with `Made`.
            begin = partial(DataLoader.__iter__, stack.enter_context(twin))
        else:
            recorder = Recorder()
            begin = partial(_made_here, loader, recorder)
        stages = stages_of(*_take(begin, recorder, seconds))
    return replace(stages, sampler_s=_sampler_s(loader)) if is_data_loader(loader) else stages


def _sampler_s(loader: DataLoader) -> float:
    """Return the seconds in which a batch's samples are drawn."""
    keys = iter(loader._index_sampler)
    next(keys, None)  # draws an order for the whole epoch
    begun_s, drawn = time.perf_counter(), 0
    for _ in islice(keys, 100):  # batches
        drawn += 1
        if time.perf_counter() - begun_s > 0.3:
            break
    return (time.perf_counter() - begun_s) / max(drawn, 1)


def _take(
    begin: Callable[[], Iterator[Made]], recorder: Recorder, seconds: float
) -> tuple[list[Made], Exception | None]:
    """Return what came in time, and what ended it early.

    Args:
        begin: begins an epoch.
        recorder: records here, unless a worker sends the batches.
        seconds: as in `probe_stages`.
    """
    made, begun_s = [], time.perf_counter()
    try:
        if not recorder.sends:
            recorder.start()
        for one in epochs(begin):
            if one.parcel is not None:
                with suppress(OSError):  # its worker has died; the iterator is about to say so
                    ForkingPickler.loads(one.parcel)  # frees the batch's memory
            made.append(one._replace(parcel=None))
            # Two batches are needed.  400 determine every share well enough.
            limit_s = seconds if len(made) > 1 else 3 * seconds
            if time.perf_counter() - begun_s > limit_s or len(made) >= 400:
                break
    except Exception as error:
        return made, error
    finally:
        recorder.stop()
    return made, None


def _made_here(loader: Iterable, recorder: Recorder) -> Iterator[Made]:
    iterator, end = iter(loader), object()
    while (batch := _draw(iterator, end)) is not end:
        yield recorder.finish(batch)


def _draw(iterator: Iterator, end: object) -> object:
    return next(iterator, end)


# --- in the worker ----------------------------------------------------------------------------


class Made(NamedTuple):
    """What comes instead of a batch."""

    number: int
    """Number of the batch in its process."""
    totals: Totals
    at_s: float
    """When it was made, by `time.perf_counter`."""
    queued_s: float
    """Until then, this thread has waited for a core that others had."""
    parcel: bytes | None = None
    """The batch as workers send it, which costs less to send than the batch."""
    pickle_s: float = 0.0
    """CPU for packing the parcel."""
    fetched_bytes: int | None = None
    """That the process has read until then from disks and network file systems."""


class Recorder:
    """A collate_fn that returns what a batch took in place of the batch.

    Args:
        collate: the user's.
        sends: whether a worker makes the batches.
    """

    def __init__(self, collate: Callable | None = None, *, sends: bool = False) -> None:
        self.sends = sends
        self._collate, self._number = collate, 0
        self._tracer: Tracer | None = None

    def start(self, _: int = 0) -> None:
        """Begin to record in this process."""
        from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

        opened = (_IterableDatasetFetcher.fetch, _MapDatasetFetcher.fetch, _draw)
        roots: dict[Any, str | None] = dict.fromkeys(opened, tracer.OPEN)
        roots |= {Recorder.__call__: COLLATE, Recorder.finish: None}
        tracing = Tracer(roots)
        tracing.start()
        self._tracer = tracing

    def stop(self) -> None:
        """End recording, if it has begun in this process."""
        if self._tracer is not None:
            self._tracer.stop()

    def __call__(self, samples: object) -> Made:
        """Collate samples."""
        return self.finish(self._collate(samples))

    def finish(self, batch: object) -> Made:
        """Return what a batch took that was made just now."""
        _, queued_s = procfs.scheduled_s()
        fetched_bytes = procfs.counters("/proc/self/io").get("read_bytes")
        totals, at_s = self._tracer.take(), time.perf_counter()
        made = Made(self._number, totals, at_s, queued_s, fetched_bytes=fetched_bytes)
        self._number += 1
        if not self.sends:
            return made
        begun_s = time.thread_time()
        parcel = bytes(ForkingPickler.dumps(batch))
        return made._replace(parcel=parcel, pickle_s=time.thread_time() - begun_s)


# --- from batches to stages -------------------------------------------------------------------


def stages_of(taken: Sequence[Made], error: Exception | None) -> Stages:
    """Return the mean of batches, stage by stage.

    Args:
        taken: in the order in which they were made.
        error: what ended the probe early.
    """
    if not taken:
        return Stages(error=error)
    # The first batch of a worker opens files and imports modules; it counts only if it is alone.
    made = [one for one in taken if one.number] or taken
    pairs = [(a, b) for a, b in pairwise(taken) if b.number]
    counted = [seconds for one in made for seconds in one.totals.values()]
    _, thread_s, process_s = map(sum, zip(*counted)) if counted else (0.0, 0.0, 0.0)
    queued_s = sum(b.queued_s - a.queued_s for a, b in pairs)
    usual = sys.modules["cv2"].getNumThreads() if "cv2" in sys.modules else 1
    fetches = [
        (b.fetched_bytes - a.fetched_bytes, b.at_s - a.at_s)
        for a, b in pairs
        if a.fetched_bytes is not None and b.fetched_bytes is not None
    ]
    took_s = [b.at_s - a.at_s - a.pickle_s for a, b in pairs] or [1.0]
    return Stages(
        stages=_stages(made, queued_s / (thread_s or 1.0)),
        slowest=max(took_s) / fmean(took_s),
        fastest=min(took_s) / fmean(took_s),
        threads=max(usual, process_s / (thread_s or 1.0)),
        pickle_s=median(
            one.pickle_s for one in taken
        ),  # one that was scheduled late does not count
        fetched_per_s=truediv(*map(sum, zip(*fetches))) if fetches else None,
        error=error,
    )


def _stages(made: Sequence[Made], queued: float) -> tuple[Stage, ...]:
    """Return the stages, most time first.

    Args:
        made: what batches took.
        queued: seconds that a thread waits for a core ÷ those that it computes.
    """
    # Every transform is a stage of its own, and what it reads another; decoding is one.
    spent: dict[tuple[str, ...], Totals] = {}
    for one in made:
        for part, seconds in one.totals.items():
            kind, function, caller, _ = part
            apart = {tracer.TRANSFORM: (function, caller), tracer.READ: (caller,)}.get(kind, ())
            stage = spent.setdefault((kind, *apart), {})
            sums_s = stage.get(part, (0.0, 0.0, 0.0))
            stage[part] = [a + b / len(made) for a, b in zip(sums_s, seconds)]
    names = {key: _name_of(parts) for key, parts in spent.items()}
    transforms = {key[1]: name for key, name in names.items() if key[0] == tracer.TRANSFORM}
    stages = []
    for key, parts in spent.items():
        wall_s, thread_s, cpu_s = map(sum, zip(*parts.values()))
        stages.append(
            Stage(
                name=names[key],
                kind=key[0],
                wall_s=max(wall_s - queued * thread_s, thread_s),
                cpu_s=cpu_s,
                reader=transforms.get(key[1], key[1]) if key[0] == tracer.READ else "",
            )
        )
    return tuple(sorted(stages, key=lambda stage: -stage.wall_s))


def _name_of(parts: Totals) -> str:
    """Return the function that takes most of a stage, and where it is called."""
    spent_s: dict[tuple[str, str], float] = defaultdict(float)
    for (_, function, caller, _), (wall_s, *_) in parts.items():
        spent_s[function, caller] += wall_s
    most = function, caller = max(spent_s, key=spent_s.__getitem__)
    enough_s = MAIN_CAUSE_SHARE * spent_s[most]
    calls = {part[3]: wall_s for part, (wall_s, *_) in parts.items() if part[1:3] == most}
    call = next((call for call, wall_s in calls.items() if call and wall_s > enough_s), "")
    if call:  # the user's own function does hardly anything else
        function, caller = call, function
    if not caller:
        return Name(function)
    return Text("{function} in {caller}").format(function=Name(function), caller=Name(caller))
