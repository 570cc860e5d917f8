"""From what a training did to its phases: training, validation, and time outside loops.

    events of all threads ─▶ the thread that trains ─▶ its loops ─▶ Phases
       open, draw, end           train, backward        roles

A loop is the iteration over one loader.  It is part of the training where an optimizer step follows
its batches; every other loop of that thread is validation.  Events come from `hook`; all times are
seconds of one clock.  What happened before the steady state is not counted: the first step, in
which libraries compile, and the batches that were loaded meanwhile.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from labkit.diagnosis.stretches import Stretches
from labkit.diagnosis.thresholds import (
    FEWEST_CYCLES,
    FEWEST_LOOKS,
    FEWEST_UPDATES_SHARE,
    SLOW_STEP_WAIT_SHARE,
)  # fmt: skip

Kind = Literal["open", "draw", "end", "leave", "train", "backward", "preparing", "computing"]
Unseen = Literal["", "nothing", "short", "loader", "thread"]

LOOKED_BACK = 512  # steps whose waits and lengths are kept one by one
BIN = 1.05  # quotient of two neighbouring bins of waits: percentiles are exact to 5 %


class Event(NamedTuple):
    """Something that a thread did."""

    kind: Kind
    """open: iter(loader); draw: `next` brought a batch; end: it brought none; leave: it raised an
    error, or the iterator is gone; train, backward: an optimizer step or a backward pass
    ended; preparing, computing: where the stack of the thread was seen, in code that makes batches
    or elsewhere."""
    thread: int
    began_s: float
    ended_s: float
    loader: int = 0
    """Number in the list of loaders."""
    samples: int = 0
    """Samples of the batch; 0 if unknown."""


@dataclass(frozen=True, kw_only=True)
class Loader:
    """What is known of a loader that is iterated over."""

    name: str
    workers: int | None = None
    """None for a loader that is no DataLoader."""
    batch_size: int | None = None
    ahead: int = 0
    """Batches that its workers load ahead."""
    epoch_batches: int | None = None
    """None where its length is unknown."""
    is_training: bool = False
    """Whether the user marked the loop by `lab.watch`."""
    dataset: str = ""
    """Class of its data set; "" for a loader that is no DataLoader."""
    samples: int | None = None
    """Of its data set; None where its length is unknown."""
    arguments: dict[str, bool | float | str | None] = field(default_factory=dict)
    """Those of a DataLoader that change its speed alone, as `loader_arguments` lists them."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The steps of the training or of the validation."""

    loaders: tuple[Loader, ...] = ()
    steps: int = 0
    """Batches whose step ended."""
    images: int = 0
    wait_s: float = 0.0
    """In `next`, or in getting the batch from a thread that calls it."""
    starts_s: float = 0.0
    """The part of `wait_s` before the first batch of an epoch."""
    prepare_s: float = 0.0
    """In the code between the loader and the loop, such as a generator that batches anew; from
    samples of the stack."""
    step_s: float = 0.0
    """All other time from one `next` to the following one."""
    median_wait_s: float | None = None
    p99_wait_s: float | None = None
    cycle: int | None = None
    """Most of the waiting comes every so many steps; None where it does not."""

    @property
    def s(self) -> float:
        """Seconds."""
        return self.wait_s + self.prepare_s + self.step_s

    @property
    def loading_share(self) -> float:
        """Waiting for batches and preparing them, as a share of the time."""
        return (self.wait_s + self.prepare_s) / self.s if self.s else 0.0

    @property
    def images_per_s(self) -> float | None:
        """None where batches do not tell how many images they have."""
        return self.images / self.s if self.images and self.s else None


@dataclass(frozen=True, kw_only=True)
class Phases:
    """A run from its steady state on."""

    training: Phase
    validation: Phase
    outside_s: float
    """Outside of loops: between epochs, before and after them."""
    batches_per_update: float | None
    """None where no optimizer step was seen."""
    unseen: Unseen
    """Why there is no training phase: no loader was iterated over; no step in the steady state;
    optimizer steps, but no batch before them; the same, and another thread took batches."""
    trains: bool
    """Return whether an optimizer step or a backward pass was observed."""
    stretches: tuple[tuple[int, float], ...] = ()
    """Steps and seconds of successive stretches of the training, waiting included."""

    @property
    def run_s(self) -> float:
        """Seconds of the whole run, without what was before the steady state."""
        return self.training.s + self.validation.s + self.outside_s


class _Loop:
    """What one thread did with the batches of one loader."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        # How many of the windows between two optimizer steps had batches of it, and in how many
        # they were the last ones; also those before the steady state.
        self.windows = self.last_windows = self.first_window = 0
        self.drawn = 0  # batches of the epoch
        self.drawn_since_trained = 0  # batches since the thread's first training step
        self.reset()

    def reset(self) -> None:
        self.steps = self.images = 0
        self.looks: Counter[Kind] = Counter()  # at the stack in steps
        self.wait_s = self.starts_s = self.step_s = 0.0
        self.pending_s = 0.0  # of the step that goes on
        self.pending_images: int | None = None  # None: no step goes on
        self.bins: Counter[int] = Counter()  # of waits
        self.waits: deque[float] = deque(maxlen=LOOKED_BACK)
        self.lengths: deque[float] = deque(maxlen=LOOKED_BACK)  # of steps
        self.counted: tuple[int, float] = (0, 0.0)  # steps and seconds that are part of a stretch

    def end_step(self, *, at_border: bool) -> float:
        """End the step that goes on; return what was no part of it.

        Args:
            at_border: another epoch may have begun since, so time that a step does not take is none
                of it.
        """
        if self.pending_images is None:
            return 0.0
        length_s = self.pending_s
        if at_border and self.lengths:
            length_s = min(length_s, statistics.median(self.lengths))
        rest_s = self.pending_s - length_s
        self.steps += 1
        self.images += self.pending_images
        self.step_s += length_s
        self.lengths.append(length_s)
        self.pending_s, self.pending_images = 0.0, None
        return rest_s

    def take_uncounted(self) -> tuple[int, float]:
        """Return the steps, and their seconds, that ended since the last call."""
        before, before_s = self.counted
        self.counted = self.steps, self.wait_s + self.step_s
        return self.steps - before, self.counted[1] - before_s


class _Thread:
    """The loops of one thread, and its time."""

    def __init__(self) -> None:
        self.loops: dict[int, _Loop] = {}
        self.open: list[_Loop] = []  # loops that go on; time between batches is the last one's
        self.until_s: float | None = None  # all time until then is accounted for
        self.outside_s = 0.0
        self.windows = 0  # between optimizer steps, with batches
        self.window: dict[int, int] = {}  # loader -> batches since the last optimizer step
        self.marks: Counter[Kind] = Counter()
        self.to_skip: int | None = None  # batches until the steady state; None: it has begun
        self.is_steady, self.since_s = False, 0.0
        self.updates = self.update_batches = 0
        self.is_whole_window = False  # began in the steady state
        self.stretches = Stretches()

    def advance(self, to_s: float) -> None:
        """Account for the time since the last event."""
        if self.until_s is not None:
            if self.open:
                self.open[-1].pending_s += to_s - self.until_s
            else:
                self.outside_s += to_s - self.until_s
        self.until_s = to_s

    def become_steady(self) -> None:
        for loop in self.loops.values():
            loop.reset()
        self.outside_s, self.to_skip, self.is_steady = 0.0, None, True
        self.stretches = Stretches()
        self.since_s = self.until_s


class Loops:
    """Takes events in the order in which they ended, and tells the phases of the run.

    Args:
        loaders: those of the events, by number; may grow.
    """

    def __init__(self, loaders: Sequence[Loader]) -> None:
        self._loaders = loaders
        self._threads: dict[int, _Thread] = {}

    def add(self, event: Event) -> None:
        """Account for an event."""
        thread = self._threads.get(event.thread)
        if thread is None:
            thread = self._threads[event.thread] = _Thread()
        getattr(self, f"_{event.kind}")(thread, event)

    # --- what a thread does

    def _open(self, thread: _Thread, event: Event) -> None:
        thread.advance(event.began_s)
        loop = self._loop(thread, event.loader)
        self._close(thread, loop, at_border=True)
        took_s = event.ended_s - event.began_s
        loop.wait_s += took_s
        loop.starts_s += took_s
        loop.drawn = 0
        thread.until_s = event.ended_s

    def _draw(self, thread: _Thread, event: Event) -> None:
        thread.advance(event.began_s)
        loop = self._loop(thread, event.loader)
        epoch = loop.loader.epoch_batches
        # An endless iterator, of which an epoch is a part.
        is_border = bool(epoch and loop.drawn and loop.drawn % epoch == 0)
        self._close(thread, loop, at_border=is_border)
        if thread.to_skip is None and not thread.is_steady:  # the first batch that was seen
            thread.to_skip = 1 + loop.loader.ahead
        elif thread.to_skip is not None:
            thread.to_skip -= 1
            if thread.to_skip <= 0:
                thread.become_steady()
        wait_s = event.ended_s - event.began_s
        loop.wait_s += wait_s
        if loop.drawn == 0:
            loop.starts_s += wait_s
        loop.bins[math.floor(math.log(max(wait_s, 1e-6), BIN))] += 1
        loop.waits.append(wait_s if loop.drawn else 0.0)
        loop.drawn += 1
        loop.drawn_since_trained += bool(thread.marks)
        loop.pending_images = event.samples
        thread.open.append(loop)
        thread.window[event.loader] = thread.window.pop(event.loader, 0) + 1  # the last one
        thread.until_s = event.ended_s

    def _end(self, thread: _Thread, event: Event) -> None:
        thread.advance(event.began_s)
        loop = self._loop(thread, event.loader)
        is_open = loop in thread.open
        self._close(thread, loop, at_border=False)
        if is_open:
            loop.wait_s += event.ended_s - event.began_s
            self._count(thread, loop)
        else:
            thread.outside_s += event.ended_s - event.began_s
        loop.drawn = 0
        thread.until_s = event.ended_s
        if thread.to_skip is not None:
            thread.become_steady()  # a later epoch counts as a whole

    def _leave(self, thread: _Thread, event: Event) -> None:
        thread.advance(event.began_s)
        self._close(thread, self._loop(thread, event.loader), at_border=True)
        thread.until_s = event.ended_s  # no step waited for what never came

    def _train(self, thread: _Thread, event: Event) -> None:
        if not thread.marks:  # only now is known which step was the training's first one
            thread.is_steady = False
            ahead = [self._loaders[number].ahead for number in thread.window]
            thread.to_skip = 1 + max(ahead) if ahead else None
        thread.marks[event.kind] += 1
        if event.kind == "backward" and thread.marks["train"]:
            return  # several may belong to one optimizer step
        if not thread.window:
            return
        thread.windows += 1
        *_, last = thread.window
        for number in thread.window:
            loop = thread.loops[number]
            if loop in thread.open:  # one that has ended since belongs to no step
                loop.first_window = loop.first_window or thread.windows
                loop.windows += 1
                loop.last_windows += number == last
        if event.kind == "train" and thread.is_whole_window:
            thread.updates += 1
            thread.update_batches += thread.window[last]
        thread.window = {}
        thread.is_whole_window = event.kind == "train" and thread.is_steady

    _backward = _train

    def _preparing(self, thread: _Thread, event: Event) -> None:
        if thread.open:
            thread.open[-1].looks[event.kind] += 1

    _computing = _preparing

    def _loop(self, thread: _Thread, number: int) -> _Loop:
        if number not in thread.loops:
            thread.loops[number] = _Loop(self._loaders[number])
        return thread.loops[number]

    @staticmethod
    def _close(thread: _Thread, loop: _Loop, *, at_border: bool) -> None:
        """End the step of a loop, which is then no longer open."""
        if loop in thread.open:
            thread.open.remove(loop)
            thread.outside_s += loop.end_step(at_border=at_border)
            Loops._count(thread, loop)

    @staticmethod
    def _count(thread: _Thread, loop: _Loop) -> None:
        """Add what a loop of the training did since the last time to the stretches."""
        if loop.loader.is_training or not thread.marks or Loops._trains(loop, thread):
            thread.stretches.add(*loop.take_uncounted())

    # --- what is known

    def trainer(self) -> int | None:
        """Return the thread that trains; where none does, the one with most batches."""
        for kind in ("train", "backward"):
            marked = {n: t.marks[kind] for n, t in self._threads.items() if t.marks[kind]}
            if marked:
                return max(marked, key=marked.get)
        return max(self._threads, key=lambda n: self._batches(self._threads[n]), default=None)

    @staticmethod
    def _batches(thread: _Thread) -> int:
        return sum(loop.steps for loop in thread.loops.values())

    def trains(self) -> bool:
        """Return whether an optimizer step or a backward pass was seen."""
        return any(thread.marks for thread in self._threads.values())

    def is_training(self, number: int) -> bool:
        """Return whether optimizer steps follow the batches of a loader."""
        thread = self._threads[self.trainer()]
        return number in thread.loops and self._trains(thread.loops[number], thread)

    def batches_since_trained(self, number: int) -> int:
        """Return the batches of a loader that the training took since its first step.

        0 of a loader after whose batches another one is always asked before the step.
        """
        loop = self._threads[self.trainer()].loops[number]
        return loop.drawn_since_trained if loop.last_windows else 0

    def progress(self) -> tuple[int, float | None, bool]:
        """Return steps since the steady state, since when it lasts, and whether a loop goes on."""
        thread = self._threads.get(self.trainer())
        if thread is None or not thread.is_steady:
            return 0, None, False
        return self._batches(thread), thread.since_s, bool(thread.open)

    def phases(self, now_s: float) -> Phases:
        """Return the phases of the run until now."""
        trainer = self.trainer()
        thread = self._threads[trainer] if trainer is not None else _Thread()
        # All time until now is the last loop's, or is outside of loops.
        since_s = 0.0 if thread.until_s is None else max(0.0, now_s - thread.until_s)
        outside_s = thread.outside_s + (0.0 if thread.open else since_s)
        for loop in thread.open:
            # The step that goes on does not count; time that no step takes is outside of it.
            if loop.pending_images is not None and loop.lengths:
                pending_s = loop.pending_s + (since_s if loop is thread.open[-1] else 0.0)
                outside_s += max(0.0, pending_s - statistics.median(loop.lengths))
        trains = bool(thread.marks)
        loops = list(thread.loops.values())
        mine = [loop for loop in loops if loop.loader.is_training]
        mine = mine or [loop for loop in loops if not trains or self._trains(loop, thread)]
        others = [loop for loop in loops if loop not in mine]
        training = _phase(mine)
        elsewhere = any(self._batches(other) for n, other in self._threads.items() if n != trainer)
        unseen: Unseen = ""
        if trains and not self._follow_batches(mine, thread):
            unseen = "thread" if elsewhere else "loader"
        elif not any(each.loops for each in self._threads.values()):
            unseen = "nothing"
        elif not thread.is_steady or not training.steps:
            unseen = "short"
        return Phases(
            training=Phase() if unseen else training,
            validation=_phase(others),
            outside_s=outside_s if thread.is_steady else 0.0,
            batches_per_update=thread.update_batches / thread.updates if thread.updates else None,
            unseen=unseen,
            trains=trains,
            stretches=() if unseen else thread.stretches.pairs(),
        )

    @staticmethod
    def _trains(loop: _Loop, thread: _Thread) -> bool:
        if not loop.windows:
            return False
        # Of two loaders that are drawn from in turn, the first one is never the last.
        since = thread.windows - loop.first_window + 1
        return max(loop.last_windows / loop.windows, loop.windows / since) >= 0.5

    @staticmethod
    def _follow_batches(loops: Iterable[_Loop], thread: _Thread) -> bool:
        """Whether optimizer steps follow batches of these loops, and not only now and then."""
        if any(loop.loader.is_training for loop in loops):
            return True
        kind: Kind = "train" if thread.marks["train"] else "backward"
        seen = sum(loop.last_windows for loop in loops)
        return seen >= FEWEST_UPDATES_SHARE * thread.marks[kind]


def _phase(loops: Sequence[_Loop]) -> Phase:
    """Add loops up."""
    step_s = prepare_s = 0.0
    bins: Counter[int] = Counter()
    for loop in loops:
        looks = loop.looks.total()
        share = loop.looks["preparing"] / looks if looks >= FEWEST_LOOKS else 0.0
        prepare_s += share * loop.step_s
        step_s += (1 - share) * loop.step_s
        bins += loop.bins
    longest = max(loops, key=lambda loop: loop.steps, default=None)
    return Phase(
        loaders=tuple(loop.loader for loop in loops),
        steps=sum(loop.steps for loop in loops),
        images=sum(loop.images for loop in loops),
        wait_s=sum(loop.wait_s for loop in loops),
        starts_s=sum(loop.starts_s for loop in loops),
        prepare_s=prepare_s,
        step_s=step_s,
        median_wait_s=_percentile(bins, 0.5),
        p99_wait_s=_percentile(bins, 0.99),
        cycle=cycle_of(longest.waits) if longest else None,
    )


def _percentile(bins: Counter[int], share: float) -> float | None:
    """Return the wait that a share of all waits does not exceed; exact to half a bin."""
    passed = 0
    for number in sorted(bins):
        passed += bins[number]
        if passed >= share * bins.total():
            return BIN ** (number + 0.5)
    return None


def cycle_of(waits: Sequence[float]) -> int | None:
    """Return every how many steps most of the waiting comes; None where it comes at any step.

    Workers that take equally long deliver at the same time: after a long wait as many batches as
    there are workers are there.
    """
    latest = list(waits)
    for length in range(2, 65):  # loaders have fewer workers
        seen = latest[-FEWEST_CYCLES * length :]
        if len(seen) < FEWEST_CYCLES * length or not any(seen):
            return None
        longest = max((seen[first::length] for first in range(length)), key=sum)
        # Nearly each of them is long, which it is not in a part of the cycle.
        typical_s = sorted(longest)[FEWEST_CYCLES // 4]
        is_one_step = sum(longest) >= SLOW_STEP_WAIT_SHARE * sum(seen)
        if is_one_step and typical_s >= sum(longest) / FEWEST_CYCLES / 2:
            return length
    return None
