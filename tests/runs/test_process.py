"""Trials are real processes, and nothing of them stays, whoever is killed."""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from labkit import resolve
from labkit.contracts import Skip
from labkit.machine import hardware
from labkit.runs.process import Cancelled, Launcher, TrialFailed, TrialKilled
from labkit.settings import MODES, Settings, complete

FORKS = pytest.mark.parametrize(
    "fork",
    [
        pytest.param(
            True, marks=pytest.mark.skipif(not hardware.can_fork(), reason="no fork here")
        ),
        False,
    ],
    ids=["forked", "spawned"],
)
PATIENCE_S = 20.0  # how long to look for something that must happen; not a speed limit


def settings(photos, **changes):
    small = {"device": "emulated", "input_px": 64, "batch_size": 4, "num_workers": 1}
    chosen = Settings(data=str(photos), **{**small, **changes})
    filled = complete(chosen, MODES["quick"], cores=2, has_cuda=False, can_fork=hardware.can_fork())
    return asdict(filled)


def measure(launcher, photos, cancel=None, compute_s_per_image=0.001, **changes):
    arguments = {
        "settings": settings(photos, **changes),
        "excluded": [],
        "compute_s_per_image": compute_s_per_image,
    }
    return launcher.run("measure", arguments, cancel)


def until(condition):
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


def alive(pids):
    return [
        pid
        for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


def all_pids_below(parent):
    return [process.pid for process in psutil.Process(parent).children(recursive=True)]


@pytest.fixture
def temporary():
    """A folder for temporary files; sockets need a short path."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def started_by(launcher):
    """The server, the trial and its loader workers, as far as they have been started."""
    server = launcher._process
    return [] if server is None else [server.pid, *all_pids_below(server.pid)]


def in_background(task):
    """Run a task beside the test; joining it raises what it raised."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    return pool.submit(task)


@FORKS
def test_a_trial_returns_what_it_measured(tmp_path, photos, fork):
    with Launcher(tmp_path / "log", fork=fork) as launcher:
        measured = measure(launcher, photos)
    assert [epoch["images"] for epoch in measured["epochs"]] == [24, 24]
    assert measured["labels"]["accelerator"] == "emulated(matched, 1 ms/image)"
    assert measured["cache_proof"]["wanted"] == "cold"


@FORKS
def test_cancel_leaves_no_process(tmp_path, photos, fork):
    cancel = threading.Event()
    with Launcher(tmp_path / "log", fork=fork) as launcher:

        def cancel_once_loading():
            # server, trial and a loader worker (spawned: trial and worker)
            assert until(lambda: len(started_by(launcher)) >= (3 if fork else 2))
            started = started_by(launcher)
            cancel.set()
            return started

        canceller = in_background(cancel_once_loading)
        with pytest.raises(Cancelled):
            measure(launcher, photos, cancel, compute_s_per_image=10.0)  # minutes, if left alone
        started = canceller.result()
    assert until(lambda: not alive(started)), alive(started)


@pytest.mark.skipif(not hardware.can_fork(), reason="no fork here")
@pytest.mark.parametrize("victim", ["runner", "server", "trial", "loader worker"])
def test_a_killed_process_takes_everything_below_it_along(tmp_path, temporary, photos, victim):
    program = (
        "import json, sys; from pathlib import Path; from labkit.runs.process import Launcher\n"
        "with Launcher(Path(sys.argv[1]), fork=True) as launcher:\n"
        "    launcher.run('measure', json.loads(sys.argv[2]))\n"
    )
    arguments = {"settings": settings(photos), "excluded": [], "compute_s_per_image": 10.0}
    runner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log"), json.dumps(arguments)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    # A loader worker that has sent a batch listens at a socket in the temporary folder.
    assert until(lambda: list(temporary.glob("*/listener-*")))
    server, trial, worker = started = all_pids_below(runner.pid)
    pids = {"runner": runner.pid, "server": server, "trial": trial, "loader worker": worker}
    os.kill(pids[victim], signal.SIGKILL)
    _, errors = runner.communicate(timeout=PATIENCE_S)
    assert until(lambda: not alive(started)), alive(started)
    assert until(lambda: not list(temporary.iterdir())), list(temporary.rglob("*"))
    if victim == "trial":
        assert "the trial's process was killed by SIGKILL" in errors


@pytest.mark.skipif(not hardware.can_fork(), reason="no fork here")
def test_a_killed_trial_does_not_spoil_the_next(tmp_path, photos):
    with Launcher(tmp_path / "log", fork=True) as launcher:

        def kill_the_trial():
            assert until(lambda: len(started_by(launcher)) >= 3)
            _, trial, *_ = started_by(launcher)
            os.kill(trial, signal.SIGKILL)

        killer = in_background(kill_the_trial)
        with pytest.raises(TrialKilled, match="killed by SIGKILL; if the kernel ran out of memory"):
            measure(launcher, photos, compute_s_per_image=10.0)
        killer.result()
        assert measure(launcher, photos)["epochs"][0]["images"] == 24


@pytest.mark.skipif(not hardware.can_fork(), reason="no fork here")
def test_a_killed_loader_worker_fails_the_trial_in_words(tmp_path, photos):
    with Launcher(tmp_path / "log", fork=True) as launcher:

        def kill_a_loader_worker():
            assert until(lambda: len(started_by(launcher)) >= 3)
            *_, worker = started_by(launcher)
            os.kill(worker, signal.SIGKILL)

        killer = in_background(kill_a_loader_worker)
        with pytest.raises(TrialKilled, match=r"DataLoader worker.*use fewer workers"):
            measure(launcher, photos, compute_s_per_image=0.5)
        killer.result()


@pytest.mark.skipif(not hardware.can_fork(), reason="no fork here")
def test_a_trial_runs_where_the_kernel_has_no_pidfd(tmp_path, photos, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import os\nos.pidfd_open = None\n")
    monkeypatch.syspath_prepend(tmp_path)  # the trial server takes over sys.path
    with Launcher(tmp_path / "log", fork=True) as launcher:
        assert measure(launcher, photos)["epochs"][0]["images"] == 24


def is_killed_after_its_answer(jpeg):
    import os
    import signal

    from labkit.parts.decoding import decode_opencv

    # In the trial alone: its last call is _exit.
    os._exit = lambda status: os.kill(os.getpid(), signal.SIGKILL)
    return decode_opencv(jpeg)


def is_killed_within_its_answer(jpeg):
    import os
    import signal

    from labkit.parts.decoding import decode_opencv

    write = os.write

    def write_half(descriptor, data):
        write(descriptor, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    os.write = write_half  # in the trial alone: the answer is what it writes
    return decode_opencv(jpeg)


def leaves_without_an_answer(jpeg):
    import os

    os._exit(0)


@pytest.mark.skipif(not hardware.can_fork(), reason="no fork here")
@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (is_killed_after_its_answer, ""),
        (is_killed_within_its_answer, "the trial's process was killed by SIGKILL"),
        (leaves_without_an_answer, "the trial's process ended without a result; see worker.log"),
    ],
)
def test_whenever_a_trial_ends_the_next_has_its_own_answer(
    tmp_path, photos, monkeypatch, decode, message
):
    from labkit.parts.decoding import DECODERS

    monkeypatch.setitem(DECODERS, "mine", decode)
    with Launcher(tmp_path / "log", fork=True, own=resolve.own_parts()) as launcher:
        mine = {"decoder": "mine", "num_workers": 0}
        if message:
            with pytest.raises(TrialKilled, match=message):
                measure(launcher, photos, **mine)
        else:
            assert measure(launcher, photos, **mine)["epochs"][0]["images"] == 24
        for images in (8, 16):
            assert measure(launcher, photos, images=images)["epochs"][0]["images"] == images


def fails(jpeg):
    raise RuntimeError("no such colour\nand more")


def test_a_failed_trial_is_one_line_and_its_traceback_is_in_the_log(tmp_path, photos, monkeypatch):
    from labkit.parts.decoding import DECODERS

    monkeypatch.setitem(DECODERS, "mine", fails)
    log, fork = tmp_path / "log", hardware.can_fork()
    with Launcher(log, fork=fork, own=resolve.own_parts()) as launcher:
        with pytest.raises(TrialFailed, match=r"^RuntimeError: no such colour$"):
            measure(launcher, photos, decoder="mine", num_workers=0)
    assert re.search(r"Traceback.*in fails", log.read_text(), re.DOTALL)


@FORKS
def test_a_trial_leaves_no_temporary_file(tmp_path, temporary, photos, fork, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(temporary))
    with Launcher(tmp_path / "log", fork=fork) as launcher:
        for persistent in (False, True):
            measure(launcher, photos, persistent_workers=persistent)
    assert list(temporary.rglob("*")) == []


def test_a_variant_that_cannot_run_here_is_a_skip_with_its_reason(tmp_path, photos):
    with Launcher(tmp_path / "log", fork=hardware.can_fork()) as launcher:
        with pytest.raises(Skip, match="data_prefetcher copies on a side stream"):
            measure(launcher, photos, device="cpu", step="detector", prefetcher="data_prefetcher")


@pytest.mark.thorough
@FORKS
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_the_users_own_decoder_reaches_the_loader_workers(
    tmp_path, photos, fork, start_method, monkeypatch
):
    if start_method == "fork" and not hardware.can_fork():
        pytest.skip("no fork here")
    from labkit.parts.decoding import DECODERS

    marker = str(tmp_path / "used")

    def my_decode(jpeg):
        from pathlib import Path

        Path(marker).write_text("yes")
        return DECODERS["pillow"](jpeg)

    monkeypatch.setitem(DECODERS, "mine", my_decode)
    with Launcher(tmp_path / "log", fork=fork, own=resolve.own_parts()) as launcher:
        measured = measure(launcher, photos, decoder="mine", start_method=start_method)
    assert measured["epochs"][0]["images"] == 24
    assert Path(marker).read_text() == "yes"


def test_a_part_that_cannot_be_sent_is_refused_by_name(monkeypatch, tmp_path):
    from labkit.parts.decoding import DECODERS

    with (tmp_path / "file").open("w") as file:
        monkeypatch.setitem(DECODERS, "mine", lambda jpeg: file)
        message = "decoder 'mine' must be something a fresh process can be sent"
        with pytest.raises(ValueError, match=message):
            resolve.own_parts()
