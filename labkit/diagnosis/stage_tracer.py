"""What making a sample takes, stage by stage, by Python's own profile hook.

    call(dataset[key]) ── every call and return ──▶ rules ──▶ read 1.2 ms, decode 5.0 ms,
                                                              torchvision.Resize 0.9 ms, …

Seconds are counted where they are spent: a read inside of a decoder is reading.  Deterministic,
as what samples at intervals is blind to what is short: pyinstrument looks at calls and returns
only, so a read of half an interval before a long decode is never seen.  The hook itself costs about
half a microsecond for each call; that is measured (`event_cost`) and taken off.

Main trap: what the hook is not told.  A function of a C extension made with Cython counts for
whoever called it; and Python 3.11 runs loops without any call 1.1 to 1.6 times as long under a
hook, so seconds in C are counted apart, for the others to be corrected (`stage_summary`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from labkit.diagnosis import stage_rules as rules

# Where the innermost stage was begun by one of these, which functions begin a stage of their own.
_SEEN_INSIDE = {
    rules.OPEN: frozenset((rules.READS, rules.DECODES, rules.STEP)),
    rules.READS_OPENLY: frozenset((rules.READS, rules.DECODES, rules.STEP, rules.READS_OPENLY)),
    rules.STEP: frozenset((rules.READS, rules.DECODES)),
    rules.DECODES: frozenset((rules.READS,)),
    rules.READS: frozenset(),
}
_KINDS = {rules.READS: rules.READ, rules.READS_OPENLY: rules.READ, rules.DECODES: rules.DECODE}
_CALIBRATION_CALLS, _CALIBRATION_TRIES = 300, 7


class Counted(NamedTuple):
    """What a stage took."""

    wall_s: float
    cpu_s: float
    """Of the process, with all its threads."""
    thread_cpu_s: float
    c_s: float
    """Of `thread_cpu_s`, what functions in C took."""
    events: int
    """Calls and returns that the hook saw."""


Totals = dict[tuple[str, str], Counted]
"""By kind and name."""


def clocks() -> tuple[float, float, float]:
    """Read wall seconds, CPU seconds of the process, CPU seconds of this thread."""
    return time.perf_counter(), time.process_time(), time.thread_time()


class Tracer:
    """Adds up the seconds of stages over calls; for one thread.

    Args:
        read_clocks: as `clocks`.
    """

    def __init__(self, read_clocks: Callable[[], tuple[float, float, float]] = clocks) -> None:
        self._clocks = read_clocks
        self._totals: dict[tuple[str, str], list] = {}
        # (frame, begun by a C function?, totals, what begins a stage inside, first argument)
        self._stack: list[tuple] = []
        self._in_c: tuple[FrameType, float] | None = None  # who called it, and when
        self._rules: dict[int, tuple] = {}  # by the code's id; the code is kept, so it stays its

    def call(self, function: Callable, *args: object) -> object:
        """Call a function, such as `next` with an iterator, and count what that does."""
        before = sys.getprofile()
        own = type(args[0]).__name__  # what is no call at all: a list's, or a memory map's lookup
        self._stack = [self._entry(None, False, rules.TRANSFORM, own, rules.OPEN, None)]
        self._mark = self._clocks()
        sys.setprofile(self._on_event)
        try:
            return function(*args)
        finally:
            sys.setprofile(before)
            self._charge()
            self._stack, self._in_c = [], None

    def take(self) -> Totals:
        """Give what was counted since the last time."""
        totals, self._totals = self._totals, {}
        return {key: Counted(*counted) for key, counted in totals.items()}

    def _on_event(self, frame: FrameType, event: str, arg: object) -> None:
        top = self._stack[-1]
        top[2][4] += 1
        if event == "call":
            entry = self._enter(frame, top)
        elif event == "c_call":
            entry = self._enter_builtin(frame, arg, top)
            if entry is None and self._in_c is None:
                self._in_c = frame, time.thread_time()
        else:
            if top[0] is frame and top[1] == (event != "return"):
                self._charge()
                self._stack.pop()
            elif self._in_c is not None and self._in_c[0] is frame and event != "return":
                top[2][3] += time.thread_time() - self._in_c[1]
                self._in_c = None
            return
        if entry is not None:
            self._charge()
            self._stack.append(entry)

    def _charge(self) -> None:
        now, (_, in_c, counted, *_) = self._clocks(), self._stack[-1]
        for i in range(3):
            counted[i] += now[i] - self._mark[i]
        counted[3] += now[2] - self._mark[2] if in_c else 0.0
        self._mark = now

    def _enter(self, frame: FrameType, top: tuple) -> tuple | None:
        if not top[3]:
            return None
        code = frame.f_code
        known = self._rules.get(id(code))
        if known is None:
            module = frame.f_globals.get("__name__") or ""
            known = self._rules[id(code)] = (code, rules.rule_of(code, module))
        rule = known[1]
        if rules.STEP not in top[3] or rule == rules.PART:
            if rule not in top[3]:
                return None
            return self._entry(frame, False, _KINDS[rule], rules.name_of(frame, None), rule, None)
        subject = rules.first_argument(frame)
        if len(self._stack) == 1:  # what the data set itself does
            rule = rules.OPEN
        elif rule == rules.BY_OBJECT:
            same = subject is not None and subject is top[4]
            rule = rules.OPEN if same else rules.rule_of_object(subject, code)
        elif rule == rules.STEP and rules.READS_OPENLY in top[3] and rules.waits(code.co_name):
            rule = rules.READS
        elif rule == rules.STEP and subject is not None and subject is top[4]:
            rule = rules.OPEN  # a method of the data set's own
        elif rule == rules.STEP and rules.takes_bytes(frame):
            rule = rules.DECODES
        kind = _KINDS.get(rule, rules.TRANSFORM)
        return self._entry(frame, False, kind, rules.name_of(frame, subject), rule, subject)

    def _enter_builtin(self, frame: FrameType, function: object, top: tuple) -> tuple | None:
        if not top[3]:
            return None
        rule = rules.rule_of_builtin(function)
        if rule not in top[3]:
            return None
        if rules.READS_OPENLY in top[3] and rules.waits(function.__name__):
            rule = rules.READS
        kind = _KINDS.get(rule, rules.TRANSFORM)
        name = rules.name_of_builtin(function, frame.f_globals)
        return self._entry(frame, True, kind, name, rule, None)

    def _entry(
        self, frame: FrameType | None, is_builtin: bool, kind: str, name: str, rule: str,
        subject: object,
    ) -> tuple:  # fmt: skip
        counted = self._totals.setdefault((kind, name), [0.0, 0.0, 0.0, 0.0, 0])
        return frame, is_builtin, counted, _SEEN_INSIDE[rule], subject


def event_cost() -> float:
    """Measure what the hook costs for each call or return that begins no stage.

    Returns:
        CPU seconds, about: it depends on what is called.
    """

    def nothing(a: int = 0, b: int = 1) -> None:
        pass

    def work() -> None:
        for _ in range(_CALIBRATION_CALLS):
            nothing()

    plain, traced = [], []
    for _ in range(_CALIBRATION_TRIES):
        started_s = time.thread_time()
        work()
        plain.append(time.thread_time() - started_s)
        tracer = Tracer()
        tracer.call(_inside_a_stage, work)
        traced.append(tracer.take().values())
    # The least of several: a busy machine must not make the hook look dear.
    spent_s = min(sum(one.thread_cpu_s for one in counted) for counted in traced)
    return max(0.0, spent_s - min(plain)) / sum(one.events for one in traced[0])


def _inside_a_stage(work: Callable[[], None]) -> None:
    work()
