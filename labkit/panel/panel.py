"""Panel: the lab as a form in a notebook; choose, run, watch, cancel, compare, export.

    lab.panel("prefetching") ─▶ Panel of that experiment
    lab.panel()              ─▶ a list of experiments, and the Panel of the one that is chosen

Main trap: an experiment that cannot be built must leave the one that is shown as it is.
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.experiments.catalog import CATALOG
from labkit.experiments.request import Request
from labkit.panel import job
from labkit.panel import view as views
from labkit.panel.controls import html
from labkit.panel.widget import Panel
from labkit.runs.experiment import Experiment

if TYPE_CHECKING:
    from ipywidgets import VBox


def panel(
    experiment: str | Experiment | None = None,
    *,
    mode: str = "quick",
    blocks: int | None = None,
    results: Path | str = "results",
    **changes: object,
) -> VBox:
    """Show an experiment as a form that runs it.

    Args:
        experiment: a key of `CATALOG`, or an experiment of one's own; unset: a list to choose from.
        mode: quick, document or full; what the form shows at first.
        blocks: repetitions; unset: the mode's.
        results: folder that takes the runs, and holds the earlier ones.
        **changes: settings for all variants, as ``data="data/coco", num_workers=4``.

    Returns:
        A widget that shows itself at the end of a cell.  It takes up a run that is under way, and
        shows the newest one else; nothing is run before somebody presses *Run*.

    Raises:
        ValueError: an unknown experiment, mode or setting; the choices are listed.
    """
    start = Request(experiment=experiment or _first(), mode=mode, blocks=blocks, settings=changes)
    return Panel(start, Path(results)).box if experiment else _chooser(start, Path(results))


def _first() -> str:
    """Begin with the experiment that is under way, if it is one of the catalog's."""
    under_way = job.current()
    is_known = under_way is not None and under_way.name in CATALOG
    return under_way.name if is_known else next(iter(CATALOG))


def _chooser(start: Request, results: Path) -> VBox:
    """Show a list of experiments above the panel of the one that is chosen."""
    import ipywidgets as widgets

    names = widgets.Dropdown(
        description="experiment", options=list(CATALOG), value=start.experiment
    )
    problem = html("labkit-error")
    shown = Panel(start, results)
    box = widgets.VBox([names, problem, shown.box])

    def change(event: dict) -> None:
        nonlocal shown
        try:
            other = Panel(replace(start, experiment=event["new"]), results)
        except Exception as error:  # JupyterLab would show it nowhere
            problem.value = views.error(views.one_line(error), traceback.format_exc())
            return
        shown.close()
        shown, problem.value = other, ""
        box.children = (names, problem, shown.box)

    names.observe(change, "value")
    return box
