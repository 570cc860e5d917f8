"""The modelled disk: its arithmetic against a fake clock, its sharing between real processes.

Reference: the disks' own figures (one access and bytes over bandwidth per file), worked out by
hand here, and a page cache as a plain ordered dict.  Speed itself is `check`'s business, not a
test's: what is tested of it is only that it counts and refuses.
"""

import copy
import multiprocessing
import random
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.clock import SystemClock
from labkit.parts.packing.folder import open_folder
from labkit.parts.storage import shared_disk
from labkit.parts.storage.disks import HARD_DISK, MEMORY, NVME_SSD, SATA_SSD, Disk, Rate
from labkit.parts.storage.modelled import (
    MAX_CREDIT_S,
    PAY_FROM_S,
    ModelledReader,
    check,
)
from labkit.parts.storage.shared_disk import PageCache, Timetable
from labkit.trial import Skip
from tests.fake_clock import FakeClock

FILE_BYTES = 114_660
METHODS = [name for name in multiprocessing.get_all_start_methods() if name != "forkserver"]
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)  # a forkserver pickles as spawn does
CONTEXT = multiprocessing.get_context("spawn")  # nothing is started with it


class Files:
    """A reader of files that have a size and nothing else."""

    boxes = "synthesized"

    def __init__(self, paths):
        self.paths = tuple(paths)
        self.clock = None  # a real read takes `real_s` of it
        self.real_s = 0.0

    @property
    def image_bytes(self):
        return [path.stat().st_size if path.exists() else 0 for path in self.paths]

    def __len__(self):
        return len(self.paths)

    def read(self, i):
        if not 0 <= i < len(self):
            raise IndexError(i)
        if self.clock is not None:
            self.clock.sleep(self.real_s)
        return self.paths[i].read_bytes()[:1], i

    def verify(self, indices):
        return [f"{len(list(indices))} compared"]


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


class LoadedFiles:
    """A map-style dataset, as a DataLoader takes it."""

    def __init__(self, reader):
        self.reader = reader

    def __len__(self):
        return len(self.reader)

    def __getitem__(self, i):
        return self.reader.read(i)[1]


def make_files(folder, sizes):
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:03}.jpg" for number in range(len(sizes))]
    for path, size in zip(paths, sizes):
        with path.open("wb") as file:
            file.truncate(size)
    return Files(paths)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """40 files of one size."""
    return make_files(tmp_path_factory.mktemp("data") / "files", [FILE_BYTES] * 40)


def modelled(files, disk, clock=None, cache_bytes=0):
    clock = clock or LateClock()
    return ModelledReader(files, disk, clock=clock, start_method="spawn", cache_bytes=cache_bytes)


def another(reader, clock=None, real_s=0.0):
    """What another process would have: the same disk and memory, a clock and a pace of its own."""
    other = copy.copy(reader)
    other._pace = type(reader._pace)()
    other.clock = clock or LateClock()
    other.reader = copy.copy(reader.reader)
    other.reader.clock, other.reader.real_s = other.clock, real_s
    return other


def logical_s(reader):
    """The reader's own clock: what is still to be slept included."""
    return reader.clock.now() + reader._pace.ahead_s


def service_s(disk, size=FILE_BYTES):
    return disk.access_s + size / disk.bytes_per_s


# One reader


def test_a_hard_disk_takes_an_access_and_a_transfer_for_each_file_at_random(files):
    reader = modelled(files, HARD_DISK)
    for number, i in enumerate([7, 3, 30, 2], start=1):
        reader.read(i)
        assert reader.clock.now() == pytest.approx(number * service_s(HARD_DISK))
    # EVIDENCE's check of the figures: 12.3 ms, so 81 files a second.
    assert reader.clock.now() / 4 == pytest.approx(0.0123, rel=0.005)
    assert 4 / reader.clock.now() == pytest.approx(81, rel=0.005)


def test_files_in_order_need_one_access(files):
    reader = modelled(files, HARD_DISK)
    reader.read(4)
    begun_s = logical_s(reader)
    for i in range(5, 40):
        reader.read(i)
    # 1,340 files a second, 16 times as many.
    assert 35 / (logical_s(reader) - begun_s) == pytest.approx(1340, rel=0.005)


def test_going_back_or_leaving_a_file_out_is_an_access(files):
    reader = modelled(files, HARD_DISK)
    for i in [4, 6, 5, 5]:
        reader.read(i)
    assert reader.clock.now() == pytest.approx(4 * service_s(HARD_DISK))


def test_files_lie_in_the_order_of_their_indices_each_with_its_size(tmp_path):
    reader = modelled(make_files(tmp_path, [1000, 500_000, 0, 20]), HARD_DISK)
    for i in range(4):
        reader.read(i)
    expected_s = HARD_DISK.access_s + 501_020 / HARD_DISK.bytes_per_s
    assert logical_s(reader) == pytest.approx(expected_s)
    assert reader.counts() == (501_020, 501_020)


def test_the_real_read_is_part_of_the_modelled_one(files):
    reader = another(modelled(files, HARD_DISK), real_s=0.005)
    reader.read(9)
    assert reader.clock.now() == pytest.approx(service_s(HARD_DISK))


def test_a_real_read_slower_than_the_disk_counts_as_it_is(files):
    reader = another(modelled(files, SATA_SSD), real_s=0.5)
    reader.read(9)
    reader.read(3)
    assert reader.clock.now() == pytest.approx(1.0)
    assert reader.clock.sleeps == 0


def test_work_between_reads_passes_on_both_clocks(files):
    reader = modelled(files, HARD_DISK)
    reader.read(9)
    reader.clock.sleep(0.1)
    reader.read(3)
    assert reader.clock.now() == pytest.approx(0.1 + 2 * service_s(HARD_DISK))


def test_memory_takes_no_time(files):
    reader = another(modelled(files, MEMORY), real_s=1e-4)
    for i in range(40):
        reader.read(i)
    assert reader.clock.now() == pytest.approx(40e-4)
    assert reader.clock.sleeps == 0


# Debt


def test_short_reads_are_slept_for_together_and_exactly(files):
    reader, each_s = modelled(files, SATA_SSD), service_s(SATA_SSD)  # 0.28 ms
    together = int(np.ceil(PAY_FROM_S / each_s))
    order = list(range(39, -1, -1))
    for number, i in enumerate(order[:together], start=1):
        assert reader.clock.sleeps == 0
        reader.read(i)
        assert logical_s(reader) == pytest.approx(number * each_s)
    assert reader.clock.sleeps == 1
    assert reader.clock.now() == pytest.approx(together * each_s)
    for i in order[together:]:
        reader.read(i)
    assert logical_s(reader) == pytest.approx(40 * each_s)
    assert reader.clock.sleeps == 40 // together


def test_twenty_accesses_of_an_ssd_are_no_reason_to_sleep(tmp_path):
    reader = modelled(make_files(tmp_path, [1] * 40), SATA_SSD)
    for i in range(38, -2, -2):  # 20 of 77 µs
        reader.read(i)
    assert reader.clock.sleeps == 0
    assert logical_s(reader) == pytest.approx(20 * service_s(SATA_SSD, 1))


def test_what_stays_unpaid_is_less_than_the_threshold(files):
    reader = modelled(files, SATA_SSD)
    for i in range(39, -1, -1):
        reader.read(i)
        assert 0 <= logical_s(reader) - reader.clock.now() < PAY_FROM_S


def test_a_late_awakening_is_made_up_for(files):
    reader = modelled(files, HARD_DISK, LateClock(late_s=0.004))
    for i in [30, 20, 10]:
        reader.read(i)
    assert reader.clock.now() == pytest.approx(3 * service_s(HARD_DISK) + 0.004)


def test_a_suspended_reader_earns_no_free_reads(files):
    reader = modelled(files, HARD_DISK, LateClock(late_s=60.0))
    reader.read(30)
    reader.clock.late_s = 0.0
    awake_s = reader.clock.now()
    for i in range(38, -2, -2):
        reader.read(i)
    assert reader.clock.now() - awake_s == pytest.approx(20 * service_s(HARD_DISK) - MAX_CREDIT_S)


# Several readers


def test_a_hard_disk_serves_one_reader_after_the_other(files):
    first = another(modelled(files, HARD_DISK))
    second, third = another(first), another(first)
    for number, (reader, i) in enumerate(zip((first, second, third), (30, 10, 20)), start=1):
        reader.read(i)
        assert reader.clock.now() == pytest.approx(number * service_s(HARD_DISK))
    first.read(5)  # asked for when its own first file was there, served after the third's
    assert first.clock.now() == pytest.approx(4 * service_s(HARD_DISK))


def test_a_reader_in_order_loses_that_to_another_between(files):
    first = another(modelled(files, HARD_DISK))
    second = another(first)
    for reader, i in ((first, 0), (second, 30), (first, 1), (second, 31)):
        reader.read(i)
    assert second.clock.now() == pytest.approx(4 * service_s(HARD_DISK))


def test_an_ssd_has_eight_accesses_under_way_and_one_transfer(files):
    readers = [another(modelled(files, SATA_SSD))]
    readers += [another(readers[0]) for _ in range(8)]
    transfer_s = FILE_BYTES / SATA_SSD.bytes_per_s
    for number, reader in enumerate(readers[:8], start=1):
        reader.read(4 * number)
        assert logical_s(reader) == pytest.approx(SATA_SSD.access_s + number * transfer_s)
    # The ninth waits for the first channel, and then for the bus, which it finds taken.
    readers[8].read(2)
    assert logical_s(readers[8]) == pytest.approx(SATA_SSD.access_s + 9 * transfer_s)


def test_the_ninth_access_waits_for_a_channel(tmp_path):
    files = make_files(tmp_path, [56] * 40)  # 0.1 µs to transfer
    readers = [another(modelled(files, SATA_SSD))]
    readers += [another(readers[0]) for _ in range(8)]
    for number, reader in enumerate(readers):
        reader.read(4 * number)
    assert logical_s(readers[7]) == pytest.approx(SATA_SSD.access_s + 8 * 1e-7)
    assert logical_s(readers[8]) == pytest.approx(2 * SATA_SSD.access_s + 2e-7, rel=0.01)


ROUND_FIGURES = Disk(name="", access_s=0.1, bytes_per_s=1000.0, channels=4, source="")


def booked(timetable, requests, size):
    # Offsets that never follow each other.
    return [timetable.book(2 * n * size, size, at_s) for n, at_s in enumerate(requests)]


def test_a_late_request_gets_time_that_the_bus_did_not_need(monkeypatch):
    monkeypatch.setattr(shared_disk, "DISORDER_S", 0.0)
    timetable = Timetable(CONTEXT, ROUND_FIGURES)
    # Transfers 0.1 to 0.3 and 10.1 to 10.3; then one that was asked for at 5.
    assert booked(timetable, [0.0, 10.0, 5.0], 200) == pytest.approx([0.3, 10.3, 5.3])
    # From 9.9 there are 0.2 s left before the next one, and 0.1 s after it.
    assert timetable.book(10**6, 300, 9.8) == pytest.approx(10.4)


def test_idle_time_is_given_away_once(monkeypatch):
    monkeypatch.setattr(shared_disk, "DISORDER_S", 0.0)
    timetable = Timetable(CONTEXT, ROUND_FIGURES)
    ends_s = booked(timetable, [0.0, 10.0, 9.0, 9.0, 9.0], 500)
    # 9.1 to 10.1 is idle, enough for two; the last one comes after the transfer until 10.6.
    assert ends_s == pytest.approx([0.6, 10.6, 9.6, 10.1, 11.1])


def test_only_a_late_request_gets_idle_time_shortly_before_it(monkeypatch):
    monkeypatch.setattr(shared_disk, "DISORDER_S", 0.4)
    in_order, late = (Timetable(CONTEXT, ROUND_FIGURES) for _ in range(2))
    assert booked(in_order, [0.0, 1.0, 1.0], 200) == pytest.approx([0.3, 1.3, 1.5])
    # Idle until 1.1: 0.1 s of it from 1.0 on, the other 0.1 s from before; never sooner than alone.
    assert booked(late, [0.0, 1.0, 0.9], 200) == pytest.approx([0.3, 1.3, 1.2])


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 0.02), st.integers(1, 2_000_000)), min_size=1, max_size=120))
def test_no_order_of_requests_makes_a_disk_faster_than_it_is(requests):
    timetable = Timetable(CONTEXT, SATA_SSD)
    ends_s = []
    for number, (at_s, size) in enumerate(requests):
        ends_s.append(timetable.book(number * 10**8, size, at_s))
        assert ends_s[-1] >= at_s + service_s(SATA_SSD, size) - 1e-9
    whole_s = sum(size for _, size in requests) / SATA_SSD.bytes_per_s
    assert timetable.busy_until_s == pytest.approx(max(ends_s))
    assert max(ends_s) >= min(at_s for at_s, _ in requests) + whole_s - 1e-9
    assert timetable.accesses == len(requests)


@pytest.mark.parametrize("late_s", [0.0, 1e-3])
@pytest.mark.parametrize("readers", [1, 2, 3, 8])
@pytest.mark.parametrize("disk", [HARD_DISK, SATA_SSD, NVME_SSD], ids=lambda disk: disk.name)
def test_readers_that_sleep_in_their_own_time_get_what_the_disk_delivers(
    tmp_path, disk, readers, late_s
):
    draw = random.Random(1)
    files = make_files(tmp_path, [draw.randrange(60_000, 180_000) for _ in range(40)])
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
    share = reader._timetable.accesses / reads  # one in 40 follows the last by chance
    expected_per_s = replace(disk, access_s=disk.access_s * share).files_per_s(mean_bytes, readers)
    assert reads / elapsed_s == pytest.approx(expected_per_s, rel=0.03)


# The modelled page cache


def test_a_second_epoch_costs_nothing(files):
    reader = modelled(files, HARD_DISK, cache_bytes=40 * FILE_BYTES)
    for i in range(40):
        reader.read(i)
    read_s = logical_s(reader)
    for i in range(39, -1, -1):
        reader.read(i)
    assert logical_s(reader) == read_s
    assert reader.counts() == (80 * FILE_BYTES, 40 * FILE_BYTES)
    assert reader.resident_share(range(40)) == 1.0


def test_the_least_recently_used_file_goes_first(files):
    reader = modelled(files, HARD_DISK, cache_bytes=3 * FILE_BYTES)
    for i in [0, 1, 2, 0, 3]:
        reader.read(i)
    assert [reader.resident_share([i]) for i in range(4)] == [1.0, 0.0, 1.0, 1.0]
    assert reader.resident_share(range(4)) == 0.75


def test_scanning_more_than_fits_never_hits(files):
    reader = modelled(files, HARD_DISK, cache_bytes=39 * FILE_BYTES)
    for _ in range(3):
        for i in range(40):
            reader.read(i)
    assert reader.counts() == (120 * FILE_BYTES, 120 * FILE_BYTES)


@given(
    st.lists(st.integers(0, 9), max_size=80),
    st.lists(st.integers(0, 50), min_size=10, max_size=10),
    st.integers(0, 150),
)
def test_the_page_cache_is_an_ordered_dict(reads, sizes, capacity_bytes):
    cache = PageCache(CONTEXT, np.array(sizes), capacity_bytes)
    reference = OrderedDict()
    for i in reads:
        assert cache.touch(i) == (i in reference)
        if sizes[i] <= capacity_bytes:
            reference[i] = sizes[i]
            reference.move_to_end(i)
        while sum(reference.values()) > capacity_bytes:
            reference.popitem(last=False)
        assert set(np.flatnonzero(cache.holds(np.arange(10)))) == set(reference)


def test_cold_and_warm_are_proven_in_the_same_words_as_real_ones(files):
    reader = modelled(files, HARD_DISK, cache_bytes=30 * FILE_BYTES)
    ids = np.arange(10)
    for cache, share, fetched in (("warm", 1.0, 0), ("cold", 0.0, 10 * FILE_BYTES)):
        proof = reader.prepare(cache, ids)
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


def test_setting_the_cache_forgets_what_was_read(files):
    reader = modelled(files, HARD_DISK, cache_bytes=30 * FILE_BYTES)
    for i in range(20):
        reader.read(i)
    reader.clock.time_s = 0.0
    reader.set_cache("cold", [])
    assert reader.counts() == (0, 0)
    assert reader.resident_share(range(40)) == 0.0
    reader.read(20)  # follows no longer
    assert reader.clock.now() == pytest.approx(service_s(HARD_DISK))


def test_warm_data_must_fit(files):
    reader = modelled(files, HARD_DISK, cache_bytes=2 * FILE_BYTES)
    reader.set_cache("warm", [0, 1, 1])
    with pytest.raises(Skip, match=r"must fit into 229 KB of modelled memory, got 344 KB; use"):
        reader.set_cache("warm", [0, 1, 2])
    with pytest.raises(ValueError, match="cache must be one of cold, warm"):
        reader.set_cache("lukewarm", [0])


def test_the_share_of_no_bytes_is_unknown(files):
    assert modelled(files, HARD_DISK).resident_share([]) is None


# The wrapper


def test_all_else_is_the_wrapped_readers(files):
    reader = modelled(files, MEMORY)
    assert (len(reader), reader.paths, reader.boxes) == (40, files.paths, "synthesized")
    assert reader.verify([1, 2]) == ["2 compared"]
    assert reader.read(np.int64(3)) == files.read(3)
    with pytest.raises(AttributeError, match="colour"):
        _ = reader.colour
    with pytest.raises(IndexError):
        reader.read(-1)
    assert reader.counts() == (FILE_BYTES, FILE_BYTES)  # what failed is not counted


def test_a_missing_file_is_the_wrapped_readers_to_report(tmp_path):
    files = make_files(tmp_path, [10, 10])
    files.paths[1].unlink()
    reader = modelled(files, MEMORY)
    reader.read(0)
    with pytest.raises(FileNotFoundError, match="001"):
        reader.read(1)


# Real processes, real clock; nothing here depends on how fast they are


@EVERY_METHOD
def test_workers_of_a_data_loader_share_the_disk_and_the_memory(files, method):
    import torch

    total_bytes = 40 * FILE_BYTES
    reader = ModelledReader(
        files, HARD_DISK, clock=SystemClock(), start_method=method, cache_bytes=total_bytes
    )
    begun_s = reader.clock.now()
    loader = torch.utils.data.DataLoader(
        LoadedFiles(reader),
        num_workers=2,
        batch_size=4,
        multiprocessing_context=method,
        persistent_workers=method == "spawn",  # starting those takes seconds
    )
    for epoch in (1, 2):
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(40))
        assert reader.counts() == (epoch * total_bytes, total_bytes)
    assert reader.resident_share(range(40)) == 1.0
    # One disk: its clock has all transfers, and at least one access.
    at_least_s = HARD_DISK.access_s + total_bytes / HARD_DISK.bytes_per_s
    assert reader._timetable.busy_until_s >= begun_s + at_least_s


def read_all(reader, ids):
    for i in ids:
        reader.read(i)


@EVERY_METHOD
def test_two_processes_take_as_long_as_the_disk_takes_for_both(files, method):
    reader = ModelledReader(
        files, HARD_DISK, clock=SystemClock(), start_method=method, cache_bytes=0
    )
    begun_s = reader.clock.now()
    context = multiprocessing.get_context(method)
    # No file of one follows a file of the other.
    processes = [
        context.Process(target=read_all, args=(reader, range(start, -1, -4))) for start in (38, 36)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert reader._timetable.accesses == 20
    assert reader._timetable.busy_until_s >= begun_s + 20 * service_s(HARD_DISK)
    assert reader.clock.now() >= reader._timetable.busy_until_s - PAY_FROM_S


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_a_forked_process_begins_without_its_parents_debt(files):
    reader = modelled(files, SATA_SSD)
    reader.read(9)
    assert reader._pace.of_this_process().ahead_s > 0
    context = multiprocessing.get_context("fork")
    ahead = context.SimpleQueue()
    process = context.Process(target=lambda: ahead.put(reader._pace.of_this_process().ahead_s))
    process.start()
    process.join()
    assert ahead.get() == 0.0


# The self-check


@pytest.mark.alone
@EVERY_METHOD
def test_the_check_measures_at_random_and_in_order(photos, method):
    reader = ModelledReader(
        open_folder(photos), HARD_DISK, clock=SystemClock(), start_method=method, cache_bytes=0
    )
    in_two, in_order = check(reader, 2, seconds=0.2)
    assert (in_two.pattern, in_two.readers) == ("random", 2)
    assert (in_order.pattern, in_order.readers) == ("sequential", 1)
    assert 60 < in_two.requested_per_s < 90  # a few files follow each other by chance
    assert in_order.requested_per_s > 300
    assert in_two.delivered_per_s > 0
    assert in_order.delivered_per_s > 0
    assert reader.counts() == (0, 0)


def test_the_check_reads_only_what_it_may(photos):
    broken = open_folder(photos)
    reader = ModelledReader(
        broken, MEMORY, clock=SystemClock(), start_method="spawn", cache_bytes=0
    )
    assert not any(rate.refused for rate in check(reader, 1, seconds=0.01, ids=[2, 3]))
    with pytest.raises(IndexError):
        check(reader, 1, seconds=0.01, ids=[24])
    with pytest.raises(ValueError, match="readers must be at least 1, got 0"):
        check(reader, 0)


@pytest.mark.parametrize(
    ("delivered_per_s", "refused"), [(100, False), (96, False), (94, True), (106, True)]
)
def test_what_is_more_than_five_percent_off_is_refused(delivered_per_s, refused):
    rate = Rate(
        pattern="random",
        unit="files",
        readers=2,
        requested_per_s=100,
        delivered_per_s=delivered_per_s,
    )
    assert rate.error_share == pytest.approx(abs(delivered_per_s - 100) / 100)
    assert rate.refused == refused


def test_memory_is_never_refused():
    rate = Rate(
        pattern="random", unit="files", readers=2, requested_per_s=np.inf, delivered_per_s=5
    )
    assert rate.error_share == 0.0
    assert not rate.refused
