"""What a killed loader worker left in shared memory goes; what others have there stays."""

import contextlib
import os
import shutil
import subprocess
import sys

import pytest

from labkit.contracts import Skip
from labkit.machine import shared_memory

pytestmark = pytest.mark.skipif(
    not os.access(shared_memory.FOLDER, os.W_OK), reason="no shared memory here"
)

# A worker that is killed between making a file and removing its name.
LEAVES = """
import os
import shutil
from labkit.contracts import Skip
from labkit.machine import shared_memory
shared_memory.note_worker()
with open(shared_memory.FOLDER / f"torch_{os.getpid()}_1_0", "wb") as file:
    file.write(bytes(1024))
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def roll(tmp_path, monkeypatch):
    monkeypatch.setenv(shared_memory.ROLL, "")  # is restored, whatever a test sets
    shared_memory.open_roll(str(tmp_path))
    return tmp_path


def killed_worker():
    process = subprocess.Popen([sys.executable, "-c", LEAVES])
    process.wait()
    return shared_memory.FOLDER / f"torch_{process.pid}_1_0"


def test_what_a_killed_worker_left_is_removed_and_it_is_struck_off_the_roll(roll):
    left = killed_worker()
    assert left.exists()
    shared_memory.remove_left(str(roll))
    assert not left.exists()
    assert list(roll.iterdir()) == []


def test_files_of_processes_that_are_not_on_the_roll_stay(roll):
    mine = shared_memory.FOLDER / f"torch_{os.getpid()}_1_0"
    mine.touch()
    try:
        shared_memory.remove_left(str(roll))
        assert mine.exists()
    finally:
        mine.unlink()


def test_files_of_another_user_stay_whatever_their_number(roll):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    others = killed_worker()
    os.chown(others, 65534, 65534)
    try:
        shared_memory.remove_left(str(roll))
        assert others.exists()
        assert list(roll.iterdir()) == []
    finally:
        others.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("workers", "ranks", "advice"),
    [(1, 1, ""), (2, 1, "num_workers 1 "), (1, 2, "num_workers 0 "), (0, 2, "")],
)
def test_workers_whose_batches_do_not_fit_are_refused_with_how_many_would(
    workers, ranks, advice, monkeypatch, tmp_path
):
    """64 MB, as in a container, hold four batches: two ahead, and one that is trained on."""
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    room = shutil._ntuple_diskusage(64 << 20, 0, 64 << 20)
    monkeypatch.setattr(shared_memory, "usage", lambda: room)
    loader = {"workers": workers, "prefetch_factor": 2, "ranks": ranks}
    if advice:
        refusal = rf"must have room for \d batches of 17 MB.*; use {advice}or a smaller"
        expected = pytest.raises(Skip, match=refusal)
    else:
        expected = contextlib.nullcontext()
    with expected:
        shared_memory.check_room(16 << 20, **loader)
