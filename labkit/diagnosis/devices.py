"""What a step computes on, as a diagnosis observes it: how long the host waits, the device works.

    Host       the step computes on the CPU; there is nothing to wait for
    Emulated   put, compute and synchronize of an emulated device, timed while it is observed
    Cuda       torch's own warnings of synchronization, and its profiler

A step that returns early has only queued its work.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from labkit.diagnosis.loaders import map_batch, move_batch
from labkit.parts.devices import EmulatedDevice


@dataclass(kw_only=True)
class Readings:
    """What was counted while a device was observed."""

    waited_s: float = 0.0
    """Host seconds waited for the device: copies, room in its queue, its end."""
    copy_wait_s: float = 0.0
    """The part of `waited_s` in copies to the device."""
    device_s: float = 0.0
    """Seconds of work that the device was given."""
    side_stream: bool = False
    """Whether copies ran on a stream of their own."""
    pinned: bool = False
    """Whether copies were from pinned memory."""
    copy_blocks: bool = False
    """Whether the host waits in a copy until the device is done with all it was given before."""

    def per_step(self, steps: int) -> Readings:
        """Return the mean of a step."""
        names = ("waited_s", "copy_wait_s", "device_s")
        return replace(self, **{name: getattr(self, name) / steps for name in names})


class Host:
    """No device: the step computes on the CPU.  A context in which `readings` are counted."""

    label = "cpu"
    has_queue = False
    syncs = 0
    """How often the step has waited for the device to finish so far."""

    def __init__(self) -> None:
        self.readings = Readings()

    def __enter__(self) -> Host:
        self.readings = Readings()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        """Wait for the device; not counted."""


class Emulated(Host):
    """An emulated device, whose methods are timed while this context is open."""

    has_queue = True

    def __init__(self, device: EmulatedDevice) -> None:
        super().__init__()
        self.label, self.emulated = device.label, device
        self._copied = None  # what the step copied last

    def __enter__(self) -> Emulated:
        super().__enter__()
        # On the instance, so that the class and other devices stay as they are.
        for name in ("put", "compute", "synchronize"):
            setattr(self.emulated, name, partial(self._timed, name))
        return self

    def _timed(self, name: str, *args: object, **how: bool) -> object:
        device, readings = self.emulated, self.readings
        wall_s, cpu_s, given_s = time.perf_counter(), time.thread_time(), device.compute_s
        result = getattr(type(device), name)(device, *args, **how)
        passed_s = time.perf_counter() - wall_s - (time.thread_time() - cpu_s)
        readings.device_s += device.compute_s - given_s
        readings.waited_s += max(passed_s, 0.0)
        if name == "put":
            readings.copy_wait_s += max(passed_s, 0.0)
            readings.side_stream, readings.pinned = how["side_stream"], how["pinned"]
            readings.copy_blocks = not how["pinned"]
            self._copied = result
        self.syncs += name == "synchronize"
        return result

    def __exit__(self, *_: object) -> None:
        for name in ("put", "compute", "synchronize"):
            vars(self.emulated).pop(name, None)

    def synchronize(self) -> None:
        """Wait for the device; not counted."""
        type(self.emulated).synchronize(self.emulated)

    def copy_s(self, batch: object, *, pinned: bool) -> float:
        """Return the seconds of one copy of what the step copied last; 0 where it did not."""
        if self._copied is None:
            return 0.0
        self.synchronize()
        start_s = time.perf_counter()
        self.emulated.put(self._copied, pinned=pinned, side_stream=False)
        self.synchronize()
        return time.perf_counter() - start_s


class Cuda(Host):
    """The current CUDA device."""

    has_queue = True

    def __init__(self) -> None:
        import torch

        super().__init__()
        self._cuda = torch.cuda
        self.label = f"cuda:{torch.cuda.get_device_name()}"

    def __enter__(self) -> Cuda:
        super().__enter__()
        self._caught = warnings.catch_warnings(record=True)
        self._warned = self._caught.__enter__()
        warnings.simplefilter("always")
        self._mode = self._cuda.get_sync_debug_mode()
        self._cuda.set_sync_debug_mode("warn")
        return self

    def __exit__(self, *_: object) -> None:
        self._cuda.set_sync_debug_mode(self._mode)
        self._caught.__exit__(None, None, None)
        for each in self._warned:
            if "synchroniz" not in str(each.message):
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)

    @property
    def syncs(self) -> int:
        """How often torch has warned that an operation waits."""
        return len(self._warned)

    def synchronize(self) -> None:
        """Wait for the device; not counted."""
        self._cuda.synchronize()

    def copy_s(self, batch: object, *, pinned: bool) -> float:
        """Return the seconds of one copy of a batch to the idle device."""
        if pinned:
            batch = map_batch(batch, _pin)
        self._cuda.synchronize()
        start_s = time.perf_counter()
        move_batch(batch, "cuda")
        self._cuda.synchronize()
        return time.perf_counter() - start_s

    def kernels_s(self, run: Callable[[], object]) -> float:
        """Return for how long kernels and copies ran on the device while a function ran."""
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            run()
            self._cuda.synchronize()
        ran_us = (
            e.time_range.elapsed_us() for e in seen.events() if e.device_type == DeviceType.CUDA
        )
        return sum(ran_us) / 1e6


def _pin(leaf: object) -> object:
    is_on_host = hasattr(leaf, "is_pinned") and leaf.device.type == "cpu"
    return leaf.pin_memory() if is_on_host else leaf


def find_device(device: EmulatedDevice | None) -> Host:
    """Return what the step computes on; called after the step was called once.

    Args:
        device: an emulated device that the step uses, or None.
    """
    if device is not None:
        return Emulated(device)
    torch = sys.modules.get("torch")  # importing it would take seconds
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_allocated():
        return Cuda()
    return Host()
