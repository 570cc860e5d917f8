"""A summary as tables and as one self-contained page.

    Summary -> table() for notebooks, text() for terminals, markdown(), rows() for JSON
    [(Summary, run folder)] -> page(): charts, tables and provenance, nothing from the network

Every text goes through `units` and every name is escaped: variants, reasons and provenance
are free text.  Main trap: a table without its conditions travels alone, so mode, blocks, the
A/A ratio and stand-ins are part of every form.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import captions, charts, units
from labkit.summary import Row, Summary

if TYPE_CHECKING:
    import pandas as pd

# What a page shows of run.json in its own place; the rest is provenance.
SHOWN_ABOVE = {"question", "variants", "published", "source", "skipped", "notes"}
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
th, td { padding: .4rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
         vertical-align: top; }
td:last-child { min-width: 8rem; }
@media (max-width: 40rem) { th, td { padding: .3rem .4rem; font-size: .85rem; } }
thead th { border-bottom-width: 2px; } tbody th { font-weight: 600; }
details { margin-top: 1rem; padding: .5rem .8rem; background: var(--box); border-radius: .4rem; }
summary { cursor: pointer; font-weight: 600; }
pre { white-space: pre-wrap; font-size: .85rem; margin: .5rem 0; }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --page: #fff; --box: #fff; --warn: #7a2d00; }
  body { max-width: none; padding: 0; } section { break-inside: avoid-page; } }
"""


def table(summary: Summary, detail: bool = False) -> pd.DataFrame:
    """Make the table that a notebook shows.

    Args:
        summary: what `summary.summarize` returns.
        detail: all fields of every row, as numbers in seconds, bytes and shares, instead of
            five columns of text.
    """
    from labkit.frame import Frame

    if not detail:
        return Frame(_cells(summary), columns=_header(summary)).set_index("variant")
    numbers = Frame(rows(summary)).drop(columns="labels")
    return numbers.join(Frame([row.labels for row in summary.rows])).set_index("variant")


def rows(summary: Summary) -> list[dict[str, object]]:
    """List every field of every row, as JSON can hold it: text, numbers, lists, null."""
    return [{**asdict(row), "ratios": list(row.ratios)} for row in summary.rows]


def text(summary: Summary) -> str:
    """Write the table for a terminal: question, conditions, aligned columns, notes."""
    cells = [_header(summary), *_cells(summary)]
    widths = [max(_columns(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths))
        for row in cells
    ]
    rule = "  ".join("-" * width for width in widths[:-1]) + "  " + "-" * len(cells[0][-1])
    head = [summary.question, *_conditions(summary), "", lines[0], rule]
    notes = ["", *(f"- {note}" for note in summary.notes)] if summary.notes else []
    return "\n".join(line.rstrip() for line in [*head, *lines[1:], *notes])


def markdown(summary: Summary) -> str:
    """Write the table as GitHub's Markdown, with its conditions and notes."""
    header, *body = (
        "| " + " | ".join(map(_escape_markdown, row)) + " |"
        for row in (_header(summary), *_cells(summary))
    )
    conditions = [f"{_escape_markdown(line)}  " for line in _conditions(summary)]
    notes = [f"- {_escape_markdown(note)}" for note in summary.notes]
    title = f"### {_escape_markdown(summary.question)}"
    rule = "|" + " --- |" * len(_header(summary))
    return "\n".join([title, "", *conditions, "", header, rule, *body, "", *notes]).rstrip() + "\n"


def page(summaries: Sequence[tuple[Summary, Path]]) -> str:
    """Write one HTML page that needs nothing beside it.

    Args:
        summaries: each with its run folder, whose `run.json` supplies settings and provenance.
    """
    sections = [_section(i, summary, Path(folder)) for i, (summary, folder) in enumerate(summaries)]
    links = [
        f'<li><a href="#experiment-{i}">{escape(summary.question)}</a></li>'
        for i, (summary, _) in enumerate(summaries)
    ]
    contents = f"<nav><ol>{''.join(links)}</ol></nav>" if len(links) > 1 else ""
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
{"".join(sections)}</main>
</body>
</html>
"""


def _header(summary: Summary) -> list[str]:
    epochs = {1: "one-epoch time", 2: "two-epoch time"}
    return [
        "variant",
        epochs.get(summary.epochs, f"time of {summary.epochs} epochs"),
        "normalized time [95 % interval]",
        "document",
        "verdict",
    ]


def _cells(summary: Summary) -> list[list[str]]:
    return [
        [
            row.variant,
            units.seconds(row.time_s),
            _normalized(row),
            units.normalized(row.published),
            _verdict(row),
        ]
        for row in summary.rows
    ]


def _normalized(row: Row) -> str:
    value = units.normalized(row.normalized_time)
    return value if row.ci_low is None else f"{value} {units.interval(row.ci_low, row.ci_high)}"


def _verdict(row: Row) -> str:
    return captions.reason(row) or row.verdict or units.UNKNOWN


def _conditions(summary: Summary) -> list[str]:
    """Say how the numbers came about: stand-ins first, then mode, blocks and noise."""
    stand_ins = captions.stand_ins(summary)
    line = captions.conditions(summary)
    if summary.aa_ratio is not None:
        # A2/A1 is a ratio of the baseline to itself: how far from 1 is the machine's doing.
        line += f" · A/A ratio {units.normalized(summary.aa_ratio)}"
        if summary.aa_low is not None:
            line += f" {units.interval(summary.aa_low, summary.aa_high)}"
    if summary.judged and summary.mde is not None:
        line += f" · shows effects from {units.percent(summary.mde)} up"
    return [" · ".join(stand_ins), line] if stand_ins else [line]


def _columns(cell: str) -> int:
    """Count the terminal columns of a text: Chinese letters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in cell)


def _escape_markdown(cell: str) -> str:
    # Brackets stay readable: only "](" makes a link.
    return re.sub(r"([\\`*<|]|\](?=\())", r"\\\1", " ".join(cell.split()))


def _section(i: int, summary: Summary, folder: Path) -> str:
    path = folder / "run.json"
    info = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    svg = charts.to_bytes(charts.chart(summary), "svg")
    *stand_ins, conditions = _conditions(summary)
    warnings = "".join(f'<p class="warn">{escape(line)}</p>' for line in stand_ins)
    notes = "".join(f"<li>{escape(note)}</li>" for note in summary.notes)
    return f"""<section id="experiment-{i}">
<h2>{escape(summary.question)}</h2>
{warnings}<p class="soft">{escape(conditions)}</p>
<img src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
 alt="{escape(captions.describe(summary))}">
{_html_table(_header(summary), _cells(summary))}
{f'<ul class="soft">{notes}</ul>' if notes else ""}
{_settings(summary, info.get("variants") or {})}
{_provenance(info, folder)}
</section>
"""


def _html_table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = [
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in others)
        + "</tr>"
        for first, *others in body
    ]
    return (
        f'<div class="wide" role="region" aria-label="table" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _settings(summary: Summary, variants: Mapping[str, Mapping[str, object]]) -> str:
    """Show the baseline's settings, and of every variant only what differs."""
    base = variants.get(summary.baseline)
    if not base:
        return ""
    differences = [
        (name, "; ".join(f"{k} = {v}" for k, v in values.items() if v != base.get(k)) or "none")
        for name, values in variants.items()
        if name != summary.baseline
    ]
    settings = [(name, str(value)) for name, value in base.items()]
    differing = _html_table(["variant", "differs in"], differences) if differences else ""
    return (
        f"<details><summary>Settings</summary>{differing}<h3>{escape(summary.baseline)} (baseline)"
        f"</h3>{_html_table(['setting', 'value'], settings)}</details>"
    )


def _provenance(info: Mapping[str, object], folder: Path) -> str:
    known = {name: value for name, value in info.items() if name not in SHOWN_ABOVE}
    # Experiment and run id only: where a person keeps results is nobody else's business.
    known = {"run": "/".join(folder.parts[-2:]), **known}
    pretty = json.dumps(known, indent=2, ensure_ascii=False, default=str)
    return f"<details><summary>Provenance</summary><pre>{escape(pretty)}</pre></details>"
