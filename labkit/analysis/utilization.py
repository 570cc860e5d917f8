"""How busy the device is over time, from when its batches arrived and how long it computes each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labkit.records import Trial


def busy_over_time(
    trials: Sequence[Trial], *, seconds: float, bin_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of time in which the device computes, epoch after epoch.

    Args:
        trials: of one variant, in the order in which they ran.
        seconds: how much is returned at most; the epochs follow one another without a pause.
        bin_s: length of the bins.

    Returns:
        The bins' ends in seconds and the share in each, both (n,) float64; empty where the trials
        do not tell when the device computes.
    """
    begun_s: list[float] = []
    ended_s: list[float] = []
    now_s = 0.0
    for epoch in (epoch for trial in trials for epoch in trial.epochs):
        if epoch.compute_s is None or not epoch.arrivals_s or now_s >= seconds:
            break
        step_s, free_s = epoch.compute_s / epoch.steps, 0.0
        for arrived_s in epoch.arrivals_s:
            start_s = max(arrived_s, free_s)
            free_s = start_s + step_s
            begun_s.append(now_s + start_s)
            ended_s.append(now_s + free_s)
        now_s += epoch.epoch_s
    count = int(min(now_s, seconds) / bin_s)
    edges_s = np.arange(count + 1) * bin_s
    # Busy seconds until each edge: spans do not overlap.
    begun, ended = np.array(begun_s), np.array(ended_s)
    until_s = [np.clip(edge - begun, 0, ended - begun).sum() for edge in edges_s]
    return edges_s[1:], np.diff(until_s) / bin_s if count else np.array([])
