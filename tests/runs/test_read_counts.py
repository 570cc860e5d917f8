"""What reading takes is counted by the kernel, for every way of storing."""

import sys
from types import SimpleNamespace

import pytest
from kernel import why_no_device, why_not_evicted
from small import completed

from labkit.parts.storage import modelled
from labkit.parts.storage.disks import HARD_DISK
from labkit.resolve import open_reader
from labkit.runs import read_counts
from labkit.runs.packs import ensure_pack
from labkit.runs.read_counts import count_reads
from tests.fake_clock import FakeClock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts are Linux's")


@pytest.fixture(autouse=True)
def nothing_open():
    """A run counts in a fresh process; what is mapped in this one could not be evicted."""
    open_reader.cache_clear()


def settings(photos, **changes):
    how = {"images": 24, "preprocessor": "classification", "subset": "first", **changes}
    return completed(data=str(photos), **how)


def test_a_folder_opens_a_file_per_image_and_a_pack_none(photos):
    for packing in ("raw", "tfrecord"):
        ensure_pack(settings(photos, packing=packing))
    folder, raw = count_reads(settings(photos)), count_reads(settings(photos, packing="raw"))
    assert (folder["images"], folder["opens"]) == (24, 1.0)
    assert folder["calls"] >= 1
    # One file is opened once for all, and each image read with a call.
    assert (raw["opens"], raw["images"]) == (1 / 24, 24)
    assert raw["calls"] == 1
    assert count_reads(settings(photos, packing="tfrecord"))["calls"] == 1


@pytest.mark.parametrize(("packing", "stored"), [("raw", "jpeg"), ("mapped", "yuv420")])
def test_reading_a_cold_pack_asks_the_disk(packing, stored, photos):
    if reason := why_not_evicted(photos.parent) or why_no_device(photos):
        pytest.skip(reason)
    packed = settings(photos, packing=packing, storage_format=stored)
    ensure_pack(packed)
    found = count_reads(packed)
    # Only from below: those of all other processes count, too.
    assert found["cold"] and found["requests"] > 0


def test_a_copy_is_as_fast_as_cold_images_are_read_in_their_order(photos, monkeypatch):
    clock = FakeClock()  # of the model and of who times it: a busy machine would add to both
    with monkeypatch.context() as patch:
        patch.setattr(modelled, "SleepingClock", lambda: clock)
        patch.setattr(read_counts, "time", SimpleNamespace(perf_counter=clock.now))
        found = count_reads(settings(photos, storage="modelled_hdd"), timed=True)
    # A disk's arm need not move from file to file, and at random it reads some 9 MB/s.
    image_bytes = sum(path.stat().st_size for path in photos.rglob("*.jpg")) / 24
    at_random = image_bytes * HARD_DISK.files_per_s(image_bytes)
    assert 1.2 * at_random < found["bytes_per_s"] < 1.1 * HARD_DISK.bytes_per_s
    if not why_not_evicted(photos.parent):
        assert count_reads(settings(photos, packing="folder"), timed=True)["bytes_per_s"] > 0


def test_what_is_not_cold_has_no_disk_requests(photos):
    found = count_reads(settings(photos, cache="warm"))
    assert (found["cold"], found["requests"]) == (False, None)
    assert found["opens"] == 1.0


def test_where_devices_have_no_numbers_requests_are_unknown(photos, monkeypatch):
    monkeypatch.delattr("os.major")  # as on Windows
    found = count_reads(settings(photos))
    assert (found["requests"], found["opens"]) == (None, 1.0)
