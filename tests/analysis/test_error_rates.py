"""The lab's verdicts are wrong no more often than promised: a short `benchmarks.statistics`.

Few simulations, so each limit is widened by 2 standard errors; the seeds are fixed.  The last
tests take a safeguard away, to show that the simulation would notice.
Run: python -m pytest tests/analysis/test_error_rates.py
"""

import math

import pytest

from benchmarks import statistics as simulated
from labkit.analysis import statistics, summary
from labkit.analysis.statistics import ALPHA

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
    ],
)
def test_error_rates_keep_their_limits(prove, times):
    missed = [r for r in prove(times, SEED) if not r.passes(WIDENED_SE)]
    assert missed == []


def test_one_arm_after_the_other_on_a_drifting_machine_finds_what_is_not_there():
    in_sequence, in_blocks = simulated.documents_way(60, SEED)
    assert in_sequence.value > 0.5
    assert in_blocks.value < 0.15


def test_without_holm_the_simulated_false_positives_exceed_the_limit(monkeypatch):
    monkeypatch.setattr(statistics, "holm", lambda p_values: [ALPHA] * len(p_values))
    _, normal_noise = simulated.false_positives(400, SEED)
    assert not normal_noise.passes(WIDENED_SE)


def test_without_pairing_the_simulated_power_falls_below_the_limit(monkeypatch):
    monkeypatch.setattr(summary, "log_ratio", lambda time_s, base_s: math.log(time_s))
    assert not any(r.passes(WIDENED_SE) for r in simulated.power(50, SEED))
