"""Launcher: asks `labkit.runs.server` for one fresh process per job, and leaves none behind.

    with Launcher(log, fork=True) as launcher:
        measured = launcher.run("measure", arguments)

Main trap: the kernel that runs a notebook is full of threads and must never be
forked itself; so the server is started as a program of its own and forks there.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from labkit.contracts import Cancelled, Skip
from labkit.machine import shared_memory

CANCEL_POLL_S = 0.1
GRACE_S = 5.0  # how long a server may take to end by itself


class TrialFailed(RuntimeError):  # noqa: N818 - what failed is the trial, not the launcher
    """A request failed; the text is the reason, `traceback` the rest."""

    def __init__(self, reason: str, traceback_text: str = "") -> None:
        super().__init__(reason)
        self.traceback = traceback_text


class TrialKilled(TrialFailed):
    """A process was killed or ended without an answer: it says nothing of what it was asked."""


class Launcher:
    """The runner's end: sends requests, waits for results, ends everything.

    Args:
        log: file that takes what the processes print to stderr.
        fork: fork trials from a server; False spawns one process per request.
        own: a person's own parts, from `tables.own_parts`.
    """

    def __init__(self, log: Path, *, fork: bool, own: bytes = b"") -> None:
        self._log = log.open("ab")
        self._fork = fork
        self._own = base64.b64encode(own).decode()
        self._process: subprocess.Popen | None = None
        self._pending = b""
        self._requests = 0
        self._temporary: str | None = None

    def __enter__(self) -> Launcher:
        """Nothing is started before the first request."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and what it started."""
        self.close()
        self._log.close()

    def run(
        self, job: str, arguments: dict[str, object], cancel: threading.Event | None = None
    ) -> object:
        """Run one job in a fresh process and wait for its result.

        Args:
            job: a key of `worker.JOBS`.
            arguments: what JSON can hold.
            cancel: set by another thread to stop.

        Returns:
            What the job returned, through JSON.

        Raises:
            Skip: the job cannot run on this machine.
            TrialFailed: it raised.
            TrialKilled: its process, a loader worker or the server was killed; the next request
                is answered again.
            Cancelled: `cancel` was set; nothing of it is left running.
        """
        process = self._started()
        self._requests += 1
        request = {
            "request": self._requests,
            "job": job,
            "arguments": arguments,
            "own": self._own,
        }
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            return self._result(process, cancel)
        except BrokenPipeError:
            self.close()
            raise TrialKilled("the trial server ended unexpectedly; run again") from None
        except (KeyboardInterrupt, Cancelled):
            self.close()  # closing its input ends the server and the trial's whole group
            raise

    def close(self) -> None:
        """End the server; it ends the trial it may be running."""
        process, self._process = self._process, None
        self._pending = b""
        if process is None:
            return
        with contextlib.suppress(BrokenPipeError):  # it may be gone already
            process.stdin.close()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        if self._temporary is not None:  # a server that was killed has not removed it
            shared_memory.remove_left(self._temporary)
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _started(self) -> subprocess.Popen:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "labkit.runs.server", "--serve" if self._fork else "--once"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C in a terminal reaches the runner alone
                # A person's own parts may come from any module that is importable here.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        return self._process

    def _result(self, process: subprocess.Popen, cancel: threading.Event | None) -> object:
        while True:
            event = self._next_event(process, cancel)
            if event is None:
                self.close()
                raise TrialKilled("the trial's process ended without a result; see worker.log")
            if event.get("event") == "started":
                self._temporary = event["temporary"]
            if event.get("request") != self._requests:
                continue  # the end of a trial whose answer has been taken
            if not self._fork:
                self.close()
            if event["event"] == "done":
                return event["result"]
            if event["event"] == "skipped":
                raise Skip(event["reason"])
            if event["event"] == "ended":
                raise TrialKilled(event["reason"], event["traceback"])
            raise TrialFailed(event["reason"], event["traceback"])

    def _next_event(self, process: subprocess.Popen, cancel: threading.Event | None) -> dict | None:
        while b"\n" not in self._pending:
            if cancel is not None and cancel.is_set():
                raise Cancelled
            # A pipe cannot be waited for with a timeout on Windows: there Cancel waits.
            if (
                sys.platform != "win32"
                and not select.select([process.stdout], [], [], CANCEL_POLL_S)[0]
            ):
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        try:
            return json.loads(line)
        except ValueError:
            return {}  # what a trial was writing when it was killed; why it was follows
