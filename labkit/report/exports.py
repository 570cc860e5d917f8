"""Exports: a run as the file that a paper, a colleague or a train.py wants.

    run(s) ─ EXPORTS[format] ─▶ one file in the run's folder

Nothing is divided across machines or modes: of several runs there are figures and the report only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from labkit.contracts import utc_now
from labkit.files import unused, write_whole
from labkit.report import bars as figures
from labkit.report import charts, recipe, share, table
from labkit.report.report import write_report
from labkit.runs.store import REPORTS, StoredRun, explain_unwritable
from labkit.settings import pick

PNG_DPI = 300  # what journals ask for


def export(runs: Sequence[StoredRun], form: str, results: Path | str = "results") -> Path:
    """Write one file.

    Args:
        runs: one, or several to be shown side by side.
        form: a key of `EXPORTS`.
        results: folder of all results; takes what is made of several runs.

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
        return write(runs, Path(results))


def _figure(runs: Sequence[StoredRun], results: Path, *, kind: str) -> Path:
    name = f"chart.{kind}"
    if len(runs) == 1:
        path, figure = runs[0].folder / name, charts.times(runs[0].summary)
    else:
        stamp = utc_now().replace(":", "").replace("-", "")
        path = unused(results / REPORTS / f"{runs[0].info['experiment']}-{stamp}-{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure = charts.side_by_side(runs)
    return write_whole(path, figures.to_bytes(figure, kind, dpi=PNG_DPI))


def _text(
    runs: Sequence[StoredRun], results: Path, *, name: str, write: Callable[[StoredRun], str]
) -> Path:
    return write_whole(runs[0].folder / name, write(runs[0]))


def _report(runs: Sequence[StoredRun], results: Path) -> Path:
    return write_report(runs, results=results, markdown=False)[0]


def _share(runs: Sequence[StoredRun], results: Path) -> Path:
    return share.write(runs[0])


EXPORTS: dict[str, Callable[[Sequence[StoredRun], Path], Path]] = {
    "PNG": partial(_figure, kind="png"),
    "SVG": partial(_figure, kind="svg"),
    "PDF": partial(_figure, kind="pdf"),
    "CSV": partial(
        _text, name="table.csv", write=lambda run: table.table(run.summary, detail=True).to_csv()
    ),
    "Markdown table": partial(
        _text, name="table.md", write=lambda run: table.markdown(run.summary)
    ),
    "HTML report": _report,
    "Recipe": partial(_text, name="recipe.py", write=recipe.recipe),
    "Share file": _share,
}
OF_SEVERAL = ("PNG", "SVG", "PDF", "HTML report")
