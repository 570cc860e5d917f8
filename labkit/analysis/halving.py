"""Find the fastest of several candidates by successive halving.

    block 1      a b c d e f     each candidate once, in random order
    block 2, 3   a   c d         the slower half is left out, the rest are measured twice as often
    block 4 - 7  a     d

Candidates are compared within the blocks that have both, so that drift of the machine cancels.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from labkit.analysis.compare import Comparison
from labkit.analysis.thresholds import DELTA, NEGLIGIBLE_SHARE

K = TypeVar("K", bound=Hashable)


class Blocks(Generic[K]):
    """Times of candidates, measured in interleaved blocks.

    Args:
        measure: returns the seconds of a candidate; None where it cannot be measured.
        has_time: asked before each measurement.
    """

    def __init__(
        self, measure: Callable[[K], float | None], has_time: Callable[[], bool] = lambda: True
    ) -> None:
        self._measure, self._has_time, self._order = measure, has_time, random.Random(0)
        self._log_s: dict[K, dict[int, float]] = {}
        self.failed: set[K] = set()
        """Candidates that could not be measured; they are not measured again."""
        self.count = 0
        """Number of blocks until now."""

    def run(self, candidates: Sequence[K]) -> None:
        """Measure each candidate once, in random order, as far as there is time."""
        for candidate in self._order.sample(candidates, len(candidates)):
            if candidate in self.failed:
                continue
            if not self._has_time():
                break
            seconds = self._measure(candidate)
            if seconds is None:
                self.failed.add(candidate)
            else:
                self._log_s.setdefault(candidate, {})[self.count] = math.log(seconds)
        self.count += 1

    @property
    def measured(self) -> list[K]:
        """Candidates that were measured at least once, whatever came of them later."""
        return list(self._log_s)

    def compared(self, one: K, other: K) -> Comparison:
        """Return the time of one candidate divided by that of another."""
        times, others = self._log_s.get(one, {}), self._log_s.get(other, {})
        shared = [block for block in times if block in others]
        return Comparison(log_ratios=tuple(times[block] - others[block] for block in shared))


@dataclass(frozen=True, kw_only=True)
class Halved(Generic[K]):
    """The result of `halve`."""

    best: K | None
    """The first of the candidates that are as fast as the fastest; None where none was measured."""
    blocks: Blocks[K]
    """What was measured of every candidate."""


def halve(
    measure: Callable[[K], float | None],
    candidates: Sequence[K],
    *,
    has_time: Callable[[], bool] = lambda: True,
) -> Halved[K]:
    """Measure candidates until the fastest is known: the slower half goes, again and again.

    Of those that are as fast as the fastest (`is_as_fast`), the one that comes first is preferred.
    It ends when one is left, when the rest are shown to be within 3 % of the fastest, or when the
    time is over; candidates that were not measured until then are left out.

    Args:
        measure: returns the seconds of a candidate; None where it cannot be measured.
        candidates: the preferred ones first.
        has_time: asked before each measurement.

    >>> halve({"four": 1.0, "two": 1.005, "none": 2.0}.get, ["none", "two", "four"]).best
    'two'
    """
    blocks: Blocks[K] = Blocks(measure, has_time)
    # Of many candidates, half are left out after one measurement.
    left, repeats = list(candidates), 2 if len(candidates) <= 8 else 1
    while left:
        for _ in range(repeats):
            if has_time():
                blocks.run(left)
        working = set(blocks.measured) - blocks.failed
        left = [candidate for candidate in left if candidate in working]
        if not has_time():
            break
        if len(left) > 2:
            left = _faster_half(left, blocks)
        # After 31 blocks the interval is narrow enough, or nothing helps.
        if blocks.count >= 31 or _is_decided(left, blocks):
            break
        repeats *= 2
    return Halved(best=_preferred(left, blocks), blocks=blocks)


def is_as_fast(compared: Comparison) -> bool:
    """Return whether a candidate counts as fast as another one.

    It does where it takes at most 3 % longer, and is not shown to take over 1 % longer.

    Args:
        compared: the candidate's time divided by the other's.
    """
    low = 0.0 if compared.low is None else compared.low
    return compared.ratio <= 1 + DELTA and low <= 1 + NEGLIGIBLE_SHARE


def _fastest(left: Sequence[K], blocks: Blocks[K]) -> K:
    # Each of them has been in the first block.
    return min(left, key=lambda candidate: blocks.compared(candidate, left[0]).ratio)


def _preferred(left: Sequence[K], blocks: Blocks[K]) -> K | None:
    if not left:
        return None
    fastest = _fastest(left, blocks)
    return next(one for one in left if is_as_fast(blocks.compared(one, fastest)))


def _is_decided(left: Sequence[K], blocks: Blocks[K]) -> bool:
    """Return whether all are shown to be within 3 % of the fastest, or one of two to be slower."""
    if len(left) < 2:
        return True
    fastest = _fastest(left, blocks)
    others = [blocks.compared(one, fastest) for one in left if one != fastest]
    if any(each.low is None for each in others):  # after a single block
        return False
    is_slower = len(others) == 1 and others[0].low > 1 + NEGLIGIBLE_SHARE
    return is_slower or all(each.high <= 1 + DELTA for each in others)


def _faster_half(left: Sequence[K], blocks: Blocks[K]) -> list[K]:
    """Return the faster half; the preferred one of those that may be as fast stays as well."""
    fastest = _fastest(left, blocks)
    ratios = {candidate: blocks.compared(candidate, fastest).ratio for candidate in left}
    kept = sorted(left, key=ratios.get)[: (len(left) + 1) // 2]
    # After few blocks, ratios are off by some percent.
    preferred = next(candidate for candidate in left if ratios[candidate] <= 1 + 2 * DELTA)
    if preferred not in kept:
        kept[-1] = preferred
    return [candidate for candidate in left if candidate in kept]
