"""In depth, loading: one experiment about each knob of the loader, and the disputes about it.

    workers, prefetch_factor                    who loads, and how far ahead
    persistent_workers, short_epochs            for how long
    pin_memory, prefetching_in_depth            how a batch reaches the device
    batch_size, batch_size_powers, sampling     how many images, in which order
    opencv_threads                              threads within the workers

Each takes the settings that all its variants share and returns an Experiment, baseline first; the
document's rule stands in its `source`.  Main trap: all variants work on the same images, so batch
sizes stand together only where an epoch can be a whole number of each.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.machine import hardware
from labkit.runs.experiment import Experiment
from labkit.settings import Settings

# [002] writes "usually 8 or 12": so many are tried one by one, more only by doubling.
EACH_UP_TO = 12
# A queue that is never empty needs no depth: what is loaded ahead pays where reads are uneven.
JITTER_MS = 40
SHORT_EPOCHS, SHORT_EPOCH_IMAGES = 8, 64
# prefetch_generator keeps one batch, and its thread holds another.
THREAD_BATCHES = 2


def workers(base: Settings) -> Experiment:
    """[001], [002], [004]: from none to two per core; time, and CPU-seconds beside it.

    The documents' own rules are the baseline: [004] takes as many as there are cores, and [002]
    no more than the CPU has threads.
    """
    cores = hardware.cores()
    by_rule = {"as many as cores": cores, "no workers": 0, "twice as many": 2 * cores}
    quick = {label: replace(base, num_workers=count) for label, count in by_rule.items()}
    few, others = _counts(cores)
    return Experiment(
        "workers",
        question="How many workers does the loader need?",
        variants=quick | {_count(n): replace(base, num_workers=n) for n in few},
        baseline="as many as cores",
        source="[002]: at most the CPU's threads, usually 8 or 12, the cheapest of equals; "
        "[004] 2.4: as many as cores or GPUs; too many block",
        in_full={_count(n): replace(base, num_workers=n) for n in others},
    )


def _counts(cores: int) -> tuple[list[int], list[int]]:
    """List the other worker counts for quick mode, and those for full mode alone."""
    named = {0, cores, 2 * cores}
    few = [n for n in (1, 2) if n not in named]
    each = range(1, min(2 * cores, EACH_UP_TO) + 1)
    doubled = [n for n in (16, 32, 64, 128, 256) if n < 2 * cores]
    return few, [n for n in (*each, *doubled) if n not in named and n not in few]


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def prefetch_factor(base: Settings) -> Experiment:
    """[000], [001]: how far ahead each worker loads, where some samples come late.

    The unit is batches, not samples as [001] writes (DOCUMENTS D2).
    """
    base = replace(base, jitter_ms=base.jitter_ms or JITTER_MS)
    two, *others = (
        (f"{n} {'batch' if n == 1 else 'batches'} each", replace(base, prefetch_factor=n))
        for n in (2, 1, 4, 8)
    )
    return Experiment(
        "prefetch_factor",
        question="How far ahead should each worker load, where some samples come late?",
        variants=dict([two, *others]),
        baseline="2 batches each",
        source="[000], [001] 1.5: each worker loads ahead, CPU and GPU work at once; no figure",
        in_full={"16 batches each": replace(base, prefetch_factor=16)},
    )


def pin_memory(base: Settings) -> Experiment:
    """[001], [002], [003], [004]: page-locked batches, a side stream, a wait in every step or none.

    The emulated device follows CUDA's rules: a copy runs beside computation only from pinned
    memory and on another stream.
    """
    plain = replace(base, pin_memory=False, prefetcher="none", sync_every=1)
    how = {
        "not pinned": plain,
        "pinned": replace(plain, pin_memory=True),
        "not pinned, side stream": replace(plain, prefetcher="data_prefetcher"),
        "pinned, side stream": replace(plain, pin_memory=True, prefetcher="data_prefetcher"),
    }
    seldom = {f"{label}, no waiting": replace(s, sync_every=0) for label, s in how.items()}
    quick = how | {"pinned, no waiting": seldom.pop("pinned, no waiting")}
    # Bytes and boxes instead of finished float32 planes: a tenth to copy.
    small = {f"{label}, uint8": replace(s, preprocessor="on_device") for label, s in how.items()}
    return Experiment(
        "pin_memory",
        question="Do page-locked batches and a side stream hide the copy to the device?",
        variants=quick,
        baseline="not pinned",
        source="[001] 1.6, [002]: saves a little; [003], [004] 2.2: overlap needs pinned memory "
        "and a side stream",
        in_full=seldom | small,
    )


def persistent_workers(base: Settings) -> Experiment:
    """[001]: workers kept between epochs, forked and spawned, in epochs of the mode's length.

    A spawned worker imports torch for seconds in every epoch, so only full mode waits for them.
    """
    kept = replace(base, persistent_workers=True)
    variants = {"started anew": replace(base, persistent_workers=False), "kept": kept}
    in_full = {}
    # Elsewhere all workers are spawned anyway.
    if base.start_method is None and hardware.can_fork():
        for label, settings in variants.items():
            in_full[f"spawned, {label}"] = replace(settings, start_method="spawn")
            in_full[f"fork server, {label}"] = replace(settings, start_method="forkserver")
    return Experiment(
        "persistent_workers",
        question="Does keeping the workers between epochs save time?",
        variants=variants,
        baseline="started anew",
        source="[001] 4.1: listed, False by default; no figure",
        in_full=in_full,
    )


def short_epochs(base: Settings) -> Experiment:
    """The same in many short epochs, where starting workers weighs most."""
    base = replace(
        base,
        epochs=max(base.epochs, SHORT_EPOCHS),
        images=base.images or SHORT_EPOCH_IMAGES,
    )
    return replace(
        persistent_workers(base),
        name="short_epochs",
        question="Does keeping the workers save time where epochs are short?",
    )


def batch_size(base: Settings) -> Experiment:
    """[002]: a multiple of 2, better of 4; odd sizes beside even ones of about their size.

    All divide 420 images, so an epoch is the same images for each; every size from 28 to 36
    would take more than a billion.  Larger batches differ in more than their factors, so the
    baseline's neighbour is what counts: 21 beside 20.
    """
    base = replace(base, preprocessor="on_device")  # small enough for any shared memory
    sizes = {n: replace(base, batch_size=n) for n in (20, 21, 28, 30, 35)}
    more = {n: replace(base, batch_size=n) for n in (10, 12, 14, 15, 42)}
    return Experiment(
        "batch_size",
        question="Must the batch size be a multiple of 2, or of 4?",
        variants={_size(n): settings for n, settings in sizes.items()},
        baseline=_size(20),
        source="[002] 3.1: a multiple of 2, better of 4; lists 4, 8, 12, 16, 32, 128, 256",
        in_full={_size(n): settings for n, settings in more.items()},
    )


def _size(n: int) -> str:
    return f"{n} ({'multiple of 4' if n % 4 == 0 else 'odd' if n % 2 else 'multiple of 2'})"


def batch_size_powers(base: Settings) -> Experiment:
    """[002]: powers of two, each a whole part of the next; on CUDA also a large one.

    Which one fills a GPU only trying tells: `lab.largest_batch` does, and makes the variants that
    put "90 % of the memory" to the test.
    """
    base = replace(base, preprocessor="on_device")
    powers = {str(n): replace(base, batch_size=n) for n in (16, 4, 8, 32, 64)}
    return Experiment(
        "batch_size_powers",
        question="How does the epoch depend on the batch size?",
        variants=powers,
        baseline="16",
        source="[002] 3.1: 90 % of the GPU's memory or more; lists 4, 8, 16, 32, 128, 256",
        in_full={
            "48": replace(base, batch_size=48),
            "128": replace(base, batch_size=128),
            "256, on CUDA": replace(base, batch_size=256, device="cuda"),
        },
    )


def sampling(base: Settings) -> Experiment:
    """[001]: an order of one's own, an iterable data set, collate functions, batch samplers.

    All deliver the same images; and all but "in order" in the same order.
    """
    base = replace(base, order="shuffled", loader="torch")

    def by(loader: str) -> Settings:
        return replace(base, loader=loader)

    return Experiment(
        "sampling",
        question="What do the order, the kind of data set and the joining of samples cost?",
        variants={
            "shuffled": base,
            "in order": replace(base, order="sequential"),
            "iterable data set": by("torch_iterable"),
            "joined in the loop": by("torch_joined_in_loop"),
            "joined without a copy, in threads": by("threads"),
        },
        baseline="shuffled",
        source="[001] 4.1: map and iterable data sets, samplers, collate functions; no figure",
        in_full={
            "batch sampler": by("torch_batch_sampler"),
            "torch's own collate": by("torch_default_collate"),
        },
    )


def opencv_threads(base: Settings) -> Experiment:
    """OpenCV's threads × torch's × workers: users disagree whether to limit them (DOCUMENTS D7)."""
    base = replace(base, cv2_threads=0, torch_threads=1)
    cores = hardware.cores()
    in_workers = {"none": base} | {
        f"{n} in each worker": replace(base, cv2_threads=n) for n in (1, 2)
    }
    alone = {
        f"{'none' if n == 0 else n}, no workers": replace(base, cv2_threads=n, num_workers=0)
        for n in (0, 2)
    }
    as_many = {
        f"{cores} in each worker": replace(base, cv2_threads=cores),
        f"{cores}, no workers": replace(base, cv2_threads=cores, num_workers=0),
    }
    quick = in_workers | alone
    in_full = {label: s for label, s in as_many.items() if label not in quick}
    if cores > 1:
        in_full |= {
            f"{label}, torch {cores}": replace(s, torch_threads=cores) for label, s in quick.items()
        }
    return Experiment(
        "opencv_threads",
        question="Should OpenCV use threads of its own beside the loader's workers?",
        variants=quick,
        baseline="none",
        source="no document; disputed by users of OpenCV in training",
        in_full=in_full,
    )


def prefetching_in_depth(base: Settings) -> Experiment:
    """[004] against its critics: is a thread behind the loader, or a side stream, worth anything?

    A thread keeps up to two batches more than W workers with f batches each, so (W × f + 2) / W
    each is the same depth without a thread.
    """
    count = max(2, hardware.cores() // 2)  # what an unset num_workers is
    deep = base.prefetch_factor + -(-THREAD_BATCHES // count)
    pinned = replace(base, num_workers=count, prefetcher="none", pin_memory=True)
    alone = replace(pinned, num_workers=0)
    thread, side = "prefetch_generator", "data_prefetcher"
    quick = {
        "original": pinned,
        thread: replace(pinned, prefetcher=thread),
        "equal depth": replace(pinned, prefetch_factor=deep),
        "no workers": alone,
        f"no workers, {thread}": replace(alone, prefetcher=thread),
    }
    pageable = {f"{k}, not pinned": replace(s, pin_memory=False) for k, s in quick.items()}
    streams = {
        side: replace(pinned, prefetcher=side),
        f"{side}, not pinned": replace(pinned, prefetcher=side, pin_memory=False),
        f"no workers, {side}": replace(alone, prefetcher=side),
    }
    seldom = {
        f"{label}, no waiting": replace(s, sync_every=0)
        for label, s in {"original": pinned, thread: quick[thread], **streams}.items()
    }
    return Experiment(
        "prefetching_in_depth",
        question="Is prefetch_generator worth anything beside the loader's own queue?",
        variants=quick,
        baseline="original",
        published={thread: 0.894},
        source="[004] 2.1 and experiment 1; disputed, as the loader has a queue of its own",
        in_full=pageable | streams | seldom,
    )
