"""A pseudo-terminal to print to, as a training script does.

    print ─▶ kernel's terminal ─▶ a program of its own, which takes it and draws nothing

The kernel's side is real.  Main trap: a terminal that also draws, or sends every line through ssh,
takes longer, and makes the one who prints wait as soon as a few kilobytes are ahead of it.
"""

from __future__ import annotations

import contextlib
import os

from labkit.helper import Helper
from labkit.parts.training import far_ends
from labkit.trial import Skip

ROWS, COLUMNS = 24, 80


def far_end(what: str, kind: str, pass_fds: tuple[int, ...] = (), **spec: object) -> Helper:
    """Start one of `far_ends`.

    Raises:
        Skip: it does not start.
    """
    # -P: the folder of that file holds no modules for it to import.
    program = ["-P", far_ends.__file__]
    return Helper(what, program, {"kind": kind, **spec}, pass_fds=pass_fds)


def take_arrived(helper: Helper) -> dict:
    """Ask a far end for what has arrived, and end it; empty where it is gone.

    Returns:
        `arrived`, a list of texts; of a metric server also `waited_s`.
    """
    found = {"arrived": []}
    with contextlib.suppress(Skip):
        found = helper.say({"end": True})
    helper.close()
    return found


class Terminal:
    """A sink: lines printed to a terminal of its own.

    Raises:
        Skip: this platform has no pseudo-terminals, or nobody can be started behind one.
    """

    where = "the terminal"
    next_step = "keep it open or report elsewhere"

    def __init__(self) -> None:
        if not hasattr(os, "openpty"):
            raise Skip("a terminal to print to needs os.openpty, which this platform does not have")
        import termios

        reading, writing = os.openpty()
        self.file = os.fdopen(
            writing, "w", buffering=1
        )  # a line at once, as Python's stdout has it
        """Its side to write to: a terminal to whoever asks, 24 rows of 80 columns."""
        self.text = ""
        """All that arrived, from `close` on."""
        try:
            termios.tcsetwinsize(writing, (ROWS, COLUMNS))
            self._reader = far_end(
                "the terminal's program", "terminal", (reading,), descriptor=reading
            )
        except BaseException:
            self.file.close()
            raise
        finally:
            os.close(reading)

    def write(self, line: str) -> None:
        """Print a line; waits while the terminal is too far behind."""
        print(line, file=self.file)  # two calls and one flush, as in a script

    @property
    def arrived(self) -> list[str]:
        """The lines that arrived, from `close` on."""
        return self.text.splitlines()

    def close(self) -> None:
        """Let the terminal take what it was sent, and end it."""
        if self.file.closed:
            return
        with contextlib.suppress(OSError):
            self.file.write(far_ends.END)
            self.file.flush()
        self.text = "".join(take_arrived(self._reader)["arrived"])
        with contextlib.suppress(OSError):
            self.file.close()
