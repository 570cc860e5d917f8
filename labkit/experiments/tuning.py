"""Find the loader settings that are as fast as the fastest and take the least CPU time.

Two runs measure the default and other settings in the same blocks: first other numbers of workers,
then the best of them with each of the other loader settings changed.  Settings within 3 % of the
fastest count as equally fast; of these the one with the fewest CPU seconds is chosen ([002] 3.3).
The second run measures the first one's best again: the best of many noisy numbers is biased.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.analysis.rows import Row
from labkit.analysis.simulated import warnings
from labkit.analysis.thresholds import DELTA
from labkit.contracts import Cancelled
from labkit.machine import hardware
from labkit.resolve import complete_here
from labkit.runs.active_run import Progress
from labkit.runs.calibrated_device import device_of, is_calibrated
from labkit.runs.experiment import Experiment
from labkit.runs.runner import run
from labkit.runs.store import StoredRun
from labkit.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

DEFAULT = "default"
LOADER_SETTINGS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
FIRST_BLOCKS, SECOND_BLOCKS = 2, 3


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of `tune`; shown as a table."""

    settings: Settings
    """The given settings with the chosen loader settings."""
    label: str
    """The chosen loader settings, as "num_workers=4"; or "default"."""
    measured: Mapping[str, Row]
    """Every setting that was tried; the default first."""
    runs: tuple[StoredRun, ...]
    """The two runs that measured the numbers."""
    is_whole: bool
    """Whether the budget was enough to try everything."""

    def table(self) -> pd.DataFrame:
        """Return the normalized time and the CPU seconds of every setting that was tried."""
        import pandas as pd

        columns = ["normalized_time", "cpu_s_per_1000_images"]
        rows = ([getattr(row, name) for name in columns] for row in self.measured.values())
        return pd.DataFrame(rows, list(self.measured), columns)

    def caption(self) -> str:
        """Return what was chosen, what it was measured on, and how."""
        options = _loader_settings(self.settings)
        verb = "Keep the default" if self.label == DEFAULT else f"Take {self.label}"
        lines = [
            f"{verb}: " + ", ".join(f"{name}={value}" for name, value in options.items()) + ".",
            *(f"{line}." for run in self.runs[:1] for line in warnings(run.summary)),
            f"The cheapest of those within {units.limit(DELTA)} of the fastest; numbers of "
            "quick mode, no verdict.",
        ]
        if not self.is_whole:
            lines.append("Not everything was tried: budget_s was too short.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{self.caption()}\n{self.table().to_string(float_format='{:.3g}'.format)}"

    def _repr_html_(self) -> str:
        return self.table().style.format(precision=3).set_caption(escape(self.caption())).to_html()


def tune(
    settings: Settings | None = None,
    *,
    results: Path | str = "results",
    budget_s: float = 105.0,  # processes take some more seconds to end
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> Tuned:
    """Find the loader settings that need least CPU among the fastest, in under two minutes.

    The first time, calibrating the simulated GPU takes up to a minute more.

    Args:
        settings: the pipeline; its loader settings are the default to compare with, unset ones
            are filled in as for a run.
        results: folder that takes the runs; their experiment is `tune`.
        budget_s: stop measuring after so many seconds.
        cancel: set by another thread to stop.
        progress: as in `lab.run`.

    Raises:
        ValueError: settings or data that cannot work, or a budget too small for two settings.
        RuntimeError: the default cannot be measured here.
        Cancelled: `cancel` was set; what was measured stays in its run folder.
    """
    given = settings or Settings()
    complete = complete_here(given)
    if is_calibrated(complete):  # first: that may take a minute, and is no part of the budget
        device_of(complete, results, cancel=cancel, progress=progress is True)
    default = replace(given, **_loader_settings(complete))
    starts_s = time.monotonic()
    how = {"results": results, "progress": progress}
    # The first round takes less than half of the time: the second one has more blocks.
    until = _Until(starts_s + budget_s * 0.45, cancel)
    tried = {DEFAULT: default, **worker_counts(default)}
    first = _round(tried, FIRST_BLOCKS, until, **how)
    measured = _measured(first)
    if len(measured) < 2:
        raise ValueError(
            f"budget_s must leave time for two settings, got {budget_s:g}; {first.folder} holds "
            "what was measured; set images to fewer, or a longer budget"
        )
    best = choose(measured)
    again = {label: tried[label] for label in (DEFAULT, *to_measure_again(measured, best))}
    again |= _variations(tried[best], best)
    until = _Until(starts_s + budget_s, cancel)
    second = _round(again, SECOND_BLOCKS, until, **how)
    measured |= _measured(second)  # the later numbers of what was measured twice
    label = choose(measured)
    return Tuned(
        settings=replace(given, **_loader_settings((tried | again)[label])),
        label=label,
        measured=measured,
        runs=(first, second),
        is_whole=all(each.info.status == "finished" for each in (first, second)),
    )


def choose(measured: Mapping[str, Row]) -> str:
    """Return the label of the equally fast settings that take the fewest CPU seconds.

    The default is kept if it is equally fast and no other takes 10 % less.

    Args:
        measured: label -> numbers; "default" among them.
    """
    plateau = _close_to_fastest(measured, DELTA)
    cheapest = min(plateau, key=lambda label: plateau[label].cpu_s_per_1000_images)
    if DEFAULT in plateau:
        least = plateau[cheapest].cpu_s_per_1000_images
        # Quick blocks are off by some percent, in times and in CPU seconds.
        if least > 0.9 * plateau[DEFAULT].cpu_s_per_1000_images:
            return DEFAULT
    return cheapest


def to_measure_again(measured: Mapping[str, Row], best: str) -> list[str]:
    """Return the first round's best, and the fastest of the others within 10 %.

    Args:
        measured: label -> numbers; "default" among them, which every round measures anyway.
        best: what `choose` returned.
    """
    close = _close_to_fastest(measured, 0.1)  # two quick blocks distinguish larger differences only
    others = sorted(close.keys() - {DEFAULT, best}, key=lambda label: close[label].normalized_time)
    return [label for label in (best, *others[:1]) if label != DEFAULT]


def _close_to_fastest(measured: Mapping[str, Row], share: float) -> dict[str, Row]:
    most = min(each.normalized_time for each in measured.values()) * (1 + share)
    return {label: each for label, each in measured.items() if each.normalized_time <= most}


def worker_counts(default: Settings) -> dict[str, Settings]:
    """Return what the first round compares with the default: other numbers of workers."""
    cores = hardware.cores()
    counts = dict.fromkeys((0, 1, cores, 2 * cores))
    return {
        f"num_workers={n}": replace(default, num_workers=n)
        for n in counts
        if n != default.num_workers
    }


def _variations(best: Settings, label: str) -> dict[str, Settings]:
    """Return the best settings with each of the other loader settings changed."""
    changes: list[dict[str, Any]] = []
    if best.loader.startswith("torch") and best.num_workers:
        deep = {"prefetch_factor": 2 * best.prefetch_factor}
        kept = {"persistent_workers": not best.persistent_workers}
        changes = [deep, kept, deep | kept]
    if best.device != "cpu":
        changes.append({"pin_memory": not best.pin_memory})
    start, variants = [] if label == DEFAULT else [label], {}
    for change in changes:
        words = [f"{name}={value}" for name, value in change.items()]
        variants[", ".join([*start, *words])] = replace(best, **change)
    return variants


class _Until(threading.Event):
    """Set once the time is over, or when the user cancels."""

    def __init__(self, ends_s: float, cancel: threading.Event | None) -> None:
        super().__init__()
        self._ends_s, self._cancel = ends_s, cancel

    def is_set(self) -> bool:
        return self.is_cancelled() or time.monotonic() >= self._ends_s

    def is_cancelled(self) -> bool:
        return self._cancel is not None and self._cancel.is_set()


def _round(variants: Mapping[str, Settings], blocks: int, until: _Until, **how: Any) -> StoredRun:
    """Measure the default, which comes first, and other settings until the time is over."""
    experiment = Experiment(
        "tune",
        question="Which of the fastest loader settings need least CPU?",
        variants=variants,
        source="[002] 3.3: the least CPU use of those that load equally fast",
    )
    stored = run(experiment, "quick", blocks=blocks, cancel=until, **how)
    if until.is_cancelled():
        raise Cancelled(f"cancelled; {stored.folder} holds what was measured")
    return stored


def _measured(stored: StoredRun) -> dict[str, Row]:
    """Return the rows of the variants of which there are both numbers."""
    return {
        row.variant: row
        for row in stored.summary.rows
        if row.normalized_time is not None and row.cpu_s_per_1000_images is not None
    }


def _loader_settings(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in LOADER_SETTINGS}
