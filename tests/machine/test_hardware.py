"""What this machine says about itself: asked for real, in processes with real limits."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict

import pytest
from kernel import why_no_group

from labkit.machine import hardware, procfs

ASK_CORES = "from labkit.machine import hardware; print(hardware.cores())"


def ask_cores(before: str = "") -> int:
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{ASK_CORES}"], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_cores_follow_the_affinity_of_the_process():
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this platform has no affinity")
    one = min(os.sched_getaffinity(0))
    assert ask_cores(f"import os; os.sched_setaffinity(0, {{{one}}})") == 1


def test_cores_follow_a_containers_quota():
    """A control group like a container's; 1.5 cores count as two."""
    if reason := why_no_group("cpu"):
        pytest.skip(reason)
    folders = list(procfs.cgroup_folders("cpu"))
    usable = [f for f in folders if (f / "cpu.cfs_quota_us").exists() or (f / "cpu.max").exists()]
    group = usable[0] / f"labkit-test-{os.getpid()}"
    try:
        group.mkdir()
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_quota_us").write_text("150000")
        elif (group / "cpu.max").exists():
            (group / "cpu.max").write_text("150000 100000")
        else:
            pytest.skip("no control group that limits cpu can be made here: not handed down")
    except OSError as error:
        pytest.skip(f"no control group that limits cpu can be made here: {error}")
    else:
        join = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')"
        assert ask_cores(join) == min(2, hardware.cores())
    finally:
        if group.is_dir():
            group.rmdir()


LIMITED = {
    "version 1": {
        "memory.limit_in_bytes": "1000000",
        "memory.usage_in_bytes": "700000",
        "memory.stat": "active_file 1\ntotal_active_file 100000\ntotal_inactive_file 50000\n",
    },
    "version 2": {
        "memory.max": "1000000",
        "memory.current": "700000",
        "memory.stat": "anon 1\nactive_file 100000\ninactive_file 50000\nshmem 400000\n",
    },
}


@pytest.mark.parametrize("version", LIMITED)
def test_free_memory_is_what_a_control_group_leaves(version, tmp_path, monkeypatch):
    """The page cache gives way; files in a tmpfs do not."""
    for name, text in LIMITED[version].items():
        (tmp_path / "inner").mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    folders = [tmp_path / "inner", tmp_path]
    monkeypatch.setattr(procfs, "cgroup_folders", lambda controller: folders)
    assert hardware.free_memory_bytes() == 450_000
    assert hardware.memory_bytes() == 1_000_000


@pytest.fixture(scope="module")
def provenance():
    return hardware.provenance()


def test_provenance_is_json_and_complete(provenance):
    stored = asdict(provenance)
    assert json.loads(json.dumps(stored)) == stored
    for name in ("machine_id", "platform", "kernel", "python", "cpu_model", "revision"):
        assert stored[name] not in (None, "")
    assert (provenance.dirty is None) == (provenance.revision == "unknown")
    assert provenance.python == platform.python_version()
    known = set(hardware.LIBRARIES)
    assert known - set(hardware.OPTIONAL) <= set(provenance.versions) <= known
    assert provenance.gpu.works in (True, False)
    assert provenance.virtual in (True, False, None)
    assert provenance.cpu_count == os.cpu_count() >= provenance.cores


def test_the_machine_id_is_stable_and_gives_nothing_away(provenance):
    again = "from labkit.machine import hardware; print(hardware.provenance().machine_id)"
    done = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == provenance.machine_id
    text = json.dumps(asdict(provenance))
    raw = procfs.text("/etc/machine-id").strip()
    assert not raw or raw not in text
    assert f'"{platform.node()}"' not in text
