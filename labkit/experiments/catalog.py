"""Catalog: the documents' experiments as data, with the figures they reported.

Each entry takes the settings that all its variants share and returns an
Experiment, baseline first.  The figures are the bar labels of the original
blog's charts (DOCUMENTS 0.1); a document's figure that was never published is
left out, not guessed.  Main trap: a machine without a hard disk still has to
answer a question about one; what stands in is named in the notes and the rows.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from labkit.experiments import bottlenecks as in_depth_bottlenecks
from labkit.experiments import callbacks as in_depth_callbacks
from labkit.experiments import loading as in_depth_loading
from labkit.experiments import rivals as in_depth_rivals
from labkit.experiments import storing as in_depth
from labkit.experiments import training as in_depth_training
from labkit.experiments.operations import operations
from labkit.machine import media
from labkit.machine.page_cache import can_evict
from labkit.parts.storage import slow_disk
from labkit.runs.experiment import Experiment
from labkit.settings import AS_PUBLISHED, CORRECTED, Settings, pick, with_settings


def document_base() -> Settings:
    """Give what [004] ran: images from disk, decoded by OpenCV, the original code.

    The disk is the hard disk that labkit.toml names, else where the data lies: these
    experiments are not about it.  Its first epoch was cold; where a platform cannot make files
    cold again, warm is all that can be compared.
    """
    return Settings(
        storage="here" if _why_no_hard_disk() else "hdd",
        cache="cold" if can_evict() else "warm",
        decoder="opencv",
        preprocessor="loops",
        loader="torch",
    )


@dataclass(frozen=True, kw_only=True)
class Disks:
    """What stands for the documents' three media on this machine."""

    hdd: str
    ssd: str
    tmpfs: str
    notes: tuple[str, ...] = ()

    @property
    def modelled(self) -> bool:
        """Whether none of them is real."""
        return self.hdd.startswith("modelled")


MODELLED = Disks(hdd="modelled_hdd", ssd="modelled_ssd", tmpfs="modelled_memory")


def disks(why_not_throttled: str | None = None) -> Disks:
    """Choose the media: a named hard disk, else a throttled one, else all of them modelled.

    Args:
        why_not_throttled: a reason found out by trying; unset: what can be seen without trying.
    """
    missing = _why_no_hard_disk()
    if not missing:
        return Disks(hdd="hdd", ssd="ssd", tmpfs="tmpfs")
    why_not = slow_disk.why_not() if why_not_throttled is None else why_not_throttled
    if not why_not:
        return Disks(
            hdd="throttled",
            ssd="ssd",
            tmpfs="tmpfs",
            notes=(f"{missing}: a disk that the kernel slows down stands in for it",),
        )
    note = f"{missing}, and none can be throttled here ({why_not}): every medium is modelled"
    return replace(MODELLED, notes=(note,))


def _why_no_hard_disk() -> str:
    """Say why there is no hard disk to start cold from; empty where there is one."""
    folder = media.media().get("hdd")
    if folder is None:
        return "no hard disk is named in labkit.toml (make lab HDD=/a/folder/on/it)"
    if not can_evict():
        return "files cannot be evicted from memory on this platform (no posix_fadvise)"
    if not folder.is_dir():
        return "the folder that labkit.toml names as hard disk is not there"
    if not os.access(folder, os.W_OK):
        return "the folder that labkit.toml names as hard disk cannot be written to"
    if media.describe_medium(folder).in_memory:
        return "the folder that labkit.toml names as hard disk is kept in memory"
    return ""


def _disks_for(base: Settings, why_not_throttled: str | None) -> Disks:
    """Choose the media, modelled ones where a person asks for the modelled hard disk."""
    if base.storage == "modelled_hdd":
        return MODELLED
    return disks(why_not_throttled)


def prefetching(
    base: Settings, protocol: str = CORRECTED, why_not_throttled: str | None = None
) -> Experiment:
    """Experiment 1 of [004]: does fetching ahead shorten the epoch?"""
    published = {
        "original": 1.000,
        "prefetch_generator": 0.894,
        "data_prefetcher": 0.891,
        "both": 0.897,
    }
    experiment = Experiment(
        "prefetching",
        question="Does fetching the next batch ahead shorten the epoch?",
        variants={
            "original": replace(base, prefetcher="none"),
            "prefetch_generator": replace(base, prefetcher="prefetch_generator"),
            "data_prefetcher": replace(base, prefetcher="data_prefetcher"),
            "both": replace(base, prefetcher="both"),
        },
        baseline="original",
        published=published,
        source="[004] section 3.1, experiment 1",
    )
    if protocol == CORRECTED:
        return experiment
    short = {"data_prefetcher": "data_prefetcher_as_published", "both": "both_as_published"}
    # The document ran it on a hard disk, which is what makes a cold first run slow.
    here = _disks_for(base, why_not_throttled)
    variants = {
        label: replace(settings, storage=here.hdd, prefetcher=short.get(label, settings.prefetcher))
        for label, settings in experiment.variants.items()
    }
    # Nothing is changed in the last one: what it gains is the order's and the cache's doing.
    variants["original, again"] = variants["original"]
    return _as_published(replace(experiment, notes=here.notes), variants, protocol, here)


def storage(
    base: Settings, protocol: str = CORRECTED, why_not_throttled: str | None = None
) -> Experiment:
    """Experiment 2 of [004]: does a faster disk shorten the epoch?"""
    here = _disks_for(base, why_not_throttled)
    cold = replace(base, cache="cold", preprocessor="loops")
    names = {"hdd": here.hdd, "ssd": here.ssd} | _nvme(here)
    variants = {
        "hdd": replace(cold, storage=here.hdd),
        "ssd": replace(cold, storage=here.ssd),
        # Nothing that lies in memory can be cold.
        "tmpfs": replace(cold, storage=here.tmpfs, cache="warm"),
        **{label: replace(cold, storage=name) for label, name in _nvme(here).items()},
    }
    experiment = Experiment(
        "storage",
        question="Does a faster disk shorten the epoch?",
        variants={
            **variants,
            **{
                f"{label}, warm": replace(cold, storage=name, cache="warm")
                for label, name in names.items()
            },
        },
        baseline="hdd",
        published={"hdd": 1.000, "ssd": 0.860, "tmpfs": 0.864},
        source="[004] section 3.2, experiment 2",
        notes=here.notes,
    )
    if protocol == CORRECTED:
        return experiment
    return _as_published(experiment, {**variants, "hdd, again": variants["hdd"]}, protocol, here)


def preprocessing(base: Settings) -> Experiment:
    """Experiment 3 of [004]: how much does simpler preprocessing code save?"""
    return Experiment(
        "preprocessing",
        question="How much time does simpler preprocessing code save?",
        variants={
            "original": replace(base, preprocessor="loops"),
            "vectorized": replace(base, preprocessor="vectorized"),
            "simplified": replace(base, preprocessor="on_device"),
        },
        baseline="original",
        published={"original": 1.000, "simplified": 0.661},
        source="[004] section 3.3, experiment 3",
    )


def opencv_vs_pil(base: Settings) -> Experiment:
    """[000]'s choice of library, at the epoch: who decodes and resizes faster?"""

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
        baseline="pillow",
        source="[000], OpenCV or PIL: mostly OpenCV, its chart is lost",
        in_full={
            "kornia-rs": by("kornia_rs"),
            "torchvision": by("torchvision"),
            "simplejpeg, scaled": by("simplejpeg_scaled"),
        },
    )


def combined(base: Settings, *, why_not_throttled: str | None = None) -> Experiment:
    """The documents' remedies together, against what they started from."""
    here = _disks_for(base, why_not_throttled)
    if here.modelled:
        base = replace(base, cache="cold")  # a model can be cold on any platform
    levels = {
        "storage": {"hdd": here.hdd, "ssd": here.ssd},
        "prefetcher": {
            "none": "none",
            "prefetch_generator": "prefetch_generator",
            "data_prefetcher": "data_prefetcher",
        },
        "preprocessor": {"loops": "loops", "on_device": "on_device"},
    }
    combinations = {
        " + ".join(words): replace(
            base, **{name: levels[name][word] for name, word in zip(levels, words)}
        )
        for words in itertools.product(*levels.values())
    }
    original = combinations.pop("hdd + none + loops")
    best = {
        "best of the document": combinations.pop("ssd + data_prefetcher + on_device"),
        "best with prefetch_generator": combinations.pop("ssd + prefetch_generator + on_device"),
    }
    floors = {
        f"loading alone: {disk} + {code}": replace(
            base, storage=levels["storage"][disk], preprocessor=code, step="nothing"
        )
        for disk, code in itertools.product(levels["storage"], levels["preprocessor"])
    }
    floors |= {
        f"computing alone: {code}": replace(
            base, storage=here.hdd, preprocessor=code, loader="resident"
        )
        for code in levels["preprocessor"]
    }
    return Experiment(
        "combined",
        question="How much do the documents' remedies save together?",
        variants={"original": original, **best},
        baseline="original",
        published={
            "original": 1.00,
            "best of the document": 0.61,
            "best with prefetch_generator": 0.61,
        },
        source="[004] section 3.4: 39 % together",
        in_full={**combinations, **floors},
        notes=here.notes,
    )


# The main road, in the documents' order, and what goes into depth.
CATALOG: dict[str, Callable[..., Experiment]] = {
    "prefetching": prefetching,
    "storage": storage,
    "preprocessing": preprocessing,
    "opencv_vs_pil": opencv_vs_pil,
    "combined": combined,
    "operations": operations,
    "packing": in_depth.packing,
    "small_files": in_depth.small_files,
    "offline": in_depth.offline,
    "distance": in_depth.distance,
    "workers": in_depth_loading.workers,
    "prefetch_factor": in_depth_loading.prefetch_factor,
    "pin_memory": in_depth_loading.pin_memory,
    "persistent_workers": in_depth_loading.persistent_workers,
    "short_epochs": in_depth_loading.short_epochs,
    "batch_size": in_depth_loading.batch_size,
    "batch_size_powers": in_depth_loading.batch_size_powers,
    "sampling": in_depth_loading.sampling,
    "opencv_threads": in_depth_loading.opencv_threads,
    "prefetching_in_depth": in_depth_loading.prefetching_in_depth,
    "rivals": in_depth_rivals.rivals,
    "tf_data": in_depth_rivals.tf_data,
    "num_parallel_reads": in_depth_rivals.num_parallel_reads,
    "loss": in_depth_training.loss,
    "precision": in_depth_training.precision,
    "stalls": in_depth_callbacks.stalls,
    "checkpoints": in_depth_callbacks.checkpoints,
    "logs": in_depth_callbacks.logs,
    "metric_reports": in_depth_callbacks.metric_reports,
    "evaluation": in_depth_callbacks.evaluation,
    "progress": in_depth_callbacks.progress,
    "bottlenecks": in_depth_bottlenecks.bottlenecks,
}
MAIN_ROAD = ("prefetching", "storage", "preprocessing", "opencv_vs_pil", "combined")
RUN_BY_DEFAULT = (*MAIN_ROAD, "operations")
# Those that can also be run in the document's own order and with its own loop.
AS_PUBLISHED_TOO = ("prefetching", "storage")


# The settings that a question turns on, for a form: whoever asks it tries these first.
KNOBS: dict[str, tuple[str, ...]] = {
    "prefetching": (
        "num_workers", "prefetch_factor", "pin_memory", "sync_every", "batch_size", "input_px",
        "preprocessor", "device",
    ),
    "storage": ("num_workers", "batch_size", "input_px", "decoder", "device"),
    "preprocessing": ("num_workers", "batch_size", "input_px", "decoder", "cache", "device"),
    "opencv_vs_pil": ("num_workers", "batch_size", "input_px", "cv2_threads", "cache", "device"),
    "combined": ("num_workers", "batch_size", "input_px", "decoder", "device"),
    "operations": ("seed",),
    "packing": ("num_workers", "storage", "batch_size", "decoder", "input_px", "device"),
    "small_files": ("num_workers", "storage", "input_px", "batch_size", "decoder", "device"),
    "offline": ("num_workers", "storage", "input_px", "decoder", "batch_size", "device"),
    "distance": ("batch_size", "prefetch_factor", "decoder", "device"),
    "workers": ("prefetch_factor", "batch_size", "preprocessor", "cache", "device"),
    "prefetch_factor": ("num_workers", "jitter_ms", "batch_size", "preprocessor", "device"),
    "pin_memory": ("num_workers", "batch_size", "input_px", "device"),
    "persistent_workers": ("num_workers", "epochs", "images", "preprocessor", "device"),
    "short_epochs": ("num_workers", "epochs", "images", "preprocessor", "device"),
    "batch_size": ("num_workers", "input_px", "decoder", "device"),
    "batch_size_powers": ("num_workers", "input_px", "decoder", "device"),
    "sampling": ("num_workers", "batch_size", "cache", "preprocessor", "device"),
    "opencv_threads": ("batch_size", "input_px", "preprocessor", "device"),
    "prefetching_in_depth": ("batch_size", "preprocessor", "device"),
    "rivals": (
        "num_workers", "prefetch_factor", "batch_size", "input_px", "cache", "step", "device",
    ),
    "tf_data": ("num_workers", "batch_size", "input_px", "cache", "step", "device"),
    "num_parallel_reads": ("num_workers", "storage", "batch_size", "input_px", "step", "device"),
    "loss": ("num_workers", "preprocessor", "batch_size", "sync_every", "profile", "device"),
    "precision": ("num_workers", "batch_size", "input_px", "cache", "device"),
    "stalls": ("batch_size", "input_px", "device"),
    "checkpoints": ("checkpoint_to", "batch_size", "input_px", "device"),
    "logs": ("batch_size", "input_px", "device"),
    "metric_reports": ("batch_size", "input_px", "device"),
    "evaluation": ("batch_size", "input_px", "device"),
    "progress": ("batch_size", "input_px", "device"),
    "bottlenecks": ("jitter_ms", "num_workers", "batch_size", "input_px", "device"),
}  # fmt: skip


def build(name: str, protocol: str, settings: Mapping[str, object]) -> Experiment:
    """Return an experiment of the catalog; arguments and errors as `request.experiment`."""
    make = pick(CATALOG, name, "experiment")
    base = with_settings(document_base(), dict(settings))
    if protocol != CORRECTED:
        pick(dict.fromkeys((CORRECTED, AS_PUBLISHED)), protocol, "protocol")
        if name not in AS_PUBLISHED_TOO:
            raise ValueError(
                f"protocol must be {CORRECTED!r} for {name}, got {protocol!r}; "
                f"{' and '.join(AS_PUBLISHED_TOO)} know the document's own"
            )
        make = partial(make, protocol=protocol)
    found = make(base)
    _check_kept(found, settings)
    if "throttled" in {settings.storage for settings in found.variants.values()}:
        found = replace(found, otherwise=lambda why: make(base, why_not_throttled=why))
    return found


def _check_kept(experiment: Experiment, changes: Mapping[str, object]) -> None:
    """Refuse a setting that the experiment itself decides, instead of dropping it silently."""
    for name, value in changes.items():
        chosen = list(dict.fromkeys(getattr(s, name) for s in experiment.variants.values()))
        # Asking for the modelled hard disk is asking for all media to be modelled.
        if chosen != [value] and not (name == "storage" and value == chosen[0] == "modelled_hdd"):
            raise ValueError(
                f"{name} must be left out for {experiment.name}, which takes "
                f"{', '.join(map(str, chosen))}, got {value}"
            )


def _nvme(disks: Disks) -> dict[str, str]:
    """Name the NVMe medium, where there is one."""
    return {"nvme": "nvme"} if "nvme" in media.media() and not disks.modelled else {}


def _as_published(
    experiment: Experiment, variants: dict[str, Settings], protocol: str, disks: Disks
) -> Experiment:
    """Let the first variant start cold, and the others from what it left behind."""
    # A model's cache ends with its trial, so what would be left is made.
    left = "warm" if disks.modelled else "as found"
    first, *others = variants
    return replace(
        experiment,
        variants={
            first: replace(variants[first], cache="cold"),
            **{label: replace(variants[label], cache=left) for label in others},
        },
        protocol=protocol,
    )
