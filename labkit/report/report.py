"""Reports: chosen runs as one HTML file, and as Markdown with figure files, to keep or to send.

runs ─ notebook.section ─┬─ page ───────────▶ report.html (needs nothing beside it)
       claims            └─ markdown_report ▶ report.md + figures/….png .svg .pdf
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.analysis.summary import Summary
from labkit.claims.ledger import CLAIMS, answers, answers_of
from labkit.experiments.catalog import CATALOG
from labkit.experiments.request import Request
from labkit.report import charts, report_words, table
from labkit.report.captions import self_checks, stand_ins
from labkit.report.costs import costs
from labkit.report.findings import findings
from labkit.report.predictions import has_combinations, predictions
from labkit.runs.store import newest_runs
from labkit.settings import AS_PUBLISHED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.report.frame import Frame
from labkit.files import unused, write_whole
from labkit.machine import hardware
from labkit.report import bars as figures
from labkit.report.page import Section, markdown_report, page
from labkit.runs.store import REPORTS, SHARED, StoredRun, explain_unwritable

PAGE = "index.html"
HTML, MARKDOWN, FIGURES = "report.html", "report.md", "figures"


def write_report(
    runs: StoredRun | Sequence[StoredRun] | None = None,
    folder: Path | str | None = None,
    *,
    results: Path | str = "results",
    markdown: bool = True,
) -> list[Path]:
    """Write what chosen runs asked, did and found, as files that need nothing else.

    Args:
        runs: one or several; unset: every experiment's newest in `results`.
        folder: takes the files, and is made if missing; unset: of one run its own folder, of
            several a new one in ``results/reports``.
        results: folder that holds all results.
        markdown: write report.md and its figures too.

    Returns:
        report.html; then, if asked for, report.md and every figure file.

    Raises:
        ValueError: there is no run.
        OSError: the folder cannot be written; the message says what to do.
    """
    if runs is None:
        runs = newest_to_show(results)
    chosen = [runs] if isinstance(runs, StoredRun) else list(runs)
    if not chosen:
        raise ValueError(
            f"runs must be at least one, got none in {results}; "
            "make one with: labkit run prefetching"
        )
    here = hardware.provenance()["machine_id"]
    sections = [_section(run, here) for run in chosen]
    if folder is not None:
        to = Path(folder)
    elif len(chosen) == 1:
        to = chosen[0].folder
    else:
        to = unused(Path(results) / REPORTS / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    with explain_unwritable(to):
        to.mkdir(parents=True, exist_ok=True)
        written = [write_whole(to / HTML, page(sections))]
        if markdown:
            names = [
                [f"{FIGURES}/{number}-{run.info['experiment']}-{name}" for name in shown.figures]
                for number, (run, shown) in enumerate(zip(chosen, sections), 1)
            ]
            written.append(write_whole(to / MARKDOWN, markdown_report(sections, names)))
            (to / FIGURES).mkdir(exist_ok=True)
            for shown, paths in zip(sections, names):
                for figure, path in zip(shown.figures.values(), paths):
                    written += figures.save(figure, to / path)
    return written


def _section(run: StoredRun, here: str) -> Section:
    """Add to what every page shows of a run whose it is, and what it answers."""
    shown, measured_on = section(run), run.info.get("provenance") or {}
    is_own = not run.info.get(SHARED) and measured_on.get("machine_id") == here
    warnings = list(shown.warnings)
    if not is_own:
        warnings.insert(0, f"Measured on another machine: {hardware.describe(measured_on)}.")
    tested = {c.experiment for claim in CLAIMS for c in claim.contrasts}
    claims = answers_of(run, here) if is_own else []
    return replace(
        shown,
        warnings=warnings,
        claims=claims if run.info["experiment"] in tested else None,
    )


def write_page(results: Path | str = "results") -> Path:
    """Write one self-contained page: the claims, and every experiment's newest finished run.

    Args:
        results: folder that holds all results.

    Raises:
        ValueError: there is no run yet.
    """
    newest = newest_to_show(results)
    if not newest:
        raise ValueError(
            f"results must hold at least one run, got none in {results}; "
            "make one with: labkit run prefetching"
        )
    sections = [section(run) for run in newest]
    with explain_unwritable(results):
        return write_whole(Path(results) / PAGE, page(sections, answers(results)))


def newest_to_show(results: Path | str) -> list[StoredRun]:
    """Take every experiment's run to show: in the documents' order, a person's own after it.

    A run as in the document stands beside the corrected one.
    """
    # Where nothing is finished, what there is.
    newest = newest_runs(results, lambda info: 0) | newest_runs(results, is_finished)
    faithful = newest_runs(
        results,
        lambda info: 0 if _is_as_published(info) and info["status"] == "finished" else None,
    )
    known = [name for name in CATALOG if name in newest]
    shown = []
    for name in [*known, *sorted(set(newest) - set(known))]:
        shown.append(newest[name])
        if name in faithful and faithful[name].folder != newest[name].folder:
            shown.append(faithful[name])
    return shown


def section(run: StoredRun) -> Section:
    """Gather what a page shows of a run."""
    name = f"{run.folder.parent.name}/{run.folder.name}"
    request = Request.read(run.info)
    unfinished = list(filter(None, [report_words.whole(run.info)]))
    summary = run.summary
    warnings = stand_ins(summary)
    title = summary.question
    if _is_as_published(run.info):
        title += f" ({AS_PUBLISHED})"
    return Section(
        title=title,
        run=name,
        warnings=[*unfinished, *warnings],
        conditions=table.table_conditions(summary)[1 if warnings else 0 :],
        setup=report_words.setup(run.info),
        differences=report_words.differences(run.info),
        hardware=report_words.hardware(run.info),
        figures=_draw(run.info, summary),
        header=table.table_header(summary),
        cells=table.table_cells(summary),
        second_lines=table.second_lines(summary),
        checks=self_checks(summary),
        tables=more_tables(run),
        notes=summary.notes,
        command=request.command_line(),
        code=request.python_code(),
        info=run.info,
    )


def more_tables(run: StoredRun) -> dict[str, Frame]:
    """Return what else a run supports beside its table: title -> table, without empty ones."""
    if run.info.get("groups"):
        return {}
    found = {"Cold, warm and in memory": findings(run), "What storing costs": costs(run)}
    if has_combinations(run):
        found["Do the savings add up?"] = predictions(run)
    return {title: frame for title, frame in found.items() if len(frame)}


def save(run: StoredRun) -> list[Path]:
    """Write a run's derived files into its folder.

    Returns:
        table.csv, then .png, .svg and .pdf of each chart.
    """
    csv = run.folder / "table.csv"
    with explain_unwritable(run.folder):
        write_whole(csv, table.table(run.summary, detail=True).to_csv())
        drawn = _draw(run.info, run.summary)
        files = [figures.save(figure, run.folder / name) for name, figure in drawn.items()]
    return [csv, *itertools.chain(*files)]


def _draw(info: Mapping[str, object], summary: Summary) -> dict[str, Figure]:
    """Draw all charts of a run of epochs: what its files are called -> figure."""
    drawn = {"chart": charts.times(summary)}
    if info.get("epoch_chart"):
        drawn["epochs"] = charts.epochs(summary)
    if charts.find_series(info, summary):
        drawn["dial"] = charts.dial(info, summary)
    return drawn


def _is_as_published(info: Mapping[str, object]) -> bool:
    return info.get("protocol") == AS_PUBLISHED


def is_finished(info: Mapping[str, object]) -> int | None:
    """Weigh a run for `newest_runs`: finished ones only."""
    # A run as in the document answers another question; it must not hide a corrected one.
    return None if info["status"] != "finished" else int(not _is_as_published(info))
