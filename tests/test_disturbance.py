"""The disturbance log: real load on this machine has to show up in it."""

import json
import mmap
import os
import subprocess
import sys
import time

import pytest

from labkit import disturbance as module
from labkit import pagecache, procfs
from labkit.disturbance import disturbance, since
from labkit.media import IN_MEMORY, describe_medium

SPIN_S = 0.6
SPIN = f"import time\nwhile time.process_time() < {SPIN_S}: pass"


def test_a_quiet_moment_is_json_and_none_is_negative():
    after = since(json.loads(json.dumps(disturbance())))
    json.dumps(after)
    assert all(value is None or value >= 0 for value in after.values())
    assert after["duration_s"] < 5


def test_own_work_and_that_of_children_is_nobody_elses():
    before = disturbance()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    after = since(before)
    if after["other_cores"] is None:
        pytest.skip("this platform does not count the time of its cores")
    total = disturbance()["busy_s"] - before["busy_s"]
    assert total >= 0.8 * SPIN_S
    assert after["other_cores"] * after["duration_s"] <= total - 0.8 * SPIN_S


def test_another_programs_work_shows():
    # Started by a process that ends at once, so that it is no child of this one.
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN!r}])"
    before = disturbance()
    subprocess.run([sys.executable, "-c", start], check=True)
    time.sleep(SPIN_S + 0.2)
    after = since(before)
    if after["other_cores"] is None:
        pytest.skip("this platform does not count the time of its cores")
    assert after["other_cores"] >= 0.3


def test_what_was_unknown_stays_unknown():
    before = dict.fromkeys(disturbance()) | {"clock_s": time.monotonic()}
    after = since(before)
    assert after["steal_share"] is None
    assert after["other_cores"] is None
    assert after["swapped_in_pages"] is None
    assert after["major_faults"] is None
    assert after["machine_major_faults"] is None


def test_counters_that_never_count_are_unknown_and_no_idle_machine(monkeypatch):
    """As in a sandbox whose /proc/stat is there and all zeros."""
    before = disturbance()
    zeros = "cpu " + "0 " * 10
    real = procfs.text
    monkeypatch.setattr(
        module.procfs, "text", lambda path: zeros if path == "/proc/stat" else real(path)
    )
    after = since({**before, "cpu_s": 0.0, "busy_s": 0.0, "steal_s": 0.0})
    assert after["steal_share"] is None
    assert after["other_cores"] is None


def test_a_memory_mapped_file_that_is_read_from_a_disk_shows_as_major_faults(tmp_path):
    before = disturbance()
    if before["major_faults"] is None or not pagecache.can_evict():
        pytest.skip("this platform does not count major faults, or cannot evict files")
    if describe_medium(tmp_path).filesystem in IN_MEMORY:
        pytest.skip("the temporary directory is in memory")
    path = tmp_path / "pages"
    path.write_bytes(os.urandom(64 * mmap.PAGESIZE))
    pagecache.evict(path)
    if pagecache.residency([path])[0] != 0.0:
        pytest.skip("this platform does not evict the file")
    before = disturbance()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        pages.madvise(mmap.MADV_RANDOM)  # else one wait brings many pages
        assert sum(pages[:: mmap.PAGESIZE]) > 0
    after = since(before)
    assert after["major_faults"] >= 64
    assert after["machine_major_faults"] >= 64
