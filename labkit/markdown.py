"""Markdown whose every text stays text: escaped words, tables, code.

    free text ─ escape() ─▶ words;  cells ─ table() ─▶ | a | b |;  any text ─ code() ─▶ a fence

Main trap: Markdown takes HTML, and much punctuation is markup only in some places, so a folder
named `<script>` or a label with `](` must be escaped wherever it may come to stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest

# Markup anywhere; brackets stay readable, for only "](", "][" and "]:" make links.
_ANYWHERE = re.compile(r"([\\`*<>|~$&]|\](?=[(\[:])|!(?=\[)|(?<![^\W_])_|_(?![^\W_])|:(?=//))")
# Markup at the start of a line: headings, quotes, lists, boxes to tick, rules.
_AT_START = re.compile(r"^([#=]|[+-](?=[\s+-]|$)|\[(?=[ xX]\])|\d+(?=[.)](?:\s|$)))")


def escape(text: str) -> str:
    """Write any text on one line, blanks made single, so that Markdown shows it as it is."""
    line = _ANYWHERE.sub(r"\\\1", " ".join(text.split()))
    # A digit cannot be escaped, what follows it can.
    return _AT_START.sub(lambda m: f"{m[1]}\\" if m[1].isdigit() else f"\\{m[1]}", line)


def table(
    header: Sequence[str], body: Iterable[Sequence[str]], second_lines: Sequence[str] = ()
) -> str:
    """Write a table in GitHub's Markdown.

    Args:
        header: the columns' names, plain.
        body: the cells of every row, plain.
        second_lines: for every row what stands in small print in its first cell, or nothing.
    """
    lines = [_row(map(escape, header)), f"|{' --- |' * len(header)}"]
    for (first, *others), second in zip_longest(body, second_lines, fillvalue=""):
        # Not <sub>, whose lines GitHub writes over each other.
        small = f"<br><small>{escape(second)}</small>" if second else ""
        lines.append(_row([f"{escape(first)}{small}", *map(escape, others)]))
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def bullets(lines: Iterable[str]) -> str:
    """Write plain sentences as a list."""
    return "\n".join(f"- {escape(line)}" for line in lines)


def code(text: str, language: str = "") -> str:
    """Write a text as it is, in a fence that none of its lines can close."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
