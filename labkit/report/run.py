"""A run as the user holds it: its table, charts, findings, report, recipe and share file.

Everything is derived from the stored rows and can be made again at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.claims.ledger import answers
from labkit.report import charts, recipe, report, share, table
from labkit.report import savings as saved
from labkit.report.comparison import compare_table
from labkit.runs import runner, store
from labkit.runs.active import Progress
from labkit.runs.experiment import Experiment
from labkit.runs.store import StoredRun, newest_runs
from labkit.settings import pick

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from labkit.report.frame import Frame


class Run(StoredRun):
    """A run of an experiment, as it lies on disk."""

    def table(self, detail: bool = False) -> pd.DataFrame:
        """Show its main columns, or with `detail` everything that was measured."""
        return table.table(self.summary, detail)

    def chart(self, kind: str = "times") -> Figure:
        """Draw a chart.

        Args:
            kind: "times": normalized epoch times; "epochs": the epochs one by one, with what was
                in memory and what came from a disk; "dial": normalized time over how often the
                training loop does something.

        Raises:
            ValueError: an unknown kind, or the experiment has no dial.
        """
        draw = {
            "times": lambda: charts.times(self.summary),
            "epochs": lambda: charts.epochs(self.summary),
        }
        if self.info.get("dial"):
            draw["dial"] = lambda: charts.dial(self.info, self.summary)
        return pick(draw, kind, "kind")()

    def findings(self) -> dict[str, Frame]:
        """Return the tables that a run supports beside its own: title -> table."""
        return report.more_tables(self)

    def savings(self, *, epochs: int, images: int, gpu_hour: float | None = None) -> Frame:
        """Return what each variant would save over a whole training; see `savings.savings`."""
        return saved.savings(self, epochs=epochs, images=images, gpu_hour=gpu_hour)

    def recipe(self, variant: str | None = None) -> str:
        """Return the winner, or another variant, as a plain PyTorch program."""
        return recipe.recipe(self, variant)

    def report(self, folder: Path | str | None = None, *, markdown: bool = True) -> list[Path]:
        """Write report.html and, if asked for, report.md with its figures; see `lab.report`."""
        return report.write_report(self, folder, markdown=markdown)

    def share(self, file: Path | str | None = None) -> Path:
        """Write one file for a colleague, without names, hosts and paths of this machine."""
        return share.write(self, file)

    def save(self) -> list[Path]:
        """Write table.csv and the charts into the run's folder; return the files."""
        return report.save(self)


def _held(stored: StoredRun) -> Run:
    return Run(**{field.name: getattr(stored, field.name) for field in fields(StoredRun)})


def run(
    experiment: Experiment,
    mode: str = "quick",
    *,
    results: Path | str = "results",
    blocks: int | None = None,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> Run:
    """Run an experiment.

    Args:
        experiment: what to compare.
        mode: quick, document or full.
        results: folder that takes the run folder.
        blocks: repetitions; unset: the mode's.
        cancel: set by another thread to stop; finished trials stay.
        progress: whether to print a bar with ETA, or an object to report to instead.

    Returns:
        The run as it is on disk; `run.info["status"]` is finished or cancelled.

    Raises:
        ValueError: settings, data or parts that cannot work, before anything is timed.
        RuntimeError: the baseline cannot be measured here (finished rows stay), or another run
            is in progress in this process.
        Cancelled: `cancel` was set while data at a URL was copied to this machine.
    """
    options = {"results": results, "blocks": blocks, "cancel": cancel, "progress": progress}
    return _held(runner.run(experiment, mode, **options))


def resume(
    folder: Path | str,
    *,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> Run:
    """Run what is missing of a run that was cancelled or killed.

    Args:
        folder: a run folder.
        cancel: as in `run`.
        progress: as in `run`.

    Raises:
        FileNotFoundError: there is no run in this folder.
        ValueError: a part of it is not known here, its data changed, or it began on another
            machine.
        RuntimeError: another run is in progress in this process, or another process has this one.
    """
    return _held(runner.resume(folder, cancel=cancel, progress=progress))


def find_run(name: Path | str, results: Path | str = "results") -> Run:
    """Find a run.

    Args:
        name: its folder, its id (or the start of it), or an experiment: its newest run.
        results: folder that holds all results.

    Raises:
        FileNotFoundError: nothing matches; the message lists what there is.
        ValueError: several runs match, or the run was written by a newer labkit.
    """
    return _held(store.find_run(results, str(name)))


def newest_run(name: str, results: Path | str = "results") -> Run | None:
    """Return an experiment's newest finished run; None where there is none."""
    found = newest_runs(results, report.is_finished).get(name)
    return found and _held(found)


def open_shared(file: Path | str, results: Path | str = "results") -> Run:
    """Open a colleague's file: check it, and put the run beside this machine's own.

    Args:
        file: from `Run.share`.
        results: folder that holds all results.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not what `Run.share` writes, or is of a newer labkit.
    """
    return _held(share.open_shared(file, results))


class Comparison:
    """Runs of one experiment beside one another, each against its own baseline.

    Args:
        runs: one to six, of any machine and mode.

    Raises:
        ValueError: the runs are of several experiments, or too many.
    """

    def __init__(self, runs: Sequence[StoredRun]) -> None:
        self._runs = list(runs)
        self._table = compare_table(self._runs)

    def table(self) -> Frame:
        """Show a column per run."""
        return self._table

    def chart(self) -> Figure:
        """Draw the runs side by side."""
        return charts.side_by_side(self._runs)


def compare(runs: Sequence[StoredRun]) -> Comparison:
    """Compare runs of one experiment; see `Comparison`."""
    return Comparison(runs)


def claims(results: Path | str = "results", numbers: Sequence[int] = ()) -> Frame:
    """Show the documents' claims, who says otherwise, and what this machine's runs say.

    Args:
        results: folder that holds all results.
        numbers: which claims; none: all.

    Raises:
        ValueError: there is no claim of such a number.
    """
    from labkit.report.frame import frame_of

    rows = answers(results, numbers=numbers)
    columns = ("number", "document", "claim", "published", "experiment", "answer")
    frame = frame_of(columns, [[row[name] for name in columns] for row in rows])
    frame.second_lines = {
        row["number"]: " · ".join(
            [f"{side['by']}: {side['says']}" for side in row["sides"]]
            + ([row["footnote"]] if row["footnote"] else [])
        )
        for row in rows
    }
    return frame
