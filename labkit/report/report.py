"""Reports: chosen runs as one HTML file, and as Markdown with figure files, to keep or to send.

runs ─ notebook.section ─┬─ page ───────────▶ report.html (needs nothing beside it)
       claims            └─ markdown_report ▶ report.md + figures/….png .svg .pdf
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from labkit.claims.ledger import CLAIMS, answers_of
from labkit.files import unused, write_whole
from labkit.machine import hardware
from labkit.report import bars as figures
from labkit.report.page import Section, markdown_report, page
from labkit.report.run import newest_to_show, section
from labkit.runs.store import REPORTS, SHARED, Run, explain_unwritable

HTML, MARKDOWN, FIGURES = "report.html", "report.md", "figures"


def write_report(
    runs: Run | Sequence[Run] | None = None,
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
    chosen = [runs] if isinstance(runs, Run) else list(runs)
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


def _section(run: Run, here: str) -> Section:
    """Add to what every page shows of a run whose it is, and what it answers."""
    shown, measured_on = section(run), run.info.get("provenance") or {}
    is_own = not run.info.get(SHARED) and measured_on.get("machine_id") == here
    warnings = list(shown.warnings)
    if not is_own:
        warnings.insert(0, f"Measured on another machine: {hardware.describe(measured_on)}.")
    tested = {test.experiment for claim in CLAIMS for test in claim.tests}
    claims = answers_of(run, here) if is_own else []
    return replace(
        shown,
        warnings=warnings,
        claims=claims if run.info["experiment"] in tested else None,
    )
