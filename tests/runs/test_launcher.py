"""Trials are real processes, and nothing of them stays, whoever is killed."""

import concurrent.futures
import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
import torch
from kernel import needs_fork
from small import completed

from labkit import resolve
from labkit.machine import hardware
from labkit.parts.decoding import DECODERS, decode_opencv
from labkit.runs.launcher import (
    Cancelled,
    Launcher,
    TrialFailed,
    TrialKilled,
    end_ready_server,
)
from tests.processes import until


def settings(photos, **changes):
    chosen = {"device": "simulated", "num_workers": 1, **changes}
    chosen = {"gpu_images_per_s": 1000 if chosen["device"] == "simulated" else None, **chosen}
    return asdict(completed(data=str(photos), **chosen))


def measure(launcher, photos, **changes):
    return launcher.run("measure", settings=settings(photos, **changes), excluded=[])


def alive(pids):
    # Of a process that ends meanwhile, `Process(pid)` would raise.
    found = psutil.process_iter(["status"])
    return [p.pid for p in found if p.pid in pids and p.info["status"] != psutil.STATUS_ZOMBIE]


@pytest.fixture
def temporary():
    """A folder for temporary files; sockets need a short path."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def started_by(launcher):
    """The server, the trial and its loader workers, as far as they have been started."""
    server = launcher._process
    if server is None:
        return []
    below = psutil.Process(server.pid).children(recursive=True)
    return [server.pid, *(process.pid for process in below)]


def in_background(task):
    """Run a task beside the test; joining it raises what it raised."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    return pool.submit(task)


# --- one server and many trials -------------------------------------------------------------


def own_decoders(used):
    """Decoders of the user's own; functions in a function travel without this module."""

    def is_killed_after_its_answer(jpeg):
        # In the trial alone: its last call is _exit.
        os._exit = lambda status: os.kill(os.getpid(), signal.SIGKILL)
        return decode_opencv(jpeg)

    def is_killed_within_its_answer(jpeg):
        write = os.write

        def write_half(descriptor, data):
            write(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

        os.write = write_half  # in the trial alone: the answer is what it writes
        return decode_opencv(jpeg)

    def leaves_without_an_answer(jpeg):
        os._exit(0)

    def raises_what_cannot_be_told(jpeg):
        class UnprintableError(Exception):
            def __str__(self):
                raise RuntimeError

        raise UnprintableError

    def kills_its_worker(jpeg):
        if torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return decode_opencv(jpeg)

    def fails(jpeg):
        raise RuntimeError("no such colour\nand more")

    def leaves_a_trace(jpeg):
        used.touch()
        return decode_opencv(jpeg)

    own = (is_killed_after_its_answer, is_killed_within_its_answer, leaves_without_an_answer)
    own = (*own, raises_what_cannot_be_told, kills_its_worker, fails, leaves_a_trace)
    return {one.__name__: one for one in own}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("launcher") / "log"


@pytest.fixture(scope="module")
def launcher(log):
    """One server for many trials; it knows the user's own decoders."""
    with pytest.MonkeyPatch.context() as patch:
        for name, decode in own_decoders(log.with_name("used")).items():
            patch.setitem(DECODERS, name, decode)
        launcher = Launcher(log)
    with launcher:
        yield launcher


@pytest.fixture
def own(monkeypatch, log):
    for name, decode in own_decoders(log.with_name("used")).items():
        monkeypatch.setitem(DECODERS, name, decode)


NO_RESULT = "the trial's process ended without a result"
# A decoder -> what is raised for it, and the reason.
ENDS = {
    "is_killed_after_its_answer": (None, ""),
    "is_killed_within_its_answer": (TrialKilled, "the trial's process was killed by SIGKILL"),
    "leaves_without_an_answer": (TrialKilled, f"{NO_RESULT}; see worker.log"),
    # As when torch tells of a killed worker while the first error is being answered.
    "raises_what_cannot_be_told": (TrialKilled, NO_RESULT),
    # In a sample: killed while it sends a batch, it breaks the connection, in other words.
    "kills_its_worker": (TrialKilled, r"DataLoader worker.*use fewer workers"),
    "fails": (TrialFailed, r"^RuntimeError: no such colour$"),
}


@needs_fork
@pytest.mark.parametrize("decoder", ENDS)
def test_however_a_trial_ends_its_reason_is_one_line_and_the_next_has_its_own_answer(
    launcher, own, log, photos, decoder
):
    error, reason = ENDS[decoder]
    mine = {"decoder": decoder, "num_workers": int(decoder == "kills_its_worker")}
    if error:
        with pytest.raises(error, match=reason):
            measure(launcher, photos, **mine)
    else:
        assert measure(launcher, photos, **mine)["epochs"][0]["images"] == 24
    assert measure(launcher, photos, images=8)["epochs"][0]["images"] == 8
    if decoder == "fails":
        assert re.search(r"Traceback.*in fails", log.read_text(), re.DOTALL)


def test_the_users_own_decoder_reaches_spawned_loader_workers(launcher, own, log, photos):
    how = {"multiprocessing_context": "spawn", "persistent_workers": True}
    measured = measure(launcher, photos, decoder="leaves_a_trace", **how)
    assert measured["epochs"][0]["images"] == 24
    assert log.with_name("used").exists()


# --- servers of their own -------------------------------------------------------------------


@pytest.mark.parametrize(
    "fork", [pytest.param(True, marks=needs_fork), False], ids=["forked", "spawned"]
)
def test_a_trial_returns_what_it_measured_and_leaves_no_file(
    tmp_path, temporary, photos, fork, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(hardware, "can_fork", lambda: fork)
    with Launcher(tmp_path / "log") as launcher:
        measured = measure(launcher, photos, persistent_workers=True)
    assert [epoch["images"] for epoch in measured["epochs"]] == [24, 24]
    gpu = {"kind": "device", "how": "simulated", "details": "1,000 images/s"}
    assert gpu in measured["hardware"]
    assert measured["cache_proof"]["wanted"] == "cold"
    end_ready_server()
    assert list(temporary.rglob("*")) == []


# A driver that is initialized before a fork is of no use after it, and asking `is_available` does
# so.  The server imports what torch's optimizers need, which asks only how torch was built.  All
# other functions of torch.cuda that need the driver call `_lazy_init`.
CALLS = """
import importlib, torch
from labkit.runs.server import JOBS
called = set()

def noted(name, function):
    return lambda *args, **options: called.add(name) or function(*args, **options)

asks = {torch.cuda: ["is_available", "device_count", "_lazy_init"]}
asks[torch._C] = [name for name in vars(torch._C) if "cuda" in name]
for owner, names in asks.items():
    for name in names:
        if not isinstance(function := getattr(owner, name), type):
            setattr(owner, name, noted(name, function))
for module in (*JOBS.values(), "labkit.parts.training.model", "torch._dynamo"):
    importlib.import_module(module)
print(*called, torch.cuda.is_initialized())
"""


def test_what_the_server_imports_calls_nothing_of_cuda():
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stdout + done.stderr


@needs_fork
def test_the_next_launcher_takes_the_server_over(tmp_path, temporary, photos, own, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(temporary))

    def fail(log):
        with Launcher(log) as launcher:
            with pytest.raises(TrialFailed, match="no such colour"):
                measure(launcher, photos, decoder="fails", num_workers=0)
            return launcher._process.pid

    first, second = fail(tmp_path / "first"), fail(tmp_path / "second")
    assert first == second
    assert "in fails" in (tmp_path / "second").read_text()
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive([first]))
    assert fail(tmp_path / "third") != first
    end_ready_server()
    assert list(temporary.rglob("*")) == []


OWN_MODULE = """
from labkit.parts.decoding import decode_opencv

def decode(jpeg):
    return decode_opencv(jpeg)
"""


def test_files_of_the_working_directory_are_imported_only_where_they_are_here(
    tmp_path, temporary, photos, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(temporary))  # starts another server
    Path("random.py").write_text("raise SystemExit('this is no standard library')")
    Path("mine_alone.py").write_text(OWN_MODULE)
    with Launcher(tmp_path / "log") as launcher:
        assert measure(launcher, photos)["epochs"][0]["images"] == 24
    monkeypatch.setattr(sys, "path", [*sys.path, ""])  # as in a notebook
    importlib.invalidate_caches()
    monkeypatch.setitem(DECODERS, "mine", importlib.import_module("mine_alone").decode)
    with Launcher(tmp_path / "log") as launcher:
        assert measure(launcher, photos, decoder="mine")["epochs"][0]["images"] == 24
    end_ready_server()


@needs_fork
def test_trials_may_open_as_many_files_as_the_hard_limit_allows(
    tmp_path, temporary, photos, monkeypatch
):
    import resource

    monkeypatch.setenv("TMPDIR", str(temporary))  # starts another server
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = psutil.Process().num_fds() + 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        with Launcher(tmp_path / "log") as launcher:
            # Each batch that is loaded ahead takes eight open files.
            measured = measure(launcher, photos, prefetch_factor=few)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        end_ready_server()
    assert [epoch["images"] for epoch in measured["epochs"]] == [24, 24]


@needs_fork
def test_a_process_that_does_not_end_is_killed_also_where_there_are_no_groups(
    tmp_path, monkeypatch
):
    """As on Windows, whose module `signal` has no SIGKILL either."""
    monkeypatch.setattr(hardware, "can_fork", lambda: False)
    with Launcher(tmp_path / "log") as launcher:
        process = launcher._start()
        process.send_signal(signal.SIGSTOP)
        monkeypatch.delattr(os, "killpg")
        monkeypatch.setattr("labkit.runs.launcher.signal", None)
        launcher.close()
    assert process.returncode == -signal.SIGKILL


def test_cancel_leaves_no_spawned_process(tmp_path, photos, monkeypatch):
    monkeypatch.setattr(hardware, "can_fork", lambda: False)
    cancel = threading.Event()
    with Launcher(tmp_path / "log", cancel) as launcher:

        def cancel_once_loading():
            until(lambda: len(started_by(launcher)) >= 2)  # the trial and its worker
            started = started_by(launcher)
            cancel.set()
            return started

        canceller = in_background(cancel_once_loading)
        with pytest.raises(Cancelled):
            measure(launcher, photos, gpu_images_per_s=0.1)  # minutes, if left alone
        started = canceller.result()
    until(lambda: not alive(started), lambda: alive(started))


def test_a_part_that_cannot_be_sent_is_refused_by_name(monkeypatch, tmp_path):
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setitem(DECODERS, "mine", lambda jpeg: file)
        message = "decoder 'mine' must be something a fresh process can be sent"
        with pytest.raises(ValueError, match=message):
            resolve.own_parts()
