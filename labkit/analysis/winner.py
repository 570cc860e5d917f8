"""Choose the winner of a run, for recipes and savings alike.

A variant may win only if it does the baseline's work: neither less of it, nor from another cache
state.
"""

from __future__ import annotations

from collections.abc import Collection

from labkit.analysis.summary import Row, Summary, is_floor
from labkit.resolve import traits

# What a training loop does beside its steps: setting -> its value where it does nothing.
BESIDE = {"checkpoint_every": 0, "report_every": 0, "metrics": "none", "progress_bar": "none"}


def winner(summary: Summary, among: Collection[str] | None = None) -> Row:
    """Return the fastest variant that may win, or the baseline where there is none.

    Args:
        summary: its baseline has numbers.
        among: the variants to choose from; None: all.
    """
    faster = [
        row
        for row in _below_1(summary)
        if (among is None or row.variant in among) and not why_not(summary, row)
    ]
    return min(faster, key=lambda row: row.normalized_time, default=summary.rows[0])


def passed_over(summary: Summary) -> dict[str, str]:
    """Return the variants that took less time than the winner, each with why it is not the winner.

    Floors are left out: nobody expects them to win.
    """
    best = winner(summary).normalized_time
    return {
        row.variant: why_not(summary, row)
        for row in _below_1(summary)
        if row.normalized_time < best and not is_floor(*_settings(summary, row))
    }


def why_not(summary: Summary, row: Row) -> str:
    """Return why a variant with a normalized time below 1 cannot win, or ''."""
    settings, baseline = _settings(summary, row)
    cache, baseline_cache = settings.get("cache"), baseline.get("cache")
    if is_floor(settings, baseline):
        return "it does only part of the work"
    if _does_more(settings, baseline):
        return "its loop does more than the baseline's, so its time is noise"
    if traits(settings).steps_short:
        return "it leaves out a step of each epoch"
    if any(settings.get(name) != baseline.get(name) for name in ("order", "subset")):
        return "it trains on other images or in another order"
    if settings.get("cached") != baseline.get("cached"):
        return "memory held another share of its data than of the baseline's"
    # A cold start needs nothing in memory; data far away has no cache state here.
    if cache not in (baseline_cache, "cold") and not traits(settings).in_memory:
        return f"it began with cache {cache}, the baseline with {baseline_cache}"
    if summary.judged and row.verdict != "faster":
        return f"its verdict is {row.verdict}"
    return ""


def _below_1(summary: Summary) -> list[Row]:
    return [row for row in summary.rows[1:] if (row.normalized_time or 1) < 1]


def _does_more(settings: dict, baseline: dict) -> bool:
    return any(
        settings.get(name, nothing) != nothing == baseline.get(name, nothing)
        for name, nothing in BESIDE.items()
    )


def _settings(summary: Summary, row: Row) -> list[dict]:
    return [summary.info["variants"][name] for name in (row.variant, summary.baseline)]
