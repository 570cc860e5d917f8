"""What a DataLoader takes ahead is counted in real loaders, and the unit follows from the count.

Run: python -m pytest tests/test_ahead.py
"""

import pytest

from labkit import ahead
from labkit.ahead import Taken, count_taken


def test_workers_take_so_many_batches_each_before_they_are_asked_for_one():
    asked = [(workers, factor) for workers in (1, 2) for factor in (1, 2, 4)]
    for (workers, factor), taken in zip(asked, count_taken(asked, batch_size=8), strict=True):
        assert (taken.workers, taken.prefetch_factor) == (workers, factor)
        assert list(taken.samples) == [8 * factor] * workers
        assert taken.unit == "batches"


def test_a_factor_left_unset_is_two_and_larger_batches_are_more_samples():
    (unset,) = count_taken([(2, None)], batch_size=3)
    assert (list(unset.samples), unset.unit) == ([6, 6], "batches")


@pytest.mark.parametrize(
    ("samples", "unit"),
    [((4, 4), "samples"), ((32, 32), "batches"), ((8, 8), "neither"), ((32, 4), "neither")],
)
def test_the_unit_is_what_the_count_says(samples, unit):
    assert Taken(workers=2, prefetch_factor=4, batch_size=8, samples=samples).unit == unit


def test_workers_that_never_come_to_rest_are_an_error(monkeypatch):
    monkeypatch.setattr(ahead, "LONGEST_S", 0.0)
    with pytest.raises(TimeoutError, match="loader workers must come to rest within 0 s, got"):
        count_taken([(1, 1)])
