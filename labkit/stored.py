"""Stored: which folder holds the data as settings want it, and what opens it.

    settings ─ stored_folder ─▶ the data itself, or a pack beside it ─▶ on its medium ─▶ reader

A pack need not be there yet; `packs` makes it, and a run asks for that first.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from labkit.parts.packing import JPEG, PACKINGS, PIXELS, RESIZED, SAMPLE, Reader, pack_format
from labkit.parts.storage import Storage, locate
from labkit.places import local_folder, place
from labkit.settings import Settings, pick


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
