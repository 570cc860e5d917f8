"""A report as Markdown, for a paper or for slides: the page's sections, and links to figure files.

    Sections + names of figure files -> markdown_report() -> report.md
                                                              └─ figures/….png (.svg, .pdf)

The order is the page's.  Main trap: a link with a full path breaks on the next machine and says
where somebody keeps results, so links are relative to the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from labkit import markdown as md
from labkit.report_words import BESIDE_DOCUMENT
from labkit.sections import (
    CLAIMS_HEADER,
    INTRODUCTION,
    NO_CLAIMS,
    Section,
    claim_cells,
    provenance_text,
    table_cells,
)


def markdown_report(sections: Sequence[Section], images: Sequence[Sequence[str]]) -> str:
    """Write all sections as GitHub's Markdown.

    Args:
        sections: one per run.
        images: for each section and each of its figures the relative path without its suffix;
            there are a .png, an .svg and a .pdf.
    """
    head = f"# labkit report\n\n{md.escape(INTRODUCTION)}"
    return "\n\n".join([head, *map(_section, sections, images)]) + "\n"


def _section(section: Section, images: Sequence[str]) -> str:
    parts = [f"## {md.escape(section.title)}"]
    parts += [f"**{md.escape(line)}**" for line in section.warnings]
    parts += [md.escape(line) for line in section.conditions]
    parts += _titled("What was done", _facts(section.setup), _differences(section))
    parts += _titled("Hardware and software", _facts(section.hardware))
    parts += _titled("Result", *map(_figure, section.figures.values(), images))
    parts.append(md.table(section.header, section.cells, section.second_lines))
    parts.append(md.bullets(section.checks))
    parts += _titled("What the rows support", md.bullets(section.results))
    for title, frame in section.tables.items():
        parts += _titled(title, md.table(*table_cells(frame)), md.bullets(frame.notes))
    parts += _titled("Published and measured", _table(BESIDE_DOCUMENT, section.beside_document))
    parts += _titled("Claims of the documents", _claims(section))
    parts += _titled("Notes", md.bullets(section.notes))
    provenance = md.code(provenance_text(section), "json")
    parts.append(f"<details><summary>Provenance</summary>\n\n{provenance}\n\n</details>")
    line = md.code(section.command, "sh") if section.command else ""
    code = md.code(section.code, "python") if section.code else ""
    parts += _titled("Run it again", line, code)
    return "\n\n".join(part for part in parts if part)


def _titled(title: str, *parts: str) -> list[str]:
    found = [part for part in parts if part]
    return [f"### {title}", *found] if found else []


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return md.table(header, body) if body else ""


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- {md.escape(what)}: {md.escape(how)}" for what, how in facts)


def _differences(section: Section) -> str:
    return _table(("variant", "settings of its own"), section.differences)


def _claims(section: Section) -> str:
    if section.claims is None:
        return ""
    return _table(CLAIMS_HEADER, claim_cells(section)) or md.escape(NO_CLAIMS)


def _figure(figure: object, image: str) -> str:
    # In an alternative text every bracket counts.
    alt = md.escape(figure.get_label()).replace("[", r"\[").replace("]", r"\]")
    alt = alt.replace(r"\\]", r"\]")
    return f"![{alt}]({image}.png)\n\nAs a drawing: [SVG]({image}.svg), [PDF]({image}.pdf)"
