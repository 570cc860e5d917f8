"""How busy the device is over time follows from its batches."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import fake_epoch, fake_trial

from labkit.analysis.utilization import busy_over_time


def trial(**changes):
    """An epoch of 2 s: batches after 0.5, 1.0 and 1.1 s, each of which takes 0.25 s."""
    epoch = replace(fake_epoch(2.0), steps=3, compute_s=0.75, arrivals_s=(0.5, 1.0, 1.1))
    return replace(fake_trial("original", 0), epochs=(replace(epoch, **changes),))


def test_the_device_computes_from_the_arrival_of_a_batch_or_the_end_of_the_one_before():
    ends_s, shares = busy_over_time([trial()], seconds=10.0, bin_s=0.5)
    assert ends_s == pytest.approx([0.5, 1.0, 1.5, 2.0])
    # The third batch waits for the second: 1.0 to 1.25, then to 1.5.
    assert shares == pytest.approx([0.0, 0.5, 1.0, 0.0])


def test_epochs_follow_one_another_until_the_time_is_over():
    ends_s, shares = busy_over_time([trial(), trial(), trial()], seconds=3.0, bin_s=0.5)
    assert ends_s[-1] == 3.0
    assert shares == pytest.approx([0.0, 0.5, 1.0, 0.0, 0.0, 0.5])


@pytest.mark.parametrize("changes", [{"compute_s": None}, {"arrivals_s": None}])
def test_a_device_that_is_not_timed_has_no_shares(changes):
    ends_s, shares = busy_over_time([trial(**changes)], seconds=3.0, bin_s=0.5)
    assert len(ends_s) == len(shares) == 0
    assert isinstance(shares, np.ndarray)
