"""Runs of one experiment beside one another, each against its own baseline.

Runs differ in mode, machine and stand-ins, so nothing is computed across them, and what differs
is written with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.summary import Row, Summary
from labkit.machine import hardware
from labkit.report import captions
from labkit.report.row_words import reason, say_noise_floor
from labkit.runs.store import StoredRun
from labkit.settings import CORRECTED

if TYPE_CHECKING:
    from labkit.report.frame import Frame

MOST_RUNS = 6
ABSENT = "not in this run"
APART = "each run against its own baseline; no run is divided by another"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One of several runs, and the words that stand over it."""

    summary: Summary
    title: str
    """Mode, blocks, what is special about the run."""
    minute: str
    """When it began; empty where that is not known."""
    machine: str
    machine_id: str
    run: str
    """Its folder's own name."""
    origin: str
    """Versions, labkit and run: machine and minute stand over it already."""

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
    return [_compared(run) for run in runs]


def _compared(run: StoredRun) -> Compared:
    summary = run.summary
    provenance, created = run.info.get("provenance") or {}, run.info.get("created_utc")
    return Compared(
        summary=summary,
        title=" · ".join(captions.how_measured(summary)),
        minute=units.minute(created) if created else "",
        machine=hardware.describe(provenance) if provenance else "",
        machine_id=str(provenance.get("machine_id") or ""),
        run=run.folder.name,
        origin=captions.origin(
            {
                **run.info,
                "run": run.folder.name,
                "provenance": {**provenance, "machine_id": ""},
                "created_utc": "",
            }
        ),
    )


def compare_table(runs: Sequence[StoredRun]) -> Frame:
    """Put runs of one experiment side by side, a column each.

    Args:
        runs: one to six of the same experiment, of any machine and mode.

    Returns:
        A DataFrame of text with a row per variant; nothing in it is computed across columns.

    Raises:
        ValueError: as `compare` does.
    """
    from labkit.report.frame import Frame

    compared = compare(runs)
    names = list(dict.fromkeys(name for one in compared for name in one.rows))
    headers = _headers(compared)
    cells = {header: [_cell(one, name) for name in names] for header, one in zip(headers, compared)}
    frame = Frame(cells, index=names)
    frame.index.name = "variant"
    frame.caption = (compared[0].summary.question, f"normalized epoch time, {APART}")
    frame.notes = [_note(header, one) for header, one in zip(headers, compared)]
    return frame


def _headers(compared: Sequence[Compared]) -> list[str]:
    """Name the columns: mode and minute, and where that is not enough machine and run."""
    several = len({one.machine_id for one in compared}) > 1
    headers = []
    for one in compared:
        parts = [f"{one.summary.mode} mode"]
        if one.summary.protocol != CORRECTED:
            parts.append(one.summary.protocol)
        parts.append(one.minute)
        if several:
            parts.append(f"machine {one.machine_id[: hardware.MACHINE_ID_SHOWN] or 'unknown'}")
        headers.append(" · ".join(filter(None, parts)))
    return [
        header if headers.count(header) == 1 else f"{header} · run {number}: {one.run}"
        for number, (header, one) in enumerate(zip(headers, compared), 1)
    ]


def _cell(one: Compared, name: str) -> str:
    row = one.rows.get(name)
    if row is None:
        return f"{units.UNKNOWN} {ABSENT}"
    if why := reason(row):
        return why
    said = units.normalized(row.normalized_time)
    if row.ci_low is not None:
        said += f" {units.interval(row.ci_low, row.ci_high)}"
    word = "baseline" if name == one.summary.baseline else row.verdict
    return f"{said}, {word}" if word else said


def _note(header: str, one: Compared) -> str:
    summary = one.summary
    noise = say_noise_floor(summary.aa_s, summary.aa_ratio, summary.aa_low, summary.aa_high)
    said = [one.machine, *captions.stand_ins(summary), captions.conditions(summary), noise]
    return f"{header}: {' · '.join(part for part in said if part and part not in header)}"
