"""Reports: runs as one HTML file, and as Markdown with figure files, to keep or to send.

    runs ─▶ overview, claims, machines ─┐
    run  ─▶ facts() ────────────────────┴┬─▶ page.html.j2 ─▶ .html, which needs no other file
                                         └─▶ report.md.j2 ─▶ .md and figures/….png .svg .pdf

Labels, reasons and folders are free text, so both templates escape every value.
"""

from __future__ import annotations

import base64
import math
import re
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.analysis.rows import Row
from labkit.analysis.simulated import simulated_hardware, warnings
from labkit.analysis.summary import Summary, in_common
from labkit.analysis.winner import winner
from labkit.claims.ledger import (
    GROUPS,
    answer_in_short,
    answers,
    rank_as_answer,
)
from labkit.experiments.catalog import CATALOG
from labkit.experiments.request import Request
from labkit.files import unused, write_whole
from labkit.machine import hardware
from labkit.records import UNKNOWN, Provenance, RunInfo
from labkit.report import charts, figures, words
from labkit.runs.store import (
    REPORTS,
    StoredRun,
    explain_unwritable,
    newest_runs,
)
from labkit.settings import AS_PUBLISHED, CORRECTED

if TYPE_CHECKING:
    import jinja2
    from matplotlib.figure import Figure

    from labkit.report.table import Table

Pairs = list[tuple[str, str]]

FIGURES = "figures"  # the folder beside a report in Markdown


def report(
    runs: StoredRun | Sequence[StoredRun] | None = None,
    folder: Path | str | None = None,
    *,
    results: Path | str = "results",
    markdown: bool = True,
) -> list[Path]:
    """Write what runs asked, measured and found, as files that need nothing else.

    Args:
        runs: one or several; unset: the newest of every experiment, those with verdicts first,
            and all of the documents' claims.
        folder: takes the files, and is made if missing; unset: of one run its own folder, of
            several a new one in ``results/reports``, without runs `results`.
        results: folder that holds all results.
        markdown: write report.md and its figures too.

    Returns:
        report.html, without runs index.html; then, if asked for, the same as .md and every figure
        file.

    Raises:
        ValueError: there is no run.
        OSError: the folder cannot be written; the message says what to do.

    Examples:
        >>> [file.name for file in lab.report(run, markdown=False)]
        ['report.html']
    """
    is_index = runs is None
    chosen = _newest_to_show(results) if is_index else runs
    runs = [chosen] if isinstance(chosen, StoredRun) else list(chosen)
    if not runs:
        raise ValueError(
            f"runs must be at least one, got none in {results}; "
            "make one with: labkit run prefetching"
        )
    if folder is not None:
        to = Path(folder)
    elif is_index:
        to = Path(results)
    elif len(runs) == 1:
        to = runs[0].folder
    else:
        to = unused(Path(results) / REPORTS / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    name = "index" if is_index else "report"
    page: dict[str, Any] = {
        "sections": [facts(run) for run in runs],
        "overview": overview(runs) if len(runs) > 1 else None,
        "claims": _grouped_claims(runs, results, are_all_shown=is_index),
        "machines": _machines(runs),
        "changes": changes(runs),
    }
    page["answer"] = page["overview"]["answer"] if page["overview"] else _answer_of_one(runs[0])
    page["claims_answer"] = answer_in_short(list(chain(*page["claims"].values())))
    with explain_unwritable(to):
        to.mkdir(parents=True, exist_ok=True)
        html = _environment(is_html=True).get_template("page.html.j2").render(page)
        written = [write_whole(to / f"{name}.html", html)]
        if markdown:
            drawn: dict[str, Figure] = {}
            for number, (run, section) in enumerate(zip(runs, page["sections"]), 1):
                to_figure = f"{FIGURES}/{number}-{run.info.experiment}"
                section["images"] = {kind: f"{to_figure}-{kind}" for kind in section["charts"]}
                drawn |= {section["images"][kind]: x for kind, x in section["charts"].items()}
            if page["overview"] and page["overview"]["chart"]:
                drawn[f"{FIGURES}/overview"] = page["overview"]["chart"]
            text = _environment(is_html=False).get_template("report.md.j2").render(page)
            text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
            written.append(write_whole(to / f"{name}.md", text))
            (to / FIGURES).mkdir(exist_ok=True)
            for path, figure in drawn.items():
                written += figures.save(figure, to / path)
    return written


def _newest_to_show(results: Path | str) -> list[StoredRun]:
    """Return the newest run of every experiment, in the order of the catalog, then own ones.

    A run as in the document stands beside the corrected one. A run with verdicts comes before
    newer ones without; where no run is finished, the newest unfinished one is taken.
    """
    newest = newest_runs(results, lambda info: rank_as_answer(info) or 0)
    published = newest_runs(results, lambda info: 1 if rank_as_answer(info) == 0 else None)
    names = [*(name for name in CATALOG if name in newest), *sorted(newest.keys() - CATALOG.keys())]
    shown = [runs[name] for name in names for runs in (newest, published) if name in runs]
    return list({run.folder: run for run in shown}.values())


def facts(run: StoredRun) -> dict[str, Any]:
    """Return what a report shows of a run: texts, (name, text) pairs, tables and figures."""
    from labkit.report.findings import findings
    from labkit.report.table import table

    info, summary, request = run.info, run.summary, Request.read(run.info)
    suffix = f" ({AS_PUBLISHED})" if info.protocol == AS_PUBLISHED else ""
    return {
        "name": f"{info.experiment}{suffix}",
        "title": f"{summary.question}{suffix}",
        "warnings": list(filter(None, [_unfinished(info), *warnings(summary)])),
        "conditions": words.conditions(summary),
        "charts": {kind: draw(summary) for kind, draw in charts.kinds(summary).items()},
        "table": table(summary),
        "result": words.result(summary),
        "tables": findings(run),
        "method": method_facts(run),
        "differences": _differences(info),
        "command": request.command_line(),
        "code": request.python_code(),
    }


def overview(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Return what several runs come to: an answer, a chart, and what was simulated."""
    summaries = [run.summary for run in runs]
    published = words.beside_the_documents(summaries)
    fastest = words.answer(summaries)
    are_judged = any(summary.agreement(row) for summary, row in published)
    n = sum(any(map(winner, _compared(summary))) for summary in summaries)
    saving = f"Of {len(runs)} runs, {n} {'shows' if n == 1 else 'show'} a saving."
    what_is_simulated = simulated_hardware([row for one in summaries for row in one.rows])
    return {
        "answer": fastest if are_judged else f"{saving} {fastest}".strip(),
        "chart": charts.overview(summaries),
        "simulated": [name.removeprefix("simulated ") for name in what_is_simulated],
    }


def _compared(summary: Summary) -> list[Summary]:
    """Return the parts of a run in which a variant may win."""
    if summary.protocol != CORRECTED:
        return []
    return [one for one in summary.comparisons if one.rows[0].normalized_time is not None]


def changes(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return what each run's best change saves, and what was published beside it.

    Returns:
        Runs with verdicts before others, and of each what saves most first, then what saves
        nothing; then the answers of runs that compare no variants with one baseline: number of the
        run, from 1; change, "" for an answer; document (of an answer, the largest saving); here;
        saves (whether it is a saving).
    """
    table: list[tuple[tuple[bool, float], dict[str, Any]]] = []
    for number, summary in enumerate((run.summary for run in runs), 1):
        others = words.comparable(summary)
        if summary.has_groups or not _compared(summary) or not others:
            here = words.in_short(summary)
            here += "" if summary.judged or not others else f" ({summary.mode}: no verdict)"
            answer = {"run": number, "change": "", "document": _largest_published(summary)}
            answer |= {"here": here, "saves": False}
            table.append(((True, math.inf), answer))
            continue
        best = winner(summary)
        beside = [row for row in others if row.published is not None]
        row = best or min(beside or others, key=lambda row: row.normalized_time)
        published = "" if row.published is None else words.less_time(row.published)
        change = {"run": number, "change": row.variant, "document": published}
        change |= {"here": _saving(summary, row), "saves": best is not None}
        place = (not summary.judged, row.normalized_time if best else 1.0)
        table.append((place, change))
    return [change for _, change in sorted(table, key=lambda one: one[0])]


def _largest_published(summary: Summary) -> str:
    """Return which of a run's variants saved most in the document; "" where it says of none."""
    published = [row for row in summary.rows if row.published is not None and not row.is_baseline]
    if not published:
        return ""
    best = min(published, key=lambda row: row.published)
    return f"{best.name}: {words.less_time(best.published)}"


def _saving(summary: Summary, row: Row) -> str:
    """Return what a variant saves: with its interval and verdict, or that there is no verdict."""
    saving = words.less_time(row.normalized_time)
    if row.ci_high is None:
        return f"{saving} (one block shows no difference)"
    shares = sorted((row.ci_low - 1, row.ci_high - 1))
    if row.normalized_time < 1:
        shares = [1 - row.ci_high, 1 - row.ci_low]
    ends = f"[{', '.join(map(units.percent, shares))}]"
    if not row.verdict:
        if row.ci_low <= 1 <= row.ci_high:
            change = units.change(row.normalized_time, row.ci_low, row.ci_high)
            return f"no clear difference: {change} ({summary.mode}: no verdict)"
        return f"{saving} {ends} ({summary.mode}: no verdict)"
    if row.verdict == "faster":
        return "; ".join(filter(None, [f"{saving} {ends}", summary.agreement(row)]))
    return f"{row.verdict}: {units.change(row.normalized_time, row.ci_low, row.ci_high)}"


def _answer_of_one(run: StoredRun) -> str:
    sentences = words.result(run.summary)
    return f"{sentences[0]}." if sentences else ""


def _grouped_claims(
    runs: Sequence[StoredRun], results: Path | str, *, are_all_shown: bool
) -> dict[str, list[dict[str, Any]]]:
    """Return group -> claims; each with its number of runs, from 1, that its answer rests on."""
    numbers = {run.folder.name: number for number, run in enumerate(runs, 1)}
    grouped: dict[str, list[dict[str, Any]]] = {group: [] for group in GROUPS}
    for row in answers(results, runs=runs):
        rests_on = [numbers[name] for name in row["run"].split(", ") if name]
        if rests_on or are_all_shown:
            grouped[row["group"]].append({**row, "runs": rests_on})
    return {group: rows for group, rows in grouped.items() if rows}


def claims_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of what `answers` returns; reference runs beside this machine's."""
    from labkit.report.table import Table

    names = ("number", "document", "claim", "published", "experiment", "answer", "reference")
    columns = {name: [row[name] for row in rows] for name in names}
    columns["here"] = columns.pop("answer")
    if any(reference := columns.pop("reference")):
        columns["reference runs"] = reference
    notes = [
        f"{row['number']}: {more}"
        for row in rows
        for more in (
            *(f"{side['by']}: {side['says']}" for side in row["sides"]),
            row["footnote"],
            row["roofline"],
        )
        if more
    ]
    return Table(columns, notes=notes)


def _machines(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return each machine: its facts, its runs' numbers, from 1, and its name if another one."""
    here = hardware.provenance().machine_id
    machines: list[dict[str, Any]] = []
    for number, run in enumerate(runs, 1):
        provenance = run.info.provenance
        is_here = provenance.machine_id == here and not run.info.shared_from
        machine = {
            "facts": machine_facts(provenance),
            "elsewhere": "" if is_here else hardware.describe(provenance),
        }
        known = next((one for one in machines if machine.items() <= one.items()), None)
        if known is None:
            machines.append(known := {**machine, "runs": []})
        known["runs"].append(number)
    return machines


def _unfinished(info: RunInfo) -> str:
    if info.status == "finished":
        return ""
    why = f": {info.reason}" if info.reason else ""
    words = {"cancelled": "was cancelled", "failed": "failed", "running": "is not finished"}
    status = words.get(info.status, f"is {info.status}")
    return f"This run {status}{why}. Only completed trials count."


def method_facts(run: StoredRun) -> Pairs:
    """Return how a run was measured, on which data, with which settings."""
    info, data, calibration = run.info, run.info.data, run.summary.calibration
    about_data = [
        units.count(data.images, "image") if data.images else "",
        units.count_bytes(data.bytes) if data.bytes else "",
        f"folder: {data.folder}" if data.folder else "",
        f"boxes: {data.boxes}" if data.boxes else "",
        f"manifest {data.data_hash[:12]}" if data.data_hash != UNKNOWN else "",
    ]
    facts = {
        "run": f"{info.experiment}/{run.folder.name}",
        "data": ", ".join(filter(None, about_data)),
        "images per epoch": units.count(calibration.images) if calibration.images else "",
        "simulated GPU": calibration.calibrated,
        **{
            f"medium {name}": ", ".join(filter(None, (of.filesystem, of.device, str(of.hardware))))
            for name, of in info.storages.items()
        },
        "settings": _settings({**_in_common(info), "data": None}),
    }
    return [(name, text) for name, text in facts.items() if text]


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def _in_common(info: RunInfo) -> dict[str, Any]:
    return in_common([info.settings_of(label) for label in info.variants])


def _differences(info: RunInfo) -> Table | None:
    """Return the settings in which variants differ; None where they do not."""
    from labkit.report.table import Table

    common = _in_common(info)
    own = {
        label: _settings({k: v for k, v in info.settings_of(label).items() if k not in common})
        for label in info.variants
    }
    rows = [{"variant": label, "settings": text} for label, text in own.items()]
    return Table(rows) if any(own.values()) else None


def machine_facts(provenance: Provenance) -> Pairs:
    """Return the machine and the software of a run."""
    versions = {"python": provenance.python, **provenance.versions}
    system = f"{provenance.platform}, kernel {provenance.kernel}"
    software = [f"{name} {version}" for name, version in versions.items() if version != UNKNOWN]
    facts = [
        ("machine", hardware.describe(provenance)),
        ("memory", units.count_bytes(provenance.memory_bytes)),
        ("system", f"{system}, virtual" if provenance.virtual else system),
        ("software", ", ".join(software)),
    ]
    return [(name, text) for name, text in facts if text]


# --- templates --------------------------------------------------------------------------

# Markup anywhere; brackets stay readable, for only "](", "][" and "]:" make links.
_ANYWHERE = re.compile(r"([\\`*<>|~$&]|\](?=[(\[:])|!(?=\[)|(?<![^\W_])_|_(?![^\W_])|:(?=//))")
# Markup at the start of a line: headings, quotes, lists, boxes to tick, rules.
_AT_START = re.compile(r"^([#=]|[+-](?=[\s+-]|$)|\[(?=[ xX]\])|\d+(?=[.)](?:\s|$)))")


def _environment(*, is_html: bool) -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    def finalize(value: object) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape_markdown(str(value)))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("labkit.report", "."),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=None if is_html else finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"claims_table": claims_table, "not_run": ("not run", "not testable")}
    environment.filters |= {
        "svg": _svg,
        "html": lambda table, **more: Markup(
            table.to_html(heading=(), exclude_styles=True, **more)
        ),
        "cells": lambda texts: Markup(" | ".join(map(escape_markdown, texts))),
        # In an alternative text every bracket counts.
        "alt": lambda text: Markup(re.sub(r"\\?([\[\]])", r"\\\1", escape_markdown(text))),
        "code": lambda text, language: Markup(_fenced(text, language)),
    }
    return environment


def _svg(figure: Figure) -> str:
    return base64.b64encode(figures.to_bytes(figure, "svg")).decode()


def escape_markdown(text: str) -> str:
    """Return any text as one line that Markdown shows as it is."""
    line = _ANYWHERE.sub(r"\\\1", " ".join(text.split()))
    # A digit cannot be escaped, what follows it can.
    return _AT_START.sub(lambda m: f"{m[1]}\\" if m[1].isdigit() else f"\\{m[1]}", line)


def _fenced(text: str, language: str) -> str:
    """Return a text in a fence that none of its lines can close."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
