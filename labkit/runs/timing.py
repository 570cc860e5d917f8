"""Timing: run one epoch and measure its times.

    start ─ iter(loader) ─┬─ next: wait + transfer ─ forward ─ backward ─ (callbacks) ─ (sync) ─┬─
                          └────────────────────── every step ───────────────────────────────────┘
    ─ background work ends ─ sync ─ end

An epoch lasts from creating the iterator to the final synchronize, as the documents timed it.
Phases are *host* time: `wait_s` is the time in which the host waits for data, whether or not the
device is idle.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from labkit.contracts import Device, DeviceBatch
from labkit.machine.clock import Clock
from labkit.parts.training.callbacks import NONE, Callbacks
from labkit.pipeline import Pipeline
from labkit.records import Epoch

if TYPE_CHECKING:
    import torch


class _TimedLoader:
    """A loader whose start-up is measured and whose images are noted."""

    def __init__(self, loader: Iterable[Any], clock: Clock) -> None:
        self._loader, self._clock = loader, clock
        self.startup_s = 0.0
        self.ids: list[int] = []

    def __iter__(self) -> Iterator:
        start_s = self._clock.now()
        iterator = iter(self._loader)
        self.startup_s += self._clock.now() - start_s
        return map(self._note, iterator)

    def _note(self, batch: dict) -> dict:
        self.ids += batch["sample_id"].tolist()
        return batch


class _TimedDevice:
    """A device whose hand-overs are measured."""

    def __init__(self, device: Device, clock: Clock) -> None:
        self._device, self._clock = device, clock
        self.transfer_s = 0.0
        self.batch_bytes = 0

    def put(self, batch: dict, **how: Any) -> DeviceBatch:
        start_s = self._clock.now()
        on_device = self._device.put(batch, **how)
        self.transfer_s += self._clock.now() - start_s
        self.batch_bytes += sum(tensor.nbytes for tensor in batch.values())
        return on_device

    def wait(self, batch: DeviceBatch) -> None:
        start_s = self._clock.now()
        self._device.wait(batch)
        self.transfer_s += self._clock.now() - start_s


def time_epoch(
    pipeline: Pipeline, clock: Clock, callbacks: Callbacks = NONE
) -> tuple[Epoch, DeviceBatch | None, list[int]]:
    """Run one epoch and measure its times.

    Args:
        pipeline: loads batches and runs the steps.
        clock: tells the time; a fake one in tests.
        callbacks: called between the steps.

    Returns:
        The epoch; its last batch, None in an epoch without steps; and the ids of the images that
        the loader delivered.
    """
    now = clock.now
    sync_every = pipeline.settings.sync_every
    forward, backward = pipeline.forward, pipeline.step.backward
    device: Any = pipeline.device  # only the simulated one has `compute_s`
    compute_before_s = device.compute_s if device.is_simulated else None
    loader, timed_device = _TimedLoader(pipeline.loader, clock), _TimedDevice(device, clock)
    forward_s = backward_s = callbacks_s = sync_s = transfer_before_s = 0.0
    steps = images = 0
    waits_s: list[float] = []
    arrivals_s: list[float] = []
    batch = None
    start_s = phase_begins_s = now()
    # Each phase begins when the one before it ends.
    for batch in pipeline.batches(loader, timed_device):
        batch_arrives_s = now()
        arrivals_s.append(batch_arrives_s - start_s)
        transfer_s = timed_device.transfer_s - transfer_before_s
        transfer_before_s = timed_device.transfer_s
        waits_s.append(batch_arrives_s - phase_begins_s - transfer_s)
        images += len(batch["sample_id"])
        steps += 1
        loss = forward(batch)
        forward_ends_s = now()
        forward_s += forward_ends_s - batch_arrives_s
        if backward is not None:
            backward(loss)
        phase_begins_s = now()
        backward_s += phase_begins_s - forward_ends_s
        if callbacks:
            callbacks.after_step(batch)
            callbacks_end_s = now()
            callbacks_s += callbacks_end_s - phase_begins_s
            phase_begins_s = callbacks_end_s
        if sync_every and steps % sync_every == 0:
            device.synchronize()
            sync_ends_s = now()
            sync_s += sync_ends_s - phase_begins_s
            phase_begins_s = sync_ends_s
    # The loader has stopped its workers by now.
    if callbacks:
        phase_begins_s = now()
        callbacks.finish()
        callbacks_s += now() - phase_begins_s
    phase_begins_s = now()
    device.synchronize()  # queued work belongs to this epoch
    end_s = now()
    sync_s += end_s - phase_begins_s
    if waits_s:
        waits_s[0] -= loader.startup_s
    epoch = Epoch(
        epoch_s=end_s - start_s,
        startup_s=loader.startup_s,
        first_batch_s=arrivals_s[0] if arrivals_s else 0.0,
        wait_s=max(sum(waits_s), 0.0),
        transfer_s=timed_device.transfer_s,
        forward_s=None if device.is_simulated else forward_s,
        backward_s=None if device.is_simulated else backward_s,
        launch_s=forward_s if device.is_simulated else None,
        sync_s=sync_s,
        steps=steps,
        images=images,
        batch_bytes=timed_device.batch_bytes,
        compute_s=device.compute_s - compute_before_s if device.is_simulated else None,
        callbacks_s=callbacks_s if callbacks else None,
        waits_s=tuple(round(max(wait_s, 0.0), 6) for wait_s in waits_s),
        arrivals_s=tuple(round(arrived_s, 6) for arrived_s in arrivals_s),
    )
    return epoch, batch, loader.ids


def fingerprint_of(
    batch: Mapping[str, torch.Tensor], last_images: int | None = None
) -> dict[str, Any]:
    """Return a fingerprint of a batch, to compare it with another variant's.

    Args:
        batch: entry name -> tensor, on any device that has been waited for.
        last_images: look at these only; unset: at all.

    Returns:
        `last_ids_crc` and `last_means`, as in `Epoch`.
    """
    import torch

    if last_images:
        batch = {
            name: tensor[-last_images:] if tensor.ndim else tensor for name, tensor in batch.items()
        }
    ids = batch["sample_id"].to("cpu", torch.int64).contiguous()
    return {
        "last_ids_crc": zlib.crc32(ids.numpy().tobytes()),
        "last_means": {
            name: _mean(tensor)
            for name, tensor in batch.items()
            if name != "sample_id" and tensor.ndim and tensor.numel() and not tensor.is_complex()
        },
    }


def _mean(tensor: torch.Tensor) -> float | list[float]:
    """Average each image, then all of them in float64: a batch as float64 is large.

    Planes (B, 3, H, W) are averaged each by itself, so that BGR is not RGB.
    """
    import torch

    each_plane = tensor.ndim == 4 and tensor.shape[1] == 3
    axes = tuple(range(2 if each_plane else 1, tensor.ndim))
    kind = torch.float32 if tensor.element_size() < 4 else tensor.dtype
    of_images = tensor.sum(axes, dtype=kind) if axes else tensor
    total = of_images.double().sum(0)
    return (total * (total.numel() / tensor.numel())).tolist()
