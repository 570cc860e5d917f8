"""One page of all results that needs nothing beside it: claims, charts, tables, provenance.

    run -> Section: what is shown of it -> page() -> index.html

Main trap: variants, reasons, notes and provenance are free text, so everything is escaped,
and nothing is fetched from anywhere: the page is sent by mail and opened years later.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING

from labkit import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a page shows of run.json in its own place; the rest is provenance.
SHOWN_ABOVE = {"question", "variants", "published", "source", "skipped", "notes"}
UNBROKEN = 24  # letters: "0.894 [0.872, 0.917]" stays on one line, a reason does not
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
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
        overflow-wrap: normal; }
th, td { padding: .4rem .7rem; text-align: left; vertical-align: top; }
tbody { border-bottom: 1px solid var(--line); break-inside: avoid; }
.second td { padding-top: 0; } .second small { font-size: .82rem; color: var(--soft); }
td:last-child { min-width: 8rem; }
.short { white-space: nowrap; }
thead th { border-bottom: 2px solid var(--line); }
tbody th { font-weight: 600; min-width: 7rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  th, td { padding: .3rem .4rem; font-size: .85rem; } tbody th { overflow-wrap: normal; } }
details { margin-top: 1rem; padding: .5rem .8rem; background: var(--box); border-radius: .4rem; }
summary { cursor: pointer; font-weight: 600; }
pre { white-space: pre-wrap; font-size: .85rem; margin: .5rem 0; }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --page: #fff; --box: #fff; --warn: #7a2d00; }
  body { max-width: none; padding: 0; } section { break-inside: avoid-page; }
  .wide { overflow: visible; } th, td { padding: .3rem .4rem; font-size: .85rem; } }
"""


@dataclass(frozen=True, kw_only=True)
class Section:
    """What a page shows of one run; all texts plain."""

    title: str
    run: str
    """Experiment and run id: where a person keeps results is nobody else's business."""
    warnings: Sequence[str] = ()
    """What stood in for the real thing."""
    conditions: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    """Each with its description as its label."""
    header: Sequence[str]
    cells: Sequence[Sequence[str]]
    second_lines: Sequence[str] = ()
    """For every row of cells what it rests on, or nothing."""
    checks: Sequence[str] = ()
    """How close the stand-ins came to what they stand for."""
    findings: Sequence[str] = ()
    notes: Sequence[str] = ()
    info: Mapping[str, object]
    """What the run's `run.json` holds."""


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
<p class="soft">Normalized epoch time is a variant's time over the baseline's in the same block;
lower is better.</p>{contents}</header>
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
{html_table(header, cells)}
</section>
"""


def _section(i: int, section: Section) -> str:
    images = "".join(
        f'<img src="data:image/svg+xml;base64,{_svg(figure)}"\n alt="{escape(figure.get_label())}">'
        for figure in section.figures
    )
    return f"""<section id="experiment-{i}">
<h2>{escape(section.title)}</h2>
{_lines("warn", section.warnings)}{_lines("soft", section.conditions)}
{images}
{html_table(section.header, section.cells, section.second_lines)}
{_lines("soft", section.checks)}
{_list("", section.findings)}
{_list("soft", section.notes)}
{_settings(section.info)}
{_provenance(section)}
</section>
"""


def _svg(figure: Figure) -> str:
    return base64.b64encode(figures.to_bytes(figure, "svg")).decode()


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
        if second:
            small = f"<small>{escape(second)}</small>"
            lines += f'<tr class="second"><td colspan="{len(header)}">{small}</td></tr>'
        groups.append(f"<tbody>{lines}</tbody>")  # paper breaks between rows, not inside one
    return (
        f'<div class="wide" role="region" aria-label="table" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead>{''.join(groups)}</table></div>"
    )


def _cell(text: str) -> str:
    short = ' class="short"' if len(text) <= UNBROKEN else ""
    return f"<td{short}>{escape(text)}</td>"


def _settings(info: Mapping[str, object]) -> str:
    """Show the baseline's settings, and of every variant only what differs."""
    variants, baseline = info.get("variants") or {}, info.get("baseline")
    base = variants.get(baseline)
    if not base:
        return ""
    differences = [
        (name, "; ".join(f"{k} = {v}" for k, v in values.items() if v != base.get(k)) or "none")
        for name, values in variants.items()
        if name != baseline
    ]
    settings = [(name, str(value)) for name, value in base.items()]
    differing = html_table(["variant", "differs in"], differences) if differences else ""
    return (
        f"<details><summary>Settings</summary>{differing}<h3>{escape(baseline)} (baseline)"
        f"</h3>{html_table(['setting', 'value'], settings)}</details>"
    )


def _provenance(section: Section) -> str:
    known = {name: value for name, value in section.info.items() if name not in SHOWN_ABOVE}
    pretty = json.dumps({"run": section.run, **known}, indent=2, ensure_ascii=False, default=str)
    return f"<details><summary>Provenance</summary><pre>{escape(pretty)}</pre></details>"
