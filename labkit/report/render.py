"""Templates filled with facts: HTML, and Markdown in which every text stays text.

    facts + page.html.j2 ─▶ html()      report.md.j2, table.md.j2 ─▶ markdown()

Labels, reasons and folders are free text, so both environments escape every value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

# Markup anywhere; brackets stay readable, for only "](", "][" and "]:" make links.
_ANYWHERE = re.compile(r"([\\`*<>|~$&]|\](?=[(\[:])|!(?=\[)|(?<![^\W_])_|_(?![^\W_])|:(?=//))")
# Markup at the start of a line: headings, quotes, lists, boxes to tick, rules.
_AT_START = re.compile(r"^([#=]|[+-](?=[\s+-]|$)|\[(?=[ xX]\])|\d+(?=[.)](?:\s|$)))")


def html(template: str, **facts: object) -> str:
    """Fill an HTML template; every value is escaped."""
    return _environment().get_template(template).render(**facts)


def markdown(template: str, **facts: object) -> str:
    """Fill a Markdown template; every value is escaped, and blank lines are made single."""
    text = _markdown_environment().get_template(template).render(**facts)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def escape(text: str) -> str:
    """Write any text on one line, blanks made single, so that Markdown shows it as it is."""
    line = _ANYWHERE.sub(r"\\\1", " ".join(text.split()))
    # A digit cannot be escaped, what follows it can.
    return _AT_START.sub(lambda m: f"{m[1]}\\" if m[1].isdigit() else f"\\{m[1]}", line)


def _code(text: str, language: str) -> str:
    """Write a text as it is, in a fence that none of its lines can close."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _alt(text: str) -> str:
    # In an alternative text every bracket counts.
    return re.sub(r"\\?([\[\]])", r"\\\1", escape(text))


def _cells(texts: Iterable[str]) -> str:
    return " | ".join(map(escape, texts))


@cache
def _environment() -> Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("labkit.report", "."),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _markdown_environment() -> Environment:
    from markupsafe import Markup

    def finalize(value: object) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(str(value)))

    # What `finalize` returns is not escaped again.
    environment = _environment().overlay(finalize=finalize)
    for name, write in (("cells", _cells), ("alt", _alt), ("code", _code)):
        environment.filters[name] = lambda *given, write=write: Markup(write(*given))
    return environment
