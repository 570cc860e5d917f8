"""A run as the user holds it: its table, charts, findings, report, recipe and share file.

Everything is derived from the stored rows and can be made again at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.claims.ledger import answers
from labkit.experiments.request import Request
from labkit.files import write_whole
from labkit.report import charts, figures, recipe, share
from labkit.report.report import claims_table, report
from labkit.runs import runner, store
from labkit.runs.active_run import Progress
from labkit.runs.experiment import Experiment
from labkit.runs.store import StoredRun, explain_unwritable, newest_runs
from labkit.settings import AS_PUBLISHED, pick

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from labkit.report.table import Table, Tables


class Run(StoredRun):
    """A run of an experiment, as it lies on disk."""

    def table(self, detail: bool = False) -> Table | pd.DataFrame:
        """Return the times, verdicts and published figures of all variants.

        Args:
            detail: everything that was measured, as numbers in seconds, bytes and shares, in a
                plain DataFrame.

        Examples:
            >>> list(run.table().data.index)
            ['original', 'vectorized']
        """
        from labkit.report.table import table

        return table(self.summary, detail)

    @property
    def charts(self) -> tuple[str, ...]:
        """The kinds of charts that this run has.

        Examples:
            >>> run.charts
            ('dots',)
        """
        return tuple(charts.kinds(self.summary))

    def chart(self, kind: str | None = None) -> Figure:
        """Draw a chart.

        Args:
            kind: one of `charts`; None: the first. "dots": normalized times with their
                intervals; "lines": times over the number that the variants vary; "utilization":
                how busy the GPU is over time, before and after the fix; "epochs": the epochs one
                by one, with what was in memory and what came from a disk; "roofline": training
                speed over the speed of the device.

        Raises:
            ValueError: a kind that this run does not have.

        Examples:
            >>> run.chart().savefig("chart.png")
        """
        draw_functions = charts.kinds(self.summary)
        return pick(draw_functions, kind or next(iter(draw_functions)), "kind")(self.summary)

    def findings(self) -> Tables:
        """Return the tables that this run supports beside its own: title -> table."""
        from labkit.report.findings import findings

        return findings(self)

    def savings(self, *, epochs: int, images: int) -> Table:
        """Return what each variant would save over a whole training.

        A run measures a subset, whose later epochs may come from memory. A data set that memory
        cannot hold is read from the disk in every epoch, so warm times are not extrapolated to it.

        Args:
            epochs: of the whole training.
            images: of the full data set, per epoch.

        Raises:
            ValueError: an argument is out of range, or the run cannot be extrapolated.
        """
        from labkit.report.findings import savings

        return savings(self, epochs=epochs, images=images)

    def recipe(self, variant: str | None = None) -> str:
        """Return the winner, or another variant, as a plain PyTorch program without labkit."""
        return recipe.recipe(self, variant)

    def report(self, folder: Path | str | None = None, *, markdown: bool = True) -> list[Path]:
        """Write report.html and, if asked for, report.md with its figures; see `lab.report`."""
        return report(self, folder, markdown=markdown)

    def share(self, file: Path | str | None = None) -> Path:
        """Write one file for a colleague, without names, hosts and paths of this machine.

        Examples:
            >>> lab.open_shared(run.share("run.labkit")).info.experiment
            'preprocessing'
        """
        return share.write(self, file)

    def save(self) -> list[Path]:
        """Write table.csv and the charts into the run's folder; return the files.

        Examples:
            >>> [file.name for file in run.save()][:2]
            ['table.csv', 'chart.png']
        """
        with explain_unwritable(self.folder):
            files = [write_whole(self.folder / "table.csv", self.table(detail=True).to_csv())]
            for kind in self.charts:
                name = "chart" if kind == self.charts[0] else kind
                files += figures.save(self.chart(kind), self.folder / name)
        return files


def _as_run(stored: StoredRun) -> Run:
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
        The run as it is on disk; `run.info.status` is finished or cancelled.

    Raises:
        ValueError: settings, data or parts that cannot work, before anything is timed.
        RuntimeError: the baseline cannot be measured here (finished rows stay), or another run
            is in progress in this process.
        Cancelled: `cancel` was set while photographs were made, or data at a URL was copied to
            this machine.

    Examples:
        >>> experiment = lab.experiment("preprocessing", images=16, input_px=64)
        >>> run = lab.run(experiment, "quick", blocks=1, progress=False)
        >>> run.info.status
        'finished'
    """
    options: dict[str, Any] = {
        "results": results,
        "blocks": blocks,
        "cancel": cancel,
        "progress": progress,
    }
    return _as_run(runner.run(experiment, mode, **options))


def roofline(
    experiment: Experiment | str,
    mode: str = "quick",
    *,
    results: Path | str = "results",
    blocks: int | None = None,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
    **settings: object,
) -> Run:
    """Measure how fast an experiment's variants train with slower and faster GPUs.

    The GPU is simulated, at speeds of 1, 2 and 4 times the baseline's loading rate;
    full mode adds 0.5, 1.4, 2.8 and 8, and the variants that only it measures.  With
    ``device="cuda"`` this machine's GPU is measured, at its own speed and, by training on each
    batch several times, at slower ones.  Loading alone is measured, too.  A trial has one epoch.

    Args:
        experiment: a key of `CATALOG`, or an experiment; two variants or more.
        mode: quick or full.
        results: folder that takes the run folder.
        blocks: repetitions; unset: the mode's.
        cancel: as in `run`.
        progress: as in `run`.
        **settings: settings for all variants.  An experiment that compares cold with warm, as
            storage, has a roofline for each: its baseline's, or `cache`.

    Raises:
        ValueError: as `run`, or a setting that a roofline decides itself.
        RuntimeError: as `run`.

    Source: S. Williams, A. Waterman and D. Patterson, Roofline: an insightful visual performance
    model, CACM 52(4), 2009; EVIDENCE 2, "The roofline".
    """
    asked = Request.of(experiment)
    settings = {**asked.settings, **settings}
    asked = replace(asked, mode=mode, blocks=blocks, settings=settings, roofline=True)
    options: dict[str, Any] = {
        "results": results,
        "blocks": blocks,
        "cancel": cancel,
        "progress": progress,
    }
    return run(asked.build(), mode, **options)


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
            machine or with other cores.
        RuntimeError: another run is in progress in this process, or another process has this one.

    Examples:
        >>> lab.resume(run.folder, progress=False).info.status
        'finished'
    """
    return _as_run(runner.resume(folder, cancel=cancel, progress=progress))


def find_run(name: Path | str, results: Path | str = "results") -> Run:
    """Find a run.

    Args:
        name: its folder, its id (or the start of it), or an experiment: its newest run.
        results: folder that holds all results.

    Raises:
        FileNotFoundError: nothing matches; the message lists what there is.
        ValueError: several runs match, or the run was written by a newer labkit.

    Examples:
        >>> lab.find_run("preprocessing").info.status
        'finished'
    """
    return _as_run(store.find_run(results, str(name)))


def newest_run(name: str, results: Path | str = "results") -> Run | None:
    """Return an experiment's newest finished run; None where there is none.

    Examples:
        >>> lab.newest_run("preprocessing").info.status
        'finished'
        >>> lab.newest_run("storage") is None
        True
    """
    # A run as in the document answers another question: it never hides a corrected one.
    runs = newest_runs(
        results,
        lambda info: info.protocol != AS_PUBLISHED if info.status == "finished" else None,
    )
    stored = runs.get(name)
    return None if stored is None else _as_run(stored)


def open_shared(file: Path | str, results: Path | str = "results") -> Run:
    """Open a colleague's file: check it, and put the run beside this machine's own.

    Args:
        file: from `Run.share`.
        results: folder that holds all results.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not what `Run.share` writes, or is of a newer labkit.

    Examples:
        >>> file = run.share("colleague.labkit")
        >>> lab.open_shared(file).info.experiment
        'preprocessing'
    """
    return _as_run(share.open_shared(file, results))


def claims(results: Path | str = "results", numbers: Sequence[int] = ()) -> Table:
    """Return the documents' claims, who says otherwise, and what this machine's runs show.

    Args:
        results: folder that holds all results.
        numbers: which claims; none: all.

    Raises:
        ValueError: there is no claim of such a number.

    Examples:
        >>> len(lab.claims().data)
        47
    """
    return claims_table(answers(results, numbers=numbers))
