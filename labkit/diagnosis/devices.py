"""Devices as a diagnosis sees them: what the host waits for them, and how long they are busy.

    put ─ compute ─ synchronize     calls of an emulated device, timed while it is observed
    CUDA                            events around every step, and torch's own sync warnings
    none                            the step computes on the host itself

Main trap: a step that returns early has only queued its work, and one that waits for the device
may be waiting for a copy, for room in the queue, or because it asked for a number.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from labkit.parts.devices import EmulatedDevice


@dataclass(kw_only=True)
class Readings:
    """What was counted since `observed` began; seconds of the host unless said otherwise."""

    copy_wait_s: float = 0.0
    """Waited in copies to the device."""
    sync_wait_s: float = 0.0
    """Waited for the device to finish."""
    queue_wait_s: float = 0.0
    """Waited for room in the device's queue."""
    syncs: float = 0
    """How often the step asked the device to finish."""
    device_s: float = 0.0
    """For which the device was given work."""
    side_stream: bool = False
    """Whether copies went beside the computing."""

    @property
    def waited_s(self) -> float:
        """All that the host waited for the device."""
        return self.copy_wait_s + self.sync_wait_s + self.queue_wait_s

    def per_step(self, steps: int) -> Readings:
        """Divide everything that was counted by the steps."""
        return Readings(
            copy_wait_s=self.copy_wait_s / steps,
            sync_wait_s=self.sync_wait_s / steps,
            queue_wait_s=self.queue_wait_s / steps,
            syncs=self.syncs / steps,
            device_s=self.device_s / steps,
            side_stream=self.side_stream,
        )


class Host:
    """No device: the step computes on the host."""

    label = "cpu"
    has_queue = False
    emulated: EmulatedDevice | None = None
    """What stands in for a device."""

    def __init__(self) -> None:
        self.readings = Readings()

    def __enter__(self) -> Host:
        self.readings = Readings()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def syncs(self) -> int:
        """How often the step waited for the device's end, so far."""
        return int(self.readings.syncs)

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def before_step(self) -> None:
        """Nothing to note."""

    def after_step(self) -> None:
        """Nothing to note."""

    def copy_s(self, batch: object, *, pinned: bool) -> float | None:
        """Nothing is copied."""
        return None


class Emulated(Host):
    """An emulated device, whose methods are timed while this context is open."""

    has_queue = True

    def __init__(self, device: EmulatedDevice) -> None:
        super().__init__()
        self.label, self._device, self.emulated = device.label, device, device
        self._synchronize, self._last = device.synchronize, None

    def __enter__(self) -> Emulated:
        super().__enter__()
        device, readings = self._device, self.readings

        def waited(call: Callable, count: Callable[[float], None]) -> Callable:
            def timed(*args: object, **options: object) -> object:
                wall_s, cpu_s, given_s = time.perf_counter(), time.thread_time(), device.compute_s
                result = call(*args, **options)
                passed_s = time.perf_counter() - wall_s - (time.thread_time() - cpu_s)
                readings.device_s += device.compute_s - given_s
                count(max(passed_s, 0.0))
                return result

            return timed

        def copied(s: float) -> None:
            readings.copy_wait_s += s

        def put(batch: dict, **how: bool) -> object:
            self._last = batch
            readings.side_stream = how.get("side_stream", False)
            return timed_put(batch, **how)

        def queued(s: float) -> None:
            readings.queue_wait_s += s

        def synced(s: float) -> None:
            readings.sync_wait_s += s
            readings.syncs += 1

        # On the instance, so that the class and other devices stay as they are.
        timed_put = waited(device.put, copied)
        device.put = put
        device.compute = waited(device.compute, queued)
        device.synchronize = waited(device.synchronize, synced)
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("put", "compute", "synchronize"):
            self._device.__dict__.pop(name, None)

    def synchronize(self) -> None:
        """Wait for the device; not counted."""
        self._synchronize()

    def copy_s(self, batch: object, *, pinned: bool) -> float | None:
        """Time one copy with nothing before it, of what the step copied last."""
        if self._last is None:
            return None
        self._synchronize()
        start_s = time.perf_counter()
        how = {"pinned": pinned, "non_blocking": False, "side_stream": False}
        self._device.put(self._last, **how)
        return time.perf_counter() - start_s


class Cuda(Host):
    """The current CUDA device: events around steps, and torch's warnings of synchronization."""

    has_queue = True

    def __init__(self) -> None:
        import torch

        super().__init__()
        self._cuda, self._pairs = torch.cuda, []
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
        told = [each for each in self._warned if "synchroniz" in str(each.message)]
        self.readings.syncs += len(told)
        for other in self._warned:
            if other not in told:
                warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
        self._cuda.synchronize()
        self.readings.device_s += sum(a.elapsed_time(b) for a, b in self._pairs) / 1e3
        self._pairs = []

    @property
    def syncs(self) -> int:
        """How often torch has warned that an operation waits."""
        return len(self._warned)

    def synchronize(self) -> None:
        """Wait for the device; not counted."""
        self._cuda.synchronize()

    def before_step(self) -> None:
        """Note where the device is in its work."""
        self._begun = self._cuda.Event(enable_timing=True)
        self._begun.record()

    def after_step(self) -> None:
        """Note where the device will be when the step is done."""
        ended = self._cuda.Event(enable_timing=True)
        ended.record()
        self._pairs.append((self._begun, ended))

    def copy_s(self, batch: object, *, pinned: bool) -> float | None:
        """Time one copy with nothing before it."""
        from labkit.diagnosis.batches import moved, rebuilt

        if pinned:
            batch = rebuilt(batch, lambda x: x.pin_memory() if hasattr(x, "is_pinned") else x)
        self._cuda.synchronize()
        start_s = time.perf_counter()
        moved(batch, "cuda")
        self._cuda.synchronize()
        return time.perf_counter() - start_s


def find(device: EmulatedDevice | None) -> Host:
    """Find out what the step computes on, after it was called once.

    Args:
        device: an emulated one that the step uses, or None.
    """
    import torch

    if device is not None:
        return Emulated(device)
    if torch.cuda.is_initialized() and torch.cuda.memory_allocated():
        return Cuda()
    return Host()
