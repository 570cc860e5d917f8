"""A panel's earlier runs: from disk, side by side, exported, or opened from a share file.

    run folders, share files ─▶ a list ─ Show ─▶ on_show(folders)
    what is shown ─ Export ─▶ a file, and a link that downloads it

Main trap: a run of another machine stands in the same list; it says so, and is never divided by
one of this machine's.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.panel import view as views
from labkit.panel.controls import button, html
from labkit.panel.form import row
from labkit.report.exports import EXPORTS, export
from labkit.report.share import open_shared
from labkit.runs.store import list_runs, list_shared, load_run

if TYPE_CHECKING:
    from ipywidgets import Widget

ROWS = 5
HELP = "earlier runs; hold Ctrl or Shift to choose several, side by side"


class History:
    """The list of runs, and what can be done with them.

    Args:
        name: the experiment.
        results: folder of all results.
        on_show: is given the folders that a person chose.
        guard: makes a handler of an action that may raise.
    """

    def __init__(
        self,
        name: str,
        results: Path,
        on_show: Callable[[Sequence[Path]], None],
        guard: Callable[[Callable[[], None]], Callable[..., None]],
    ) -> None:
        import ipywidgets as widgets

        self._name, self._results, self._on_show = name, results, on_show
        self.shown: list[Path] = []
        """What stands in the panel now, and is exported."""
        self._runs = widgets.SelectMultiple(
            description="runs",
            rows=ROWS,
            layout={"width": "auto", "flex": "1 1 420px", "min_width": "0"},
        )
        self._file = widgets.FileUpload(
            description="Open a share file", accept=".zip", layout={"width": "auto"}
        )
        self._file.observe(guard(self._open), "value")
        self._formats = widgets.Dropdown(description="format", options=list(EXPORTS))
        self._exported = html("labkit-exported")
        show = button("Show", "From disk, without running again", guard(self._show))
        write = button("Export", "Write a file", guard(self._export))
        self.rows: list[Widget] = [
            widgets.HTML(views.help_line(HELP)),
            row([self._runs, show, self._file]),
            row([self._formats, write]),
            self._exported,
        ]

    def read(self) -> list[Path]:
        """List the runs anew; those that were chosen stay so.

        Returns:
            Their folders, the newest first, colleagues' runs after one's own.
        """
        own, shared = (list_runs(self._results, self._name), list_shared(self._results, self._name))
        lines = []
        for folder in [*reversed(own), *reversed(shared)]:
            with contextlib.suppress(Exception):  # not a run of this lab's, whatever it is
                lines.append((views.history_line(folder), folder))
        folders = [folder for _, folder in lines]
        chosen = [folder for folder in self._runs.value if folder in folders]
        self._runs.options = lines
        self._runs.value = chosen
        return folders

    def _show(self) -> None:
        if not self._runs.value:
            raise ValueError("runs must be at least one, got none; choose some in the list")
        self._on_show(list(self._runs.value))

    def _open(self) -> None:
        if not self._file.value:
            return
        (given,) = self._file.value
        self._file.value = ()
        with tempfile.TemporaryDirectory() as place:
            path = Path(place, Path(given["name"]).name)
            path.write_bytes(given["content"])
            run = open_shared(path, self._results)
        name = run.info["experiment"]
        if name != self._name:
            raise ValueError(
                f"share file must hold a run of {self._name} to be shown here, got one of {name}; "
                f"it is in {run.folder}, and in the list of lab.panel({name!r})"
            )
        self.read()
        self._on_show([run.folder])

    def _export(self) -> None:
        self._exported.value = ""
        runs = [load_run(folder) for folder in self.shown]
        self._exported.value = views.download(export(runs, self._formats.value, self._results))
