"""The winner of a run: the variant that is worth handing on, and why others are not.

    rows below 1 ─ all the work? the same cache state? judged faster? ─▶ the lowest of the rest

Main trap: the lowest bar may have won by doing less, or by starting with its files in memory;
neither can be pasted into anybody's train.py.
"""

from __future__ import annotations

from labkit.recipes.loop import does_more
from labkit.results import Run, how_to_complete
from labkit.row_words import reason
from labkit.settings import Settings, pick
from labkit.summary import Row, Summary, is_floor
from labkit.winner import why_not
from labkit.winner import winner as choose


def named(summary: Summary, variant: str) -> Row:
    """Look a variant with numbers up.

    Raises:
        ValueError: there is none of that name, or it has no numbers.
    """
    row = pick({row.variant: row for row in summary.rows}, variant, "variant")
    if row.normalized_time is None:
        measured = [r.variant for r in summary.rows if r.normalized_time is not None]
        raise ValueError(
            f"variant must be one with numbers ({', '.join(measured) or 'none yet'}), "
            f"got {variant!r}, {reason(row)}"
        )
    return row


def winner(run: Run, summary: Summary) -> Row:
    """Take the fastest variant that may win, or the baseline where there is none.

    Raises:
        ValueError: the baseline has no complete block.
    """
    baseline = summary.rows[0]
    if baseline.normalized_time is None:
        raise ValueError(
            f"run must hold a complete block of its baseline, got none in {run.folder.name}; "
            f"{how_to_complete(run)}"
        )
    return choose(run, summary)


def passed_over(run: Run, summary: Summary, winner: Row) -> dict[str, list[str]]:
    """Say of the variants below the winner why they are not it; of floors nobody expects it.

    Returns:
        Reason, as "leaves out a step of each epoch" -> variants.
    """
    found: dict[str, list[str]] = {}
    for row in below(summary):
        is_expected = not is_floor(*_both(run, summary, row))
        if is_expected and row.normalized_time < winner.normalized_time:
            found.setdefault(why_not(run, summary, row), []).append(row.variant)
    return found


def below(summary: Summary) -> list[Row]:
    """List the variants whose normalized time is below 1."""
    rows = summary.rows[1:]
    return [row for row in rows if row.normalized_time is not None and row.normalized_time < 1]


def dearer(run: Run, summary: Summary) -> list[str]:
    """List the variants with numbers that do beside their steps what the baseline leaves."""
    return [
        row.variant
        for row in summary.rows[1:]
        if row.normalized_time is not None
        and does_more(*(Settings(**values) for values in _both(run, summary, row)))
    ]


def _both(run: Run, summary: Summary, row: Row) -> list[dict]:
    """The settings of a variant and of the baseline, by name."""
    return [run.info["variants"][name] for name in (row.variant, summary.baseline)]
