"""The file of a checkpoint: the new one whole and on the medium, or the previous one whole.

    torch.save ─▶ .<name>.part ─ fsync ─ replace ─▶ <name> ─▶ fsync of the folder

Whoever writes holds a lock on the unfinished file, and the kernel gives it up when the process
ends, however that happens: an unfinished file that nobody holds is a killed save's.  Main trap:
replaced without fsync, a file can be there after a power failure and hold nothing but zeros.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from labkit.files import locked, part_of, whole

# Appended to a file that could not be written: more than a full disk still takes.
PROBE_BYTES = 1 << 20


def write(path: Path, state: dict) -> int:
    """Write a checkpoint, or replace it; returns once it is on the medium.

    torch gets the file's name, not an open file: then it writes tensors without the GIL, which
    Python's files take for each of some 2,000 pieces.

    Args:
        path: the file; its folder is there.
        state: nested dicts and lists of tensors and numbers.

    Returns:
        Its bytes.

    Raises:
        OSError: it cannot be written; the previous file is whole, and no part of this one stays.
    """
    with _held(part_of(path)), whole(path) as part:
        _save(state, part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
            size_bytes = file.seek(0, os.SEEK_END)
    if os.name == "posix":  # elsewhere folders cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return size_bytes


def remove_left(path: Path) -> None:
    """Remove what a killed save left, but not what a process that lives is writing."""
    part = part_of(path)
    with contextlib.suppress(OSError), locked(part) as lock:
        # Without locks nobody knows; but Windows removes no file that is open.
        if os.name != "posix" or (lock is not None and _is_at(part, lock)):
            part.unlink()


def _save(state: dict, part: Path) -> None:
    import torch

    try:
        torch.save(state, part)
    except RuntimeError as error:  # "unexpected pos", "iostream error": any reason, or none
        # The frames hold the file open; as long as they live, its room is not free.
        failure = error.with_traceback(None)
        failure.__context__ = None
    else:
        return
    with part.open("ab") as file:  # the kernel says why
        file.write(bytes(PROBE_BYTES))
    raise failure


@contextlib.contextmanager
def _held(part: Path) -> Iterator[None]:
    """Hold an unfinished file, made if missing, against all others that would write or remove it.

    Where a medium has no locks, writing goes on without.
    """
    while True:
        with locked(part, wait=True, make=True) as lock:
            # Whoever held it meanwhile has put it in place or removed it.
            if lock is None or _is_at(part, lock):
                yield
                return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
