"""Devices: where a batch goes and where the step runs.

    host ──put──▶ device copy ──wait──▶ step ──▶ synchronize

`cuda` uses real streams and events, `cpu` transfers nothing, `simulated` models a CUDA device: it
keeps two timelines, one of its copy engine and one of its compute queue, with absolute deadlines
of the clock it is given.  A copy overlaps with compute only if its host memory is pinned *and* it
runs on a side stream.  The host needs a core as with CUDA: to launch a step, to copy from pageable
memory, and to wait.  Source: CUDA runtime API, "API synchronization behavior".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit import units
from labkit.contracts import Chosen, Device, DeviceBatch, Part, Skip
from labkit.machine import hardware
from labkit.machine.clock import Clock
from labkit.records import Hardware
from labkit.settings import SLEEPING

if TYPE_CHECKING:
    import torch


class CpuDevice:
    """The host itself: nothing is copied, and nothing runs asynchronously."""

    hardware = Hardware("device", details="cpu")
    is_simulated = False

    def __init__(self) -> None:
        import torch

        self.torch_device = torch.device("cpu")

    def put(
        self, batch: Mapping[str, torch.Tensor], *, pinned: bool, side_stream: bool
    ) -> DeviceBatch:
        """Return the batch as it is."""
        return DeviceBatch(batch)

    def wait(self, batch: DeviceBatch) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class CudaDevice:
    """The first CUDA device: the default stream computes, a side stream may copy.

    Raises:
        Skip: there is none that this torch build can use.
    """

    is_simulated = False

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise Skip("no CUDA device works with this torch build; see `labkit doctor`")
        self.torch_device = torch.device("cuda")
        self.hardware = Hardware("device", details=f"cuda:{torch.cuda.get_device_name()}")
        self._torch = torch
        self._side_stream = torch.cuda.Stream()

    def put(
        self,
        batch: Mapping[str, torch.Tensor],
        *,
        pinned: bool,
        side_stream: bool,
        finish: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None,
    ) -> DeviceBatch:
        """Start copying, and `finish` the copies on the same stream.

        `pinned` is not used: CUDA knows it of each tensor.
        """
        cuda = self._torch.cuda
        stream = self._side_stream if side_stream else cuda.current_stream()
        with cuda.stream(stream):
            on_device = DeviceBatch(
                (name, tensor.to(self.torch_device, non_blocking=True))
                for name, tensor in batch.items()
            )
            if finish is not None:
                on_device = DeviceBatch(finish(on_device))
            on_device.ready = stream.record_event() if side_stream else None
        return on_device

    def wait(self, batch: DeviceBatch) -> None:
        """Make the compute stream wait for the copy, and tell the allocator of its use.

        Untold, it may hand the memory to the next copy while the step still reads it.
        """
        if batch.ready is None:
            return
        compute = self._torch.cuda.current_stream()
        compute.wait_event(batch.ready)
        for tensor in batch.values():
            tensor.record_stream(compute)

    def synchronize(self) -> None:
        """Wait for the compute stream."""
        self._torch.cuda.current_stream().synchronize()


@dataclass(frozen=True, kw_only=True)
class GpuSpeeds:
    """The speed of a simulated GPU."""

    name: str
    gpu_images_per_s: float | None
    """Images that it trains with the model alone; None: as calibrated, and not known yet."""
    batch_size: int | None = None
    """Images of the batches that `gpu_images_per_s` holds for; None: batches of any size."""
    batch_share: float = 0.1
    """Assumed until a GPU has measured it (benchmarks/gpu.py, stage host): this share of the time
    of a step with `batch_size` images does not depend on how many they are."""
    pinned_bytes_per_s: float = 12e9
    """Host to device from page-locked memory: PCIe 3.0 x16 in practice (DOCUMENTS 0.5)."""
    pageable_bytes_per_s: float = 6e9
    """From ordinary memory, through the driver's staging buffer (DOCUMENTS 0.5)."""
    memory_bytes_per_s: float = 484e9
    """Device memory, for preprocessing there: GTX 1080 Ti, NVIDIA's data sheet."""
    launch_share: float = 0.2
    """Assumed until a GPU has measured it (benchmarks/gpu.py, stage host): the host needs so much
    of a step's compute time, as a share, to launch it on a core of its own."""
    sleeps: bool = False
    """A host that waits for the device leaves its core to others, as it does with CUDA's
    cudaDeviceScheduleBlockingSync.  By default it keeps the core busy, as with
    cudaDeviceScheduleAuto (CUDA runtime API, "Device Management")."""

    @property
    def compute_s_per_image(self) -> float:
        """Seconds of forward pass, backward pass and optimizer."""
        return 1 / self.gpu_images_per_s

    def step_s(self, images: int) -> float:
        """Return the seconds of a training step on so many images."""
        size = images if self.batch_size is None else self.batch_size
        counted = (1 - self.batch_share) * images + self.batch_share * size
        return counted * self.compute_s_per_image


# Images/s that they train.  MLPerf Storage's: 0.435 s and 0.224 s per batch of 400.
GPUS = {"resnet50_a100": 400 / 0.435, "resnet50_h100": 400 / 0.224}
PIECE_BYTES = 1 << 18  # of a copy from pageable memory: fits into any core's cache


class SimulatedGpu:
    """A CUDA device's timing without one: two timelines and a clock.

    Args:
        speeds: of the simulated GPU; `gpu_images_per_s` must be set.
        clock: tells the time, waits and launches; a fake one in tests.
    """

    is_simulated = True

    def __init__(self, speeds: GpuSpeeds, clock: Clock) -> None:
        import torch

        self.torch_device = torch.device("cpu")
        rate, sleeping = units.rate(speeds.gpu_images_per_s), "sleeping" * speeds.sleeps
        self.hardware = Hardware(
            "device", "simulated", ", ".join(filter(None, (rate, speeds.name, sleeping)))
        )
        self.compute_s = 0.0
        """Seconds of compute finished or queued so far."""
        self.waited_s = 0.0
        """Seconds that the host has waited for the device so far, pageable copies included."""
        self.on_run: Callable[[float, float], None] | None = None
        """Called with the clock's seconds of start and end of all work when it is queued."""
        self.clock = clock
        self._speeds = speeds
        self._idle_until = clock.sleep_until if speeds.sleeps else clock.spin_until
        self._staging = np.empty(PIECE_BYTES, np.uint8)
        self._copy_free_s = 0.0  # when the copy engine is done with all it was given
        self._compute_free_s = 0.0  # the same for the compute (default) stream
        self._step_ends_s: deque[float] = deque()
        self._late_s = 0.0  # delay of the host that only the simulation causes
        clock.launch(0.0)  # imports what it needs
        clock.spin_until(clock.now())

    def put(
        self, batch: Mapping[str, torch.Tensor], *, pinned: bool, side_stream: bool
    ) -> DeviceBatch:
        """Occupy the copy engine, and the compute stream too unless on a side stream."""
        size_bytes = sum(tensor.nbytes for tensor in batch.values())
        speeds = self._speeds
        bytes_per_s = speeds.pinned_bytes_per_s if pinned else speeds.pageable_bytes_per_s
        start_s = max(self._now(), self._copy_free_s)
        if not side_stream:
            start_s = max(start_s, self._compute_free_s)  # streams run in order
        end_s = start_s + size_bytes / bytes_per_s
        self._copy_free_s = end_s
        if not side_stream:
            self._compute_free_s = end_s
        if not pinned:
            # From pageable memory the driver waits for the stream, then copies by hand.
            self._wait(start_s, self._idle_until)
            self._stage(batch, end_s)
            self._wait(end_s, self._idle_until)
        on_device = DeviceBatch(batch)
        on_device.ready = end_s
        return on_device

    def wait(self, batch: DeviceBatch) -> None:
        """Let the compute stream start no earlier than the copy ends."""
        self._compute_free_s = max(self._compute_free_s, batch.ready)

    def compute(self, images: int, share: float = 1.0) -> None:
        """Queue a training step on so many images, or a share of it."""
        self.run(share * self._speeds.step_s(images))
        ends_s = self._step_ends_s
        ends_s.append(self._compute_free_s)
        # CUDA queues about 1,024 launches before a launch blocks the host; a training step of the
        # detector launches some 350 kernels.
        if len(ends_s) > 3:
            self._wait(ends_s.popleft(), self._idle_until)

    def process(self, touched_bytes: int) -> None:
        """Queue preprocessing that reads and writes so many bytes of device memory."""
        self.run(touched_bytes / self._speeds.memory_bytes_per_s)

    def run(self, compute_s: float) -> None:
        """Queue work of known length; launching it keeps the host busy for a share of that."""
        self._compute_free_s = max(self._now(), self._compute_free_s) + compute_s
        self.compute_s += compute_s
        if self.on_run is not None:
            self.on_run(self._compute_free_s - compute_s, self._compute_free_s)
        self.clock.launch(compute_s * self._speeds.launch_share)

    def synchronize(self) -> None:
        """Wait until the compute queue has run out."""
        self._wait(self._compute_free_s, self._idle_until)
        self._step_ends_s.clear()

    def _stage(self, batch: Mapping[str, torch.Tensor], end_s: float) -> None:
        """Copy a batch in the host's memory, piece by piece, until a deadline."""
        begun_s = self.clock.now()
        for piece in _pieces(batch):
            if self.clock.now() >= end_s:
                break
            np.copyto(self._staging[: len(piece)], piece)  # without the GIL
        self.waited_s += self.clock.now() - begun_s

    def _now(self) -> float:
        return self.clock.now() - self._late_s

    def _wait(self, deadline_s: float, until: Callable[[float], None]) -> None:
        begun_s = self.clock.now()
        reached_s = max(deadline_s, begun_s - self._late_s)
        until(deadline_s)
        ended_s = self.clock.now()
        self.waited_s += ended_s - begun_s
        # A host that waits goes on slightly late each time, where a real device would have let it
        # go on at once.  Up to 1 ms is not charged; a longer delay is the work of other programs.
        self._late_s = min(max(ended_s - reached_s, 0.0), 0.001)


def _pieces(batch: Mapping[str, torch.Tensor]) -> Iterator[np.ndarray]:
    """Yield the bytes of a batch in pieces of PIECE_BYTES at most."""
    import torch

    for tensor in batch.values():
        stored = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
        begin = tensor.storage_offset() * tensor.element_size()
        of_it = stored[begin : begin + tensor.nbytes]
        for start in range(0, len(of_it), PIECE_BYTES):
            yield of_it[start : start + PIECE_BYTES]


@dataclass(frozen=True)
class DevicePart(Part):
    """What makes a device: (speeds, clock) -> `contracts.Device`."""

    is_cpu: bool = False
    """The host itself, without streams."""
    is_cuda: bool = False
    """It needs a CUDA device."""
    is_simulated: bool = False
    """It computes nothing, and only takes the time."""
    sleeps: bool = False
    """The host leaves its core to others while it waits for the device."""

    def why_not(self, chosen: Chosen) -> str:
        """Refuse what the device cannot compute, or not in bearable time; see `Part.why_not`."""
        settings = chosen.settings
        # Experiments name a GPU for where it is simulated; a number is the user's.
        if isinstance(settings.gpu_images_per_s, float) and not self.is_simulated:
            return (
                f"gpu_images_per_s must be unset on device {settings.device}, which is as fast as "
                f"it is, got {settings.gpu_images_per_s}; choose device simulated"
            )
        if settings.precision == "amp" and self.is_cpu and not hardware.has_bfloat16():
            return (
                "precision must be fp32 on a CPU without AVX-512, where bfloat16 is far slower, "
                "got 'amp'; choose device cuda"
            )
        usual = {"precision": "fp32", "memory_format": "contiguous", "compile_model": False}
        for name, plain in usual.items():
            value = getattr(settings, name)
            if self.is_simulated and value != plain:
                return (
                    f"{name} must be {plain} on the simulated GPU, which computes nothing, got "
                    f"{value!r}; choose device cpu or cuda"
                )
        if settings.compile_model and (missing := hardware.why_no_compiler()):
            return f"compile_model must be False here, {missing}"
        return ""


DEVICES: dict[str, Callable[[GpuSpeeds, Clock], Device]] = {
    "cpu": DevicePart(lambda speeds, clock: CpuDevice(), is_cpu=True),
    "cuda": DevicePart(lambda speeds, clock: CudaDevice(), is_cuda=True),
    "simulated": DevicePart(SimulatedGpu, is_simulated=True),
    SLEEPING: DevicePart(SimulatedGpu, is_simulated=True, sleeps=True),
}
