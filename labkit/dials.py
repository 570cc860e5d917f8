"""Dials: a setting that is turned step by step, and from where on it stops mattering.

    run ─▶ Series: (every N steps, its row), … ─▶ say() ─▶ "every 10 steps costs less than 1 %"

Main trap: a point below 1 % is no proof; what is said rests on the upper end of its interval, so
a noisy run says that it cannot tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit import units
from labkit.summary import Row, Summary

STOPS_MATTERING = 0.01
_EVERY = re.compile(r"every (\d+ steps|step)")


@dataclass(frozen=True, kw_only=True)
class Dial:
    """What an experiment turns, in steps between two times, and what a document advises."""

    setting: str
    advice: int | None = None
    source: str = ""


DIALS: dict[str, Dial] = {
    "checkpoints": Dial(setting="checkpoint_every"),
    "logs": Dial(setting="report_every", advice=100, source="[001] 5.1"),
    "metric_reports": Dial(setting="report_every", advice=100, source="[001] 4.2"),
    "evaluation": Dial(setting="metrics_every"),
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """Variants that differ in the dial alone."""

    name: str
    points: tuple[tuple[int, Row], ...]
    """Steps between two times, and what was measured; the most frequent first."""


def find_series(info: Mapping[str, object], summary: Summary, dial: Dial) -> list[Series]:
    """Sort a run's measured variants by what else distinguishes them.

    Args:
        info: what `run.json` holds.
        summary: of the same run.
        dial: one of `DIALS`.

    Returns:
        Nothing where the baseline turns the dial itself: then its times say nothing of "never".
    """
    found: dict[str, list[tuple[int, Row]]] = {}
    others = [row for row in summary.rows if row.variant != summary.baseline]
    for row in others if _name(summary.baseline) == summary.baseline else ():
        name = _name(row.variant)
        steps = info["variants"][row.variant].get(dial.setting)
        if steps and name != row.variant and row.normalized_time is not None:
            found.setdefault(name, []).append((steps, row))
    return [
        Series(name=name, points=tuple(sorted(points, key=lambda point: point[0])))
        for name, points in found.items()
    ]


def _name(variant: str) -> str:
    # "loops, every 10 steps" -> "loops"
    return ", ".join(part for part in variant.split(", ") if not _EVERY.fullmatch(part))


def sentences(summary: Summary, found: Sequence[Series]) -> list[str]:
    """Say of every series from where on it stops mattering; numbers only outside full mode."""
    said = [f"{said[0].upper()}{said[1:]}." for said in map(say, found)]
    if not said:
        return ["No variant was measured along the dial."]
    return said if summary.judged and summary.stable else [*said, "Numbers, no verdict."]


def stops_mattering(series: Series) -> int | None:
    """Find the most frequent position from which on all cost less than `STOPS_MATTERING`."""
    least = None
    for steps, row in reversed(series.points):
        if row.ci_high is None or row.ci_high > 1 + STOPS_MATTERING:
            break
        least = steps
    return least


def say(series: Series) -> str:
    """Say from where on a dial's position costs less than `STOPS_MATTERING`.

    Returns:
        One sentence without its full stop, beginning with the series' name if it has one.
    """
    limit = units.limit(STOPS_MATTERING)
    name = f"{series.name}: " if series.name else ""
    if (least := stops_mattering(series)) is not None:
        return f"{name}every {_steps(least)} costs less than {limit}"
    steps, row = series.points[-1]
    cost = units.normalized(row.normalized_time)
    if row.ci_low is not None and row.ci_low > 1 + STOPS_MATTERING:
        return f"{name}even every {_steps(steps)} costs more than {limit} ({cost})"
    return f"{name}too noisy to tell whether every {_steps(steps)} costs less than {limit} ({cost})"


def _steps(n: int) -> str:
    return "step" if n == 1 else f"{n} steps"
