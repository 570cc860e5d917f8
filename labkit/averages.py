"""What a variant's counted trials come to: times, rates, shares, memory and labels.

    [Trial] -> average() -> the fields of a Row that are not compared with the baseline

Rates and shares are sums over sums, so a long epoch counts more; times are geometric means.
Main trap: a share that one epoch does not know is unknown for the row, never that of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, geometric_mean

from labkit.trial import Epoch, Trial


def average(runs: Sequence[Trial]) -> dict[str, object]:
    """Average everything but the normalized time over a variant's counted trials.

    Returns:
        Fields of `summary.Row`; none of them without trials.
    """
    if not runs:
        return {}
    epochs = [epoch for trial in runs for epoch in trial.epochs]
    total_s = sum(epoch.epoch_s for epoch in epochs)

    def share(part_s: Callable[[Epoch], float | None]) -> float | None:
        parts_s = [part_s(epoch) for epoch in epochs]
        return None if None in parts_s else sum(parts_s) / total_s

    compute_share = share(lambda epoch: epoch.compute_s)
    first_s = [trial.epochs[0].epoch_s for trial in runs]
    second_s = [trial.epochs[1].epoch_s for trial in runs if len(trial.epochs) > 1]
    wait_p50_s, wait_p99_s = _wait_percentiles(epochs)
    return {
        "time_s": geometric_mean(trial.time_s for trial in runs),
        "images_per_s": sum(epoch.images for epoch in epochs) / total_s,
        "in_blocks": tuple(trial.block for trial in runs),
        "epochs_s": tuple(tuple(epoch.epoch_s for epoch in trial.epochs) for trial in runs),
        "epoch1_s": geometric_mean(first_s),
        "epoch2_s": geometric_mean(second_s) if second_s else None,
        "startup_s": fmean(epoch.startup_s for epoch in epochs),
        "steady_images_per_s": _steady_images_per_s(epochs),
        "wait_share": share(lambda epoch: epoch.wait_s),
        "transfer_share": share(lambda epoch: epoch.transfer_s),
        "step_share": share(_step_s),
        "sync_share": share(lambda epoch: epoch.sync_s),
        "compute_share": compute_share,
        "stall_share": None if compute_share is None else 1 - compute_share,
        "cpu_percent": _mean_known(trial.cpu_percent for trial in runs),
        "gpu_util": _mean_known(trial.gpu_util_mean for trial in runs),
        "emulated_busy_share": _mean_known(trial.emulated_busy_share for trial in runs),
        "cpu_s_per_1000_images": _cpu_s_per_1000_images(runs),
        "wait_p50_s": wait_p50_s,
        "wait_p99_s": wait_p99_s,
        "peak_rss_bytes": _largest_known(trial.peak_rss_bytes for trial in runs),
        "peak_pss_bytes": _largest_known(trial.peak_pss_bytes for trial in runs),
        "peak_shm_bytes": _largest_known(trial.peak_shm_bytes for trial in runs),
        "gpu_memory_bytes": _largest_known(trial.gpu_memory_bytes for trial in runs),
        "gpu_allocated_bytes": _largest_known(trial.gpu_allocated_bytes for trial in runs),
        "gpu_reserved_bytes": _largest_known(trial.gpu_reserved_bytes for trial in runs),
        "resident_share_before": _resident_share_before(runs),
        "device_read_share": _device_read_share(runs),
        "swapped_pages": _swapped_pages(runs),
        "labels": _merge_labels(runs),
    }


def _step_s(epoch: Epoch) -> float | None:
    if epoch.launch_s is not None:
        return epoch.launch_s
    parts_s = (epoch.forward_s, epoch.backward_s)
    return None if None in parts_s else sum(parts_s)


def _cpu_s_per_1000_images(runs: Sequence[Trial]) -> float | None:
    images = sum(trial.images for trial in runs)
    if not images or any(trial.cpu_s is None for trial in runs):
        return None
    return 1000 * sum(trial.cpu_s for trial in runs) / images


def _wait_percentiles(epochs: Sequence[Epoch]) -> tuple[float | None, float | None]:
    """Give the median wait of a step and the one that a step in a hundred exceeds."""
    if any(epoch.waits_s is None for epoch in epochs):  # rows of schema 2 have only their sum
        return None, None
    waits_s = sorted(wait_s for epoch in epochs for wait_s in epoch.waits_s)
    if not waits_s:
        return None, None
    p50, p99 = (waits_s[math.ceil(share * len(waits_s)) - 1] for share in (0.50, 0.99))
    return p50, p99


def _steady_images_per_s(epochs: Sequence[Epoch]) -> float | None:
    images = sum(epoch.images * (epoch.steps - 1) / epoch.steps for epoch in epochs if epoch.steps)
    left_s = sum(epoch.epoch_s - epoch.first_batch_s for epoch in epochs)
    return images / left_s if images and left_s > 0 else None


def _resident_share_before(runs: Sequence[Trial]) -> float | None:
    """Give the share of the trial that is furthest from what its label says."""
    shares = [trial.cache_proof.get("resident_share_before") for trial in runs]
    if None in shares:
        return None
    cold = any(trial.labels.get("cache") == "cold" for trial in runs)
    return max(shares) if cold else min(shares)


def _device_read_share(runs: Sequence[Trial]) -> float | None:
    proofs = [trial.cache_proof for trial in runs]
    fetched = [proof.get("device_read_bytes") for proof in proofs]
    # Spawned workers also ask for their libraries: what the files hold is the steadier measure,
    # and rows of schema 1 do not say it.
    asked = [
        trial.cache_proof["file_bytes"] * len(trial.epochs)
        if "file_bytes" in trial.cache_proof
        else trial.cache_proof.get("logical_read_bytes")
        for trial in runs
    ]
    if None in asked or None in fetched or not sum(asked):
        return None
    return sum(fetched) / sum(asked)


def _swapped_pages(runs: Sequence[Trial]) -> int | None:
    names = ("swapped_in_pages", "swapped_out_pages")
    counts = [trial.disturbance.get(name) for trial in runs for name in names]
    return None if None in counts else sum(counts)


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _largest_known(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _merge_labels(runs: Sequence[Trial]) -> dict[str, str]:
    names = dict.fromkeys(name for trial in runs for name in trial.labels)
    return {
        name: " / ".join(dict.fromkeys(t.labels[name] for t in runs if name in t.labels))
        for name in names
    }
