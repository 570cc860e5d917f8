"""A table as text for a terminal, without pandas: the core prints some, too."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    heading: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return a table whose columns are aligned.

    Args:
        header: the columns' names.
        rows: the cells of each row.
        heading: lines above the table.
        notes: lines below it, wrapped.
    """
    cells = [header, *rows]
    widths = [max(map(_columns, column)) for column in zip(*cells)]
    lines = [
        "  ".join(cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths))
        for row in cells
    ]
    head, *body = (line.rstrip() for line in lines)
    shown = [*heading, ""] if heading else []
    shown += [head, "  ".join("-" * width for width in widths)]
    wrapped = (textwrap.fill(x, 98, subsequent_indent="  ") for x in notes)
    return "\n".join([*shown, *body, *([""] if notes else []), *(f"- {x}" for x in wrapped)])


def _columns(text: str) -> int:
    """Count the terminal columns of a text: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
