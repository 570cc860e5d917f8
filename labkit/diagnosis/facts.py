"""What a diagnosis measured, as plain numbers.

Bounds and rules depend on nothing else: neither on the loader nor on the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from labkit.machine.cores import CoreLimits

DEFAULT_PREFETCH_FACTOR = 2  # torch's own, where there are workers
COLLATE = "collate"  # a kind of stage


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What was counted while a device was observed."""

    waited_s: float = 0.0
    """Host seconds waited for the device: copies, room in its queue, its end."""
    copy_wait_s: float = 0.0
    """The part of `waited_s` in copies to the device."""
    device_s: float = 0.0
    """Seconds of work that the device was given; 0 where not known, as of Apple's and Intel's."""
    syncs: float = 0
    """How often the step waited for the device to finish."""

    def per_step(self, steps: int) -> Readings:
        """Return the mean of a step."""
        return Readings(**{name: total / steps for name, total in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """One arm, measured once."""

    arm: str
    steps: int
    """Number of measured steps."""
    busy_s: float
    """Mean of a step without the host's waiting for the device or for a core."""
    step_s: float
    """Of a step in the steady state, over whole rounds of workers, what the device had queued
    included; where epochs are too short for that (`labkit.steady_rate`), the mean of all steps
    after the first round."""
    startup_s: float
    """From asking for an iterator, or from having one of persistent workers, to its first batch:
    mean of the epochs begun."""
    epochs: int
    """Number of complete epochs."""
    epoch_s: float | None
    """Of an epoch: as measured, or its head and the steady state; None for an unknown length."""
    cpu_s: float
    """CPU seconds per step of this process and its workers."""
    own_cpu_s: float
    """CPU seconds per step of this process."""
    queued_s: float | None
    """Per step, for which workers, or else this thread, were ready to run and had no core; None
    where not known."""
    own_queued_s: float = 0.0
    """Per step, for which this thread was ready to run and had no core."""
    idle: float
    """Share of the machine's cores that nothing ran on."""
    pinning_s: float | None = None
    """CPU seconds per step of the thread that copies batches into pinned memory; None where there
    is none, or not the same one all the time."""
    fetched_bytes: float | None = None
    """Read from disks and network file systems per step, not from memory; None where not known."""
    readings: Readings
    """Readings of the device, per step."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of making and sending a batch, in seconds per batch in one worker."""

    name: str
    """The function that took most of its time; "collate" has none."""
    kind: str
    """read, decode, transform or collate."""
    wall_s: float
    cpu_s: float
    """CPU seconds of all threads of the process."""
    reader: str = ""
    """Transform that a read is part of; "" if there is none."""

    @property
    def wait_s(self) -> float:
        """Wall seconds in which no thread of the process computed."""
        return max(0.0, self.wall_s - self.cpu_s)


@dataclass(frozen=True, kw_only=True)
class Stages:
    """What one worker takes for a batch; see `probe.probe_stages`."""

    stages: tuple[Stage, ...] = ()
    """Most time first; empty where no batch came."""
    slowest: float = 1.0
    """The slowest batch's seconds ÷ the mean."""
    fastest: float = 1.0
    """The fastest batch's seconds ÷ the mean."""
    threads: float = 1.0
    """That a worker keeps busy, or that OpenCV would start in it."""
    pickle_s: float = 0.0
    """CPU of the worker to send a batch, with the copy to shared memory; 0 without workers."""
    fetched_per_s: float | None = None
    """Bytes per second from disks and network file systems; None where not known."""
    sampler_s: float = 0.0
    """Seconds of the main process to draw the samples of a batch."""
    error: Exception | None = None
    """Error that ended the probe early; earlier measurements are kept."""


class Kind(NamedTuple):
    """A kind of work in a step."""

    share: float
    """Share of the time."""
    function: str
    """Function of the user's code that takes most of it, or one that it calls and that has advice,
    as "torch.AveragedModel.update_parameters"; "" if there is none."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The first batch."""

    bytes_by_dtype: Mapping[str, int] = field(default_factory=dict)
    """Bytes of its tensors and arrays; "float32" and the like are the keys."""
    samples: int = 0
    """0 if unknown."""
    unit: str = "samples"
    """"images", or "samples" where the batch holds no pictures."""
    objects: int = 0
    """Objects in it, without tensors and arrays."""
    tensors: int = 0
    """Tensors and arrays in it."""

    @property
    def total_bytes(self) -> int:
        """Return the bytes of its tensors and arrays."""
        return sum(self.bytes_by_dtype.values())

    @property
    def main_dtype(self) -> str:
        """Return the dtype of most of its bytes; "" if there are none."""
        return max(self.bytes_by_dtype, key=lambda name: self.bytes_by_dtype[name], default="")


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Copies of a batch to the device."""

    pageable_s: float = 0.0
    """Seconds of one; 0 where not known."""
    pinned_s: float = 0.0
    """Seconds of one from pinned memory."""
    are_pinned: bool = False
    """Whether the step's own copies are from pinned memory."""
    are_beside: bool = False
    """Whether they run beside computing, on a stream of their own."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was measured of a loader and a step, also where something broke before the end."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the DataLoader that are not torch's defaults; empty for other loaders."""
    length: int | None = None
    """Batches of an epoch; None where the loader does not know."""
    limits: CoreLimits = field(default_factory=CoreLimits)
    """What limits the cores of this process."""
    device: str = "cpu"
    """What the step computes on."""
    has_queue: bool = False
    """Whether the step only queues work there."""
    has_model: bool = False
    """Whether changes of the model can be tried."""
    has_opencv: bool = False
    """Whether the user's code imports OpenCV."""
    batch: Batch = field(default_factory=Batch)
    stretches: tuple[Stretch, ...] = ()
    """Stretches of all blocks, in the order in which they were measured."""
    first_s: float = 0.0
    """Mean of the first steps, with which a measurement begins."""
    probe: Stages = field(default_factory=Stages)
    """Stages of one worker."""
    host_kinds: Mapping[str, Kind] = field(default_factory=dict)
    """Kind of the step's work on the host -> share of the step; see `gpu.kinds_of`."""
    resident_on_device: Stretch | None = None
    """The step on batches that are on CUDA, with its profile; None for other devices."""
    copies: Copies = field(default_factory=Copies)
    copy_bytes_s: float = 0.0
    """A plain copy of a batch in memory."""
    empty_s: float = 0.0
    """A batch of one tiny tensor through a DataLoader with as many workers."""
    decoders_s: Mapping[str, float] = field(default_factory=dict)
    """labkit's decoders -> seconds for one of the user's files."""
    duplicated: bool = False
    """Whether several workers yield, or would yield, the same batches."""
    notes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """Notes for the screen: errors of the user's code in parts that the other measurements did not
    need, and what limits them."""
    left_out: tuple[str, ...] = ()
    """What the budget had no time for."""
    broken: str = ""
    """Reason why the measurement ended early."""

    def of(self, arm: str) -> list[Stretch]:
        """Return an arm's stretches."""
        return [stretch for stretch in self.stretches if stretch.arm == arm]

    @property
    def computing(self) -> list[Stretch]:
        """Return the stretches of the step alone; on CUDA the one on batches that are there."""
        return [self.resident_on_device] if self.resident_on_device else self.of("resident")

    @property
    def cores(self) -> int:
        """Return the cores that this process may use; ranks on this machine share them."""
        return self.limits.cores

    @property
    def is_data_loader(self) -> bool:
        """Return whether the loader is torch's DataLoader."""
        return bool(self.arguments)

    @property
    def workers(self) -> int:
        """Return the workers of the DataLoader."""
        return int(self.arguments.get("num_workers", 0))

    @property
    def ahead(self) -> int:
        """Return how many batches each worker prepares ahead."""
        return int(self.arguments.get("prefetch_factor", DEFAULT_PREFETCH_FACTOR))
