"""Linux's own text files: how lines are taken apart, and what is there where there are none."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.machine import procfs

# Docker on ext4, with a bind mount whose name has a blank in it.
MOUNTINFO = r"""
610 520 0:51 / / rw,relatime master:240 - overlay overlay rw,lowerdir=/a:/b,upperdir=/c
611 610 8:1 /srv/my\040photos /data rw - ext4 /dev/sda1 rw,errors=remount-ro
612 610 0:28 /docker/abc /sys/fs/cgroup/cpu ro shared:9 - cgroup cgroup rw,cpu,cpuacct
""".strip()


def test_mounts_are_taken_apart():
    overlay, photos, cgroup = procfs.parse_mounts(MOUNTINFO)
    assert (overlay.filesystem, overlay.point, overlay.device_number) == (
        "overlay",
        Path("/"),
        "0:51",
    )
    assert (photos.source, photos.root, photos.device_number) == (
        "/dev/sda1",
        "/srv/my photos",
        "8:1",
    )
    assert cgroup.options == ("rw", "cpu", "cpuacct")


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
        before_s, ends_s = procfs.queued_s(), time.thread_time() + 0.2
        while time.thread_time() < ends_s:
            pass
        assert procfs.queued_s() - before_s > 0.05
    finally:
        rival.kill()
        rival.communicate()
        os.sched_setaffinity(0, free)
