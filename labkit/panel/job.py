"""Job: one run in a thread of a notebook's kernel, and what is known of it meanwhile.

    Run ─ start() ─▶ thread: lab.run(…, progress=job) ─ watchers ─▶ panels
    Cancel ─ job.cancel() ─▶ the trial's processes end, finished rows stay

Everything measured happens in processes of their own, so the kernel stays free.  Watchers are
told of new rows between two trials, in the run's own thread: the next trial waits until charts
are drawn, so nothing is drawn beside a measurement.  Main trap: a second cell, or a reloaded
page, must find the run that is under way instead of starting another; so there is one job.
Its state changes in several threads: whoever shows it looks again whether it still holds.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from labkit import units
from labkit.contracts import Cancelled
from labkit.runs.store import StoredRun

State = Literal["preparing", "running", "cancelling", "finished", "cancelled", "failed"]
ENDED = ("finished", "cancelled", "failed")
TICK_S = 0.5  # how often watchers hear of the time that is left
DRAWING_PAUSES = 4  # times as long as drawing took, a run goes on before the next drawing

Watcher = Callable[["Job", bool], None]
"""Is called with the job, and whether there are new rows."""


class Job:
    """One run under way, or ended; told of its progress by the run itself.

    Args:
        name: the experiment.
        run: starts the run; takes `cancel` and `progress`.
        now: a clock in seconds.
    """

    shown = False  # no bars: what is known is shown elsewhere

    def __init__(
        self, name: str, run: Callable[..., StoredRun], now: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.state: State = "preparing"
        self.folder: Path | None = None
        self.said: list[str] = []
        self.error: Exception | None = None
        self.traceback = ""
        self._run, self._now = run, now
        self._done = self._total = self._first = 0
        self._what, self._rate = "", ""
        self._began_s = self._last_s = now()
        self._asked_to_stop, self._ended = threading.Event(), threading.Event()
        self._changing = threading.Lock()
        self._told_s = self._drawn_s = float("-inf")
        self._pause_s = TICK_S

    # --- what a panel asks ------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether it has not ended."""
        return self.state not in ENDED

    def share(self) -> float:
        """Say which share of its trials is done, from 0 to 1."""
        return self._done / self._total if self._total else 0.0

    def progress(self) -> str:
        """Say in one line how far it is: the trial, its rate, the time that is left."""
        if self.state == "preparing":
            return self.said[-1] if self.said else "starting"
        if not self._total:
            return ""
        number = min(self._done + self.is_under_way, self._total)
        parts = [f"trial {number} of {self._total}"]
        if self.is_under_way:
            parts += [self._what] if self._what else []
            parts += [f"last {self._rate}"] if self._rate else []
            parts.append(self._time_left())
        return " · ".join(parts)

    def cancel(self) -> None:
        """Ask it to stop; finished trials stay.  Returns at once."""
        if self._change("cancelling", unless=ENDED):
            self._asked_to_stop.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended.

        Returns:
            Whether it has.
        """
        return self._ended.wait(timeout_s)

    # --- what the run tells -----------------------------------------------------------------

    def begin(self, folder: Path) -> None:
        """Learn where the run lies."""
        self.folder = folder

    def say(self, line: str) -> None:
        """Keep a sentence for people."""
        self.said.append(line)

    def start(self, *, total: int, done: int) -> None:
        """Learn how many trials there are, `done` of which are there."""
        if not self._total:
            self._first = done
            self._began_s = self._last_s = self._now()
        self._change("running", unless=("cancelling", *ENDED))
        self._total, self._done = total, done

    def next(self, what: str) -> None:
        """Learn which trial starts now."""
        self._what = what

    def rate(self, rate: str) -> None:
        """Learn how fast it was."""
        self._rate = rate

    def advance(self) -> None:
        """One trial more is done; let the watchers draw before the next one starts."""
        self._done, self._last_s = self._done + 1, self._now()
        if self._now() - self._drawn_s >= self._pause_s:  # trials may be shorter
            began_s = self._now()
            self._tell(has_new_rows=True)
            self._drawn_s = self._now()
            self._pause_s = max(TICK_S, DRAWING_PAUSES * (self._drawn_s - began_s))

    def close(self) -> None:
        """Nothing more comes from the run."""

    # --- its threads ------------------------------------------------------------------------

    def start_threads(self) -> None:
        """Start the run, and the ticks for its watchers."""
        self._tell(has_new_rows=False)
        threading.Thread(target=self._go, name=f"labkit {self.name}", daemon=True).start()
        threading.Thread(target=self._tick, name="labkit ticks", daemon=True).start()

    def _go(self) -> None:
        try:
            run = self._run(cancel=self._asked_to_stop, progress=self)
            self._change(run.info["status"])
        except Cancelled:  # before there was a run, as while data was copied from a URL
            self._change("cancelled")
        except Exception as error:  # whatever it is, the person must see it
            self.error, self.traceback = error, traceback.format_exc()
            self._change("failed")
        finally:
            self._ended.set()
            self._tell(has_new_rows=True)

    def _tick(self) -> None:
        while not self._ended.wait(TICK_S):
            if self._now() - self._told_s >= TICK_S / 2:  # not right after a row
                self._tell(has_new_rows=False)

    def _tell(self, *, has_new_rows: bool) -> None:
        for watcher in list(_watchers):
            try:
                watcher(self, has_new_rows)
            except Exception as error:  # a run does not end because nobody can draw it
                self.said.append(f"{type(error).__name__} while the run was shown: {error}")
        self._told_s = self._now()

    def _change(self, state: State, unless: tuple[str, ...] = ()) -> bool:
        """Change the state, unless it is one of those; say whether it was changed."""
        with self._changing:
            if self.state in unless:
                return False
            self.state = state
            return True

    def _time_left(self) -> str:
        done = self._done - self._first
        if not done:
            return "time left is known after the first trial"
        trial_s = (self._last_s - self._began_s) / done
        left_s = trial_s * (self._total - self._done) - (self._now() - self._last_s)
        return f"{units.whole_seconds(max(0.0, left_s))} left"


_LOCK = threading.Lock()
_current: Job | None = None
_watchers: list[Watcher] = []


def follow(watcher: Watcher) -> None:
    """Have a function told of every job: twice a second, and when there are new rows."""
    if watcher not in _watchers:
        _watchers.append(watcher)


def current() -> Job | None:
    """Give the job that was started last in this process; None before the first."""
    return _current


def forget(watcher: Watcher) -> None:
    """Tell a function no more."""
    if watcher in _watchers:
        _watchers.remove(watcher)


def start(name: str, run: Callable[..., StoredRun]) -> Job:
    """Start a run in a thread.

    Args:
        name: the experiment.
        run: as for `Job`.

    Raises:
        RuntimeError: another one is under way.
    """
    global _current
    with _LOCK:
        if _current is not None and _current.is_under_way:
            raise RuntimeError(
                f"run must be the only one under way in this notebook, got a second while "
                f"{_current.name} is {_current.state}; wait until it has ended, or cancel it"
            )
        _current = Job(name, run)
    _current.start_threads()
    return _current
