"""Questions on which people disagree: who says what, and what runs on this machine show.

Each comparison divides one variant by another one of the same run, not by the run's baseline.
All comparisons of a run are judged together (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from labkit import machine, units
from labkit.block_ratios import Ratio, ratios
from labkit.claims import conditions, say_unmeasured, stand_ins, weigh_answer, why_unjudged, wrapped
from labkit.dispute_list import DISPUTES, NO_MATTER, Contrast, Dispute
from labkit.results import Run, newest_runs
from labkit.row_words import EMULATED_WORDS, quote
from labkit.settings import MODES
from labkit.statistics import UNSTABLE
from labkit.summary import Row, summarize_run

if TYPE_CHECKING:
    from labkit.frame import Frame

TOTAL = "total"
DECIDED = ("faster", "slower", NO_MATTER)
TIMED = (
    "A ÷ B: A's time divided by B's in the same blocks, lower is better; 95 % intervals, "
    "Holm-adjusted over all that is asked here of one run."
)


def answers(
    results: Path | str,
    machine_id: str | None = None,
    *,
    numbers: Sequence[int] = (),
) -> list[dict[str, object]]:
    """Answer disputes from the newest runs.

    Args:
        results: folder that holds all results.
        machine_id: whose runs count; unset: this machine's.
        numbers: which disputes; none: all.

    Returns:
        A row per dispute: number, question, sides (by, says), and found: of every comparison
        what was compared, experiment, answer, ratio, low, high, verdict and run; None and ""
        where there is none.

    Raises:
        ValueError: there is no dispute of such a number.
    """
    known = {dispute.number: dispute for dispute in DISPUTES}
    if unknown := [number for number in numbers if number not in known]:
        raise ValueError(
            f"numbers must be of {', '.join(map(str, known))}, got {unknown[0]}; "
            "leave them out for all"
        )
    machine_id = machine_id or machine.provenance()["machine_id"]
    runs = newest_runs(results, lambda info: weigh_answer(info, machine_id))
    compared = {name: _Compared(run) for name, run in runs.items() if _asked_of(name)}
    return [
        {
            "number": dispute.number,
            "question": dispute.question,
            "sides": [{"by": side.by, "says": side.says} for side in dispute.sides],
            "footnote": dispute.footnote,
            "found": [
                *(_answer(dispute, c, compared.get(c.experiment)) for c in dispute.contrasts),
                *(_equal_work(dispute, compared) if dispute.needs_equal_work else ()),
            ],
        }
        for dispute in map(known.get, numbers or known)
    ]


def _asked_of(experiment: str) -> list[Contrast]:
    return [c for dispute in DISPUTES for c in dispute.contrasts if c.experiment == experiment]


class _Compared:
    """A run, and the ratios of all that is asked of it."""

    def __init__(self, run: Run) -> None:
        summary = summarize_run(run)
        self.run = run
        self.rows = {row.variant: row for row in summary.rows}
        asked = [(c.variant, c.against) for c in _asked_of(run.info["experiment"])]
        there = [names for names in asked if all(name in self.rows for name in names)]
        wanted = [(self.rows[one], self.rows[other], TOTAL) for one, other in dict.fromkeys(there)]
        self.ratios = ratios(summary, wanted)


def _found(compared: str, answer: str, **more: object) -> dict[str, object]:
    empty = {"experiment": "", "ratio": None, "low": None, "high": None, "verdict": "", "run": ""}
    return {"compared": compared, "answer": answer, **empty, **more}


# --- timed --------------------------------------------------------------------------------


def _answer(dispute: Dispute, contrast: Contrast, compared: _Compared | None) -> dict[str, object]:
    names = f"{quote(contrast.variant)} ÷ {quote(contrast.against)}"
    if compared is None:
        return _found(names, _how_to_run(contrast), experiment=contrast.experiment)
    ratio = compared.ratios.get((contrast.variant, contrast.against, TOTAL))
    more = {"experiment": contrast.experiment, "run": compared.run.folder.name}
    if ratio is None:
        why = _why_not(contrast, compared)
        return _found(names, why, **(more | {"run": ""} if why == _how_to_run(contrast) else more))
    rows = [compared.rows[contrast.against], compared.rows[contrast.variant]]
    more |= {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high, "verdict": ratio.verdict}
    return _found(names, _say(dispute, contrast, compared.run, ratio, rows), **more)


def _how_to_run(contrast: Contrast) -> str:
    return f"not run: labkit run {contrast.experiment} --mode full"


def _why_not(contrast: Contrast, compared: _Compared) -> str:
    for name in (contrast.against, contrast.variant):
        row = compared.rows.get(name)
        if row is None:
            mode = MODES.get(compared.run.info["mode"])
            is_full = mode is not None and mode.judged
            return "not run: this run has no such variant" if is_full else _how_to_run(contrast)
        if row.normalized_time is None:
            return f"{quote(name)}: {say_unmeasured(row)}"
    return "not run: no block has both"


def _say(dispute: Dispute, contrast: Contrast, run: Run, ratio: Ratio, rows: Sequence[Row]) -> str:
    where, figures = conditions(rows), units.normalized(ratio.ratio)
    if ratio.low is not None:
        figures += f" {units.interval(ratio.low, ratio.high)}"
    if not ratio.verdict:
        return f"{figures}{where}; {why_unjudged(run.info, ratio.blocks)}"
    said = f"{ratio.verdict}{where}: {figures}"
    if ratio.verdict == UNSTABLE:
        return f"{UNSTABLE}, no verdict{where}: {figures}"
    sides = _who_says(dispute, contrast.expected, ratio.verdict, stood_in=bool(stand_ins(rows)))
    if not sides and any(contrast.expected) and ratio.verdict in DECIDED:
        sides = "; no side expects that"
    return said + sides


def _who_says(
    dispute: Dispute, expected: Sequence[str], outcome: str, *, stood_in: bool = False
) -> str:
    """Name the sides that expect an outcome; empty where none does."""
    right = [side.by for side, word in zip(dispute.sides, expected) if word == outcome]
    if not right:
        return ""
    word = f"{EMULATED_WORDS['agrees']}, emulated," if stood_in else "agrees"
    return f"; {word} with {'; '.join(right)}"


def _equal_work(dispute: Dispute, compared: Mapping[str, _Compared]) -> list[dict[str, object]]:
    """Say how far apart the trainings of the compared variants ended."""
    found = []
    for name in dict.fromkeys(c.experiment for c in dispute.contrasts if c.experiment in compared):
        asked = [c for c in dispute.contrasts if c.experiment == name]
        variants = {label for c in asked for label in (c.variant, c.against)}
        run = compared[name].run
        more = {"experiment": name, "run": run.folder.name}
        found.append(_found("equal work", _say_equal_work(run, variants), **more))
    return found


def _say_equal_work(run: Run, variants: set[str]) -> str:
    refused = run.info.get("failed") or {}
    names = variants - refused.keys()
    trials = [t for t in run.trials if t.status == "ok" and t.epochs and t.variant in names]
    what, values = "last losses", [trial.loss for trial in trials if trial.loss is not None]
    if not values:
        what = "nothing is trained, so no losses; mean pixels of the last batches"
        means = [(trial.epochs[-1].last_means or {}).get("image") for trial in trials]
        values = [
            fmean(mean) if isinstance(mean, list) else mean for mean in means if mean is not None
        ]
    if not values:
        return "not recorded"
    low, high = min(values), max(values)
    return (
        f"{what}: {low:.5g} to {high:.5g} in {units.count(len(values), 'trial')}; "
        "a variant that differs is refused"
    )


# --- shown --------------------------------------------------------------------------------


class Disputes(tuple):
    """Rows of `answers` that a notebook shows as tables and a shell as text."""

    def __repr__(self) -> str:
        return disputes_text(self)

    def _repr_html_(self) -> str:
        return "".join(dispute_table(row)._repr_html_() for row in self)


def dispute_table(row: Mapping[str, object]) -> Frame:
    """Make the table of one dispute: the sides first, then this machine.

    Args:
        row: one of `answers`.
    """
    from labkit.frame import Frame

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
