"""A summary as tables.

    Summary -> table() for notebooks, text() for terminals, markdown(), rows() for JSON

Every text goes through `units`; `page` makes HTML of the same cells.  Main trap: a table
without its conditions travels alone, so mode, blocks, the A/A ratio and stand-ins are part
of every form.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import asdict
from typing import TYPE_CHECKING

from labkit import captions, units
from labkit.summary import Row, Summary

if TYPE_CHECKING:
    import pandas as pd


def table(summary: Summary, detail: bool = False) -> pd.DataFrame:
    """Make the table that a notebook shows.

    Args:
        summary: what `summary.summarize` returns.
        detail: all fields of every row, as numbers in seconds, bytes and shares, instead of
            five columns of text.
    """
    from labkit.frame import Frame

    if not detail:
        return Frame(table_cells(summary), columns=table_header(summary)).set_index("variant")
    numbers = Frame(rows(summary)).drop(columns=["labels", "epochs_s"])
    return numbers.join(Frame([row.labels for row in summary.rows])).set_index("variant")


def rows(summary: Summary) -> list[dict[str, object]]:
    """List every field of every row, as JSON can hold it: text, numbers, lists, null."""
    return [
        {**asdict(row), "ratios": list(row.ratios), "epochs_s": [list(t) for t in row.epochs_s]}
        for row in summary.rows
    ]


def text(summary: Summary) -> str:
    """Write the table for a terminal: question, conditions, aligned columns, notes."""
    cells = [table_header(summary), *table_cells(summary)]
    widths = [max(_columns(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths))
        for row in cells
    ]
    rule = "  ".join("-" * width for width in widths[:-1]) + "  " + "-" * len(cells[0][-1])
    head = [summary.question, *table_conditions(summary), "", lines[0], rule]
    notes = ["", *(f"- {note}" for note in summary.notes)] if summary.notes else []
    return "\n".join(line.rstrip() for line in [*head, *lines[1:], *notes])


def markdown(summary: Summary) -> str:
    """Write the table as GitHub's Markdown, with its conditions and notes."""
    header, *body = (
        "| " + " | ".join(map(_escape_markdown, row)) + " |"
        for row in (table_header(summary), *table_cells(summary))
    )
    conditions = [f"{_escape_markdown(line)}  " for line in table_conditions(summary)]
    notes = [f"- {_escape_markdown(note)}" for note in summary.notes]
    title = f"### {_escape_markdown(summary.question)}"
    rule = "|" + " --- |" * len(table_header(summary))
    return "\n".join([title, "", *conditions, "", header, rule, *body, "", *notes]).rstrip() + "\n"


def table_header(summary: Summary) -> list[str]:
    """Name the five columns."""
    epochs = {1: "one-epoch time", 2: "two-epoch time"}
    return [
        "variant",
        epochs.get(summary.epochs, f"time of {summary.epochs} epochs"),
        "normalized time [95 % interval]",
        "document",
        "verdict",
    ]


def table_cells(summary: Summary) -> list[list[str]]:
    """Write the five columns of every row."""
    return [
        [
            row.variant,
            units.seconds(row.time_s),
            _normalized(row),
            units.normalized(row.published),
            _verdict(row),
        ]
        for row in summary.rows
    ]


def _normalized(row: Row) -> str:
    value = units.normalized(row.normalized_time)
    return value if row.ci_low is None else f"{value} {units.interval(row.ci_low, row.ci_high)}"


def _verdict(row: Row) -> str:
    return captions.reason(row) or row.verdict or units.UNKNOWN


def table_conditions(summary: Summary) -> list[str]:
    """Say how the numbers came about: stand-ins first, then mode, blocks and noise."""
    stand_ins = captions.stand_ins(summary)
    line = captions.conditions(summary)
    if summary.aa_ratio is not None:
        # A2/A1 is a ratio of the baseline to itself: how far from 1 is the machine's doing.
        line += f" · A/A ratio {units.normalized(summary.aa_ratio)}"
        if summary.aa_low is not None:
            line += f" {units.interval(summary.aa_low, summary.aa_high)}"
    if summary.judged and summary.mde is not None:
        line += f" · shows effects from {units.percent(summary.mde)} up"
    return [" · ".join(stand_ins), line] if stand_ins else [line]


def _columns(cell: str) -> int:
    """Count the terminal columns of a text: Chinese letters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in cell)


def _escape_markdown(cell: str) -> str:
    # Brackets stay readable: only "](" makes a link.
    return re.sub(r"([\\`*<|]|\](?=\())", r"\\\1", " ".join(cell.split()))
