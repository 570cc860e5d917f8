"""The timeline records what was there, says why where nothing was, and leaves nothing behind.

Run: python -m pytest tests/diagnosis/test_timeline.py
"""

import mmap
import os
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError, fields, replace
from functools import partial

import pytest

from labkit import pagecache
from labkit.diagnosis import conclusion
from labkit.diagnosis.arms import Loop
from labkit.diagnosis.collect import Collected
from labkit.diagnosis.conclusion import conclude
from labkit.diagnosis.devices import Host
from labkit.diagnosis.timeline import (
    NO_CORES,
    NO_CUDA,
    NO_READS,
    Recorder,
    Timeline,
    record_timeline,
)
from labkit.media import IN_MEMORY, describe_medium
from labkit.parts.devices import PROFILES, EmulatedDevice
from tests.fake_clock import FakeClock

NEVER_S = 3600.0  # between two looks: the test looks by itself
PROFILE = replace(PROFILES["resnet50_a100"], compute_s_per_image=1.0, launch_share=0.25)


def recorder():
    clock = FakeClock()
    clock.sleep(100.0)  # a clock counts from wherever it likes
    return Recorder(clock, period_s=NEVER_S), clock


def test_seconds_count_from_the_start():
    timeline, clock = recorder()
    with timeline:
        clock.sleep(2.0)
        timeline.look()
        clock.sleep(1.0)
    recorded = timeline.recorded()
    assert recorded.at_s == (2.0, 3.0)
    assert recorded.duration_s == 3.0


def test_marks_are_bands_of_the_host_in_their_order():
    timeline, clock = recorder()
    with timeline:
        timeline.mark("wait", 100.0, 100.5)
        timeline.mark("compute", 100.5, 101.0)
        timeline.mark("wait", 101.0, 101.2)
        clock.sleep(1.2)
    host = timeline.recorded().host
    assert list(host) == ["wait", "compute"]
    assert host["wait"] == (pytest.approx((0.0, 0.5)), pytest.approx((1.0, 1.2)))
    assert host["compute"] == (pytest.approx((0.5, 1.0)),)


def test_what_began_before_the_start_is_cut_and_what_ended_before_it_is_left_out():
    timeline, clock = recorder()
    with timeline:
        timeline.mark("wait", 90.0, 95.0)
        timeline.mark("wait", 99.0, 101.0)
        clock.sleep(2.0)
    assert timeline.recorded().host == {"wait": ((0.0, 1.0),)}


def test_an_emulated_devices_bands_are_when_it_computed():
    timeline, clock = recorder()
    device = EmulatedDevice(PROFILE, clock)
    with timeline:
        timeline.watch(device)
        device.compute(2)  # 100 to 102
        device.compute(1)  # right behind: to 103
        device.synchronize()
        clock.sleep(1.0)  # idle until 104
        device.compute(1)
        device.synchronize()
    recorded = timeline.recorded()
    assert recorded.device == ((0.0, 3.0), (4.0, 5.0))
    assert recorded.device_label == device.label
    assert sum(end_s - start_s for start_s, end_s in recorded.device) == device.compute_s


def test_watching_a_device_changes_none_of_its_times_and_ends():
    def run(watched):
        timeline, clock = recorder()
        device = EmulatedDevice(PROFILE, clock)
        with timeline:
            if watched:
                timeline.watch(device)
            for _ in range(5):
                device.compute(1)
            device.synchronize()
        assert device.on_run is None
        device.compute(1)
        return clock.now(), clock.spun_s, timeline.recorded().device

    (*plain, nothing), (*watched, bands) = run(False), run(True)
    assert plain == watched
    assert nothing is None
    assert bands == ((0.0, 5.0),)  # and not what came later


def test_a_loop_that_fails_leaves_the_device_as_it_was_and_what_was_seen():
    timeline, clock = recorder()
    device = EmulatedDevice(PROFILE, clock)
    with pytest.raises(RuntimeError, match="out of batches"), timeline:
        timeline.watch(device)
        device.compute(1)
        clock.sleep(1.0)
        raise RuntimeError("out of batches")
    assert device.on_run is None
    assert timeline.recorded().device == ((0.0, 1.0),)
    assert timeline.recorded().duration_s == pytest.approx(1.25)  # launching took a quarter second


def test_without_a_gpu_nothing_is_known_of_one_and_it_says_why(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    timeline, clock = recorder()
    with timeline:
        clock.sleep(1.0)
    recorded = timeline.recorded()
    assert (recorded.gpu_util, recorded.gpu_memory_bytes, recorded.device) == (None, None, None)
    assert recorded.missing["gpu_util"] == recorded.missing["gpu_memory_bytes"] == NO_CUDA


def test_what_a_platform_does_not_tell_is_none_and_named(monkeypatch):
    from labkit import procfs

    def refuse(**_):
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr("psutil.cpu_times", refuse)
    monkeypatch.setattr(procfs, "read_bytes", lambda process_id: None)
    timeline, clock = recorder()
    with timeline:
        clock.sleep(1.0)
    recorded = timeline.recorded()
    assert (recorded.cores, recorded.read_bytes_per_s) == (None, None)
    assert (recorded.missing["cores"], recorded.missing["read_bytes_per_s"]) == (NO_CORES, NO_READS)


def test_counters_that_never_count_are_no_idle_cores(monkeypatch):
    import psutil

    times = psutil.cpu_times(percpu=True)
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: times)
    timeline, clock = recorder()
    with timeline:
        clock.sleep(1.0)
    assert timeline.recorded().cores is None


def test_busy_cores_are_seen():
    with Recorder(period_s=NEVER_S) as timeline:
        until_s = os.times().user + 0.3
        while os.times().user < until_s:
            pass
    cores = timeline.recorded().cores
    if cores is None:
        pytest.skip("this platform does not count its cores' time")
    (shares,) = cores
    if hasattr(os, "sched_getaffinity"):
        assert len(shares) == len(os.sched_getaffinity(0))
    assert all(0 <= share <= 1 for share in shares)
    # This process alone kept one of them busy for 0.3 s; others may have had it meanwhile.
    assert sum(shares) * timeline.recorded().duration_s > 0.2


READ = """import sys
with open(sys.argv[1], "rb") as file:
    file.read()
print(flush=True)
input()"""


def test_what_a_worker_fetches_from_a_disk_counts_while_it_lives_and_once(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(os.urandom(256 * mmap.PAGESIZE))
    if describe_medium(tmp_path).filesystem in IN_MEMORY or not pagecache.can_evict():
        pytest.skip("the temporary directory is not on a disk whose files can be evicted")
    pagecache.evict(path)
    if pagecache.residency([path])[0] != 0.0:
        pytest.skip("this platform does not evict the file")
    timeline, clock = recorder()
    with timeline:
        program = [sys.executable, "-c", READ, str(path)]
        child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with child:
            child.stdout.readline()
            clock.sleep(2.0)
            timeline.look()
            child.communicate(b"\n")
        clock.sleep(1.0)
    if timeline.recorded().read_bytes_per_s is None:
        pytest.skip("this platform does not tell what a process fetched")
    alive, ended = timeline.recorded().read_bytes_per_s
    if alive == 0:
        pytest.skip("this disk's reads are not counted")
    assert 2 * alive >= path.stat().st_size
    assert ended < path.stat().st_size  # not once more when its parent takes it over


def test_a_thread_looks_by_itself_and_ends():
    before = threading.active_count()
    with Recorder(period_s=0.001) as timeline:
        seen = threading.Event()
        look = timeline.look
        timeline.look = lambda: (look(), seen.set())
        assert seen.wait(30)
    assert threading.active_count() == before
    assert len(timeline.recorded().at_s) >= 2  # the thread's, and the last one


def test_a_timeline_is_frozen_and_every_column_is_as_long_as_its_looks():
    with Recorder(period_s=NEVER_S) as timeline:
        timeline.look()
    recorded = timeline.recorded()
    with pytest.raises(FrozenInstanceError):
        recorded.duration_s = 0.0
    for name in ("gpu_util", "gpu_memory_bytes", "cores", "read_bytes_per_s"):
        column = getattr(recorded, name)
        assert (column is None) == (name in recorded.missing)
        assert column is None or len(column) == len(recorded.at_s)
    assert set(recorded.missing) <= {field.name for field in fields(Timeline)}


def slow_batches(clock, n, wait_s):
    for number in range(n):
        clock.sleep(wait_s)
        yield number


def test_a_loop_is_recorded_with_its_waits_and_steps_until_it_ends():
    clock = FakeClock()
    device, seen = EmulatedDevice(PROFILE, clock), []

    def step(batch):
        seen.append(batch)
        device.compute(2)

    recorded = record_timeline(
        slow_batches(clock, 3, 4.0), step, device=device, seconds=100, clock=clock
    )
    assert seen == [0, 1, 2]
    # 4 s for a batch, half a second to launch two seconds of computing.
    assert recorded.host["wait"][:3] == ((0.0, 4.0), (4.5, 8.5), (9.0, 13.0))
    assert recorded.host["compute"] == ((4.0, 4.5), (8.5, 9.0), (13.0, 13.5))
    assert recorded.device == ((4.0, 6.0), (8.5, 10.5), (13.0, 15.0))
    assert recorded.duration_s == 15.0  # and what was queued is waited for
    assert device.on_run is None


def test_a_long_loop_is_left_in_time():
    clock, seen = FakeClock(), []
    recorded = record_timeline(slow_batches(clock, 99, 1.0), seen.append, seconds=5, clock=clock)
    assert seen == [0, 1, 2, 3, 4]
    assert recorded.duration_s == 5.0
    assert recorded.device is None


def test_short_epochs_follow_one_another_and_their_start_is_waited_for():
    clock, seen = FakeClock(), []

    class Loader:
        def __iter__(self):
            clock.sleep(2.0)  # workers start
            return iter((1, 2))

    recorded = record_timeline(Loader(), seen.append, seconds=3, clock=clock)
    assert seen == [1, 2, 1]
    assert recorded.host["wait"][0] == (0.0, 2.0)
    assert sum(end_s - start_s for start_s, end_s in recorded.host["wait"]) == 4.0


def test_an_empty_loader_ends_at_once():
    recorded = record_timeline([], lambda batch: None, clock=FakeClock())
    assert "compute" not in recorded.host


def test_a_loader_that_raises_is_not_hidden():
    def batches():
        yield 1
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        record_timeline(batches(), lambda batch: None, clock=FakeClock())


def test_a_diagnosis_has_a_timeline_of_its_loop_when_asked(monkeypatch):
    monkeypatch.setattr(conclusion, "record_timeline", partial(record_timeline, seconds=0.1))
    steps = []
    diagnosis = conclude(Collected(loop=Loop([1, 2], steps.append, Host(), None)))
    assert steps == []
    assert diagnosis.timeline.host["compute"]
    before = len(steps)
    assert before > 2 and diagnosis.timeline is diagnosis.timeline
    assert len(steps) == before


def test_a_diagnosis_of_what_is_used_up_has_an_empty_timeline():
    for found in (Collected(), Collected(loop=Loop(iter([1]), print, Host(), None))):
        assert conclude(found).timeline.duration_s == 0


@pytest.mark.needs_cuda
def test_a_working_gpu_has_a_utilization_and_memory():
    import torch

    matrix = torch.ones(2048, 2048, device="cuda")
    with Recorder() as timeline:
        until_s = os.times().elapsed + 1.5
        while os.times().elapsed < until_s:
            matrix = (matrix @ matrix).clamp_(max=1.0)
            torch.cuda.synchronize()
    recorded = timeline.recorded()
    assert max(share for share in recorded.gpu_util if share is not None) > 0.5
    assert max(recorded.gpu_memory_bytes) >= matrix.nbytes
