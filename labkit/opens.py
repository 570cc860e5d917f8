"""Opens: counts how often files are opened, by whatever library, through the kernel's inotify.

    watch folders → anybody opens a file in them → one event each → a count per file

Main trap: the kernel joins an event to an equal one that still waits, so a file that is opened
again and again would count once; closings are watched too, and stand in between.
Source: inotify(7).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

IN_CLOSE_NOWRITE, IN_OPEN, IN_Q_OVERFLOW, IN_ISDIR = 0x10, 0x20, 0x4000, 0x40000000
NONBLOCK = os.O_NONBLOCK if hasattr(os, "O_NONBLOCK") else 0
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
BUFFER_BYTES = 1 << 16


class Opens:
    """Context that counts the openings of some files.

    Args:
        paths: the files.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = {path.resolve() for path in paths}
        self._counts: Counter[Path] = Counter()
        self._lost = False
        self.reads = 0
        """Read calls that counting took."""

    def __enter__(self) -> Opens:
        """Start to watch; where that cannot be, `count` gives None."""
        self._folders: dict[int, Path] = {}
        self._descriptor = -1
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = libc.inotify_init1(NONBLOCK)
            add = libc.inotify_add_watch
        except (AttributeError, OSError, TypeError):  # not Linux
            return self
        for folder in {path.parent for path in self._paths}:
            watch = add(self._descriptor, os.fsencode(folder), IN_OPEN | IN_CLOSE_NOWRITE)
            self._lost |= watch < 0  # no more watches allowed
            self._folders[watch] = folder
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            self.take()
            os.close(self._descriptor)

    def take(self) -> None:
        """Take what has happened so far, before the kernel's queue is full."""
        if self._descriptor < 0:
            return
        while True:
            self.reads += 1
            try:
                events = os.read(self._descriptor, BUFFER_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(events):
                watch, mask, _, size = EVENT.unpack_from(events, at)
                name = events[at + EVENT.size : at + EVENT.size + size].rstrip(b"\0")
                at += EVENT.size + size
                self._lost |= bool(mask & IN_Q_OVERFLOW)
                if mask & IN_OPEN and not mask & IN_ISDIR and watch in self._folders:
                    self._counts[self._folders[watch] / os.fsdecode(name)] += 1

    def count(self) -> int | None:
        """Give the openings of these files; None where they could not be watched."""
        if self._descriptor < 0 or self._lost:
            return None
        return sum(self._counts[path] for path in self._paths)
