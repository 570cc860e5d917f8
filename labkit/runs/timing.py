"""Timing: run the epochs of a trial and measure them.

    start ─ iter(loader) ─┬─ next: wait + transfer ─ forward ─ backward ─ (callbacks) ─ (sync) ─┬─
                          └────────────────────── every step ───────────────────────────────────┘
    ─ background work ends ─ sync ─ end

An epoch lasts from creating the iterator to the final synchronize, as the documents timed it.
Phases are *host* time: `wait_s` is the time in which the host waits for data, whether or not the
device is idle.
"""

from __future__ import annotations

import gc
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from labkit.contracts import Device, DeviceBatch
from labkit.machine.clock import Clock, SystemClock
from labkit.machine.disturbance import disturbance, since
from labkit.machine.usage import Usage, own_cpu_s
from labkit.parts import training
from labkit.parts.storage.cache_state import together
from labkit.parts.training import exchange
from labkit.parts.training.callbacks import NONE, Callbacks, open_callbacks
from labkit.pipeline import Pipeline, build
from labkit.records import Epoch
from labkit.resolve import label_samples
from labkit.runs.ranks import Ranks
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch

WARM_UP_STEPS = 3  # cuDNN's and the allocator's first choices


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
        Raw seconds, steps, images and bytes; the last batch, None in an epoch without steps; the
        ids of the images that the loader delivered.
    """
    now = clock.now
    sync_every = pipeline.settings.sync_every
    forward, backward = pipeline.forward, pipeline.step.backward
    device: Any = pipeline.device  # only the emulated one has `compute_s`
    computed_s = device.compute_s if device.emulated else None
    loader, timed = _TimedLoader(pipeline.loader, clock), _TimedDevice(device, clock)
    next_s = forward_s = backward_s = callbacks_s = sync_s = 0.0
    steps = images = 0
    waits_s: list[float] = []
    arrivals_s: list[float] = []
    handed_s = 0.0
    batch = None
    start_s = ready_s = now()
    for batch in pipeline.batches(loader, timed):
        arrived_s = now()
        arrivals_s.append(arrived_s - start_s)
        next_s += arrived_s - ready_s
        waits_s.append(arrived_s - ready_s - (timed.transfer_s - handed_s))
        handed_s = timed.transfer_s
        images += len(batch["sample_id"])
        steps += 1
        loss = forward(batch)
        stepped_s = now()
        forward_s += stepped_s - arrived_s
        if backward is not None:
            backward(loss)
        ready_s = now()
        backward_s += ready_s - stepped_s
        if callbacks:
            callbacks.after_step(batch)
            called_s = now()
            callbacks_s += called_s - ready_s
            ready_s = called_s
        if sync_every and steps % sync_every == 0:
            device.synchronize()
            synced_s = now()
            sync_s += synced_s - ready_s
            ready_s = synced_s
    if callbacks:
        stopped_s = now()
        callbacks.finish()
        callbacks_s += now() - stopped_s
    ended_s = now()  # the loader has also stopped its workers by now
    device.synchronize()  # queued work belongs to this epoch
    end_s = now()
    if waits_s:
        waits_s[0] -= loader.startup_s
    epoch = Epoch(
        epoch_s=end_s - start_s,
        startup_s=loader.startup_s,
        first_batch_s=arrivals_s[0] if arrivals_s else 0.0,
        wait_s=max(next_s - timed.transfer_s - loader.startup_s, 0.0),
        transfer_s=timed.transfer_s,
        forward_s=None if device.emulated else forward_s,
        backward_s=None if device.emulated else backward_s,
        launch_s=forward_s if device.emulated else None,
        sync_s=sync_s + end_s - ended_s,
        steps=steps,
        images=images,
        batch_bytes=timed.batch_bytes,
        compute_s=device.compute_s - computed_s if device.emulated else None,
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


def warm_up(pipeline: Pipeline) -> None:
    """Run a few steps on an artificial batch, so that the files stay cold.

    It is copied as in an epoch: the first page-locked memory, and the first memory of a side
    stream, take longer.
    """
    if pipeline.device.emulated:
        return
    batch = pipeline.resident_batch()
    batches = [batch] * WARM_UP_STEPS
    if pipeline.settings.pin_memory and pipeline.device.torch_device.type == "cuda":
        # All are held at once, as a loader holds what it has loaded ahead.
        batches = [{name: each.pin_memory() for name, each in batch.items()} for batch in batches]
    for on_device in pipeline.batches(batches, pipeline.device):
        loss = pipeline.forward(on_device)
        if pipeline.step.backward is not None:
            pipeline.step.backward(loss)
    pipeline.device.synchronize()


def open_trial(
    settings: Settings, clock: Clock, excluded: frozenset[int], rank: int = 0
) -> tuple[Pipeline, dict[str, Any]]:
    """Open a pipeline in this process, ready for its first epoch.

    Args:
        settings: complete, with `images` set, and `device_speed` for a calibrated device.
        clock: what the emulated device tells the time by.
        excluded: indices of unreadable images.
        rank: of this process; the first prepares the files of all.

    Returns:
        The pipeline, warmed up, and the proof of its cache state, which `prove_cache` completes.
    """
    import torch

    torch.set_num_threads(settings.torch_threads)
    pipeline = build(settings, clock, excluded=excluded, rank=rank)
    pipeline.source.start_worker(0)
    warm_up(pipeline)
    proof = {} if rank else pipeline.source.prepare_cache(settings.cache_state)
    pipeline.parts.storage.enter()  # after the files were made warm: that may be as fast as it can
    return pipeline, proof


def measure(
    settings: Settings,
    *,
    excluded: frozenset[int] = frozenset(),
    last_images: int | None = None,
) -> dict[str, Any]:
    """Measure one trial in this process.

    Args:
        settings: complete, with `images` set, and `device_speed` for a calibrated device.
        excluded: indices of unreadable images.
        last_images: of each epoch, those that are compared with other variants'; unset: the last
            batch.

    Returns:
        The measured fields of `Trial`.

    Raises:
        ValueError: settings that cannot work, or an image that cannot be decoded.
        Skip: the variant cannot run here, or its cache state cannot be produced.
    """
    with Ranks(settings, partial(_train_along, settings, excluded)) as ranks:
        return _measure(settings, excluded, ranks, last_images)


def _train_along(settings: Settings, excluded: frozenset[int], ranks: Ranks) -> None:
    """Time the epochs of another rank than the first."""
    clock = SystemClock()
    pipeline, _ = open_trial(settings, clock, excluded, ranks.rank)
    gc.collect()
    gc.disable()
    for number in range(settings.epochs):
        pipeline.source.order.epoch = number
        _time_together(pipeline, ranks, clock)
    ranks.meet()


def _time_together(
    pipeline: Pipeline, ranks: Ranks, clock: Clock, callbacks: Callbacks = NONE
) -> tuple[Epoch, DeviceBatch | None]:
    """Time an epoch of this rank beside the others'; return theirs as one, and its last batch.

    Raises:
        ValueError: it did not train on exactly the images that it should.
    """
    ranks.meet()
    epoch, batch, ids = time_epoch(pipeline, clock, callbacks)
    order, loader = pipeline.source.order, pipeline.parts.loader
    expected, delivered = len(order), epoch.images
    if delivered == expected and not loader.repeats_one_batch:
        delivered -= len({image_id for _, image_id in order}.difference(ids))
    if delivered != expected:
        raise ValueError(
            f"the loader must deliver the epoch's {expected} images, got {delivered}: "
            "not the same work as the others"
        )
    return ranks.gather(epoch), batch


def _measure(
    settings: Settings, excluded: frozenset[int], ranks: Ranks, last_images: int | None
) -> dict[str, Any]:
    clock = SystemClock()
    pipeline, *proofs = open_trial(settings, clock, excluded)
    source = pipeline.source
    epochs, cpu_s = [], 0.0
    with ExitStack() as stack:
        callbacks = open_callbacks(settings, pipeline.device, pipeline.step, stack)
        gc.collect()
        gc.disable()  # a collection would land in one arm and not in the other
        before = disturbance()  # making files cold or warm disturbs no epoch
        is_on_gpu = pipeline.device.torch_device.type == "cuda"
        with Usage(gpus=exchange.count_gpus(settings) if is_on_gpu else 0) as usage:
            for number in range(settings.epochs):
                source.order.epoch = number
                if number and settings.cached is not None:
                    proofs[-1] = source.prove_cache(proofs[-1])
                    proofs.append(source.prepare_cache(settings.cached))
                cpu_before_s = own_cpu_s()
                epoch, batch = _time_together(pipeline, ranks, clock, callbacks)
                cpu_s += own_cpu_s() - cpu_before_s
                if batch is not None:
                    last = fingerprint_of(pipeline.finished(batch), last_images)
                    epoch = replace(epoch, **last)
                epochs.append(epoch)
        disturbed = since(before)
    gc.enable()
    proofs[-1] = source.prove_cache(proofs[-1])
    ranks.meet()  # until then the others stay, so that what they read can be counted
    wall_s = sum(epoch.epoch_s for epoch in epochs)
    measured = {
        **usage.totals(),
        "cpu_s": cpu_s,
        "cpu_percent": 100 * cpu_s / wall_s,
        "epochs": tuple(epochs),
        "cache_proof": together(proofs),
        "disturbance": disturbed | usage.gpu.disturbance(),
        "hardware": (
            pipeline.parts.storage.hardware,
            pipeline.device.hardware,
            *exchange.simulated_network(settings),
        ),
        "labels": {
            "cache": settings.cache_label,  # as produced and verified, or prepare() had skipped
            **label_samples(settings),
            **training.label(settings),
            **exchange.label(settings),
            **callbacks.label(),
        },
        "first_loss": pipeline.step.first_loss(),
        "loss": pipeline.step.loss(),
    }
    if pipeline.device.emulated:
        measured["emulated_busy_share"] = sum(epoch.compute_s for epoch in epochs) / wall_s
    return measured
