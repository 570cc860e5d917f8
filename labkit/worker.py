"""Worker: runs every trial in a fresh process, and leaves nothing behind.

    runner ──request line──▶ server ──fork──▶ trial (own process group)
           ◀──event lines───────────────────────┘

The server has torch, OpenCV and labkit loaded and forks once per request, so a
trial starts in tens of milliseconds instead of two seconds.  A trial ends its
whole group when the pipe to the server closes; the server ends the trial when
its own input closes: Cancel, a kernel restart or a crash leave no process.
Without fork (Windows, macOS) each request gets a spawned process, same code.
Trap: CUDA must be first touched in the trial, never in the server.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from labkit.settings import MODES, Settings
from labkit.trial import Skip

CANCEL_POLL_S = 0.1
GRACE_S = 5.0  # how long a server may take to end by itself


class Cancelled(Exception):  # noqa: N818 - a request, not an error
    """The person cancelled; everything that was started has been ended."""


class TrialFailed(Exception):  # noqa: N818
    """A request failed; the text is the reason, `traceback` the rest."""

    def __init__(self, reason: str, traceback_text: str = "") -> None:
        super().__init__(reason)
        self.traceback = traceback_text


class Worker:
    """The runner's end: sends requests, waits for results, ends everything.

    Args:
        log: file that takes what the processes print to stderr.
        fork: fork trials from a server; False spawns one process per request.
        own: a person's own parts, from `pipeline.own_parts`.
    """

    def __init__(self, log: Path, *, fork: bool, own: bytes = b"") -> None:
        self._log = log.open("ab")
        self._fork = fork
        self._own = base64.b64encode(own).decode()
        self._process: subprocess.Popen | None = None
        self._pending = b""

    def __enter__(self) -> Worker:
        """Nothing is started before the first request."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and what it started."""
        self.close()

    def run(
        self, job: str, arguments: dict[str, object], cancel: threading.Event | None = None
    ) -> object:
        """Run one job in a fresh process and wait for its result.

        Args:
            job: a key of `JOBS`.
            arguments: what JSON can hold.
            cancel: set by another thread to stop.

        Returns:
            What the job returned, through JSON.

        Raises:
            Skip: the job cannot run on this machine.
            TrialFailed: it raised, or was killed.
            Cancelled: `cancel` was set; nothing of it is left running.
        """
        process = self._started()
        request = {"job": job, "arguments": arguments, "own": self._own}
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            if not self._fork:
                process.stdin.flush()
            return self._result(process, cancel)
        except BrokenPipeError:
            self.close()
            raise TrialFailed("the trial server ended unexpectedly; run again") from None
        except (KeyboardInterrupt, Cancelled):
            self.close()  # closing its input ends the server and the trial's whole group
            raise

    def close(self) -> None:
        """End the server; it ends the trial it may be running."""
        process, self._process = self._process, None
        self._pending = b""
        if process is None:
            return
        process.stdin.close()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _started(self) -> subprocess.Popen:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "labkit.worker", "--serve" if self._fork else "--once"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C in a terminal reaches the runner alone
            )
        return self._process

    def _result(self, process: subprocess.Popen, cancel: threading.Event | None) -> object:
        while True:
            event = self._next_event(process, cancel)
            if event is None:
                self.close()
                raise TrialFailed("the trial's process ended without a result; see worker.log")
            if event["event"] in ("done", "skipped", "failed") and not self._fork:
                self.close()
            if event["event"] == "done":
                return event["result"]
            if event["event"] == "skipped":
                raise Skip(event["reason"])
            if event["event"] == "failed":
                raise TrialFailed(event["reason"], event.get("traceback", ""))

    def _next_event(self, process: subprocess.Popen, cancel: threading.Event | None) -> dict | None:
        while b"\n" not in self._pending:
            if cancel is not None and cancel.is_set():
                raise Cancelled
            # A pipe cannot be waited for with a timeout on Windows: there Cancel waits.
            if sys.platform != "win32" and not select.select(
                [process.stdout], [], [], CANCEL_POLL_S
            )[0]:
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        return json.loads(line)


def _settings(values: dict) -> Settings:
    return Settings(**values)


def _measure(settings: dict, excluded: list[int], compute_s_per_image: float | None, own: bytes):
    from labkit.timing import measure

    measured = measure(
        _settings(settings),
        excluded=frozenset(excluded),
        compute_s_per_image=compute_s_per_image,
        own=own,
    )
    return {**measured, "epochs": [asdict(epoch) for epoch in measured["epochs"]]}


def _calibrate(settings: dict, mode: str, excluded: list[int], own: bytes):
    from labkit.timing import calibrate

    return calibrate(_settings(settings), MODES[mode], excluded=frozenset(excluded), own=own)


def _check_emulator(settings: dict, compute_s_per_image: float | None, own: bytes):
    from labkit.timing import free_loader_utilization

    return free_loader_utilization(_settings(settings), compute_s_per_image)


def _compare_work(variants: dict[str, dict], baseline: str, excluded: list[int], own: bytes):
    from labkit.preflight import compare_work

    complete = {label: _settings(values) for label, values in variants.items()}
    return compare_work(complete, baseline, excluded=frozenset(excluded))


def _find_bad_images(settings: dict, start: int, stop: int, own: bytes):
    from labkit.preflight import find_bad_images
    from labkit.pipeline import shuffled_images

    complete = _settings(settings)
    indices = [int(index) for index in shuffled_images(complete)[start:stop]]
    bad, changed = find_bad_images(complete, indices)
    return {"bad": sorted(bad.items()), "changed": changed, "looked_at": len(indices)}


JOBS: dict[str, Callable] = {
    "measure": _measure,
    "calibrate": _calibrate,
    "check_emulator": _check_emulator,
    "compare_work": _compare_work,
    "find_bad_images": _find_bad_images,
}


def serve() -> None:
    """Fork a trial for every request line until the input ends."""
    events = _take_stdout()
    _preload()
    requests = sys.stdin.buffer
    while line := _read_line(requests.fileno()):
        # The trial reads from one end; when no one holds the other, it ends itself.
        lifeline, held = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(held)
            os.setsid()
            # The trial's loader workers must not keep the server's input open.
            os.dup2(os.open(os.devnull, os.O_RDONLY), requests.fileno())
            _end_when_closed(lifeline)
            _answer(line, events)
            os._exit(0)  # no clean-up code of libraries after the result: the server ends the group
        os.close(lifeline)
        _await_trial(pid, requests.fileno(), events)
        os.close(held)


def _await_trial(pid: int, requests: int, events: int) -> None:
    """Wait for a trial to end; end it if the runner goes away."""
    ended = os.pidfd_open(pid)
    readable, _, _ = select.select([ended, requests], [], [])
    os.close(ended)
    # Loader workers share the trial's group: end the group while the pid is still reserved.
    if ended not in readable:
        os.killpg(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody but the ended trial itself
    _, status = os.waitpid(pid, 0)
    if ended not in readable:
        raise SystemExit(0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        _emit(
            events,
            event="failed",
            reason=f"the trial's process was killed by {name}; if the kernel ran out of memory, "
            "use fewer workers or a smaller batch",
        )


def run_once() -> None:
    """Answer one request in this process: the way without fork."""
    events = _take_stdout()
    line = sys.stdin.buffer.readline()
    if line:
        _end_when_closed(sys.stdin.fileno())
        _answer(line, events)
    # Skips waiting for the watching thread and for loader workers that persist.
    _end_children()
    os._exit(0)


def _answer(line: bytes, events: int) -> None:
    """Run the job of a request and emit its one final event."""
    try:
        request = json.loads(line)
        own = base64.b64decode(request["own"])
        from labkit.pipeline import register

        register(own)
        result = JOBS[request["job"]](**request["arguments"], own=own)
        _emit(events, event="done", result=result)
    except Skip as reason:
        _emit(events, event="skipped", reason=str(reason))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the runner must hear of it
        reason = str(error) if isinstance(error, ValueError) else _one_line(error)
        _emit(events, event="failed", reason=reason, traceback=traceback.format_exc())


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    line = f"{type(error).__name__}: {text[0] if text else ''}"
    if "DataLoader worker" in str(error) and "killed" in str(error):
        line += "; if the kernel ran out of memory, use fewer workers or a smaller batch"
    return line


def _read_line(descriptor: int) -> bytes:
    """Read a line byte-exactly, so that `select` sees everything that is still unread."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(descriptor, 1 << 16)
        if not data:
            return b""
        line += data
    return line


def _take_stdout() -> int:
    """Keep stdout for events; whatever else is printed goes to stderr."""
    events = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return events


def _emit(events: int, **event: object) -> None:
    data = json.dumps(event).encode() + b"\n"
    while data:
        data = data[os.write(events, data) :]


def _preload() -> None:
    """Import what a trial needs, but touch no GPU."""
    import cv2
    import torch  # noqa: F401
    import torch.utils.data

    import labkit.parts.training.losses
    import labkit.parts.training.models
    import labkit.preflight
    import labkit.timing  # noqa: F401

    cv2.setNumThreads(0)


def _end_when_closed(lifeline: int) -> None:
    """End this process's whole group once nobody holds the other end of the pipe."""

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        _end_children()
        if hasattr(os, "killpg"):
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _end_children() -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.Error:
            continue  # ended by itself


if __name__ == "__main__":
    # Ctrl-C is the runner's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "--once" in sys.argv:
        run_once()
    else:
        serve()
