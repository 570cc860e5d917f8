"""Does prefetching help?  See notebook 02_prefetching."""

from __future__ import annotations

from dataclasses import replace

from labkit.experiments.sweep import change_all, full_only, in_document_order, sweep, with_published
from labkit.machine import gpu, hardware
from labkit.runs.experiment import Experiment, Variants, as_experiment
from labkit.settings import SLEEPING, Settings

# Normalized times that [004] reported: the bar labels of its charts (DOCUMENTS 0.1).
PUBLISHED = {
    "original": 1.000,
    "prefetch_generator": 0.894,
    "data_prefetcher": 0.891,
    "both": 0.897,
}


def prefetching(base: Settings) -> Experiment:
    """Compare the loader alone with two ways to fetch the next batch ahead.

    Source: [004] section 3.1, experiment 1.
    """
    variants = sweep(
        base,
        "prefetcher",
        {
            "original": "none",
            "prefetch_generator": "prefetch_generator",
            "data_prefetcher": "data_prefetcher",
            "both": "both",
        },
    )
    return Experiment(
        "prefetching",
        question="Does fetching the next batch ahead shorten the epoch?",
        variants=with_published(PUBLISHED, variants),
        source="[004] section 3.1, experiment 1",
        document_order=in_document_order(variants),
        at_several_speeds=True,
        runs_by_default=True,
    )  # fmt: skip


@as_experiment(
    "Does prefetch_generator help when the DataLoader already prefetches?",
    source="[004] 2.1 and experiment 1; disputed, as the loader has a queue of its own",
)
def prefetching_in_depth(base: Settings) -> Variants:
    """Compare prefetch_generator and data_prefetcher with loaders that load as far ahead.

    A thread keeps up to two batches more than W workers with f batches each, so (W × f + 2) / W
    each is the same depth without a thread.

    Source: [004] 2.1 and experiment 1, and its critics.
    """
    count = max(2, hardware.cores() // 2)  # what an unset num_workers is
    # prefetch_generator keeps two batches: one in its queue and one in its thread.
    deep = base.prefetch_factor + -(-2 // count)
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
    pageable = change_all(quick, "{}, not pinned", pin_memory=False)
    streams = {
        side: replace(pinned, prefetcher=side),
        f"{side}, not pinned": replace(pinned, prefetcher=side, pin_memory=False),
        f"no workers, {side}": replace(alone, prefetcher=side),
        f"{side}, step first": replace(pinned, prefetcher=f"{side}_step_first"),
    }
    waiting = {"original": pinned, thread: quick[thread], **streams}
    seldom = change_all(waiting, "{}, no waiting", sync_every=0)
    # As [003] and [004] print it: bytes are copied, and normalized on the side stream too.
    # All detectors' samples are finished by "on_device".
    on_device = {name: f"{name}_on_device" for name in ("classification", "classification_crop")}
    work = base.preprocessor.removesuffix("_on_device")
    pixels = replace(pinned, preprocessor=on_device.get(work, "on_device"))
    as_bytes = {
        "original, uint8": pixels,
        f"{side}, uint8": replace(pixels, prefetcher=side),
        f"{side}, uint8, as printed": replace(
            pixels, prefetcher=f"{side}_normalizing", device="cuda"
        ),
    }
    return with_published({thread: PUBLISHED[thread]}, quick) | full_only(
        pageable | streams | seldom | as_bytes
    )


@as_experiment(
    "Do page-locked batches and a side stream hide the copy to the device?",
    source="[001] 1.6, [002]: saves a little; [003], [004] 2.2: overlap needs pinned memory "
    "and a side stream",
)
def pin_memory(base: Settings) -> Variants:
    """Compare batches in pinned and pageable memory, with and without a side stream.

    The simulated GPU follows CUDA's rules: a copy runs beside computation only from pinned
    memory and on another stream.

    Source: [001] 1.6, [002], [003], [004] 2.2.
    """
    plain = replace(base, pin_memory=False, prefetcher="none", sync_every=1)
    how = {
        "not pinned": plain,
        "pinned": replace(plain, pin_memory=True),
        "not pinned, side stream": replace(plain, prefetcher="data_prefetcher"),
        "pinned, side stream": replace(plain, pin_memory=True, prefetcher="data_prefetcher"),
    }
    seldom = change_all(how, "{}, no waiting", sync_every=0)
    quick = how | {"pinned, no waiting": seldom.pop("pinned, no waiting")}
    sleeping = {}
    # By default the host keeps a core busy while it waits, which the workers lack.
    if base.is_on_simulated_gpu or (base.device is None and not gpu.cuda().works):
        sleeping = change_all(how, "{}, sleeping", device=SLEEPING)
    # Bytes and boxes instead of finished float32 planes: a tenth to copy.
    small = change_all(how, "{}, uint8", preprocessor="on_device")
    return quick | full_only(seldom | sleeping | small)
