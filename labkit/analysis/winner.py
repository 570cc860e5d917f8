"""Choose the winner of a run, for recipes and savings alike.

A variant may win only if it does the baseline's work, neither less of it nor from another cache
state, and if its interval ends below 1 in every mode.  Where nothing is judged, Holm's procedure
over the variants keeps the chance of a winner among equals below 5 %; a machine that was unstable,
or disturbed in so many blocks that there are no verdicts, shows no winner.
"""

from __future__ import annotations

from collections.abc import Collection

from labkit import units
from labkit.analysis.equal_work import other_work
from labkit.analysis.rows import Row
from labkit.analysis.statistics import holm
from labkit.analysis.summary import Summary
from labkit.analysis.thresholds import MIN_JUDGED_BLOCKS


def winner(summary: Summary, among: Collection[str] | None = None) -> Row | None:
    """Return the fastest variant that may win, None where there is none.

    Args:
        summary: its baseline has numbers.
        among: the variants to choose from; None: all.
    """
    faster = [
        row
        for row in _below_1(summary)
        if (among is None or row.variant in among) and not _reason_against(summary, row)
    ]
    return min(faster, key=lambda row: row.normalized_time, default=None)


def reasons_against_others(summary: Summary) -> dict[str, str]:
    """Return the variants that took less time than the winner, each with why it is not the winner.

    Floors are left out: nobody expects them to win.
    """
    best = winner(summary) or summary.rows[0]
    return {
        row.name: _reason_against(summary, row)
        for row in _below_1(summary)
        if row.normalized_time < best.normalized_time and not summary.is_floor(row.variant)
    }


def _reason_against(summary: Summary, row: Row) -> str:
    """Return why a variant with a normalized time below 1 cannot win, or ''."""
    unequal = other_work(summary.info, row.variant, summary.baseline)
    return unequal or _why_unproved(summary, row)


def _why_unproved(summary: Summary, row: Row) -> str:
    """Return why a variant is not known to be faster than the baseline, or ''."""
    if row.ci_high is None:
        return "a single block shows no difference"
    if row.ci_high >= 1:
        return "its 95 % interval does not end below 1"
    if summary.judged:
        return "" if row.verdict == "faster" else f"its verdict is {row.verdict or 'missing'}"
    if summary.valid.disturbed and summary.n_undisturbed < MIN_JUDGED_BLOCKS <= summary.n_blocks:
        return f"only {units.count(summary.n_undisturbed, 'block')} without disturbance"
    if not summary.stable:
        return "machine unstable"
    compared = [
        each for each in summary.rows[1:] if each.blocks > 1 and not summary.is_floor(each.variant)
    ]
    p_values = [each.compared.p_value for each in compared]
    place = compared.index(row)
    if p_values[place] > holm(p_values)[place]:  # the level that Holm's procedure allows it
        return f"with {len(compared)} variants compared, chance explains its interval"
    return ""


def _below_1(summary: Summary) -> list[Row]:
    return [row for row in summary.rows[1:] if (row.normalized_time or 1) < 1]
