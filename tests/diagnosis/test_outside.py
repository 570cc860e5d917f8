"""A training that runs already is looked at from outside."""

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.diagnosis import outside
from labkit.diagnosis.outside import Sight, conclude, state_of
from tests.processes import until

SCRIPT = Path(__file__).with_name("trainings.py")

# Workers are busy while the training process sleeps most of the time.
LOADING = Sight(
    trainer=Counter(running=30, asleep=70), workers=Counter(running=180, asleep=20),
    worker_count=2, uses_gpu=False, gpu=None, cores_busy=0.9,
)  # fmt: skip
GPU = replace(LOADING, uses_gpu=True, gpu=0.3)
COMPUTING = replace(LOADING, trainer=Counter(running=99, asleep=1))
IDLE_WORKERS = Counter(running=4, asleep=196)


@pytest.mark.parametrize(
    ("sight", "answer", "why"),
    [
        (LOADING, "likely", "sleeps 70.0 % of the time, and its workers work"),
        (GPU, "likely", "sleeps 70.0 %"),
        (COMPUTING, "unlikely", "sleeps 1.0 % of the time only"),
        (replace(GPU, gpu=0.95), "unlikely", "the GPU computes 95.0 % of the time"),
        (replace(GPU, gpu=0.95, ranks=4), "cannot tell", "NCCL does so, too"),
        (replace(GPU, gpu=None), "cannot tell", "NVML does not say"),
        (replace(GPU, gpu=0.8, workers=IDLE_WORKERS), "unlikely", "they have nothing to do"),
        # Workers that sleep may wait for a network, or for the training.
        (replace(LOADING, workers=IDLE_WORKERS), "cannot tell", "work or wait for storage 2.0 %"),
        (replace(LOADING, workers=Counter(disk=180, asleep=20)), "likely", "90.0 %"),
        (replace(LOADING, workers=Counter(network=180, asleep=20)), "likely", "90.0 %"),
        (replace(LOADING, worker_count=0), "cannot tell", "it has no workers"),
        (
            replace(LOADING, worker_count=0, trainer=Counter(disk=40, running=60)),
            "likely",
            "itself waits for a disk 40.0 %",
        ),
        (
            replace(LOADING, worker_count=0, trainer=Counter(asleep=100), below=(12, 13)),
            "cannot tell",
            "look at one that it started: 12, 13",
        ),
    ],
)
def test_the_answer_rests_on_what_was_seen(sight, answer, why):
    found, said = conclude(sight)
    assert found == answer
    assert why in said


def test_a_process_that_sleeps_or_runs_is_seen_so():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as sleeping:
        until(lambda: state_of(sleeping.pid) == "asleep")
        sleeping.kill()
    assert state_of(os.getpid()) == "running"
    assert state_of(sleeping.pid) == "gone"


class FourTimesAsFast:
    """A clock by which ten seconds are two and a half."""

    def now(self):
        return 4 * time.perf_counter()

    def sleep_until(self, deadline_s):
        time.sleep(max(0.0, deadline_s / 4 - time.perf_counter()))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("many_busy_workers", "Loading is likely the limit: "),
        ("busy_step", "Loading is unlikely the limit: "),
        ("endless_alone", "Whether loading is the limit cannot be told from outside: "),
    ],
)
def test_a_planted_training_is_told_from_outside(name, words, capsys, monkeypatch):
    monkeypatch.setattr(outside, "SystemClock", FourTimesAsFast)
    with subprocess.Popen([sys.executable, SCRIPT, name], stdout=subprocess.PIPE) as training:
        assert training.stdout.readline() == b"10 steps\n"
        try:
            assert main(["watch", "--pid", str(training.pid)]) == 0
            assert training.poll() is None
        finally:
            training.kill()
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith(words)
    assert said[0].startswith("Training process: ")


def test_what_cannot_be_looked_at_is_one_line(capsys):
    assert main(["watch", "--pid", "999999999"]) == 1
    assert capsys.readouterr().err == ("labkit: --pid must be a process that runs, got 999999999\n")
