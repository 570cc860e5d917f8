"""Time is told apart into wait, transfer, compute and sync, on a clock that never lies."""

from types import SimpleNamespace

import pytest
import torch

from labkit.parts.devices import CpuDevice, SimulatedGpu
from labkit.parts.prefetching import PREFETCHERS
from labkit.parts.training import Step
from labkit.runs.timing import time_epoch
from tests.fake_clock import FakeClock
from tests.parts.test_devices import PROFILE

BATCH = {"sample_id": torch.zeros(8, dtype=torch.uint8)}  # 8 images, 8 bytes


class Loader:
    """Takes 3 s to start and half a second per batch."""

    def __init__(self, clock, steps=4):
        self.clock, self.steps = clock, steps

    def __iter__(self):
        self.clock.sleep(3)
        return self.deliver()

    def deliver(self):
        for _ in range(self.steps):
            self.clock.sleep(0.5)
            yield BATCH


def pipeline(
    clock,
    device,
    *,
    forward,
    backward=None,
    prefetcher="none",
    pinned=True,
    sync_every=1,
    **settings,
):
    clock.sleep(100)  # an epoch begins at any time
    return SimpleNamespace(
        loader=Loader(clock),
        device=device,
        settings=SimpleNamespace(sync_every=sync_every, **settings),
        step=Step(forward=forward, backward=backward, loss=lambda: None),
        forward=forward,
        batches=lambda loader, device: PREFETCHERS[prefetcher](loader, device, pinned=pinned),
    )


def test_start_up_wait_forward_and_backward_are_told_apart():
    clock = FakeClock()
    epoch, *_ = time_epoch(
        pipeline(
            clock,
            CpuDevice(),
            forward=lambda batch: clock.sleep(0.25),
            backward=lambda loss: clock.sleep(0.125),
        ),
        clock,
    )
    assert epoch.epoch_s == 3 + 4 * (0.5 + 0.25 + 0.125)
    assert (epoch.startup_s, epoch.first_batch_s, epoch.wait_s) == (3.0, 3.5, 2.0)
    assert epoch.arrivals_s == (3.5, 4.375, 5.25, 6.125)
    assert (epoch.forward_s, epoch.backward_s) == (1.0, 0.5)
    assert (epoch.transfer_s, epoch.sync_s) == (0.0, 0.0)
    assert (epoch.steps, epoch.images, epoch.batch_bytes) == (4, 32, 32)
    assert epoch.compute_s is None


@pytest.mark.parametrize(
    ("prefetcher", "pinned", "waits_s", "transfer_s"),
    [
        ("none", True, (0.5, 0.5, 0.5, 0.5), 0.0),
        ("none", False, (0.5, 0.5, 0.5, 0.5), 4 * 8.0),  # a byte a second
        # The side stream's batch is asked for one step early: twice in the first step, and not in
        # the last.
        ("data_prefetcher", True, (1.0, 0.5, 0.5, 0.0), 0.0),
    ],
)
def test_every_steps_wait_is_told_without_start_up_and_transfer(
    prefetcher, pinned, waits_s, transfer_s
):
    clock = FakeClock()
    device = SimulatedGpu(PROFILE, clock)
    how = {"prefetcher": prefetcher, "pinned": pinned}
    epoch, *_ = time_epoch(
        pipeline(clock, device, forward=lambda batch: device.compute(8), **how), clock
    )
    assert (epoch.waits_s, epoch.transfer_s) == (waits_s, transfer_s)
    assert sum(epoch.waits_s) == epoch.wait_s


def test_a_simulated_epoch_ends_when_the_device_is_done():
    clock = FakeClock()
    device = SimulatedGpu(PROFILE, clock)  # 1 s per image, 2 bytes/s
    simulated = pipeline(clock, device, forward=lambda batch: device.compute(8), sync_every=0)
    epoch, *_ = time_epoch(simulated, clock)
    # The first batch arrives at 3.5 s; then every copy (4 s) and step (8 s) queue on one stream.
    assert epoch.epoch_s == 3.5 + 4 * (4 + 8)
    assert epoch.compute_s == 32.0
    assert epoch.forward_s is None


def test_a_synchronizing_loop_spends_the_rest_of_its_time_waiting_for_the_device():
    clock = FakeClock()
    device = SimulatedGpu(PROFILE, clock)
    simulated = pipeline(clock, device, forward=lambda batch: device.compute(8), sync_every=1)
    epoch, *_ = time_epoch(simulated, clock)
    # Every step: half a second for the batch, then its copy (4 s) and its compute (8 s).
    assert epoch.epoch_s == 3 + 4 * (0.5 + 4 + 8)
    assert (epoch.startup_s, epoch.wait_s, epoch.sync_s) == (3.0, 2.0, 4 * (4 + 8))
