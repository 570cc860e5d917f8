"""One page of all results that needs nothing beside it: claims, charts, tables, provenance.

    run -> Section: what is shown of it -> page() -> index.html

Main trap: variants, reasons, notes and provenance are free text, so everything is escaped,
and nothing is fetched from anywhere: the page is sent by mail and opened years later.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING

from labkit import figures
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
from labkit.table_html import is_short, second_row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE_SHEET = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #595959; --line: #d9d9d9;
        --page: #ffffff; --box: #f6f6f6; --warn: #9c3a00; --link: #0b57a4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #adadad; --line: #474747;
          --page: #161616; --box: #222222; --warn: #ffb27a; --link: #8ec5ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--page);
       color: var(--ink); font: 1rem/1.5 system-ui, "Noto Sans CJK SC", sans-serif;
       overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin: 0 0 .25rem; } h3 { font-size: 1rem; }
a { color: var(--link); }
section { margin-top: 2.5rem; padding-top: 1.5rem; border-top: 1px solid var(--line); }
p { margin: .25rem 0; } .soft { color: var(--soft); }
.warn { color: var(--warn); font-weight: 600; }
img { display: block; width: 100%; height: auto; margin: 1rem 0; padding: .25rem;
      background: #ffffff; border: 1px solid var(--line); border-radius: .4rem; }
.wide { overflow-x: auto; }
.facts { columns: 2; column-gap: 2rem; margin: .5rem 0; font-size: .9rem; }
.facts div { break-inside: avoid; padding: .1rem 0; }
.facts dt { display: inline; color: var(--soft); } .facts dt::after { content: ": "; }
.facts dd { display: inline; margin: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
        overflow-wrap: normal; }
th, td { padding: .4rem .7rem; text-align: left; vertical-align: top; }
tbody { border-bottom: 1px solid var(--line); break-inside: avoid; }
.labkit-second td { padding-top: 0; }
.labkit-second small { font-size: .82rem; color: var(--soft); }
td:last-child { min-width: 8rem; }
.short { white-space: nowrap; }
thead th { border-bottom: 2px solid var(--line); }
tbody th { font-weight: 600; min-width: 8.5rem; overflow-wrap: anywhere; }
.numbered tbody th { min-width: 0; white-space: nowrap; }
@media (max-width: 40rem) {
  .facts { columns: 1; } .short { white-space: normal; } td:last-child { min-width: 0; }
  th, td { padding: .3rem .4rem; font-size: .85rem; } tbody th { overflow-wrap: normal; } }
details { margin-top: 1rem; padding: .5rem .8rem; background: var(--box); border-radius: .4rem; }
summary { cursor: pointer; font-weight: 600; }
pre { white-space: pre-wrap; font-size: .85rem; margin: .5rem 0; }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --page: #fff; --box: #fff; --warn: #7a2d00; }
  body { max-width: none; padding: 0; font-size: .85rem; }
  h1, h2, h3, summary { break-after: avoid; } img { break-inside: avoid; }
  nav { display: none; } section + section { break-before: page; }
  .wide { overflow: visible; } .short { white-space: normal; }
  td { overflow-wrap: anywhere; } td.short { overflow-wrap: normal; }
  td:last-child { min-width: 0; }
  th, td { padding: .2rem .35rem; font-size: .75rem; } tbody th { min-width: 6.5rem; }
  .numbered td { overflow-wrap: break-word; }
  .labkit-second small { font-size: .7rem; }
  /* What is folded is printed; a browser that cannot do that leaves it out. */
  details::details-content { content-visibility: visible; display: block; height: auto; }
  @supports not selector(::details-content) { details:not([open]) { display: none; } }
  pre { font-size: .7rem; } .stored { columns: 2; font-size: .6rem; } }
"""


def page(sections: Sequence[Section], claims: Sequence[Mapping[str, object]] = ()) -> str:
    """Write one HTML page that needs nothing beside it.

    Args:
        sections: one per run.
        claims: rows of `claims.answers`; last, for most of a long list is not run at first.
    """
    links = [
        f'<li><a href="#experiment-{i}">{escape(section.title)}</a></li>'
        for i, section in enumerate(sections)
    ]
    if claims:
        links.append('<li><a href="#claims">The documents\' claims</a></li>')
    contents = f"<nav><ol>{''.join(links)}</ol></nav>" if len(links) > 1 else ""
    body = "".join(_section(i, section) for i, section in enumerate(sections))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>labkit report</title>
<style>{STYLE_SHEET}</style>
</head>
<body>
<header><h1>labkit report</h1>
<p class="soft">{escape(INTRODUCTION)}</p>{contents}</header>
<main>
{body}{_claims(claims)}</main>
</body>
</html>
"""


def _claims(rows: Sequence[Mapping[str, object]]) -> str:
    if not rows:
        return ""
    shown = ("number", "document", "claim", "published", "experiment", "answer")
    cells = [[str(row[name]) for name in shown] for row in rows]
    header = ["", "document", "claim", "published", "experiment", "this machine"]
    return f"""<section id="claims">
<h2>The documents' claims, and what this machine says</h2>
<div class="numbered">{html_table(header, cells)}</div>
</section>
"""


def _section(i: int, section: Section) -> str:
    images = "".join(
        f'<img src="data:image/svg+xml;base64,{_svg(figure)}"\n alt="{escape(figure.get_label())}">'
        for figure in section.figures.values()
    )
    return f"""<section id="experiment-{i}">
<h2>{escape(section.title)}</h2>
{_lines("warn", section.warnings)}{_lines("soft", section.conditions)}
{_titled("What was done", _facts(section.setup), _differences(section))}
{_titled("Hardware and software", _facts(section.hardware))}
{images}
{html_table(section.header, section.cells, section.second_lines)}
{_lines("soft", section.checks)}
{_titled("What the rows support", _list("", section.results))}
{_more_tables(section)}
{_titled("Published and measured", _beside_document(section))}
{_titled("Claims of the documents", _own_claims(section))}
{_titled("Notes", _list("soft", section.notes))}
{_settings(section.info)}
{_provenance(section)}
{_titled("Run it again", _again(section))}
</section>
"""


def _titled(title: str, *parts: str) -> str:
    """Put a heading above what there is; nothing above nothing."""
    body = "".join(parts)
    return f"<h3>{escape(title)}</h3>{body}" if body else ""


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(how)}</dd></div>" for what, how in facts
    )
    return f'<dl class="facts">{rows}</dl>' if rows else ""


def _more_tables(section: Section) -> str:
    return "".join(
        _titled(title, html_table(*table_cells(frame)), _list("soft", frame.notes))
        for title, frame in section.tables.items()
    )


def _differences(section: Section) -> str:
    if not section.differences:
        return ""
    return html_table(["variant", "settings of its own"], section.differences)


def _beside_document(section: Section) -> str:
    if not section.beside_document:
        return ""
    return html_table(BESIDE_DOCUMENT, section.beside_document)


def _own_claims(section: Section) -> str:
    if section.claims is None:
        return ""
    cells = claim_cells(section)
    if not cells:
        return f"<p>{escape(NO_CLAIMS)}</p>"
    return f'<div class="numbered">{html_table(CLAIMS_HEADER, cells)}</div>'


def _again(section: Section) -> str:
    line = f"<pre><code>{escape(section.command)}</code></pre>" if section.command else ""
    if not section.code:
        return line
    code = f"<pre><code>{escape(section.code)}</code></pre>"
    is_open = "" if section.command else " open"
    return f"{line}<details{is_open}><summary>In Python</summary>{code}</details>"


def _svg(figure: Figure) -> str:
    return base64.b64encode(figures.to_bytes(figure, "svg", outlines=True)).decode()


def _lines(style: str, lines: Iterable[str]) -> str:
    return "".join(f'<p class="{style}">{escape(line)}</p>' for line in lines)


def _list(style: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{style}">{items}</ul>' if items else ""


def html_table(
    header: Sequence[str], body: Iterable[Sequence[str]], second_lines: Sequence[str] = ()
) -> str:
    """Write a table whose cells are escaped and whose first column names the rows.

    Args:
        header: the columns' names.
        body: the cells of every row.
        second_lines: for every row what stands under it in small print, or nothing.
    """
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    groups = []
    for (first, *others), second in zip_longest(body, second_lines, fillvalue=""):
        cells = "".join(map(_cell, others))
        lines = f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
        lines += second_row(second, len(header))
        groups.append(f"<tbody>{lines}</tbody>")  # paper breaks between rows, not inside one
    return (
        f'<div class="wide" role="region" aria-label="table" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead>{''.join(groups)}</table></div>"
    )


def _cell(text: str) -> str:
    short = ' class="short"' if is_short(text) else ""
    return f"<td{short}>{escape(text)}</td>"


def _settings(info: Mapping[str, object]) -> str:
    """Show all of the baseline's settings."""
    variants, baseline = info.get("variants") or {}, info.get("baseline")
    base = variants.get(baseline)
    if not base:
        return ""
    settings = _facts((name, str(value)) for name, value in base.items())
    return (
        f"<details><summary>All settings of {escape(baseline)} (baseline)</summary>"
        f"{settings}</details>"
    )


def _provenance(section: Section) -> str:
    text = escape(provenance_text(section))
    stored = f'<pre class="stored">{text}</pre>'
    return f"<details><summary>Provenance</summary>{stored}</details>"
