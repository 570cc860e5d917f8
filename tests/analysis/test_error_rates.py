"""The lab's verdicts are wrong no more often than promised: a short `benchmarks.statistics`.

Few simulations, so each limit is widened by 2 standard errors; the seeds are fixed.
"""

import pytest

from benchmarks import statistics as simulated

SEED = 1
WIDENED_SE = 2


@pytest.mark.parametrize(
    ("prove", "times"),
    [
        (simulated.false_positives, 80),
        (simulated.called_unstable, 80),
        (simulated.power, 40),
        (simulated.equality_granted, 50),
        (simulated.coverage, 30),
        (simulated.compared_runs, 60),
    ],
)
def test_error_rates_keep_their_limits(prove, times):
    missed = [r for r in prove(times, SEED) if not r.passes(WIDENED_SE)]
    assert missed == []
