"""What making a batch takes, stage by stage: read, decode, each transform, collate, serialization.

    one worker, alone     batch 0   batch 1   batch 2 …      every second one under the tracer
                          traced    timed     traced         (stage_tracer), the others untouched
    each with its batch ─▶ seconds of fetching and collating, wall and CPU
    this process        ─▶ seconds of sending: pickling, handing over, unpickling

The person's loader in a copy with one worker that nobody competes with, so that what is measured
is the work and not the crowd; with num_workers=0 in this process.  Wall without CPU time is
waiting: for a disk, a server, a sleep.  Main trap: what is random in an epoch stays random, and
random numbers are drawn as by an epoch; files that are read are in the page cache afterwards.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

from labkit.diagnosis.stage_summary import Sent, Stage, summarize_stages
from labkit.diagnosis.stage_worker import (
    BatchTimes,
    Collate,
    Made,
    Recorder,
    ShowOwnDataset,
    clocks,
    since,
    watched,
)
from labkit.diagnosis.taps import STALL_S, tapped

MOST_BATCHES = 400  # are enough for any share
PATIENCE = 3  # times the seconds that were asked for, to get at least two batches
SENT_AGAIN = 5  # times that a batch is sent to learn what sending costs a loader without workers
NO_DATALOADER = (
    "not a torch DataLoader: only what it does in the thread that asks for batches was seen"
)


@dataclass(frozen=True, kw_only=True)
class Stages:
    """What `probe_stages` found."""

    stages: tuple[Stage, ...]
    """Most time first; their shares add up to 1.  Empty where no batch came."""
    batches: tuple[BatchTimes, ...]
    """In the order of the epoch."""
    sent: tuple[Sent, ...]
    """Empty where a batch cannot be sent, or is not: see `notes`."""
    first_s: float | None
    """From asking for an epoch to its first batch: the start of one worker included."""
    in_worker: bool
    """Measured in a worker; else in this process."""
    notes: tuple[str, ...]
    error: Exception | None
    """What ended the probe early; what was measured until then is kept."""


def probe_stages(loader: Iterable, *, seconds: float = 8.0) -> Stages:
    """Measure every stage of making and sending batches.

    Args:
        loader: a DataLoader of any kind, which is not changed; or any other iterable of batches,
            of which only what happens in this thread is seen, and which is used up if it can be
            iterated over only once.
        seconds: how long to measure; longer, up to three times, if no two batches come.

    Returns:
        What was measured, also when the data set raised, or its worker died.
    """
    from torch.utils.data import DataLoader

    recorder = Recorder()
    if not isinstance(loader, DataLoader):
        taken = _take(lambda: _timed_batches(loader, recorder), seconds)
        return _summarize(taken, (), (NO_DATALOADER,), in_worker=False)
    recorder.sends = loader.num_workers > 0
    changes = {
        "dataset": watched(loader.dataset, recorder),
        "collate_fn": Collate(loader.collate_fn, recorder),
        "num_workers": min(1, loader.num_workers),
        "pin_memory": False,
    }
    with tapped(loader, start=ShowOwnDataset(loader.dataset), **changes) as twin:
        # Not iter(twin): a subclass may do with batches what cannot be done with `Made`.
        taken = _take(lambda: DataLoader.__iter__(twin), seconds)
    sending = taken if recorder.sends or not taken.made else _send_again(recorder.batch)
    trouble = [one.trouble for one in sending.made if one.trouble]
    trouble += [str(sending.error)] if sending is not taken and sending.error else []
    notes = tuple(f"a batch cannot be sent from a worker: {why}" for why in trouble[:1])
    return _summarize(taken, sending.sent, notes, in_worker=recorder.sends)


class _Taken(NamedTuple):
    """What came in time, and what ended it early."""

    made: list[Made]
    sent: list[Sent]
    first_s: float | None
    error: Exception | None


def _take(begin: Callable[[], Iterator[Made]], seconds: float) -> _Taken:
    made, sent, first_s = [], [], None
    begun_s = time.perf_counter()
    try:
        while True:  # epochs
            epoch_s, batches_before = time.perf_counter(), len(made)
            iterator = begin()
            while True:
                asked_s = time.perf_counter()
                one = next(iterator, None)
                now_s = time.perf_counter()
                if one is None:
                    break
                first_s = now_s - epoch_s if first_s is None else first_s
                if one.parcel is not None:  # at once: its memory is held until then
                    sent += _unpack(one, asked_s, now_s)
                made.append(one._replace(parcel=None))
                limit_s = seconds if len(made) > 1 else PATIENCE * seconds
                if now_s - begun_s > limit_s or len(made) >= MOST_BATCHES:
                    return _Taken(made, sent, first_s, None)
            if len(made) == batches_before:  # an empty epoch
                return _Taken(made, sent, first_s, None)
    except Exception as error:
        return _Taken(made, sent, first_s, error)


def _timed_batches(loader: Iterable, recorder: Recorder) -> Iterator[Made]:
    iterator, end = iter(loader), object()
    while (batch := recorder.make(next, iterator, end)) is not end:
        recorder.samples = _count_samples(batch)
        yield recorder.finish(lambda batch=batch: batch)


def _count_samples(batch: object) -> int:
    from torch.utils._pytree import tree_leaves

    shapes = (getattr(leaf, "shape", ()) for leaf in tree_leaves(batch))
    return next((shape[0] for shape in shapes if len(shape)), 1)


def _unpack(made: Made, asked_s: float, received_s: float) -> list[Sent]:
    before = clocks()
    try:
        ForkingPickler.loads(made.parcel)
    except OSError:  # its worker has died meanwhile; the iterator is about to say so
        return []
    unpickled = since(before)[:2]
    hand_over_s = received_s - made.ready_s if asked_s < made.ready_s else None
    return [Sent(*made.pickled, hand_over_s, *unpickled, len(made.parcel))]


class _Again:
    """A data set of one batch, several times, each time in memory of its own."""

    def __init__(self, batch: object) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return SENT_AGAIN

    def __getitem__(self, _: int) -> object:
        return copy.deepcopy(self._batch)


def _as_it_is(batch: object) -> object:
    return batch


def _send_again(batch: object) -> _Taken:
    """Send a batch from a worker to learn what that would cost a loader that has none."""
    from torch.utils.data import DataLoader

    recorder = Recorder()
    recorder.sends = True
    collate = Collate(_as_it_is, recorder)
    once = DataLoader(_Again(batch), batch_size=None, num_workers=1, collate_fn=collate)
    with tapped(once) as twin:
        epochs = iter((twin, ()))
        return _take(lambda: iter(next(epochs)), STALL_S)


def _summarize(
    taken: _Taken, sent: Sequence[Sent], notes: tuple[str, ...], *, in_worker: bool
) -> Stages:
    """Turn what came into stages; pure."""
    # The first batch of a worker opens files and imports modules; it counts only if it is alone.
    made = [one for one in taken.made if one.number] or taken.made
    batches = [one.times for one in made if one.totals is None] or [one.times for one in made]
    traced = [one for one in made if one.totals] or [one for one in taken.made if one.totals]
    stages = summarize_stages(batches, traced, sent) if batches else ()
    return Stages(
        stages=stages,
        batches=tuple(batches),
        sent=tuple(sent),
        first_s=taken.first_s,
        in_worker=in_worker,
        notes=notes,
        error=taken.error,
    )
