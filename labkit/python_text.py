"""Values as Python source, laid out as a formatter would: for code that a person copies.

    values ─ literal() ─▶ text in double quotes, tables with a line per entry
             call()    ─▶ run = lab.run(experiment, "full", blocks=12)

Main trap: names and folders are free text, and what is copied is executed, so every text becomes
a literal; only `Code` is taken as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

COLUMNS = 88
INDENT = "    "


class Code(str):
    """Text that is Python already."""


def call(name: str, positional: Sequence[object], named: Mapping[str, object]) -> str:
    """Write a call, an argument per line if it is long.

    Args:
        name: what is called, and what it is assigned to: "run = lab.run".
        positional: values, or `Code`.
        named: keyword -> value, or `Code`.
    """
    arguments = [literal(value) for value in positional]
    arguments += [f"{key}={literal(value)}" for key, value in named.items()]
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= COLUMNS and "\n" not in line:
        return line
    return "\n".join([f"{name}(", *(f"{_indent(argument)}," for argument in arguments), ")"])


def literal(value: object) -> str:
    """Write a value as Python: text in double quotes, a long table with a line per entry."""
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, str) and value.isprintable():
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        entries = [f"{literal(key)}: {literal(entry)}" for key, entry in value.items()]
        return _laid_out("{", entries, "}")
    if isinstance(value, tuple):
        return _laid_out("(", [literal(entry) for entry in value], ")")
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)


def _laid_out(opening: str, entries: Sequence[str], closing: str) -> str:
    """Put entries on one line, or on a line each where they are too long for that."""
    alone = "," if opening == "(" and len(entries) == 1 else ""  # or it would be no tuple
    line = f"{opening}{', '.join(entries)}{alone}{closing}"
    if len(line) <= COLUMNS - len(INDENT) * 4 and "\n" not in line:
        return line
    return "\n".join([opening, *(f"{_indent(entry)}," for entry in entries), closing])


def _indent(text: str) -> str:
    return "\n".join(f"{INDENT}{line}" for line in text.splitlines())
