"""Linux's own text files, beside a process that shares a core."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.machine import procfs


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="needs schedstat")
def test_a_thread_that_has_to_share_its_core_waits_for_it():
    free = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(free)})
    rival = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True)\nwhile True: pass"],
        stdout=subprocess.PIPE,
    )
    try:
        rival.stdout.readline()
        before_s, ends_s = procfs.scheduled_s()[1], time.thread_time() + 0.2
        while time.thread_time() < ends_s:
            pass
        assert procfs.scheduled_s()[1] - before_s > 0.05
    finally:
        rival.kill()
        rival.communicate()
        os.sched_setaffinity(0, free)
