"""Search for the arguments of a DataLoader with which a training is fastest.

    1. workers, their threads, in_order          successive halving  ─▶ the best
    2. prefetching, pinned memory, persistence   successive halving  ─▶ the best
    3. the best beside the loader as it is       paired blocks       ─▶ its gain, with an interval

The third step measures the best again: the best of many noisy numbers looks better than it is.
"""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit import units
from labkit.analysis.compare import NOTHING, Comparison
from labkit.analysis.halving import Blocks, Halved, halve, is_as_fast
from labkit.analysis.thresholds import DELTA
from labkit.diagnosis.arms import Stopped, in_one_line
from labkit.diagnosis.facts import DEFAULT_PREFETCH_FACTOR
from labkit.diagnosis.loaders import OneThread, written
from labkit.diagnosis.thresholds import (
    FEWEST_PAIRS,
    MOST_PAIRS,
    OTHERS_END_SHARE,
    WORKERS_END_SHARE,
)  # fmt: skip
from labkit.language import Text, shown

if TYPE_CHECKING:
    from labkit.settings import Settings


class Arguments(NamedTuple):
    """The arguments of a DataLoader that are searched."""

    num_workers: int
    one_thread: bool = False
    """Whether each worker computes in one thread."""
    in_order: bool = True
    prefetch_factor: int = DEFAULT_PREFETCH_FACTOR
    persistent_workers: bool = False
    pin_memory: bool = False


class Trials(ABC):
    """What can be tried, and how: of a user's loader, or of a pipeline of settings."""

    now: Arguments
    """The arguments as they are."""
    changeable: frozenset[str]
    """Names of the arguments that can be changed."""
    most_workers: int
    trial_s = 0.0
    """About how long one trial takes; 0 where that is not known."""
    what = "DataLoader"
    """What takes the arguments."""

    def why_not(self, arguments: Arguments) -> str:
        """Return the reason why arguments cannot be tried here; "" where they can."""
        return ""

    @abstractmethod
    def opened(
        self, candidates: Sequence[Arguments]
    ) -> AbstractContextManager[Callable[[Arguments], float]]:
        """Open a context with a function that measures the seconds of an epoch.

        The function raises where the candidate does not work.
        """

    def as_given(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return changes as the arguments that a user writes."""
        return dict(changes)

    def with_changes(self, changes: Mapping[str, Any]) -> Settings | None:
        """Return the settings with changes as of `as_given`; None where a loader is tuned."""
        return None


# --- what is tried ----------------------------------------------------------------------------


def worker_candidates(trials: Trials) -> list[Arguments]:
    """Return what the first step tries, the preferred ones first: fewest workers, as it is now.

    All have persistent workers, so that starting workers, which is the second step's question,
    does not count here.
    """
    now, most = trials.now, trials.most_workers
    # Steps of a third, as more workers are rarely faster by more than their share.
    counts = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128}
    counts = {n for n in counts if n < most} | {most, now.num_workers}
    candidates = []
    for count in sorted(counts):
        plain = _with_workers(trials, count)
        candidates.append(plain)
        if count > 1 and "one_thread" in trials.changeable and not now.one_thread:
            candidates.append(plain._replace(one_thread=True))
        if count in (2, most) and count > 1 and "in_order" in trials.changeable and now.in_order:
            candidates.append(plain._replace(in_order=False))
    return candidates


def within_time(
    candidates: Sequence[Arguments], now: Arguments, most_candidates: float
) -> list[Arguments]:
    """Leave out numbers of workers until the candidates of the first step are few enough.

    No workers, as many as now and the most stay, in the end without other arguments.

    Args:
        candidates: as of `worker_candidates`.
        now: the arguments as they are.
        most_candidates: how many can be tried; the fewest that are returned may be more.
    """
    by_count = {each.num_workers: each for each in reversed(candidates)}  # the first one of each
    most = max(by_count)
    ends = {0, most, now.num_workers}
    choices = [list(candidates)]
    # Each number of workers is so many times the one before.
    for ratio in (2, 4, 8, 16, 32, 64, 128):
        counts = ends | {ratio**power for power in range(most.bit_length())}
        choices.append([each for each in candidates if each.num_workers in counts])
    choices.append([by_count[count] for count in sorted(ends & by_count.keys())])
    return next((some for some in choices if len(some) <= most_candidates), choices[-1])


def _with_workers(trials: Trials, count: int) -> Arguments:
    now = trials.now
    if not count:
        return Arguments(0, pin_memory=now.pin_memory)
    kept = "persistent_workers" in trials.changeable
    return now._replace(num_workers=count, persistent_workers=kept or now.persistent_workers)


def other_candidates(trials: Trials, best: Arguments) -> list[Arguments]:
    """Return what the second step tries, the preferred ones first: fewest changes.

    Args:
        trials: what can be tried.
        best: what came of the first step.
    """
    now, changeable = trials.now, trials.changeable
    choices: dict[str, list] = {name: [value] for name, value in best._asdict().items()}
    if "pin_memory" in changeable:
        choices["pin_memory"] = [now.pin_memory, not now.pin_memory]
    if best.num_workers:
        if "persistent_workers" in changeable:
            choices["persistent_workers"] = [now.persistent_workers, not now.persistent_workers]
        if best.in_order != now.in_order:  # batches ahead may help as much, and keep the order
            choices["in_order"] = [now.in_order, best.in_order]
    first = [values[0] for values in choices.values()]
    candidates = [Arguments(*values) for values in itertools.product(*choices.values())]
    if best.num_workers and "prefetch_factor" in changeable:
        candidates += [_with_other_prefetch_factor(trials, each) for each in candidates]

    def changes(candidate: Arguments) -> tuple[bool, int]:
        differ = sum(value != kept for value, kept in zip(candidate, first))
        return candidate.in_order != now.in_order, differ

    return sorted(dict.fromkeys(candidates), key=changes)


def _with_other_prefetch_factor(trials: Trials, arguments: Arguments) -> Arguments:
    # The first one whose batches fit is tried.  Where the order is free, a batch waits behind what
    # a slow worker was given before: fewer ahead.
    deeper = [n for n in ((8, 4) if arguments.in_order else (4,)) if n > arguments.prefetch_factor]
    fitting = [n for n in deeper if not trials.why_not(arguments._replace(prefetch_factor=n))]
    # What does not fit stays a candidate, so that the reason is shown.
    (other,) = fitting[:1] or deeper[-1:] or [DEFAULT_PREFETCH_FACTOR]
    return arguments._replace(prefetch_factor=other)


def changes_of(now: Arguments, best: Arguments) -> dict[str, Any]:
    """Return the arguments to change, by name; `one_thread` is no argument of a DataLoader."""
    changes: dict[str, Any] = {name: getattr(best, name) for name in _differing(now, best)}
    if now.num_workers and not best.num_workers:  # torch refuses them without workers
        for name in ("one_thread", "in_order"):
            changes.pop(name, None)
        if "prefetch_factor" in changes:
            changes["prefetch_factor"] = None
    return changes


def label_of(now: Arguments, arguments: Arguments) -> str:
    """Return the arguments that differ from those now: "num_workers=2, in_order=False"."""
    parts = (
        "one thread in each worker" if name == "one_thread" else f"{name}={value}"
        for name, value in changes_of(now, arguments).items()
    )
    return Text(", ").join(parts) or Text("as it is")


# --- the search -------------------------------------------------------------------------------


def search(trials: Trials, *, budget_s: float, say: Callable[[str], None]) -> Tuned:
    """Find the fastest arguments, and measure how much faster they are.

    Args:
        trials: what can be tried.
        budget_s: seconds of measuring; a trial that has begun is finished.
        say: called with what is measured next.

    Raises:
        Stopped: the budget is too short, or nothing can be measured.
    """
    now, begun_s, spent_s, count = trials.now, time.monotonic(), 0.0, 0
    left_out: dict[str, str] = {}
    tried: set[Arguments] = set()

    def before(end_s: float) -> Callable[[], bool]:
        return lambda: spent_s < end_s

    def fitting(candidates: Sequence[Arguments]) -> list[Arguments]:
        reasons = {candidate: trials.why_not(candidate) for candidate in candidates}
        left_out.update({label_of(now, each): why for each, why in reasons.items() if why})
        return [candidate for candidate, why in reasons.items() if not why]

    def measure(step: str, trial: Callable[[Arguments], float], each: Arguments) -> float | None:
        nonlocal spent_s, count
        say(Text("{step}: {arguments}").format(step=step, arguments=label_of(now, each)))
        count += 1
        tried.add(each)
        trial_begun_s = time.monotonic()
        try:
            return trial(each)
        except Exception as error:  # the user's own code may raise anything
            left_out[label_of(now, each)] = in_one_line(error)
            return None
        finally:
            spent_s += time.monotonic() - trial_begun_s

    def best_of(
        step: str,
        trial: Callable,
        candidates: Sequence[Arguments],
        fit: Sequence[Arguments],
        end_s: float,
        enough_trials: float,
    ) -> Halved:
        halved = halve(partial(measure, step, trial), candidates, has_time=before(end_s))
        enough_s = math.ceil(enough_trials * max(trials.trial_s, spent_s / count))
        no_time = Text("no time for it in budget_s={budget_s:g}; {enough_s} is enough for all")
        no_time = no_time.format(budget_s=budget_s, enough_s=enough_s)
        left_out.update({label_of(now, each): no_time for each in fit if each not in tried})
        if halved.best is None and halved.blocks.failed:
            raise Stopped([*left_out.values()][-1])
        return replace(halved, best=halved.best or candidates[0])

    fit = fitting(worker_candidates(trials))
    end_s = WORKERS_END_SHARE * budget_s
    candidates = within_time(fit, now, end_s / (trials.trial_s or 1e-9))
    _check_time(budget_s, trials.trial_s, len(candidates))
    with trials.opened(candidates) as trial:
        enough = len(fit) / WORKERS_END_SHARE
        workers = best_of("workers", trial, candidates, fit, end_s, enough)
    fit = fitting(other_candidates(trials, workers.best))
    # Time for the third step is kept, and what the second has no time for is left out.
    trial_s, pair_trials = spent_s / count or 1e-9, 2 * FEWEST_PAIRS
    end_s = min(OTHERS_END_SHARE * budget_s, budget_s - pair_trials * trial_s)
    candidates = fit[: max(int((end_s - spent_s) / trial_s), 1)]
    with trials.opened(list(dict.fromkeys([*candidates, now]))) as trial:
        # The first step may end a trial late.
        enough = max(
            (len(fit) + 1) / (OTHERS_END_SHARE - WORKERS_END_SHARE),
            (len(fit) + 1 + pair_trials) / (1 - WORKERS_END_SHARE),
        )
        others = best_of("other arguments", trial, candidates, fit, end_s, enough)
        has_time = before(budget_s)
        compare = partial(measure, "the best and as it is", trial)
        pairs: Blocks[Arguments] = Blocks(compare, has_time)
        while others.best != now and not pairs.failed and pairs.count < MOST_PAIRS and has_time():
            pairs.run([now, others.best])
    if pairs.failed:
        raise Stopped(left_out[label_of(now, pairs.failed.pop())])
    best, compared = others.best, pairs.compared(others.best, now)
    if compared.low is None or is_as_fast(_inverse(compared)):
        best = now
    changes = trials.as_given(changes_of(now, best))
    return Tuned(
        changes=changes,
        line=f"{trials.what}(..., {written(changes)})" if changes else "",
        compared=compared,
        tried="" if others.best == now else label_of(now, others.best),
        unchanged=dict(_unchanged(trials, best, workers, others, compared)),
        left_out=left_out,
        measured={
            label_of(now, one): halved.blocks.compared(one, halved.best)
            for halved in (workers, others)
            for one in halved.blocks.measured
        },
        trials=count,
        took_s=time.monotonic() - begun_s,
        budget_s=budget_s,
        settings=trials.with_changes(changes),
    )


def _check_time(budget_s: float, trial_s: float, candidates: int) -> None:
    needed_s = math.ceil(candidates * trial_s / WORKERS_END_SHARE)
    if needed_s > budget_s:
        short = Text(
            "budget_s must be at least {needed_s} to try {candidates} sets of arguments once, as "
            "each takes {seconds}, got {budget_s:g}; give it more seconds"
        )
        raise Stopped(
            short.format(
                needed_s=needed_s,
                candidates=candidates,
                seconds=units.seconds(trial_s),
                budget_s=budget_s,
            )
        )


def _inverse(compared: Comparison) -> Comparison:
    return Comparison(log_ratios=tuple(-log for log in compared.log_ratios))


def _is_no_gain(pairs: Comparison) -> bool:
    """Return whether other arguments are shown to be at most 3 % faster than those now.

    Args:
        pairs: the time with the others, divided by the time as it is.
    """
    return pairs.low is not None and 1 / pairs.low <= 1 + DELTA


def _unchanged(
    trials: Trials, best: Arguments, workers: Halved, others: Halved, pairs: Comparison
) -> Iterator[tuple[str, str]]:
    """Yield what is not worth changing, and why: its name and "no difference".

    Args:
        trials: what was tried.
        best: what is recommended.
        workers: the result of the first step.
        others: that of the second.
        pairs: the time of its best divided by the time as it is.
    """
    changed, tried = (changes_of(trials.now, each) for each in (best, others.best))
    for name in Arguments._fields:
        if name in changed:
            continue
        label = "threads of a worker" if name == "one_thread" else name
        if name in tried:  # measured together with the other changes
            if _is_no_gain(pairs):
                yield label, effect(tried[name], pairs)
            continue
        compared = [
            (getattr(one, name), compared)
            for halved in (workers, others)
            for one in halved.blocks.measured
            if _differing(one, halved.best) == [name]
            and (compared := halved.blocks.compared(one, halved.best)).blocks
        ]
        if compared:
            value, fastest = min(compared, key=lambda pair: pair[1].ratio)
            yield label, effect(value, fastest)


def _differing(one: Arguments, other: Arguments) -> list[str]:
    return [name for name in one._fields if getattr(one, name) != getattr(other, name)]


def effect(value: object, compared: Comparison) -> str:
    """Return what another value of an argument changes, in words.

    Args:
        value: the other value.
        compared: the time with it, divided by the time without.
    """
    low, high = compared.interval
    if low is not None and low >= 1 - DELTA and high <= 1 + DELTA:
        return "no difference"
    if is_as_fast(compared):
        return "no gain shown"
    times = units.normalized(compared.ratio, *compared.interval)
    return Text("{value} takes {times} times as long").format(value=str(value), times=times)


# --- the result -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The loader arguments that `tune` found; prints as one screen."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the DataLoader to change -> their values; empty: none is shown to be faster."""
    line: str = ""
    """The line of code with these changes."""
    compared: Comparison = NOTHING
    """The time of an epoch with the best arguments that were tried, divided by the time as it is;
    no blocks where the loader as it is was the fastest, or where there was no time."""
    tried: str = ""
    """The best arguments that were tried, as "num_workers=2"; "" where those now were the best."""
    unchanged: Mapping[str, str] = field(default_factory=dict)
    """Argument that is not worth changing -> why."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Arguments that could not be tried -> why."""
    measured: Mapping[str, Comparison] = field(default_factory=dict)
    """Arguments -> their time divided by that of the best of their step."""
    trials: int = 0
    took_s: float = 0.0
    budget_s: float = 0.0
    settings: Settings | None = None
    """The settings with the changes, where settings were tuned."""
    broken: str = ""
    """Why there is no result; "" where there is one."""

    @property
    def times_as_fast(self) -> float | None:
        """How many times as fast the best arguments are; None where they were not compared."""
        return 1 / self.compared.ratio if self.interval else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `times_as_fast`."""
        low, high = self.compared.interval
        return None if low is None else (1 / high, 1 / low)

    def __repr__(self) -> str:
        return "\n".join(map(shown, self._screen()))

    def _screen(self) -> Iterator[str]:
        if self.broken:
            yield Text("Tuning stopped: {why}.").format(why=self.broken)
            return
        longer_s = 10 * math.ceil(self.budget_s / 5)
        if self.changes:
            gain = self._gain()
            if self.interval[0] <= 1:
                unsure = Text(
                    "{gain}; the interval includes 1: more time may show it, budget_s={longer_s}"
                )
                gain = unsure.format(gain=gain, longer_s=longer_s)
            yield gain + ":"
            yield self.line
        elif not self.tried:
            yield Text("Nothing is worth changing: nothing that was tried is shown to be faster.")
        elif self.interval is None:
            untimed = Text(
                "Inconclusive: {arguments} was the fastest, and there was no time to compare it "
                "with the loader as it is; more time may show it, budget_s={longer_s}."
            )
            yield untimed.format(arguments=self.tried, longer_s=longer_s)
        elif _is_no_gain(self.compared):
            small = Text(
                "Nothing is worth changing: {arguments} is {gain}, not more than {most} faster."
            )
            most = units.whole_percent(DELTA)
            yield small.format(arguments=self.tried, gain=self._gain(), most=most)
        else:
            unsure = Text(
                "Inconclusive: {arguments} is {gain}; more time may show it, budget_s={longer_s}."
            )
            yield unsure.format(arguments=self.tried, gain=self._gain(), longer_s=longer_s)
        if self.unchanged:
            one = Text("{name}: {why}")
            words = (one.format(name=name, why=why) for name, why in self.unchanged.items())
            yield Text("Not worth changing: {words}.").format(words=Text("; ").join(words))
        reasons = dict.fromkeys(self.left_out.values())
        for reason in [*reasons][:3]:
            first, *others = (label for label, why in self.left_out.items() if why == reason)
            arguments = Text(", ").join([first, "…"] if others else [first])
            not_tried = Text("Not tried, {arguments}: {reason}")
            yield not_tried.format(arguments=arguments, reason=reason)
        yield Text("{sets} of arguments in {trials}, {took}.").format(
            sets=units.count(len(self.measured), "set"),
            trials=units.count(self.trials, "trial"),
            took=units.whole_seconds(self.took_s),
        )

    def _gain(self) -> Text:
        low, high = self.interval
        gain = Text("{ratio} times as fast {interval}")
        interval = f"[{low:.2f}, {high:.2f}]"
        return gain.format(ratio=f"{self.times_as_fast:.2f}", interval=interval)

    def details(self) -> str:
        """Return what was measured of all arguments, as lines."""
        line = Text("{arguments}: {times} of the time of the best of its step, {blocks}")
        return "\n".join(
            shown(
                line.format(
                    arguments=label,
                    times=units.normalized(each.ratio, *each.interval),
                    blocks=units.count(each.blocks, "block"),
                )
            )
            for label, each in self.measured.items()
        )

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON holds it: numbers, strings, lists and dicts."""
        return {
            "changes": {
                name: str(value) if isinstance(value, OneThread) else value
                for name, value in self.changes.items()
            },
            "line": self.line,
            "times_as_fast": self.times_as_fast,
            "interval": self.interval,
            "unchanged": dict(self.unchanged),
            "left_out": dict(self.left_out),
            "measured": {label: each.ratio for label, each in self.measured.items()},
            "broken": self.broken,
        }
