"""A table as text for a terminal, without pandas: the core prints some, too."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from labkit.language import columns


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
    widths = [max(map(columns, column)) for column in zip(*cells)]
    lines = [
        "  ".join(cell + " " * (width - columns(cell)) for cell, width in zip(row, widths))
        for row in cells
    ]
    head, *body = (line.rstrip() for line in lines)
    shown = [*heading, ""] if heading else []
    shown += [head, "  ".join("-" * width for width in widths)]
    wrapped = (textwrap.fill(x, 98, subsequent_indent="  ") for x in notes)
    return "\n".join([*shown, *body, *([""] if notes else []), *(f"- {x}" for x in wrapped)])
