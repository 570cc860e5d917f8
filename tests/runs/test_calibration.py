"""A rate is the settled one, and sets the length of an epoch."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes import fake_info

from labkit.parts.devices import SimulatedGpu
from labkit.parts.prefetching import PREFETCHERS
from labkit.parts.training import Step
from labkit.resolve import gather_facts
from labkit.runs.calibration import calibrate_run, time_arrivals
from labkit.settings import MODES, Settings
from labkit.steady_rate import steady_rate
from tests.fake_clock import FakeClock
from tests.parts.test_devices import PROFILE


class Source:
    """As many images as the steps need."""

    def __init__(self, images):
        self.images, self.order = images, SimpleNamespace(epoch=0)

    def __len__(self):
        return self.images


def pipeline(clock, gaps_s, *, workers, compute_s=1.5):
    """Four images a batch, and a time before each; ten times as long before the first ones."""
    batch = {"sample_id": torch.zeros(4, dtype=torch.uint8)}
    device = SimulatedGpu(PROFILE, clock)

    def load():
        for step, gap_s in enumerate(gaps_s):
            clock.sleep(gap_s * (10 if step < max(workers, 1) else 1))
            yield batch

    return SimpleNamespace(
        device=device,
        loader=None,
        source=Source(4 * len(gaps_s)),
        settings=SimpleNamespace(batch_size=4, num_workers=workers),
        step=Step(forward=None, backward=None, loss=None),
        forward=lambda batch: device.run(compute_s),
        batches=lambda loader, device: PREFETCHERS["none"](load(), device, pinned=True),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_batches_do_not_count(workers):
    clock = FakeClock()
    chosen = pipeline(clock, [0.5] * 10, workers=workers)
    rate = time_arrivals(chosen, clock, seconds=24.0).images_per_s
    # Load 0.5 s, copy 4 bytes at 2 bytes/s, compute 1.5 s: four images in 4 s.
    assert rate == 1.0


def test_short_epochs_are_repeated_until_enough_of_them_has_counted():
    clock = FakeClock()
    chosen = pipeline(clock, [0.5] * 10, workers=2)
    time_arrivals(chosen, clock, seconds=40.0)
    # Of an epoch the eight batches after the first round count, 4 s each.
    assert chosen.source.order.epoch == 2


@pytest.mark.parametrize("gaps_s", [[0.0, 10.0], [10.0, 0.0]], ids=["together", "in turn"])
def test_workers_that_deliver_at_once_are_counted_over_whole_rounds(gaps_s):
    clock = FakeClock()
    chosen = pipeline(clock, gaps_s * 20, workers=2, compute_s=0.0)
    # 10 s and two copies of 2 s: eight images in 14 s.
    rate = time_arrivals(chosen, clock, seconds=15.0).images_per_s
    assert rate == pytest.approx(8 / 14)


@pytest.mark.parametrize(("workers", "fewest"), [(0, 6), (2, 6), (4, 12)])
def test_epochs_with_less_than_three_rounds_have_no_rate_and_a_reason(workers, fewest):
    clock = FakeClock()
    found = time_arrivals(pipeline(clock, [0.5] * (fewest - 1), workers=workers), clock, 30.0)
    assert found.images_per_s is None
    assert f"at least {fewest} batches with {workers} workers, got {fewest - 1}" in found.reason
    short = time_arrivals(pipeline(clock, [0.5] * fewest, workers=workers), clock, 30.0)
    assert short.images_per_s == 1.0


# --- the length of an epoch -----------------------------------------------------------------


class FakeRun:
    """What calibration asks of a run whose loader and devices have these rates."""

    def __init__(self, variants, *, loading, training, images=10_000, looked_at=10_000):
        self.remaining = self.variants = variants
        self.baseline = next(iter(variants.values()))
        self.baseline_facts = gather_facts(vars(self.baseline))
        self.mode, self.images_looked_at = MODES["quick"], looked_at
        self.info = fake_info([*variants], data={"images": images})
        self.folder, self.dropped = Path("results/test/run"), {}
        self.progress = SimpleNamespace(say=lambda line: None)
        self.notes, self.note = [], lambda line: self.notes.append(line)
        self.rates = {"nothing": loading, "classifier": min(loading, training)}

    def ask(self, job, *, settings, **more):
        if job == "find_bad_images":
            return [], []
        assert job == "measure_rate" and settings.ranks == 1
        batches = min(settings.images // settings.batch_size, 100)
        per_s = self.rates[settings.step] / settings.batch_size
        arrivals_s = [batch / per_s for batch in range(batches)]
        return steady_rate([(arrivals_s, settings.batch_size)], settings.num_workers)

    def save(self, **facts):
        self.info = replace(self.info, **facts)


def calibrated_run(**changes):
    rates = {name: changes.pop(name) for name in ("loading", "training")}
    base = {"device": "cpu", "step": "classifier", "num_workers": 2, "batch_size": 8}
    variants = {
        label: Settings(**{**base, **one}) for label, one in changes.pop("variants").items()
    }
    run = FakeRun(variants, **rates, **changes)
    calibrate_run(run, 1.0)
    return run.info.calibration


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (1000.0, 100.0),  # all workers of the machine load 100 images/s, for however many GPUs
        (30.0, 60.0),  # two GPUs of 30 images/s
        (80.0, 100.0),
    ],
)
def test_ranks_share_the_workers_and_have_a_device_each(training, expected):
    variants = {"two": {"ranks": 2}}
    found = calibrated_run(variants=variants, loading=100.0, training=training)
    assert found.images_per_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("workers", "rate", "steps"),
    [
        ([2, 4], 40.0, 12),  # quick mode's own
        ([2, 8], 80.0, 24),  # three rounds of the variant with most workers: 2.4 s
        ([8, 2], 80.0, 24),
        ([2, 32], 80.0, 16),  # 96 batches would take 10 s
        ([2, 16], 1000.0, 200),  # 1.6 seconds' worth is enough
    ],
)
def test_a_quick_epoch_has_three_rounds_of_workers_unless_it_gets_too_long(workers, rate, steps):
    variants = {str(count): {"num_workers": count} for count in workers}
    found = calibrated_run(variants=variants, loading=rate, training=rate)
    assert found.images == steps * 8


@pytest.mark.parametrize(("batch_size", "workers"), [(96, 2), (64, 3), (32, 6), (1024, 0)])
def test_large_batches_and_many_workers_have_a_rate_and_no_epoch_of_all_images(batch_size, workers):
    variants = {"base": {"batch_size": batch_size, "num_workers": workers}}
    many = {"images": 1_281_167, "looked_at": 512}
    found = calibrated_run(variants=variants, loading=5000.0, training=5000.0, **many)
    assert found.images_per_s == pytest.approx(5000.0)
    # Quick mode's own: 1.6 s and 12 steps.
    assert found.images <= max(8_000, 12 * batch_size)


def test_where_images_are_too_few_for_a_rate_an_epoch_has_all_of_them():
    variants, few = {"base": {"batch_size": 96}}, {"images": 400, "looked_at": 512}
    found = calibrated_run(variants=variants, loading=5000.0, training=5000.0, **few)
    assert (found.images_per_s, found.images) == (None, 384)
