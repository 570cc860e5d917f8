"""The panel of an experiment: a form, the run in progress, its result, and earlier runs.

    Form ─ Request ─▶ Run ─▶ job (a thread) ─▶ status, chart and table as trials finish
    earlier runs and share files ─▶ Show ─▶ one result, or several side by side ─▶ Export

Callbacks may come on any thread, where printing and displaying reach no cell; and JupyterLab shows
a callback's exception nowhere, so every handler is guarded.  All text is escaped: labels, reasons
and paths may hold anything.
"""

from __future__ import annotations

import base64
import functools
import mimetypes
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.experiments.catalog import CATALOG
from labkit.experiments.device_speeds import has_roofline
from labkit.experiments.request import Request
from labkit.files import unused, write_whole
from labkit.machine import hardware
from labkit.panel import job
from labkit.panel.earlier import EarlierRuns, status_of
from labkit.panel.form import Form, help_line, row
from labkit.report import recipe
from labkit.report import run as runs
from labkit.report.advise import GB, advise
from labkit.report.charts import compare
from labkit.report.figures import mimebundle, write
from labkit.runs.experiment import Experiment
from labkit.runs.forecasts import forecast
from labkit.runs.store import (
    REPORTS,
    explain_unwritable,
    load_run,
    read_info,
)
from labkit.settings import MODES, pick

if TYPE_CHECKING:
    from ipywidgets import VBox, Widget
    from matplotlib.figure import Figure

STYLE = """<style>
.labkit-panel { color: var(--jp-ui-font-color1, #1a1a1a); padding: 8px; max-width: 1100px; }
.labkit-panel .widget-html-content { line-height: 1.45; }
.labkit-panel h3 { margin: 0 0 4px; }
.labkit-panel .labkit-help { color: var(--jp-ui-font-color1, #333); font-size: 90%; }
.labkit-panel .labkit-form { display: grid; column-gap: 16px; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(250px, 100%), 1fr)); }
.labkit-panel .labkit-field { min-width: 0; margin: 0 0 4px; }
.labkit-panel .labkit-field .widget-html,
.labkit-panel .labkit-field .widget-html-content { min-width: 0; max-width: 100%; flex: 1; }
.labkit-panel .labkit-field .labkit-help { white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; line-height: 1.25; margin-left: 4px; }
.labkit-panel .labkit-forecast, .labkit-panel .labkit-status { margin-left: 10px; }
.labkit-variants .widget-label { margin-right: 10px; font-weight: bold; }
.labkit-panel .labkit-variants .widget-html { margin: -4px 2px 0; }
.labkit-panel .labkit-variants .labkit-help { line-height: 1.25; }
.labkit-panel .labkit-value { width: auto; }
.labkit-panel .labkit-value input { flex: none; width: 100px; }
.labkit-variants .widget-checkbox { margin-right: 14px; }
.labkit-panel .labkit-runs { flex-direction: column; align-items: stretch; width: auto; }
.labkit-panel .labkit-runs > label { width: auto; max-width: none; text-align: left;
  overflow-x: hidden; height: 18px; font: bold 12px/18px monospace; padding-left: 4px; }
.labkit-panel .labkit-runs > select { flex: none; height: auto; font: 12px monospace; }
/* What is empty at first has its height from the beginning, and an earlier result stays until
   there is a new one: nothing jumps while it runs. */
.labkit-panel .labkit-result { overflow-x: auto; min-height: 360px; }
.labkit-panel .labkit-earlier { opacity: .4; }
.labkit-panel img { max-width: 100%; height: auto; }
body[data-jp-theme-light="false"] .labkit-panel img { filter: invert(.91) hue-rotate(180deg); }
.labkit-panel .widget-label { color: var(--jp-ui-font-color1, #1a1a1a); }
.labkit-panel summary { cursor: pointer; }
.labkit-error:has(.widget-html-content:empty) { display: none; }
.labkit-error pre { white-space: pre-wrap; color: inherit; }
.labkit-panel table { border-collapse: collapse; margin: 6px 0; }
.labkit-panel th, .labkit-panel td { padding: 3px 9px; text-align: left; border: none;
  border-bottom: 1px solid var(--jp-border-color1, #bbb); }
.labkit-panel .labkit-progress { width: 200px; }
.labkit-panel a { color: var(--jp-content-link-color, #0b57d0); text-decoration: underline; }
</style>"""

# Format -> what writes it into the run's folder, and returns the file.
EXPORTS: dict[str, Callable[[runs.Run], Path]] = {
    "PNG": lambda run: write(run.chart(), run.folder / "chart.png"),
    "SVG": lambda run: write(run.chart(), run.folder / "chart.svg"),
    "PDF": lambda run: write(run.chart(), run.folder / "chart.pdf"),
    "CSV": lambda run: write_whole(run.folder / "table.csv", run.table(detail=True).to_csv()),
    "HTML report": lambda run: run.report(markdown=False)[0],
    "Markdown report": lambda run: run.report()[1],
    "PyTorch program": lambda run: recipe.write(run, run.folder / "recipe.py"),
    "Share file": lambda run: run.share(),
}
# Numbers of different runs never stand in one table.
OF_SEVERAL = ("PNG", "SVG", "PDF", "HTML report")
# Format -> what the file holds; other formats: the chart.
FILE_CONTENTS = {
    "CSV": "the table", "HTML report": "chart, tables and what they rest on, in one file",
    "Markdown report": "a report for a paper or slides, and its figures",
    "PyTorch program": "the fastest variant as a program that imports no labkit",
    "Share file": "the run without user name, host name and paths",
}  # fmt: skip


def panel(
    experiment: str | Experiment | None = None,
    *,
    mode: str = "quick",
    blocks: int | None = None,
    roofline: bool = False,
    results: Path | str = "results",
    **settings: object,
) -> VBox:
    """Show an experiment as a form that runs it.

    Args:
        experiment: a key of `CATALOG`, or an experiment of one's own; unset: a list to choose from.
        mode: quick, document or full; what the form shows at first.
        blocks: repetitions; unset: the mode's.
        roofline: at several speeds of the device, as `lab.roofline`.
        results: folder that takes the runs, and holds the earlier ones.
        **settings: settings for all variants, as ``data="data/coco", num_workers=4``.

    Returns:
        A widget that shows itself at the end of a cell.  Its `run` is the run that it shows: the
        one in progress or else the newest, or what was chosen with *Show*.  Nothing is run before
        the user presses *Run*.

    Raises:
        ValueError: an unknown experiment, mode or setting; the choices are listed.

    Examples:
        >>> panel = lab.panel("preprocessing", num_workers=0)
        >>> panel.run.info.experiment
        'preprocessing'
    """
    pick(MODES, mode, "mode")
    asked = Request.of(experiment or _first())
    settings = {**asked.settings, **settings}
    start = replace(asked, mode=mode, blocks=blocks, roofline=roofline, settings=settings)
    return Panel(start, Path(results)).box if experiment else _chooser(start, Path(results))


def _first() -> str:
    """Return the experiment in progress if the catalog has it, else the catalog's first."""
    current = job.current()
    return current.name if current and current.name in CATALOG else next(iter(CATALOG))


def _chooser(start: Request, results: Path) -> VBox:
    """Show a list of experiments above the panel of the one that is chosen."""
    import ipywidgets as widgets

    def show(name: str | Experiment | None) -> Panel:
        request = replace(start, experiment=name)
        over_speeds = start.roofline and has_roofline(request.whole())
        return Panel(replace(request, roofline=over_speeds), results)

    shown, problem = show(start.experiment), _html("labkit-error")
    box_class = _box_with_run()
    names = widgets.Dropdown(description="experiment", options=list(CATALOG))
    names.value = start.experiment
    box = box_class([names, problem, shown.box])
    box.shown_run = lambda: shown.box.run

    def change(event: dict) -> None:
        nonlocal shown
        try:
            other = show(event["new"])
        except Exception as error:  # the panel that is shown stays
            problem.value = error_html(error)
            return
        shown.close()
        shown, problem.value = other, ""
        box.children = (names, problem, shown.box)

    names.observe(change, "value")
    return box


def advise_form(data_gb: float = 300, *, results: Path | str = "results") -> Widget:
    """Show `lab.advise` for sizes that can be changed.

    Args:
        data_gb: size of the images at first, in GB; the memory is this machine's at first.
        results: as of `lab.advise`.
    """
    import ipywidgets as widgets

    # Only whole tables are shown: callbacks may run on a thread in which nothing can be printed.
    table = widgets.HTML()
    memory_gb = round(hardware.memory_bytes() / GB, 1)
    whole = {"description_width": "initial"}  # or "memory, GB" is cut off
    data = widgets.FloatText(value=data_gb, description="data, GB", style=whole)
    memory = widgets.FloatText(value=memory_gb, description="memory, GB", style=whole)

    def show(_: object = None) -> None:
        try:
            table.value = advise(data.value, memory.value, results=results).to_html()
        except ValueError as error:
            table.value = escape(str(error))

    for size in (data, memory):
        size.observe(show, "value")
    show()
    return widgets.VBox([widgets.HBox([data, memory]), table])


class Panel:
    """The widgets of a panel and what they do.

    Args:
        start: what the form shows at first.
        results: folder of all results.

    Raises:
        ValueError: what is asked for cannot be built.
    """

    def __init__(self, start: Request, results: Path) -> None:
        import ipywidgets as widgets

        self._start, self._changing, self._drawing = start, threading.Lock(), threading.RLock()
        self._name = start.whole().name
        self._results = results.absolute()  # a notebook may change its folder
        self._shown: list[Path] = []
        self._shows_current = True  # the run in progress, until others are chosen with Show
        self._form = Form(start)
        self._form.observe(self._guarded(self._on_change))
        self._form.add_button.on_click(self._guarded(self._on_add))
        self._run = self._button("Run", "Run with the settings below", self._on_run)
        self._cancel = self._button("Cancel", "Stop; finished trials stay", self._on_cancel)
        self._resume = self._button("Resume", "Complete the run shown", self._on_resume)
        self._status = _html("labkit-status")
        self._bar = widgets.FloatProgress(min=0.0, max=1.0).add_class("labkit-progress")
        self._forecast, self._again = _html("labkit-forecast"), _html("labkit-again")
        self._error, self._result = _html("labkit-error"), _html("labkit-result")
        self._exported = _html("labkit-exported")
        self._earlier = EarlierRuns(self._name, self._results)
        self.box = _box_with_run()(self._layout()).add_class("labkit-panel")
        self.box.shown_run = self._shown_run
        self.box._view_count = 0  # from here on the front end counts
        self.box.observe(self._on_views, "_view_count")
        job.follow(self._on_job)
        self._guarded(self._on_change)()
        self._guarded(self._open)()

    def _shown_run(self) -> runs.Run:
        if not self._shown:
            raise ValueError(f"run must be one that the panel shows, got none of {self._name}; "
                             "press Run first")  # fmt: skip
        return runs.find_run(self._shown[0])

    def close(self) -> None:
        """Follow no run any more."""
        job.forget(self._on_job)

    def _layout(self) -> list[Widget]:
        import ipywidgets as widgets

        reset = self._button("Reset", "Restore the first settings", self._on_reset)
        show = self._button("Show", "Show the selected runs", self._on_show)
        # A button each: a choice that has just been changed may reach the kernel after the click.
        exports = [
            self._button(
                form, f"Save {FILE_CONTENTS.get(form, 'the chart')}", partial(self._on_export, form)
            )
            for form in EXPORTS
        ]
        return [
            widgets.HTML(STYLE),
            widgets.HTML(f"<h3>{escape(self._start.whole().question)}</h3>"),
            row([self._run, self._cancel, self._resume, reset, self._forecast]),
            row([self._bar, self._status]),
            self._error,
            self._form.box,
            self._result,
            row([widgets.Label("Export"), *exports]),
            self._exported,
            self._again,
            self._earlier.box,
            row([show]),
        ]

    def _on_views(self, change: dict) -> None:
        """Draw nothing while no page shows this panel, as after its cell was run again."""
        if not change["new"]:
            self.close()
        elif not change["old"]:
            job.follow(self._on_job)
            if (current := job.current()) is not None and change["old"] is not None:
                self._on_job(current, has_new_rows=True)

    def _open(self) -> None:
        """Show the run in progress, else the newest one."""
        folders = self._earlier.read()
        current = job.current()
        if current is not None and current.is_in_progress:
            self._on_job(current, has_new_rows=True)
            return
        self._status.value = status_html("ready", "no run yet, press Run")
        self._allow()
        if folders:
            self._show(folders[:1])
        else:
            self._put(help_line("The chart and the table of a run appear here."))

    # --- what is chosen ---------------------------------------------------------------------

    def _on_change(self) -> None:
        shown = again = ""
        try:
            request = self._form.refresh()
            options: dict[str, Any] = {"blocks": request.blocks, "results": self._results}
            shown = str(forecast(request.build(), request.mode, **options))
            again = again_html(request, str(self._results))
            self._error.value = ""
        finally:  # at once: while they were empty, a click would miss the button that moved
            self._forecast.value, self._again.value = f"<div>{escape(shown)}</div>", again

    def _on_add(self) -> None:
        self._form.add()
        self._on_change()

    def _on_reset(self) -> None:
        self._form.disable(is_disabled=True)  # what is typed meanwhile would be lost
        try:
            self._form.reset()
            self._on_change()
        finally:
            self._allow()

    # --- running ----------------------------------------------------------------------------

    def _on_run(self) -> None:
        self._form.add()  # what is filled in is meant, too
        request = self._form.request()
        options: dict[str, Any] = {"results": self._results, "blocks": request.blocks}
        run = partial(runs.run, request.build(), request.mode, **options)
        # Before it starts: a run that fails at once says why from its own thread.
        self._error.value = ""
        self._shows_current = True
        self._result.add_class("labkit-earlier")  # until the first trial is finished
        job.start(self._name, run)

    def _on_resume(self) -> None:
        (folder,) = self._shown
        self._error.value = ""
        self._shows_current = True
        job.start(self._name, partial(runs.resume, folder))

    def _on_cancel(self) -> None:
        if (current := job.current()) is not None:
            current.cancel()
            self._say(current)

    def _on_job(self, current: job.Job, has_new_rows: bool) -> None:
        """Show how far a run is; called in the run's thread."""
        self._guarded(partial(self._follow, current, has_new_rows))()

    def _follow(self, current: job.Job, has_new_rows: bool) -> None:
        self._say(current)
        if current.name != self._name or not has_new_rows:
            return
        with self._drawing:  # a click on Show waits, and what it shows stays
            if current.folder is not None and self._shows_current:
                self._draw(current.folder)
        if not current.is_in_progress or current.folder not in self._earlier.folders:
            self._earlier.read()
        if not current.is_in_progress:
            if current.state == "finished":
                self._on_change()  # the next one's forecast rests on it
            self._say(current)

    def _say(self, current: job.Job) -> None:
        """Show how far it is, and allow what can be done now."""
        if job.current() is not current:
            return  # the next has begun while this one's last rows were drawn
        name = "" if current.name == self._name else f" {current.name}"
        with self._changing:  # or Cancel, on another thread, would show a state that is over
            self._status.value = status_html(f"{current.state}{name}", current.progress())
            self._bar.value = current.share()
            self._allow()
        if not current.is_in_progress:  # one that was refused has no result of its own
            self._result.remove_class("labkit-earlier")
        if current.error is not None and not name:
            self._error.value = error_html(current.error)

    def _draw(self, folder: Path) -> None:
        run = runs.find_run(folder)
        self._shown = [folder]
        has_trials = any(trial.status == "ok" for trial in run.trials)
        table = run.table().to_html(heading=())  # the chart has it
        nothing = "<div>no trial is finished yet</div>"
        self._put(picture_html(run.chart()) + table if has_trials else nothing)

    def _put(self, result: str) -> None:
        self._result.value = result
        self._result.remove_class("labkit-earlier")

    def _allow(self) -> None:
        """Enable the buttons that can be pressed now."""
        current = job.current()
        is_busy = current is not None and current.is_in_progress
        self._run.disabled = is_busy
        self._cancel.disabled = not is_busy or current.state == "cancelling"
        self._resume.disabled = is_busy or not self._is_incomplete()
        self._form.disable(is_disabled=is_busy)

    def _is_incomplete(self) -> bool:
        if len(self._shown) != 1:
            return False
        info = read_info(self._shown[0])
        return info.status != "finished" and not info.shared_from

    # --- earlier runs -----------------------------------------------------------------------

    def _on_show(self) -> None:
        if not self._earlier.chosen:
            raise ValueError("runs must be at least one, got none; choose some in the list")
        current = job.current()
        in_progress = current.folder if current and current.is_in_progress else None
        with self._drawing:
            self._show(self._earlier.chosen)
            self._shows_current = self._earlier.chosen == (in_progress,)

    def _show(self, folders: Sequence[Path]) -> None:
        self._error.value = ""
        if len(folders) == 1:
            self._draw(folders[0])
            info = read_info(folders[0])
            created, state = units.minute(info.created_utc), status_of(folders[0], info)
            status = f"showing the run of {created}, {state}"
        else:
            self._put(picture_html(compare([load_run(one) for one in folders])))
            self._shown = list(folders)
            status = f"showing {len(folders)} runs side by side"
        current = job.current()
        if current is None or not current.is_in_progress:
            self._status.value = status_html("ready", status)
        self._allow()

    def _on_export(self, form: str) -> None:
        self._exported.value = ""
        self._exported.value = download_html(export(self._shown, form, self._results))

    # --- handlers ---------------------------------------------------------------------------

    def _button(self, text: str, tooltip: str, action: Callable[[], None]) -> Widget:
        import ipywidgets as widgets

        made = widgets.Button(description=text, tooltip=tooltip, layout={"width": "auto"})
        made.on_click(self._guarded(action))
        return made

    def _guarded(self, action: Callable[[], None]) -> Callable[..., None]:
        """Show what an action raises instead of losing it."""

        def handle(*_: object) -> None:
            try:
                action()
            except Exception as problem:
                self._error.value = error_html(problem)

        return handle


@functools.cache
def _box_with_run() -> type:
    """Return the class of a panel's box; ipywidgets is imported as late as possible."""
    import ipywidgets as widgets

    class PanelBox(widgets.VBox):
        """A panel, with the run that it shows."""

        @property
        def run(self) -> runs.Run:
            """The run that is shown; the first one of several."""
            return self.shown_run()

    return PanelBox


def _html(name: str) -> Widget:
    """Make a place for HTML; `name` is its class."""
    import ipywidgets as widgets

    return widgets.HTML().add_class(name)


def export(folders: Sequence[Path], form: str, results: Path) -> Path:
    """Write one file and return where it is: in the run's folder; of several runs in ``reports``.

    Args:
        folders: of one run, or of several to be shown side by side.
        form: a key of `EXPORTS`.
        results: folder of all results.

    Raises:
        ValueError: no run, or several where the format takes one.
        OSError: the folder cannot be written; the message says what to do.
    """
    if not folders:
        raise ValueError("runs must be at least one, got none; run the experiment first")
    if len(folders) > 1 and form not in OF_SEVERAL:
        raise ValueError(
            f"runs must be one for {form}, got {len(folders)}; choose one, or one of "
            f"{', '.join(OF_SEVERAL)}"
        )
    shown = [runs.find_run(folder) for folder in folders]
    with explain_unwritable(results):
        if len(shown) == 1:
            return EXPORTS[form](shown[0])
        if form == "HTML report":
            return runs.report(shown, results=results, markdown=False)[0]
        path = unused(results / REPORTS / f"{shown[0].info.experiment}-chart.{form.lower()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        return write(compare(shown), path)


# --- what is shown, as HTML -----------------------------------------------------------------


def status_html(state: str, progress: str = "") -> str:
    """Show what is going on, announced to screen readers."""
    text = f"{state}: {progress}" if progress else state
    return f'<div role="status" aria-live="polite">{escape(text)}</div>'


def error_html(problem: BaseException) -> str:
    """Show an error in one line that says what to do, its traceback folded."""
    text = " ".join(str(problem).split())
    if not text or not isinstance(problem, ValueError | OSError | RuntimeError | ImportError):
        text = f"{type(problem).__name__}: {text}"  # none of labkit's own messages
    trace = "".join(traceback.format_exception(problem))
    return (
        f'<div role="alert"><strong>{escape(text)}</strong></div>'
        f"<details><summary>traceback</summary><pre>{escape(trace)}</pre></details>"
    )


def again_html(request: Request, results: str) -> str:
    """Show the same request as a command line and as Python, folded."""
    (data, *others) = {settings.data for settings in request.build().settings.values()}
    if not others and Path(data).is_dir():  # a copied line may be run in another folder
        settings = {**request.settings, "data": str(Path(data).resolve())}
        request = replace(request, settings=settings)
    texts = filter(None, [request.command_line(results), request.python_code(results)])
    blocks = "".join(f"<pre>{escape(text)}</pre>" for text in texts)
    return f"<details><summary>the same as a command line and in Python</summary>{blocks}</details>"


def picture_html(figure: Figure) -> str:
    """Show a chart."""
    return mimebundle(figure)[0]["text/html"]


def download_html(path: Path) -> str:
    """Show where a file is, with a link that downloads it."""
    size_bytes = path.stat().st_size
    text = f"saved {escape(str(path.resolve()))} ({units.count_bytes(size_bytes)})"
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    # A link to the file would need the server's root, which a kernel does not know.
    data = base64.b64encode(path.read_bytes()).decode()
    link = (
        f'<a download="{escape(path.name)}" href="data:{kind};base64,{data}">'
        f"download {escape(path.name)}</a>"
    )
    return f"<div>{text} · {link}</div>"
