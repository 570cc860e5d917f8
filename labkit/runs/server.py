"""Worker: the process that runs every job of a run in a fresh process.

    runner ──request line──▶ server ──fork──▶ trial (own process group)
           ◀──event lines───────────────────────┘

The server has torch, OpenCV and labkit loaded and forks once per request, so a
trial starts in tens of milliseconds instead of two seconds.  A trial ends its
whole group when the pipe to the server closes; the server ends the trial when
its own input closes: Cancel, a kernel restart or a crash leave no process.
Without fork (Windows, macOS) each request gets a spawned process, same code.
Every event names its request: the server says of each trial that it ended, answered or not.
Trap: CUDA must be first touched in the trial, never in the server.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from multiprocessing.util import get_temp_dir

from labkit.contracts import Skip
from labkit.machine import shared_memory
from labkit.settings import Settings

# What the kernel's out-of-memory killer leaves behind says nothing of memory.
IF_OUT_OF_MEMORY = "if the kernel ran out of memory, use fewer workers or a smaller batch_size"


def _settings(values: dict) -> Settings:
    return Settings(**values)


def _measure(settings: dict, excluded: list[int], compute_s_per_image: float | None, own: bytes):
    from labkit.runs.timing import measure

    measured = measure(
        _settings(settings),
        excluded=frozenset(excluded),
        compute_s_per_image=compute_s_per_image,
        own=own,
    )
    return {**measured, "epochs": [asdict(epoch) for epoch in measured["epochs"]]}


def _calibrate(settings: dict, excluded: list[int], own: bytes):
    from labkit.runs.calibration import calibrate

    return calibrate(_settings(settings), excluded=frozenset(excluded), own=own)


def _check_emulator(settings: dict, compute_s_per_image: float | None, own: bytes):
    from labkit.runs.calibration import free_loader_utilization

    return free_loader_utilization(_settings(settings), compute_s_per_image)


def _compare_work(variants: dict[str, dict], baseline: str, excluded: list[int], own: bytes):
    from labkit.runs.checks import compare_work

    complete = {label: _settings(values) for label, values in variants.items()}
    return compare_work(complete, baseline, excluded=frozenset(excluded))


def _check_rates(settings: dict, excluded: list[int], own: bytes):
    from labkit.runs.staging import check_rates

    return check_rates(_settings(settings), frozenset(excluded))


def _count_reads(settings: dict, excluded: list[int], own: bytes):
    from labkit.runs.reads import count_reads

    return count_reads(_settings(settings), frozenset(excluded))


def _find_bad_images(settings: dict, start: int, stop: int, decoders: list[str], own: bytes):
    from labkit.pipeline import shuffled_images
    from labkit.runs.checks import find_bad_images

    complete = _settings(settings)
    indices = [int(index) for index in shuffled_images(complete)[start:stop]]
    bad, changed = find_bad_images(complete, indices, decoders)
    return {"bad": sorted(bad.items()), "changed": changed}


def _search_batch(settings: dict, own: bytes):
    from labkit.runs.batch_search import search_on_cuda

    return search_on_cuda(_settings(settings), own=own)


def _compare_operations(settings: dict, tasks: dict[str, dict], own: bytes):
    from labkit.runs.operation_trials import compare_operations

    return compare_operations(_settings(settings), tasks)


def _time_operation(settings: dict, task: dict, seconds: float, own: bytes):
    from labkit.runs.operation_trials import time_operation

    return time_operation(_settings(settings), task, seconds)


def _describe_back_ends(own: bytes):
    from labkit.parts.decoding import jpeg_back_ends

    return jpeg_back_ends()


JOBS: dict[str, Callable] = {
    "measure": _measure,
    "calibrate": _calibrate,
    "check_emulator": _check_emulator,
    "compare_work": _compare_work,
    "check_rates": _check_rates,
    "count_reads": _count_reads,
    "find_bad_images": _find_bad_images,
    "search_batch": _search_batch,
    "compare_operations": _compare_operations,
    "time_operation": _time_operation,
    "describe_back_ends": _describe_back_ends,
}


def serve() -> None:
    """Fork a trial for every request line until the input ends."""
    events = _take_stdout()
    _share_temporary_folder(events)
    _preload()
    requests = sys.stdin.buffer
    while line := _read_line(requests.fileno()):
        _open_data(line)
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
        reason = _await_trial(pid, requests.fileno())
        os.close(held)
        shared_memory.remove_left(get_temp_dir())
        # It may have been killed in the middle of its answer: that is no part of this line.
        os.write(events, b"\n")
        number = json.loads(line)["request"]
        _emit(events, request=number, event="ended", reason=reason, traceback="")


def _open_data(line: bytes) -> None:
    """Open the data before forking: all trials inherit it (118,287 annotations take 5 s)."""
    from labkit.resolve import open_source
    from labkit.runs import operation_trials

    try:
        arguments = json.loads(line)["arguments"]
        settings = Settings(**arguments["settings"])
        open_source(settings)
        if "task" in arguments:
            operation_trials.load(settings, arguments["task"])
    except Exception:  # the trial meets it again and reports it
        return


def _await_trial(pid: int, requests: int) -> str:
    """Wait for a trial to end, and end it if the runner goes away.

    Returns:
        What to say of it if it has not answered.
    """
    ended, end = os.pipe()

    def wait() -> None:  # a pidfd would need Linux 5.3, and containers may refuse it
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(end)

    waiting = threading.Thread(target=wait)
    waiting.start()
    poll = select.poll()
    poll.register(ended, 0)
    # The next request may already be waiting there: only the closing of the pipe counts.
    poll.register(requests, 0)
    abandoned = ended not in {descriptor for descriptor, _ in poll.poll()}
    if abandoned:
        os.kill(pid, signal.SIGKILL)  # it may have no group yet
    waiting.join()
    os.close(ended)
    # Loader workers share the trial's group: end the group while the pid is still reserved.
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody but the ended trial itself
    _, status = os.waitpid(pid, 0)
    if abandoned:
        shared_memory.remove_left(get_temp_dir())
        raise SystemExit(0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        advice = IF_OUT_OF_MEMORY if name == "SIGKILL" else "see worker.log"
        return f"the trial's process was killed by {name}; {advice}"
    return "the trial's process ended without a result; see worker.log"


def run_once() -> None:
    """Answer one request in this process: the way without fork."""
    events = _take_stdout()
    _share_temporary_folder(events)
    line = sys.stdin.buffer.readline()
    if line:
        _end_when_closed(sys.stdin.fileno())
        _answer(line, events)
    # Skips waiting for the watching thread and for loader workers that persist.
    _end_children()
    shared_memory.remove_left(get_temp_dir())
    os._exit(0)


def _answer(line: bytes, events: int) -> None:
    """Run the job of a request and emit its one final event."""
    request = json.loads(line)
    emit = partial(_emit, events, request=request["request"])
    try:
        own = base64.b64decode(request["own"])
        from labkit.resolve import register

        register(own)
        result = JOBS[request["job"]](**request["arguments"], own=own)
        emit(event="done", result=result)
    except Skip as reason:
        emit(event="skipped", reason=str(reason))
    except BaseException as error:  # whatever it is, the runner must hear of it
        reason = _no_room(error, request["arguments"])
        if not reason:
            told = isinstance(error, ValueError) and not str(error).startswith("Caught ")
            reason = str(error) if told else _one_line(error)
        event = "ended" if IF_OUT_OF_MEMORY in reason else "failed"
        emit(event=event, reason=reason, traceback=traceback.format_exc())


def _no_room(error: BaseException, arguments: dict) -> str:
    """Name the batch where memory ran out; empty where it did not, or for no batch."""
    from labkit.runs.checks import out_of_memory

    try:
        return out_of_memory(error, _settings(arguments["settings"]))
    except (KeyError, TypeError):  # a job that makes none
        return ""


def _one_line(error: BaseException) -> str:
    from labkit.runs.checks import one_line

    line = one_line(error)
    # A worker that is killed while it hands over a batch breaks the connection it used.
    if line.startswith(("RuntimeError: DataLoader worker", "ConnectionResetError", "EOFError")):
        line += f"; {IF_OUT_OF_MEMORY}"
    if "DataLoader worker" in str(error) and "No space left" in str(error):
        line = shared_memory.why_full() or line
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


def _share_temporary_folder(events: int) -> None:
    """Have one folder for the sockets of all loader workers, and tell the runner of it.

    Each would make its own, and leave it behind when it is killed.
    """
    folder = get_temp_dir()  # what is forked from here inherits it
    shared_memory.open_roll(folder)
    _emit(events, event="started", temporary=folder)


def _preload() -> None:
    """Import what trials need, but touch no GPU."""
    for module in (
        "cv2",
        "psutil",
        "torch.utils.data",
        "labkit.runs.calibration",
        "labkit.runs.checks",
        "labkit.parts.training.model",
    ):
        importlib.import_module(module)


def _end_when_closed(lifeline: int) -> None:
    """End this process's whole group once nobody holds the other end of the pipe."""

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        try:
            _end_children()
            shared_memory.remove_left(get_temp_dir())
            shutil.rmtree(get_temp_dir(), ignore_errors=True)
        finally:  # whatever happened to the children meanwhile
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
