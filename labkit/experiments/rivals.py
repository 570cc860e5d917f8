"""In depth, rivals: the experiments about what assembles batches.

    rivals               the usual loaders beside each other
    tf_data              tf.data's stages, one at a time     num_parallel_reads   TFRecord shards

Each takes the settings that all its variants share and returns an Experiment, baseline first.
Main trap: a loader's figure is one of its threads, too; so all get as many as torch has workers.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.machine import hardware
from labkit.runs.experiment import Experiment
from labkit.settings import Settings


def rivals(base: Settings) -> Experiment:
    """[000], [001], [004]: which loader is the fastest for the same work?"""
    base = _light(base)

    def by(loader: str, **changes: object) -> Settings:
        return replace(base, loader=loader, **changes)

    return Experiment(
        "rivals",
        question="Which loader delivers the same batches soonest?",
        variants={
            "torch": base,
            "threads": by("threads"),
            "DataLoaderX": replace(base, prefetcher="prefetch_generator"),
            "tf.data": by("tf_data"),
            "DALI": by("dali"),
        },
        baseline="torch",
        source="[001] 2.1 and 2.2, [000], [003], [004] 2.6: nearly 4 times as fast with DALI [000]",
        in_full={
            "torch, persistent workers": replace(base, persistent_workers=True),
            "tf.data without prefetch": by("tf_data_no_prefetch"),
            "tf.data, serial map": by("tf_data_serial_map"),
            "tf.data as in the document": by("tf_data_as_published"),
            "tf.data from TFRecord": by("tf_data_tfrecord", packing="tfrecord"),
            "DALI on the CPU": by("dali_cpu"),
        },
    )


def tf_data(base: Settings) -> Experiment:
    """[001]: what does each stage of its tf.data snippet bring?"""
    base = _light(base)
    return Experiment(
        "tf_data",
        question="What do tf.data's parallel map and prefetch bring?",
        variants={
            "one after the other": replace(base, loader="tf_data_plain"),
            "parallel map": replace(base, loader="tf_data_no_prefetch"),
            "prefetch": replace(base, loader="tf_data_serial_map"),
            "parallel map and prefetch": replace(base, loader="tf_data"),
        },
        baseline="one after the other",
        source="[001] 2.1 a and 4.2: shuffle, batch, map, prefetch; no figure",
        in_full={"as in the document": replace(base, loader="tf_data_as_published")},
    )


def num_parallel_reads(base: Settings) -> Experiment:
    """[001]: does TFRecordDataset read faster in parallel?"""
    base = replace(_light(base), packing="tfrecord", order="sequential")
    return Experiment(
        "num_parallel_reads",
        question="Does TFRecordDataset read faster in parallel?",
        variants={
            "one shard at a time": replace(base, loader="tf_data_tfrecord_one_by_one"),
            "in parallel": replace(base, loader="tf_data_tfrecord"),
        },
        baseline="one shard at a time",
        source="[001] 1.4: num_parallel_reads; no figure",
        in_full={"torch": base},
    )


def _light(base: Settings) -> Settings:
    """Give work that every loader can do, so light that loading weighs."""
    base = replace(base, packing="folder", stored="jpeg", preprocessor="classification")
    # What lies in shards is read in order: no holes between an epoch's images.
    return replace(base, subset="first", num_workers=base.num_workers or max(2, hardware.cores()))
