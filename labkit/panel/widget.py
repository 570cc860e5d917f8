"""The panel of one experiment: its widgets, and what each of them does.

    Form ─ Choice ─▶ Run ─▶ job (a thread) ─▶ status, strip, chart and table as trials finish
    History ─▶ earlier runs from disk, one or side by side ─▶ Export

What is chosen is in `choices`, what runs in `job`, what is shown in `panel_views`.
Main trap: callbacks may come on any thread, and JupyterLab shows their exceptions nowhere; so
every handler is guarded, and nothing here prints or displays.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.experiments.request import Request
from labkit.machine import hardware
from labkit.panel import job
from labkit.panel import view as views
from labkit.panel.controls import button, html
from labkit.panel.form import Form, row
from labkit.panel.history import History
from labkit.runs.experiment import forecast
from labkit.runs.experiment import resume as resume_run
from labkit.runs.experiment import run as run_experiment
from labkit.runs.store import SHARED, load_run, read_info, why_hopeless

if TYPE_CHECKING:
    from ipywidgets import Widget

COPIED_ROWS = 4


class Panel:
    """The widgets of a panel and what they do.

    Args:
        start: what the form shows at first.
        results: folder of all results.
    """

    def __init__(self, start: Request, results: Path) -> None:
        import ipywidgets as widgets

        self._start, self._saying = start, threading.Lock()
        self._results = results.absolute()  # a notebook may change its folder
        self._form = Form(start)
        self._forecast = html("labkit-forecast")
        self._copied = widgets.VBox([])
        self._copied.add_class("labkit-copied")
        self._status, self._strip = html("labkit-status"), html("labkit-strip")
        self._bar = widgets.FloatProgress(min=0.0, max=1.0)
        self._bar.add_class("labkit-progress")
        self._error, self._result = html("labkit-error"), html("labkit-result")
        self._trials = html("labkit-trials")
        self._run = button("Run", "Measure what is chosen above", self._guarded(self._on_run))
        self._cancel = button("Cancel", "Stop; finished trials stay", self._guarded(self._stop))
        self._resume = button(
            "Resume", "Measure what is missing of the run below", self._guarded(self._on_resume)
        )
        self._history = History(start.name, self._results, self._show, self._guarded)
        self._form.observe(self._guarded(self._forecast_now))
        self.box = widgets.VBox(self._layout())
        self.box.add_class("labkit-panel")
        self.box._view_count = 0  # from here on the front end counts
        self.box.observe(self._on_views, "_view_count")
        job.follow(self._on_job)
        self._guarded(self._open)()

    def close(self) -> None:
        """Hear no more of any run."""
        job.forget(self._on_job)

    def _on_views(self, change: dict) -> None:
        """Draw nothing once a cell has been run again and nobody sees this panel any more."""
        if not change["new"]:
            self.close()
        elif not change["old"]:
            job.follow(self._on_job)
            if (under_way := job.current()) is not None and change["old"] is not None:
                self._on_job(under_way, has_new_rows=True)

    def _layout(self) -> list[Widget]:
        import ipywidgets as widgets

        reset = button("Reset", "Back to what was there at first", self._guarded(self._on_reset))
        copies = [
            button(
                "Copy as command line",
                "The same run from a shell",
                self._guarded(partial(self._copy, Request.command_line)),
            ),
            button(
                "Copy as Python",
                "The same run as code",
                self._guarded(partial(self._copy, Request.python_code)),
            ),
        ]
        # An experiment of one's own has no name that a shell would know.
        copies[0].disabled = not isinstance(self._start.experiment, str)
        return [
            widgets.HTML(views.STYLE),
            widgets.HTML(views.question(self._start.whole().question)),
            self._form.box,
            self._forecast,
            row([self._run, self._cancel, self._resume, reset, *copies]),
            self._copied,
            self._status,
            self._bar,
            self._strip,
            self._error,
            self._result,
            self._trials,
            *self._history.rows,
        ]

    # --- what is chosen ---------------------------------------------------------------------

    def _open(self) -> None:
        """Take up the run that is under way, or show the newest one."""
        folders = self._history.read()
        self._forecast_now()
        under_way = job.current()
        if under_way is not None and under_way.is_under_way:
            self._on_job(under_way, has_new_rows=True)
            return
        self._say_idle()
        if folders:
            self._show(folders[:1])

    def _on_reset(self) -> None:
        self._form.reset()
        self._copied.children = ()
        self._forecast_now()

    def _forecast_now(self) -> None:
        self._say_forecast()
        self._error.value = ""

    def _say_forecast(self) -> None:
        self._forecast.value = ""
        request = self._form.refresh()
        expected = forecast(
            request.build(), request.mode, blocks=request.blocks, results=self._results
        )
        self._forecast.value = views.lines([str(expected)])

    def _copy(self, write: Callable[[Request, str], str]) -> None:
        import ipywidgets as widgets

        text = write(_with_full_path(self._form.request()), str(self._results))
        area = widgets.Textarea(
            value=text, rows=COPIED_ROWS, description="copy", layout={"width": "98%"}
        )
        self._copied.children = (area, widgets.HTML(views.copy_button(text)))

    # --- running ----------------------------------------------------------------------------

    def _on_run(self) -> None:
        request = self._form.request()
        run = partial(
            run_experiment,
            request.build(),
            request.mode,
            results=self._results,
            blocks=request.blocks,
        )
        # Before it starts: a run that fails at once says why from a thread of its own.
        self._error.value = self._strip.value = self._trials.value = ""
        self._history.shown, self._result.value = [], views.NOTHING
        job.start(request.name, run)

    def _on_resume(self) -> None:
        (folder,) = self._history.shown
        self._error.value = ""
        job.start(self._start.name, partial(resume_run, folder))

    def _stop(self) -> None:
        if (under_way := job.current()) is not None:
            under_way.cancel()
            self._say(under_way)

    def _on_job(self, under_way: job.Job, has_new_rows: bool) -> None:
        """Show how far a run is; comes from the run's threads."""
        self._guarded(partial(self._follow, under_way, has_new_rows))()

    def _follow(self, under_way: job.Job, has_new_rows: bool) -> None:
        self._say(under_way)
        if under_way.name != self._start.name or not has_new_rows:
            return
        if under_way.folder is not None:
            self._draw(under_way.folder, is_open=under_way.is_under_way)
        if not under_way.is_under_way:
            self._history.read()
            self._say_forecast()
            self._say(under_way)

    def _say(self, under_way: job.Job) -> None:
        """Say how far it is, and allow what can be done now."""
        if job.current() is not under_way:
            return  # the next has begun while this one's last rows were drawn
        name = "" if under_way.name == self._start.name else f" {under_way.name}"
        # Or a slow tick would disable Run again after the end had enabled it.
        with self._saying:
            self._status.value = views.status(f"{under_way.state}{name}", under_way.progress())
            self._bar.value = under_way.share()
            self._allow(under_way)
        if under_way.error is not None and not name:
            self._error.value = views.explain(under_way)

    def _draw(self, folder: Path, *, is_open: bool) -> None:
        run = load_run(folder)
        self._history.shown = [folder]
        self._strip.value = views.strip(views.last_trial(run))
        self._result.value = views.result(folder)
        self._trials.value = views.trials(run, is_open=is_open)

    def _allow(self, under_way: job.Job | None) -> None:
        """Let only that be pressed which can be done now."""
        is_busy = under_way is not None and under_way.is_under_way
        self._run.disabled = is_busy
        self._cancel.disabled = not is_busy or under_way.state == "cancelling"
        self._resume.disabled = is_busy or not self._is_incomplete()
        self._form.disable(is_disabled=is_busy)

    def _is_incomplete(self) -> bool:
        if len(self._history.shown) != 1:
            return False
        info = read_info(self._history.shown[0])
        is_ours = info["provenance"]["machine_id"] == hardware.provenance()["machine_id"]
        is_open = info["status"] != "finished" and SHARED not in info
        return is_ours and is_open and not why_hopeless(info)

    def _say_idle(self) -> None:
        self._status.value = views.status("ready")
        self._bar.value = 0.0
        self._allow(job.current())

    # --- earlier runs -----------------------------------------------------------------------

    def _show(self, folders: Sequence[Path]) -> None:
        self._error.value = self._strip.value = self._trials.value = ""
        if len(folders) == 1:
            (folder,) = folders
            self._draw(folder, is_open=False)
            said = f"shows {folder.name}, {views.status_of(folder)}"
        else:
            self._result.value = views.beside(folders)
            said = f"shows {len(folders)} runs side by side"
            self._history.shown = list(folders)
        under_way = job.current()
        if under_way is None or not under_way.is_under_way:
            self._status.value = views.status("ready", said)
        self._allow(under_way)

    # --- errors -----------------------------------------------------------------------------

    def _guarded(self, action: Callable[[], None]) -> Callable[..., None]:
        """Show what an action raises instead of losing it."""

        def handle(*_: object) -> None:
            try:
                action()
            except Exception as problem:  # whatever it is, the person must see it
                said = views.error(views.one_line(problem), traceback.format_exc())
                self._error.value = said

        return handle


def _with_full_path(request: Request) -> Request:
    """Name the data by its full path: the copied line may be run in another folder."""
    (data, *others) = {settings.data for settings in request.build().variants.values()}
    if others or not Path(data).is_dir():
        return request
    return replace(request, settings={**request.settings, "data": str(Path(data).resolve())})
