"""Trial: one measured run of one variant, raw and never averaged.

One trial is one row of `trials.jsonl`.  Statistics are derived from rows, never
stored in place of them.  Unknown is the word "unknown", unmeasured is None,
measured zero is 0.
"""

from __future__ import annotations

import calendar
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Literal

# Format history
#   1  first version
#   2  run; medium; file_bytes in cache_proof, major_faults and gpu clocks in disturbance;
#      last_ids_crc and last_means in epochs
#   3  peak_pss_bytes, peak_shm_bytes, gpu_allocated_bytes, gpu_reserved_bytes, first_loss;
#      waits_s and callbacks_s in epochs
#   4  group
SCHEMA = 4
UTC = "%Y-%m-%dT%H:%M:%SZ"

Status = Literal["ok", "skipped", "failed", "cancelled"]


class Skip(Exception):  # noqa: N818 - not an error: the variant cannot run here, and that is shown
    """Raised where a variant cannot run on this machine; the text is the reason shown."""


class Cancelled(Exception):  # noqa: N818 - a request, not an error
    """The person cancelled; everything that was started has been ended."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One timed epoch, from creating the iterator to the final synchronize."""

    epoch_s: float
    startup_s: float
    """Creating the iterator: starting worker processes and prefetch threads."""
    first_batch_s: float
    """From the start of the epoch until the first batch was on the device."""
    wait_s: float
    """Host waiting for data, whatever the device does meanwhile; start-up not included."""
    transfer_s: float
    """Host busy or blocked handing batches to the device."""
    forward_s: float | None
    """Host time of the forward pass; None where the device has none (emulated)."""
    backward_s: float | None
    launch_s: float | None
    """Host time launching work on the emulated device; None where forward and backward are."""
    sync_s: float
    """Host waiting for the device (`sync_every` and the end of the epoch)."""
    steps: int
    images: int
    batch_bytes: int
    """Bytes handed to the device, all batches together."""
    compute_s: float | None
    """Device time spent on steps: the emulated device's timeline; None elsewhere."""
    last_ids_crc: int | None = None
    """CRC-32 of the last batch's sample ids, in order, as int64."""
    last_means: dict[str, float | list[float]] | None = None
    """Entry of the last batch -> its mean; of planes of red, green and blue, one mean each."""
    callbacks_s: float | None = None
    """Host busy or waiting with what is done beside the steps: checkpoints, reports, metrics."""
    waits_s: tuple[float, ...] | None = None
    """What `wait_s` adds up: one wait per step, to the microsecond."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of one variant in a fresh process."""

    experiment: str
    variant: str
    group: str = ""
    """What its time is compared within, as "decode, 640×480"; empty where all variants compare."""
    block: int
    position: int
    """Place in the block's order, from 0."""
    role: Literal["A1", "A2", ""] = ""
    """Which of the baseline's two runs in a block this is; empty for other variants."""
    settings: dict[str, object]
    status: Status
    reason: str = ""
    epochs: tuple[Epoch, ...] = ()
    cpu_s: float | None = None
    """CPU-seconds of the trial and its workers during the epochs."""
    cpu_percent: float | None = None
    """cpu_s over wall time; 200 means two busy cores."""
    gpu_util_mean: float | None = None
    gpu_util_zero_share: float | None = None
    gpu_memory_bytes: int | None = None
    """Most that NVML saw in use on the whole GPU, by whatever program."""
    gpu_allocated_bytes: int | None = None
    """Most that torch's tensors held on the CUDA device during the epochs."""
    gpu_reserved_bytes: int | None = None
    """Most that torch's allocator had taken of it, in use or kept for later."""
    emulated_busy_share: float | None = None
    """Share of the epochs in which the emulated device computed."""
    peak_rss_bytes: int | None = None
    """Largest resident memory of the training process."""
    peak_pss_bytes: int | None = None
    """Largest proportional memory seen of the training process and its workers together."""
    peak_shm_bytes: int | None = None
    """Most that was seen in /dev/shm beyond what was there before the epochs."""
    cache_proof: dict[str, object] = field(default_factory=dict)
    disturbance: dict[str, object] = field(default_factory=dict)
    medium: dict[str, object] = field(default_factory=dict)
    """What the files lay on: filesystem, device, rotational, scheduler, readahead_kb,
    cold_reads_per_s (None: not probed)."""
    labels: dict[str, str] = field(default_factory=dict)
    """storage=real|throttled|modelled|emulated distance|unknown, cache=cold|warm as
    verified, accelerator=cuda:...|cpu|emulated(...)."""
    first_loss: float | None = None
    """Of untrained weights, in the warm-up; the same for all variants but for rounding."""
    loss: float | None = None
    """Of the last step; None where nothing is trained."""
    run: str = "unknown"
    """The run folder's name."""
    machine_id: str = "unknown"
    started_utc: str = "unknown"
    schema: int = SCHEMA

    @property
    def time_s(self) -> float:
        """What the documents timed: the epochs' seconds added up, start-up included."""
        return sum(epoch.epoch_s for epoch in self.epochs)

    @property
    def images(self) -> int:
        """Images of all epochs together."""
        return sum(epoch.images for epoch in self.epochs)

    def to_row(self) -> dict[str, object]:
        """Flatten to what JSON can hold; `from_row` is the way back."""
        return asdict(self)

    @staticmethod
    def from_row(row: dict[str, object]) -> Trial:
        """Rebuild a trial from its row.

        Raises:
            ValueError: the row was written by a newer labkit.
        """
        if row.get("schema", 0) > SCHEMA:
            raise ValueError(
                f"schema must be at most {SCHEMA}, got {row['schema']}; "
                "update labkit to read this run"
            )
        known = {f.name for f in fields(Trial)}
        row = {name: value for name, value in row.items() if name in known}
        return Trial(**{**row, "epochs": tuple(Epoch(**epoch) for epoch in row["epochs"])})


def utc_now() -> str:
    """Give the time as rows record it: 2026-11-21T03:46:00Z."""
    return time.strftime(UTC, time.gmtime())


def seconds_of(utc: str) -> float:
    """Turn a time as rows record it into seconds since 1970."""
    return float(calendar.timegm(time.strptime(utc, UTC)))
