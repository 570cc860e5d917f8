"""Which remedies are worth a person's time, in which order, and what the bottleneck is.

    measured ─▶ every remedy's precondition ─▶ its parts changed, simulated ─▶ at most five

Main trap: static advice.  No remedy is named because a setting looks wrong; each is named for
what the simulation of the measured parts says it gains, and left out where that is nothing: more
workers where the cores are exhausted, pinning where copies take no time, a faster medium where
decoding is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.diagnosis.measured import Measured
from labkit.diagnosis.remedy import Remedy
from labkit.diagnosis.remedy_list import EASE, REMEDIES
from labkit.statistics import DELTA

MOST = 5
# Gains closer to each other than this are one: the change that is made more easily comes first.
EQUAL = 0.03


def propose(measured: Measured) -> tuple[Remedy, ...]:
    """List what would gain something, the most first; of equals the easiest first.

    Args:
        measured: of a person's pipeline.

    Returns:
        At most five, each predicted to save more than what counts as no practical difference.
    """
    found = [remedy for remedies in REMEDIES for remedy in remedies(measured)]
    worth = [remedy for remedy in found if remedy.predicted <= 1 - DELTA]
    ordered: list[Remedy] = []
    while worth:
        best = min(remedy.predicted for remedy in worth)
        # The order of REMEDIES is that of how easily a change is made.
        first = next(remedy for remedy in worth if remedy.predicted <= best + EQUAL)
        worth.remove(first)
        ordered.append(first)
    return tuple(ordered[:MOST])


# A change that can be made at once is the answer if it brings so much of what the best brings;
# what would take rewriting, and is a bound besides, is only where nothing else does.
MOST_OF_IT, ENOUGH_OF_IT = 0.8, 0.4


def bottleneck_of(remedies: Sequence[Remedy]) -> str:
    """Say what to remove first.

    Args:
        remedies: as proposed, at least one.
    """
    easy = sorted(
        (remedy for remedy in remedies if not remedy.at_most),
        key=lambda remedy: EASE.index(remedy.bottleneck),
    )
    most = 1 - min(remedy.predicted for remedy in remedies)
    most_easy = 1 - min((remedy.predicted for remedy in easy), default=1.0)
    if most_easy < ENOUGH_OF_IT * most:
        return min(remedies, key=lambda remedy: remedy.predicted).bottleneck
    return next(r.bottleneck for r in easy if 1 - r.predicted >= MOST_OF_IT * most_easy)
