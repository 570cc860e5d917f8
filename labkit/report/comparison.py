"""Runs of one experiment beside one another, each against its own baseline.

Runs differ in mode, machine and stand-ins, so nothing is computed across them, and what differs
is written with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.stand_ins import stand_ins
from labkit.analysis.summary import Row, Summary
from labkit.report import bars, charts, words
from labkit.runs.store import StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.report.table import Table

MOST_RUNS = 6


class Comparison:
    """Runs of one experiment beside one another, each against its own baseline."""

    def __init__(self, runs: Sequence[StoredRun]) -> None:
        self._summaries = [run.summary for run in runs]

    def table(self) -> Table:
        """Return a table of text with a row per variant and a column per run."""
        from labkit.report.table import Table

        columns = {_header(*one): one[1] for one in enumerate(self._summaries, 1)}
        rows = {header: {r.variant: r for r in s.rows} for header, s in columns.items()}
        names = list(dict.fromkeys(name for known in rows.values() for name in known))
        cells = {
            header: [_cell(summary, rows[header].get(name)) for name in names]
            for header, summary in columns.items()
        }
        return Table(
            {"variant": names, **cells},
            heading=(self._summaries[0].question, f"normalized epoch time, {charts.APART}"),
            notes=[_note(header, summary) for header, summary in columns.items()],
        )

    def chart(self) -> Figure:
        """Draw the runs one below the other, along one axis."""
        return charts.side_by_side(self._summaries)

    def _repr_html_(self) -> str:
        return bars.mimebundle(self.chart())[0]["text/html"] + self.table().to_html()

    def __repr__(self) -> str:
        return repr(self.table())


def compare(runs: Sequence[StoredRun]) -> Comparison:
    """Compare runs of one experiment.

    Args:
        runs: one to six of the same experiment, of any machine and mode.

    Raises:
        ValueError: there are none or too many, they belong to several experiments, or their
            variants are in groups.
    """
    names = list(dict.fromkeys(str(run.info["experiment"]) for run in runs))
    if len(names) != 1 or len(runs) > MOST_RUNS or any(run.info.get("groups") for run in runs):
        raise ValueError(
            f"runs must be 1 to {MOST_RUNS} runs of one experiment without groups, got "
            f"{len(runs)} of {', '.join(names) or 'none'}; show others one by one: lab.chart(run)"
        )
    return Comparison(runs)


def _header(number: int, summary: Summary) -> str:
    created = summary.info.get("created_utc")
    parts = [f"run {number}", f"{summary.mode} mode", units.minute(created) if created else ""]
    return " · ".join(filter(None, parts))


def _cell(summary: Summary, row: Row | None) -> str:
    if row is None:
        return f"{units.UNKNOWN} not in this run"
    if why := words.reason(row):
        return why
    word = "baseline" if summary.is_baseline(row) else row.verdict
    return ", ".join(filter(None, [words.normalized(row), word]))


def _note(header: str, summary: Summary) -> str:
    noise = words.noise_floor(summary)
    parts = [words.origin(summary.info), *stand_ins(summary), words.conditions(summary), noise]
    return f"{header}: {' · '.join(filter(None, parts))}"
