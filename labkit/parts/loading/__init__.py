"""Loading: loaders turn samples into CPU batches, in processes or threads.

    source.order -> keys -> loader: source[key] in processes (torch) or threads -> CPU batches

    source.outside() -> files, labels, numbers: tf.data, DALI and others do everything by themselves

A loader takes `(source, settings)` and returns an iterable that starts an epoch each time it is
iterated.  The batches of an epoch and their order depend on the source alone, not on the loader
or its number of workers, unless the loader `has_own_order` or its `order_varies`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from labkit.contracts import Chosen, Part, why_not_installed
from labkit.parts.loading.dali import load_with_dali
from labkit.parts.loading.shards import describe_order, load_shards
from labkit.parts.loading.source import RIVALS, Source
from labkit.parts.loading.spdl import load_with_spdl, load_with_spdls_decoder
from labkit.parts.loading.tf_data import load_as_published, load_tfrecords, load_with_tf_data
from labkit.parts.loading.threads import BareThreads, load_with_threads
from labkit.parts.loading.torch_loader import (
    IterableLoader,
    ResidentLoader,
    load_with_torch,
)
from labkit.parts.loading.webdataset import load_with_webdataset
from labkit.settings import Settings


@dataclass(frozen=True)
class Loader(Part):
    """What makes a loader: (source, settings) -> an iterable of CPU batches."""

    workers: Literal["", "processes", "threads"] = ""
    """What `num_workers` counts. Processes hand over batches through shared memory; threads share
    whatever state a transform keeps."""
    needs: str = ""
    """The module of another library than torch that it is; the extra `rivals` installs it."""
    reads: str = ""
    """The packing whose files it reads by itself; empty: it takes samples."""
    makes_samples: bool = False
    """It also decodes and preprocesses by itself."""
    leaves_uint8: bool = False
    """Likewise, but it normalizes nothing."""
    needs_gpu: bool = False
    """It decodes and preprocesses on the GPU."""
    has_own_order: bool = False
    """It delivers the same images in every epoch, but not in the source's order."""
    order_varies: bool = False
    """Batches come as they get ready, in another order each time."""
    describe_order: Callable[[Source, Settings], str] | None = None
    """Tells of its order what a row says; None: nothing is special about it."""
    repeats_one_batch: bool = False
    """It hands over the same batch in every step; samples may still be made."""

    def why_not(self, chosen: Chosen) -> str:
        """Refuse work that a loader cannot do by itself; see `Part.why_not`."""
        settings = chosen.settings
        who = f"the loader {settings.loader}"
        if self.makes_samples and not self._preprocesses(chosen.preprocessor):
            able = ", ".join(chosen.names("preprocessor", self._preprocesses))
            return (
                f"{who} preprocesses by itself, and can do {able}, not {settings.preprocessor}; "
                f"choose preprocessor {able}"
            )
        if self.reads:
            if settings.packing != self.reads or settings.storage_format not in ("jpeg", "resized"):
                return (
                    f"{who} reads JPEGs by itself from the packing {self.reads}, got "
                    f"{settings.packing} with {settings.storage_format}; choose packing "
                    f"{self.reads}"
                )
            if chosen.storage.needs_our_reader:
                return (
                    f"{who} reads files by itself, so it cannot wait for {settings.storage}; "
                    "choose a real disk"
                )
            if settings.jitter_ms:
                return (
                    f"jitter_ms must be 0 with {who}, which reads files by itself, got "
                    f"{settings.jitter_ms}; choose the loader torch or threads"
                )
        if self.needs_gpu and not chosen.device.is_cuda:
            return (
                f"{who} decodes and preprocesses on the GPU, got device {settings.device}; choose "
                f"device cuda, or the loader {settings.loader}_cpu"
            )
        return why_not_installed(self.needs, RIVALS) if self.needs else ""

    def _preprocesses(self, preprocessor: Any) -> bool:
        """Return whether it can do a preprocessor's work; takes a `parts.preprocessing` one."""
        work = preprocessor.in_numbers
        if self.leaves_uint8:
            return work is not None and work.scale_rgb is None and preprocessor.crop is not None
        return work is not None


_TF_DATA = partial(
    Loader, library="tensorflow", needs="tensorflow", reads="folder", makes_samples=True
)
_TFRECORD = partial(_TF_DATA, reads="tfrecord", has_own_order=True)
_DALI = partial(Loader, library="dali", needs="nvidia.dali", reads="folder", makes_samples=True)

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
    "bare_threads": Loader(BareThreads, workers="threads", repeats_one_batch=True),
    "resident": Loader(ResidentLoader, repeats_one_batch=True),
    "spdl": Loader(load_with_spdl, workers="threads", library="spdl", needs="spdl.pipeline"),
    "spdl_decoder": Loader(
        load_with_spdls_decoder,
        library="spdl",
        needs="spdl.io",
        reads="folder",
        makes_samples=True,
        leaves_uint8=True,
    ),
    "webdataset": Loader(
        load_with_webdataset,
        workers="processes",
        library="webdataset",
        needs="webdataset",
        reads="tar",
        has_own_order=True,
    ),
    "tf_data": _TF_DATA(load_with_tf_data),
    "tf_data_no_prefetch": _TF_DATA(partial(load_with_tf_data, prefetch=False)),
    "tf_data_serial_map": _TF_DATA(partial(load_with_tf_data, parallel_map=False)),
    "tf_data_plain": _TF_DATA(partial(load_with_tf_data, parallel_map=False, prefetch=False)),
    "tf_data_as_published": _TF_DATA(load_as_published, has_own_order=True),
    "tf_data_tfrecord": _TFRECORD(load_tfrecords),
    "tf_data_tfrecord_one_by_one": _TFRECORD(partial(load_tfrecords, parallel_reads=False)),
    "dali": _DALI(load_with_dali, needs_gpu=True),
    "dali_cpu": _DALI(partial(load_with_dali, on_gpu=False)),
}
