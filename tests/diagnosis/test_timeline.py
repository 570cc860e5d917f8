"""The timeline records what was there, says why where nothing was, and leaves nothing behind.

Run: python -m pytest tests/diagnosis/test_timeline.py
"""

import os
import threading
from dataclasses import replace
from functools import partial

import pytest

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
    record_timeline,
)
from labkit.parts.devices import PROFILES, EmulatedDevice
from tests.fake_clock import FakeClock

NEVER_S = 3600.0  # between two looks: the test looks by itself
PROFILE = replace(PROFILES["resnet50_a100"], compute_s_per_image=1.0, launch_share=0.25)


def recorder():
    clock = FakeClock()
    clock.sleep(100.0)  # a clock counts from wherever it likes
    return Recorder(clock, period_s=NEVER_S), clock


def test_what_began_before_the_start_is_cut_and_what_ended_before_it_is_left_out():
    timeline, clock = recorder()
    with timeline:
        timeline.mark("wait", 90.0, 95.0)
        timeline.mark("wait", 99.0, 101.0)
        clock.sleep(2.0)
    assert timeline.recorded().host == {"wait": ((0.0, 1.0),)}


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


def test_a_thread_looks_by_itself_and_ends():
    before = threading.active_count()
    with Recorder(period_s=0.001) as timeline:
        seen = threading.Event()
        look = timeline.look
        timeline.look = lambda: (look(), seen.set())
        assert seen.wait(30)
    assert threading.active_count() == before
    assert len(timeline.recorded().at_s) >= 2  # the thread's, and the last one


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
