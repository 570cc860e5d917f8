"""The earlier runs of an experiment: a list that can be sorted and filtered.

Its lines are the rows of a table in a list's fixed-width letters: a list needs no other package,
is read out by screen readers, and lets several runs be chosen from the keyboard.
"""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from labkit import units
from labkit.analysis.winner import winner
from labkit.experiments.device_speeds import SUFFIX
from labkit.machine import hardware
from labkit.panel.form import help_line, row
from labkit.records import ROOFLINE, RunInfo
from labkit.runs.store import SHARED, is_in_progress, list_runs, load_run, read_info
from labkit.settings import CORRECTED

FASTEST_CHARS = 34  # of a label; longer ones would push the other columns out of the list


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """A line of the list."""

    folder: Path
    date: str
    mode: str
    status: str
    device: str
    fastest: str
    """The variant that is measurably faster than the baseline; "–" where none is."""
    ratio: float
    """Its normalized time; infinite where there is none."""
    notes: str
    """What is special about the run, and the end of its name."""

    def cells(self) -> list[str]:
        """Return the columns as text."""
        ratio = "–" if math.isinf(self.ratio) else units.normalized(self.ratio)
        columns = (self.date, self.mode, self.status, self.device, self.fastest, ratio, self.notes)
        return list(columns)


COLUMNS = ("date (UTC)", "mode", "status", "device", "fastest", "ratio", "notes")


class EarlierRuns:
    """The list, with what it is sorted and filtered by.

    Args:
        name: the experiment; its rooflines are listed, too.
        results: folder of all results.
    """

    def __init__(self, name: str, results: Path) -> None:
        import ipywidgets as widgets

        self._name, self._results = name, results
        self._runs: list[EarlierRun] = []
        fields = ("date", "mode", "status", "device", "fastest", "ratio")  # of `EarlierRun`
        self._order = widgets.Dropdown(description="sort by", options=fields)
        self._filter = widgets.Text(description="filter", placeholder="words, as: full cuda")
        self._list = widgets.SelectMultiple(rows=6).add_class("labkit-runs")
        for control in (self._order, self._filter):
            control.layout.width = "240px"
            control.style.description_width = "initial"
            control.observe(lambda _: self._arrange(), "value")
        text = help_line(
            "Earlier runs. Hold Ctrl or Shift to choose several; Resume and Export take what Show "
            "shows."
        )
        self.box = widgets.VBox([widgets.HTML(text), row([self._order, self._filter]), self._list])

    @property
    def folders(self) -> list[Path]:
        """The folders of all runs, the newest first."""
        return [run.folder for run in self._runs]

    @property
    def chosen(self) -> tuple[Path, ...]:
        """The folders of the chosen runs."""
        return self._list.value

    def read(self) -> list[Path]:
        """Read the runs anew.

        Returns:
            Their folders, the newest first, colleagues' after this machine's.
        """
        runs = []
        for place in (self._results, self._results / SHARED):
            folders = list_runs(place, self._name) + list_runs(place, f"{self._name}{SUFFIX}*")
            for folder in sorted(folders, key=lambda folder: folder.name, reverse=True):
                with contextlib.suppress(Exception):  # one that cannot be read hides no other
                    runs.append(read_run(folder))
        self._runs = sorted(runs, key=attrgetter("date"), reverse=True)
        self._arrange()
        return [run.folder for run in runs]

    def _arrange(self) -> None:
        words, order = self._filter.value.lower().split(), self._order.value
        ordered = sorted(self._runs, key=attrgetter(order), reverse=order == "date")
        table = [(run.cells(), run) for run in ordered]
        kept = [
            (cells, run)
            for cells, run in table
            if all(word in " ".join(cells).lower() for word in words)
        ]
        lines = [list(COLUMNS), *(cells for cells, _ in kept)]
        widths = [max(map(len, column)) for column in zip(*lines)]
        header, *texts = (_line(cells, widths) for cells in lines)
        chosen = [run.folder for _, run in kept if run.folder in self._list.value]
        self._list.description = header
        self._list.options = [(text, run.folder) for text, (_, run) in zip(texts, kept)]
        self._list.value = chosen


def read_run(folder: Path) -> EarlierRun:
    """Read a run as a line of the list.

    Raises:
        Exception: it cannot be read.
    """
    info = read_info(folder)
    fastest, ratio = _fastest(folder, (folder / "run.json").stat().st_mtime_ns)
    notes = [ROOFLINE] if info.kind == ROOFLINE else []
    if info.protocol != CORRECTED:
        notes.append(info.protocol)
    notes += sorted({of.hardware.name for of in info.storages.values()} - {"real storage"})
    if info.shared_from:
        notes.append(hardware.describe(info.provenance))
    devices = {settings.device for settings in info.variants.values()} - {None}
    return EarlierRun(
        folder=folder,
        date=units.minute(info.created_utc).removesuffix(" UTC"),
        mode=info.mode,
        status=status_of(folder, info),
        device=", ".join(sorted(devices)),
        fastest=fastest,
        ratio=ratio,
        notes=" · ".join([*notes, folder.name.split("-")[-1]]),
    )


def status_of(folder: Path, info: RunInfo) -> str:
    """Return a run's status; one whose process was killed still calls itself running."""
    is_killed = info.status == "running" and not is_in_progress(folder)
    return "stopped" if is_killed else info.status


@functools.lru_cache(maxsize=1000)
def _fastest(folder: Path, modified_ns: int) -> tuple[str, float]:
    """Return the fastest variant and its normalized time.

    Args:
        folder: of the run.
        modified_ns: when its `run.json` was written, which happens after its last trial.
    """
    best = winner(load_run(folder).summary)
    if best is None:
        return "–", math.inf
    label = best.variant
    is_long = len(label) > FASTEST_CHARS
    return (f"{label[: FASTEST_CHARS - 1]}…" if is_long else label), best.normalized_time


def _line(cells: list[str], widths: list[int]) -> str:
    """Pad the columns; a list's lines keep no other blanks than these."""
    padded = (cell.ljust(width) for cell, width in zip(cells, widths))
    return "  ".join(padded).rstrip().replace(" ", "\N{NO-BREAK SPACE}")
