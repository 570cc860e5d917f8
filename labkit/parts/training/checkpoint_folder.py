"""Where checkpoints go: a medium of this machine by its name, or a folder by its path.

Main trap: a stand-in for a slow disk slows reads down and nothing else, so none can be named here.
"""

from __future__ import annotations

import os
from pathlib import Path

from labkit import media, shared_memory
from labkit.settings import pick
from labkit.trial import Skip


def folder_of(name: str) -> Path:
    """Find a folder for checkpoints.

    Args:
        name: here (the working directory), tmpfs, a name in labkit.toml, or a folder's path.

    Raises:
        ValueError: it is none of these; the message lists the choices.
        Skip: the folder is not there.
    """
    check_name(name)
    folder = _media().get(name) or Path(name).expanduser()
    if not folder.is_dir():
        raise Skip(
            f"checkpoint_to must be an existing folder, got {folder}; create it, mount the disk "
            "or correct labkit.toml"
        )
    return folder


def check_name(name: str) -> None:
    """Refuse what is neither a medium nor a folder's path.

    Raises:
        ValueError: the message lists the choices.
    """
    if "/" not in name and os.sep not in name:
        pick({**_media(), "a folder's path": None}, name, "checkpoint_to")


def _media() -> dict[str, Path]:
    named = {name: folder for name, folder in media.media().items() if name != "data"}
    return {"here": Path.cwd(), "tmpfs": shared_memory.FOLDER, **named}
