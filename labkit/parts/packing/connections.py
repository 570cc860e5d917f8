"""Connections: the fsspec file systems that this process has open, one for each folder.

    using(root) ─▶ opened here? ─┬─ yes: that one
                                 └─ no: a file system, and a thread with its event loop

Main trap: neither connections nor the thread may cross a fork: the thread is not there in the
child, and both processes would read from one socket.  So every process opens its own; before a
fork what is idle is closed, and a child forgets what it was left.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from labkit.trial import Skip

REMOTE_EXTRA = "pip install 'labkit[remote]'"
TIME_OUT_S = 10.0
"""Without a byte, over http; other file systems have time-outs of their own."""
WEB = ("http", "https")


@dataclass(eq=False)
class FileSystem:
    """An fsspec file system of this process, and the thread of its event loop if it has one."""

    system: object
    """What fsspec opened."""
    loop: asyncio.AbstractEventLoop | None = None
    thread: threading.Thread | None = None
    users: int = 0

    def close(self) -> None:
        """Close the connections, then end the thread."""
        if self.loop is None:
            return
        session = getattr(self.system, "_session", None)
        if hasattr(session, "close"):
            with contextlib.suppress(Exception):  # it is closed or it is not: nobody reads on
                asyncio.run_coroutine_threadsafe(session.close(), self.loop).result(1.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@dataclass
class _OfThisProcess:
    """What this process has opened."""

    opened: dict[str, FileSystem] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    # Never used or closed here: closing would reach into the parent's event loop.
    left_by_parent: list[dict] = field(default_factory=list)


_mine = _OfThisProcess()


def close_idle() -> None:
    """Close every file system that nobody reads from; the next read opens it again."""
    with _mine.lock:
        _close_idle()


def _close_idle() -> None:
    for root in [root for root, opened in _mine.opened.items() if not opened.users]:
        _mine.opened.pop(root).close()


def _before_fork() -> None:
    _mine.lock.acquire()
    _close_idle()


def _after_fork_in_child() -> None:
    _mine.left_by_parent.append(_mine.opened)
    _mine.opened, _mine.lock = {}, threading.Lock()


atexit.register(close_idle)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _mine.lock.release(),
        after_in_child=_after_fork_in_child,
    )


@contextlib.contextmanager
def using(root: str) -> Iterator[FileSystem]:
    """Have the file system of a folder's URL open, for this process alone.

    Raises:
        ValueError: no file system has its protocol.
        Skip: a library is not installed.
    """
    with _mine.lock:
        opened = _mine.opened.get(root)
        if opened is None:
            opened = _mine.opened[root] = _open(root)
        opened.users += 1
    try:
        yield opened
    finally:
        with _mine.lock:
            opened.users -= 1


def _open(root: str) -> FileSystem:
    import fsspec

    kind = class_of(root)
    options: dict[str, object] = {"skip_instance_cache": True}
    if not kind.async_impl:
        return FileSystem(fsspec.url_to_fs(root, **options)[0])
    # A loop of its own, because fsspec's one for all could not be closed before a fork.
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="labkit remote", daemon=True)
    if protocol(root) in WEB:
        import aiohttp

        patience = aiohttp.ClientTimeout(total=None, sock_connect=TIME_OUT_S, sock_read=TIME_OUT_S)
        options["client_kwargs"] = {"timeout": patience}
    thread.start()
    try:
        system, _ = fsspec.url_to_fs(root, loop=loop, **options)
    except BaseException:
        FileSystem(None, loop, thread).close()
        raise
    return FileSystem(system, loop, thread)


def protocol(root: str) -> str:
    """Give what stands before "://" in a URL."""
    return root.partition("://")[0].lower()


def class_of(root: str) -> type:
    """Find the file system for a URL; errors as `using`'s."""
    import fsspec

    name = protocol(root)
    try:
        return fsspec.get_filesystem_class(name)
    except ImportError as error:
        raise Skip(f"{name}:// needs a library that is not installed: {error}") from error
    except ValueError:
        known = ", ".join(sorted(fsspec.available_protocols()))
        raise ValueError(
            f"data must be a folder or a URL that fsspec knows ({known}), got {root!r}"
        ) from None
