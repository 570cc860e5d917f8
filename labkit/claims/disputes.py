"""Questions on which people disagree: who says what, and what runs on this machine show.

`claims.toml` holds the questions.  Each comparison divides one variant by another one of the same
run, not by the run's baseline; all comparisons of a run are judged together (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.stand_ins import EMULATED_WORDS
from labkit.analysis.statistics import UNSTABLE
from labkit.analysis.summary import Ratio, Row, ratios
from labkit.claims.ledger import (
    DATA,
    conditions,
    say_unmeasured,
    stand_ins,
    weigh_answer,
    why_unjudged,
    wrapped,
)
from labkit.machine import hardware
from labkit.runs.store import StoredRun, newest_runs
from labkit.settings import MODES

if TYPE_CHECKING:
    from labkit.report.frame import Frame

TOTAL = "total"
DECIDED = ("faster", "slower", "no practical difference")
TIMED = (
    "A ÷ B: A's time divided by B's in the same blocks, lower is better; 95 % confidence "
    "intervals; verdicts are Holm-adjusted over all comparisons of a run."
)


@dataclass(frozen=True)
class Contrast:
    """Two variants of an experiment whose times are compared within blocks."""

    experiment: str
    variant: str
    against: str
    expected: tuple[str, ...] = ()
    """The verdict that each side expects, "" where it says nothing; empty: no side does."""


@dataclass(frozen=True, kw_only=True)
class Dispute:
    """A question on which the documents and others disagree."""

    number: int
    """In DOCUMENTS D."""
    question: str
    sides: tuple[Mapping[str, str], ...]
    """by, says."""
    contrasts: tuple[Contrast, ...]
    footnote: str = ""


DISPUTES = tuple(
    Dispute(
        number=row["number"],
        question=row["question"],
        sides=tuple(row["sides"]),
        contrasts=tuple(
            Contrast(group["experiment"], *pair, tuple(group.get("expected", ())))
            for group in row.get("contrasts", ())
            for pair in group["pairs"]
        ),
        footnote=row.get("footnote", ""),
    )
    for row in DATA["dispute"]
)


def answers(
    results: Path | str, machine_id: str | None = None, *, numbers: Sequence[int] = ()
) -> list[dict[str, object]]:
    """Answer disputes from the newest runs.

    Args:
        results: folder that holds all results.
        machine_id: whose runs count; unset: this machine's.
        numbers: which disputes; none: all.

    Returns:
        A row per dispute: number, question, sides (by, says), footnote, and found: of every
        comparison what was compared, experiment, answer, ratio, low, high, verdict and run.

    Raises:
        ValueError: there is no dispute of such a number.
    """
    known = {dispute.number: dispute for dispute in DISPUTES}
    if unknown := [number for number in numbers if number not in known]:
        raise ValueError(
            f"numbers must be of {', '.join(map(str, known))}, got {unknown[0]}; "
            "leave them out for all"
        )
    machine_id = machine_id or hardware.provenance()["machine_id"]
    runs = newest_runs(results, lambda info: weigh_answer(info, machine_id))
    compared = {name: _Compared(run) for name, run in runs.items() if _asked_of(name)}
    return [
        {
            "number": dispute.number,
            "question": dispute.question,
            "sides": [dict(side) for side in dispute.sides],
            "footnote": dispute.footnote,
            "found": [_answer(dispute, c, compared.get(c.experiment)) for c in dispute.contrasts],
        }
        for dispute in map(known.get, numbers or known)
    ]


def _asked_of(experiment: str) -> list[Contrast]:
    return [c for dispute in DISPUTES for c in dispute.contrasts if c.experiment == experiment]


class _Compared:
    """A run, and the ratios of all that is asked of it."""

    def __init__(self, run: StoredRun) -> None:
        summary = run.summary
        self.run = run
        self.rows = {row.variant: row for row in summary.rows}
        asked = [(c.variant, c.against) for c in _asked_of(run.info["experiment"])]
        there = [names for names in asked if all(name in self.rows for name in names)]
        wanted = [(self.rows[one], self.rows[other], TOTAL) for one, other in dict.fromkeys(there)]
        self.ratios = ratios(summary, wanted)


def _answer(dispute: Dispute, contrast: Contrast, compared: _Compared | None) -> dict[str, object]:
    found: dict[str, object] = {
        "compared": f"{contrast.variant} ÷ {contrast.against}",
        "experiment": contrast.experiment,
        "answer": f"not run: labkit run {contrast.experiment} --mode full",
        "ratio": None, "low": None, "high": None, "verdict": "", "run": "",
    }  # fmt: skip
    if compared is None:
        return found
    ratio = compared.ratios.get((contrast.variant, contrast.against, TOTAL))
    if ratio is None:
        if why := _why_not(contrast, compared):
            found |= {"answer": why, "run": compared.run.folder.name}
        return found
    rows = [compared.rows[contrast.against], compared.rows[contrast.variant]]
    return found | {
        "answer": _say(dispute, contrast, compared.run, ratio, rows),
        "ratio": ratio.ratio, "low": ratio.low, "high": ratio.high, "verdict": ratio.verdict,
        "run": compared.run.folder.name,
    }  # fmt: skip


def _why_not(contrast: Contrast, compared: _Compared) -> str:
    """Return why a run does not compare two variants; empty where only full mode has them."""
    for name in (contrast.against, contrast.variant):
        row = compared.rows.get(name)
        if row is None:
            mode = MODES.get(compared.run.info["mode"])
            is_full = mode is not None and mode.judged
            return "not run: this run has no such variant" if is_full else ""
        if row.normalized_time is None:
            return f"{name}: {say_unmeasured(row)}"
    return "not run: no block has both"


def _say(
    dispute: Dispute, contrast: Contrast, run: StoredRun, ratio: Ratio, rows: Sequence[Row]
) -> str:
    where, figures = conditions(rows), units.normalized(ratio.ratio)
    if ratio.low is not None:
        figures += f" {units.interval(ratio.low, ratio.high)}"
    if not ratio.verdict:
        return f"{figures}{where}; {why_unjudged(run.info, ratio.blocks)}"
    if ratio.verdict == UNSTABLE:
        return f"{UNSTABLE}, no verdict{where}: {figures}"
    said = f"{ratio.verdict}{where}: {figures}"
    right = [s["by"] for s, word in zip(dispute.sides, contrast.expected) if word == ratio.verdict]
    if right:
        word = f"{EMULATED_WORDS['agrees']}, emulated," if stand_ins(rows) else "agrees"
        return f"{said}; {word} with {'; '.join(right)}"
    nobody = any(contrast.expected) and ratio.verdict in DECIDED
    return f"{said}; no side expects that" if nobody else said


class Disputes(tuple):
    """Rows of `answers` that a notebook shows as tables and a shell as text."""

    def __repr__(self) -> str:
        return disputes_text(self)

    def _repr_html_(self) -> str:
        return "".join(dispute_table(row)._repr_html_() for row in self)


def disputes(results: Path | str = "results", *, numbers: Sequence[int] = ()) -> Disputes:
    """Show what is disputed, who says what, and what this machine's runs say of it."""
    return Disputes(answers(results, numbers=numbers))


def dispute_table(row: Mapping[str, object]) -> Frame:
    """Make the table of one dispute: the sides first, then this machine.

    Args:
        row: one of `answers`.
    """
    from labkit.report.frame import Frame

    lines = _lines(row)
    frame = Frame([line[:2] for line in lines], columns=["who", "says"]).set_index("who")
    frame.caption = (f"{row['number']}. {row['question']}", TIMED if row["found"] else "")
    frame.second_lines = {who: under for who, _, under in lines}
    frame.notes = [row["footnote"]] if row["footnote"] else []
    return frame


def disputes_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Write `answers` for a terminal, at most 100 columns wide."""
    lines = []
    for row in rows:
        lines += wrapped("", f"{row['number']:>2}  {row['question']}")
        for who, says, _ in _lines(row):
            lines += wrapped("      ", f"{who}: {says}")
        lines += wrapped("      ", row["footnote"])
    if any(row["found"] for row in rows):
        lines += ["", *wrapped("", TIMED)]
    return "\n".join(lines)


def _lines(row: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """List who says what and what it rests on; equal answers on this machine share a line."""
    here: dict[tuple[str, str, str], list[str]] = {}
    for found in row["found"]:
        key = found["experiment"], found["answer"], found["run"]
        here.setdefault(key, []).append(found["compared"])
    lines = [(side["by"], side["says"], "") for side in row["sides"]]
    for (experiment, says, run), compared in here.items():
        under = f"run {run}" if run else "no run on this machine has it"
        lines.append((f"here, {experiment}: {'; '.join(compared)}", says, under))
    return lines
