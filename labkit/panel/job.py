"""One run in a thread of a notebook's kernel, and how far it is.

    Run ─ start() ─▶ thread: lab.run(…, progress=job) ─ watchers ─▶ panels
    Cancel ─ job.cancel() ─▶ the trial's processes end, finished rows stay

There is one job in a kernel, so that a second cell or a reloaded page finds the run in progress.
Trials run in processes of their own.  Watchers are called in the run's thread between two trials:
the next trial waits until charts are drawn, so that nothing is drawn while time is measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from labkit import units
from labkit.contracts import Cancelled
from labkit.runs.store import StoredRun

DRAWING_PAUSES = 4  # times as long as drawing took, a run goes on before the next drawing
LEAST_PAUSE_S = 0.5

Watcher = Callable[["Job", bool], None]
"""Is called with the job, and whether there are new rows."""


class Job:
    """One run that is in progress or has ended; the run reports its progress to it.

    Args:
        name: the experiment.
        run: starts the run; takes `cancel` and `progress`.
        now: a clock in seconds.
    """

    shown = False  # the panel shows the progress, so the run draws no bars

    def __init__(
        self, name: str, run: Callable[..., StoredRun], now: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.folder: Path | None = None
        self.messages: list[str] = []
        self.error: Exception | None = None
        self._run, self._now = run, now
        self._outcome = ""
        self._done = self._total = self._first = 0
        self._what, self._rate = "", ""
        self._began_s = now()
        self._drawn_s, self._pause_s = float("-inf"), LEAST_PAUSE_S
        self._asked_to_stop, self._ended = threading.Event(), threading.Event()

    # --- what a panel asks ------------------------------------------------------------------

    @property
    def state(self) -> str:
        """preparing, running, cancelling, finished, cancelled or failed."""
        if self._outcome:
            return self._outcome
        if self._asked_to_stop.is_set():
            return "cancelling"
        return "running" if self._total else "preparing"

    @property
    def is_in_progress(self) -> bool:
        """Whether it has not ended."""
        return not self._outcome

    def share(self) -> float:
        """Return the share of its trials that are done, from 0 to 1."""
        return self._done / self._total if self._total else 0.0

    def progress(self) -> str:
        """Return how far it is, in one line: the trial, its rate, the time that is left."""
        if not self._total:
            return (self.messages or ["starting"])[-1] if self.is_in_progress else ""
        number = min(self._done + self.is_in_progress, self._total)
        parts = [f"trial {number} of {self._total}"]
        if self.is_in_progress:
            parts += [self._what, self._rate and f"last {self._rate}", self._time_left()]
        return " · ".join(filter(None, parts))

    def cancel(self) -> None:
        """Ask it to stop; finished trials stay.  Returns at once."""
        self._asked_to_stop.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return whether it has."""
        return self._ended.wait(timeout_s)

    # --- what the run reports ---------------------------------------------------------------

    def begin(self, folder: Path) -> None:
        """Keep the run's folder."""
        self.folder = folder

    def say(self, line: str) -> None:
        """Keep a message."""
        self.messages.append(line)
        self._tell(has_new_rows=False)

    def start(self, *, total: int, done: int) -> None:
        """Keep how many trials there are, `done` of which have been measured."""
        if not self._total:
            self._first, self._began_s = done, self._now()
        self._total, self._done = total, done
        self._tell(has_new_rows=False)

    def next(self, what: str) -> None:
        """Keep which trial starts now."""
        self._what = what
        self._tell(has_new_rows=False)

    def rate(self, rate: str) -> None:
        """Keep how fast the last trial was."""
        self._rate = rate

    def advance(self) -> None:
        """Count one more trial; let the watchers draw before the next one starts."""
        self._done += 1
        began_s = self._now()
        if began_s - self._drawn_s >= self._pause_s:  # trials may be shorter
            self._tell(has_new_rows=True)
            self._drawn_s = self._now()
            self._pause_s = max(LEAST_PAUSE_S, DRAWING_PAUSES * (self._drawn_s - began_s))

    def close(self) -> None:
        """Nothing more comes from the run."""

    # --- its thread -------------------------------------------------------------------------

    def go(self) -> None:
        """Run; return when it has ended and all watchers know."""
        try:
            outcome = self._run(cancel=self._asked_to_stop, progress=self).info.status
        except Cancelled:  # before there was a run, as while data was copied from a URL
            outcome = "cancelled"
        except Exception as error:  # the panel shows it, whatever it is
            self.error, outcome = error, "failed"
        self._outcome = outcome
        self._ended.set()
        self._tell(has_new_rows=True)

    def _tell(self, *, has_new_rows: bool) -> None:
        for watcher in list(_watchers):
            try:
                watcher(self, has_new_rows)
            except Exception as error:  # a run goes on although it cannot be drawn
                self.messages.append(f"{type(error).__name__} while the run was shown: {error}")

    def _time_left(self) -> str:
        done = self._done - self._first
        if not done:
            return "time left is known after the first trial"
        left_s = (self._now() - self._began_s) / done * (self._total - self._done)
        return f"{units.whole_seconds(left_s)} left"


_LOCK = threading.Lock()
_current: Job | None = None
_watchers: set[Watcher] = set()


def follow(watcher: Watcher) -> None:
    """Call a function whenever a job has gone on."""
    _watchers.add(watcher)


def forget(watcher: Watcher) -> None:
    """Call a function no more."""
    _watchers.discard(watcher)


def current() -> Job | None:
    """Return the job that was started last in this process; None before the first."""
    return _current


def start(name: str, run: Callable[..., StoredRun]) -> Job:
    """Start a run in a thread.

    Args:
        name: the experiment.
        run: as for `Job`.

    Raises:
        RuntimeError: another one is in progress.
    """
    global _current
    with _LOCK:
        if _current is not None and _current.is_in_progress:
            raise RuntimeError(
                f"run must be the only one in progress in this notebook, got a second while "
                f"{_current.name} is {_current.state}; wait until it has ended, or cancel it"
            )
        job = _current = Job(name, run)
    job._tell(has_new_rows=False)
    threading.Thread(target=job.go, name=f"labkit {name}", daemon=True).start()
    return job
