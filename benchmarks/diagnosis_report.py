"""What `benchmarks.diagnosis` says of its cases: tables, the confusion table, the targets.

    Outcome: planted, said, predicted, epochs' seconds ─▶ rows, shares ─▶ text, Markdown, JSON

Main trap: a case that could not run here says nothing, one that failed says that the diagnosis did;
so the former is left out of the shares, and the latter counts as wrong.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import markdown
from benchmarks.columns import columns
from labkit import units
from labkit.analysis.statistics import ALPHA, ratio_interval

LEAST_RIGHT, LEAST_NEAR = 0.90, 0.80
MOST_ERROR = 0.15
NOTHING = "nothing"
HEADER = ("", "planted", "said", "remedy", "predicted", "measured", "error")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one case."""

    name: str
    planted: str
    remedy: str | None
    """None: nothing helps, and what is compared is a free loader."""
    timed: bool = True
    """Whether the remedy's worth can be measured."""
    said: str | None = None
    """None: nothing was diagnosed."""
    screen: str = ""
    """All that the diagnosis said."""
    predicted: float | None = None
    """Normalized epoch time with the remedy; None: it was not among those proposed."""
    taken: Sequence[Sequence[float]] = ()
    """Seconds of an epoch in every round, (broken, fixed)."""
    notes: Sequence[str] = ()
    skipped: str = ""
    failed: str = ""
    took_s: float | None = None
    """Of the diagnosis."""

    @property
    def logs(self) -> list[float]:
        return [math.log(fixed / broken) for broken, fixed in self.taken]

    @property
    def measured(self) -> float | None:
        """Normalized epoch time with the remedy: geometric mean over the rounds."""
        return math.exp(statistics.fmean(self.logs)) if self.taken else None

    @property
    def error(self) -> float | None:
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted / self.measured - 1

    @property
    def is_right(self) -> bool:
        return self.said == self.planted

    @property
    def is_near(self) -> bool:
        return self.error is not None and abs(self.error) <= MOST_ERROR


def row(outcome: Outcome) -> tuple[str, ...]:
    """Write one case as the cells of a row; see `HEADER`."""
    remedy = outcome.remedy or NOTHING
    if reason := outcome.skipped or outcome.failed:
        word = "skipped" if outcome.skipped else "failed"
        return outcome.name, outcome.planted, f"{word}: {reason}", remedy, *[units.UNKNOWN] * 3
    said = outcome.said or units.UNKNOWN
    measured = units.normalized(outcome.measured)
    if outcome.taken:
        measured += f" {units.interval(*ratio_interval(outcome.logs, ALPHA))}"
    error = units.UNKNOWN if outcome.error is None else f"{outcome.error:+.0%}"
    return (
        outcome.name,
        outcome.planted,
        said if outcome.is_right or outcome.said is None else f"WRONG {said}",
        remedy,
        units.normalized(outcome.predicted),
        measured,
        error if outcome.is_near or outcome.error is None else f"OFF {error}",
    )


def confusion(outcomes: Sequence[Outcome]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Count what was said of what was planted; give the header and the rows."""
    ran = [outcome for outcome in outcomes if not outcome.skipped]
    counts = Counter((outcome.planted, outcome.said or "failed") for outcome in ran)
    planted = list(dict.fromkeys(outcome.planted for outcome in ran))
    said = list(dict.fromkeys([*planted, *(word for _, word in counts)]))
    said = [word for word in said if any(counts[each, word] for each in planted)]
    rows = [(each, *(str(counts[each, word] or "") for word in said)) for each in planted]
    return ("planted \\ said", *said), rows


def judge(outcomes: Sequence[Outcome]) -> tuple[list[str], bool]:
    """Say of both targets whether they are met; and whether both are."""
    ran = [outcome for outcome in outcomes if not outcome.skipped]
    timed = [outcome for outcome in ran if outcome.timed]
    targets = (
        ("the right bottleneck", [one.is_right for one in ran], LEAST_RIGHT),
        (
            f"predicted within {units.limit(MOST_ERROR)} of measured",
            [one.is_near for one in timed],
            LEAST_NEAR,
        ),
    )
    lines, all_met = [], True
    for what, hits, least in targets:
        met = bool(hits) and sum(hits) / len(hits) >= least
        all_met = all_met and met
        share = units.percent(sum(hits) / len(hits)) if hits else units.UNKNOWN
        lines.append(
            f"{'met   ' if met else 'MISSED'} {what}: {sum(hits)} of {len(hits)} ({share}), "
            f"target {units.limit(least)}"
        )
    return lines, all_met


def reasons(outcomes: Sequence[Outcome]) -> list[str]:
    """List what was skipped or failed, and what stood in for something else."""
    found = []
    for outcome in outcomes:
        for word, why in (("skipped", outcome.skipped), ("failed", outcome.failed)):
            found += [f"{outcome.name} {word}: {why}"] if why else []
        found += [f"{outcome.name}: {note}" for note in outcome.notes]
    return found


def short_row(outcome: Outcome) -> tuple[str, ...]:
    """As `row`, with the reason left to `reasons`."""
    first, planted, said, *others = row(outcome)
    return first, planted, said.partition(":")[0], *others


def measured_only(outcomes: Sequence[Outcome], conditions: Sequence[str]) -> list[str]:
    return [*conditions, *columns(HEADER, list(map(short_row, outcomes))), *reasons(outcomes)]


def as_text(outcomes: Sequence[Outcome], conditions: Sequence[str]) -> list[str]:
    return [
        *measured_only(outcomes, conditions),
        *columns(*confusion(outcomes)),
        *judge(outcomes)[0],
    ]


def as_markdown(outcomes: Sequence[Outcome], conditions: Sequence[str]) -> str:
    """Write both tables for the README."""
    return "\n\n".join(
        [
            markdown.bullets([*conditions, *judge(outcomes)[0], *reasons(outcomes)]),
            markdown.table(*confusion(outcomes)),
            markdown.table(HEADER, map(short_row, outcomes)),
        ]
    )


def save(
    outcomes: Sequence[Outcome],
    folder: Path,
    conditions: Sequence[str],
    provenance: dict[str, object],
    created_utc: str,
) -> None:
    """Write README.md and cases.json: what a person keeps of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f"# Planted bottlenecks and what was said of them\n\n{as_markdown(outcomes, conditions)}"
    (folder / "README.md").write_text(f"{text}\n", encoding="utf-8")
    cases = [{**asdict(one), "measured": one.measured, "error": one.error} for one in outcomes]
    kept = {"created_utc": created_utc, "provenance": provenance, "cases": cases}
    (folder / "cases.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
