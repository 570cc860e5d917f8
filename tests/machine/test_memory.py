"""Memory of a trial: shared pages count once, workers count, and looking costs next to nothing."""

import json
import os
import subprocess
import sys

import pytest
from places import memory_mounted

from labkit.machine import shared_memory
from labkit.machine.usage import Usage
from tests.processes import until

MB = 1_000_000
LISTS = [f"/proc/self/{name}" for name in ("smaps_rollup", f"task/{os.getpid()}/children")]
pytestmark = pytest.mark.skipif(
    not all(map(os.path.exists, LISTS)), reason="no /proc lists children and proportional memory"
)

# In a process of its own: of what this one shares with other tests, such as torch's libraries, it
# has another share whenever one of them starts or ends.
PROGRAM = f"""
import json, mmap, os, subprocess, sys
from labkit.machine.helper import Helper
from labkit.machine.usage import tree_pss_bytes

HOLD = "import sys; held = bytearray(b'x') * {50 * MB}; print(flush=True)"
command = [sys.executable, "-c", HOLD + "; input()"]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    with_child = tree_pss_bytes()
    child.communicate(b"\\n")
measured = {{"child": with_child - tree_pss_bytes()}}

before = tree_pss_bytes()
echo = "\\nfor line in sys.stdin: print(line, end='', flush=True)"
helper = Helper("the echo", ["-c", HOLD.replace("; print(flush=True)", echo)], {{}})
measured["helper"] = tree_pss_bytes() - before
helper.close()

with mmap.mmap(-1, {50 * MB}) as shared:
    shared.write(b"x" * {50 * MB})
    ready, done = os.pipe(), os.pipe()
    before = tree_pss_bytes()
    if os.fork() == 0:
        sum(shared[:: mmap.PAGESIZE])  # its own page tables, the same pages
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    measured["shared"] = tree_pss_bytes() - before
    os.write(done[1], b"x")
    os.wait()
print(json.dumps(measured))
"""


def test_children_count_helpers_do_not_and_what_two_share_counts_once():
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, check=True)
    measured = json.loads(done.stdout)
    assert measured["child"] >= 40 * MB
    assert measured["helper"] < 25 * MB
    assert measured["shared"] < 25 * MB


def test_a_watch_sees_memory_and_shared_memory(tmp_path, monkeypatch):
    held = bytearray(b"x") * (50 * MB)
    with memory_mounted(tmp_path / "shared") as folder:  # which no other program uses
        monkeypatch.setattr(shared_memory, "FOLDER", folder)
        with Usage(gpus=0) as usage:
            (folder / "file").write_bytes(held)
            until(lambda: (usage.totals()["peak_shm_bytes"] or 0) >= len(held))
            until(lambda: usage.totals()["peak_pss_bytes"])
    assert usage.totals()["peak_pss_bytes"] >= len(held)
