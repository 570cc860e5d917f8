"""The main road: the documents' own experiments, in their order, with the figures they reported.

The figures are the bar labels of the original blog's charts (DOCUMENTS 0.1).  A figure that was
never published is left out.  Experiments about media name the documents' own; where this machine
has no hard disk, `catalog.build` replaces them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from labkit.machine import media
from labkit.machine.page_cache import can_evict
from labkit.parts.operations import MEANINGS
from labkit.runs.experiment import Experiment, in_groups
from labkit.runs.operation_trials import LOOKUPS, OPERATIONS, SAMPLE
from labkit.settings import Settings, change_all, with_settings

# Width and height of the pictures.  Only full mode measures the larger ones: every trial has a
# process of its own, and the first two sizes already are 186 trials in quick mode.
SIZES_PX = ((320, 240), (640, 480), (1280, 960), (1920, 1440))
QUICK_SIZES = 2
# COCO has 80 classes, ImageNet 1,000.
LABEL_NAMES = (10, 100, 1_000, 10_000)
CONFIGURATION_KB = (10, 1_000)
# Normalized times that the documents reported.
PUBLISHED = {
    "prefetching": {
        "original": 1.000,
        "prefetch_generator": 0.894,
        "data_prefetcher": 0.891,
        "both": 0.897,
    },
    "storage": {"hdd": 1.000, "ssd": 0.860, "tmpfs": 0.864},
    "preprocessing": {"original": 1.000, "simplified": 0.661},
    "combined": {
        "original": 1.00,
        "ssd + data_prefetcher + on_device": 0.61,
        "ssd + prefetch_generator + on_device": 0.61,
    },
}


def prefetching(base: Settings) -> Experiment:
    """Compare the loader alone with two ways to fetch the next batch ahead.

    Source: [004] section 3.1, experiment 1.
    """
    variants = {
        "original": replace(base, prefetcher="none"),
        "prefetch_generator": replace(base, prefetcher="prefetch_generator"),
        "data_prefetcher": replace(base, prefetcher="data_prefetcher"),
        "both": replace(base, prefetcher="both"),
    }
    return Experiment(
        "prefetching",
        question="Does fetching the next batch ahead shorten the epoch?",
        variants=variants,
        published=PUBLISHED["prefetching"],
        source="[004] section 3.1, experiment 1",
        as_published=_in_order(variants),
        at_points=True,
        main_road=True,
        knobs=(
            "num_workers", "prefetch_factor", "pin_memory", "sync_every", "batch_size", "input_px",
            "preprocessor", "device",
        ),
    )  # fmt: skip


def storage(base: Settings) -> Experiment:
    """Compare a hard disk with faster media, each cold and warm.

    Source: [004] section 3.2, experiment 2.
    """
    cold = replace(base, cache="cold", preprocessor="loops")
    disks = {"hdd": replace(cold, storage="hdd"), "ssd": replace(cold, storage="ssd")}
    nvme = {"nvme": replace(cold, storage="nvme")} if "nvme" in media.media() else {}
    # Files in memory cannot be cold.
    every = {**disks, "tmpfs": replace(cold, storage="tmpfs", cache="warm"), **nvme}
    warm = change_all({**disks, **nvme}, "{}, warm", cache="warm")
    in_memory = {"hdd, warm": warm.pop("hdd, warm")}
    return Experiment(
        "storage",
        question="Does a faster disk shorten the epoch?",
        variants={**every, **in_memory},
        in_full=warm,
        published=PUBLISHED["storage"],
        source="[004] section 3.2, experiment 2",
        as_published=_in_order(every),
        at_points=True,
        main_road=True,
        knobs=("num_workers", "batch_size", "input_px", "decoder", "device"),
    )


def preprocessing(base: Settings) -> Experiment:
    """Compare the documents' preprocessing in loops with simpler code for the same work.

    Source: [004] section 3.3, experiment 3.
    """
    return Experiment(
        "preprocessing",
        question="How much time does simpler preprocessing code save?",
        variants={
            "original": replace(base, preprocessor="loops"),
            "vectorized": replace(base, preprocessor="vectorized"),
            "simplified": replace(base, preprocessor="on_device"),
        },
        published=PUBLISHED["preprocessing"],
        source="[004] section 3.3, experiment 3",
        main_road=True,
        knobs=("num_workers", "batch_size", "input_px", "decoder", "cache", "device"),
    )


def opencv_vs_pil(base: Settings) -> Experiment:
    """Compare libraries that decode and resize, by the time of an epoch.

    Source: [000], OpenCV or PIL.
    """

    def by(decoder: str) -> Settings:  # OpenCV resizes for those that only decode
        return replace(base, decoder=decoder, preprocessor="classification")

    return Experiment(
        "opencv_vs_pil",
        question="Does OpenCV instead of PIL shorten the epoch?",
        variants={
            "pillow": replace(base, decoder="pillow", preprocessor="classification_pillow"),
            "opencv": by("opencv"),
            "simplejpeg": by("simplejpeg"),
        },
        source="[000], OpenCV or PIL: mostly OpenCV, its chart is lost",
        in_full={
            "kornia-rs": by("kornia_rs"),
            "torchvision": by("torchvision"),
            "simplejpeg, scaled": by("simplejpeg_scaled"),
        },
        at_points=True,
        main_road=True,
        knobs=("num_workers", "batch_size", "input_px", "cv2_threads", "cache", "device"),
    )


def combined(base: Settings) -> Experiment:
    """Compare the documents' remedies together with what they started from.

    Full mode measures all combinations, and loading and computing alone.

    Source: [004] section 3.4.
    """
    if not can_evict():  # every medium is modelled then, and a model can be cold
        base = replace(base, cache="cold")
    levels = {
        "storage": ("hdd", "ssd"),
        "prefetcher": ("none", "prefetch_generator", "data_prefetcher"),
        "preprocessor": ("loops", "on_device"),
    }
    combinations = {
        " + ".join(values): with_settings(base, dict(zip(levels, values)))
        for values in itertools.product(*levels.values())
    }
    original = combinations.pop("hdd + none + loops")
    singles = {
        f"ssd + {prefetcher} + on_device": {
            "ssd": PUBLISHED["storage"]["ssd"],
            prefetcher: PUBLISHED["prefetching"][prefetcher],
            "on_device": PUBLISHED["preprocessing"]["simplified"],
        }
        for prefetcher in ("data_prefetcher", "prefetch_generator")
    }
    floors = {
        f"loading alone: {disk} + {code}": replace(
            base, storage=disk, preprocessor=code, step="nothing"
        )
        for disk, code in itertools.product(levels["storage"], levels["preprocessor"])
    }
    floors |= {
        f"computing alone: {code}": replace(
            base, storage="hdd", preprocessor=code, loader="resident"
        )
        for code in levels["preprocessor"]
    }
    return Experiment(
        "combined",
        question="How much do the documents' remedies save together?",
        variants={"original": original, **{label: combinations.pop(label) for label in singles}},
        published=PUBLISHED["combined"],
        singles=singles,
        source="[004] section 3.4: 39 % together",
        in_full={**combinations, **floors},
        main_road=True,
        knobs=("num_workers", "batch_size", "input_px", "decoder", "device"),
    )


def operations(base: Settings) -> Experiment:
    """Compare libraries by single image operations, each at several sizes.

    Every operation at one size is a group with a baseline of its own.

    Source: [000], OpenCV vs PIL (kaggle yukia18).
    """
    sizes = {
        f"{operation}, {width}×{height}": (operation, {"width_px": width, "height_px": height})
        for operation in dict.fromkeys(name for name, _ in OPERATIONS)
        for width, height in SIZES_PX
    }
    quick = tuple(f", {width}×{height}" for width, height in SIZES_PX[:QUICK_SIZES])
    return _timed_alone(
        base,
        "operations",
        sizes,
        is_quick=lambda group, library: group.endswith(quick),
        question="Which library does which image operation faster?",
        source="[000] OpenCV vs PIL (kaggle yukia18): chart lost",
        notes=(
            "pictures larger than the data's photographs are enlarged ones: smoother than a "
            "camera's, with fewer bytes per pixel to decode",
        ),
        main_road=True,
    )


def lookups(base: Settings) -> Experiment:
    """Compare ways to look labels up and to keep a configuration, beside the time of a sample.

    Source: [001] 2.1.
    """
    sizes = {f"label among {n:,} names": ("label", {"names": n}) for n in LABEL_NAMES}
    sizes |= {
        f"configuration of {n:,} KB": ("configuration", {"kilobytes": n}) for n in CONFIGURATION_KB
    }
    return _timed_alone(
        base,
        "lookups",
        {**sizes, SAMPLE: (SAMPLE, {})},
        question="How much time do list look-ups and repeated parsing cost?",
        source="[001] 2.1: load the configuration once, look up in a dict; no figure",
    )


def _timed_alone(
    base: Settings,
    name: str,
    sizes: Mapping[str, tuple[str, Mapping[str, int]]],
    *,
    is_quick: Callable[[str, str], bool] = lambda group, library: True,
    notes: tuple[str, ...] = (),
    **fields: Any,
) -> Experiment:
    """Compare the libraries or ways of single operations.

    Args:
        base: settings that all share.
        name: of the experiment.
        sizes: group -> its operation, and the numbers that its inputs are made from.
        is_quick: of group and library; see `in_groups`.
        notes: beside what each operation does.
        **fields: of `Experiment`.
    """
    # The inputs are in memory, and nothing is trained.
    settings = Settings(data=base.data, seed=base.seed, cache="warm", device="cpu", num_workers=0)
    tasks, groups = {}, {}
    for group, (operation, size) in sizes.items():
        libraries = [library for known, library in OPERATIONS | LOOKUPS if known == operation]
        groups[group] = dict.fromkeys(libraries, settings)
        for library in libraries:
            tasks[f"{group}: {library}"] = {"operation": operation, "library": library, **size}
    meanings = dict.fromkeys(operation for operation, _ in sizes.values())
    return Experiment(
        name,
        kind="operation",
        **in_groups(groups, is_quick),
        tasks=tasks,
        notes=(*(f"{operation}: {MEANINGS[operation]}" for operation in meanings), *notes),
        knobs=("seed",),
        **fields,
    )


def _in_order(variants: Mapping[str, Settings]) -> dict[str, Settings]:
    """Start the first variant cold, and each other one from the cache that was left behind.

    The first variant runs again at the end: its gain is due to the order and the cache alone.
    """
    first, settings = next(iter(variants.items()))
    left = change_all(variants, cache="as found")
    return left | {first: replace(settings, cache="cold"), f"{first}, again": left[first]}


EXPERIMENTS = (
    prefetching, storage, preprocessing, opencv_vs_pil, combined, operations, lookups,
)  # fmt: skip
