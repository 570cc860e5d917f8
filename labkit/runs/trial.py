"""Measure one trial in its own process, and prove what it read.

    warm up ─ cold or warm files ─┬─ time an epoch ─ fingerprint ─┬─ prove the cache state
                                  └────────── every epoch ────────┘

The warm-up touches no file of the data.
"""

from __future__ import annotations

import gc
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from labkit.contracts import DeviceBatch
from labkit.machine.clock import Clock, SystemClock
from labkit.machine.disturbance import disturbance, since
from labkit.machine.usage import Usage, own_cpu_s
from labkit.parts import training
from labkit.parts.storage.cache_state import together
from labkit.parts.training import exchange, repeated
from labkit.parts.training.callbacks import NONE, Callbacks, open_callbacks
from labkit.pipeline import Pipeline, build
from labkit.records import Epoch
from labkit.resolve import label_samples
from labkit.runs.ranks import Ranks
from labkit.runs.thresholds import WARM_UP_STEPS
from labkit.runs.timing import fingerprint_of, time_epoch
from labkit.settings import Settings


def warm_up(pipeline: Pipeline) -> None:
    """Run a few steps on an artificial batch, so that the files stay cold.

    It is copied as in an epoch: the first page-locked memory, and the first memory of a side
    stream, take longer.
    """
    if pipeline.device.is_simulated:
        return
    settings, batch = pipeline.settings, pipeline.resident_batch()
    batches = [batch] * WARM_UP_STEPS
    if settings.pin_memory and pipeline.device.torch_device.type == "cuda":
        # As many as a loader loads ahead, in memory at once: so many take new page-locked memory.
        ahead = settings.num_workers * (settings.prefetch_factor or 0)
        batches = [batch] * max(WARM_UP_STEPS, ahead)
        batches = [{name: each.pin_memory() for name, each in batch.items()} for batch in batches]
    for on_device in pipeline.batches(batches, pipeline.device):
        loss = pipeline.forward(on_device)
        if pipeline.step.backward is not None:
            pipeline.step.backward(loss)
    pipeline.device.synchronize()


def open_trial(
    settings: Settings,
    clock: Clock,
    excluded: frozenset[int],
    rank: int = 0,
    gpu_slowdown: int = 1,
) -> tuple[Pipeline, dict[str, Any]]:
    """Open a pipeline in this process, ready for its first epoch.

    Args:
        settings: complete, with `images` set, and `gpu_images_per_s` for a calibrated device.
        clock: what the simulated GPU tells the time by.
        excluded: indices of unreadable images.
        rank: of this process; the first prepares the files of all.
        gpu_slowdown: times that each batch is trained on.

    Returns:
        The pipeline, warmed up, and the proof of its cache state, which `prove_cache` completes.
    """
    import torch

    torch.set_num_threads(settings.torch_threads)
    pipeline = build(settings, clock, excluded=excluded, rank=rank)
    pipeline = replace(pipeline, step=repeated(pipeline.step, gpu_slowdown))
    pipeline.source.start_worker(0)
    warm_up(pipeline)
    proof = {} if rank else pipeline.source.prepare_cache(settings.cache)
    pipeline.parts.storage.enter()  # after the files were made warm: that may be as fast as it can
    return pipeline, proof


def measure(
    settings: Settings,
    *,
    excluded: frozenset[int] = frozenset(),
    last_images: int | None = None,
    gpu_slowdown: int = 1,
) -> dict[str, Any]:
    """Measure one trial in this process.

    Args:
        settings: complete, with `images` set, and `gpu_images_per_s` for a calibrated device.
        excluded: indices of unreadable images.
        last_images: of each epoch, those that are compared with other variants'; unset: the last
            batch.
        gpu_slowdown: times that each batch is trained on, in place of a slower device.

    Returns:
        The measured fields of `Trial`.

    Raises:
        ValueError: settings that cannot work, or an image that cannot be decoded.
        Skip: the variant cannot run here, or its cache state cannot be produced.
    """
    with Ranks(settings, partial(_train_along, settings, excluded, gpu_slowdown)) as ranks:
        return _measure(settings, excluded, gpu_slowdown, ranks, last_images)


def _train_along(
    settings: Settings, excluded: frozenset[int], gpu_slowdown: int, ranks: Ranks
) -> None:
    """Time the epochs of another rank than the first."""
    clock = SystemClock()
    pipeline, _ = open_trial(settings, clock, excluded, ranks.rank, gpu_slowdown)
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
    settings: Settings,
    excluded: frozenset[int],
    gpu_slowdown: int,
    ranks: Ranks,
    last_images: int | None,
) -> dict[str, Any]:
    clock = SystemClock()
    pipeline, *proofs = open_trial(settings, clock, excluded, gpu_slowdown=gpu_slowdown)
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
                if number and isinstance(settings.cache, int):
                    proofs[-1] = source.prove_cache(proofs[-1])
                    proofs.append(source.prepare_cache(settings.cache))
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
            **_order_of(pipeline),
            **training.label(settings),
            **exchange.label(settings),
            **callbacks.label(),
        },
        "first_loss": pipeline.step.first_loss(),
        "loss": pipeline.step.loss(),
    }
    if pipeline.device.is_simulated:
        measured["simulated_busy_share"] = sum(epoch.compute_s for epoch in epochs) / wall_s
    return measured


def _order_of(pipeline: Pipeline) -> dict[str, str]:
    """Return the label of an order of the loader's own, where it tells of it."""
    describe = pipeline.parts.loader.describe_order
    return {} if describe is None else {"order": describe(pipeline.source, pipeline.settings)}
