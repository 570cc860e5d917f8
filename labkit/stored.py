"""Stored: which folder, or URL, holds the data as settings want it, and what opens it.

    settings ─ stored_folder ─▶ the data itself, or a pack beside it ─▶ on its medium ─▶ reader

Main trap: a pack need not be there yet; `packs` makes it, and a run asks for that first.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from labkit.parts.packing import (
    JPEG,
    PACKINGS,
    PIXELS,
    RESIZED,
    SAMPLE,
    Reader,
    is_pack,
)
from labkit.parts.storage import (
    Storage,
    locate,
)
from labkit.places import Place, is_url, place
from labkit.settings import Settings, pick


@functools.lru_cache(maxsize=8)
def open_reader(packing: str, directory: Place) -> Reader:
    """Open a data set once per process; the trial server's forks inherit it."""
    return PACKINGS[packing].open(directory)


def open_original(settings: Settings) -> Reader:
    """Open the data where it lies and as it is; errors as `open_source`'s."""
    there = original(settings)
    return open_reader(there.packing, place(there.data))


def open_source(settings: Settings) -> Reader:
    """Open the data that settings name, where they say it lies, stored as they say.

    Raises:
        ValueError: it is not there, is not a data set, or holds something else.
        Skip: it is stored in a way that this machine cannot read.
    """
    return open_reader(settings.packing, locate_data(settings).directory)


def locate_data(settings: Settings) -> Storage:
    """Find the place that settings name for the data, stored as they say.

    Raises:
        ValueError: there is no storage of that name.
        Skip: this machine does not have it.
    """
    return locate(settings.storage, stored_folder(settings))


def stored_folder(settings: Settings) -> Place:
    """Name the folder, or the URL of one, that holds the data as settings want it stored.

    It is the data itself, or a pack beside it: `data/photos.packs/lmdb-pixels-256`.

    Raises:
        ValueError: it is to be packed, and lies at a URL.
    """
    data = place(settings.data)
    if is_original(settings):
        return data
    if is_url(data):
        raise ValueError(
            f"packing must be 'folder' and stored 'jpeg' for data at a URL, got "
            f"{settings.packing!r} and {settings.stored!r}; copy it to a folder of this machine, "
            "and name that as data"
        )
    # Variants of a format read the same packs.
    words = [pick(PACKINGS, settings.packing, "packing").packed_as or settings.packing]
    if settings.stored != JPEG:
        words += [settings.stored, str(settings.input_px)]
    if settings.stored == SAMPLE:
        words += [settings.preprocessor, str(settings.seed)]
    return data.with_name(f"{data.name}.packs") / "-".join(words)


def is_original(settings: Settings) -> bool:
    """Say whether settings read the data that they name, and not a pack of it."""
    as_it_is = settings.packing == "folder" and settings.stored == JPEG
    data = place(settings.data)
    return as_it_is or (not is_url(data) and is_pack(data))


def original(settings: Settings) -> Settings:
    """Give the settings that read the data where it lies and as it is."""
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
