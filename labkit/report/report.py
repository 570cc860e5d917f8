"""Reports: runs as one HTML file, and as Markdown with figure files, to keep or to send.

    run ─▶ facts() ─┬─▶ page.html.j2 ─▶ report.html, which needs no other file
                    └─▶ report.md.j2 ─▶ report.md and figures/….png .svg .pdf

Labels, reasons and folders are free text, so both templates escape every value.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.stand_ins import stand_ins
from labkit.analysis.summary import in_common
from labkit.claims.ledger import answers, answers_of
from labkit.experiments.request import Request
from labkit.files import unused, write_whole
from labkit.machine import hardware
from labkit.report import bars, words
from labkit.runs.store import REPORTS, SHARED, StoredRun, explain_unwritable
from labkit.settings import AS_PUBLISHED

if TYPE_CHECKING:
    import jinja2
    from matplotlib.figure import Figure

    from labkit.report.run import Run
    from labkit.report.table import Table

Pairs = list[tuple[str, str]]

HTML, MARKDOWN, FIGURES = "report.html", "report.md", "figures"
STATUS = {"cancelled": "was cancelled", "failed": "failed", "running": "is not finished"}


def write_report(
    runs: Sequence[Run],
    folder: Path | str | None = None,
    *,
    results: Path | str = "results",
    markdown: bool = True,
    all_claims: bool = False,
) -> list[Path]:
    """Write the report of some runs, as `run.report` describes it; with all claims at its end."""
    if not runs:
        raise ValueError(
            f"runs must be at least one, got none in {results}; "
            "make one with: labkit run prefetching"
        )
    if folder is not None:
        to = Path(folder)
    elif all_claims:
        to = Path(results)
    elif len(runs) == 1:
        to = runs[0].folder
    else:
        to = unused(Path(results) / REPORTS / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    sections = [facts(run) for run in runs]
    claims = claims_table(answers(results)) if all_claims else None
    with explain_unwritable(to):
        to.mkdir(parents=True, exist_ok=True)
        page = _environment(is_html=True).get_template("page.html.j2")
        written = [write_whole(to / HTML, page.render(sections=sections, claims=claims))]
        if markdown:
            for number, (run, section) in enumerate(zip(runs, sections), 1):
                name = f"{FIGURES}/{number}-{run.info['experiment']}"
                section["images"] = {kind: f"{name}-{kind}" for kind in section["charts"]}
            page = _environment(is_html=False).get_template("report.md.j2")
            text = page.render(sections=sections, claims=claims)
            text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
            written.append(write_whole(to / MARKDOWN, text))
            (to / FIGURES).mkdir(exist_ok=True)
            for section in sections:
                for kind, path in section["images"].items():
                    written += bars.save(section["charts"][kind], to / path)
    return written


def save(run: Run) -> list[Path]:
    """Write table.csv, then .png, .svg and .pdf of each chart, into the run's folder."""
    csv = run.folder / "table.csv"
    with explain_unwritable(run.folder):
        write_whole(csv, run.table(detail=True).to_csv())
        files = [csv]
        for kind in run.charts:
            name = "chart" if kind == run.charts[0] else kind
            files += bars.save(run.chart(kind), run.folder / name)
    return files


def facts(run: Run) -> dict[str, object]:
    """Return what a report shows of a run: texts, (name, text) pairs, tables and figures."""
    info, summary, request = run.info, run.summary, Request.read(run.info)
    provenance: Mapping = info.get("provenance") or {}
    machine_id = provenance.get("machine_id")
    is_own = not info.get(SHARED) and machine_id == hardware.provenance()["machine_id"]
    answered = answers_of(run, machine_id) if is_own else []
    suffix = f" ({AS_PUBLISHED})" if info.get("protocol") == AS_PUBLISHED else ""
    elsewhere = f"Measured on another machine: {hardware.describe(provenance)}."
    warnings = [_unfinished(info), "" if is_own else elsewhere, *stand_ins(summary)]
    return {
        "title": f"{summary.question}{suffix}",
        "warnings": list(filter(None, warnings)),
        "conditions": words.conditions(summary),
        "charts": {kind: run.chart(kind) for kind in run.charts},
        "table": run.table(),
        "tables": run.findings(),
        "claims": claims_table(answered) if answered else None,
        "method": method_facts(run),
        "differences": _differences(info),
        "hardware": machine_facts(info),
        "command": request.command_line(),
        "code": request.python_code(),
    }


def _unfinished(info: Mapping[str, object]) -> str:
    status = str(info.get("status"))
    if status == "finished":
        return ""
    why = f": {info['reason']}" if info.get("reason") else ""
    return f"This run {STATUS.get(status, f'is {status}')}{why}. Only completed trials count."


def method_facts(run: StoredRun) -> Pairs:
    """Return how a run was measured, on which data, with which settings."""
    info, calibration = run.info, run.info.get("calibration") or {}
    data: Mapping = info.get("data") or {}
    found = {
        "run": f"{info['experiment']}/{run.folder.name}",
        "started": units.minute(str(info["created_utc"])) if info.get("created_utc") else "",
        "blocks planned": str(info.get("blocks") or ""),
        "order": _order(info),
        "data": ", ".join(
            [
                *([units.count(data["images"], "image")] if "images" in data else []),
                *([units.count_bytes(data["bytes"])] if "bytes" in data else []),
                *(f"{name}: {data[name]}" for name in ("folder", "boxes") if data.get(name)),
                *([f"manifest {data['manifest'][:12]}"] if data.get("manifest") else []),
            ]
        ),
        "images per epoch": units.count(calibration["images"]) if "images" in calibration else "",
        "simulated GPU": str(calibration.get("calibrated", "")),
        "settings": _settings({**in_common((info.get("variants") or {}).values()), "data": None}),
    }
    return [(name, text) for name, text in found.items() if text]


def _order(info: Mapping[str, object]) -> str:
    if info.get("protocol") == AS_PUBLISHED:
        return f"{AS_PUBLISHED}: only the first variant of a block starts cold"
    orders = {True: "random in each block, the baseline twice", False: "as given, once a block"}
    return orders.get(info.get("shuffled"), "")


def _settings(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def _differences(info: Mapping[str, object]) -> Table | None:
    """Return the settings in which variants differ; None where they do not."""
    from labkit.report.table import Table

    variants = info.get("variants") or {}
    common = in_common(variants.values())
    own = {
        label: _settings({name: value for name, value in settings.items() if name not in common})
        for label, settings in variants.items()
    }
    rows = [{"variant": label, "settings": text} for label, text in own.items()]
    return Table(rows) if any(own.values()) else None


def machine_facts(info: Mapping[str, object]) -> Pairs:
    """Return the machine, software and media of a run."""
    provenance: Mapping = info.get("provenance") or {}
    memory_bytes = provenance.get("memory_bytes")
    versions = {"python": provenance.get("python"), **(provenance.get("versions") or {})}
    system = (
        f"{provenance.get('platform', 'unknown')}, kernel {provenance.get('kernel', 'unknown')}"
    )
    software = [f"{name} {version}" for name, version in versions.items() if version]
    found = [
        ("machine", hardware.describe(provenance)),
        ("memory", "" if memory_bytes is None else units.count_bytes(memory_bytes)),
        ("system", f"{system}, virtual" if provenance.get("virtual") is True else system),
        ("software", ", ".join(filter(None, [words.revision(provenance), *software]))),
    ]
    for name, medium in (info.get("storages") or {}).items():
        parts = [medium.get("filesystem"), medium.get("device"), medium.get("label")]
        found.append((f"medium {name}", ", ".join(str(part) for part in parts if part)))
    return [(name, text) for name, text in found if text]


def claims_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """Return claims with their answers, and who says otherwise in small print.

    Args:
        rows: from `ledger.answers`.
    """
    from labkit.report.table import Table

    names = ("number", "document", "claim", "published", "experiment", "answer")
    sides = [[f"{side['by']}: {side['says']}" for side in row["sides"]] for row in rows]
    small = [
        " · ".join(filter(None, [*said, row["footnote"], row["roofline"]]))
        for said, row in zip(sides, rows)
    ]
    columns = {name: [row[name] for row in rows] for name in names}
    columns["here"] = columns.pop("answer")
    if any(reference := [row.get("reference", "") for row in rows]):
        columns["reference runs"] = reference
    return Table(columns, small_print=small)


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
    environment.filters |= {
        "svg": _svg,
        "html": lambda table: Markup(table.to_html(heading=(), exclude_styles=True)),
        "cells": lambda texts: Markup(" | ".join(map(escape_markdown, texts))),
        # In an alternative text every bracket counts.
        "alt": lambda text: Markup(re.sub(r"\\?([\[\]])", r"\\\1", escape_markdown(text))),
        "code": lambda text, language: Markup(_fenced(text, language)),
    }
    return environment


def _svg(figure: Figure) -> str:
    return base64.b64encode(bars.to_bytes(figure, "svg", outlines=True)).decode()


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
