"""One run in a thread: what it reports, in which order, and how it ends."""

import os
import threading
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
from small import SMALL

import labkit as lab
from labkit.panel import job
from labkit.panel.job import Job
from labkit.runs.active_run import single_run_lock
from tests.processes import PATIENCE_S


def ended(status):
    """What a run returns, as far as a job looks at it."""
    return SimpleNamespace(info=SimpleNamespace(status=status))


def test_progress_says_the_trial_its_rate_and_the_time_left():
    now = [100.0]
    told = Job("test", lambda **_: None, now=lambda: now[0])
    assert (told.state, told.progress(), told.share()) == ("preparing", "starting", 0.0)
    told.say("calibrating: how fast is the baseline here?")
    assert told.progress() == "calibrating: how fast is the baseline here?"
    now[0] = 110.0
    told.start(total=6, done=2)  # resumed: two are there
    told.next("block 2: pillow")
    assert told.state == "running"
    unknown = "time left is known after the first trial"
    assert told.progress() == f"trial 3 of 6 · block 2: pillow · {unknown}"
    now[0] = 114.0
    told.rate("123 images/s")
    told.advance()
    assert told.share() == 0.5
    assert told.progress() == "trial 4 of 6 · block 2: pillow · last 123 images/s · 12 s left"
    now[0] = 240.0
    told.advance()
    assert told.progress().endswith("2 min 10 s left")


def test_a_watcher_that_raises_does_not_end_the_run():
    def watcher(told, has_new_rows):
        raise RuntimeError("no window")

    def run(cancel, progress):
        progress.start(total=1, done=0)
        progress.advance()
        return ended("finished")

    job.follow(watcher)
    told = Job("test", run)
    told.go()
    assert (told.state, told.error) == ("finished", None)
    assert told.messages[0] == "RuntimeError while the run was shown: no window"


def test_there_is_one_job_at_a_time():
    def run(cancel, progress):
        assert cancel.wait(PATIENCE_S)
        return ended("cancelled")

    first = job.start("storage", run)
    assert job.current() is first
    message = (
        "run must be the only one in progress in this notebook, got a second while storage is "
        "preparing; wait until it has ended, or cancel it"
    )
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        job.start("prefetching", run)
    first.cancel()
    assert first.state in ("cancelling", "cancelled")
    assert first.wait(PATIENCE_S)
    assert (first.state, first.is_in_progress) == ("cancelled", False)
    second = job.start("prefetching", lambda **_: ended("finished"))
    assert second.wait(PATIENCE_S)
    assert job.current() is second
    second.cancel()
    assert second.state == "finished"


def test_a_real_run_is_alone_and_cancelled_with_all_its_processes_keeps_its_rows(photos, tmp_path):
    variants = lab.sweep(lab.Settings(data=str(photos), **SMALL), "decoder", ["opencv", "pillow"])
    slow = lab.Experiment("test", question="?", variants=variants, baseline="opencv")
    seen = threading.Event()
    job.follow(lambda told, has_new_rows: has_new_rows and seen.set())
    told = job.start("test", partial(lab.run, slow, "full", blocks=40, results=tmp_path))
    assert seen.wait(PATIENCE_S)
    # Of a process that has ended meanwhile, this tells None where `cmdline()` would raise.
    children = (
        p for p in psutil.process_iter(["ppid", "cmdline"]) if p.info["ppid"] == os.getpid()
    )
    (server,) = (p for p in children if "labkit.runs.server" in (p.info["cmdline"] or ()))
    below = [server, *server.children(recursive=True)]
    # A cell of the same notebook must not measure beside it.
    message = "a run is already in progress in this process; wait until it ends, or cancel it"
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        lab.run(slow, results=tmp_path, progress=False)
    told.cancel()
    assert told.wait(PATIENCE_S)
    with single_run_lock():
        pass  # another run may start
    _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
    assert alive == []
    run = lab.find_run(told.folder)
    assert run.info.status == told.state == "cancelled"
    statuses = [trial.status for trial in run.trials]
    assert statuses[0] == "ok"
    assert "cancelled" in statuses or len(statuses) < 120
