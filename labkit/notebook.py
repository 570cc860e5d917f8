"""What a notebook or a shell shows of a run: the table, the chart, the files, the page.

    run folder ──summarize──▶ table(run), chart(run), save(run) → table.csv, chart.png/.svg/.pdf
    all newest runs ─────────▶ write_page(results) → results/index.html

Everything here is derived from the rows and can be made again at any time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labkit import charts, machine, report
from labkit.catalog import CATALOG
from labkit.results import Run, explain_unwritable, list_runs, load_run
from labkit.settings import Settings
from labkit.source import open_source
from labkit.summary import Summary
from labkit.summary import summarize as _summarize

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PAGE = "index.html"


def summarize(run: Run) -> Summary:
    """Derive a run's rows of statistics from its trials."""
    return _summarize(run.info, run.trials)


def table(run: Run, detail: bool = False) -> pd.DataFrame:
    """Show a run's table: five columns, or with `detail` everything that was measured."""
    return report.table(summarize(run), detail)


def chart(run: Run) -> Figure:
    """Show a run's chart."""
    return charts.chart(summarize(run))


def save(run: Run) -> list[Path]:
    """Write a run's derived files into its folder.

    Returns:
        table.csv and chart.png, .svg, .pdf.
    """
    summary = summarize(run)
    csv = run.folder / "table.csv"
    with explain_unwritable(run.folder):
        report.table(summary, detail=True).to_csv(csv)
        return [csv, *charts.save(charts.chart(summary), run.folder / "chart")]


def write_page(results: Path | str = "results") -> Path:
    """Write one self-contained page that shows every experiment's newest finished run.

    Args:
        results: folder that holds all results.

    Raises:
        ValueError: there is no run yet.
    """
    newest = {}
    for folder in list_runs(results):
        # A run that was refused or broke off early must not hide the one before it.
        if folder.parent.name not in newest or load_run(folder).info["status"] == "finished":
            newest[folder.parent.name] = folder
    if not newest:
        raise ValueError(
            f"results must hold at least one run, got none in {results}; "
            "make one with: labkit run prefetching"
        )
    # The catalog's order first, a person's own experiments after it.
    names = [*(name for name in CATALOG if name in newest), *sorted(set(newest) - set(CATALOG))]
    shown = [(summarize(load_run(newest[name])), newest[name]) for name in names]
    page = Path(results) / PAGE
    unfinished = page.with_suffix(".part")
    with explain_unwritable(results):
        unfinished.write_text(report.page(shown), encoding="utf-8")
        unfinished.replace(page)
    return page


def doctor(data: str | None = None) -> pd.DataFrame:
    """Show what this machine has, and what will be skipped and why.

    Args:
        data: probe this folder's disk too, if it is there.
    """
    from labkit.frame import Frame

    folders = {"data": Path(data)} if data and Path(data).is_dir() else {}
    return Frame(machine.doctor_report(folders), columns=["", "here", "remark"]).set_index("")


def describe_data(data: str) -> pd.DataFrame:
    """Show what a folder of images holds.

    Args:
        data: a COCO layout, or any tree of .jpg/.jpeg files.

    Raises:
        ValueError: there are no images.
    """
    from labkit.frame import Frame

    reader = open_source(Settings(data=data))
    made = " (synthesized: this folder has none)" if reader.boxes == "synthesized" else ""
    facts = {
        "images": len(reader),
        "boxes": reader.boxes + made,
        "manifest": reader.manifest_hash[:12],
    }
    return Frame(facts.items(), columns=["", data]).set_index("")
