"""Tuning of labkit's own pipelines: each trial is a fresh process, as in a run.

Before each step of the search comes what a run does before its first trial, some seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from labkit.diagnosis.loader_search import Arguments, Trials, label_of
from labkit.machine import hardware
from labkit.parts.devices import DevicePart
from labkit.parts.loading import Loader
from labkit.records import Calibration
from labkit.resolve import complete_here, find_part
from labkit.runs.calibrated_device import device_of, is_calibrated, with_device
from labkit.runs.experiment import Experiment
from labkit.runs.runner import open_trials
from labkit.settings import Settings


class SettingsTrials(Trials):
    """What can be tried of a pipeline; see `loader_search.Trials`.

    Args:
        settings: of the pipeline; unset ones are filled in as for a run.
        results: the folder that keeps the calibrated device.
        progress: show lines and bars.

    Raises:
        ValueError: settings or data that cannot work.
        RuntimeError: the simulated GPU cannot be calibrated.
    """

    what = "lab.Settings"

    def __init__(self, settings: Settings, *, results: Path | str, progress: bool) -> None:
        self._given, self._progress = settings, progress
        complete = complete_here(settings)
        if is_calibrated(complete):
            rate = device_of(complete, results, progress=progress).device_images_per_s
            complete = with_device(complete, Calibration(calibrated_images_per_s=rate))
        self._settings = complete
        self.most_workers = hardware.cores()
        self.now = Arguments(
            num_workers=complete.num_workers,
            prefetch_factor=complete.prefetch_factor,
            persistent_workers=complete.persistent_workers,
            pin_memory=complete.pin_memory,
        )
        changeable = {"num_workers"}
        if find_part(Loader, complete.loader).workers == "processes":
            changeable |= {"prefetch_factor", "persistent_workers"}
        device = find_part(DevicePart, complete.device)
        if device.is_simulated or device.is_cuda:
            changeable.add("pin_memory")
        self.changeable = frozenset(changeable)

    @contextmanager
    def opened(self, candidates: Sequence[Arguments]) -> Iterator[Callable[[Arguments], float]]:
        """Open a context with a function that measures the mean seconds of an epoch."""
        variants = {label_of(self.now, each): self._changed(each) for each in candidates}
        experiment = Experiment(
            "tune", question="Which loader settings are fastest?", variants=variants
        )
        with (
            tempfile.TemporaryDirectory(prefix="labkit-tune-") as folder,
            open_trials(experiment, folder, progress=self._progress) as measure,
        ):
            yield lambda each: fmean(
                epoch["epoch_s"] for epoch in measure(label_of(self.now, each))["epochs"]
            )

    def _changed(self, arguments: Arguments) -> Settings:
        changes = {name: getattr(arguments, name) for name in self.changeable}
        return replace(self._settings, **changes)

    def as_given(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return changes as settings."""
        return {name: Settings.prefetch_factor if value is None else value
                for name, value in changes.items()}  # fmt: skip

    def with_changes(self, changes: Mapping[str, Any]) -> Settings:
        """Return the settings that were given, with changes."""
        return replace(self._given, **changes)
