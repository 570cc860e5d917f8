"""Phases: where each step's time goes, seen from outside, for the loop is somebody else's.

    next() ───▶ batch ───▶ model called ───▶ it returns ───▶ optimizer.step ends ───▶ next()
         wait       transfer          forward      backward (+ optimizer)        rest

The moments come from the iterator, and from hooks on the outermost modules and on optimizers that
are there only while an epoch goes on.  Start-up, first batch and first step stay apart.  Main trap:
a host's second is when a call *returned*.  CUDA works on its own, so the same moments are marked on
its stream, too, and read when the epoch is over.
"""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from threading import get_ident

from labkit.contracts import Clock

PHASES = ("wait", "transfer", "forward", "backward", "rest")
# Enough for a mean; the events of a long epoch would take memory, and microseconds each.
DEVICE_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class EpochPhases:
    """Where an epoch's time went: plain seconds, and None for what cannot be known."""

    ended: str
    """exhausted, stopped (as by break), failed (the loader raised) or running."""
    steps: int
    """Batches that were handed over."""
    timed_steps: int
    """Whole steps after the first; `host_s` holds sums over them."""
    epoch_s: float
    """From creating the iterator to the end, CUDA's work included."""
    startup_s: float
    """Creating the iterator, which starts workers."""
    first_wait_s: float | None
    """The wait for the first batch."""
    first_step_s: float | None
    """What the loop did with it; libraries choose and compile here."""
    shutdown_s: float | None
    """The last next(), which gives no batch and stops workers."""
    host_s: Mapping[str, float | None]
    """Phase -> seconds on the host's clock, the naive ones; "step": all but the wait."""
    device_s: Mapping[str, float | None] | None
    """Phase -> seconds on CUDA's current stream, idle ones included; None without CUDA."""
    device_steps: int
    """Steps that `device_s` is a sum over: the first ones that were timed."""
    waits_s: Sequence[float]
    """The wait of every step, the first one's included."""
    none_batches: int
    """How many of the batches were None."""


class Phases:
    """Records the phases of one epoch.

    A step that calls no module with parameters has only a wait and a step.  Without gradients,
    what follows the forward is rest; with gradients and no optimizer step, it counts as backward
    (gradients are gathered), unless no step has an optimizer: then nobody can say.

    A model that is compiled in place, or called inside a compiled function, is not seen.  In the
    loop, torch.jit.script refuses the model, for it scripts hooks, too.

    Args:
        clock: tells the time; a fake one in tests.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now
        self._ended = "running"
        self._begun_s, self._end_s = clock.now(), None
        self._startup_s = self._apart_s = 0.0
        self._first_step_s = self._shutdown_s = None
        self._steps = self._timed_steps = self._none_batches = 0
        self._waits_s = array("d")
        self._host_s, self._device_s = defaultdict(float), None
        self._marks: list[tuple[str, float, object]] = []  # phase that begins, moment, CUDA event
        self._events: list[list[tuple[str, object]]] = []  # the same of every timed step
        self._torch, self._handles, self._looking = None, [], None
        self._searching = True  # until the end of the first step that calls a module
        self._thread = None  # the loop's, while it is inside a step
        self._depth = 0  # calls of outermost modules that go on
        self._updated = self._ever_updated = False

    def over(self, batches: Iterable, after_step: Callable[[], None] | None = None) -> Iterator:
        """Hand a loader's batches on, the same objects in the same order.

        Args:
            batches: the loader; asked for an iterator once.
            after_step: called between steps; its time belongs to no phase.
        """
        self._begun_s = self._now()
        try:
            iterator = iter(batches)
            self._startup_s = self._now() - self._begun_s
            while True:
                self._ask()
                try:
                    # No name is kept for the batch here: the loop decides how long it lives.
                    yield self._hand_over(next(iterator))
                except StopIteration:
                    self._shutdown_s = self._now() - self._marks[0][1]
                    self._ended = "exhausted"
                    return
                self._end_step()
                if after_step:
                    after_step()
                    self._apart_s += self._now() - self._marks[-1][1]
        except GeneratorExit:
            self._ended = "stopped"
            raise
        except BaseException:
            self._ended = "failed"
            raise
        finally:
            self._close()

    def result(self) -> EpochPhases:
        """Say what is known, at any time; the device's seconds only at the end."""
        end_s = self._now() if self._end_s is None else self._end_s
        return EpochPhases(
            ended=self._ended,
            steps=self._steps,
            timed_steps=self._timed_steps,
            epoch_s=end_s - self._begun_s - self._apart_s,
            startup_s=self._startup_s,
            first_wait_s=self._waits_s[0] if self._waits_s else None,
            first_step_s=self._first_step_s,
            shutdown_s=self._shutdown_s,
            host_s=self._known(dict(self._host_s)),
            device_s=None if self._device_s is None else self._known(self._device_s),
            device_steps=0 if self._device_s is None else len(self._events),
            waits_s=self._waits_s[:],
            none_batches=self._none_batches,
        )

    def _known(self, seconds: Mapping[str, float]) -> dict[str, float | None]:
        split = {phase: seconds.get(phase, 0.0) for phase in PHASES}
        split["step"] = sum(split.values()) - split["wait"]
        if "forward" not in seconds:
            split |= dict.fromkeys(PHASES[1:])
        elif "backward" in seconds and not self._ever_updated:
            split |= dict.fromkeys(("backward", "rest"))
        return split

    # The moments, in a step's order.

    def _mark(self, phase: str) -> None:
        self._marks.append((phase, self._now(), self._event()))

    def _event(self) -> object:
        """Mark this place in CUDA's queue; the host goes on at once."""
        cuda = self._torch and self._torch.cuda
        # Asked every time: a loader's worker that was forked meanwhile must not touch CUDA.
        if not cuda or self._timed_steps >= DEVICE_STEPS or not cuda.is_initialized():
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _ask(self) -> None:
        self._marks = []
        self._mark("wait")

    def _hand_over(self, batch: object) -> object:
        self._mark("transfer")
        (_, asked_s, _), (_, arrived_s, _) = self._marks
        self._waits_s.append(arrived_s - asked_s)
        self._none_batches += batch is None
        self._steps += 1
        self._depth, self._updated, self._thread = 0, False, get_ident()
        if self._steps == 1:  # not before: workers that were just forked have no hooks
            self._install()
        return batch

    def _end_step(self) -> None:
        self._thread = None
        self._mark("")
        if len(self._handles) > 1:
            self._searching = False
            self._stop_looking()
        if self._steps == 1:
            self._first_step_s = self._marks[-1][1] - self._marks[1][1]
            return
        self._timed_steps += 1
        self._ever_updated |= self._updated
        for (phase, since_s, _), (_, until_s, _) in pairwise(self._marks):
            self._host_s[phase] += until_s - since_s
        if self._marks[0][2] is not None:
            self._events.append([(phase, event) for phase, _, event in self._marks])

    def _close(self) -> None:
        self._thread = None
        self._stop_looking()
        while self._handles:
            self._handles.pop().remove()
        try:
            self._read_events()
        except RuntimeError:  # the device failed, or a graph was captured in the loop
            self._device_s = None
        if self._end_s is None:
            self._end_s = self._now()

    def _read_events(self) -> None:
        if not self._events:
            return
        self._events[-1][-1][1].synchronize()
        self._end_s = self._now()
        self._device_s = defaultdict(float)
        for step in self._events:
            for (phase, since), (_, until) in pairwise(step):
                self._device_s[phase] += since.elapsed_time(until) / 1000  # from milliseconds

    # What hooks do: find the outermost modules in one step, then listen to them alone, for a hook
    # on all modules slows every call of every layer.

    def _install(self) -> None:
        self._torch = sys.modules.get("torch")
        if self._torch:
            from torch.optim.optimizer import register_optimizer_step_post_hook as register

            self._handles.append(register(_Hook(self, self._update, self._torch)))
            self._look()

    def _look(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook as register

        self._looking = register(_Hook(self, self._find, self._torch))

    def _stop_looking(self) -> None:
        if self._looking:
            self._looking.remove()
            self._looking = None

    def _find(self, module: object) -> None:
        # All is asked of the base class: a person's own parameters() may return anything, and a
        # scripted module refuses to be given hooks, although it calls them.
        base = self._torch.nn.Module
        if next(base.parameters(module), None) is None:
            return
        if any(isinstance(h, _Hook) and h.of is self for h in module._forward_pre_hooks.values()):
            return
        begin, end = _Hook(self, self._begin, self._torch), _Hook(self, self._end, self._torch)
        self._handles.append(base.register_forward_pre_hook(module, begin, prepend=True))
        # A forward that raises ends, too: the loop may catch it and try again.
        self._handles.append(base.register_forward_hook(module, end, always_call=True))
        self._begin(module)

    def _begin(self, _: object) -> None:
        self._depth += 1
        if self._depth == 1:
            self._stop_looking()  # inside, nothing is outermost
            # Without gradients and after the update, it is an evaluation: part of the rest.
            if not self._updated or self._torch.is_grad_enabled():
                self._mark("forward")

    def _end(self, _: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            if self._marks[-1][0] == "forward":
                self._mark("backward" if self._torch.is_grad_enabled() else "rest")
            if self._searching:
                self._look()

    def _update(self, _: object) -> None:
        if self._updated and self._marks[-1][0] == "rest":
            self._marks.pop()  # of several optimizers the last one ends the phase
        self._updated = True
        self._mark("rest")


class _Hook:
    """Calls a method of `of`, from the loop's own thread and inside its steps only."""

    def __init__(self, of: Phases, method: Callable[[object], None], torch: object) -> None:
        self.of, self._method, self._is_compiling = of, method, torch.compiler.is_compiling

    def __call__(self, module: object, *_: object) -> None:
        # A compiler that traces this would take it for a part of the model.
        if not self._is_compiling() and self.of._thread == get_ident():
            self._method(module)

    def __reduce__(self) -> tuple:
        # A model that the loop saves or copies whole takes its hooks along: there, this becomes a
        # function of the standard library that does nothing, whatever it is called with.
        return getattr, (nullcontext(), "__exit__")
