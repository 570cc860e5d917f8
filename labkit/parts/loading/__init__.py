"""Loading: loaders turn samples into CPU batches, in processes or threads.

    source.order -> keys -> loader: source[key] in processes (torch) or threads -> CPU batches

    source.outside() -> files, labels, numbers: tf.data and DALI do everything by themselves

A loader takes `(source, settings)` and returns an iterable that starts an epoch each time it is
iterated.  The batches of an epoch and their order depend on the source alone, not on the loader
or its number of workers; exceptions are listed in `OWN_ORDER`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from labkit.parts.loading.dali import load_with_dali
from labkit.parts.loading.source import Source
from labkit.parts.loading.tf_data import load_as_published, load_tfrecords, load_with_tf_data
from labkit.parts.loading.threads import load_with_threads
from labkit.parts.loading.torch_loader import (
    IterableLoader,
    LoopJoiningLoader,
    ResidentLoader,
    load_with_torch,
)
from labkit.settings import Settings

LOADERS: dict[str, Callable[[Source, Settings], Iterable]] = {
    "torch": load_with_torch,
    "torch_iterable": partial(load_with_torch, make=IterableLoader),
    "torch_joined_in_loop": partial(load_with_torch, make=LoopJoiningLoader),
    "threads": load_with_threads,
    "resident": ResidentLoader,
    "tf_data": load_with_tf_data,
    "tf_data_no_prefetch": partial(load_with_tf_data, prefetch=False),
    "tf_data_serial_map": partial(load_with_tf_data, parallel_map=False),
    "tf_data_plain": partial(load_with_tf_data, parallel_map=False, prefetch=False),
    "tf_data_as_published": load_as_published,
    "tf_data_tfrecord": load_tfrecords,
    "tf_data_tfrecord_one_by_one": partial(load_tfrecords, parallel_reads=False),
    "dali": load_with_dali,
    "dali_cpu": partial(load_with_dali, on_gpu=False),
}
# Their workers are processes, which hand over batches through shared memory.
WITH_PROCESSES = frozenset({"torch", "torch_iterable", "torch_joined_in_loop"})
# Their workers are threads, which share whatever state a transform keeps.
THREADED = frozenset({"threads"})
# Loaders that read, decode and preprocess by themselves -> the packing that they read.
OUTSIDE = {
    name: "tfrecord" if name.startswith("tf_data_tfrecord") else "folder"
    for name in LOADERS
    if name.startswith(("tf_data", "dali"))
}
# They decode and preprocess on the GPU.
ON_GPU = frozenset({"dali"})
# They deliver the same images in every epoch, but not in the source's order.
OWN_ORDER = frozenset({"tf_data_as_published", "tf_data_tfrecord", "tf_data_tfrecord_one_by_one"})
