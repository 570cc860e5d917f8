"""How the images are stored: one file each, or packed together.

    samples → write → files on a medium → open(path) → reader → (content, boxes)

A packing is a folder of files or a `Format` of a pack, and one line in `PACKINGS`. Readers are
pickled for loader workers, so they hold no open file and no Python object per image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from labkit.contracts import Chosen, Reader
from labkit.parts.packing.folder import open_folder, write_folder
from labkit.parts.packing.formats import FORMATS
from labkit.parts.packing.packs import open_pack, write_pack
from labkit.settings import field_kinds


@dataclass(frozen=True, kw_only=True)
class Packing:
    """One way to store a dataset."""

    open: Callable[[Path], Reader]
    """Opens a dataset for reading, and imports the library that this takes; raises Skip where it is
    not installed."""
    write: Callable[..., None]
    """(samples, folder, *, images, about) writes (name, content, boxes) triples into an empty
    folder; see `packs.write_pack` for the arguments."""
    stores: tuple[str, ...] = field_kinds()["storage_format"][1]
    """What it can store of an image; see `packs`."""

    def why_not(self, chosen: Chosen) -> str:
        """Refuse what the packing cannot store; see `contracts.Part.why_not`."""
        settings = chosen.settings
        if settings.storage_format not in self.stores:
            raise ValueError(
                f"storage_format must be {' or '.join(self.stores)} for the packing "
                f"{settings.packing}, got {settings.storage_format!r}"
            )
        return ""


PACKINGS: dict[str, Packing] = {
    "folder": Packing(open=open_folder, write=write_folder, stores=("jpeg", "resized")),
    **{
        format.name: Packing(open=partial(open_pack, format), write=partial(write_pack, format))
        for format in FORMATS
    },
}
