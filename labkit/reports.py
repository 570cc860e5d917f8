"""Reports: chosen runs as one HTML file, and as Markdown with figure files, to keep or to send.

    runs ─ notebook.section ─┬─ page ───────────▶ report.html (needs nothing beside it)
           claims            └─ markdown_report ▶ report.md + figures/….png .svg .pdf

Everything is derived from the run folders and can be made again.  Main trap: a run of another
machine must not answer for this one, and one that broke off must say so before it says more.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from labkit import figures, machine
from labkit.claims import CLAIMS, answers_of
from labkit.files import write_whole
from labkit.markdown_report import markdown_report
from labkit.notebook import newest_to_show, section
from labkit.page import page
from labkit.results import REPORTS, SHARED, Run, explain_unwritable
from labkit.sections import Section

FOLDER, HTML, MARKDOWN, FIGURES = REPORTS, "report.html", "report.md", "figures"


def write_report(
    runs: Run | Sequence[Run] | None = None,
    folder: Path | str | None = None,
    *,
    results: Path | str = "results",
    markdown: bool = True,
) -> list[Path]:
    """Write what chosen runs asked, did and found, as files that need nothing else.

    Args:
        runs: one or several, of either kind; unset: every experiment's newest in `results`.
        folder: takes the files, and is made if missing; unset: of one run its own folder, of
            several a new one in ``results/reports``.
        results: folder that holds all results; only looked at where `runs` is unset.
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
    here = machine.provenance()["machine_id"]
    sections = [_section(run, here) for run in chosen]
    to = _choose_folder(chosen) if folder is None else Path(folder)
    with explain_unwritable(to):
        to.mkdir(parents=True, exist_ok=True)
        written = [write_whole(to / HTML, page(sections))]
        if markdown:
            names = _name_figures(sections, chosen)
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
        warnings.insert(0, f"Measured on another machine: {machine.describe(measured_on)}.")
    tested = {test.experiment for claim in CLAIMS for test in claim.tests}
    claims = answers_of(run, here) if is_own else []
    return replace(
        shown,
        warnings=warnings,
        claims=claims if run.info["experiment"] in tested else None,
    )


def _choose_folder(runs: Sequence[Run]) -> Path:
    first, *others = runs
    if not others:
        return first.folder
    minute = time.strftime("%Y%m%dT%H%MZ", time.gmtime())
    results = first.folder.parents[1]
    reports = (results.parent if results.name == SHARED else results) / FOLDER
    # Two reports of one minute are of different runs.
    n = 1
    while (folder := reports / (minute if n == 1 else f"{minute}-{n}")).exists():
        n += 1
    return folder


def _name_figures(sections: Sequence[Section], runs: Sequence[Run]) -> list[list[str]]:
    """Name every section's figure files: relative, without suffix, each only once."""
    taken: dict[str, int] = {}
    return [
        [
            _once(
                f"{FIGURES}/{_safe(str(run.info['experiment']))}-{_safe(run.folder.name)}-{name}",
                taken,
            )
            for name in shown.figures
        ]
        for run, shown in zip(runs, sections)
    ]


def _safe(name: str) -> str:
    """A folder may be renamed to anything; a link holds letters, digits, dots and dashes."""
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip(".") or "run"


def _once(path: str, taken: dict[str, int]) -> str:
    taken[path] = taken.get(path, 0) + 1
    return path if taken[path] == 1 else f"{path}-{taken[path]}"
