"""The modelled disk: its arithmetic against a fake clock, its sharing between real processes.

Reference: the disks' own figures (one access and bytes over bandwidth per file), worked out by
hand here.
"""

import copy
import multiprocessing
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from labkit.machine.clock import SystemClock
from labkit.parts.packing.folder import open_folder
from labkit.parts.storage import modelled as module
from labkit.parts.storage.disks import HARD_DISK, MEMORY, NVME_SSD, SATA_SSD
from labkit.parts.storage.modelled import ModelledDisk, ModelledReader, Timetable
from tests.fake_clock import FakeClock
from tests.processes import PATIENCE_S

FILE_BYTES = 114_660
METHODS = [name for name in multiprocessing.get_all_start_methods() if name != "forkserver"]
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)  # a forkserver pickles as spawn does
NEEDS_FORK = pytest.mark.skipif("fork" not in METHODS, reason="no fork here")


class Files:
    """A reader of files that have a size and nothing else."""

    def __init__(self, sizes):
        self.image_bytes = np.array(sizes)
        self.clock = None  # a real read takes `real_s` of it
        self.real_s = 0.0

    def read(self, i):
        if self.clock is not None:
            self.clock.sleep(self.real_s)
        return b"x", i


FILES = Files([FILE_BYTES] * 40)


class LateClock(FakeClock):
    """A clock on which every sleep takes longer than wanted."""

    def __init__(self, late_s=0.0):
        super().__init__()
        self.late_s = late_s
        self.sleeps = 0

    def sleep_until(self, deadline_s):
        self.sleeps += 1
        super().sleep_until(deadline_s)
        self.sleep(self.late_s() if callable(self.late_s) else self.late_s)


def modelled(files, disk, clock=None, caches=False, method="spawn"):
    clock = clock or LateClock()
    return ModelledReader(files, disk, clock=clock, start_method=method, caches=caches)


def another(reader, clock=None, real_s=0.0):
    """What another process would have: the same disk and memory, a clock and a pace of its own."""
    other = copy.copy(reader)
    other._ahead_s = {}
    other.clock = clock or LateClock()
    other.reader = copy.copy(reader.reader)
    other.reader.clock, other.reader.real_s = other.clock, real_s
    return other


def logical_s(reader):
    """The reader's own clock: what is still to be slept included."""
    return reader.clock.now() + sum(reader._ahead_s.values())


def service_s(disk, size=FILE_BYTES):
    return disk.access_s + size / disk.bytes_per_s


# --- one reader -----------------------------------------------------------------------------


def test_a_hard_disk_takes_an_access_and_a_transfer_for_each_file_at_random():
    reader = modelled(FILES, HARD_DISK)
    for number, i in enumerate([7, 3, 30, 2, 4, 4], start=1):  # leaving out, going back, again
        reader.read(i)
        assert reader.clock.now() == pytest.approx(number * service_s(HARD_DISK))
    # EVIDENCE's check of the figures: 12.3 ms, so 81 files a second.
    assert reader.clock.now() / 6 == pytest.approx(0.0123, rel=0.005)


def test_files_in_order_need_one_access_and_have_each_its_size():
    reader = modelled(Files([1000, 500_000, 0, 20]), HARD_DISK)
    for i in range(4):
        reader.read(i)
    expected_s = HARD_DISK.access_s + 501_020 / HARD_DISK.bytes_per_s
    assert logical_s(reader) == pytest.approx(expected_s)
    assert reader.counts() == (501_020, 501_020)


@pytest.mark.parametrize(
    ("disk", "real_s", "each_s"),
    [
        (HARD_DISK, 0.005, service_s(HARD_DISK)),  # the real read is part of the modelled one
        (SATA_SSD, 0.5, 0.5),  # and counts as it is where it is slower
        (MEMORY, 0.001, 0.001),
    ],
)
def test_a_read_takes_what_the_slower_of_both_takes(disk, real_s, each_s):
    reader = another(modelled(FILES, disk), real_s=real_s)
    reader.read(9)
    reader.read(3)
    # Neither is the disk waited for nor is time earned for later reads.
    assert reader.clock.now() == logical_s(reader) == pytest.approx(2 * each_s)


# --- several readers ------------------------------------------------------------------------


def test_a_hard_disk_serves_one_reader_after_the_other():
    first = another(modelled(FILES, HARD_DISK))
    second, third = another(first), another(first)
    for number, (reader, i) in enumerate(zip((first, second, third), (30, 10, 20)), start=1):
        reader.read(i)
        assert reader.clock.now() == pytest.approx(number * service_s(HARD_DISK))
    first.read(31)  # in order for it, and another has read between
    assert first.clock.now() == pytest.approx(4 * service_s(HARD_DISK))


@pytest.mark.parametrize("late_s", [0.0, 1e-3])
@pytest.mark.parametrize("readers", [1, 8])
@pytest.mark.parametrize("disk", [HARD_DISK, SATA_SSD, NVME_SSD], ids=lambda disk: disk.name)
def test_readers_that_sleep_in_their_own_time_get_what_the_disk_delivers(disk, readers, late_s):
    draw = random.Random(1)
    files = Files([draw.randrange(60_000, 180_000) for _ in range(40)])
    reader = another(modelled(files, disk))
    processes = [
        another(reader, LateClock(lambda: draw.expovariate(1 / late_s) if late_s else 0.0), 2e-6)
        for _ in range(readers)
    ]
    reads, until_s = 0, 3.0 if disk is HARD_DISK else 0.4
    while True:
        reader = min(processes, key=lambda process: process.clock.now())
        if reader.clock.now() >= until_s:
            break
        reader.read(draw.randrange(40))
        reads += 1
    elapsed_s = max(process.clock.now() for process in processes)
    mean_bytes = reader.counts()[1] / reads
    share = reader._timetable.state.accesses / reads  # one in 40 follows the last by chance
    expected_per_s = replace(disk, access_s=disk.access_s * share).files_per_s(mean_bytes, readers)
    assert reads / elapsed_s == pytest.approx(expected_per_s, rel=0.03)


# --- the modelled page cache ----------------------------------------------------------------


def test_cold_and_warm_are_proven_in_the_same_words_as_real_ones():
    reader = modelled(FILES, HARD_DISK, caches=True)
    ids = np.arange(10)
    for cache, share, fetched in (("warm", 1.0, 0), ("cold", 0.0, 10 * FILE_BYTES)):
        proof = reader.prepare(cache, ids)  # forgets what was read before
        for i in ids:
            reader.read(i)
        assert reader.prove(ids, proof) == {
            "wanted": cache,
            "method": "modelled",
            "measured_by": "modelled",
            "resident_share_before": share,
            "file_bytes": 10 * FILE_BYTES,
            "resident_share_after": 1.0,
            "logical_read_bytes": 10 * FILE_BYTES,
            "device_read_bytes": fetched,
        }


# --- real processes, real clock; nothing here depends on how fast they are ------------------


def read_all(reader, numbers):
    for i in numbers:
        assert reader.read(i)[1] == i


@EVERY_METHOD
def test_worker_processes_share_the_disk_and_the_memory(method):
    total_bytes = 40 * FILE_BYTES
    reader = modelled(FILES, HARD_DISK, SystemClock(), True, method)
    context = multiprocessing.get_context(method)
    begun_s = reader.clock.now()
    halves = [range(half, 40, 2) for half in (0, 1)]
    workers = [context.Process(target=read_all, args=(reader, half)) for half in halves]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert reader.counts() == (total_bytes, total_bytes)
    read_all(reader, range(40))  # from the memory that the workers filled
    assert reader.counts() == (2 * total_bytes, total_bytes)
    assert reader.prove(np.arange(40), {})["resident_share_after"] == 1.0
    # One disk: all transfers come one after the other, and at least one access; a worker may
    # still owe some milliseconds when the epoch ends.
    at_least_s = HARD_DISK.access_s + total_bytes / HARD_DISK.bytes_per_s
    assert reader.clock.now() >= begun_s + at_least_s - 2 * module.PAY_FROM_S


@NEEDS_FORK
def test_a_worker_that_is_killed_in_a_read_is_an_error_for_the_others_and_no_hang(monkeypatch):
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.1)
    reader = modelled(FILES, SATA_SSD, SystemClock(), method="fork")

    def killed_while_it_books():
        Timetable.book = lambda *_: os._exit(1)
        reader.read(0)

    worker = multiprocessing.get_context("fork").Process(target=killed_while_it_books)
    worker.start()
    worker.join()
    assert worker.exitcode == 1
    with ThreadPoolExecutor() as beside:
        with pytest.raises(RuntimeError, match="a process was killed while it used the modelled"):
            beside.submit(reader.read, 1).result(PATIENCE_S)


# --- the self-check -------------------------------------------------------------------------


@NEEDS_FORK
def test_the_check_measures_at_random_and_in_order(photos):
    reader = open_folder(photos)
    storage = ModelledDisk(name="modelled_hdd", directory=photos, disk=HARD_DISK)
    in_two, in_order = storage.measure(reader, range(len(reader)), 2, "fork", 0.2)
    assert (in_two.pattern, in_two.readers) == ("random", 2)
    assert (in_order.pattern, in_order.readers) == ("sequential", 1)
    assert 60 < in_two.requested_per_s < in_order.requested_per_s
    assert in_two.delivered_per_s > 0
    assert in_order.delivered_per_s > 0
