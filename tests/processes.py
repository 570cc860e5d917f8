"""Processes that a test started, told from what earlier tests keep running beside it."""

import os
import signal
import threading
import time
from collections.abc import Callable

import psutil

PATIENCE_S = 300.0  # how long to look for something that must happen; not a speed limit


def until(condition: Callable[[], object], what: Callable[[], object] = str) -> None:
    """Wait for a condition; `what` is said where it does not come true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.02)


def newest_child() -> psutil.Process:
    """Find the child of this process that was started last."""
    return max(psutil.Process().children(), key=lambda child: (child.create_time(), child.pid))


def left() -> set[object]:
    """List what this process has: open files, threads, processes below it, known helpers.

    What earlier tests left may end meanwhile, so compare with <=.
    """
    this = psutil.Process()
    return {
        *(f"file {number}" for number in os.listdir("/proc/self/fd")),  # noqa: PTH208
        *threading.enumerate(),
        *this.children(recursive=True),
        os.environ.get("LABKIT_HELPERS"),
    }


class AfterLooks(threading.Event):
    """Is set after so many looks at it, as if a user cancelled meanwhile."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


class KilledAfter(AfterLooks):
    """Kills this process after so many looks at it."""

    def is_set(self) -> bool:
        if super().is_set():
            signal.raise_signal(signal.SIGKILL)
        return False
