"""Runs of one experiment side by side, each against its own baseline: a figure and a table.

Runs differ in mode, machine and stand-ins, so nothing is ever computed across them, and what
differs is written with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.summary import Row, Summary
from labkit.machine import hardware
from labkit.report import captions
from labkit.report.bars import (
    INK,
    PAD_IN,
    SOFT_INK,
    WARNING_INK,
    WIDTH_IN,
    draw_head,
    fit_head,
    head_height_in,
    page,
)
from labkit.report.charts import axis_limit, draw_rows, legend, write_numbers
from labkit.report.row_figure import fit_rows, overhang_in
from labkit.report.row_words import reason, say_noise_floor
from labkit.runs.store import StoredRun
from labkit.settings import CORRECTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.report.frame import Frame

TICKS_IN = 0.45
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


def _all_variants(compared: Sequence[Compared]) -> list[str]:
    """List the variants of all runs, each once, in their first order."""
    return list(dict.fromkeys(name for one in compared for name in one.rows))


def side_by_side(runs: Sequence[StoredRun]) -> Figure:
    """Draw runs of one experiment one below the other, along one axis.

    Args:
        runs: one to six of the same experiment, of any machine and mode.

    Returns:
        A figure that shows itself in a notebook; its label holds every number.

    Raises:
        ValueError: as `compare` does.
    """
    compared = compare(runs)
    summaries = [one.summary for one in compared]
    limit = axis_limit([row for summary in summaries for row in summary.rows])
    with page(_describe(compared)) as drawn:
        figure, panels = drawn.figure, []
        for axes, one in zip(figure.subplots(len(compared), squeeze=False)[:, 0], compared):
            rows = fit_rows(one.summary, drawn.fit)
            axes.set(xlim=(0, limit), ylim=(rows.height_in, 0))
            axes.set_yticks(rows.middles_in, rows.names)
            axes.tick_params(axis="y", length=0)
            draw_rows(axes, one.summary, rows.middles_in, limit)
            for row, y in zip(one.summary.rows, rows.middles_in):
                write_numbers(axes, row, y)
            rows.write_reasons(axes)
            panels.append((axes, fit_head(_title(one), drawn.fit), rows.height_in))
        content_in = PAD_IN + sum(
            head_height_in(title) + height_in + TICKS_IN for _, title, height_in in panels
        )
        head = [(compared[0].summary.question, 13, "bold", INK), (APART, 9, "normal", SOFT_INK)]
        bottom_in, height_in = drawn.frame(
            fit_head(head, drawn.fit), "\n".join(dict.fromkeys(one.origin for one in compared)),
            content_in, legend(summaries), "normalized epoch time, lower is better",
        )  # fmt: skip
        sides = [overhang_in(figure, axes)[:2] for axes, *_ in panels]
        left_in, right_in = (PAD_IN + max(side) for side in zip(*sides))
        size = 1 - (left_in + right_in) / WIDTH_IN
        top_in = bottom_in + content_in
        for axes, title, rows_in in panels:
            draw_head(figure, title, top_in)
            top_in -= head_height_in(title) + rows_in + TICKS_IN
            at = left_in / WIDTH_IN, (top_in + TICKS_IN) / height_in
            axes.set_position((*at, size, rows_in / height_in))
    return figure


def _title(one: Compared) -> list[tuple[str, float, str, str]]:
    """List what is said above a run's bars: (text, size, weight, colour)."""
    about = [one.minute, one.machine, *captions.plain_labels(one.summary)]
    lines = [
        (one.title, 9, "bold", INK),
        (" · ".join(filter(None, about)), 9, "normal", SOFT_INK),
        (" · ".join(captions.stand_ins(one.summary)), 9, "bold", WARNING_INK),
    ]
    return [line for line in lines if line[0]]


def _describe(compared: Sequence[Compared]) -> str:
    """Write all numbers of the figure, for screen readers."""
    sentences = [compared[0].summary.question, f"Runs side by side, {APART}"]
    for one in compared:
        sentences += [f"{one.title}, {one.machine}", *captions.stand_ins(one.summary)]
        for name, row in one.rows.items():
            sentences.append(f"{name}: {captions.describe_row(one.summary, row)}")
    return captions.join_sentences(sentences)


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
    names, headers = _all_variants(compared), _headers(compared)
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
