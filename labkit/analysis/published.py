"""Compare a measured time with a document's, in words that have a direction.

    a published time ("0.661") or a direction ("faster") ─ agreement() ─▶ one of `WORDS`
    the words of many comparisons ─ answer() ─▶ one sentence

Tables, charts, claims and reports take the words from here.  What was simulated stands beside
them, never in them.  Source: EVIDENCE 1, "Beside the document".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from labkit import units
from labkit.analysis.rows import Row
from labkit.analysis.thresholds import DELTA

Agreement = Literal[
    "as published",
    "saves more than published",
    "saves less than published",
    # The published saving is excluded, and no other one is shown.
    "saves less than published (if anything)",
    "confirmed",
    "no saving here",
    "takes longer here",
    # Of a claim that something takes longer, or makes no difference.
    "no loss here",
    "takes less time here",
    "not reproducible here",
    "inconclusive",
    "",
]
# Word -> how a sentence says it of one variant, and of several.
WORDS: dict[Agreement, tuple[str, str]] = {
    "as published": ("is as published", "are as published"),
    "saves more than published": ("saves more than published", "save more than published"),
    "saves less than published": ("saves less than published", "save less than published"),
    "saves less than published (if anything)": (
        "saves less than published (if anything)",
        "save less than published (if anything)",
    ),
    "confirmed": ("is confirmed", "are confirmed"),
    "no saving here": ("shows no saving here", "show no saving here"),
    "takes longer here": ("takes longer here", "take longer here"),
    "no loss here": ("shows no loss here", "show no loss here"),
    "takes less time here": ("takes less time here", "take less time here"),
    "not reproducible here": ("is not reproducible here", "are not reproducible here"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "": ("has no verdict", "have no verdict"),
}


def agreement(
    expected: float | str,
    ratio: float,
    low: float,
    high: float,
    verdict: str,
    baseline: Row | None = None,
) -> Agreement:
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
        return "inconclusive"
    if low / (1 + DELTA) <= expected <= high * (1 + DELTA):
        return "as published"
    is_real = verdict in ("faster", "slower", "real but small")
    if is_real and ratio > 1:
        return "takes longer here"
    if baseline is not None and is_out_of_reach(expected, low, baseline):
        return "not reproducible here"
    if verdict == "no practical difference":
        return "no saving here"
    if expected > high:
        return "saves more than published"
    return "saves less than published" if is_real else "saves less than published (if anything)"


def _direction(expected: str, ratio: float, verdict: str) -> Agreement:
    """Compare a verdict with a predicted one; any difference that is real has its direction."""
    if verdict == "real but small" and expected != "no practical difference":
        verdict = "faster" if ratio < 1 else "slower"
    if verdict == expected:
        return "confirmed"
    if verdict == "no practical difference":
        return "no saving here" if expected == "faster" else "no loss here"
    if verdict == "faster":
        return "takes less time here"
    return "takes longer here" if verdict == "slower" else "inconclusive"


def answer(words: Iterable[Agreement]) -> str:
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
