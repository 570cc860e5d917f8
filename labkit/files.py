"""Write files whole, and show the progress of work on many of them.

    content ─▶ .<name>.part ─ replace ─▶ <name>

A killed process or a full disk leaves half a file, which must never have the final name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO


def part_of(path: Path) -> Path:
    """Name the file that becomes `path` once it is complete; in the same folder."""
    return path.with_name(f".{path.name}.part")


def unused(path: Path) -> Path:
    """Return the path, or the first of path-2, path-3 … at which nothing lies."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def is_private(status: os.stat_result) -> bool:
    """Return whether this user owns a folder, no link, that nobody else can write to."""
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Have a file written, or replaced, in one step.

    Yields:
        The name to write it under; it gets its own when the context ends without an error.
    """
    part = part_of(path)
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)  # it takes room that is wanted
        raise


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Have a folder filled that must not be there yet, and named when it is whole.

    Yields:
        The folder to fill; it gets its name when the context ends without an error, else it goes.
    """
    part = part_of(path)
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    try:
        part.mkdir(parents=True)
        yield part
        part.rename(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def write_whole(path: Path, content: bytes | str) -> Path:
    """Write a file, or replace it, in one step.

    Args:
        path: the file.
        content: all of it, a text as UTF-8; what UTF-8 cannot hold, as in the name of a file, is
            written as an escape that JSON and Python read back.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written; an older file of this name is then still there.
    """
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    with whole(path) as part:
        part.write_bytes(content)
    return path


@contextlib.contextmanager
def alone(
    folder: Path, lock_file: Path, say: Callable[[str], None], check: Callable[[], None]
) -> Iterator[None]:
    """Wait until no other process makes the same folder; a kill ends the lock.

    Args:
        folder: what is made, for the message.
        lock_file: is removed in the end.
        say: takes the line that another process is waited for.
        check: called while it is; raises to stop.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another run is making {folder}: waiting until it has ended")
        lock.acquire(poll_interval=0.2, cancel_check=check)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file
            lock_file.unlink()
        lock.release()


def progress_stream() -> TextIO:
    """Return the stream for progress: stdout in a notebook, which shows stderr as errors."""
    return sys.stdout if "ipykernel.kernelapp" in sys.modules else sys.stderr


def bar(items: Iterable | None = None, **options: Any) -> Any:
    """Return a tqdm bar that fits a terminal, a notebook or a log.

    Args:
        items: what to iterate over; unset: advance it by hand.
        **options: tqdm's own.
    """
    from tqdm import tqdm

    file = progress_stream()
    # Notebooks and logs have no terminal's width.
    width: dict[str, Any] = {"dynamic_ncols": True} if file.isatty() else {"ncols": 100}
    # Drawing more often than twice a second would disturb a measurement.
    return tqdm(items, file=file, mininterval=0.5, **width, **options)
