"""Storage against the real page cache: real files, on a disk and on tmpfs.

Reference: cachestat and mincore count pages independently of each other; the bytes
that came from the device are the kernel's own count for this process.
"""

import json
import mmap
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from kernel import (
    needs_fork,
    needs_read_counts,
    why_no_throttled_disk,
    why_not_evicted,
    with_mounts_of_its_own,
)
from places import folder_in_memory

from labkit.contracts import Skip
from labkit.machine import page_cache
from labkit.machine.media import write_media
from labkit.parts.storage import STORAGES, cache_state
from labkit.parts.storage.cache_state import make_cold, make_warm, prepare, prove
from labkit.thresholds import COLD_MAX_SHARE, WARM_MIN_SHARE
from tests.processes import PATIENCE_S

FILE_BYTES = 300_000  # 74 pages, the last one partial


def make_files(folder: Path, count: int = 20) -> list[Path]:
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for path in paths:
        path.write_bytes(os.urandom(FILE_BYTES))
    return paths


@pytest.fixture
def files(tmp_path):
    if reason := why_not_evicted(tmp_path):
        pytest.skip(reason)
    return make_files(tmp_path)


@pytest.fixture
def shared_memory():
    with folder_in_memory() as folder:
        yield folder


def read_all(paths):
    for path in paths:
        path.read_bytes()


@pytest.mark.parametrize(
    ("cache", "method", "share"), [("cold", "fadvise", 0), ("warm", "read", 1)]
)
def test_a_proof_says_how_the_state_was_made_and_measured(files, cache, method, share):
    make_warm(files) if cache == "cold" else make_cold(files)
    proof = prepare(files, cache)
    assert (proof["wanted"], proof["method"]) == (cache, method)
    assert proof["measured_by"] in page_cache.COUNTERS
    assert proof["resident_share_before"] == pytest.approx(share, abs=COLD_MAX_SHARE)
    read_all(files)
    proof = prove(files, proof)
    assert proof["resident_share_after"] >= WARM_MIN_SHARE
    assert proof["file_bytes"] == len(files) * FILE_BYTES
    assert "read_before" not in proof


def read_all_and(how, paths, pipe):
    """What a worker does: reads, says so, and ends in one of several ways."""
    read_all(paths)
    pipe.send("read")
    if how in ("killed", "alive"):
        pipe.recv()


@needs_fork
@needs_read_counts
@pytest.mark.parametrize("how", ["by itself", "killed", "ended, not waited for", "alive"])
def test_bytes_read_by_worker_processes_count_however_they_end(files, how):
    context = multiprocessing.get_context("fork")
    pipe, its_pipe = context.Pipe()
    proof = prepare(files, "cold")
    worker = context.Process(target=read_all_and, args=(how, files, its_pipe))
    worker.start()
    assert pipe.poll(PATIENCE_S)
    if how == "killed":
        worker.kill()
    if how == "ended, not waited for":
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    elif how != "alive":
        worker.join()
    proof = prove(files, proof)
    pipe.send("go on")
    worker.join()
    total_bytes = len(files) * FILE_BYTES
    assert 0.98 * total_bytes <= proof["device_read_bytes"] <= 1.2 * total_bytes


ZOMBIE, GONE = psutil.ZombieProcess(7), psutil.NoSuchProcess(7)


@pytest.mark.parametrize(
    ("processes", "are_fetches_counted", "read"),
    [
        ([(150, 70)], True, (50, 20)),
        ([(150, 70)], False, (50, None)),
        ([(100, 60), (50, 10)], True, (50, 20)),
        ([(150, 70), GONE], True, (50, 20)),
        # What others read is not known: a part of it would be no proof.
        ([(150, 70), ZOMBIE], True, (None, None)),
        ([(150, 70), psutil.AccessDenied(7)], True, (None, None)),
        ([(90, 70)], True, (None, 20)),  # a child took its counts along
    ],
    ids=str,
)
def test_bytes_are_unknown_where_those_of_a_process_are(
    tmp_path, monkeypatch, processes, are_fetches_counted, read
):
    def counters(counts):
        if isinstance(counts, Exception):
            raise counts
        return SimpleNamespace(read_chars=counts[0], read_bytes=counts[1])

    fakes = [SimpleNamespace(io_counters=partial(counters, counts)) for counts in processes]
    monkeypatch.setattr(cache_state, "lowest_first", lambda: fakes)
    proof = {"read_before": (100, 50), "are_fetches_counted": are_fetches_counted}
    proof = prove(make_files(tmp_path, count=1), proof)
    assert (proof["logical_read_bytes"], proof["device_read_bytes"]) == read


def test_a_file_that_someone_has_mapped_skips_cold_with_numbers(files):
    with files[0].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert sum(pages[:: mmap.PAGESIZE]) > 0  # touch every page
        with pytest.raises(Skip, match=r"100\.0 % .* in memory after 3 tries; .* mapped"):
            prepare(files[:1], "cold")


def test_files_on_tmpfs_cannot_be_cold_but_warm(shared_memory):
    paths = make_files(shared_memory, count=3)
    with pytest.raises(Skip, match="cold data needs files that can be evicted; tmpfs keeps"):
        prepare(paths, "cold")
    assert prepare(paths, "warm")["resident_share_before"] == 1.0


def test_files_that_do_not_stay_in_memory_skip_warm_with_numbers(files, monkeypatch):
    monkeypatch.setitem(page_cache.COUNTERS, "cachestat", lambda file, start, stop: 37)
    with pytest.raises(Skip, match=r"at least 98\.0 % in memory, but 50\.0 % .* fewer images"):
        prepare(files, "warm")


@pytest.fixture
def blind(monkeypatch):
    """Make some of the counters say 0 whatever is read, as cachestat does on overlayfs."""

    def make(*names):
        monkeypatch.setattr(page_cache, "_NOTICES", {})
        for name in names:
            monkeypatch.setitem(page_cache.COUNTERS, name, lambda file, start, stop: 0)

    return make


def test_a_counter_that_does_not_notice_reads_is_not_believed(files, blind):
    blind("cachestat")
    for cache, share in (("warm", 1), ("cold", 0)):
        proof = prepare(files, cache)
        assert proof["measured_by"] == "mincore"
        assert proof["resident_share_before"] == pytest.approx(share, abs=COLD_MAX_SHARE)


def test_where_no_counter_can_tell_fetched_bytes_prove_cold_and_warm_is_not_verified(files, blind):
    blind("cachestat", "mincore")
    make_warm(files)
    proof = prepare(files, "cold")
    assert (proof["measured_by"], proof["resident_share_before"]) == ("fetched bytes", None)
    read_all(files)
    assert prove(files, proof)["device_read_bytes"] >= 0.98 * len(files) * FILE_BYTES
    proof = prepare(files, "warm")
    assert (proof["measured_by"], proof["resident_share_before"]) == ("unknown", None)


def test_where_nothing_can_tell_cold_is_skipped_with_the_reason(files, blind, monkeypatch):
    blind("cachestat", "mincore")
    monkeypatch.setattr(page_cache, "fetched_bytes", lambda path: 0)
    reason = "neither the page cache nor the bytes that come from a disk can be looked at"
    for cache in ("cold", 50):
        extents = [(path, 0, FILE_BYTES) for path in files]
        with pytest.raises(Skip, match=f"cache {cache} must be verified, but on .* {reason}"):
            prepare(files, cache, extents)


def test_fetches_of_files_in_memory_are_not_counted_as_a_disks(files, shared_memory):
    assert page_cache.fetched_bytes(files[0]) > 0
    (path,) = make_files(shared_memory, count=1)
    assert page_cache.fetched_bytes(path) == 0


IN_A_SANDBOX = """
import os, subprocess, sys
from pathlib import Path
from labkit.machine.page_cache import fetched_bytes

subprocess.run(["mount", "--bind", sys.argv[1], f"/proc/{os.getpid()}/io"], check=True)
print(fetched_bytes(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("counts", ["", "rchar: 5\n"], ids=["none", "some"])
def test_where_a_sandbox_counts_no_fetches_there_are_none(counts, tmp_path):
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can mount")
    (tmp_path / "io").write_text(counts)
    command = [*with_mounts_of_its_own(), sys.executable, "-c", IN_A_SANDBOX, tmp_path / "io"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "0\n"


# Counts by itself, in the file below the overlay: its pages are those that are read.
ON_OVERLAY = """
import ctypes, json, mmap, os, subprocess, sys
from pathlib import Path
import numpy as np
from labkit.parts.storage.cache_state import prepare, prove

def resident(path):
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        pages = ctypes.create_string_buffer(-(-len(mapped) // mmap.PAGESIZE))
        array = np.frombuffer(mapped, np.uint8)
        mincore = ctypes.CDLL(None, use_errno=True).mincore
        mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        assert mincore(array.ctypes.data, array.nbytes, pages) == 0
        del array
    return sum(page & 1 for page in pages.raw) / len(pages.raw)

folder = Path(sys.argv[1])
lower, upper, work, merged = (folder / name for name in ("lower", "upper", "work", "merged"))
for part in (lower, upper, work, merged):
    part.mkdir()
(lower / "lower.jpg").write_bytes(os.urandom(300_000))  # dirty, and its sync stops at the overlay
layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, merged], check=True)
(merged / "upper.jpg").write_bytes(os.urandom(300_000))
for below in (lower / "lower.jpg", upper / "upper.jpg"):
    path = merged / below.name
    for cache in ("cold", "warm", "cold"):
        proof = prepare([path], cache)
        counted = resident(below)
        path.read_bytes()
        print(json.dumps([cache, counted, prove([path], proof)]))
"""


def test_on_overlayfs_the_files_below_are_evicted_and_counted(tmp_path):
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can mount")
    can = with_mounts_of_its_own()
    (tmp_path / "script.py").write_text(ON_OVERLAY)
    shown = subprocess.run(
        [*can, sys.executable, tmp_path / "script.py", tmp_path], capture_output=True, text=True
    )
    if "mount" in shown.stderr and not shown.stdout:
        pytest.skip(f"no overlayfs here: {shown.stderr.splitlines()[0]}")
    assert shown.returncode == 0, shown.stderr
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row[0] for row in rows] == ["cold", "warm", "cold"] * 2
    for cache, counted, proof in rows:
        assert counted == proof["resident_share_before"] == (1.0 if cache == "warm" else 0.0)
    # The first eviction had to write the file: from then on its disk is known to count.
    fetched = [proof["device_read_bytes"] for cache, _, proof in rows if cache == "cold"]
    assert all(fetched_bytes >= FILE_BYTES for fetched_bytes in fetched[1:])


def test_files_that_cannot_be_synced_are_evicted_all_the_same(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")  # as before Linux 6.5
    file = Path("/proc/version")  # which refuses a sync as those of squashfs do
    if not file.exists():
        pytest.skip("there is no /proc")
    with file.open("rb") as opened, pytest.raises(OSError, match="Invalid argument"):
        os.fdatasync(opened.fileno())
    page_cache.evict(file)


def residency_as_nobody(paths):
    os.setuid(65534)
    return page_cache.residency(paths)


def test_what_the_kernel_hides_from_a_stranger_is_unknown_not_warm():
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101
        paths = make_files(Path(folder), count=2)
        for path in paths:
            path.chmod(0o444)
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as stranger:
            found = stranger.submit(residency_as_nobody, paths).result(PATIENCE_S)
    assert found == (None, "unknown")


def test_without_fadvise_cold_is_skipped_and_warm_still_works(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    paths = make_files(tmp_path, count=2)
    reason = "cold data needs posix_fadvise, which this platform does not have"
    with pytest.raises(Skip, match=re.escape(reason)):
        prepare(paths, "cold")
    assert prepare(paths, "warm")["method"] == "read"


@pytest.mark.parametrize("name", STORAGES)
def test_every_storage_says_where_the_data_is_and_what_to_call_it(tmp_path, name):
    if name == "throttled" and (reason := why_no_throttled_disk()):
        pytest.skip(reason)
    make_files(tmp_path, count=2)
    write_media("labkit.toml", **dict.fromkeys(("hdd", "ssd", "nvme"), "."))
    stored = STORAGES[name](tmp_path)
    assert stored.name == name
    if stored.copy is None:
        assert len(list(stored.directory.glob("*.jpg"))) == 2
    else:  # nothing is copied before a run asks for it
        assert stored.directory.parent == stored.copy
        assert tmp_path.name in stored.copy.name
    assert stored.hardware.kind == "storage"
    assert stored.hardware.how == "real" or stored.hardware.details
