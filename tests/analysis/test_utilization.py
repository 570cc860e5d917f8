"""How busy the device is over time follows from its batches."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import fake_epoch, fake_trial

from labkit.analysis.utilization import busy_over_time


# The third batch waits for the second: 1.0 to 1.25, then to 1.5.
@pytest.mark.parametrize(
    ("epochs", "seconds", "changes", "ends_s", "shares"),
    [
        (1, 10.0, {}, [0.5, 1.0, 1.5, 2.0], [0.0, 0.5, 1.0, 0.0]),
        (3, 3.0, {}, [0.5, 1.0, 1.5, 2.0, 2.5, 3.0], [0.0, 0.5, 1.0, 0.0, 0.0, 0.5]),
        (1, 3.0, {"compute_s": None}, [], []),
        (1, 3.0, {"arrivals_s": None}, [], []),
    ],
)
def test_the_device_computes_from_the_arrival_of_a_batch_or_the_end_of_the_one_before(
    epochs, seconds, changes, ends_s, shares
):
    # An epoch of 2 s: batches after 0.5, 1.0 and 1.1 s, each of which takes 0.25 s.
    epoch = replace(fake_epoch(2.0), steps=3, compute_s=0.75, arrivals_s=(0.5, 1.0, 1.1))
    trial = replace(fake_trial("original", 0), epochs=(replace(epoch, **changes),))
    ended_s, busy = busy_over_time([trial] * epochs, seconds=seconds, bin_s=0.5)
    assert ended_s == pytest.approx(ends_s) and busy == pytest.approx(shares)
    assert isinstance(busy, np.ndarray)
