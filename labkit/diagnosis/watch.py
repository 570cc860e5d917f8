"""Watch a training loop from its loader: where each step's time goes, live and per epoch.

    next() ───▶ batch ───▶ model called ───▶ it returns ───▶ optimizer.step ends ───▶ next()
         wait       transfer          forward      backward (+ optimizer)        rest

The boundaries come from the iterator, and from hooks on the outermost modules and on optimizers,
which exist only while an epoch is running.  Start-up, first batch and first step stay apart.  A
host time is when a call *returned*.  CUDA works asynchronously, so the same boundaries are marked
as events on its stream, too, and read when the epoch is over.
"""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from threading import get_ident

from labkit.contracts import Clock, SystemClock
from labkit.diagnosis import text
from labkit.diagnosis.loaders import check_loader, count_batches
from labkit.files import bar, progress_stream

REDRAW_S = 1.0
PHASES = text.PHASES
# Enough for a mean; the events of a long epoch would take memory, and microseconds each.
DEVICE_STEPS = 1000


def watch(loader: Iterable, *, show: bool = True) -> Watch:
    """Watch a training loop from its loader: `for batch in lab.watch(loader): …`.

    A line shows the phases about once a second; a table follows at the end of every epoch.  The
    batches are the loader's own, in its order, and no random number is drawn.  Torch warns once
    about global hooks if the model is compiled: they are this watch's, in the loop's first step.

    Args:
        loader: any iterable of batches, such as a DataLoader.
        show: False prints nothing; `phases` and `epochs` hold the numbers in either case.

    Returns:
        An iterable of the same batches; its length and other attributes are the loader's.

    Raises:
        ValueError: the loader is not an iterable.
    """
    return Watch(loader, show=show)


class Watch:
    """A loader whose loop is watched, in every epoch.

    Args:
        loader: any iterable of batches.
        show: False prints nothing.
        clock: a fake one in tests.
    """

    # Setting any other attribute fails, instead of never reaching the loader.
    __slots__ = ("_clock", "_epochs", "_loader", "_phases", "_show")

    def __init__(self, loader: Iterable, *, show: bool = True, clock: Clock | None = None) -> None:
        check_loader(loader)
        self._loader, self._show, self._clock = loader, show, clock or SystemClock()
        self._phases, self._epochs = None, []

    @property
    def phases(self) -> EpochPhases | None:
        """Phases of the newest epoch, also while it is running; None before the first."""
        return self._phases and self._phases.result()

    @property
    def epochs(self) -> tuple[EpochPhases, ...]:
        """Phases of every finished epoch."""
        return tuple(self._epochs)

    def __iter__(self) -> Iterator:
        self._phases = phases = Phases(self._clock)
        line = _Line(phases, self._clock, count_batches(self._loader)) if self._show else None
        try:
            yield from phases.over(self._loader, line and line.draw)
        finally:
            self._epochs.append(phases.result())
            if line:
                line.finish(text.epoch_text(self._epochs[-1], len(self._epochs)))

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return bool(self._loader)  # an iterator has no length, and is true

    def __getattr__(self, name: str) -> object:
        return getattr(object.__getattribute__(self, "_loader"), name)


class _Line:
    """A line that is redrawn about once a second, on a terminal or in a notebook."""

    def __init__(self, phases: Phases, clock: Clock, total: int | None) -> None:
        self._phases, self._clock, self._total = phases, clock, total
        self._file = progress_stream()
        in_log = not self._file.isatty() and self._file is not sys.stdout
        self._bar = bar(bar_format="{desc}", leave=False, disable=in_log)
        self._due_s = clock.now() + REDRAW_S

    def draw(self) -> None:
        if self._clock.now() >= self._due_s:
            line = text.epoch_line(self._phases.result(), self._total)
            # A line that fills the last column of a terminal would begin a new one.
            width = shutil.get_terminal_size().columns - 1 if self._file.isatty() else None
            self._bar.set_description_str(line[:width])
            self._due_s = self._clock.now() + REDRAW_S

    def finish(self, said: str) -> None:
        self._bar.close()
        print(said, file=self._file, flush=True)


@dataclass(frozen=True, kw_only=True)
class EpochPhases:
    """Where an epoch's time went, in seconds; None for what cannot be known."""

    ended: str
    """exhausted, stopped (as by break), failed (the loader raised) or running."""
    steps: int
    """Batches that were delivered."""
    timed_steps: int
    """Whole steps after the first; `host_s` holds sums over them."""
    epoch_s: float
    """From creating the iterator to the end of the epoch, CUDA's work included."""
    startup_s: float
    """Creating the iterator, which starts workers."""
    first_wait_s: float | None
    """The wait for the first batch."""
    first_step_s: float | None
    """The step with the first batch; libraries choose algorithms and compile here."""
    shutdown_s: float | None
    """The last next(), which yields no batch and stops workers."""
    host_s: Mapping[str, float | None]
    """Phase -> seconds on the host's clock; "step" is all but the wait."""
    device_s: Mapping[str, float | None] | None
    """Phase -> seconds on CUDA's current stream, idle time included; None without CUDA."""
    device_steps: int
    """Timed steps that `device_s` is a sum over, from the first on."""


class Phases:
    """Records the phases of one epoch.

    A step that calls no module with parameters has only a wait and a step.  Without gradients,
    what follows the forward is rest.  With gradients and without an optimizer step it counts as
    backward (gradient accumulation), unless no step has an optimizer: then it is unknown.  A model
    that is compiled in place, or called inside a compiled function, is not seen.

    Args:
        clock: a fake one in tests.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now
        self._ended = "running"
        self._begun_s, self._end_s = clock.now(), None
        self._startup_s = self._apart_s = 0.0
        self._first_wait_s = self._first_step_s = self._shutdown_s = None
        self._steps = self._timed_steps = 0
        self._host_s, self._device_s = defaultdict(float), None
        self._marks: list[tuple[str, float, object]] = []  # phase that begins, moment, CUDA event
        self._events: list[list[tuple[str, object]]] = []  # the same of every timed step
        self._torch, self._handles, self._looking = None, [], None
        self._searching = True  # until the end of the first step that calls a module
        self._thread = None  # the loop's, while it is inside a step
        self._depth = 0  # calls of outermost modules that go on
        self._updated = self._ever_updated = False

    def over(self, batches: Iterable, after_step: Callable[[], None] | None = None) -> Iterator:
        """Yield a loader's batches, the same objects in the same order.

        Args:
            batches: the loader.
            after_step: called between steps; its time counts for no phase.
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
        """Return what is known so far; the device's seconds only at the end."""
        end_s = self._now() if self._end_s is None else self._end_s
        return EpochPhases(
            ended=self._ended,
            steps=self._steps,
            timed_steps=self._timed_steps,
            epoch_s=end_s - self._begun_s - self._apart_s,
            startup_s=self._startup_s,
            first_wait_s=self._first_wait_s,
            first_step_s=self._first_step_s,
            shutdown_s=self._shutdown_s,
            host_s=self._known(dict(self._host_s)),
            device_s=None if self._device_s is None else self._known(self._device_s),
            device_steps=0 if self._device_s is None else len(self._events),
        )

    def _known(self, seconds: Mapping[str, float]) -> dict[str, float | None]:
        split = {phase: seconds.get(phase, 0.0) for phase in PHASES}
        split["step"] = sum(split.values()) - split["wait"]
        if "forward" not in seconds:
            split |= dict.fromkeys(PHASES[1:])
        elif "backward" in seconds and not self._ever_updated:
            split |= dict.fromkeys(("backward", "rest"))
        return split

    def _mark(self, phase: str) -> None:
        self._marks.append((phase, self._now(), self._event()))

    def _event(self) -> object:
        """Record an event in CUDA's queue; the host does not wait."""
        cuda = self._torch and self._torch.cuda
        # Every time: a loader's worker that was forked meanwhile must not touch CUDA.
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
        if self._first_wait_s is None:
            self._first_wait_s = self._marks[1][1] - self._marks[0][1]
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

    # A hook on all modules slows every call of every layer.  So one finds the outermost modules in
    # one step, and later steps have hooks on these alone.

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
        # Methods of the base class: the user's own parameters() may return anything, and a
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
    """Calls a method of `of`, only from the loop's thread and inside its steps."""

    def __init__(self, of: Phases, method: Callable[[object], None], torch: object) -> None:
        self.of, self._method, self._is_compiling = of, method, torch.compiler.is_compiling

    def __call__(self, module: object, *_: object) -> None:
        # A compiler would trace this as a part of the model.
        if not self._is_compiling() and self.of._thread == get_ident():
            self._method(module)

    def __reduce__(self) -> tuple:
        # A model that the loop saves or copies takes its hooks along.  There this becomes a
        # function of the standard library that does nothing, whatever its arguments.
        return getattr, (nullcontext(), "__exit__")
