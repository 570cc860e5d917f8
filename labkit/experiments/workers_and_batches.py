"""Workers, batches, loaders?  See notebook 08_workers_and_batches.

All variants work on the same images, so batch sizes can be compared only where an epoch is a whole
number of each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from labkit import units
from labkit.experiments.sweep import change_all, full_only, sweep, with_published
from labkit.machine import gpu, hardware
from labkit.runs.experiment import Variant, Variants, as_experiment
from labkit.settings import BATCH_SIZE, Settings


@as_experiment(
    "How many workers does the loader need?",
    source="[002]: at most the CPU's threads, usually 8 or 12, the cheapest of equals; "
    "[004] 2.4: as many as cores or GPUs; too many block",
)
def workers(base: Settings) -> Variants:
    """Compare numbers of workers, from none to two per core.

    The baseline follows the documents: as many workers as cores.

    Source: [002] 3.3, [004] 2.4.
    """
    cores = hardware.cores()
    names = {cores: "as many as cores", 0: "no workers", 2 * cores: "twice as many"}
    # [002] writes "usually 8 or 12": up to 12 are tried one by one, more only by doubling.
    doubled = (n for n in (16, 32, 64, 128, 256) if n < 2 * cores)
    return sweep(
        base,
        "num_workers",
        [*names, 1, 2],
        full=[*range(1, min(2 * cores, 12) + 1), *doubled],
        label=lambda n: names.get(n) or units.count(n, "worker"),
    )


@as_experiment(
    "How far ahead should each worker load, where some samples come late?",
    source="[000], [001] 1.5: each worker loads ahead, CPU and GPU work at once; no number given",
)
def prefetch_factor(base: Settings) -> Variants:
    """Compare how many batches each worker loads ahead, where some samples come late.

    The unit is batches, not samples as [001] writes (DOCUMENTS D2). A deeper queue and batches in
    any order are two remedies for the same wait.

    Source: [000], [001] 1.5, [005].
    """
    # Workers sleep most of the time here, so four may be more than the cores.
    count = max(4, hardware.cores() // 2)
    base = replace(
        base,
        # Loading ahead saves time only where reads are uneven and the queue is empty at times.
        jitter_ms=base.jitter_ms or 40,
        num_workers=count if base.num_workers is None else base.num_workers,
    )

    def ahead(counts: list[int], full: list[int]) -> dict[str, Variant]:
        return sweep(base, "prefetch_factor", counts, full=full, label=_batches_each)

    # In order, one late batch holds up all that are ready behind it.
    in_any_order = change_all(
        ahead([2], full=[1, 4, 8, 16]), "{}, any order", loader="torch_any_order"
    )
    return ahead([2, 1, 4, 8], full=[16]) | in_any_order


def _batches_each(n: int) -> str:
    return f"{n} {'batch' if n == 1 else 'batches'} each"


@as_experiment(
    "Does keeping the workers between epochs save time?",
    source="[001] 4.1: listed, False by default; no number given",
)
def persistent_workers(base: Settings) -> Variants:
    """Compare workers that are kept between epochs with workers started anew.

    A spawned worker imports torch for seconds in every epoch, so only full mode measures those.

    Source: [001] 4.1.
    """
    variants = sweep(base, "persistent_workers", {"started anew": False, "kept": True})
    in_full: dict[str, Any] = {}
    # Elsewhere all workers are spawned anyway.
    if base.multiprocessing_context is None and hardware.can_fork():
        in_full = change_all(variants, "spawned, {}", multiprocessing_context="spawn")
        in_full |= change_all(variants, "fork server, {}", multiprocessing_context="forkserver")
    return variants | full_only(in_full)


@as_experiment(
    "Does keeping the workers save time where epochs are short?",
    source="[001] 4.1: listed, False by default; no number given",
)
def short_epochs(base: Settings) -> Variants:
    """Compare the same in many short epochs, where starting workers takes the largest share."""
    base = replace(
        base,
        epochs=max(base.epochs, 8),
        images=base.images or 64,
    )
    return persistent_workers(base).variants


@as_experiment(
    "Must the batch size be a multiple of 2, or of 4?",
    source="[002] 3.1: a multiple of 2, better of 4; lists 4, 8, 12, 16, 32, 128, 256",
)
def batch_size(base: Settings) -> Variants:
    """Compare batch sizes that are odd, multiples of 2 and multiples of 4.

    All divide 420, so an epoch has the same images for each; every size from 28 to 36 would take
    more than a billion images.  Larger batches differ in more than their factors, so the
    comparison that counts is 21 with 20.

    Source: [002] 3.1.
    """
    base = replace(base, preprocessor="on_device")  # small enough for any shared memory
    in_full = [10, 12, 14, 15, 30, 35, 42]
    return sweep(base, "batch_size", [20, 21, 28], full=in_full, label=_size)


def _size(n: int) -> str:
    return f"{n} ({'multiple of 4' if n % 4 == 0 else 'odd' if n % 2 else 'multiple of 2'})"


@as_experiment(
    "How does the epoch depend on the batch size?",
    source="[002] 3.1: 90 % of the GPU's memory or more; lists 4, 8, 16, 32, 128, 256",
)
def batch_size_powers(base: Settings) -> Variants:
    """Compare batch sizes that are powers of two; on CUDA also a large one.

    `lab.largest_batch` finds the size that fills a GPU's memory.

    Source: [002] 3.1.
    """
    base = replace(base, preprocessor="on_device")
    large = {"256, on CUDA": replace(base, batch_size=256, device="cuda")}
    return sweep(base, "batch_size", [16, 4, 8, 32, 64], full=[48, 128]) | full_only(large)


@as_experiment(
    "What do the order, the kind of data set and the joining of samples cost?",
    source="[001] 4.1: map and iterable data sets, samplers, collate functions; no number given",
)
def sampling(base: Settings) -> Variants:
    """Compare orders, kinds of data sets, samplers and collate functions.

    All deliver the same images, and all but "in order" in the same order.

    Source: [001] 4.1.
    """
    base = replace(base, shuffle=True, loader="torch")

    def by(loader: str) -> Settings:
        return replace(base, loader=loader)

    return {
        "shuffled": base,
        "in order": replace(base, shuffle=False),
        "iterable data set": by("torch_iterable"),
        "joined without a copy, in threads": by("threads"),
    }


# Normalized times: [005] gives "~2.7x" to "~10x" its baseline's speed.
PUBLISHED = {
    "4 workers": 0.37,
    "pinned memory": 0.36,
    "kept workers": 0.27,
    "data_prefetcher": 0.28,
    "whole batches": 0.10,
}


@as_experiment(
    "What does each step of PyTorch's own list save on real JPEGs?",
    source="[005], PyTorch's tutorial: ten times as fast, 2.9 times by __getitems__ alone; its "
    "transform sleeps for 5 ms",
    notes=(
        "each variant keeps the changes of those above it, but the last two: they change the "
        "loader of “data_prefetcher” and not of “whole batches”",
        "[005] measured a transform that sleeps for 5 ms: workers that sleep need no core, and "
        "with __getitems__ it sleeps once for a batch; decoding a JPEG is work that no other JPEG "
        "shares",
    ),
)
def tutorial(base: Settings) -> Variants:
    """Compare the steps of PyTorch's tutorial, each added to the last.

    The work is that of PyTorch's ImageNet example, from memory. Epochs have as many steps
    as the tutorial's, so that starting workers counts.

    Source: [005].
    """
    base = replace(
        base,
        cache="warm",
        decoder="pillow",
        preprocessor="classification_crop_pillow",
        input_px=base.input_px or 224,
        # The tutorial has 512 samples in batches of 32.
        images=base.images or 16 * (base.batch_size or BATCH_SIZE),
        epochs=max(base.epochs, 4),
        # The tutorial's model is small: loading stays the limit throughout.
        gpu_images_per_s=base.gpu_images_per_s or "resnet50_a100",
        loader="torch",
        num_workers=0,
        prefetch_factor=2,
        pin_memory=False,
        persistent_workers=False,
        prefetcher="none",
    )
    workers = replace(base, num_workers=4)
    pinned = replace(workers, pin_memory=True)
    kept = replace(pinned, persistent_workers=True)
    ahead = replace(kept, prefetcher="data_prefetcher")
    return with_published(
        PUBLISHED,
        {
            "no workers": base,
            "4 workers": workers,
            "pinned memory": pinned,
            "kept workers": kept,
            "data_prefetcher": ahead,
            "whole batches": replace(ahead, loader="torch_by_batch"),
            "any order": replace(ahead, loader="torch_any_order"),
            "file_system sharing": replace(ahead, loader="torch_file_system"),
        },
    )


@as_experiment(
    "Should OpenCV use threads of its own beside the loader's workers?",
    source="users of OpenCV in training, who disagree",
)
def opencv_threads(base: Settings) -> Variants:
    """Compare numbers of OpenCV's threads, torch's threads and workers.

    Source: users disagree whether to limit them (DOCUMENTS D7).
    """
    base = replace(base, cv2_threads=0, torch_threads=1)
    cores = hardware.cores()
    quick = {
        "none": base,
        "1 in each worker": replace(base, cv2_threads=1),
        "2 in each worker": replace(base, cv2_threads=2),
        "none, no workers": replace(base, num_workers=0),
        "2, no workers": replace(base, cv2_threads=2, num_workers=0),
    }
    as_many = {
        f"{cores} in each worker": replace(base, cv2_threads=cores),
        f"{cores}, no workers": replace(base, cv2_threads=cores, num_workers=0),
    }
    in_full = {label: s for label, s in as_many.items() if label not in quick}
    if cores > 1:
        in_full |= change_all(quick, f"{{}}, torch {cores}", torch_threads=cores)
    return quick | full_only(in_full)


@as_experiment(
    "Which loader delivers the same batches soonest?",
    source="[001] 2.1 and 2.2, [000], [003], [004] 2.6: nearly 4 times as fast with DALI [000]",
)
def rivals(base: Settings) -> Variants:
    """Compare the usual loaders on the same work, each with as many threads as torch has workers.

    Source: [000], [001] 2.1 and 2.2, [003], [004] 2.6.
    """
    base = _light(base)

    def by(loader: str, **changes: Any) -> Settings:
        return replace(base, loader=loader, **changes)

    return {
        "torch": base,
        "threads": by("threads"),
        "DataLoaderX": replace(base, prefetcher="prefetch_generator"),
        "tf.data": by("tf_data"),
        "DALI": by("dali"),
        **full_only(
            {
                "torch, persistent workers": replace(base, persistent_workers=True),
                "tf.data without prefetch": by("tf_data_no_prefetch"),
                "tf.data, serial map": by("tf_data_serial_map"),
                "tf.data as in the document": by("tf_data_as_published"),
                "tf.data from TFRecord": by("tf_data_tfrecord", packing="tfrecord"),
                "DALI on the CPU": by("dali_cpu"),
            }
        ),
    }


@as_experiment(
    "Which library's loader delivers random crops soonest, and how far is it from no loader?",
    source="SPDL, WebDataset, tf.data and DALI, each as its documentation recommends it",
    notes=(
        "nothing is trained: the time is that of loading; all load the same crops, as uint8, "
        "torchvision as normalized float32",
        "SPDL, WebDataset and both of torch call labkit's sample function; tf.data, DALI and "
        "SPDL's decoder read, decode and crop by themselves, and average a shrunk crop in ways of "
        "their own",
        "crops are drawn before the epoch for those that take them ready-made",
        "no loader: as many threads make the same samples and hand over none; no loader with "
        "threads and this sample function can be faster",
    ),
)
def outside_loaders(base: Settings) -> Variants:
    """Compare ThreadLoader with the loaders of other libraries on the work of `textbook`.

    Worker processes are kept between epochs; threads are started in each.

    Source: SPDL (arXiv 2504.20067), WebDataset, tf.data, DALI; pytorch/examples, imagenet/main.py.
    """
    if base.device is None and not gpu.cuda().works:
        base = replace(base, device="cpu")
    base = replace(
        base,
        cache="warm",
        decoder="simplejpeg",
        preprocessor="classification_crop_on_device",
        # What lies in shards is read in order: no holes between an epoch's images.
        subset="first",
        input_px=base.input_px or 224,
        batch_size=base.batch_size or 32,
        num_workers=hardware.cores() if base.num_workers is None else base.num_workers,
        persistent_workers=True,
        pin_memory=False if base.pin_memory is None else base.pin_memory,
        step="nothing",
        loader="threads",
    )

    def by(loader: str, **changes: Any) -> Settings:
        return replace(base, loader=loader, **changes)

    return {
        "ThreadLoader": base,
        "DataLoader": by("torch"),
        "SPDL": by("spdl"),
        "SPDL's decoder": by("spdl_decoder"),
        "WebDataset": by("webdataset", packing="tar"),
        "tf.data": by("tf_data"),
        "DALI on the CPU": by("dali_cpu"),
        "no loader": by("bare_threads"),
        **full_only(
            {
                "DALI": by("dali"),
                "torchvision v2 in DataLoader": by("torch", preprocessor="classification_crop_v2"),
            }
        ),
    }


@as_experiment(
    "What do tf.data's parallel map and prefetch bring?",
    source="[001] 2.1 a and 4.2: shuffle, batch, map, prefetch; no number given",
)
def tf_data(base: Settings) -> Variants:
    """Compare the stages of [001]'s tf.data pipeline, added one at a time.

    Source: [001] 2.1 a and 4.2.
    """
    base = _light(base)
    return sweep(
        base,
        "loader",
        {"one after the other": "tf_data_plain", "parallel map and prefetch": "tf_data"},
        full={  # every trial imports TensorFlow, which takes as long as quick mode's epochs
            "parallel map": "tf_data_no_prefetch",
            "prefetch": "tf_data_serial_map",
            "as in the document": "tf_data_as_published",
        },
    )


@as_experiment(
    "Does TFRecordDataset read faster in parallel?",
    source="[001] 1.4: num_parallel_reads; no number given",
)
def num_parallel_reads(base: Settings) -> Variants:
    """Compare reading TFRecord shards one at a time and in parallel.

    Source: [001] 1.4.
    """
    base = replace(_light(base), packing="tfrecord", shuffle=False)
    return {
        "one shard at a time": replace(base, loader="tf_data_tfrecord_one_by_one"),
        "in parallel": replace(base, loader="tf_data_tfrecord"),
        **full_only({"torch": base}),
    }


def _light(base: Settings) -> Settings:
    """Return settings that every loader supports, with so little work that loading dominates."""
    base = replace(base, packing="folder", storage_format="jpeg", preprocessor="classification")
    # What lies in shards is read in order: no holes between an epoch's images.
    return replace(base, subset="first", num_workers=base.num_workers or max(2, hardware.cores()))
