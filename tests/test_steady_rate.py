"""A loader of known rate is measured within 2 %, in long and in short epochs.

The loader is simulated as torch's DataLoader works: each worker prepares every W-th batch, at most
two ahead of the training, and batches are delivered in order.
"""

import random

import pytest

from labkit.steady_rate import arrivals_of, fewest_batches, steady_rate

AHEAD = 2  # batches per worker, DataLoader's prefetch_factor
BATCH = 8


def arrivals(workers, batches, *, batch_s=0.2, step_s=0.0, spread=0.0, start_s=0.5, seed=0):
    """Return when batches arrive.

    Args:
        batch_s: that one worker takes for a batch.
        step_s: of the training between two batches.
        spread: each batch takes longer or shorter by up to this share.
        start_s: until the first worker runs; each other one starts 20 ms after the one before.
    """
    rng = random.Random(seed)
    arrived_s, now_s = [], 0.0
    free_s = [start_s + 0.02 * number for number in range(max(workers, 1))]
    ready_s = {}

    def prepare(batch, requested_s):
        worker = batch % len(free_s)
        took_s = batch_s * (1 + rng.uniform(-spread, spread))
        free_s[worker] = ready_s[batch] = max(free_s[worker], requested_s) + took_s

    requested = min(batches, AHEAD * workers)
    for batch in range(requested):
        prepare(batch, 0.0)
    for batch in range(batches):
        if not workers:
            prepare(batch, now_s)
        now_s = max(now_s, ready_s[batch])
        if workers and requested < batches:
            prepare(requested, now_s)
            requested += 1
        arrived_s.append(now_s)
        now_s += step_s
    return arrived_s


def lengths(workers):
    fewest = fewest_batches(workers)
    return sorted({fewest, fewest + 1, fewest + max(workers, 1) - 1, 4 * fewest + 1})


@pytest.mark.parametrize("spread", [0.0, 0.015])
@pytest.mark.parametrize("workers", range(17))
def test_a_loader_of_known_rate_is_measured_within_2_percent(workers, spread):
    known = BATCH * max(workers, 1) / 0.2
    for batches in lengths(workers):  # also where the last round has fewer batches than workers
        for seed in range(5):
            arrived_s = arrivals(workers, batches, spread=spread, seed=seed)
            rate = steady_rate([(arrived_s, BATCH)], workers).images_per_s
            assert rate == pytest.approx(known, rel=0.02), (batches, seed)


@pytest.mark.parametrize("workers", range(17))
@pytest.mark.parametrize("limit", ["loader", "step"])
def test_the_slower_of_loader_and_step_is_what_is_measured(workers, limit):
    step_s = {"loader": 0.1, "step": 1.25}[limit] * 0.2 / max(workers, 1)
    period_s = max(0.2 / workers, step_s) if workers else 0.2 + step_s
    for batches in lengths(workers):
        arrived_s = arrivals(workers, batches, step_s=step_s)
        rate = steady_rate([(arrived_s, BATCH)], workers).images_per_s
        assert rate == pytest.approx(BATCH / period_s, rel=0.02)


@pytest.mark.parametrize("workers", range(17))
def test_below_three_rounds_there_is_no_rate_and_a_reason(workers):
    fewest = max(6, 3 * workers)
    for batches in range(fewest):
        rate = steady_rate([(arrivals(workers, batches), BATCH)], workers)
        assert rate.images_per_s is None
        assert f"at least {fewest} batches with {workers} workers, got {batches};" in rate.reason
    assert steady_rate([(arrivals(workers, fewest), BATCH)], workers).reason == ""


def test_batches_of_different_sizes_count_as_what_they_hold():
    sizes = [100, 2, 2, 2, 2, 4, 4]
    rate = steady_rate([([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], sizes)], workers=0)
    assert rate.images_per_s == pytest.approx(16 / 6)


def test_epochs_are_added_up():
    slow, fast = ([float(n) * step for n in range(6)] for step in (3, 1))
    rate = steady_rate([(slow, 4), (fast, 4)], workers=1)
    assert rate.images_per_s == pytest.approx(2 * 5 * 4 / 20)


@pytest.mark.parametrize(
    ("epochs", "reason"),
    [
        ([], "no epoch was measured"),
        ([(None, 4)], "when batches arrived was not recorded; run it again"),
        ([([1.0] * 6, 4)], "all batches arrived at once"),
    ],
)
def test_what_was_not_measured_has_a_reason(epochs, reason):
    rate = steady_rate(epochs, workers=2)
    assert (rate.images_per_s, rate.reason) == (None, reason)


def test_arrivals_follow_from_waits_and_steps():
    assert arrivals_of([3.0, 0.0, 1.0], 0.5) == [3.0, 3.5, 5.0]
