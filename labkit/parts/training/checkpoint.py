"""Checkpoints: the training state in one file, written by the loop itself or by a thread.

    sync     state ─────────── write, fsync, replace ─▶ training continues
    thread   state ─ copy ─▶ training continues; a thread writes the copy

At most one save is in progress: the next one waits for it.  The file is complete at any moment,
whatever is killed.  Importing this module does not import torch.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from labkit import units
from labkit.contracts import Skip
from labkit.files import whole
from labkit.machine import media, shared_memory
from labkit.settings import pick


class Saver:
    """Keeps the newest state in one file; writes it in the training loop."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, state: dict) -> None:
        """Save nested dicts and lists of tensors and numbers, which may change afterwards.

        Raises:
            OSError: this checkpoint, or in a thread the one before, was not written.
        """
        write(self._path, state)

    def finish(self) -> None:
        """Wait until the last state is on the disk.

        Raises:
            OSError: it was not written.
        """

    def close(self) -> None:
        """Stop the thread after what it is writing."""


class ThreadSaver(Saver):
    """Copies a state to host memory; a thread writes the copy."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._buffers: dict = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future | None = None

    def save(self, state: dict) -> None:
        """Copy a state and have it written."""
        self.finish()
        self._pending = self._thread.submit(write, self._path, snapshot(state, self._buffers))

    def finish(self) -> None:
        """Wait for the thread."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown()


CHECKPOINT_WRITERS: dict[str, Callable[[Path], Saver]] = {"sync": Saver, "thread": ThreadSaver}


def write(path: Path, state: dict) -> None:
    """Write a checkpoint, or replace it; returns once it is on the disk.

    Args:
        path: the file; its folder exists.
        state: nested dicts and lists of tensors and numbers.

    Raises:
        OSError: it cannot be written; the previous file is unchanged.
    """
    import torch

    try:
        with whole(path) as part:
            part.touch()  # torch does not say why a file cannot be opened
            # By name, torch writes tensors without the GIL; to an open Python file, with it.
            torch.save(state, part)
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        return
    except OSError as error:
        reason = error.strerror or str(error)
    except RuntimeError as error:  # torch does not say why: nearly always the disk is full
        free = units.count_bytes(shutil.disk_usage(path.parent).free)
        reason = f"{str(error).splitlines()[0]}, with {free} free"
    # Not raised in a handler: the traceback there keeps the removed file open, and its space used.
    raise OSError(
        f"checkpoint must be written to {path.parent}, got {reason}; free space there or set "
        "checkpoint_to to another folder"
    )


def snapshot(state: dict, buffers: dict) -> dict:
    """Copy a state to host memory, page-locked where it comes from a GPU.

    Args:
        state: nested dicts and lists of tensors and numbers.
        buffers: the tensors of the previous snapshot by their path, which are used again: new
            memory costs ten times as much as the copy.

    Returns:
        The copy; valid until the next one with the same buffers.
    """
    import torch

    def copied(value: object, *path: object) -> Any:
        if isinstance(value, torch.Tensor):
            buffer = buffers.get(path)
            if buffer is None or (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
                buffer = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
                buffers[path] = buffer.detach()
            return buffers[path].copy_(value.detach(), non_blocking=True)
        if isinstance(value, dict):
            same = copy.copy(value)  # a state dict also has _metadata
            same.update({key: copied(each, *path, key) for key, each in value.items()})
            return same
        if isinstance(value, list | tuple):
            return type(value)(copied(each, *path, i) for i, each in enumerate(value))
        return value

    result = copied(state)
    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
    return result


def checkpoint_folder(name: str) -> Path:
    """Return the folder for checkpoints.

    Args:
        name: here (the working directory), tmpfs, a name in labkit.toml, or a folder's path; see
            `check_folder_name`.

    Raises:
        Skip: the folder does not exist.
    """
    folder = checkpoint_folders().get(name) or Path(name).expanduser()
    if not folder.is_dir():
        raise Skip(
            f"checkpoint_to must be an existing folder, got {folder}; create it, mount the disk "
            "or correct labkit.toml"
        )
    return folder.absolute()


def check_folder_name(name: str) -> None:
    """Refuse what is neither a medium nor a folder's path.

    Raises:
        ValueError: the message lists the choices.
    """
    if "/" not in name and os.sep not in name:
        pick({**checkpoint_folders(), "a folder's path": None}, name, "checkpoint_to")


def checkpoint_folders() -> dict[str, Path]:
    """Return the folders for checkpoints that have a name."""
    # A simulated disk slows reads only, so none can be chosen here.
    named = {name: folder for name, folder in media.media().items() if name != "data"}
    return {"here": Path.cwd(), "tmpfs": shared_memory.FOLDER, **named}
