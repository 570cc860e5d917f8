"""Answer the documents' claims from the newest runs on this machine.

`claims.toml` holds the claims and the variants that test them.  Words of agreement need full mode,
and over a stand-in a result is only consistent with a claim.  Source: EVIDENCE 1.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.stand_ins import EMULATED_WORDS
from labkit.analysis.stand_ins import find_stand_ins as stand_ins
from labkit.analysis.statistics import agreement
from labkit.analysis.summary import Row
from labkit.claims.answers import ANSWERS, beside_baselines
from labkit.experiments import catalog
from labkit.machine import hardware
from labkit.runs.store import StoredRun, newest_runs
from labkit.settings import AS_PUBLISHED, MIN_JUDGED_BLOCKS, MODES

if TYPE_CHECKING:
    import pandas as pd

DATA = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))
# Experiments whose variants only this machine's GPU can name -> what makes them.
MADE_BY = {"batch_size_fill": "lab.largest_batch(…).experiment(), on CUDA,"}
COLUMNS = 100
OPPOSITE = {"faster": "slower", "slower": "faster"}


@dataclass(frozen=True, kw_only=True)
class Test:
    """A variant that bears on a claim."""

    experiment: str
    variant: str = ""
    """Empty where the answer is no normalized time of one variant."""
    expected: float | None = None
    """The normalized time that the document reported."""
    direction: str = ""
    """faster or slower, where no figure is given; empty: the claim names no effect."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of the documents."""

    number: int
    documents: tuple[str, ...]
    claim: str
    tests: tuple[Test, ...]
    published: str = ""
    """The figure in the document's own terms; empty where it gives none."""
    reason: str = ""
    """Why it cannot be tested here as long as there is no experiment."""


CLAIMS = tuple(
    Claim(
        **{
            **row,
            "documents": tuple(row["documents"]),
            "tests": tuple(Test(**t) for t in row["tests"]),
        }
    )
    for row in DATA["claim"]
)


def answers(results: Path | str, machine_id: str | None = None) -> list[dict[str, object]]:
    """Answer every claim from the runs there are.

    Args:
        results: folder that holds all results.
        machine_id: whose runs count; unset: this machine's.

    Returns:
        A row per claim: number, document, claim, published, experiment, answer, and run (ids
        of the runs that the answer rests on, or nothing).
    """
    if machine_id is None:
        machine_id = hardware.provenance()["machine_id"]
    runs = newest_runs(results, lambda info: weigh_answer(info, machine_id))
    return [_row(claim, runs) for claim in CLAIMS]


def answers_of(run: StoredRun, machine_id: str) -> list[dict[str, object]]:
    """Answer from one run the claims that its experiment tests.

    Args:
        run: any run.
        machine_id: whose runs may answer.

    Returns:
        Rows as of `answers`, resting on this run alone; none for a run that is not finished
        or of another machine.
    """
    if weigh_answer(run.info, machine_id) is None:
        return []
    name = run.info["experiment"]
    own = [
        replace(claim, tests=tests)
        for claim in CLAIMS
        if (tests := tuple(test for test in claim.tests if test.experiment == name))
    ]
    return [_row(claim, {name: run}) for claim in own]


def weigh_answer(info: Mapping[str, object], machine_id: str) -> int | None:
    """Weigh a run as an answer: only finished ones from this machine, best those with verdicts.

    Args:
        info: what `run.json` holds.
        machine_id: whose runs count.

    Returns:
        More is better; None: it answers nothing.
    """
    measured_on = (info.get("provenance") or {}).get("machine_id")
    if info.get("status") != "finished" or measured_on != machine_id:
        return None
    if info.get("protocol") == AS_PUBLISHED:
        return 0  # what it shows may be the order's doing
    mode = MODES.get(info["mode"])
    return 2 if mode is not None and mode.judged else 1


def _row(claim: Claim, runs: Mapping[str, StoredRun]) -> dict[str, object]:
    experiments = list(dict.fromkeys(test.experiment for test in claim.tests))
    return {
        "number": claim.number,
        "document": ", ".join(claim.documents),
        "claim": claim.claim,
        "published": claim.published,
        "experiment": ", ".join(experiments),
        "answer": answer(claim, runs),
        "run": ", ".join(runs[name].folder.name for name in experiments if name in runs),
    }


def answer(claim: Claim, runs: Mapping[str, StoredRun]) -> str:
    """Say in one line what the runs say of a claim.

    Args:
        claim: one of `CLAIMS`.
        runs: experiment's name -> the run that speaks for it.
    """
    asked = [test.variant for test in claim.tests]
    said = {
        _name(test, alone=asked.count(test.variant) == 1): _answer(
            claim, test, runs.get(test.experiment)
        )
        for test in claim.tests
    }
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{name}: {words}" for name, words in said.items())


def _name(test: Test, *, alone: bool) -> str:
    """Name a test by its variant, unless another experiment has one of that name."""
    if alone and test.variant:
        return test.variant
    return f"{test.experiment} {test.variant}".rstrip()


def _answer(claim: Claim, test: Test, run: StoredRun | None) -> str:
    experiment, variant = test.experiment, test.variant
    if run is None and experiment in MADE_BY:
        return f"not run: {MADE_BY[experiment]} asks it"
    if run is None and experiment not in catalog.CATALOG:
        missing = "no experiment yet"
        return f"not testable here: {claim.reason}; {missing}" if claim.reason else missing
    if run is None:
        return "not run"
    if claim.number in ANSWERS:
        return _answer_otherwise(claim.number, variant, run)
    summary = run.summary
    if summary.has_groups:
        return beside_baselines(run.info, summary, variant)
    rows = {row.variant: row for row in summary.rows}
    if variant not in rows:
        return "not run: this run has no such variant"
    if rows[variant].normalized_time is None:
        return say_unmeasured(rows[variant])
    return _measured(run.info, summary.rows[0], rows[variant], test)


def _answer_otherwise(number: int, variant: str, run: StoredRun) -> str:
    """Answer by what is no normalized time; see `claim_answers`."""
    summary = run.summary
    rows = {row.variant: row for row in summary.rows}
    if variant and variant not in rows:
        return "not run: this run has no such variant"
    if variant and rows[variant].normalized_time is None:
        return say_unmeasured(rows[variant])
    found = ANSWERS[number](rows, variant, run.info["variants"])
    where = conditions(found.rows)
    if not found.word:
        return f"{found.figures}{where}"
    if not summary.judged:
        return f"{found.figures}{where}; {why_unjudged(run.info, summary.n_blocks)}"
    word = found.word
    if stand_ins(found.rows):
        word = f"{EMULATED_WORDS[word]}, emulated"
    return f"{word}{where}: {found.figures}"


def say_unmeasured(row: Row) -> str:
    """Say why a variant without a number answers nothing."""
    if row.status == "missing":
        return f"not run: {row.reason}"
    failed = "failed: " if row.status == "failed" else ""
    return f"not testable here: {failed}{row.reason or row.status}"


def _measured(info: Mapping[str, object], baseline: Row, row: Row, test: Test) -> str:
    """Compare a row with its claim: the word if there is one, conditions, figures."""
    expected = test.expected
    compared = [baseline, row]
    where = conditions(compared)
    figures = units.normalized(row.normalized_time)
    if row.ci_low is not None:
        figures += f" {units.interval(row.ci_low, row.ci_high)}"
    figures += " measured"
    if expected is not None:
        figures += f", {units.normalized(expected)} published"
    if not row.verdict:
        return f"{figures}{where}; {why_unjudged(info, row.blocks)}"
    word = _word(row, test)
    if expected is None and not word.startswith(row.verdict):
        figures = f"{row.verdict}, {figures}"  # there is no figure that would say it
    if stand_ins(compared) and word in EMULATED_WORDS:
        word = f"{EMULATED_WORDS[word]}, emulated"
    return f"{word}{where}: {figures}"


def _word(row: Row, test: Test) -> str:
    if row.verdict == "machine unstable":
        return "machine unstable, no verdict"
    if test.expected is not None:
        return agreement(row.ci_low, row.ci_high, test.expected)
    if not test.direction:
        return row.verdict
    if row.verdict == test.direction:
        return "agrees"
    against = (OPPOSITE[test.direction], "no practical difference")
    return "differs" if row.verdict in against else "inconclusive"


def why_unjudged(info: Mapping[str, object], blocks: int) -> str:
    """Return why a number from so many complete blocks has no verdict."""
    if info.get("protocol") == AS_PUBLISHED:
        return f"no verdict for a run {AS_PUBLISHED}"
    mode = MODES.get(info["mode"])
    if mode is None or not mode.judged:
        return f"no verdict in {info['mode']} mode"
    return f"{blocks} complete blocks, a verdict needs {MIN_JUDGED_BLOCKS}"


def conditions(compared: Sequence[Row]) -> str:
    """Name what stood in for the real thing, and what else a number has to be read with.

    Args:
        compared: the row that others are divided by, and then those.

    Returns:
        " (emulated accelerator, warm cache)", or nothing.
    """
    said = ", ".join([*stand_ins(compared), *_remarks(compared)])
    return f" ({said})" if said else ""


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Name what else keeps a comparison from being the document's own; the baseline is first."""
    remarks = []
    if any(label.startswith("unknown") for label in _labels(rows, "storage")):
        remarks.append("storage of unknown kind")
    if "warm" in _labels(rows[:1], "cache"):
        remarks.append("warm cache")
    return remarks


def _labels(rows: Sequence[Row], kind: str) -> list[str]:
    return [label for row in rows for label in row.labels.get(kind, "").split(" / ")]


def claims_table(rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Make the table that a notebook shows of `answers`."""
    from labkit.report.frame import Frame

    return Frame(rows).set_index("number")


def claims_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Write `answers` for a terminal, at most 100 columns wide."""
    lines = []
    for row in rows:
        lines += wrapped("", f"{row['number']:>2}  {row['claim']} {row['document']}")
        if row["published"]:
            lines += wrapped("      ", f"published: {row['published']}")
        lines += wrapped("      ", f"{row['experiment']}: {row['answer']}")
    return "\n".join(lines)


def wrapped(head: str, words: str) -> list[str]:
    """Break words into lines for a terminal, each of which begins with `head`."""
    wrap = textwrap.TextWrapper(COLUMNS, initial_indent=head, subsequent_indent=head or "    ")
    wrap.break_on_hyphens = False
    return wrap.wrap(words)
