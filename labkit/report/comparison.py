"""Runs of one experiment beside one another, each against its own baseline.

Runs differ in mode, machine and stand-ins, so nothing is computed across them, and what differs
is written with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.stand_ins import stand_ins
from labkit.analysis.summary import Row, Summary
from labkit.machine import hardware
from labkit.report import words
from labkit.runs.store import StoredRun

if TYPE_CHECKING:
    from labkit.report.table import Table

MOST_RUNS = 6
APART = "each run against its own baseline; no run is divided by another"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One of several runs, and what is written with it."""

    summary: Summary
    minute: str
    """When it began; empty where that is not known."""
    machine: str
    header: str
    """Of its column."""
    origin: str
    """Versions, labkit and run."""

    @property
    def rows(self) -> dict[str, Row]:
        """Its rows by variant."""
        return {row.variant: row for row in self.summary.rows}


def compare(runs: Sequence[StoredRun]) -> list[Compared]:
    """Check that runs may stand side by side, and gather what is said of each.

    Args:
        runs: one to six of the same experiment, of any machine and mode.

    Raises:
        ValueError: there are none or too many, they belong to several experiments, or their
            variants are in groups.
    """
    if isinstance(runs, StoredRun):
        raise ValueError("runs must be a list of runs, got one run; write [run]")
    wanted = f"runs must be 1 to {MOST_RUNS} runs of one experiment"
    if not runs:
        raise ValueError(f"{wanted}, got none; lab.list_runs(results) lists what there is")
    if len(runs) > MOST_RUNS:
        raise ValueError(f"{wanted}, got {len(runs)}; leave some out")
    names = list(dict.fromkeys(str(run.info["experiment"]) for run in runs))
    if len(names) > 1:
        raise ValueError(
            f"{wanted}, got {', '.join(names)}; show each experiment in a figure of its own"
        )
    if any(run.info.get("groups") for run in runs):
        raise ValueError(
            f"runs must be of an experiment without groups, got {names[0]}; "
            "show each of them with lab.chart(run)"
        )
    return [_compared(run, number) for number, run in enumerate(runs, 1)]


def _compared(run: StoredRun, number: int) -> Compared:
    provenance, created = run.info.get("provenance") or {}, run.info.get("created_utc")
    minute = units.minute(created) if created else ""
    known = {**run.info, "run": run.folder.name, "created_utc": ""}
    return Compared(
        summary=run.summary,
        minute=minute,
        machine=hardware.describe(provenance) if provenance else "",
        header=" · ".join(filter(None, [f"run {number}", f"{run.summary.mode} mode", minute])),
        origin=words.origin({**known, "provenance": {**provenance, "machine_id": ""}}),
    )


def compare_table(runs: Sequence[StoredRun]) -> Table:
    """Put runs of one experiment side by side, a column each.

    Args:
        runs: one to six of the same experiment, of any machine and mode.

    Returns:
        A table of text with a row per variant; nothing in it is computed across columns.

    Raises:
        ValueError: as `compare` does.
    """
    import pandas as pd

    from labkit.report.table import Table

    compared = compare(runs)
    names = list(dict.fromkeys(name for one in compared for name in one.rows))
    cells = {one.header: [_cell(one, name) for name in names] for one in compared}
    return Table(
        pd.DataFrame(cells, index=pd.Index(names, name="variant")),
        heading=(compared[0].summary.question, f"normalized epoch time, {APART}"),
        notes=[_note(one) for one in compared],
    )


def _cell(one: Compared, name: str) -> str:
    row = one.rows.get(name)
    if row is None:
        return f"{units.UNKNOWN} not in this run"
    if why := words.reason(row):
        return why
    interval = "" if row.ci_low is None else f" {units.interval(row.ci_low, row.ci_high)}"
    word = "baseline" if name == one.summary.baseline else row.verdict
    return f"{units.normalized(row.normalized_time)}{interval}" + (f", {word}" if word else "")


def _note(one: Compared) -> str:
    summary = one.summary
    noise = words.noise_floor(summary)
    parts = [one.machine, *stand_ins(summary), words.conditions(summary), noise]
    return f"{one.header}: {' · '.join(filter(None, parts))}"
