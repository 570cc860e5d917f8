"""The steady rate of a loader: images per second over whole rounds of its workers.

    arrival   1 2 3 4   5 6 7 8   9 10 11 12   13 14     W = 4 workers
                    └─ a round ┴── a round ─┘  left out

W workers prepare W batches at a time, so that W arrive together or one soon after the other.  The
first round fills the queues; the last one may be incomplete.  Counting starts when the W-th batch
arrives and covers whole rounds from there.

Plain numbers and no imports: storages, which measure disks, are below analysis and use it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple


class SteadyRate(NamedTuple):
    """Images per second, or why there is no such rate."""

    images_per_s: float | None
    reason: str = ""
    """Why `images_per_s` is None."""


def fewest_batches(workers: int) -> int:
    """Return how many batches an epoch must have for a steady rate.

    Args:
        workers: of the loader; 0: the training process loads.

    >>> [fewest_batches(workers) for workers in (0, 1, 2, 3, 16)]
    [6, 6, 6, 9, 48]
    """
    # Of three rounds the first does not count; six batches that come one by one are five intervals.
    return max(6, 3 * workers)


def steady_rate(
    epochs: Iterable[tuple[Sequence[float] | None, Sequence[float] | float]], workers: int
) -> SteadyRate:
    """Return the images per second of one or several epochs in their steady state.

    Seconds and images of all epochs are added up.

    Args:
        epochs: of each, when its batches arrived, in seconds of any clock (None: not recorded),
            and the images of each batch, or of every batch.
        workers: that prepare batches at the same time; 0: the training process loads.

    Returns:
        No rate below `fewest_batches(workers)` in any epoch.

    >>> steady_rate([([3, 3, 5, 5, 7, 7, 9], 8)], workers=2).images_per_s
    8.0
    """
    counted, elapsed_s, fewest = 0.0, 0.0, fewest_batches(workers)
    epochs, a_round = list(epochs), max(workers, 1)
    if not epochs:
        return _none("no epoch was measured")
    for arrivals_s, images in epochs:
        if arrivals_s is None:
            return _none("when batches arrived was not recorded; run it again")
        if len(arrivals_s) < fewest:
            return _none(
                f"a steady rate takes epochs of at least {fewest} batches with {workers} workers, "
                f"got {len(arrivals_s)}; choose more images or a smaller batch_size"
            )
        first = a_round - 1
        last = len(arrivals_s) // a_round * a_round - 1
        elapsed_s += arrivals_s[last] - arrivals_s[first]
        if isinstance(images, int | float):
            counted += (last - first) * images
        else:
            counted += sum(images[first + 1 : last + 1])
    if elapsed_s <= 0:
        return _none("all batches arrived at once")
    return SteadyRate(images_per_s=counted / elapsed_s)


def arrivals_of(waits_s: Sequence[float], step_s: float) -> list[float]:
    """Return when batches arrived, from the waits for them and the mean time between two waits.

    Args:
        waits_s: one per batch.
        step_s: from a batch's arrival until the next one is waited for.
    """
    return [total_s + step * step_s for step, total_s in enumerate(accumulate(waits_s))]


def _none(reason: str) -> SteadyRate:
    return SteadyRate(images_per_s=None, reason=reason)
