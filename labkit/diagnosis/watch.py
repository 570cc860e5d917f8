"""Watch: one line around an existing loop says where its time goes.

    for batch in lab.watch(loader):     a line about once a second, where people look;
        …                               when the epoch is over, a table with sentences

The batches are the loader's own, in its order; no random number is drawn, and once an epoch ends,
however it ends, nothing stays installed.  Main trap: drawing takes time, too, so it is done between
two steps, seldom, and counts to no phase.
"""

from __future__ import annotations

import reprlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TextIO

from labkit.contracts import Clock, SystemClock
from labkit.diagnosis import phase_words
from labkit.diagnosis.phases import EpochPhases, Phases
from labkit.files import progress_stream

REDRAW_S = 1.0


def watch(loader: Iterable, *, show: bool = True) -> Watch:
    """Watch a training loop from its loader: `for batch in lab.watch(loader): …`.

    Torch says once that there are global hooks if the model is compiled: they are this watch's,
    in the loop's first step.

    Args:
        loader: any iterable of batches, as a DataLoader.
        show: False prints nothing; `phases` and `epochs` hold the numbers in either case.

    Returns:
        Gives the same batches; its length and its other attributes are the loader's.

    Raises:
        ValueError: the loader is no iterable.
    """
    return Watch(loader, choose_screen() if show else None, SystemClock())


class Screen(Protocol):
    """Where a watch is shown."""

    def draw(self, line: str) -> None:
        """Show a line in place of the one before."""

    def finish(self, text: str) -> None:
        """Show what stays, in place of the line."""


class Watch:
    """A loader whose loop is watched; as often as the loader can be gone through.

    Args:
        loader: any iterable of batches.
        screen: where to show it; None: nowhere.
        clock: tells the time; a fake one in tests.
    """

    # Setting any other attribute fails, instead of never reaching the loader.
    __slots__ = ("_clock", "_epochs", "_loader", "_phases", "_screen")

    def __init__(self, loader: Iterable, screen: Screen | None, clock: Clock) -> None:
        self._loader, self._screen, self._clock = check_loader(loader), screen, clock
        self._phases, self._epochs = None, []

    @property
    def phases(self) -> EpochPhases | None:
        """The newest epoch's phases, also while it goes on; None before the first."""
        return self._phases and self._phases.result()

    @property
    def epochs(self) -> tuple[EpochPhases, ...]:
        """The phases of every epoch that is over."""
        return tuple(self._epochs)

    def __iter__(self) -> Iterator:
        self._phases = phases = Phases(self._clock)
        draw = self._make_draw(phases) if self._screen else None
        try:
            yield from phases.over(self._loader, draw)
        finally:
            self._epochs.append(phases.result())
            if self._screen:
                self._screen.finish(phase_words.text(self._epochs[-1], len(self._epochs)))

    def _make_draw(self, phases: Phases) -> Callable[[], None]:
        now, total = self._clock.now, count_batches(self._loader)
        due_s = now() + REDRAW_S

        def draw() -> None:
            nonlocal due_s
            if now() >= due_s:
                self._screen.draw(phase_words.line(phases.result(), total))
                due_s = now() + REDRAW_S

        return draw

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return bool(self._loader)  # an iterator has no length, and is true

    def __getattr__(self, name: str) -> object:
        return getattr(object.__getattribute__(self, "_loader"), name)


def check_loader(loader: Iterable) -> Iterable:
    """Return a loader that can be gone through, without starting it.

    Raises:
        ValueError: it is no iterable.
    """
    if not any(hasattr(type(loader), name) for name in ("__iter__", "__getitem__")):
        raise ValueError(f"loader must be an iterable of batches, got {brief(loader)}")
    return loader


def brief(value: object) -> str:
    """Write any value for a message: short, and in one line."""
    return " ".join(reprlib.repr(value).split())


def count_batches(loader: Iterable) -> int | None:
    """Count a loader's batches without going through them; None where that cannot be known."""
    torch = sys.modules.get("torch")
    if torch and isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset):
        return None  # a DataLoader that was asked once warns later if it was told too few
    try:
        return len(loader)
    except Exception:  # whatever a person's own length says: only the line shows it
        return None


def choose_screen() -> Screen:
    """Choose where a watch is shown: in a notebook's output, on a terminal, or at the end only."""
    python = sys.modules.get("IPython")
    if python and hasattr(python.get_ipython(), "kernel"):
        return Notebook()
    file = progress_stream()
    return Terminal(file) if file.isatty() else Log(file)


class Log:
    """Writes what stays to a file, in which no line can be replaced."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def draw(self, line: str) -> None:
        """Show nothing."""

    def finish(self, text: str) -> None:
        """Write the text."""
        print(text, file=self._file, flush=True)


class Terminal:
    """Redraws one line of a terminal."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._drawn = file, 0

    def draw(self, line: str) -> None:
        """Write over the line before; what does not fit is cut off."""
        # A line that fills the last column would begin a new one.
        line = line[: shutil.get_terminal_size().columns - 1]
        print(f"\r{line.ljust(self._drawn)}", end="", file=self._file, flush=True)
        self._drawn = len(line)

    def finish(self, text: str) -> None:
        """Wipe the line and write the text."""
        if self._drawn:
            print(f"\r{' ' * self._drawn}\r", end="", file=self._file)
            self._drawn = 0
        print(text, file=self._file, flush=True)


class Notebook:
    """Redraws one output of a notebook's cell, in letters of equal width."""

    def __init__(self) -> None:
        self._handle = None

    def draw(self, line: str) -> None:
        """Show a line in place of the one before."""
        from IPython.display import display

        shown = {"text/plain": line}
        if self._handle:
            self._handle.update(shown, raw=True)
        else:
            self._handle = display(shown, raw=True, display_id=True)

    def finish(self, text: str) -> None:
        """Show the text in place of the line; the next epoch has an output of its own."""
        self.draw(text)
        self._handle = None
