"""What HTML tables in notebooks and on a page have in common: short cells, second lines.

    <tr> row │ cell │ cell </tr>
    <tr class="labkit-second"> in small print: what the row rests on </tr>

A notebook styles each element, for it may drop style sheets; a page has one.  Main trap: every
text is free text, so it is escaped here.
"""

from __future__ import annotations

from html import escape

UNBROKEN = 24  # letters: "0.894 [0.872, 0.917]" stays on one line, a reason does not


def is_short(text: str) -> bool:
    """Say whether a cell stays on one line."""
    return len(text) <= UNBROKEN


def second_row(text: str, columns: int, *, row: str = "", cell: str = "", small: str = "") -> str:
    """Write what stands under a row in small print; nothing for an empty text.

    Args:
        text: plain.
        columns: how many the table has.
        row: attributes of the row's element, such as a style.
        cell: those of its only cell.
        small: those of the text in it.
    """
    if not text:
        return ""
    opened = (" ".join(filter(None, parts)) for parts in (
        ("<tr", 'class="labkit-second"', row), ("<td", f'colspan="{columns}"', cell),
        ("<small", small),
    ))  # fmt: skip
    return f"{'>'.join(opened)}>{escape(text)}</small></td></tr>"
