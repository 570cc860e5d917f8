"""The server: a process that runs every job in a fresh process.

    launcher ──log──▶ server ──fork──▶ server of a run ──fork──▶ job (own process group)
             ──requests, an empty line at the end──▶┘
             ◀──answers, end of the run──────────────────────────┘

The server has torch, OpenCV and labkit loaded and forks once per run and once per request, so that
a job starts in tens of milliseconds instead of two seconds. What a run has opened ends with the
run. A job ends its whole process group when its pipe to its server closes, and that one ends the
job when its own input closes: a cancelled or killed runner leaves no process. Where there is no
fork, each request gets a program of its own.

CUDA is initialized in the job only: a process forked afterwards could not use it.
"""

from __future__ import annotations

import base64
import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import traceback
from dataclasses import asdict, fields
from multiprocessing.util import get_temp_dir
from pathlib import Path

from labkit.contracts import Skip
from labkit.machine import procfs, shared_memory
from labkit.settings import Settings

# Function -> its module. A job gets the request's arguments, and returns what JSON can hold.
JOBS = {
    "measure": "labkit.runs.trial",
    "measure_rate": "labkit.runs.calibration",
    "gpu_rate": "labkit.runs.calibration",
    "find_bad_images": "labkit.runs.check_images",
    "compare_work": "labkit.runs.check_equal_work",
    "measure_psnr": "labkit.runs.check_equal_work",
    "check_rates": "labkit.runs.check_simulated",
    "check_link": "labkit.runs.check_simulated",
    "free_loader_utilization": "labkit.runs.check_simulated",
    "count_reads": "labkit.runs.read_counts",
    "search_on_cuda": "labkit.runs.largest_batch",
    "time_operations": "labkit.runs.operation_trials",
}
# The kernel's out-of-memory killer does not say why it killed a process.
IF_OUT_OF_MEMORY = "if the kernel ran out of memory, use fewer workers or a smaller batch_size"
# Taken for good by a job that is being ended: what it makes of its killed workers is no answer.
_answering = threading.Lock()


def serve() -> None:
    """Fork a server for every run until the input ends."""
    import resource

    answers = _keep_answers()
    # Loaders of many workers hold more open files than the 1,024 that most systems begin with.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for module in ("cv2", "PIL.Image", "psutil", "torch.utils.data", "labkit.parts.training.model"):
        importlib.import_module(module)
    for module in JOBS.values():
        importlib.import_module(module)
    gc.freeze()  # a job's collections pass over torch's objects, and copy no shared page
    _print_to(os.devnull)  # the first run's log would stay open
    server = os.getpid()
    # Unbuffered: what follows the line is the run's.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as runs:
        while line := runs.readline():
            folder = _open_roll(answers)
            ended, alive = os.pipe()  # all that the run forks holds its end open
            pid = os.fork()
            if pid == 0:
                os.close(ended)
                status = 1
                try:
                    status = _serve_run(json.loads(line), answers)
                except BaseException:
                    traceback.print_exc()
                finally:
                    if os.getppid() != server:  # it was killed
                        shutil.rmtree(folder, ignore_errors=True)
                    os._exit(status)
            os.close(alive)
            _, status = os.waitpid(pid, 0)
            if status:  # killed, or abandoned by the runner
                os.read(ended, 1)  # a job that goes on would miss its files, and answer that
            os.close(ended)
            shared_memory.remove_left(folder)
            if status:
                shutil.rmtree(folder, ignore_errors=True)
                return
            for left in Path(folder).iterdir():
                left.unlink()
            _write(answers, {"ended": True})


def _serve_run(log: str, answers: int) -> int:
    """Fork a process for every request until an empty line; return the exit status."""
    _print_to(log)
    requests = sys.stdin.buffer
    while (line := requests.readline()).strip():
        request = _parse(line)
        _load_for_all(request["arguments"])
        # The job reads from one end of the pipe, and ends itself once the other is closed.
        lifeline, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(write_end)
                os.setsid()
                # The job's loader workers must not keep the server's input open.
                os.dup2(os.open(os.devnull, os.O_RDONLY), requests.fileno())
                _end_when_closed(lifeline)
                _run(request, answers)
            except BaseException:
                traceback.print_exc()
            finally:  # an error must not reach the clean-up of the run's server
                os._exit(0)  # without the libraries' clean-up: the server ends the whole group
        os.close(lifeline)
        reason = _wait(pid, requests.fileno())
        os.close(write_end)
        shared_memory.remove_left(get_temp_dir())
        if not reason:
            return 1
        # A job that was killed may have left half a line.
        os.write(answers, b"\n")
        _answer(answers, request, "killed", reason)
    return 0 if line == b"\n" else 1


def run_once() -> None:
    """Run one job in this process, where there is no fork."""
    answers = _keep_answers()
    _open_roll(answers)
    if line := sys.stdin.buffer.readline():
        _end_when_closed(sys.stdin.fileno())
        _run(_parse(line), answers)
    _end_children()
    shared_memory.remove_left(get_temp_dir())
    os._exit(0)  # without waiting for the thread that watches the input


def _parse(line: bytes) -> dict:
    """Read a request; a JSON object with exactly the fields of `Settings` becomes one."""
    names = {field.name for field in fields(Settings)}
    return json.loads(
        line, object_hook=lambda values: Settings(**values) if values.keys() == names else values
    )


def _load_for_all(arguments: dict) -> None:
    """Load before forking what all jobs inherit.

    The data (118,287 annotations take 5 s), and what torch imports for the first optimizer that a
    process makes (2 s).
    """
    from labkit.resolve import resolve
    from labkit.runs import operation_trials

    try:
        if "tasks" in arguments:
            operation_trials.load(arguments["settings"], arguments["tasks"])
            return
        parts = resolve(arguments["settings"])
        if not (parts.device.is_simulated or parts.step.trains_nothing):
            importlib.import_module("torch._dynamo")
        _ = parts.reader  # opened once, for all jobs
    except Exception:  # the job meets it again and reports it
        return


def _wait(pid: int, requests: int) -> str:
    """Wait for a job to end, and end it if the runner goes away.

    Returns:
        Why it ended, if it has not answered; empty where the runner has gone.
    """
    ended, end = os.pipe()

    def wait() -> None:  # a pidfd would need Linux 5.3, and containers may refuse it
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(end)

    waiting = threading.Thread(target=wait)
    waiting.start()
    poll = select.poll()
    poll.register(ended, 0)
    poll.register(requests, 0)  # reports only that it is closed, not a request that waits
    is_abandoned = ended not in {descriptor for descriptor, _ in poll.poll()}
    if is_abandoned:
        os.kill(pid, signal.SIGKILL)  # it may have no group yet
    waiting.join()
    os.close(ended)
    # Loader workers share the job's group: end the group while its number is still reserved.
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # only the job itself, which has ended
    _, status = os.waitpid(pid, 0)
    if is_abandoned:
        return ""
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        advice = IF_OUT_OF_MEMORY if name == "SIGKILL" else "see worker.log"
        return f"the trial's process was killed by {name}; {advice}"
    return "the trial's process ended without a result; see worker.log"


def _run(request: dict, answers: int) -> None:
    """Run a job and answer its request once."""
    from labkit.resolve import register

    job, arguments = request["job"], request["arguments"]
    try:
        try:
            register(base64.b64decode(request["own"]))
            value = getattr(importlib.import_module(JOBS[job]), job)(**arguments)
        finally:
            if hasattr(signal, "SIGCHLD"):  # torch's handler may raise while this is answered
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _answer(answers, request, "done", value)
    except Skip as reason:
        _answer(answers, request, "skipped", str(reason))
    except BaseException as error:  # the runner must hear of whatever it is
        traceback.print_exc()
        _answer(answers, request, *_explain(error, arguments.get("settings")))


def _explain(error: BaseException, settings: Settings | None) -> tuple[str, str]:
    """Return the outcome, "failed" or "killed" (a loader worker was), and the reason in a line."""
    from labkit.runs.failure_reasons import one_line, out_of_memory

    if settings is not None and (reason := out_of_memory(error, settings)):
        return "failed", reason
    if isinstance(error, ValueError) and not str(error).startswith("Caught "):
        return "failed", str(error)
    line = one_line(error)
    if "DataLoader worker" in str(error) and "No space left" in str(error):
        return "failed", shared_memory.why_full() or line
    # A worker that is killed while it hands over a batch breaks the connection it used.
    ended = "RuntimeError: DataLoader worker", "ConnectionResetError", "EOFError", "RankEnded"
    if line.startswith(ended):
        return "killed", f"{line}; {IF_OUT_OF_MEMORY}"
    return "failed", line


def _keep_answers() -> int:
    """Keep stdout for answers; whatever else is printed goes to stderr."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _print_to(path: str) -> None:
    with Path(path).open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


def _open_roll(answers: int) -> str:
    """Make and announce the folder for the sockets of all loader workers.

    Without a common folder each worker makes its own, and leaves it behind when it is killed.
    """
    folder = get_temp_dir()  # inherited by every process that is forked from here
    shared_memory.open_roll(folder)
    _write(answers, {"temporary": folder})
    return folder


def _answer(answers: int, request: dict, outcome: str, value: object) -> None:
    with _answering:
        _write(answers, {"request": request["number"], "outcome": outcome, "value": value})


def _write(answers: int, message: dict) -> None:
    data = json.dumps(message, default=asdict).encode() + b"\n"
    while data:
        data = data[os.write(answers, data) :]


def _end_when_closed(lifeline: int) -> None:
    """End this process's whole group once nobody holds the other end of the pipe."""

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        _answering.acquire()
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

    for child in procfs.descendants():
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
