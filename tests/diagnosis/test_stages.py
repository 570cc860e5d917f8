"""Every stage of making a batch is found by name, in a worker too, and nothing stays behind."""

import multiprocessing
import sys
import threading

import psutil
import pytest
import torch
from fake_clock import FakeClock
from photo_sets import KINDS, BrokenPhotos, Photos
from torch.utils.data import DataLoader

from labkit.diagnosis.stage_summary import summarize_stages
from labkit.diagnosis.stage_tracer import Counted, Tracer
from labkit.diagnosis.stage_worker import BatchTimes, Made, Spent
from labkit.diagnosis.stages import probe_stages

SECONDS = 0.3


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    before = {child.pid for child in psutil.Process().children()}
    threads = threading.active_count()
    yield
    assert {child.pid for child in psutil.Process().children()} <= before
    assert threading.active_count() <= threads


# --- the tracer, with a clock that only moves when a function says so


class Workbench:
    """A data set whose every function takes a known time."""

    def __init__(self):
        self.clock = FakeClock()
        self.transform = Steps(self.flip_all, Crop(self.clock))

    def flip_all(self, sample):
        self.clock.time_s += 8
        return sample

    def __getitem__(self, key):
        self.clock.time_s += 1
        sample = decode_sample(self.clock, read_sample(self.clock, key))
        return self.transform(sample)


class Steps:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, sample):
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class Crop:
    def __init__(self, clock):
        self.clock = clock

    def __call__(self, sample):
        for _ in range(4):
            work(self.clock, 4)
        read_bytes_from_disk(self.clock)
        return sample


def read_sample(clock, key):
    clock.time_s += 2
    wait_for_disk(clock)
    return shift(clock, key)


def wait_for_disk(clock):
    clock.time_s += 64


def shift(clock, key):
    clock.time_s += 128
    return key


def decode_sample(clock, content):
    work(clock, 4)
    return content


def work(clock, seconds):
    clock.time_s += seconds


def read_bytes_from_disk(clock):
    clock.time_s += 32


def wall_s(tracer):
    return {key: wall for key, (wall, *_) in tracer.take().items() if wall}


def test_the_seconds_of_a_sample_go_to_the_stage_that_spent_them():
    bench = Workbench()
    tracer = Tracer(lambda: (bench.clock.now(), 0.0, 0.0))
    tracer.call(lambda bench: bench[0], bench)
    assert wall_s(tracer) == {
        ("transform", "test_stages.Workbench.__getitem__"): 1,
        ("read", "test_stages.read_sample"): 2,
        ("read", "test_stages.wait_for_disk"): 64,
        ("transform", "test_stages.shift"): 128,
        ("decode", "test_stages.decode_sample"): 4,
        ("transform", "test_stages.Workbench.flip_all"): 8,
        # A person's own name inside of a transform is no evidence; a library's would be.
        ("transform", "test_stages.Crop"): 16 + 32,
    }


def test_a_failing_sample_leaves_the_tracer_and_the_hook_as_they_were():
    def fail(clock):
        clock.time_s += 3
        raise KeyError("gone")

    clock = FakeClock()
    tracer = Tracer(lambda: (clock.now(), 0.0, 0.0))
    for _ in range(2):
        with pytest.raises(KeyError, match="gone"):
            tracer.call(lambda clock: fail(clock), clock)
    assert sys.getprofile() is None
    assert sum(wall_s(tracer).values()) == 6


def test_a_file_read_while_decoding_is_reading(photos):
    from PIL import Image

    tracer = Tracer()
    file = next((photos / "images").glob("*.jpg"))

    class Album:
        def __getitem__(self, key):
            return Image.open(key).convert("RGB").rotate(90)

    tracer.call(lambda album: album[file], Album())
    kinds = {kind for kind, _ in tracer.take()}
    assert kinds == {"read", "decode", "transform"}


# --- shares


def made(number, totals, fetch_cpu_s=1.0, cost=0.0, queued_s=0.0):
    times = BatchTimes(4, 1.0 + fetch_cpu_s, fetch_cpu_s, fetch_cpu_s, 1.0, 1.0, queued_s)
    return Made(times, totals, number, cost, None, Spent(), 0.0, "")


def test_what_was_traced_is_scaled_to_the_untouched_batches():
    # Untouched: 2 s, of which 1 s computes and 1 s waits.  Traced: 1 s computes, 3 s wait.
    totals = {
        ("read", "FileIO.read"): in_c(0.4, 0.0),
        ("read", "io.open"): in_c(0.6, 0.1),
        ("transform", "cv2.flip"): in_c(3.0, 0.9),
    }
    batches = [made(1, None).times]
    stages = {stage.name: stage for stage in summarize_stages(batches, [made(2, totals)], ())}
    assert list(stages) == ["cv2.flip", "collate", "read"]
    assert stages["read"].batch_s == pytest.approx(0.1 * 1 + 0.9 / 3)
    assert stages["read"].batch_cpu_s == pytest.approx(0.1 * 1)
    assert stages["read"].waiting_s == pytest.approx(0.9 / 3)
    assert stages["read"].sample_s == pytest.approx(0.4 / 4)
    assert stages["read"].functions == ("io.open", "FileIO.read")
    assert sum(stage.share for stage in stages.values()) == pytest.approx(1)
    assert stages["collate"].share == pytest.approx(1 / 3)
    assert stages["read"].share_error is None


def in_c(wall_s, cpu_s, events=0):
    return Counted(wall_s, cpu_s, cpu_s, cpu_s - events * 1e-9, events)


@pytest.mark.parametrize(
    "apart_s, taken_off_s",
    [(0.002, 2.0), (0.0018, 2.0), (0.0005, 1.0), (0.006, 3.0)],
    ids=["as measured apart", "by the untouched batches", "twice at most", "half at least"],
)
def test_what_the_hook_cost_is_taken_off(apart_s, taken_off_s):
    # Traced 9 s of computing, untouched 7 s: so the hook's 1000 calls made 2 s of it.
    totals = {
        ("decode", "loop"): in_c(7.0, 7.0, events=1000),
        ("transform", "flip"): in_c(2.0, 2.0),
    }
    traced = [made(2, totals, fetch_cpu_s=9.0, cost=apart_s)]
    batches = [made(1, None, fetch_cpu_s=7.0).times]
    stages = {stage.name: stage for stage in summarize_stages(batches, traced, ())}
    share = (7 - taken_off_s) / (9 - taken_off_s)
    assert stages["decode"].batch_cpu_s == pytest.approx(7 * share)
    assert stages["decode"].batch_s == pytest.approx(7 * share)


# --- real loaders


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_stage_of_a_real_loader_is_found(photos, kind, workers):
    loader = DataLoader(KINDS[kind](photos), batch_size=4, num_workers=workers)
    before = dict(vars(loader))
    found = probe_stages(loader, seconds=SECONDS)
    assert found.error is None and found.notes == () and found.in_worker == bool(workers)
    named = {stage.name: stage for stage in found.stages}
    for name in ("read", "decode", "collate", "serialization"):
        assert named[name].batch_s > 0, found
    assert "cv2.imdecode" in named["decode"].functions
    # What takes hardly any time, on photos this small, is within "other".
    every = {name for stage in found.stages for name in (stage.name, *stage.functions)}
    assert {"cv2.resize", "photo_sets.Blur", "photo_sets.to_tensor"} <= every
    assert sum(stage.share for stage in found.stages) == pytest.approx(1)
    assert {times.samples for times in found.batches} == {4}
    assert all(times.fetch_s > 0 and times.collate_s > 0 for times in found.batches)
    assert all(sent.pipe_bytes > 0 for sent in found.sent)
    assert vars(loader) == before


@pytest.mark.thorough
def test_spawned_workers_are_seen_too(photos):
    loader = DataLoader(
        Photos(photos), batch_size=4, num_workers=1, multiprocessing_context="spawn"
    )
    found = probe_stages(loader, seconds=SECONDS)
    assert {"read", "decode", "collate", "serialization"} <= {s.name for s in found.stages}


def test_a_persistent_loaders_own_workers_go_on(photos):
    loader = DataLoader(Photos(photos), batch_size=4, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    own = [worker.pid for worker in multiprocessing.active_children()]
    probe_stages(loader, seconds=SECONDS)
    assert [worker.pid for worker in multiprocessing.active_children()] == own
    assert len(list(batches)) == 15
    loader._iterator._shutdown_workers()


def test_a_failing_data_set_ends_the_probe_and_keeps_what_was_measured(photos):
    loader = DataLoader(BrokenPhotos(photos, "raise"), batch_size=4, num_workers=1)
    found = probe_stages(loader, seconds=60)
    assert isinstance(found.error, ValueError) and "no photo 12" in str(found.error)
    assert {"read", "decode"} <= {stage.name for stage in found.stages}
    assert len(found.batches) == 1


def test_an_empty_loader_has_no_stages():
    found = probe_stages(DataLoader([], batch_size=4), seconds=SECONDS)
    assert found.stages == () and found.batches == () and found.error is None


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_cannot_be_sent_is_said_to_be_so(workers):
    def collate(samples):
        return lambda: samples

    loader = DataLoader([1, 2, 3, 4], batch_size=2, num_workers=workers, collate_fn=collate)
    found = probe_stages(loader, seconds=0)
    assert found.error is None
    assert found.notes[0].startswith("a batch cannot be sent from a worker: ")
    assert "serialization" not in {stage.name for stage in found.stages}


def test_of_any_other_iterable_this_thread_is_seen(photos):
    samples = Photos(photos)

    def batches():
        for i in range(0, 16, 2):
            yield torch.stack([samples[i][0], samples[i + 1][0]])

    found = probe_stages(batches(), seconds=SECONDS)
    assert "not a torch DataLoader" in found.notes[0]
    assert {"read", "decode"} <= {stage.name for stage in found.stages}
    assert {times.samples for times in found.batches} == {2}
