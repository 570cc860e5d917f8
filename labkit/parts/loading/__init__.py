"""Loading: loaders turn samples into CPU batches, in processes or threads.

    source.order -> keys -> loader: source[key] in processes (torch) or threads -> CPU batches

    source.outside() -> files, labels, numbers: tf.data and DALI do everything by themselves

A loader takes `(source, settings)` and returns an iterable that starts an epoch each time it is
iterated.  The batches of an epoch and their order depend on the source alone, not on the loader
or its number of workers, unless the loader `has_own_order` or its `order_varies`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from labkit.contracts import Chosen, Part
from labkit.parts.loading.dali import load_with_dali
from labkit.parts.loading.shards import describe_order, load_shards
from labkit.parts.loading.source import Source
from labkit.parts.loading.tf_data import load_as_published, load_tfrecords, load_with_tf_data
from labkit.parts.loading.threads import load_with_threads
from labkit.parts.loading.torch_loader import (
    IterableLoader,
    ResidentLoader,
    load_with_torch,
)
from labkit.settings import Settings


@dataclass(frozen=True)
class Loader(Part):
    """What makes a loader: (source, settings) -> an iterable of CPU batches."""

    workers: Literal["", "processes", "threads"] = ""
    """What `num_workers` counts. Processes hand over batches through shared memory; threads share
    whatever state a transform keeps."""
    reads: str = ""
    """The packing that it reads, decodes and preprocesses by itself; empty: it takes samples."""
    needs_gpu: bool = False
    """It decodes and preprocesses on the GPU."""
    has_own_order: bool = False
    """It delivers the same images in every epoch, but not in the source's order."""
    order_varies: bool = False
    """Batches come as they get ready, in another order each time."""
    describe_order: Callable[[Source, Settings], str] | None = None
    """Tells of its order what a row says; None: nothing is special about it."""
    repeats_one_batch: bool = False
    """Nothing is loaded in the epochs."""

    @property
    def is_outside(self) -> bool:
        """Whether it reads, decodes and preprocesses by itself."""
        return bool(self.reads)

    def why_not(self, chosen: Chosen) -> str:
        """Refuse work that a loader cannot do by itself; see `Part.why_not`."""
        settings = chosen.settings
        if not self.is_outside:
            return ""
        who = f"the loader {settings.loader}"
        if chosen.preprocessor.in_numbers is None:
            able = ", ".join(chosen.names("preprocessor", lambda each: each.in_numbers))
            return (
                f"{who} preprocesses by itself, and can do {able}, not {settings.preprocessor}; "
                f"choose preprocessor {able}"
            )
        if settings.packing != self.reads or settings.storage_format not in ("jpeg", "resized"):
            return (
                f"{who} reads JPEGs by itself from the packing {self.reads}, got "
                f"{settings.packing} with {settings.storage_format}; choose packing {self.reads}"
            )
        if chosen.storage.needs_our_reader:
            return (
                f"{who} reads files by itself, so it cannot wait for {settings.storage}; "
                "choose a real disk"
            )
        if self.needs_gpu and not chosen.device.is_cuda:
            return (
                f"{who} decodes and preprocesses on the GPU, got device {settings.device}; choose "
                f"device cuda, or the loader {settings.loader}_cpu"
            )
        return ""


_tf_data = partial(Loader, library="tensorflow")

LOADERS: dict[str, Callable[[Source, Settings], Iterable]] = {
    "torch": Loader(load_with_torch, workers="processes"),
    "torch_iterable": Loader(partial(load_with_torch, make=IterableLoader), workers="processes"),
    "torch_by_batch": Loader(partial(load_with_torch, by_batch=True), workers="processes"),
    "torch_any_order": Loader(
        partial(load_with_torch, in_order=False), workers="processes", order_varies=True
    ),
    "torch_file_system": Loader(partial(load_with_torch, through_files=True), workers="processes"),
    "shards": Loader(
        load_shards, workers="processes", has_own_order=True, describe_order=describe_order
    ),
    "threads": Loader(load_with_threads, workers="threads"),
    "resident": Loader(ResidentLoader, repeats_one_batch=True),
    "tf_data": _tf_data(load_with_tf_data, reads="folder"),
    "tf_data_no_prefetch": _tf_data(partial(load_with_tf_data, prefetch=False), reads="folder"),
    "tf_data_serial_map": _tf_data(partial(load_with_tf_data, parallel_map=False), reads="folder"),
    "tf_data_plain": _tf_data(
        partial(load_with_tf_data, parallel_map=False, prefetch=False), reads="folder"
    ),
    "tf_data_as_published": _tf_data(load_as_published, reads="folder", has_own_order=True),
    "tf_data_tfrecord": _tf_data(load_tfrecords, reads="tfrecord", has_own_order=True),
    "tf_data_tfrecord_one_by_one": _tf_data(
        partial(load_tfrecords, parallel_reads=False), reads="tfrecord", has_own_order=True
    ),
    "dali": Loader(load_with_dali, library="dali", reads="folder", needs_gpu=True),
    "dali_cpu": Loader(partial(load_with_dali, on_gpu=False), library="dali", reads="folder"),
}
