"""Names in settings become parts, and the folder that holds the data.

    Settings ─ complete_here ─▶ nothing unset ─ resolve ─▶ Resolved: parts, folder, reader

`resolve` is called where a run is checked and in a trial's process; everything else takes what it
returns.  Each part says itself why it cannot be used beside the others (`contracts.Part.why_not`).
The rest of this module gathers what comparing needs of a variant's parts, sends the user's own
parts to other processes by cloudpickle, and opens the data.
"""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labkit.contracts import AnyPart, Part, Reader, Skip, as_part
from labkit.machine import gpu, hardware, media
from labkit.machine.gpu import CudaState
from labkit.parts.decoding import DECODERS, Decoder
from labkit.parts.devices import DEVICES, GPUS, DevicePart, GpuSpeeds
from labkit.parts.loading import LOADERS, Loader
from labkit.parts.packing import PACKINGS, Packing
from labkit.parts.packing.packs import pack_format, shorter_side_px
from labkit.parts.packing.remote import data_folder, download
from labkit.parts.prefetching import PREFETCHERS, Prefetcher
from labkit.parts.preprocessing import PREPROCESSORS, Preprocessor
from labkit.parts.storage import STORAGES, Storage, StoragePart, locate
from labkit.parts.training import LOSSES, STEPS, Loss, StepPart, exchange
from labkit.parts.training.callbacks import METRICS, Metrics
from labkit.parts.training.checkpoint import (
    CHECKPOINT_WRITERS,
    check_folder_name,
    checkpoint_folders,
)  # fmt: skip
from labkit.parts.training.reporting import PROGRESS, SINKS, read_sink
from labkit.records import Facts
from labkit.settings import IN_THREAD, WITHOUT_LOSS, Settings, complete, pick

# Setting -> its table: the choices of the form and of the command line, too.
TABLES: dict[str, dict] = {
    "storage": STORAGES,
    "packing": PACKINGS,
    "decoder": DECODERS,
    "preprocessor": PREPROCESSORS,
    "loader": LOADERS,
    "prefetcher": PREFETCHERS,
    "device": DEVICES,
    "gpu_images_per_s": GPUS,
    "step": STEPS,
    "loss": LOSSES,
    "checkpoint_writer": CHECKPOINT_WRITERS,
    "metrics": METRICS,
    "progress_bar": PROGRESS,
}
# Setting -> what refuses a name that it cannot have, where a name may hold a number or a path.
NAME_CHECKS: dict[str, Callable[[str], object]] = {
    "checkpoint_to": check_folder_name,
    "report_to": read_sink,
    "exchange": exchange.check_exchange,
}
# Setting -> names to offer for it, beside those that hold another number or path.
NAME_EXAMPLES: dict[str, Callable[[], Iterable[str]]] = {
    "storage": lambda: (*STORAGES, *media.media()),
    "checkpoint_to": checkpoint_folders,
    "report_to": lambda: (*SINKS, "http_50ms", f"file{WITHOUT_LOSS}", f"file{IN_THREAD}"),
    "exchange": lambda: ("all_reduce", "noop", "no_sync", "100mbit", "data_parallel_2"),
}
BUILT_IN = {name: dict(table) for name, table in TABLES.items()}
# Setting -> the type of its parts, where others need more of them than the function.
PART_TYPES: dict[str, type[Part]] = {
    "storage": StoragePart,
    "decoder": Decoder,
    "preprocessor": Preprocessor,
    "loader": Loader,
    "prefetcher": Prefetcher,
    "device": DevicePart,
    "step": StepPart,
    "loss": Loss,
    "metrics": Metrics,
    "progress_bar": Part,
}


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The parts and the folders that settings name; see `contracts.Chosen`."""

    settings: Settings
    folder: Path
    """The data, or its pack, where it lies: as of `source_folder`."""
    storage: Storage
    """Where it is read from, or will be once it is staged: `storage.directory`."""
    packing: Packing
    decoder: Decoder
    preprocessor: Preprocessor
    loader: Loader
    prefetcher: Prefetcher
    device: DevicePart
    gpu_speeds: GpuSpeeds
    step: StepPart

    @property
    def reader(self) -> Reader:
        """The data, opened where it is read from; errors as `open_data`'s."""
        download(self.settings.data)
        return open_reader(self.settings.packing, self.storage.directory)

    @functools.cached_property
    def decode(self) -> Callable[..., np.ndarray]:
        """JPEG -> (H, W, 3) uint8 RGB, or Pillow's image; a scaled one also takes `at_least_px`."""
        if self.decoder.makes_pillow_image and self.preprocessor.in_pillow:
            return partial(self.decoder.function, as_image=True)
        return self.decoder.function

    @property
    def finishes_on_device(self) -> bool:
        """Whether the step takes batches that the preprocessor has still to finish there."""
        return self._finishes and not self.prefetcher.finishes

    @property
    def finishes_on_side_stream(self) -> bool:
        """Likewise, but the prefetcher has it done beside the step."""
        return self._finishes and self.prefetcher.finishes

    @property
    def charges_device(self) -> bool:
        """Likewise, but the device is simulated and is only charged for it."""
        return self.preprocessor.on_device is not None and self.step.is_simulated

    @property
    def _finishes(self) -> bool:
        is_real = not (self.step.is_simulated or self.step.trains_nothing)
        return self.preprocessor.on_device is not None and is_real

    def names(self, setting: str, fits: Callable[[Any], bool]) -> list[str]:
        """List the names in a setting's table whose parts fit."""
        return [name for name in TABLES[setting] if fits(find_part(PART_TYPES[setting], name))]


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
    check_names(vars(settings))
    folder = source_folder(settings)
    parts = Resolved(
        settings=settings,
        folder=folder,
        storage=locate(settings.storage, folder),
        packing=PACKINGS[settings.packing],
        decoder=find_part(Decoder, settings.decoder),
        preprocessor=find_part(Preprocessor, settings.preprocessor),
        loader=find_part(Loader, settings.loader),
        prefetcher=find_part(Prefetcher, settings.prefetcher),
        device=find_part(DevicePart, settings.device),
        gpu_speeds=find_gpu_speeds(settings),
        step=find_part(StepPart, settings.step),
    )
    # The first reason is the one that is shown.
    checked: list[Any] = [
        parts.storage,
        exchange,
        parts.packing,
        parts.decoder,
        parts.preprocessor,
        parts.step,
        find_part(Loss, settings.loss),
        find_part(Metrics, settings.metrics),
        parts.device,
        parts.prefetcher,
        parts.loader,
    ]
    for part in checked:
        # A storage or packing of the user's own may be any class.
        if hasattr(part, "why_not") and (reason := part.why_not(parts)):
            raise Skip(reason)
    if parts.device.is_cuda and cuda is not None and not cuda().works:
        raise Skip(cuda().reason)
    return parts


def find_part(kind: type[AnyPart], name: str | None) -> AnyPart:
    """Return a part by its name, without asking whether it can be used here.

    Args:
        kind: one of `PART_TYPES`.
        name: of another version, or unset, it is a part with the defaults and without a function.
    """
    setting = next(setting for setting, known in PART_TYPES.items() if known is kind)
    return as_part(kind, TABLES[setting].get(name))


def libraries_of(settings: Mapping[str, Any]) -> set[str]:
    """Return the libraries that a variant's parts work with; see `contracts.Part.library`.

    Args:
        settings: by name, as a run of any version has them.
    """
    parts = [find_part(kind, settings.get(name)) for name, kind in PART_TYPES.items()]
    return {part.library for part in parts if part.library}


def find_gpu_speeds(settings: Settings) -> GpuSpeeds:
    """Return the speed of the simulated GPU."""
    given = settings.gpu_images_per_s
    name = given if isinstance(given, str) else ""
    rate: Any = GPUS[name] if name else given
    return GpuSpeeds(
        name=name,
        gpu_images_per_s=rate,
        batch_size=settings.batch_size,
        sleeps=find_part(DevicePart, settings.device).sleeps,
    )


def check_names(settings: Mapping[str, Any]) -> None:
    """Refuse names that a setting cannot have; `locate` refuses those of storages.

    Args:
        settings: by name; values that are no names are left alone.

    Raises:
        ValueError: the message lists the choices.
    """
    for setting, value in settings.items():
        if not isinstance(value, str) or setting == "storage":
            continue
        if setting in TABLES:
            pick(TABLES[setting], value, setting)
        elif setting in NAME_CHECKS:
            NAME_CHECKS[setting](value)


def complete_here(settings: Settings) -> Settings:
    """Fill in what is unset, as a run on this machine does."""
    return complete(
        settings,
        cores=hardware.cores(),
        # Asking takes seconds where there is a GPU, so only an unset device asks.
        has_cuda=settings.device is None and gpu.cuda().works,
        can_fork=hardware.can_fork(),
        real_step=find_part(Preprocessor, settings.preprocessor).batch,
    )


# --- what comparing needs ---------------------------------------------------------------------


def gather_facts(settings: Mapping[str, Any]) -> Facts:
    """Return what of a variant's parts counts where it is compared with others.

    Args:
        settings: by name, as a run of any version has them; a part that is not known here, and a
            setting that is missing, have no facts.
    """
    loader = find_part(Loader, settings.get("loader"))
    decoder = find_part(Decoder, settings.get("decoder"))
    device = find_part(DevicePart, settings.get("device"))
    # Prefetchers of earlier versions left out a step.
    is_short = str(settings.get("prefetcher")).endswith("_as_published")
    return Facts(
        repeats_one_batch=loader.repeats_one_batch,
        trains_nothing=find_part(StepPart, settings.get("step")).trains_nothing,
        steps_short=int(is_short),
        has_own_order=loader.has_own_order,
        order_varies=loader.order_varies,
        loads_outside=loader.makes_samples,
        decodes_scaled=decoder.scaled,
        other_pixels=decoder.other_pixels,
        stores_fewer_pixels=settings.get("storage_format") in ("small", "yuv420"),
        stays_in_memory=find_part(StoragePart, settings.get("storage")).stays_in_memory,
        is_on_cpu=device.is_cpu,
        is_simulated=device.is_simulated,
        finishes_on_device=find_part(Preprocessor, settings.get("preprocessor")).on_device
        is not None,
    )


def record_facts(variants: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what `run.json` keeps of the variants' facts: those that are not the default.

    Args:
        variants: label -> settings by name, as `gather_facts` takes them.
    """
    return {
        label: {name: value for name, value in asdict(gather_facts(settings)).items() if value}
        for label, settings in variants.items()
    }


def label_samples(settings: Settings) -> dict[str, str]:
    """Label a row whose samples are not made from the original images in full, or come late.

    So is a row whose batches come in any order.
    """
    px, stored = settings.input_px, settings.storage_format
    stored_px = shorter_side_px(stored, px or 0)
    images = {
        "resized": f"JPEGs scaled to {px} px beforehand, so other pixels",
        "pixels": f"pixels scaled to {px} px beforehand, so others",
        "sample": "preprocessed once, so every epoch has the same random crops and flips",
        "small": f"JPEGs scaled to {stored_px} px beforehand, so other pixels",
        "yuv420": f"YUV 4:2:0 planes of {stored_px} px made beforehand, so other pixels",
    }
    labels = {"images": images[stored]} if stored in images else {}
    decoder = find_part(Decoder, settings.decoder)
    if decoder.scaled:
        labels["images"] = f"decoded at a reduced size of {px} px or more, so other pixels"
    if decoder.other_pixels:
        labels["images"] = f"decoded {decoder.other_pixels}, so other pixels"
    if find_part(Loader, settings.loader).order_varies:
        labels["order"] = "batches as they get ready, so another order each time"
    if settings.jitter_ms:
        late = f"each up to {settings.jitter_ms} ms late, which stands for uneven reads"
        labels["samples"] = late
    return labels


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


# --- the data ---------------------------------------------------------------------------------


def source_folder(settings: Settings) -> Path:
    """Return the folder that holds the data as settings want it stored.

    It is the data itself, or a pack beside it: `data/photos.packs/lmdb-pixels-256`.
    """
    data = data_folder(settings.data)
    as_it_is = settings.packing == "folder" and settings.storage_format == "jpeg"
    if as_it_is or pack_format(data) is not None:
        return data
    words = [settings.packing]
    if settings.storage_format != "jpeg":
        words += [settings.storage_format, str(settings.input_px)]
    if settings.storage_format == "sample":
        words += [settings.preprocessor, str(settings.seed)]
    return data.with_name(f"{data.name}.packs") / "-".join(words)


def original(settings: Settings) -> Settings:
    """Return the settings that read the data where it lies and as it is."""
    if source_folder(settings) == data_folder(settings.data):
        return replace(settings, storage="here")
    return replace(settings, storage="here", packing="folder", storage_format="jpeg")


@functools.lru_cache(maxsize=8)
def open_reader(packing: str, directory: Path) -> Reader:
    """Open a data set once per process; the trial server's forks inherit it."""
    return pick(PACKINGS, packing, "packing").open(directory)


def open_data(settings: Settings, cancel: threading.Event | None = None) -> Reader:
    """Open the data that settings name, where it lies and as it is.

    Data at a URL is copied to this machine first, unless that was done before.

    Args:
        settings: `data` counts, and how it is stored.
        cancel: set by another thread to stop copying.

    Raises:
        Cancelled: `cancel` was set.
        ValueError: it is not there, is not a data set, or holds something else.
        OSError: it is at a URL that cannot be read.
        Skip: it is stored in a way that this machine cannot read.
    """
    return open_reader(original(settings).packing, download(settings.data, cancel=cancel))


def reopen_data(settings: Settings, cancel: threading.Event | None = None) -> Reader:
    """Open the data as it is now; as `open_data`.

    A notebook's process lives long, and its data may have changed since it was opened.
    """
    open_reader.cache_clear()
    return open_data(settings, cancel)
