"""Progress: a bar with ETA and plain lines, where the person looks.

A notebook shows stderr as an error, a shell keeps stdout for results: so lines
go to stdout in a notebook and to stderr elsewhere.  A bar redraws at most twice a second, so that
drawing does not disturb a measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TextIO

REDRAW_S = 0.5
NARROW_COLUMNS = 100  # for notebooks and logs, which have no terminal's width


def stream() -> TextIO:
    """Give the stream that people read progress on: stdout in a notebook, else stderr."""
    return sys.stdout if "ipykernel" in sys.modules else sys.stderr


def bar(items: Iterable | None = None, **options: object) -> object:
    """Make a tqdm bar that fits where it is shown.

    Args:
        items: what to iterate over; unset: advance it by hand.
        **options: tqdm's own.
    """
    from tqdm import tqdm

    file = stream()
    width = {"dynamic_ncols": True} if file.isatty() else {"ncols": NARROW_COLUMNS}
    return tqdm(items, file=file, mininterval=REDRAW_S, **width, **options)


class Progress(Protocol):
    """Who is told how a run goes on, between its trials: the run waits until it is heard."""

    shown: bool
    """Whether bars may be drawn on the terminal, as while data is copied."""

    def begin(self, folder: Path) -> None:
        """Learn where the run lies."""

    def say(self, line: str) -> None:
        """Hear a sentence for people."""

    def start(self, *, total: int, done: int) -> None:
        """Learn how many trials there are, `done` of which are there; may come again with more."""

    def next(self, what: str) -> None:
        """Learn which trial starts now."""

    def rate(self, rate: str) -> None:
        """Learn how fast it was."""

    def advance(self) -> None:
        """One trial more is done, with or without a row."""

    def close(self) -> None:
        """Nothing more comes."""


class RunProgress:
    """A run's progress as lines and a bar.

    Args:
        name: starts every line.
        shown: False keeps quiet.
    """

    def __init__(self, name: str, *, shown: bool) -> None:
        self._name, self.shown, self._bar, self._what = name, shown, None, ""

    def begin(self, folder: Path) -> None:
        """Nothing to show yet."""

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self.shown:
            from tqdm import tqdm

            tqdm.write(f"{self._name}: {line}", file=stream())

    def start(self, *, total: int, done: int) -> None:
        """Show the bar, or make it longer; `done` trials of `total` are already there."""
        if self._bar is not None:
            self._bar.total, self._bar.n = total, done
        elif self.shown:
            self._bar = bar(
                total=total,
                initial=done,
                desc=self._name,
                bar_format="{desc} {percentage:3.0f}%|{bar:20}| trial {n}/{total} "
                "[{elapsed}, {remaining} left{postfix}]",
            )

    def next(self, what: str) -> None:
        """Name the trial that starts now."""
        self._what = what
        self._show(what, at_once=True)

    def rate(self, rate: str) -> None:
        """Add how fast the trial was."""
        self._show(f"{self._what} {rate}", at_once=False)

    def advance(self) -> None:
        """Count one trial as done."""
        if self._bar is not None:
            self._bar.update()

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._show("", at_once=False)
            self._bar.close()

    def _show(self, text: str, *, at_once: bool) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=at_once)
