"""What making a sample takes, stage by stage, by Python's own profile hook.

    call(dataset[key]) ── every call and return ──▶ rules ──▶ read 1.2 ms, decode 5.0 ms,
                                                              torchvision.Resize 0.9 ms, …

Seconds are counted where they are spent: a read inside of a decoder is reading.  Deterministic,
as what samples at intervals is blind to what is short: pyinstrument looks at calls and returns
only, so a read of half an interval before a long decode is never seen.  The hook itself costs about
half a microsecond for each call; that is measured (`event_cost`) and taken off.

Main trap: a function of a C extension that is not announced to the hook (those of Cython) counts
for whoever called it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType

from labkit.diagnosis import stage_rules as rules

# Where the innermost stage was begun by one of these, which functions begin a stage of their own.
_SEEN_INSIDE = {
    rules.OPEN: frozenset((rules.READS, rules.DECODES, rules.STEP)),
    rules.STEP: frozenset((rules.READS, rules.DECODES)),
    rules.DECODES: frozenset((rules.READS,)),
    rules.READS: frozenset(),
}
_KINDS = {rules.READS: rules.READ, rules.DECODES: rules.DECODE}
_CALIBRATION_CALLS, _CALIBRATION_TRIES = 300, 7

Totals = dict[tuple[str, str], tuple[float, float, int]]
"""(kind, name) -> wall seconds, CPU seconds, calls and returns that the hook saw."""


class Tracer:
    """Adds up the seconds of stages over calls; for one thread.

    Args:
        clock: wall seconds.
        cpu_clock: CPU seconds of this process, with all its threads.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._totals: dict[tuple[str, str], list] = {}
        # (frame, begun by a C function?, totals, what begins a stage inside, first argument)
        self._stack: list[tuple] = []
        self._rules: dict[int, tuple] = {}  # by the code's id; the code is kept, so it stays its

    def call(self, function: Callable, *args: object) -> object:
        """Call a function, such as `next` with an iterator, and count what that does."""
        before = sys.getprofile()
        own = type(args[0]).__name__  # what is no call at all: a list's, or a memory map's lookup
        self._stack = [self._entry(None, False, rules.TRANSFORM, own, rules.OPEN, None)]
        self._mark = self._clock(), self._cpu_clock()
        sys.setprofile(self._on_event)
        try:
            return function(*args)
        finally:
            sys.setprofile(before)
            self._charge()
            self._stack = []

    def take(self) -> Totals:
        """Give what was counted since the last time."""
        totals, self._totals = self._totals, {}
        return {key: tuple(counted) for key, counted in totals.items()}

    def _on_event(self, frame: FrameType, event: str, arg: object) -> None:
        top = self._stack[-1]
        top[2][2] += 1
        if event == "call":
            entry = self._enter(frame, top)
        elif event == "c_call":
            entry = self._enter_builtin(frame, arg, top)
        else:
            if top[0] is frame and top[1] == (event != "return"):
                self._charge()
                self._stack.pop()
            return
        if entry is not None:
            self._charge()
            self._stack.append(entry)

    def _charge(self) -> None:
        wall_s, cpu_s = self._clock(), self._cpu_clock()
        counted = self._stack[-1][2]
        counted[0] += wall_s - self._mark[0]
        counted[1] += cpu_s - self._mark[1]
        self._mark = wall_s, cpu_s

    def _enter(self, frame: FrameType, top: tuple) -> tuple | None:
        if not top[3]:
            return None
        code = frame.f_code
        known = self._rules.get(id(code))
        if known is None:
            module = frame.f_globals.get("__name__") or ""
            known = self._rules[id(code)] = (code, rules.rule_of(code, module))
        rule, kind = known[1], rules.TRANSFORM
        if top[3] is not _SEEN_INSIDE[rules.OPEN]:
            if rule not in top[3]:
                return None
            return self._entry(frame, False, _KINDS[rule], rules.name_of(frame, None), rule, None)
        subject = rules.first_argument(frame)
        if len(self._stack) == 1:  # what the data set itself does
            rule = rules.OPEN
        elif rule == rules.BY_OBJECT:
            same = subject is not None and subject is top[4]
            rule = rules.OPEN if same else rules.rule_of_object(subject, code)
        elif rule == rules.READS_OPENLY:
            rule, kind = rules.OPEN, rules.READ
        elif rule == rules.STEP and subject is not None and subject is top[4]:
            rule = rules.OPEN  # a method of the data set's own
        kind = _KINDS.get(rule, kind)
        return self._entry(frame, False, kind, rules.name_of(frame, subject), rule, subject)

    def _enter_builtin(self, frame: FrameType, function: object, top: tuple) -> tuple | None:
        if not top[3]:
            return None
        rule = rules.rule_of_builtin(function)
        if rule not in top[3]:
            return None
        kind = _KINDS.get(rule, rules.TRANSFORM)
        name = rules.name_of_builtin(function, frame.f_globals)
        return self._entry(frame, True, kind, name, rule, None)

    def _entry(
        self, frame: FrameType | None, is_builtin: bool, kind: str, name: str, rule: str,
        subject: object,
    ) -> tuple:  # fmt: skip
        counted = self._totals.setdefault((kind, name), [0.0, 0.0, 0])
        return frame, is_builtin, counted, _SEEN_INSIDE[rule], subject


def event_cost() -> tuple[float, float]:
    """Measure what the hook costs for each call or return that begins no stage.

    The least of several tries: a busy machine must not make the hook look dear.

    Returns:
        Wall and CPU seconds.
    """

    def nothing(a: int = 0, b: int = 1, c: int = 2, d: int = 3) -> None:
        pass  # the hook's cost grows with the number of local variables

    def work() -> None:
        for _ in range(_CALIBRATION_CALLS):
            nothing()

    plain, traced = [], []
    for _ in range(_CALIBRATION_TRIES):
        started = time.perf_counter(), time.process_time()
        work()
        plain.append((time.perf_counter() - started[0], time.process_time() - started[1]))
        tracer = Tracer()
        tracer.call(_inside_a_stage, work)
        traced.append(tuple(map(sum, zip(*tracer.take().values()))))
    wall_s, cpu_s = (min(column) for column in list(zip(*traced))[:2])
    plain_wall_s, plain_cpu_s = map(min, zip(*plain))
    events = traced[0][2]
    return max(0.0, wall_s - plain_wall_s) / events, max(0.0, cpu_s - plain_cpu_s) / events


def _inside_a_stage(work: Callable[[], None]) -> None:
    work()
