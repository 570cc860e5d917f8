"""Memory of a trial: shared pages count once, workers count, and looking costs next to nothing."""

import mmap
import os
import subprocess
import sys
import time

import pytest

from labkit.machine import shared_memory
from labkit.machine.usage import MemoryWatch, tree_pss_bytes

MB = 1_000_000
# Holds so many bytes, says so, and ends when its input does.
HOLD = """import sys
held = bytearray(b"x") * int(sys.argv[1])
print(flush=True)
input()"""

if tree_pss_bytes() is None:
    pytest.skip("this platform does not tell proportional memory", allow_module_level=True)


@pytest.fixture
def child():
    """A process that holds 50 MB."""
    command = [sys.executable, "-c", HOLD, str(50 * MB)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        if process.poll() is None:
            process.communicate(b"\n")


def test_a_childs_memory_counts_while_it_lives(child):
    with_child = tree_pss_bytes()
    child.communicate(b"\n")
    assert with_child - tree_pss_bytes() >= 40 * MB


def test_what_two_processes_share_counts_once():
    with mmap.mmap(-1, 50 * MB) as shared:
        shared.write(b"x" * (50 * MB))
        ready, done = os.pipe(), os.pipe()
        before = tree_pss_bytes()
        pid = os.fork()
        if pid == 0:
            sum(shared[:: mmap.PAGESIZE])  # its own page tables, the same pages
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        more = tree_pss_bytes() - before
        os.write(done[1], b"x")
        os.waitpid(pid, 0)
        for end in (*ready, *done):
            os.close(end)
    assert more < 25 * MB


def test_a_watch_sees_workers_and_shared_memory(child):
    with MemoryWatch() as watch:
        path = shared_memory.FOLDER / f"labkit-test-{os.getpid()}"
        try:
            path.write_bytes(b"x" * (8 * MB))
            until = time.monotonic() + 20
            while not watch.peak_pss_bytes or not watch.peak_shm_bytes:
                assert time.monotonic() < until
                time.sleep(0.02)
        finally:
            path.unlink(missing_ok=True)
    assert watch.totals()["peak_pss_bytes"] >= 50 * MB
    assert watch.totals()["peak_shm_bytes"] >= 4 * MB  # others may have freed some meanwhile
