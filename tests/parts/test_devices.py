"""The simulated GPU keeps CUDA's rules, on a clock that never lies."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from labkit.parts.devices import (
    DEVICES,
    CudaDevice,
    GpuSpeeds,
    SimulatedGpu,
)
from labkit.parts.preprocessing import PREPROCESSORS
from tests.fake_clock import FakeClock

# 1 s per image, 1 byte/s pageable, 2 bytes/s pinned: seconds can be read off.
PROFILE = GpuSpeeds(
    name="test",
    gpu_images_per_s=1.0,
    pinned_bytes_per_s=2.0,
    pageable_bytes_per_s=1.0,
    memory_bytes_per_s=4.0,
    launch_share=0.0,
)
FOUR_BYTES = {"image": torch.zeros(4, dtype=torch.uint8)}


def make(**changes):
    clock = FakeClock()
    return SimulatedGpu(replace(PROFILE, **changes), clock), clock


def test_launching_keeps_the_host_busy_for_its_share_while_the_device_works():
    device, clock = make(launch_share=0.25)
    device.compute(8)
    assert (clock.now(), clock.spun_s) == (2.0, 2.0)
    device.synchronize()
    assert clock.now() == 8.0


def test_a_part_of_a_steps_time_does_not_depend_on_the_number_of_images():
    device, clock = make(batch_size=8, batch_share=0.25)
    for images in (8, 4, 16):
        device.compute(images)
        device.synchronize()
    assert clock.now() == 8 + (2 + 3) + (2 + 12)
    parted, of = make(batch_size=8, batch_share=0.25)
    parted.compute(4, 0.5)
    parted.compute(4, 0.5)
    parted.synchronize()
    assert of.now() == 5.0


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_host_keeps_its_core_busy_while_it_waits_unless_it_sleeps(sleeps):
    device, clock = make(sleeps=sleeps)
    device.put(FOUR_BYTES, pinned=False, side_stream=False)
    device.compute(3)
    device.synchronize()
    assert (clock.now(), clock.spun_s) == (7.0, 0.0 if sleeps else 7.0)
    assert device.waited_s == 7.0


def test_the_host_cannot_run_further_ahead_than_the_launch_queue():
    device, clock = make()
    for launched_s in (0.0, 0.0, 0.0, 1.0):
        device.compute(1)
        assert clock.now() == launched_s


def test_waiting_for_a_step_does_not_wait_for_the_next_copy():
    device, clock = make()
    device.compute(1)
    device.put(FOUR_BYTES, pinned=True, side_stream=True)
    device.synchronize()
    assert clock.now() == 1.0


class LateClock(FakeClock):
    """Lets the host go on late."""

    def __init__(self, late_s):
        super().__init__()
        self.late_s = late_s

    def spin_until(self, deadline_s):
        if deadline_s > self.now():
            super().spin_until(deadline_s + self.late_s)


@pytest.mark.parametrize(
    ("late_s", "utilization"),
    [
        # Only the last time counts: nothing comes after it that could make up for it.
        (0.0005, 0.1 / 0.1005),
        # Each step starts 4 ms late, of which 1 ms is not charged.
        (0.004, 0.1 / (10 * 0.014 - 9 * 0.001)),
    ],
)
def test_only_a_host_that_was_held_up_slows_the_device(late_s, utilization):
    clock = LateClock(late_s)
    device = SimulatedGpu(replace(PROFILE, gpu_images_per_s=100.0), clock)
    for _ in range(10):
        device.compute(1)
        device.synchronize()
    assert device.compute_s / clock.now() == pytest.approx(utilization)


def test_a_host_that_goes_on_a_little_late_launches_in_full_while_the_device_computes():
    clock = LateClock(0.0005)
    how = {"gpu_images_per_s": 100.0, "launch_share": 0.25}
    device = SimulatedGpu(replace(PROFILE, **how), clock)
    device.compute(1)
    device.synchronize()
    assert clock.now() == pytest.approx(0.0105)
    device.compute(1)
    assert clock.now() == pytest.approx(0.0105 + 0.0025)
    device.synchronize()
    assert clock.now() == pytest.approx(0.0205)


@pytest.mark.needs_cuda
@pytest.mark.parametrize("side_stream", [False, True])
def test_a_batch_arrives_whole_on_cuda(side_stream):
    device = DEVICES["cuda"](PROFILE, FakeClock())
    sent = {"image": torch.arange(1 << 20).pin_memory()}
    batch = device.put(sent, pinned=True, side_stream=side_stream)
    device.wait(batch)
    doubled = batch["image"] * 2
    device.synchronize()
    assert torch.equal(doubled.cpu(), sent["image"] * 2)


@pytest.mark.needs_cuda
def test_no_copy_overwrites_a_batch_that_a_step_still_uses():
    device = DEVICES["cuda"](PROFILE, FakeClock())

    def arrive(value):
        sent = {"image": torch.full((1 << 22,), float(value)).pin_memory()}
        batch = device.put(sent, pinned=True, side_stream=True)
        device.wait(batch)
        return batch

    for number in range(3):  # loads the kernels
        arrive(number)["image"].sum()
        device.synchronize()
    batch = arrive(7)
    torch.cuda._sleep(200_000_000)  # a step of some 0.1 s
    total = batch["image"].sum()
    del batch
    again = arrive(9)  # where the batch of the step was, unless the allocator was told
    device.synchronize()
    assert total.item() == 7.0 * (1 << 22)
    del again


def test_a_batch_is_finished_on_the_stream_that_copied_it_and_is_ready_after_that():
    device, done = object.__new__(CudaDevice), []

    class Stream:
        def record_event(self):
            done.append("event")
            return "ready"

    @contextmanager
    def on(stream):
        done.append("side stream" if stream is device._side_stream else "step's stream")
        yield
        done.append("left")

    def finish(batch):
        done.append("finish")
        return {"image": batch["pixels"].float()}

    device.torch_device, device._side_stream = torch.device("cpu"), Stream()
    device._torch = SimpleNamespace(cuda=SimpleNamespace(stream=on, current_stream=Stream))
    batch = device.put(
        {"pixels": torch.ones(3, dtype=torch.uint8)}, pinned=True, side_stream=True, finish=finish
    )
    assert done == ["side stream", "finish", "event", "left"]
    assert (list(batch), batch.ready) == (["image"], "ready")


@pytest.mark.needs_cuda
def test_a_batch_of_bytes_is_normalized_on_the_side_stream_as_on_the_cpu():
    device = DEVICES["cuda"](PROFILE, FakeClock())
    finish = partial(PREPROCESSORS["classification_on_device"].on_device, input_px=64)
    pixels = torch.randint(0, 256, (8, 64, 64, 3), dtype=torch.uint8)
    numbers = {"label": torch.arange(8), "sample_id": torch.arange(8)}
    for _ in range(3):
        sent = {name: each.pin_memory() for name, each in {"pixels": pixels, **numbers}.items()}
        batch = device.put(sent, pinned=True, side_stream=True, finish=finish)
        device.wait(batch)
        doubled = batch["image"] * 2
        device.synchronize()
        expected = finish({"pixels": pixels, **numbers})["image"] * 2
        torch.testing.assert_close(doubled.cpu(), expected)


@pytest.mark.needs_cuda
def test_a_pinned_side_stream_copy_overlaps_with_compute_on_cuda():
    device = DEVICES["cuda"](PROFILE, FakeClock())
    a = torch.randn(4096, 4096, device="cuda")
    sent = {"image": torch.empty(64 << 20, dtype=torch.uint8).pin_memory()}

    def seconds(side_stream):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        device.synchronize()
        start.record()
        for _ in range(5):  # longer than the copy, which is then hidden in full
            a @ a
        batch = device.put(sent, pinned=True, side_stream=side_stream)
        device.wait(batch)
        end.record()
        device.synchronize()
        return start.elapsed_time(end)

    seconds(True)  # first use loads kernels
    # In turn, as the clock of a GPU drifts.
    apart, overlapped = zip(*((seconds(False), seconds(True)) for _ in range(9)))
    assert min(overlapped) < min(apart)
