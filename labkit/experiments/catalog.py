"""The catalog of experiments, and `build`, which builds one for this machine.

    CATALOG: name -> function: settings that all variants share -> Experiment

Every public function of the modules that are named like notebooks makes an experiment; all that
there is to say about it is in its function.  The documents' media that this machine lacks are
replaced here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any

from labkit.experiments import (
    bottleneck,
    combined,
    distributed,
    opencv_vs_pil,
    packing,
    prefetching,
    preprocessing,
    roofline,
    storage,
    training_loop,
    workers_and_batches,
)
from labkit.experiments.sweep import with_published
from labkit.machine import media
from labkit.machine.page_cache import can_evict
from labkit.parts.storage import slow_disk
from labkit.runs.experiment import Experiment
from labkit.settings import AS_PUBLISHED, CORRECTED, PROTOCOLS, Settings, pick, with_settings

_MODULES = (
    prefetching,
    storage,
    preprocessing,
    opencv_vs_pil,
    combined,
    bottleneck,
    packing,
    workers_and_batches,
    training_loop,
    distributed,
    roofline,
)
CATALOG: dict[str, Callable[[Settings], Experiment]] = {
    name: function
    for module in _MODULES
    for name, function in vars(module).items()
    if isinstance(function, FunctionType)
    and function.__module__ == module.__name__
    and not name.startswith("_")
}
# Experiment -> its own defaults, where the user names no others.  [004] read from a hard disk and
# trained on 512 px, which fits into a quick minute where few variants share it.  Of scaled decoding
# to pay, photographs have to be twice as large as the input: most have 640 × 480.
DEFAULTS: dict[str, dict[str, Any]] = {
    "prefetching": {"storage": "hdd"},
    "preprocessing": {"storage": "hdd", "input_px": 512},
    "combined": {"input_px": 512},
    "opencv_vs_pil": {"input_px": 224},
    # A modelled disk can be cold on any platform.
    "packing": {"storage": "hdd", "cache": "cold"},
    "shards": {"storage": "hdd"},
}
# Medium -> its model, for machines without a hard disk, real or throttled.
MODELLED_STORAGES = {
    "hdd": "modelled_hdd",
    "throttled": "modelled_hdd",
    "ssd": "modelled_ssd",
    "nvme": "modelled_nvme",
    "tmpfs": "modelled_memory",
}


def build(name: str, protocol: str, settings: Mapping[str, Any]) -> Experiment:
    """Return an experiment of the catalog; arguments and errors as `request.experiment`."""
    own = DEFAULTS.get(name, {})
    if "storage" in settings:  # the cache is that of the own one
        own = {name: value for name, value in own.items() if name not in ("storage", "cache")}
    base = with_settings(document_base(), {**own, **settings})
    experiment = pick(CATALOG, name, "experiment")(base)
    pick(dict.fromkeys(PROTOCOLS), protocol, "protocol")
    if protocol == AS_PUBLISHED:
        if not experiment.document_order:
            known = " and ".join(name for name in CATALOG if CATALOG[name](base).document_order)
            raise ValueError(
                f"protocol must be {CORRECTED!r} for {name}, got {protocol!r}; "
                f"{known} can also be run as in their document"
            )
        figures = {
            label: variant.published
            for label, variant in experiment.variants.items()
            if variant.published is not None and label in experiment.document_order
        }
        in_order = with_published(figures, experiment.document_order)
        experiment = replace(experiment, variants=in_order, protocol=protocol)
    experiment = _on_this_machine(experiment, settings.get("storage", ""))
    _check_kept(experiment, settings)
    return experiment


def document_base() -> Settings:
    """Return what [004] ran: images from disk, decoded by OpenCV, preprocessed in loops.

    The disk is the hard disk that labkit.toml names, else where the data is.  The first epoch was
    cold; on a platform that cannot evict files, it is warm.
    """
    return Settings(
        storage="here" if _why_no_hard_disk() else "hdd",
        cache="cold" if can_evict() else "warm",
        decoder="opencv",
        preprocessor="loops",
        loader="torch",
    )


def hard_disk() -> tuple[str, str]:
    """Return what serves as the documents' hard disk here, and what it replaces and why.

    Returns:
        "hdd" and no reason, if labkit.toml names one that can be used; else "throttled" if the
        kernel can slow a disk down; else "modelled_hdd".
    """
    missing = _why_no_hard_disk()
    if not missing:
        return "hdd", ""
    if reason := slow_disk.why_no_slow_disk():
        return "modelled_hdd", _model_note(missing, reason)
    return "throttled", f"{missing}: simulated by a disk that the kernel slows down"


def _on_this_machine(experiment: Experiment, storage: str) -> Experiment:
    """Replace the media that this machine lacks, unless the user asked for them."""
    if storage == "hdd" or all(
        settings.storage != "hdd" for settings in experiment.settings.values()
    ):
        return experiment
    # Asking for the modelled hard disk is asking for all media to be modelled.
    disk, note = (storage, "") if storage == MODELLED_STORAGES["hdd"] else hard_disk()
    if disk == "hdd":
        return experiment
    if disk != "throttled":
        return _on_media(experiment, MODELLED_STORAGES, note)

    def fallback(chosen: Experiment, reason: str) -> Experiment:
        note = _model_note(_why_no_hard_disk(), reason)
        return _on_media(replace(chosen, notes=experiment.notes), MODELLED_STORAGES, note)

    return replace(_on_media(experiment, {"hdd": disk}, note), fallback=fallback)


def _on_media(experiment: Experiment, names: Mapping[str, str], note: str) -> Experiment:
    """Replace the storages of all variants by name, and add a note on it."""

    def on_medium(settings: Settings) -> Settings:
        storage, cache = names.get(settings.storage, settings.storage), settings.cache
        # A model's cache ends with its trial: what an earlier trial would have left is made.
        is_left = storage in MODELLED_STORAGES.values() and cache == "as found"
        return replace(settings, storage=storage, cache="warm" if is_left else cache)

    return replace(
        experiment.change(on_medium),
        notes=(*experiment.notes, note) if note else experiment.notes,
    )


def _model_note(missing: str, reason: str) -> str:
    return f"{missing}, and none can be throttled here ({reason}): every medium is modelled"


def _why_no_hard_disk() -> str:
    """Return why there is no hard disk to start cold from; empty where there is one."""
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


def _check_kept(experiment: Experiment, changes: Mapping[str, Any]) -> None:
    """Refuse a setting that the experiment itself decides, instead of dropping it silently."""
    for name, given in changes.items():
        value = getattr(with_settings(Settings(), {name: given}), name)  # "50" is a number
        measured = experiment.measured(in_full=False).values()
        chosen = list(dict.fromkeys(getattr(one.settings, name) for one in measured))
        is_model = name == "storage" and value == chosen[0] == MODELLED_STORAGES["hdd"]
        if chosen != [value] and not is_model:
            raise ValueError(
                f"{name} must be left out for {experiment.name}, which takes "
                f"{', '.join(map(str, chosen))}, got {value!r}"
            )
