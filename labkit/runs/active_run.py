"""The run in progress: its settings, its folder and the processes that do its jobs.

    checks, calibration, runner ──ask──▶ launcher;  ──save, note, skip, append──▶ run folder

A variant that is dropped stays dropped when the run is resumed; its reason is a row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from labkit.contracts import Skip
from labkit.files import bar, progress_stream
from labkit.machine.clock import utc_now
from labkit.records import AnyTrial, Facts, RunInfo
from labkit.resolve import Resolved, resolve
from labkit.runs.launcher import Launcher, TrialKilled
from labkit.runs.schedule import Planned
from labkit.runs.store import append_trials, explain_unwritable, write_info
from labkit.settings import MODES, Settings

NO_BASELINE = "baseline {!r} must be able to run here, got: {}"
_LOCK = threading.RLock()


@contextmanager
def single_run_lock() -> Iterator[None]:
    """Allow one thread of this process to measure at a time: two runs would disturb each other.

    Raises:
        RuntimeError: another thread measures.
    """
    if not _LOCK.acquire(blocking=False):
        raise RuntimeError(
            "a run is already in progress in this process; wait until it ends, or cancel it"
        )
    try:
        yield
    finally:
        _LOCK.release()


class Progress:
    """A run's progress as lines and a bar.

    An object with the same methods can be passed to a run instead. They are called between trials,
    and the next trial waits until they return.

    Args:
        name: starts every line.
        shown: whether lines and bars are written to the terminal.
    """

    def __init__(self, name: str, *, shown: bool) -> None:
        self._name, self.shown, self._trial = name, shown, ""
        self._bar: Any = None

    def begin(self, folder: Path) -> None:
        """Start a run in its folder."""

    def say(self, line: str) -> None:
        """Show a sentence, above the bar."""
        if self.shown:
            from tqdm import tqdm

            tqdm.write(f"{self._name}: {line}", file=progress_stream())

    def start(self, *, total: int, done: int) -> None:
        """Set the number of trials and how many are done; again when there are more."""
        if self._bar is None:
            self._bar = bar(
                total=total,
                initial=done,
                disable=not self.shown,
                desc=self._name,
                bar_format="{desc} {percentage:3.0f}%|{bar:20}| trial {n}/{total} "
                "[{elapsed}, {remaining} left{postfix}]",
            )
        self._bar.total, self._bar.n = total, done

    def next(self, trial: str) -> None:
        """Name the trial that starts now."""
        self._trial = trial
        self._bar.set_postfix_str(trial)

    def rate(self, rate: str) -> None:
        """Show how fast the trial was."""
        self._bar.set_postfix_str(f"{self._trial} {rate}", refresh=False)

    def advance(self) -> None:
        """Count one trial as done."""
        self._bar.update()

    def close(self) -> None:
        """End the run and leave the bar as it is."""
        if self._bar is not None:
            self._bar.set_postfix_str("", refresh=False)
            self._bar.close()


class ActiveRun:
    """A run in progress.

    Args:
        folder: the run folder.
        info: what is known of it; `save` keeps the folder up to date.
        parts: label -> what `resolve` returned, of the variants that can run here.
        cancel: set by another thread to stop.
        progress: whether to print a bar with ETA, or an object to report to instead.
    """

    def __init__(
        self,
        folder: Path,
        info: RunInfo,
        *,
        parts: Mapping[str, Resolved],
        cancel: threading.Event | None,
        progress: Progress | bool,
    ) -> None:
        self.folder, self.info, self._parts = folder, info, dict(parts)
        self.mode = MODES[info.mode]
        # Also when the run is resumed.
        self.dropped = {**info.skipped, **info.failed}
        self.images_looked_at = 0
        self.cancel = cancel
        if isinstance(progress, bool):
            progress = Progress(info.experiment, shown=progress)
        self.progress = progress
        progress.begin(folder)
        with explain_unwritable(folder):
            self.launcher = Launcher(folder / "worker.log", cancel)

    @property
    def variants(self) -> Mapping[str, Settings]:
        """Label -> settings, including dropped variants."""
        return self.info.variants

    @property
    def baseline(self) -> Settings:
        """The settings that all others are compared with."""
        return self.info.base_settings

    @property
    def remaining(self) -> dict[str, Settings]:
        """The variants that are still in the run."""
        return {
            label: settings
            for label, settings in self.variants.items()
            if label not in self.dropped
        }

    @property
    def baseline_facts(self) -> Facts:
        """Facts about the baseline's parts that matter when it is compared."""
        return self.info.facts_of(self.info.baseline)

    def parts(self, label: str) -> Resolved:
        """Return the parts of a variant, resolved once.

        Raises:
            Skip: this machine no longer has what it needs.
        """
        if label not in self._parts:
            self._parts[label] = resolve(self.variants[label])
        return self._parts[label]

    def ask(self, job: str, **arguments: Any) -> Any:
        """Run a job in a fresh process, and once more if it is killed or skipped.

        Some reasons to skip pass, as pages that the kernel would not give up a moment ago. Errors
        are those of `Launcher.run`.
        """
        try:
            return self.launcher.run(job, **arguments)
        except (Skip, TrialKilled) as reason:
            if job == "measure":  # a trial that fails is a row, and comes again later
                raise
            self.progress.say(f"once more: {reason}")
            return self.launcher.run(job, **arguments)

    def save(self, **changes: Any) -> None:
        """Change fields of the run's `RunInfo`, here and in its folder."""
        self.info = replace(self.info, **changes)
        write_info(self.folder, self.info)

    def note(self, line: str) -> None:
        """Add a note to the run, unless it has it already, and show it."""
        if line not in self.info.notes:
            self.save(notes=(*self.info.notes, line))
            self.progress.say(line)

    def drop(self, planned: Planned | str, status: str, reason: str) -> None:
        """Remove a variant from this run; the reason stays in the table.

        Args:
            planned: the trial that it failed in, or its label.
            status: skipped or failed.
            reason: why.

        Raises:
            RuntimeError: it is the last baseline.
        """
        if isinstance(planned, str):  # before any trial
            reasons = {**getattr(self.info, status), planned: reason}
            self.save(**{status: reasons})  # a kill must not bring it back
            planned = Planned(block=0, position=0, variant=planned, role="")
        self.dropped[planned.variant] = reason
        self.append(planned, status, reason)
        self.progress.say(f"{planned.variant} is {status}: {reason}")
        self.check_baselines()

    def skip(self, labels: Iterable[str], reason: object) -> None:
        """Drop variants that cannot run here."""
        self.drop_all(dict.fromkeys(labels, ("skipped", str(reason))))

    def drop_all(self, verdicts: Mapping[str, tuple[str, str]]) -> None:
        """Drop the variants whose verdict, (status, reason), is not "ok"."""
        for label, (status, reason) in verdicts.items():
            if status != "ok" and label not in self.dropped:  # a group goes with its baseline
                self.drop(label, status, reason)

    def check_baselines(self) -> None:
        """Leave out the groups whose baseline is out: nothing could be divided by it.

        Raises:
            RuntimeError: no group is left.
        """
        baseline_by_group = self.info.baseline_by_group
        out = {group: name for group, name in baseline_by_group.items() if name in self.dropped}
        if len(out) == len(baseline_by_group):
            raise self.no_baseline(self.dropped[self.info.baseline])
        for name in self.variants:
            base = out.get(self.info.group_of(name))
            if base is not None and name not in self.dropped:
                self.drop(name, "skipped", f"its baseline is out: {self.dropped[base]}")

    def no_baseline(self, reason: object) -> RuntimeError:
        """Return the error that ends a run whose baseline cannot be measured."""
        return RuntimeError(NO_BASELINE.format(self.info.baseline, reason))

    def append(self, planned: Planned, status: str, reason: str = "", **measured: Any) -> AnyTrial:
        """Add a trial's row to the run's folder.

        Args:
            planned: the trial.
            status: as of `Trial`.
            reason: why there are no times.
            **measured: other fields of `Trial`, and settings that differ from the variant's.
        """
        row = {
            "experiment": self.info.experiment,
            "run": self.folder.name,
            "group": self.info.group_of(planned.variant),
            **asdict(planned),
            "settings": asdict(self.variants[planned.variant]),
            "status": status,
            "reason": reason,
            "epochs": (),
            "machine_id": self.info.provenance.machine_id,
            "unreadable_images": len(self.info.excluded),
            "started_utc": utc_now(),
            **measured,
        }
        trial = self.info.trial_type.from_row(row)
        append_trials(self.folder, trial)
        return trial
