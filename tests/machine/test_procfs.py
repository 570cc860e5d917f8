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


# What a process sees of its control groups -> the folders whose limits apply to it.
LAYOUTS = {
    "version 1": ("3:cpu,cpuacct:/job/step", "/", "cgroup cgroup rw,cpu,cpuacct", "job/step"),
    "version 2": ("0::/job/step", "/", "cgroup2 cgroup2 rw", "job/step"),
    "a container's own group": ("3:cpu:/docker/1f", "/docker/1f", "cgroup cgroup rw,cpu", ""),
    "a group in a container": ("3:cpu:/docker/1f/step", "/docker/1f", "cgroup c rw,cpu", "step"),
    "a namespace": ("0::/step", "/", "cgroup2 cgroup2 rw", "step"),
    "another's mount": ("0::/step", "/../other", "cgroup2 cgroup2 rw", ""),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_control_groups_are_found_where_they_are_mounted(layout, tmp_path, monkeypatch):
    own, root, mount, inner = LAYOUTS[layout]
    top = tmp_path / "control groups"
    expected = [top / inner, *(top / inner).parents]
    expected = [folder for folder in expected if folder.is_relative_to(top)]
    expected[0].mkdir(parents=True)
    point = str(top).replace(" ", r"\040")
    files = {
        "/proc/self/cgroup": f"12:pids:/elsewhere\n{own}\n",
        "/proc/self/mountinfo": f"23 1 0:5 / /proc rw shared:1 - proc proc rw\n"
        f"32 23 0:29 {root} {point} rw,relatime - {mount}\n",
    }
    monkeypatch.setattr(procfs, "text", lambda path: files.get(str(path), ""))
    assert list(procfs.cgroup_folders("cpu")) == expected
