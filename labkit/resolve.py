"""Tables: every part by name, a person's own among them, and what fits together.

    setting -> table of parts -> `check(settings)` before anything is started

A person adds a part with one line (`lab.DECODERS["mine"] = my_decode`); it travels
to the trial and its loader workers by cloudpickle (`own_parts`, `register`).
Main trap: a part that holds an open file or a lock cannot travel; it is refused
by name before a run starts.
"""

from __future__ import annotations

import functools
import pickle
from dataclasses import replace
from pathlib import Path

from labkit.contracts import BATCHES, Skip
from labkit.parts.decoding import DECODERS, SCALED
from labkit.parts.devices import DEVICES, PROFILES
from labkit.parts.loading import LOADERS, OUTSIDE
from labkit.parts.packing import JPEG, PACKINGS, PIXELS, RESIZED, SAMPLE, Reader, pack_format
from labkit.parts.packing.remote import local_folder, place
from labkit.parts.prefetching import NEEDS_STREAMS, PREFETCHERS
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.parts.storage import STORAGES, Storage, check_name, locate
from labkit.parts.training import LOOPS, LOSSES, STEPS, VECTORIZED
from labkit.parts.training.checkpoint import SAVERS, check_folder_name
from labkit.parts.training.metrics import METRICS
from labkit.parts.training.reporting import PROGRESS, check_sink
from labkit.settings import Settings, pick

# setting -> its table: the choices of the form and of the command line, too.
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
_BUILT_IN = {name: dict(table) for name, table in TABLES.items()}


def own_parts() -> bytes:
    """Pack the table entries that a person added or replaced, for another process.

    Returns:
        What `register` takes; empty where nothing was added.

    Raises:
        ValueError: an entry holds something that cannot be sent, such as an open file.
    """
    own = {}
    for setting, table in TABLES.items():
        for name, part in table.items():
            if _BUILT_IN[setting].get(name) is not part:
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
    """Enter a person's own parts into the tables of this process.

    Args:
        packed: from `own_parts`; never from a file.
    """
    if packed:
        for (setting, name), part in pickle.loads(packed).items():
            TABLES[setting][name] = part


def real_step(settings: Settings) -> str:
    """Name the step that the preprocessor makes batches for, on a device that is not emulated."""
    preprocessor = PREPROCESSORS.get(settings.preprocessor)
    return preprocessor.batch if preprocessor else "detector"


def check_names(settings: Settings) -> None:
    """Refuse settings that name a part that no table has.

    Raises:
        ValueError: the message lists the choices.
    """
    for setting, table in TABLES.items():
        value = getattr(settings, setting)
        if setting == "storage":  # also a folder, by its path or its name in labkit.toml
            check_name(value)
        elif value is not None:
            pick(table, value, setting)
    check_folder_name(settings.checkpoint_to)
    check_sink(settings.report_to)


def check(settings: Settings) -> None:
    """Refuse settings that name unknown parts or parts that do not fit together.

    Raises:
        ValueError: with the choices or the next step.
        Skip: the parts exist but cannot run on the chosen device.
    """
    check_names(settings)
    _check_remote(settings, locate(settings.storage, place(settings.data)))
    can_store = PACKINGS[settings.packing].stores
    if settings.stored not in can_store:
        raise ValueError(
            f"stored must be {' or '.join(can_store)} for the packing {settings.packing}, "
            f"got {settings.stored!r}"
        )
    if settings.decoder in SCALED:
        _check_scaled(settings)
    # A step of one's own is taken at its word; the built-in real ones are named as their batch.
    real = settings.step in BATCHES
    if settings.device == "emulated" and real:
        raise ValueError(
            f"step must be timed on the emulated device, got {settings.step!r}; "
            "choose device cpu or cuda for a real step"
        )
    if settings.device != "emulated" and settings.step == "timed":
        raise ValueError(
            f"step must be detector or classifier on device {settings.device}, got 'timed'"
        )
    if real and PREPROCESSORS[settings.preprocessor].batch != settings.step:
        fitting = [name for name, part in PREPROCESSORS.items() if part.batch == settings.step]
        raise ValueError(
            f"preprocessor must be one of {', '.join(fitting)} for the step {settings.step}, "
            f"got {settings.preprocessor!r}"
        )
    _check_training(settings)
    if settings.prefetcher in NEEDS_STREAMS and settings.device == "cpu":
        raise Skip(
            f"{settings.prefetcher} copies on a side stream, which the cpu device does not have; "
            "choose device cuda or emulated"
        )


def _check_scaled(settings: Settings) -> None:
    """Refuse a scaled decoder where its pixels would be no use, or not the decoder's."""
    decoder = settings.decoder
    # The others place an image by its size and its boxes, which count in its own pixels.
    fitting = [name for name, part in PREPROCESSORS.items() if part.batch == "classifier"]
    if settings.preprocessor not in fitting:
        raise ValueError(
            f"preprocessor must be one of {', '.join(fitting)} for the decoder {decoder}, whose "
            f"images no longer fit their boxes, got {settings.preprocessor!r}"
        )
    if settings.stored != "jpeg":
        raise ValueError(
            f"stored must be 'jpeg' for the decoder {decoder}, got {settings.stored!r}: that is "
            "already scaled"
        )
    if settings.loader in OUTSIDE:
        raise ValueError(
            f"decoder must be another one for the loader {settings.loader}, which decodes by "
            f"itself and in full, got {decoder!r}"
        )


def _check_training(settings: Settings) -> None:
    """Refuse a loss without boxes, and leave out what an emulated device cannot compute."""
    if settings.loss != VECTORIZED and settings.step != "nothing":
        makes = PREPROCESSORS[settings.preprocessor].batch
        if makes != "detector":
            raise ValueError(
                f"loss must be {VECTORIZED} for the preprocessor {settings.preprocessor}, whose "
                f"batches have no boxes, got {settings.loss!r}; choose a detector's preprocessor, "
                "such as on_device"
            )
        if settings.step == "timed" and settings.loss not in LOOPS:
            raise ValueError(
                f"loss must be {', '.join((VECTORIZED, *LOOPS))} on the emulated device, got "
                f"{settings.loss!r}; choose device cpu or cuda for one of your own"
            )
    if settings.metrics != "none" and PREPROCESSORS[settings.preprocessor].batch != "classifier":
        fitting = [name for name, part in PREPROCESSORS.items() if part.batch == "classifier"]
        raise ValueError(
            f"metrics must be none for the preprocessor {settings.preprocessor}, whose batches "
            f"have no labels, got {settings.metrics!r}; choose preprocessor {' or '.join(fitting)}"
        )
    other = {"precision": "fp32", "memory_format": "contiguous"}
    for name, plain in other.items():
        value = getattr(settings, name)
        if settings.device == "emulated" and value != plain:
            raise Skip(
                f"{name} must be {plain} on the emulated device, which computes nothing, got "
                f"{value!r}; choose device cpu or cuda"
            )


def _check_remote(settings: Settings, storage: Storage) -> None:
    """Refuse what cannot be where every image comes over a network."""
    if not storage.is_remote:
        return
    if settings.cache != "as found":
        raise Skip(
            f"cache must be 'as found' for images that come over a network, got "
            f"{settings.cache!r}: none of them is in this machine's page cache, so neither cold "
            "nor warm can be produced; set cache='as found', or a storage to copy them to"
        )
    if settings.packing != "folder":
        raise Skip(
            f"packing must be 'folder' for images that come over a network one by one, got "
            f"{settings.packing!r}; set a storage to copy the pack to"
        )


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
    """Say whether settings read the data that they name, and not a pack of it."""
    as_it_is = settings.packing == "folder" and settings.stored == JPEG
    return as_it_is or pack_format(place(settings.data)) is not None


def original(settings: Settings) -> Settings:
    """Return the settings that read the data where it lies and as it is."""
    if is_original(settings):
        return replace(settings, storage="here")
    return replace(settings, storage="here", packing="folder", stored=JPEG)


def label_stored(settings: Settings) -> dict[str, str]:
    """Label a row whose images were changed before they were stored; nothing for the originals."""
    words = {
        RESIZED: f"JPEGs scaled to {settings.input_px} px beforehand, so other pixels",
        PIXELS: f"pixels scaled to {settings.input_px} px beforehand, so others",
        SAMPLE: "samples finished beforehand, random draws and all",
    }
    return {"images": words[settings.stored]} if settings.stored in words else {}
