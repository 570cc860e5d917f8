"""Names in settings become parts; settings that do not fit together are refused.

    Settings ─ complete_here ─▶ nothing unset ─ resolve ─▶ Resolved: the parts themselves

`resolve` is called where a run is checked and in a trial's process; everything else takes what it
returns.  The first part of this module resolves, the second refuses, the third sends the user's own
parts to other processes by cloudpickle, and the last names the folder that holds the data.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labkit.contracts import Device, Reader, Skip
from labkit.machine import gpu, hardware
from labkit.machine.gpu import CudaState
from labkit.parts.decoding import DECODERS, SCALED, decode_pillow
from labkit.parts.devices import DEVICES, PROFILES, Profile
from labkit.parts.loading import LOADERS, ON_GPU, OUTSIDE, OWN_ORDER, THREADED, WITH_PROCESSES
from labkit.parts.packing import JPEG, PACKINGS, PIXELS, RESIZED, SAMPLE, Packing
from labkit.parts.packing.packs import pack_format
from labkit.parts.packing.remote import local_folder, place
from labkit.parts.prefetching import FINISHING, NEEDS_STREAMS, PREFETCHERS, STEPS_SHORT
from labkit.parts.preprocessing import PREPROCESSORS, Preprocessor
from labkit.parts.storage import IN_MEMORY, STORAGES, Storage, locate
from labkit.parts.training import LOOPS, LOSSES, STEPS, TAKES, VECTORIZED, Step
from labkit.parts.training.callbacks import METRICS
from labkit.parts.training.checkpoint import SAVERS, check_folder_name
from labkit.parts.training.exchange import (
    ALL_REDUCE,
    DATA_PARALLEL,
    LINK,
    NO_SYNC,
    NOOP,
    check_exchange,
)
from labkit.parts.training.reporting import PROGRESS, check_sink
from labkit.settings import Settings, complete, pick

# Setting -> its table: the choices of the form and of the command line, too.
TABLES: dict[str, dict] = {
    "storage": STORAGES,
    "packing": PACKINGS,
    "decoder": DECODERS,
    "preprocessor": PREPROCESSORS,
    "loader": LOADERS,
    "prefetcher": PREFETCHERS,
    "device": DEVICES,
    "profile": PROFILES,
    "step": STEPS,
    "loss": LOSSES,
    "saver": SAVERS,
    "metrics": METRICS,
    "progress_bar": PROGRESS,
}
BUILT_IN = {name: dict(table) for name, table in TABLES.items()}


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a variant's parts mean for comparing it with others."""

    leaves_out: frozenset[str]
    """What of the work it does not do: "loading" (one batch is delivered again and again),
    "computing"."""
    steps_short: int
    """Steps that it left out of every epoch, in runs of earlier versions."""
    own_order: bool
    """The images of an epoch come in another order than the other loaders'."""
    outside: bool
    """The loader reads, decodes and preprocesses by itself, and rounds in its own way."""
    loads_in_threads: bool
    loads_in_processes: bool
    scaled_decoding: bool
    """The decoder returns fewer pixels than the image has."""
    in_memory: bool
    """The files are never anywhere but in memory."""
    on_cpu: bool
    on_cuda: bool
    emulated: bool
    """The device is an emulated one."""
    on_device: bool
    """The device finishes the preprocessing."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The parts that settings name."""

    settings: Settings
    traits: Traits
    storage: Storage
    """Where the data is, or will be once it is staged."""
    packing: Packing
    decode: Callable[..., np.ndarray]
    """JPEG -> (H, W, 3) uint8 RGB; a scaled decoder also takes `at_least_px`."""
    preprocessor: Preprocessor
    load: Callable[..., Iterable]
    prefetch: Callable[..., Iterable]
    make_device: Callable[..., Device]
    profile: Profile
    make_step: Callable[[Settings, Device], Step]
    finishes_on_device: bool
    """The step takes batches that the preprocessor has still to finish on the device."""
    finishes_on_side_stream: bool
    """Likewise, but the prefetcher has it done beside the step."""
    charges_device: bool
    """Likewise, but the device is emulated and is only charged for it."""


def resolve(settings: Settings, *, cuda: Callable[[], CudaState] | None = None) -> Resolved:
    """Turn the names in settings into parts.

    Args:
        settings: complete; see `complete_here`.
        cuda: asks whether CUDA works here, where the device needs it; None in a trial's process,
            which finds out by using it.

    Raises:
        ValueError: a name that no table has, or parts that do not fit together.
        Skip: the parts exist and fit, but this machine lacks what they need.
    """
    _check_names(settings)
    storage = locate_data(settings)
    _check_remote(settings, storage)
    _check_ranks(settings, storage)
    _check_packing(settings)
    _check_step(settings)
    _check_device_speed(settings)
    _check_training(settings)
    if settings.prefetcher in NEEDS_STREAMS and settings.device == "cpu":
        raise Skip(
            f"{settings.prefetcher} copies on a side stream, which the cpu device does not have; "
            "choose device cuda or emulated"
        )
    _check_finishing(settings)
    if settings.loader in OUTSIDE:
        _check_outside(settings, storage)
    if settings.device == "cuda" and cuda is not None and not cuda().works:
        raise Skip(cuda().reason)
    decode: Callable[..., np.ndarray] = DECODERS[settings.decoder]
    preprocessor = PREPROCESSORS[settings.preprocessor]
    if decode is decode_pillow and preprocessor.in_pillow:
        decode = partial(decode, as_image=True)
    profile = replace(PROFILES[settings.profile], batch_size=settings.batch_size)
    if profile.compute_s_per_image is None and settings.device_speed is not None:
        profile = replace(profile, compute_s_per_image=1 / settings.device_speed)
    of = traits(vars(settings))
    finishes = of.on_device and settings.step not in ("timed", "nothing")
    beside = settings.prefetcher in FINISHING
    return Resolved(
        settings=settings,
        traits=of,
        storage=storage,
        packing=PACKINGS[settings.packing],
        decode=decode,
        preprocessor=preprocessor,
        load=LOADERS[settings.loader],
        prefetch=PREFETCHERS[settings.prefetcher],
        make_device=DEVICES[settings.device],
        profile=profile,
        make_step=STEPS[settings.step],
        finishes_on_device=finishes and not beside,
        finishes_on_side_stream=finishes and beside,
        charges_device=of.on_device and settings.step == "timed",
    )


def traits(settings: Mapping[str, Any]) -> Traits:
    """Return what a variant's parts mean for comparing it with others.

    Args:
        settings: by name, as rows and run.json hold them; a part that is not known here, and a
            setting that is missing, have no traits.
    """
    loader, prefetcher = settings.get("loader"), settings.get("prefetcher")
    preprocessor = PREPROCESSORS.get(settings.get("preprocessor"))
    left_out = {"loading": loader == "resident", "computing": settings.get("step") == "nothing"}
    return Traits(
        leaves_out=frozenset(name for name, is_left_out in left_out.items() if is_left_out),
        steps_short=STEPS_SHORT.get(prefetcher, 0),
        own_order=loader in OWN_ORDER,
        outside=loader in OUTSIDE,
        loads_in_threads=loader in THREADED,
        loads_in_processes=loader in WITH_PROCESSES,
        scaled_decoding=settings.get("decoder") in SCALED,
        in_memory=settings.get("storage") in IN_MEMORY,
        on_cpu=settings.get("device") == "cpu",
        on_cuda=settings.get("device") == "cuda",
        emulated=settings.get("device") == "emulated",
        on_device=preprocessor is not None and preprocessor.on_device is not None,
    )


def complete_here(settings: Settings) -> Settings:
    """Fill in what is unset, as a run on this machine does."""
    preprocessor = PREPROCESSORS.get(settings.preprocessor)
    return complete(
        settings,
        cores=hardware.cores(),
        # Asking takes seconds where there is a GPU, so only an unset device asks.
        has_cuda=settings.device is None and gpu.cuda().works,
        can_fork=hardware.can_fork(),
        real_step=preprocessor.batch if preprocessor else "detector",
    )


def label_cache(settings: Settings) -> str:
    """Label the state of the page cache: cold, warm, as found or "50 % cached"."""
    return settings.cache if settings.cached is None else f"{settings.cached} % cached"


def label_samples(settings: Settings) -> dict[str, str]:
    """Label a row whose samples are not made from the original images in full, or come late."""
    px = settings.input_px
    images = {
        RESIZED: f"JPEGs scaled to {px} px beforehand, so other pixels",
        PIXELS: f"pixels scaled to {px} px beforehand, so others",
        SAMPLE: "samples finished beforehand, random draws and all",
    }
    labels = {"images": images[settings.stored]} if settings.stored in images else {}
    if settings.decoder in SCALED:
        labels["images"] = f"decoded to half a side or less where {px} px remain, so other pixels"
    if settings.jitter_ms:
        late = f"each up to {settings.jitter_ms} ms late, which stands for uneven reads"
        labels["samples"] = late
    return labels


# --- what does not fit together -------------------------------------------------------------


def _check_names(settings: Settings) -> None:
    for setting, table in TABLES.items():
        value = getattr(settings, setting)
        if setting != "storage" and value is not None:  # `locate` knows folders, too
            pick(table, value, setting)
    check_folder_name(settings.checkpoint_to)
    check_sink(settings.report_to)
    check_exchange(settings.exchange)


def _check_remote(settings: Settings, storage: Storage) -> None:
    """Refuse what cannot be where every image comes over a network."""
    if not storage.is_remote:
        return
    if settings.cache_state != "as found":
        raise Skip(
            f"cache must be 'as found' for images that come over a network, got "
            f"{label_cache(settings)!r}: none of them is in this machine's page cache, so no state "
            "of it can be produced; set cache='as found' and leave cached unset, or set a storage "
            "to copy them to"
        )
    if settings.packing != "folder":
        raise Skip(
            f"packing must be 'folder' for images that come over a network one by one, got "
            f"{settings.packing!r}; set a storage to copy the pack to"
        )


def _check_ranks(settings: Settings, storage: Storage) -> None:
    """Refuse several ranks where one process works for all, and an exchange of no gradients."""
    if settings.exchange != ALL_REDUCE and settings.device == "emulated":
        raise Skip(
            f"exchange must be {ALL_REDUCE} on the simulated GPU, which has no gradients, got "
            f"{settings.exchange!r}; choose device cpu or cuda"
        )
    if LINK.fullmatch(settings.exchange) and settings.device == "cuda":
        raise Skip(
            f"exchange must be {ALL_REDUCE}, {NOOP} or {NO_SYNC} on device cuda, where no link "
            f"is modelled, got {settings.exchange!r}"
        )
    if DATA_PARALLEL.fullmatch(settings.exchange) and settings.device == "cpu":
        raise Skip(
            f"exchange must be another one on device cpu, got {settings.exchange}: without GPUs "
            "DataParallel calls the model as it is"
        )
    if settings.ranks == 1:
        return
    if DATA_PARALLEL.fullmatch(settings.exchange):
        raise ValueError(
            f"ranks must be 1 for the exchange {settings.exchange}, in which one process uses all "
            f"GPUs, got {settings.ranks}"
        )
    whole = f"ranks must be 1 {{}}, got {settings.ranks}"
    if settings.loader in OUTSIDE:
        raise Skip(whole.format(f"for the loader {settings.loader}, which divides no epoch"))
    if storage.needs_our_reader:
        raise Skip(whole.format(f"for the storage {settings.storage}, which one process models"))
    if STEPS[settings.step] is not BUILT_IN["step"].get(settings.step):
        raise Skip(whole.format("for a step of your own, of which labkit knows no gradients"))
    if settings.start_method != "fork":
        raise Skip(whole.format(f"for processes started by {settings.start_method}"))
    of_each, left = divmod(settings.num_workers, settings.ranks)
    if "loading" not in traits(vars(settings)).leaves_out and (left or not of_each):
        raise Skip(
            f"num_workers must be a multiple of ranks ({settings.ranks}), so that each has equally "
            f"many, got {settings.num_workers}; choose {max(of_each, 1) * settings.ranks}"
        )


def _check_finishing(settings: Settings) -> None:
    """Refuse to finish batches on the side stream where nothing is left to do, or none can."""
    if settings.prefetcher not in FINISHING:
        return
    fitting = [name for name, each in PREPROCESSORS.items() if each.on_device is not None]
    if settings.preprocessor not in fitting:
        raise ValueError(
            f"preprocessor must be one of {', '.join(fitting)} for the prefetcher "
            f"{settings.prefetcher}, which finishes batches on the device, got "
            f"{settings.preprocessor!r}"
        )
    if settings.device == "emulated":
        raise Skip(
            f"{settings.prefetcher} runs kernels on two streams at once, and the simulated GPU has "
            "one queue for all; choose device cuda"
        )


def _check_packing(settings: Settings) -> None:
    """Refuse what a packing cannot store, and a scaled decoder where its pixels are of no use."""
    can_store = PACKINGS[settings.packing].stores
    if settings.stored not in can_store:
        raise ValueError(
            f"stored must be {' or '.join(can_store)} for the packing {settings.packing}, "
            f"got {settings.stored!r}"
        )
    decoder = settings.decoder
    if decoder not in SCALED:
        return
    # The others place an image by its size and its boxes, which count in its own pixels.
    fitting = _preprocessors_for("classifier")
    if settings.preprocessor not in fitting:
        raise ValueError(
            f"preprocessor must be one of {', '.join(fitting)} for the decoder {decoder}, whose "
            f"images no longer fit their boxes, got {settings.preprocessor!r}"
        )
    if settings.stored != JPEG:
        raise ValueError(
            f"stored must be 'jpeg' for the decoder {decoder}, got {settings.stored!r}: that is "
            "already scaled"
        )
    if settings.loader in OUTSIDE:
        raise ValueError(
            f"decoder must be another one for the loader {settings.loader}, which decodes by "
            f"itself and in full, got {decoder!r}"
        )


def _check_step(settings: Settings) -> None:
    """Refuse a step that the device cannot do, or that takes other batches."""
    # A step of the user's own may take any batch.
    takes = TAKES.get(settings.step)
    real = takes is not None
    if settings.device == "emulated" and real:
        raise ValueError(
            f"step must be timed on the simulated GPU, got {settings.step!r}; "
            "choose device cpu or cuda for a real step"
        )
    if settings.device != "emulated" and settings.step == "timed":
        raise ValueError(
            f"step must be detector or classifier on device {settings.device}, got 'timed'"
        )
    if real and PREPROCESSORS[settings.preprocessor].batch != takes:
        raise ValueError(
            f"preprocessor must be one of {', '.join(_preprocessors_for(takes))} for the "
            f"step {settings.step}, got {settings.preprocessor!r}"
        )


def _check_device_speed(settings: Settings) -> None:
    """Refuse a speed for a device that has its own, and a host that sleeps for another one."""
    profile = PROFILES[settings.profile]
    if profile.sleeps and settings.device != "emulated":
        raise Skip(
            f"profile must be another one on device {settings.device}, got {settings.profile}: "
            "only the simulated GPU can be waited for in either way"
        )
    if settings.device_speed is None:
        return
    if settings.device != "emulated":
        raise Skip(
            f"device_speed must be unset on device {settings.device}, which is as fast as it is, "
            f"got {settings.device_speed:g}; choose device emulated"
        )
    if profile.compute_s_per_image is not None:
        raise ValueError(
            f"device_speed must be unset with the profile {settings.profile}, which has its own, "
            f"got {settings.device_speed:g}; choose profile calibrated"
        )


def _check_training(settings: Settings) -> None:
    """Refuse a loss without boxes, and what the device cannot compute, or not in bearable time."""
    makes = PREPROCESSORS[settings.preprocessor].batch
    if settings.loss != VECTORIZED and settings.step != "nothing":
        if makes != "detector":
            raise ValueError(
                f"loss must be {VECTORIZED} for the preprocessor {settings.preprocessor}, whose "
                f"batches have no boxes, got {settings.loss!r}; choose a detector's preprocessor, "
                "such as on_device"
            )
        if settings.step == "timed" and settings.loss not in LOOPS:
            raise ValueError(
                f"loss must be {', '.join((VECTORIZED, *LOOPS))} on the simulated GPU, got "
                f"{settings.loss!r}; choose device cpu or cuda for one of your own"
            )
    if settings.metrics != "none" and makes != "classifier":
        raise ValueError(
            f"metrics must be none for the preprocessor {settings.preprocessor}, whose batches "
            f"have no labels, got {settings.metrics!r}; choose preprocessor "
            f"{' or '.join(_preprocessors_for('classifier'))}"
        )
    if settings.precision == "amp" and settings.device == "cpu" and not hardware.has_bfloat16():
        raise Skip(
            "precision must be fp32 on a CPU without AVX-512, where bfloat16 is far slower, got "
            "'amp'; choose device cuda"
        )
    for name, plain in {"precision": "fp32", "memory_format": "contiguous"}.items():
        value = getattr(settings, name)
        if settings.device == "emulated" and value != plain:
            raise Skip(
                f"{name} must be {plain} on the simulated GPU, which computes nothing, got "
                f"{value!r}; choose device cpu or cuda"
            )


def _check_outside(settings: Settings, storage: Storage) -> None:
    """Refuse work that a loader with its own reading and preprocessing cannot do."""
    who = f"the loader {settings.loader}"
    if PREPROCESSORS[settings.preprocessor].in_numbers is None:
        able = ", ".join(name for name, part in PREPROCESSORS.items() if part.in_numbers)
        raise Skip(
            f"{who} preprocesses by itself, and can do {able}, not {settings.preprocessor}; "
            f"choose preprocessor {able}"
        )
    packing = OUTSIDE[settings.loader]
    if settings.packing != packing or settings.stored not in (JPEG, RESIZED):
        raise Skip(
            f"{who} reads JPEGs by itself from the packing {packing}, got {settings.packing} "
            f"with {settings.stored}; choose packing {packing}"
        )
    if storage.needs_our_reader:
        raise Skip(
            f"{who} reads files by itself, so it cannot wait for {settings.storage}; "
            "choose a real disk"
        )
    if settings.loader in ON_GPU and settings.device != "cuda":
        raise Skip(
            f"{who} decodes and preprocesses on the GPU, got device {settings.device}; choose "
            f"device cuda, or the loader {settings.loader}_cpu"
        )


def _preprocessors_for(batch: str) -> list[str]:
    return [name for name, part in PREPROCESSORS.items() if part.batch == batch]


# --- the user's own parts -------------------------------------------------------------------


def own_parts() -> bytes:
    """Pack the table entries that the user added or replaced, for another process.

    Returns:
        What `register` takes; empty where nothing was added.

    Raises:
        ValueError: an entry holds something that cannot be sent, such as an open file.
    """
    own = {}
    for setting, table in TABLES.items():
        for name, part in table.items():
            if BUILT_IN[setting].get(name) is not part:
                own[setting, name] = part
    if not own:
        return b""
    import cloudpickle

    for (setting, name), part in own.items():
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            raise ValueError(
                f"{setting} {name!r} must be something a fresh process can be sent, "
                f"got {part!r} ({error}); open files and handles inside the function"
            ) from error
    return cloudpickle.dumps(own)


def register(packed: bytes) -> None:
    """Enter the user's own parts into the tables of this process.

    Args:
        packed: from `own_parts`; never from a file.
    """
    if packed:
        for (setting, name), part in pickle.loads(packed).items():
            TABLES[setting][name] = part


# --- which folder holds the data ------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def open_reader(packing: str, directory: Path) -> Reader:
    """Open a data set once per process; the trial server's forks inherit it."""
    return pick(PACKINGS, packing, "packing").open(directory)


def open_original(settings: Settings) -> Reader:
    """Open the data where it lies and as it is; errors as `open_source`'s."""
    return open_source(original(settings))


def open_source(settings: Settings) -> Reader:
    """Open the data that settings name, where they say it lies, stored as they say.

    Data at a URL is copied to this machine first, unless that was done before.

    Raises:
        ValueError: it is not there, is not a data set, or holds something else.
        OSError: it is at a URL that cannot be read.
        Skip: it is stored in a way that this machine cannot read.
    """
    local_folder(settings.data)
    return open_reader(settings.packing, locate_data(settings).directory)


def locate_data(settings: Settings) -> Storage:
    """Find the place that settings name for the data, stored as they say.

    Raises:
        ValueError: there is no storage of that name.
        Skip: this machine does not have it.
    """
    return locate(settings.storage, stored_folder(settings))


def stored_folder(settings: Settings) -> Path:
    """Name the folder that holds the data as settings want it stored.

    It is the data itself, or a pack beside it: `data/photos.packs/lmdb-pixels-256`.
    """
    data = place(settings.data)
    if is_original(settings):
        return data
    words = [settings.packing]
    if settings.stored != JPEG:
        words += [settings.stored, str(settings.input_px)]
    if settings.stored == SAMPLE:
        words += [settings.preprocessor, str(settings.seed)]
    return data.with_name(f"{data.name}.packs") / "-".join(words)


def is_original(settings: Settings) -> bool:
    """Return whether settings read the data that they name, and not a pack of it."""
    as_it_is = settings.packing == "folder" and settings.stored == JPEG
    return as_it_is or pack_format(place(settings.data)) is not None


def original(settings: Settings) -> Settings:
    """Return the settings that read the data where it lies and as it is."""
    if is_original(settings):
        return replace(settings, storage="here")
    return replace(settings, storage="here", packing="folder", stored="jpeg")
