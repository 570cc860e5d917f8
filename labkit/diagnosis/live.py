"""Diagnose a training as it is: the body of its loop is the step.

    training ── next(its loader) ─▶ │ diagnosis of a copy of the loader
       ▲                            │    step(batch)
       └──────── a batch ───────────┘

Two greenlets of one thread: `next` of the training's loader switches to the diagnosis, whose step
switches back with the batch that it wants trained.  So the training gets real batches, kept ones,
or those of a loader with other arguments, and waits while the loader runs alone.  No epoch ends
meanwhile.  At the end `Ended` is raised in the training's `next`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from labkit.diagnosis import loaders, together
from labkit.diagnosis.arms import Alarm, Loop, Stopped, set_alarm
from labkit.diagnosis.diagnose import BUDGET_S, Diagnosis, check_budget, diagnose_loop
from labkit.diagnosis.hook import HOOK
from labkit.diagnosis.loops import Event, Loops
from labkit.language import Text

if TYPE_CHECKING:
    from greenlet import greenlet

    from labkit.diagnosis.loader_search import Tuned

STEADY_STEPS = 3  # before the diagnosis begins, after those in which queues fill
UNTRAINED_BATCHES = 60  # of a loop without optimizer steps, as of inference, until it is diagnosed
AHEAD = "a thread of the training loads batches ahead; what is above was measured without it"
MOST_INSIDE = 50  # steps on batches of other loaders, such as those of an inner loop
LEFT = "the training left its loop before it was diagnosed"
MOST_CAUGHT = 100  # times that a training may catch `Ended` and go on


class Ended(SystemExit):
    """Ends a training that is diagnosed, with exit status 0."""


class LiveDiagnosis:
    """The diagnosis of a training that runs in this process.

    Args:
        budget_s: as of `diagnose`.
        progress: show a bar.
        show: called with the diagnosis, before the training is ended.
        insist: called where the training catches what ends it, and goes on again and again.
        find: what is done with the loop: `diagnose_loop`, or `tune_live`.
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
        show: Callable[[Any], object] = lambda _: None,
        insist: Callable[[], object] = lambda: None,
        find: Callable[..., Diagnosis | Tuned] = diagnose_loop,
        must_train: bool = False,
    ) -> None:
        self.events: deque[Event] = deque()
        """Those of the hook, to take next."""
        self._budget_s, self._progress = budget_s, progress
        self._show, self._insist, self._find = show, insist, find
        self._must_train = must_train
        self._loops = Loops(HOOK.loaders)
        self._loaders: dict[int, Any] = {}
        self._following: dict[int, Iterator] = {}  # batches of loaders beside it, without end
        self._inside: set[int] = set()  # loaders that were opened in the loop: they have an end
        self._trained_inside = 0  # steps since the training asked its own loader
        self._thread: int | None = None  # that trains
        self._number = 0  # of its loader
        self._training: Any = None  # greenlet of the training
        self._greenlet: greenlet | None = None  # of the diagnosis; None before and after it
        self._latest: object = None  # batch that was trained
        self._is_loaded_ahead = False  # by a thread of the training
        self._lock = threading.Lock()  # threads that load ahead ask as well
        self._why_over = ""  # why no step can be trained any more
        self._is_over, self._pid = False, os.getpid()
        self._caught = 0

    # --- called by the hook, in the training's threads

    def lengthens(self, loader: object) -> bool:
        """Return whether a loader tells the training a length that it does not reach."""
        if self._is_over or self._is_measuring():
            return False
        outside = (each for n, each in self._loaders.items() if n not in self._inside)
        return self._greenlet is None or any(each is loader for each in outside)

    def opens(self, loader: Any, number: int) -> None:
        """Note that the training begins to iterate over a loader.

        One that it opens in the loop that is diagnosed, such as for evaluation, runs as it is.

        Raises:
            Ended: its loop, which is diagnosed, has ended.
        """
        if self._is_measuring():
            return
        self._loaders[number] = loader
        if get_ident() != self._thread:
            return
        if self._greenlet is not None and number == self._number:
            self.end(LEFT)
        if self._is_over:
            self._raise_ended()
        self._inside.add(number)

    def batch(self, number: int) -> object:
        """Return the batch that is trained next; None: the next one of the training's own loader.

        Raises:
            Ended: the training is diagnosed.
        """
        if self._is_measuring():
            return None
        if self._is_over:
            self._raise_ended()
        if self._greenlet is None:
            if not self._trains(number):
                return None
            self._begin(number)
        events = list(self.events)  # at once: other threads add some
        self.events.clear()  # nobody else counts any more
        if number != self._number:  # a second loader of the same loop, unless it is a loop by now
            self._trained_inside += sum(event.kind == "train" for event in events)
            if self._trained_inside > MOST_INSIDE:
                self.end(LEFT)
            if self._is_over:
                self._raise_ended()
            return None
        self._trained_inside = 0
        if get_ident() != self._thread:
            self._is_loaded_ahead = True
            return self._latest  # a thread that loads ahead: what it hands over is not trained
        self._wait_here()
        self._latest = self._greenlet.switch()
        if self._is_over:
            self._raise_ended()
        return self._latest

    def following(self, number: int) -> object:
        """Return a batch of a loader's next epoch, where its loop must go on; else None."""
        if self._greenlet is None or number == self._number or number in self._inside:
            return None
        if get_ident() != self._thread or self._is_measuring():
            return None
        if number not in self._following:
            loader = self._loaders[number]
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
        if self._caught > MOST_CAUGHT:
            self._insist()
        raise Ended(0)

    def _trains(self, number: int) -> bool:
        """Return whether the loop over a loader is a training in its steady state."""
        with self._lock, suppress(IndexError):
            while True:
                self._loops.add(self.events.popleft())
        if get_ident() != self._loops.trainer():
            return False
        steps, _, _ = self._loops.progress()
        if self._loops.trains():
            return steps >= STEADY_STEPS and self._loops.is_training(number)
        return steps >= UNTRAINED_BATCHES and not self._must_train

    def _begin(self, number: int) -> None:
        from greenlet import greenlet

        self._thread, self._number = get_ident(), number
        group = together.group()
        run = self._lead if group is None or group.rank == 0 else self._follow
        self._greenlet = greenlet(run)
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
            # The training's alarm goes on in its own code only, as if measuring took no time.
            own = set_alarm(alarm)
            try:
                self._training.switch(batch)
            finally:
                alarm = set_alarm(own)

        self._training.switch()
        alarm = set_alarm(alarm)
        loop = _LiveLoop(loader, step, leader)
        try:
            diagnosis = self._find(loop, budget_s=self._budget_s, progress=self._progress)
        finally:
            if leader:
                leader.end()
            set_alarm(alarm)
            self._is_over, self._greenlet = True, None
        if self._is_loaded_ahead:
            diagnosis = diagnosis.with_note(AHEAD)
        self.diagnosis = diagnosis
        self._show(diagnosis)

    def _follow(self, loader: Any, group: together.Group) -> None:
        """Take the steps that the first rank takes."""
        self._training.switch()
        try:
            together.follow(group, loader, self._training.switch)
        finally:
            self._is_over, self._greenlet = True, None

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
        self._why_over = why
        self._wait_here()
        self._greenlet.throw(Stopped(why))

    def why_not(self) -> str:
        """Return why there is no diagnosis."""
        if not self._loaders:
            return "no DataLoader was iterated over in this process"
        if not self._loops.trains():
            return "no optimizer step was seen, and no loop went on for long"
        return "the training ended after too few steps, or its steps do not follow its batches"


class _LiveLoop(Loop):
    """A loop whose step is the body of the training's own loop."""

    waits_for_step = False  # an alarm would be raised in the training's own code
    why_not_cold = "the files that a script reads stay in memory or on the disk, as they are"

    def __init__(
        self, loader: Any, step: Callable[[object], object], leader: together.Leader | None
    ) -> None:
        super().__init__(loader, step)
        self._leader = leader

    def begin(self, arm: str, loader: Any) -> None:
        """Have other ranks do the same."""
        if self._leader:
            self._leader.begin(arm, getattr(loader, "_changes", {}))


@contextmanager
def diagnosing(*, budget_s: float = BUDGET_S, progress: bool = True) -> Iterator[LiveDiagnosis]:
    """Diagnose the training that runs in this context: `with lab.diagnosing() as live: train()`.

    Once its loop has reached the steady state, batches of copies of its loader and kept batches
    are trained in turn; then the context ends.  The training is one to throw away: its model has
    seen some batches many times.  No epoch ends, so nothing after an epoch runs.

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
    with supplying(live), suppress(Ended):
        yield live


@contextmanager
def supplying(live: LiveDiagnosis) -> Iterator[None]:
    """Have a live diagnosis choose the batches of this process; end it with the context."""
    with HOOK.supplied_by(live):
        try:
            yield
        except Ended:
            raise
        except BaseException as error:
            ended = Text("the training ended with {error}")
            live.end(ended.format(error=type(error).__name__))
            raise
        else:
            live.end("the training ended before it was diagnosed")
