"""Compare a measured time with a document's, in words that have a direction.

    a published time ("0.661") or a direction ("faster") ─ agreement() ─▶ one of `WORDS`
    the words of many comparisons ─ answer() ─▶ one sentence

Tables, charts, claims and reports take the words from here.  What was simulated stands beside
them, never in them.  Source: EVIDENCE 1, "Beside the document".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from labkit import units
from labkit.analysis.compare import NO_DIFFERENCE, REAL_BUT_SMALL
from labkit.analysis.rows import Row
from labkit.analysis.thresholds import DELTA

MATCHES = "as published"
SAVES_MORE = "saves more than published"
SAVES_LESS = "saves less than published"
# The published saving is excluded, and no other one is shown.
SAVES_LESS_IF_ANY = "saves less than published (if anything)"
CONFIRMED = "confirmed"
NO_SAVING = "no saving here"
TAKES_LONGER = "takes longer here"
# Of a claim that something takes longer, or makes no difference.
NO_LOSS, TAKES_LESS = "no loss here", "takes less time here"
OUT_OF_REACH = "not reproducible here"
INCONCLUSIVE = "inconclusive"
# Word -> how a sentence says it of one variant, and of several.
WORDS = {
    MATCHES: ("is as published", "are as published"),
    SAVES_MORE: (SAVES_MORE, "save more than published"),
    SAVES_LESS: (SAVES_LESS, "save less than published"),
    SAVES_LESS_IF_ANY: (SAVES_LESS_IF_ANY, "save less than published (if anything)"),
    CONFIRMED: ("is confirmed", "are confirmed"),
    NO_SAVING: ("shows no saving here", "show no saving here"),
    TAKES_LONGER: (TAKES_LONGER, "take longer here"),
    NO_LOSS: ("shows no loss here", "show no loss here"),
    TAKES_LESS: (TAKES_LESS, "take less time here"),
    OUT_OF_REACH: ("is not reproducible here", "are not reproducible here"),
    INCONCLUSIVE: ("is inconclusive", "are inconclusive"),
    "": ("has no verdict", "have no verdict"),
}


def agreement(
    expected: float | str,
    ratio: float,
    low: float,
    high: float,
    verdict: str,
    baseline: Row | None = None,
) -> str:
    """Compare a judged result with that of a document.

    Args:
        expected: the document's normalized time, or the verdict that it predicts: faster, slower,
            or no practical difference.
        ratio: the measured normalized time.
        low: lower end of its 95 % interval.
        high: upper end.
        verdict: what the run says of the variant.
        baseline: what the times are divided by; with it, a published time that faster loading
            cannot reach on this machine counts as out of reach.

    Returns:
        One of `WORDS`.
    """
    if isinstance(expected, str):
        return _direction(expected, ratio, verdict)
    if high - low > abs(1 - expected):
        return INCONCLUSIVE
    if low / (1 + DELTA) <= expected <= high * (1 + DELTA):
        return MATCHES
    is_real = verdict in ("faster", "slower", REAL_BUT_SMALL)
    if is_real and ratio > 1:
        return TAKES_LONGER
    if baseline is not None and is_out_of_reach(expected, low, baseline):
        return OUT_OF_REACH
    if verdict == NO_DIFFERENCE:
        return NO_SAVING
    if expected > high:
        return SAVES_MORE
    return SAVES_LESS if is_real else SAVES_LESS_IF_ANY


def _direction(expected: str, ratio: float, verdict: str) -> str:
    """Compare a verdict with a predicted one; any difference that is real has its direction."""
    if verdict == REAL_BUT_SMALL and expected != NO_DIFFERENCE:
        verdict = "faster" if ratio < 1 else "slower"
    if verdict == expected:
        return CONFIRMED
    if verdict == NO_DIFFERENCE:
        return NO_SAVING if expected == "faster" else NO_LOSS
    return {"faster": TAKES_LESS, "slower": TAKES_LONGER}.get(verdict, INCONCLUSIVE)


def answer(words: Iterable[str]) -> str:
    """Return one sentence on variants with a published time; "" for none.

    Args:
        words: of each variant one of `WORDS`.

    >>> answer(["as published", "no saving here", "as published"])
    'Of 3 variants with a published time, 2 are as published and 1 shows no saving here.'
    """
    counts = Counter(words)
    if not counts:
        return ""
    parts = [f"{counts[word]} {WORDS[word][counts[word] > 1]}" for word in WORDS if counts[word]]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return f"Of {units.count(counts.total(), 'variant')} with a published time, {listed}."


def least_time(baseline: Row) -> float:
    """Return the normalized time that faster loading leaves at best.

    It is the share of the baseline's epochs in which the device computed; where that is not known,
    in which the host trained and waited for the device, or that its rate with the model alone takes
    if that is more (EVIDENCE 2, "A device that stays put").
    """
    if baseline.compute_share is not None:
        return baseline.compute_share
    share = (baseline.step_share or 0.0) + (baseline.sync_share or 0.0)
    if (rate := baseline.device_images_per_s) is not None and baseline.images_per_s is not None:
        share = max(share, min(baseline.images_per_s / rate, 1.0))
    return share


def is_out_of_reach(published: float, low: float, baseline: Row) -> bool:
    """Return whether no remedy of loading saves here what a document saved.

    Args:
        published: the document's normalized time.
        low: lower end of the interval that was measured.
        baseline: what both are divided by.
    """
    return published < min(low, least_time(baseline))


def bound(baseline: Row) -> str:
    """Return why a published time is out of reach: "waiting is 17 % of the epoch"."""
    return f"waiting is {units.whole_percent(1 - least_time(baseline))} of the epoch"
