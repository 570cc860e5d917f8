"""Files of a run for a paper, a colleague or a training program: format -> what writes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from labkit.files import unused, write_whole
from labkit.report import bars
from labkit.report.comparison import compare
from labkit.report.run import Run, report
from labkit.runs.store import REPORTS, explain_unwritable
from labkit.settings import pick

PNG_DPI = 300  # what journals ask for

# Of one run, in its folder.
EXPORTS: dict[str, Callable[[Run], Path]] = {
    "PNG": lambda run: _draw(run.chart(), run.folder / "chart.png"),
    "SVG": lambda run: _draw(run.chart(), run.folder / "chart.svg"),
    "PDF": lambda run: _draw(run.chart(), run.folder / "chart.pdf"),
    "CSV": lambda run: write_whole(run.folder / "table.csv", run.table(detail=True).to_csv()),
    "HTML report": lambda run: run.report(markdown=False)[0],
    "Markdown report": lambda run: run.report()[1],
    "Recipe": lambda run: write_whole(run.folder / "recipe.py", run.recipe()),
    "Share file": lambda run: run.share(),
}
# Of several runs; numbers of different runs never stand in one table.
OF_SEVERAL = ("PNG", "SVG", "PDF", "HTML report")


def export(runs: Sequence[Run], form: str, results: Path | str = "results") -> Path:
    """Write one file.

    Args:
        runs: one, or several to be shown side by side.
        form: a key of `EXPORTS`.
        results: folder of all results.

    Returns:
        Where it is: in the run's folder; of several runs in ``results/reports``.

    Raises:
        ValueError: an unknown format, no run, or several where the format takes one.
        OSError: the folder cannot be written; the message says what to do.
    """
    write = pick(EXPORTS, form, "format")
    if not runs:
        raise ValueError("runs must be at least one, got none; run the experiment first")
    if len(runs) > 1 and form not in OF_SEVERAL:
        raise ValueError(
            f"runs must be one for {form}, got {len(runs)}; choose one, or one of "
            f"{', '.join(OF_SEVERAL)}"
        )
    with explain_unwritable(results):
        if len(runs) == 1:
            return write(runs[0])
        if form == "HTML report":
            return report(runs, results=results, markdown=False)[0]
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"{runs[0].info['experiment']}-{stamp}-chart.{form.lower()}"
        path = unused(Path(results) / REPORTS / name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _draw(compare(runs).chart(), path)


def _draw(figure: object, path: Path) -> Path:
    return write_whole(path, bars.to_bytes(figure, path.suffix[1:], dpi=PNG_DPI))
