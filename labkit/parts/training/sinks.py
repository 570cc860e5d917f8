"""Sinks: where a training loop's reports go, and how long it waits there.

    loop ─ line ─▶ write ─▶ log file │ terminal │ notebook │ metric server │ nothing

`write` blocks for as long as the same report blocks in real training.  Main trap: most of what a
report seems to cost is `.item()`, the host waiting for the device; `nothing` takes the line and
drops it, so that this can be told apart.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from labkit.parts.training.metric_server import EmulatedServer
from labkit.parts.training.notebook_output import NotebookOutput
from labkit.parts.training.terminal import Terminal
from labkit.settings import pick

FORM = "http_<delay>ms, as http_50ms"
_HTTP = re.compile(r"http_(\d{1,5})ms")
LOG_NAME = "reports.log"


class ReportFailed(Exception):  # noqa: N818 - whether it is an error is for the loop to say
    """A report did not arrive; the text says where to, why and what to do."""


class Sink(Protocol):
    """Takes reports; `where` and `next_step` are words for messages, if it has them."""

    def write(self, line: str) -> None:
        """Take one report; blocks for as long as it blocks in real training."""

    def close(self) -> None:
        """End whatever was started, whatever happened; more than once does no harm."""


class _Handler(logging.FileHandler):
    """A log file that raises; logging itself prints a traceback and goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        raise  # the error that is being handled where logging calls this


class LogFile:
    """A line with the time, formatted by logging, and flushed for every report.

    Args:
        folder: where `reports.log` is written.
    """

    next_step = "make room or report elsewhere"

    def __init__(self, folder: Path) -> None:
        self.where = str(folder / LOG_NAME)
        self._handler = _Handler(self.where, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        # Of its own: loggers asked for by name stay for as long as the process does.
        self._logger = logging.Logger("reports")
        self._logger.addHandler(self._handler)

    def write(self, line: str) -> None:
        """Log a line."""
        self._logger.info("%s", line)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # `write` has said so
            self._handler.close()


class Nothing:
    """Reports are not written."""

    def write(self, line: str) -> None:
        """Drop a line."""

    def close(self) -> None:
        """Nothing to end."""


SINKS: dict[str, Callable[[Path], Sink]] = {
    "nothing": lambda folder: Nothing(),
    "file": LogFile,
    "terminal": lambda folder: Terminal(),
    "notebook": lambda folder: NotebookOutput(),
}
_LABELS = {
    "nothing": "reports are not written",
    "file": "log file",
    "terminal": "pseudo-terminal (draws nothing)",
    "notebook": "notebook output (emulated server)",
}


def open_sink(name: str, folder: Path) -> Sink:
    """Open a sink by its name.

    Args:
        name: one of `SINKS`, or a metric server's as `FORM` says.
        folder: a scratch folder of the trial.

    Returns:
        A sink whose `write` and `close` raise nothing but `ReportFailed`.

    Raises:
        ValueError: the name is unknown; the message lists the choices.
        Skip: it cannot be had on this machine.
        ReportFailed: it cannot be opened.
    """
    check_name(name)
    delay_ms = parse(name)
    sink = None
    try:
        sink = SINKS[name](folder) if delay_ms is None else EmulatedServer(delay_ms)
    except OSError as error:
        raise _failed(name, sink, error) from error
    return _Worded(name, sink)


def check_name(name: str) -> None:
    """Refuse what is neither in the table nor a metric server.

    Raises:
        ValueError: the message lists the choices.
    """
    if parse(name) is None:
        pick({**SINKS, **({} if name in SINKS else {FORM: None})}, name, "report_to")


def parse(name: str) -> int | None:
    """Take a metric server's delay in ms from a name; None where it is no such name."""
    found = _HTTP.fullmatch(name)
    return int(found[1]) if found and name not in SINKS else None


def label_of(name: str) -> str:
    """Say what a sink is, and what of it is stood in for: emulated metric server (50 ms)."""
    delay_ms = parse(name)
    return (
        _LABELS.get(name, name) if delay_ms is None else f"emulated metric server ({delay_ms} ms)"
    )


class _Worded:
    """A sink whose failures are one line each."""

    def __init__(self, name: str, sink: Sink) -> None:
        self._name, self.sink = name, sink

    def write(self, line: str) -> None:
        try:
            self.sink.write(line)
        except Exception as error:  # a person's own sink may raise anything
            raise _failed(self._name, self.sink, error) from error

    def close(self) -> None:
        try:
            self.sink.close()
        except Exception as error:
            raise _failed(self._name, self.sink, error) from error


def _failed(name: str, sink: Sink | None, error: Exception) -> ReportFailed:
    where = getattr(sink, "where", f"the sink {name!r}")
    next_step = getattr(sink, "next_step", "mend it or report elsewhere")
    text = " ".join((getattr(error, "strerror", None) or str(error)).split())
    if isinstance(error, OSError):  # "Connection refused"; a name of a class says no more
        why = text[:1].lower() + text[1:] if text else type(error).__name__
    else:
        why = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return ReportFailed(f"report must reach {where}, got {why}; {next_step}")
