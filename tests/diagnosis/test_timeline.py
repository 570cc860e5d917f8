"""A timeline records what cores, loop and device did; GPU-Util is shown, or why it cannot be."""

import os
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from labkit.diagnosis import timeline
from labkit.diagnosis.timeline import gpu_util, record_timeline
from labkit.machine.gpu import CudaState, cuda
from labkit.parts.devices import GpuSpeeds, SimulatedGpu
from tests.fake_clock import FakeClock

PROFILE = GpuSpeeds(name="test", gpu_images_per_s=1.0, launch_share=0.25)


def test_busy_cores_are_seen(monkeypatch):
    # There are only the first and the last sample.
    monkeypatch.setattr(timeline, "PERIOD_S", 3600.0)

    def compute(_):
        until_s = os.times().user + 0.3
        while os.times().user < until_s:
            pass

    recorded = record_timeline([1], compute, seconds=0.1)
    (shares,) = recorded.samples.filter(like="core").to_numpy()
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc/stat counts the time of the cores")
    if hasattr(os, "sched_getaffinity"):
        assert len(shares) == len(os.sched_getaffinity(0))
    assert all(0 <= share <= 1 for share in shares)
    # This process alone kept one of them busy for 0.3 s, of which a host of virtual machines may
    # have taken some.
    assert sum(shares) * recorded.duration_s > 0.1


def slow_batches(clock, n, wait_s):
    for number in range(n):
        clock.sleep(wait_s)
        yield number


def test_a_loop_is_recorded_with_its_waits_and_steps_until_it_ends():
    clock = FakeClock()
    device, seen = SimulatedGpu(PROFILE, clock), []

    def step(batch):
        seen.append(batch)
        device.compute(2)

    recorded = record_timeline(slow_batches(clock, 3, 4.0), step, device=device, seconds=100)
    assert seen == [0, 1, 2]
    # 4 s for a batch, half a second to launch two seconds of computing.
    assert recorded.host["wait"][:3] == ((0.0, 4.0), (4.5, 8.5), (9.0, 13.0))
    assert recorded.host["compute"] == ((4.0, 4.5), (8.5, 9.0), (13.0, 13.5))
    assert recorded.device == ((4.0, 6.0), (8.5, 10.5), (13.0, 15.0))
    assert recorded.duration_s == 15.0  # and what was queued is waited for
    assert device.on_run is None


def test_a_loader_that_raises_is_not_hidden():
    def batches():
        yield 1
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        record_timeline(batches(), lambda batch: None)


def test_a_data_loader_runs_as_a_copy():
    loader = DataLoader([1, 2, 3], num_workers=1, persistent_workers=True)
    assert "wait" in record_timeline(loader, lambda batch: None, seconds=0.1).host
    assert loader._iterator is None


@pytest.mark.needs_cuda
def test_a_working_gpu_has_a_utilization_and_memory():
    import torch

    matrix = torch.ones(2048, 2048, device="cuda")

    def compute(_):
        torch.mm(matrix, matrix)
        torch.cuda.synchronize()

    recorded = record_timeline([1], compute, seconds=1.5)
    assert recorded.samples["gpu_util"].max() > 0.5
    assert recorded.samples["gpu_memory_bytes"].max() >= matrix.nbytes


def test_without_a_gpu_it_is_skipped_with_its_reason(monkeypatch):
    state = CudaState(works=False, reason="no NVIDIA driver")
    monkeypatch.setattr(timeline, "cuda", lambda: state)
    shown = gpu_util()
    assert list(shown.index) == ["one thread spinning", "matrix products"]
    assert set(shown["GPU-Util (NVML)"]) == {"skipped"}
    assert set(shown["achieved"]) == {"no NVIDIA driver"}


@pytest.mark.needs_cuda
def test_a_kernel_of_one_thread_reads_as_busy_as_the_whole_gpu():
    assert cuda().works
    shown = gpu_util(seconds=1.5)
    percents = [float(text.removesuffix(" %")) for text in shown["GPU-Util (NVML)"]]
    assert min(percents) > 90
    assert shown.loc["one thread spinning", "achieved"] == "nothing computed"
    assert float(shown.loc["matrix products", "achieved"].split()[0]) > 0.1
