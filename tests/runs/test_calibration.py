"""The rate is the settled one."""

from types import SimpleNamespace

import pytest
import torch

from labkit.parts.devices import EmulatedDevice
from labkit.parts.prefetching import PREFETCHERS
from labkit.parts.training import Step
from labkit.runs.calibration import steady_rate
from tests.fake_clock import FakeClock
from tests.parts.test_devices import PROFILE


class Source:
    """As many images as the steps need."""

    def __init__(self, images):
        self.images, self.order = images, SimpleNamespace(epoch=0)

    def __len__(self):
        return self.images


def pipeline(clock, *, steps, workers):
    """Four images a batch in half a second; the first batches take ten times as long."""
    batch = {"sample_id": torch.zeros(4, dtype=torch.uint8)}
    device = EmulatedDevice(PROFILE, clock)

    def load():
        for step in range(steps):
            clock.sleep(5.0 if step < 1 + workers else 0.5)
            yield batch

    return SimpleNamespace(
        device=device,
        loader=load(),
        source=Source(4 * steps),
        settings=SimpleNamespace(batch_size=4, num_workers=workers),
        step=Step(forward=None, backward=None, loss=None),
        forward=lambda batch: device.run(1.5),
        batches=lambda loader, device: PREFETCHERS["none"](load(), device, pinned=True),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_batches_do_not_count(workers):
    clock = FakeClock()
    rate = steady_rate(pipeline(clock, steps=10, workers=workers), clock, seconds=30.0)
    # Load 0.5 s, copy 4 bytes at 2 bytes/s, compute 1.5 s: four images in 4 s.
    assert rate == 1.0


def test_loading_alone_leaves_device_and_step_out():
    clock = FakeClock()
    chosen = pipeline(clock, steps=10, workers=0)
    assert steady_rate(chosen, clock, seconds=3.0, load_only=True) == 4 / 0.5
