"""Averages of a variant's trials: times, rates, shares, memory.

Each is computed when it is asked for, from the trials that count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, geometric_mean

from labkit.analysis import cache_state
from labkit.analysis.statistics import ratio_interval
from labkit.records import AnyTrial, Epoch, Trial
from labkit.steady_rate import SteadyRate, arrivals_of, steady_rate


@dataclass(frozen=True, kw_only=True)
class Averages:
    """Averages of a variant's trials; None is unknown.

    Rates and shares are sums over sums, so that a long epoch counts more; times are geometric
    means.  A share that one epoch does not know is unknown.
    """

    trials: tuple[AnyTrial, ...] = field(default=(), repr=False)
    """The trials that count; a baseline has two in each block."""

    @cached_property
    def of_epochs(self) -> tuple[Trial, ...]:
        """The trials that timed epochs: all, or none of a single operation."""
        return tuple(trial for trial in self.trials if isinstance(trial, Trial))

    @cached_property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs of all trials."""
        return tuple(epoch for trial in self.of_epochs for epoch in trial.epochs)

    @cached_property
    def labels(self) -> dict[str, str]:
        """Labels that describe the trials' work; where trials differ, their values are joined."""
        values: dict[str, dict[str, None]] = {}
        for trial in self.trials:
            for name, label in trial.labels.items():
                values.setdefault(name, {})[label] = None
        return {name: " / ".join(labels) for name, labels in values.items()}

    @property
    def cache(self) -> str:
        """Cache state of the trials: "cold", "warm", "50 % cached", or ""."""
        return self.labels.get("cache", "")

    # --- times

    @property
    def blocks(self) -> int:
        """Complete blocks that count."""
        return len({trial.block for trial in self.trials})

    @cached_property
    def log_times(self) -> dict[int, float]:
        """Block -> ln of a trial's seconds, or the mean of two trials; `compare` pairs them."""
        return _by_block((trial.block, trial.time_s) for trial in self.trials)

    @cached_property
    def steady_log_times(self) -> dict[int, float]:
        """Block -> ln of the seconds per image at the steady rate; empty where one is unknown."""
        blocks = (trial.block for trial in self.of_epochs)
        return _by_block((block, 1 / rate) for block, rate in zip(blocks, self.steady_rates))

    @property
    def time_s(self) -> float | None:
        """Geometric mean over trials of the sum of their epochs' seconds."""
        return _geometric_mean(trial.time_s for trial in self.trials)

    @property
    def time_interval_s(self) -> tuple[float | None, float | None]:
        """The 95 % interval of `time_s` over blocks; None and None below two."""
        return ratio_interval([*self.log_times.values()])

    @property
    def epoch1_s(self) -> float | None:
        """Geometric mean of the first epochs."""
        return _geometric_mean(trial.epochs[0].epoch_s for trial in self.of_epochs)

    @property
    def epoch2_s(self) -> float | None:
        """Geometric mean of the second epochs."""
        return _geometric_mean(t.epochs[1].epoch_s for t in self.of_epochs if len(t.epochs) > 1)

    @property
    def startup_s(self) -> float | None:
        """Mean over the epochs of starting workers and threads."""
        return _mean_known(epoch.startup_s for epoch in self.epochs)

    # --- rates

    @property
    def images_per_s(self) -> float | None:
        """All images over all epoch seconds, start-up included."""
        return self._share(epoch.images for epoch in self.epochs)

    @cached_property
    def _steady(self) -> SteadyRate:
        return _steady_rate(self.of_epochs) if self.of_epochs else SteadyRate(None)

    @property
    def steady_images_per_s(self) -> float | None:
        """Images per second over whole rounds of workers; see `labkit.steady_rate`."""
        return self._steady.images_per_s

    @property
    def steady_reason(self) -> str:
        """The reason why there is no steady rate."""
        return self._steady.reason

    @property
    def mean_steady_images_per_s(self) -> float | None:
        """Geometric mean over blocks of the steady rate; its interval is `steady_interval`."""
        logs = self.steady_log_times.values()
        return math.exp(-fmean(logs)) if logs else None

    @property
    def steady_interval(self) -> tuple[float | None, float | None]:
        """The 95 % interval of the steady rate over blocks; None and None below two."""
        return ratio_interval([-log_s for log_s in self.steady_log_times.values()])

    @cached_property
    def steady_rates(self) -> tuple[float, ...]:
        """The steady rate of each trial; empty where one is unknown."""
        if self.steady_images_per_s is None:
            return ()
        return tuple(_steady_rate([trial]).images_per_s for trial in self.of_epochs)

    # --- shares of the epochs

    @property
    def startup_share(self) -> float | None:
        """Share of the epochs in which workers and threads were started."""
        return self._share(epoch.startup_s for epoch in self.epochs)

    @property
    def wait_share(self) -> float | None:
        """Share of the epochs in which the host waited for data."""
        return self._share(epoch.wait_s for epoch in self.epochs)

    @property
    def transfer_share(self) -> float | None:
        """Share of the epochs in which the host handed batches to the device."""
        return self._share(epoch.transfer_s for epoch in self.epochs)

    @property
    def step_share(self) -> float | None:
        """Share of the epochs in which the host ran, or launched, forward and backward pass."""
        return self._share(map(_step_s, self.epochs))

    @property
    def sync_share(self) -> float | None:
        """Share of the epochs in which the host waited for the device, as `sync_every` asks for."""
        return self._share(epoch.sync_s for epoch in self.epochs)

    @property
    def compute_share(self) -> float | None:
        """Share of the epochs in which the device computed, where the device tells."""
        return self._share(epoch.compute_s for epoch in self.epochs)

    @property
    def stall_share(self) -> float | None:
        """Share of the epochs in which the device did not compute."""
        return None if self.compute_share is None else 1 - self.compute_share

    @property
    def _total_s(self) -> float:
        return sum(epoch.epoch_s for epoch in self.epochs)

    def _share(self, parts: Iterable[float | None]) -> float | None:
        return _ratio(_sum(parts), self._total_s)

    # --- waits of single steps

    @property
    def wait_p50_s(self) -> float | None:
        """Median over all steps of the host's wait for a batch."""
        return self._wait_quantile_s(0.50)

    @property
    def wait_p99_s(self) -> float | None:
        """99th percentile over all steps of the host's wait for a batch."""
        return self._wait_quantile_s(0.99)

    @cached_property
    def _waits_s(self) -> list[float]:
        if any(epoch.waits_s is None for epoch in self.epochs):  # rows of schema 2 have their sum
            return []
        return sorted(wait_s for epoch in self.epochs for wait_s in epoch.waits_s)

    def _wait_quantile_s(self, share: float) -> float | None:
        return self._waits_s[math.ceil(share * len(self._waits_s)) - 1] if self._waits_s else None

    # --- CPU and GPU

    @property
    def cpu_percent(self) -> float | None:
        """CPU seconds over wall time; 200 means two busy cores."""
        return _mean_known(trial.cpu_percent for trial in self.of_epochs)

    @property
    def cpu_s_per_1000_images(self) -> float | None:
        """CPU-seconds of the training process and its workers ([002] takes the cheapest)."""
        images = sum(trial.images for trial in self.of_epochs)
        return _ratio(_sum(trial.cpu_s for trial in self.of_epochs), images / 1000)

    @property
    def gpu_util(self) -> float | None:
        """Share of NVML's periods in which some kernel ran."""
        return _mean_known(trial.gpu_util_mean for trial in self.of_epochs)

    @property
    def simulated_busy_share(self) -> float | None:
        """Share of the epochs in which the simulated GPU computed."""
        return _mean_known(trial.simulated_busy_share for trial in self.of_epochs)

    # --- memory

    @property
    def peak_rss_bytes(self) -> int | None:
        """Largest resident memory of the training process."""
        return _largest_known(trial.peak_rss_bytes for trial in self.of_epochs)

    @property
    def peak_pss_bytes(self) -> int | None:
        """Largest proportional memory of the training process and its workers."""
        return _largest_known(trial.peak_pss_bytes for trial in self.of_epochs)

    @property
    def peak_shm_bytes(self) -> int | None:
        """Largest memory in use in /dev/shm."""
        return _largest_known(trial.peak_shm_bytes for trial in self.of_epochs)

    @property
    def gpu_memory_bytes(self) -> int | None:
        """Largest memory in use on the whole GPU, by all programs."""
        return _largest_known(trial.gpu_memory_bytes for trial in self.of_epochs)

    @property
    def gpu_allocated_bytes(self) -> int | None:
        """Largest memory of torch's tensors on the GPU."""
        return _largest_known(trial.gpu_allocated_bytes for trial in self.of_epochs)

    @property
    def gpu_reserved_bytes(self) -> int | None:
        """Largest memory that torch's allocator reserved on the GPU, its cache included."""
        return _largest_known(trial.gpu_reserved_bytes for trial in self.of_epochs)

    # --- files

    @property
    def resident_share_before(self) -> float | None:
        """Share of the files' pages in memory before epoch 1; see `cache_state`."""
        return cache_state.resident_share_before(self.of_epochs)

    @property
    def device_read_share(self) -> float | None:
        """Bytes fetched from a device, of those asked for, over all epochs."""
        return cache_state.device_read_share(self.of_epochs)

    @property
    def swapped_pages(self) -> int | None:
        """Pages that the machine swapped in or out during these trials."""
        ways = ("swapped_in_pages", "swapped_out_pages")
        pages = _sum(trial.disturbance.get(way) for trial in self.trials for way in ways)
        return None if pages is None else int(pages)


@dataclass(frozen=True, kw_only=True)
class EpochBar:
    """The first epoch of a variant, or those after it."""

    name: str
    mean_s: float
    """Geometric mean over trials."""
    all_s: tuple[float, ...]
    """Seconds of every trial."""
    startup_s: float = 0.0
    """Mean start-up time of an epoch, which does not depend on the number of images."""


def epoch_bars(row: Averages) -> tuple[EpochBar, ...]:
    """Return the first epoch of a variant and the later ones, which memory may serve.

    Returns:
        One or two; none without a trial.
    """
    if not row.of_epochs:
        return ()
    bars = [_epoch_bar("epoch 1", [trial.epochs[:1] for trial in row.of_epochs])]
    if later := [trial.epochs[1:] for trial in row.of_epochs if len(trial.epochs) > 1]:
        n = 1 + max(map(len, later))
        bars.append(_epoch_bar("epoch 2" if n == 2 else f"epochs 2 to {n} (mean)", later))
    return tuple(bars)


def _epoch_bar(name: str, trials: Sequence[Sequence[Epoch]]) -> EpochBar:
    return EpochBar(
        name=name,
        mean_s=geometric_mean(fmean(epoch.epoch_s for epoch in epochs) for epochs in trials),
        all_s=tuple(epoch.epoch_s for epochs in trials for epoch in epochs),
        startup_s=fmean(fmean(epoch.startup_s for epoch in epochs) for epochs in trials),
    )


def _steady_rate(trials: Sequence[Trial]) -> SteadyRate:
    """Return the steady rate of a variant's trials, of several ranks together."""
    settings = trials[0].settings
    return steady_rate(
        [
            (_arrivals_s(epoch), epoch.images / epoch.steps if epoch.steps else 0.0)
            for trial in trials
            for epoch in trial.epochs
        ],
        workers=(settings.get("num_workers") or 0) // (settings.get("ranks") or 1),
    )


def _arrivals_s(epoch: Epoch) -> Sequence[float] | None:
    """Return when an epoch's batches arrived; None for rows of schema 2, which lack it.

    Rows of schemas 3 to 5 have every wait, and the sum of what lies between the waits.
    """
    if epoch.arrivals_s is not None or epoch.waits_s is None:
        return epoch.arrivals_s
    between_s = (
        epoch.transfer_s, epoch.forward_s, epoch.backward_s, epoch.launch_s, epoch.sync_s,
        epoch.callbacks_s,
    )  # fmt: skip
    step_s = sum(part_s or 0.0 for part_s in between_s) / max(epoch.steps, 1)
    return arrivals_of(epoch.waits_s, step_s)


def _step_s(epoch: Epoch) -> float | None:
    return _sum((epoch.forward_s, epoch.backward_s)) if epoch.launch_s is None else epoch.launch_s


def _by_block(times_s: Iterable[tuple[int, float]]) -> dict[int, float]:
    logs: dict[int, list[float]] = {}
    for block, time_s in times_s:
        logs.setdefault(block, []).append(math.log(time_s))
    return {block: fmean(both) for block, both in logs.items()}


def _sum(parts: Iterable[float | None]) -> float | None:
    """Add up; None where a part is unknown, or there is none."""
    parts = list(parts)
    return None if not parts or None in parts else sum(parts)


def _ratio(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None


def _geometric_mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return geometric_mean(values) if values else None


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _largest_known(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
