"""Run jobs in fresh processes, started by `labkit.runs.server`, and leave none of them behind.

    with Launcher(log) as launcher:
        measured = launcher.run("measure", settings=settings)

A notebook's kernel has many threads, so it cannot be forked safely: the server is a program of
its own and forks there. It takes two seconds to start, so one stays ready for the next launcher.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.contracts import Cancelled, Skip
from labkit.machine import hardware, shared_memory
from labkit.resolve import own_parts


class TrialFailed(RuntimeError):  # noqa: N818 - what failed is the trial, not the launcher
    """A job raised an error; the text is its reason, the traceback is in the log."""


class TrialKilled(TrialFailed):
    """A process was killed or ended without an answer: the job may succeed when it is run again."""


# The server that waits for the next launcher, its temporary folder, and what it was started with.
_ready: tuple[subprocess.Popen, str | None, dict[str, Any]] | None = None


class Launcher:
    """Starts the server, sends it requests, waits for answers and ends it.

    Args:
        log: file that takes what the processes print.
        cancel: set by another thread to stop.

    Raises:
        ValueError: one of the user's own parts cannot be sent to another process.
    """

    def __init__(self, log: Path, cancel: threading.Event | None = None) -> None:
        self._own = base64.b64encode(own_parts()).decode()
        self._log = log.open("ab")
        self._cancel = cancel
        self._fork = hardware.can_fork()  # else a program of its own does each job
        self._started_with: dict[str, Any] = {}
        self._process: subprocess.Popen | None = None
        self._pending = b""
        self._requests = 0
        self._temporary: str | None = None

    def __enter__(self) -> Launcher:
        """Nothing is started before the first request."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all that was started, except a server without a job: it serves the next launcher."""
        self._cancel = None  # there is no job left to stop
        if not self._leave_ready():
            self.close()
        self._log.close()

    def run(self, job: str, **arguments: Any) -> Any:
        """Run one job in a fresh process and wait for its result.

        Args:
            job: a key of `server.JOBS`.
            **arguments: of that function: settings, and what JSON can hold.

        Returns:
            What the function returned, through JSON.

        Raises:
            Skip: the job cannot run on this machine.
            TrialFailed: it raised an error.
            TrialKilled: its process, a loader worker or the server was killed; the next request
                is answered again.
            Cancelled: `cancel` was set; nothing of it is left running.
        """
        process = self._start()
        self._requests += 1
        request = {
            "number": self._requests,
            "job": job,
            "arguments": arguments,
            "own": self._own,
        }
        try:
            process.stdin.write(json.dumps(request, default=asdict).encode() + b"\n")
            process.stdin.flush()
            answer = self._next_answer(process)
        except BrokenPipeError:
            self.close()
            raise TrialKilled("the trial server ended unexpectedly; run again") from None
        except (KeyboardInterrupt, Cancelled):
            self.close()  # closing its input ends the server and the job's whole group
            raise
        if answer is None:
            self.close()
            raise TrialKilled("the trial's process ended without a result; see worker.log")
        if not self._fork:
            self.close()
        if answer["outcome"] == "done":
            return answer["value"]
        errors = {"skipped": Skip, "failed": TrialFailed, "killed": TrialKilled}
        raise errors[answer["outcome"]](answer["value"])

    def close(self) -> None:
        """End the server; it ends the job it may be running."""
        process, self._process = self._process, None
        self._pending = b""
        if process is not None:
            _end(process, self._temporary)

    def _start(self) -> subprocess.Popen:
        if self._process is None or self._process.poll() is not None:
            self.close()
            # The user's own parts may come from any module that can be imported here; in a notebook
            # also from the working directory, which comes after the standard library.
            cwd = str(Path.cwd())
            path = os.pathsep.join(folder or cwd for folder in sys.path)
            how: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": path}, "cwd": cwd}
            self._started_with = how
            self._process, self._temporary = _take_ready(how) if self._fork else (None, None)
            if self._process is None:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",  # the working directory may hold a random.py
                        "-m",
                        "labkit.runs.server",
                        "--serve" if self._fork else "--once",
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    start_new_session=True,  # Ctrl-C in a terminal reaches the runner alone
                    **how,
                )
            if self._fork:
                log = str(Path(self._log.name).absolute())
                self._process.stdin.write(json.dumps(log).encode() + b"\n")
        return self._process

    def _leave_ready(self) -> bool:
        """Leave the server to the next launcher, if it can serve one and none waits already."""
        global _ready
        process = self._process
        if process is None or not self._fork or _ready is not None:
            return False
        try:
            process.stdin.write(b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return False
        if not any("ended" in message for message in self._messages(process)):
            return False
        _ready, self._process = (process, self._temporary, self._started_with), None
        return True

    def _next_answer(self, process: subprocess.Popen) -> dict | None:
        """Wait for the answer to the latest request; None where the server ends without one."""
        for message in self._messages(process):
            self._temporary = message.get("temporary", self._temporary)
            # The server also reports the end of a job whose answer has been taken.
            if message.get("request") == self._requests:
                return message
        return None

    def _messages(self, process: subprocess.Popen) -> Iterator[dict]:
        while (line := self._next_line(process)) is not None:
            try:
                yield json.loads(line)
            except ValueError:
                continue  # of a job killed while it wrote; the server's own answer follows

    def _next_line(self, process: subprocess.Popen) -> bytes | None:
        while b"\n" not in self._pending:
            if self._cancel is not None and self._cancel.is_set():
                raise Cancelled
            # A pipe cannot be waited for with a timeout on Windows: there Cancel waits.
            if sys.platform != "win32" and not select.select([process.stdout], [], [], 0.1)[0]:
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        return line


@atexit.register
def end_ready_server() -> None:
    """End the server that waits for the next launcher."""
    _take_ready({})


def _take_ready(wanted: dict[str, Any]) -> tuple[subprocess.Popen | None, str | None]:
    """Return the server that waits and its temporary folder.

    Where it was started with something else, it is ended and there is none.
    """
    global _ready
    ready, _ready = _ready, None
    if ready is None:
        return None, None
    process, temporary, started_with = ready
    if started_with == wanted and process.poll() is None:
        return process, temporary
    _end(process, temporary)
    return None, None


def _end(process: subprocess.Popen, temporary: str | None) -> None:
    """Close a server's input, and wait until it and all that could answer for it have ended."""
    try:
        process.communicate(timeout=5.0)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:  # Windows
                process.kill()
        process.communicate()
    if temporary is not None:  # a server that was killed has not removed it
        shared_memory.remove_left(temporary)
        shutil.rmtree(temporary, ignore_errors=True)
