"""Reports of a training loop: a line every so many steps to a log file, a terminal or a server.

    loop ─ line ─▶ logging.Handler ─▶ file │ pseudo-terminal │ metric server (HTTP)
    loop ─ line ─▶ queue ─▶ thread of a QueueListener ─▶ the same, in the background

`write` blocks for as long as the same report blocks in real training.  A progress bar is drawn on
a pseudo-terminal, too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import secrets
import sys
import threading
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPException
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from typing import NamedTuple

from labkit.contracts import Part, Skip
from labkit.machine.helper import Helper
from labkit.machine.late_server import PROGRAM
from labkit.settings import IN_THREAD, WITHOUT_LOSS, pick

HTTP = re.compile(r"http_(\d{1,5})ms")
END = b"\0"  # ends a terminal's text: a closed one stays open in forked loader workers


class Reports:
    """Writes the reports of one trial.

    Args:
        name: as of `read_sink`.
        folder: for files.

    Raises:
        Skip: the sink does not exist on this platform, or its server does not start.
    """

    def __init__(self, name: str, folder: Path) -> None:
        sink = read_sink(name)
        delay = HTTP.fullmatch(sink.kind)
        self.shows_loss = sink.shows_loss
        self._sink = sink.kind
        self._handler = MetricClient(int(delay[1])) if delay else SINKS[sink.kind](folder)
        # logging would print it and go on
        self._handler.handleError = self._note_failure  # type: ignore[method-assign]
        self._failure = ""
        self._logger = logging.Logger("reports")  # getLogger's would outlive the trial
        self._queue: queue.Queue = queue.Queue()
        self._listener = QueueListener(self._queue, self._handler) if sink.is_in_thread else None
        if self._listener:
            self._logger.addHandler(QueueHandler(self._queue))
            self._listener.start()
        else:
            self._logger.addHandler(self._handler)

    def write(self, line: str) -> None:
        """Write a line, or hand it to the thread.

        Raises:
            OSError: this report, or in the background an earlier one, was not written.
        """
        self._logger.info("%s", line)
        self._raise_failure()

    def finish(self) -> None:
        """Wait until all reports are written.

        Raises:
            OSError: one was not.
        """
        self._queue.join()
        self._raise_failure()

    def close(self) -> None:
        """Write what is left, and close the sink."""
        if self._listener:
            self._listener.stop()
        with contextlib.suppress(OSError):  # of a full disk, which `write` has raised
            self._handler.close()

    def _note_failure(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        self._failure = getattr(error, "strerror", None) or str(error) or type(error).__name__

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, ""
        if failure:
            raise OSError(
                f"report must reach {self._sink}, got {failure}; set report_to to another sink"
            )


class Terminal:
    """A pseudo-terminal of 24 rows of 80 columns; a thread reads what is written to it.

    A terminal that also draws, or sends lines over a network, takes longer.

    Raises:
        Skip: the platform has no pseudo-terminals.
    """

    def __init__(self) -> None:
        if not hasattr(os, "openpty"):
            raise Skip("a terminal needs os.openpty, which this platform does not have")
        import termios

        self._reading, writing = os.openpty()
        termios.tcsetwinsize(writing, (24, 80))  # rows and columns
        self.file = os.fdopen(writing, "w", buffering=1)  # a line at once, as Python's stdout
        self._thread = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read what is left and close the terminal."""
        if not self.file.closed:
            self.file.write(END.decode())
            self.file.close()
            self._thread.join()
            os.close(self._reading)

    def _read(self) -> None:
        while not os.read(self._reading, 1 << 16).endswith(END):
            pass


class TerminalHandler(logging.StreamHandler):
    """Prints to a terminal of its own."""

    def __init__(self) -> None:
        self.terminal = Terminal()
        super().__init__(self.terminal.file)

    def close(self) -> None:
        """Close the terminal."""
        self.terminal.close()
        super().close()


class MetricClient(logging.Handler):
    """Posts each report to a metric server on this machine and waits for its answer.

    The connection is kept, as metric clients do; clients built on requests take a few tenths of
    a millisecond more.

    Args:
        delay_ms: how long the server waits before it answers.

    Raises:
        Skip: the server does not start.
    """

    def __init__(self, delay_ms: int) -> None:
        super().__init__()
        self._path = f"/{secrets.token_urlsafe(16)}"
        late = {"files": [], "secret": self._path[1:], "bytes_per_s": 1, "rtt_s": delay_ms / 1e3}
        self._server = Helper("the metric server", PROGRAM, late)
        self._connection = HTTPConnection("127.0.0.1", self._server.ready["port"])

    def emit(self, record: logging.LogRecord) -> None:
        """Post one report."""
        body = json.dumps({"report": self.format(record)}).encode()
        try:
            self._connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            self._connection.getresponse().read()
        except (OSError, HTTPException):
            self._connection.close()  # the next report opens a new one
            self.handleError(record)

    def close(self) -> None:
        """Close the connection and end the server."""
        self._connection.close()
        self._server.close()
        super().close()


def log_file(folder: Path) -> logging.FileHandler:
    """Open reports.log: a line with the time for each report, flushed."""
    handler = logging.FileHandler(folder / "reports.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    return handler


SINKS: dict[str, Callable[[Path], logging.Handler]] = {
    "file": log_file,
    "terminal": lambda folder: TerminalHandler(),
}


class Sink(NamedTuple):
    """Where reports go, and how."""

    kind: str
    """One of `SINKS`, or http_<delay>ms."""
    shows_loss: bool
    """Reports contain the loss, for which the host waits."""
    is_in_thread: bool
    """A thread writes, and the loop continues."""


def read_sink(name: str) -> Sink:
    """Read a sink: file, http_50ms, … with "_without_loss" and "_thread", or one, after it.

    Raises:
        ValueError: there is no such sink; the message lists the choices.
    """
    with_loss_or_not = name.removesuffix(IN_THREAD)
    kind = with_loss_or_not.removesuffix(WITHOUT_LOSS)
    if kind not in SINKS and not HTTP.fullmatch(kind):
        pick({**SINKS, "http_<delay>ms, such as http_50ms": None}, name, "report_to")
    return Sink(kind, kind == with_loss_or_not, with_loss_or_not != name)


class TqdmBar:
    """tqdm on a terminal of its own.

    tqdm draws ten times a second.  With a loss it draws at every step: `set_postfix` draws at once.

    Args:
        shows_loss: whether `update` is to be given the loss.

    Raises:
        Skip: the platform has no pseudo-terminals.
    """

    def __init__(self, shows_loss: bool = False) -> None:
        from tqdm import tqdm

        self.shows_loss = shows_loss

        class Bar(tqdm):
            monitor_interval = 0  # tqdm's monitor thread would outlive the bar

        self.terminal = Terminal()
        self._bar = Bar(file=self.terminal.file)

    def update(self, loss: float | None) -> None:
        """Show the loss, if there is one, and count a step."""
        if loss is not None:
            self._bar.set_postfix(loss=loss)
        self._bar.update()

    def close(self) -> None:
        """Draw the bar once more and close the terminal."""
        self._bar.close()
        self.terminal.close()


PROGRESS: dict[str, Callable[[], TqdmBar] | None] = {
    "none": None,
    "tqdm": Part(TqdmBar, library="tqdm"),
    "tqdm_loss": Part(partial(TqdmBar, shows_loss=True), library="tqdm"),
}
