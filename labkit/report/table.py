"""A summary as tables.

    Summary -> table() for notebooks, text() for terminals, markdown(), rows() for JSON

Every text goes through `units`; `page` makes HTML of the same cells.  Under each row stands in
small print what it rests on.  Main trap: a table without its conditions travels alone, so mode,
blocks, noise floor, stand-ins and their checks are part of every form.
"""

from __future__ import annotations

import unicodedata
from dataclasses import asdict
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.summary import Row, Summary
from labkit.report import captions, render, row_words

if TYPE_CHECKING:
    from labkit.report.frame import Frame


def table(summary: Summary, detail: bool = False) -> Frame:
    """Make the table that a notebook shows.

    Args:
        summary: what `summary.summarize` returns.
        detail: all fields of every row, as numbers in seconds, bytes and shares, instead of
            five columns of text.

    Returns:
        A DataFrame with a row per variant; caption, second lines and notes are shown with it,
        but are no cells.
    """
    from labkit.report.frame import Frame

    names = ["group", "variant"] if summary.has_groups else ["variant"]
    if detail:
        left_out = ["labels", "epochs_s", "in_blocks", *(["group"] if len(names) == 1 else [])]
        numbers = Frame(rows(summary)).drop(columns=left_out)
        frame = numbers.join(Frame([row.labels for row in summary.rows])).set_index(names)
    else:
        frame = Frame(table_cells(summary), columns=table_header(summary)).set_index(names)
        frame.second_lines = dict(zip(frame.index, second_lines(summary)))
    frame.caption = (summary.question, *table_conditions(summary))
    frame.notes = tuple(table_notes(summary))
    return frame


def rows(summary: Summary) -> list[dict[str, object]]:
    """List every field of every row, as JSON can hold it: text, numbers, lists, null."""
    return [{name: _as_json(value) for name, value in asdict(row).items()} for row in summary.rows]


def text(summary: Summary) -> str:
    """Write the table for a terminal: question, conditions, aligned columns, notes."""
    cells = [table_header(summary), *table_cells(summary)]
    widths = [max(_columns(row[i]) for row in cells) for i in range(len(cells[0]))]
    header, *body = (
        "  ".join(cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths))
        for row in cells
    )
    rule = "  ".join("-" * width for width in widths[:-1]) + "  " + "-" * len(cells[0][-1])
    lines = [summary.question, *table_conditions(summary), "", header, rule]
    for line, second in zip(body, second_lines(summary)):
        lines += [line, *units.small_print(second)]
    notes = [f"- {note}" for note in table_notes(summary)]
    return "\n".join(line.rstrip() for line in [*lines, *([""] if notes else []), *notes])


def markdown(summary: Summary) -> str:
    """Write the table as GitHub's Markdown, with its conditions and notes."""
    return render.markdown(
        "table.md.j2",
        title=summary.question,
        conditions=table_conditions(summary),
        header=table_header(summary),
        rows=table_cells(summary),
        second_lines=second_lines(summary),
        notes=table_notes(summary),
    )


def table_header(summary: Summary) -> list[str]:
    """Name the columns: five; four where variants are compared in groups, and the group before."""
    if summary.has_groups:
        return ["group", "variant", "time per image", "normalized time [95 % interval]", "verdict"]
    epochs = {1: "one-epoch time", 2: "two-epoch time"}
    return [
        "variant",
        epochs.get(summary.epochs, f"time of {summary.epochs} epochs"),
        "normalized time [95 % interval]",
        "document",
        "verdict",
    ]


def table_cells(summary: Summary) -> list[list[str]]:
    """Write the columns of every row."""
    if summary.has_groups:
        return [
            [
                row.group,
                row.name,
                units.seconds(row.time_s),
                _normalized(row),
                _verdict(row),
            ]
            for row in summary.rows
        ]
    return [
        [
            row.variant,
            units.seconds(row.time_s),
            _normalized(row),
            row_words.document(summary, row),
            _verdict(row),
        ]
        for row in summary.rows
    ]


def _normalized(row: Row) -> str:
    value = units.normalized(row.normalized_time)
    return value if row.ci_low is None else f"{value} {units.interval(row.ci_low, row.ci_high)}"


def _verdict(row: Row) -> str:
    return row_words.reason(row) or row.verdict or units.UNKNOWN


def second_lines(summary: Summary) -> list[str]:
    """Write what the numbers of every row rest on; empty for a row without a number."""
    return [row_words.second_line(summary, row) for row in summary.rows]


def table_conditions(summary: Summary) -> list[str]:
    """Say how the numbers came about: stand-ins first, then mode, blocks and labels."""
    stand_ins, line = captions.stand_ins(summary), captions.conditions(summary)
    return [" · ".join(stand_ins), line] if stand_ins else [line]


def table_notes(summary: Summary) -> list[str]:
    """List what else has to be said: how the stand-ins did, what is missing or was left out."""
    return [*captions.self_checks(summary), *summary.notes]


def _as_json(value: object) -> object:
    return [_as_json(x) for x in value] if isinstance(value, tuple | list) else value


def _columns(cell: str) -> int:
    """Count the terminal columns of a text: Chinese letters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in cell)
