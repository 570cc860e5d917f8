"""Diagnose a training as it is: the body of its loop is the step.

    training ── next(its loader) ─▶ │ diagnosis of a copy of the loader
       ▲                            │    step(batch)
       └──────── a batch ───────────┘

Two greenlets of one thread: `next` of the training's loader switches to the diagnosis, whose step
switches back with the batch that it wants trained.  So the training gets real batches, kept ones,
or those of a loader with other arguments, and waits while the loader runs alone.  No epoch ends
meanwhile.  At the end SystemExit is raised in the training's `next`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from labkit.diagnosis import loaders, together
from labkit.diagnosis.arms import Alarm, Loop, Stopped, set_alarm
from labkit.diagnosis.diagnose import Diagnosis, check_budget, diagnose_loop
from labkit.diagnosis.hook import HOOK
from labkit.diagnosis.loops import Event, Loops
from labkit.diagnosis.thresholds import (
    BUDGET_S,
    MOST_FOLLOWING_STEPS,
    MOST_INSIDE_STEPS,
    MOST_STEPS_PER_S,
    STEADY_STEPS,
    UNTRAINED_BATCHES,
)  # fmt: skip
from labkit.diagnosis.watch import say
from labkit.language import Text

if TYPE_CHECKING:
    from greenlet import greenlet

    from labkit.diagnosis.loader_search import Tuned

LEFT = "the training left its loop before it was diagnosed"
MOVED = "the training moves from one thread to another"
NOT_TOGETHER = (
    "not all ranks load batches; with dispatch_batches, accelerate's first rank loads for all"
)
LENGTHENED = (
    "no DataLoader was iterated over in this process: the script may have computed 0 epochs from "
    "len(loader), which is large until it is diagnosed"
)


class LiveDiagnosis:
    """The diagnosis of a training that runs in this process.

    Args:
        budget_s: as of `diagnose`.
        progress: show a bar.
        must_train: leave loops alone that no optimizer step follows, as in a process that only
            loads batches for others.
    """

    diagnosis: Diagnosis | Tuned | None = None
    """None until the training's loop was found and measured."""

    def __init__(
        self,
        *,
        budget_s: float = BUDGET_S,
        progress: bool = True,
        must_train: bool = False,
    ) -> None:
        self.events: deque[Event] = deque()
        """Those of the hook, to take next."""
        self._budget_s, self._progress, self._must_train = budget_s, progress, must_train
        self._loops = Loops(HOOK.loaders)
        self._loaders: dict[int, Any] = {}
        self._following: dict[int, Iterator] = {}  # batches of loaders beside it, without end
        self._inside: set[int] = set()  # loaders that were opened in the loop: they have an end
        self._trained_inside = 0  # steps since the training asked its own loader
        self._thread: int | None = None  # that trains
        self._number = 0  # of its loader
        self._iterator: Callable[[], object] = lambda: None  # of its loop, weakly
        self._beside: weakref.WeakSet = weakref.WeakSet()  # other iterators of its loader
        self._training: Any = None  # greenlet of the training
        self._greenlet: greenlet | None = None  # of the diagnosis; None before and after it
        self._latest: object = None  # batch that was trained
        self._ahead = 0  # batches that a thread of the training holds ready; 0: none does
        self._steps = threading.Semaphore(0)  # that such a thread has not yet seen
        self._lengthened: list[weakref.ref] = []  # loaders that told a length which is too large
        self._lock = threading.RLock()  # threads that load ahead, and signals, ask as well
        self._why_over = ""  # why no step can be trained any more
        self._at_end: Callable[[], object] = lambda: None
        self._has_ended = threading.Event()
        self._is_over, self._pid = False, os.getpid()
        self._caught = 0

    def begin(self) -> None:
        """Called before the diagnosis takes the training over; of several ranks, in rank 0 only."""

    def measure(self, loop: Loop) -> Diagnosis | Tuned:
        """Return what is found of the training's loop."""
        return diagnose_loop(loop, budget_s=self._budget_s, progress=self._progress)

    def show(self, diagnosis: Any) -> None:
        """Called before the training is ended."""

    def insist(self) -> None:
        """Called where the training catches what ends it, and goes on again and again."""

    # --- called by the hook, in the training's threads

    def least_length(self, loader: Any) -> int:
        """Return how many batches a loader tells the training that it has, at least.

        A training that counts steps does not reach it before it is diagnosed.
        """
        if self._is_over or self._is_measuring():
            return 0
        outside = (each for n, each in self._loaders.items() if n not in self._inside)
        is_lengthened = self._greenlet is None or any(each is loader for each in outside)
        if is_lengthened:
            known = any(each() is loader for each in self._lengthened)
            self._lengthened += [] if known else [weakref.ref(loader)]
        return round(MOST_STEPS_PER_S * self._budget_s) if is_lengthened else 0

    def opens(self, loader: Any, number: int, iterator: object) -> None:
        """Note that the training begins to iterate over a loader.

        One that it opens in the loop that is diagnosed, such as for evaluation, runs as it is.  So
        does a second iterator of the loop's own loader.

        Raises:
            SystemExit: its loop, which is diagnosed, has ended.
        """
        if self._is_measuring():
            return
        self._loaders[number] = loader
        if get_ident() != self._thread:
            return
        if self._greenlet is not None and number == self._number:
            own = self._iterator()
            if own is not None and own is not iterator:
                self._beside.add(iterator)
                return
            self.end(LEFT)
        if self._is_over:
            self._raise_ended()
        self._inside.add(number)

    def batch(self, number: int, iterator: object = None, ahead: int = 0) -> object:
        """Return the batch that is trained next; None: the next one of the training's own loader.

        Args:
            number: of the loader.
            iterator: that is asked; None where a batch comes from another thread.
            ahead: batches that this thread holds ready; 0 where the batch comes from the loader.

        Raises:
            SystemExit: the training is diagnosed.
        """
        if self._is_measuring():
            return None
        if self._is_over:
            self._raise_ended()
        if self._greenlet is None:
            # One that was opened under another diagnosis is not known here.
            if number not in self._loaders or not self._trains(number):
                return None
            self._begin(number, ahead)
        is_own = number == self._number and iterator not in self._beside
        if get_ident() != self._thread:
            if not is_own:
                return None
            if HOOK.trainer == get_ident():  # it loads nothing ahead for another thread
                self._why_over, self._is_over = MOVED, True
                self._raise_ended()
            # What a thread hands over that loads ahead is not trained.  Without waiting, it would
            # fill a queue that has no end.
            self._steps.acquire(timeout=0.1)
            return self._latest
        events = list(self.events)  # at once: other threads add some
        self.events.clear()  # nobody else counts any more
        if not is_own:  # a second loader of the same loop, unless it is a loop by now
            self._trained_inside += sum(event.kind == "train" for event in events)
            if self._trained_inside > MOST_INSIDE_STEPS:
                self.end(LEFT)
            if self._is_over:
                self._raise_ended()
            return None
        self._trained_inside = 0
        if iterator is not None and iterator is not self._iterator():
            with suppress(TypeError):  # a generator in C has no weak references
                self._iterator = weakref.ref(iterator)
        self._wait_here()
        self._latest = self._greenlet.switch()
        if self._is_over:
            self._raise_ended()
        return self._latest

    def check_drawer(self) -> None:
        """Called again and again by a thread that loads ahead and waits for the training.

        Raises:
            SystemExit: the training is diagnosed.
        """
        if self._is_over and get_ident() != self._thread:
            self._raise_ended()

    def following(self, number: int) -> object:
        """Return a batch of a loader's next epoch, where its loop must go on; else None.

        Before the diagnosis, that is the training's loop, if it may count the steps of an epoch by
        the length that it was told; later, other loops around the one that is diagnosed.
        """
        loader = self._loaders.get(number)
        if self._is_over or self._is_measuring() or loader is None:
            return None
        if self._greenlet is None:
            is_lengthened = any(each() is loader for each in self._lengthened)
            goes_on = is_lengthened and self._is_training(number)
            # One that could not be diagnosed until then never will be, and is to end.
            steps, _, _ = self._loops.progress()
            goes_on &= steps < MOST_FOLLOWING_STEPS
        else:
            goes_on = number not in (self._number, *self._inside) and get_ident() == self._thread
        if not goes_on:
            return None
        if number not in self._following:
            self._following[number] = loaders.epochs(lambda: iter(loader))
        return next(self._following[number], None)

    def _wait_here(self) -> None:
        """Have the diagnosis switch back to the greenlet that runs now.

        A training with greenlets of its own may ask from another one than before.
        """
        from greenlet import getcurrent

        self._training = self._greenlet.parent = getcurrent()

    def _is_measuring(self) -> bool:
        """Return whether the diagnosis itself calls."""
        if self._greenlet is None:
            return False
        from greenlet import getcurrent

        return getcurrent() is self._greenlet

    def _raise_ended(self) -> NoReturn:
        self._caught += 1
        if self._caught > 100:  # a training may catch it and go on
            self.insist()
        # Of this class itself, by which Python ends a thread without a word.
        raise SystemExit(0) from Stopped()

    def _is_training(self, number: int) -> bool:
        """Return whether optimizer steps follow the batches of a loader."""
        return self.has_trained() and self._loops.is_training(number)

    def has_trained(self) -> bool:
        """Return whether an optimizer step or a backward pass was seen until the diagnosis."""
        with self._lock, suppress(IndexError):
            while self._greenlet is None:
                self._loops.add(self.events.popleft())
        return self._loops.trains()

    def _trains(self, number: int) -> bool:
        """Return whether the loop over a loader is a training in its steady state."""
        is_training = self._is_training(number)
        if get_ident() != self._loops.trainer():
            return False
        if self.has_trained():
            # The same batch in all ranks, also where one of them evaluates meanwhile.
            return is_training and self._loops.batches_since_trained(number) > STEADY_STEPS
        steps, _, _ = self._loops.progress()
        return steps >= UNTRAINED_BATCHES and not self._must_train

    def _begin(self, number: int, ahead: int) -> None:
        from greenlet import greenlet

        self._thread, self._number, self._ahead = get_ident(), number, ahead
        group = together.group()
        if group and not together.have_all_begun(group):
            self._why_over = NOT_TOGETHER
        leads = group is None or group.rank == 0
        if leads:
            self.begin()
        self._greenlet = greenlet(self._lead if leads else self._follow)
        self._wait_here()
        self._greenlet.switch(self._loaders[number], group)

    def _lead(self, loader: Any, group: together.Group | None) -> None:
        """Diagnose; other ranks take the same steps."""
        leader = group and together.Leader(group)
        alarm = Alarm()  # the training's, while it waits

        def step(batch: object) -> None:
            nonlocal alarm
            if self._why_over:
                raise Stopped(self._why_over)
            if leader:
                leader.step()
            self._steps.release()
            # The training's alarm goes on in its own code only, as if measuring took no time.
            own = set_alarm(alarm)
            try:
                self._training.switch(batch)
            finally:
                alarm = set_alarm(own)

        self._training.switch()
        alarm = set_alarm(alarm)
        loop = _LiveLoop(loader, step, leader, self._ahead)
        try:
            with self._interrupted():
                diagnosis = self.measure(loop)
        finally:
            if leader:
                with suppress(RuntimeError):  # of a store that has ended with another rank
                    leader.end()
            set_alarm(alarm)
            self._is_over, self._greenlet = True, None
        self.diagnosis = diagnosis
        self.show(diagnosis)
        self._has_ended.set()
        self._at_end()

    def _follow(self, loader: Any, group: together.Group) -> None:
        """Take the steps that the first rank takes."""
        loop = _LiveLoop(loader, str, None, self._ahead)

        def step(batch: object) -> None:
            self._steps.release()
            self._training.switch(batch)

        self._training.switch()
        try:
            with suppress(Stopped):
                together.follow(group, loader, step, loop.as_trained)
        finally:
            self._is_over, self._greenlet = True, None
        self._has_ended.set()
        self._at_end()

    # --- at the end of the training

    def end(self, why: str) -> None:
        """End a diagnosis that goes on, with what it measured until now.

        Args:
            why: what ended the training, as the diagnosis says it.
        """
        if self._greenlet is None or get_ident() != self._thread or self._is_measuring():
            return
        if os.getpid() != self._pid:  # in a fork of the training, which ends earlier
            return
        self._why_over = self._why_over or why
        self._wait_here()
        self._greenlet.throw(Stopped(self._why_over))

    def end_by_signal(self, why: str, then: Callable[[], object]) -> None:
        """End a diagnosis that goes on from the handler of a signal, and call a function.

        Args:
            why: as of `end`.
            then: ends the process, or raises what the signal raises.

        Raises:
            Stopped: the signal came while the diagnosis itself ran, which calls the function.
        """
        if self._is_measuring():
            self._why_over, self._at_end = why, then
            raise Stopped(why)
        if self._greenlet is not None and get_ident() != self._thread:
            self._why_over = why
            self._has_ended.wait(10.0)  # seconds, at most
        else:
            self.end(why)
        then()

    @contextmanager
    def _interrupted(self) -> Iterator[None]:
        """Have Ctrl-C end the diagnosis with what it measured, and then raise KeyboardInterrupt.

        In the training's own code it is raised at once.
        """
        own = signal.default_int_handler
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not own:
            yield
            return

        def interrupt(number: int, frame: Any) -> None:
            if not self._is_measuring() or os.getpid() != self._pid:
                own(number, frame)
            ended = Text("the training ended with {error}").format(error="KeyboardInterrupt")
            self.end_by_signal(ended, lambda: own(number, frame))

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is interrupt:
                signal.signal(signal.SIGINT, own)

    def why_not(self) -> str:
        """Return why there is no diagnosis; "" where there is one, of this or of the first rank."""
        if self._is_over:
            return self._why_over if self.diagnosis is None else ""
        if not self._loaders and self._lengthened:
            return LENGTHENED
        if not self._loaders:
            return "no DataLoader was iterated over in this process"
        if not self.has_trained():
            return "no optimizer step was seen, and no loop went on for long"
        return "the training ended after too few steps, or its steps do not follow its batches"


class _LiveLoop(Loop):
    """A loop whose step is the body of the training's own loop.

    Args:
        loader: the training's.
        step: trains a batch.
        leader: tells other ranks what is done; None without any.
        ahead: batches that a thread of the training holds ready; 0 where none loads ahead.
    """

    waits_for_step = False  # an alarm would be raised in the training's own code
    why_not_cold = "the files that a script reads stay in memory or on the disk, as they are"

    def __init__(
        self,
        loader: Any,
        step: Callable[[object], object],
        leader: together.Leader | None,
        ahead: int,
    ) -> None:
        super().__init__(loader, step)
        self._leader, self._ahead = leader, ahead
        self._has_thread: bool | None = None  # the loader itself starts it; None: not yet known

    def begin(self, arm: str, loader: Any) -> None:
        """Have other ranks do the same."""
        if self._leader:
            self._leader.begin(arm, getattr(loader, "_changes", {}))

    def as_trained(self, batches: Iterable) -> Iterable:
        """Return a loader's batches as the training gets them, from a thread if it has one."""
        if not self._ahead:
            return batches
        if self._has_thread is None:
            return self._look_for_thread(batches)
        return batches if self._has_thread else loaders.loaded_ahead(batches, self._ahead)

    def _look_for_thread(self, batches: Iterable) -> Iterator:
        for batch in batches:
            self._has_thread = HOOK.drawer(batches) not in (None, get_ident())
            yield batch


@contextmanager
def diagnosing(*, budget_s: float = BUDGET_S, progress: bool = True) -> Iterator[LiveDiagnosis]:
    """Diagnose the training that runs in this context: `with lab.diagnosing(): train()`.

    Once its loop has reached the steady state, batches of copies of its loader and kept batches
    are trained in turn; then the context ends and prints the diagnosis.  The training is one to
    throw away: its model has seen some batches many times.  No epoch ends, so nothing after an
    epoch runs.

    Args:
        budget_s: as of `diagnose`.
        progress: show a bar.

    Yields:
        An object whose `diagnosis` is there afterwards; None where no training was seen.

    Raises:
        ValueError: an argument has a wrong value.
    """
    check_budget(budget_s)
    live = LiveDiagnosis(budget_s=budget_s, progress=progress)
    try:
        with supplying(live):
            yield live
    except SystemExit as error:
        if not isinstance(error.__cause__, Stopped):  # the program's own
            raise
    finally:
        if live.diagnosis is not None:
            sys.stdout.write(f"{live.diagnosis}\n")
    if why_not := live.why_not():
        say(Text("Nothing was diagnosed: {why}.").format(why=why_not))


@contextmanager
def supplying(live: LiveDiagnosis) -> Iterator[None]:
    """Have a live diagnosis choose the batches of this process; end it with the context."""
    with HOOK.supplied_by(live):
        try:
            yield
        except BaseException as error:
            ended = Text("the training ended with {error}")
            live.end(ended.format(error=type(error).__name__))
            raise
        else:
            live.end("the training ended before it was diagnosed")
        finally:
            if live._is_over:
                HOOK.wait_for_drawers()
