"""Fetching: files of a folder that is only known by its URL, whole or not at all.

    root URL + name ─▶ fsspec (http, s3, memory, …) ─▶ the file's bytes
                         └ time-out, reset, 5xx, short body: again after 0.2, 0.4, 0.8 s

Main trap: half an image decodes to half a picture without an error.  So a body that is shorter
than its own header or the data's manifest says is no answer, and a failure in the end names the
URL, what happened and how often it was tried.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import quote

from labkit.parts.packing import connections
from labkit.parts.packing.connections import REMOTE_EXTRA, WEB, FileSystem, protocol, using
from labkit.trial import Cancelled, Skip

T = TypeVar("T")
TRIES = 4
FIRST_PAUSE_S = 0.2
"""Before the second try; each further pause is twice as long."""
# Statuses below 500 that say "later": too many requests, and a request that came too slowly.
LATER = (408, 429)
# What tells one version of a file from another, as the file systems call it.
VERSION_KEYS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified")


class RemoteFailed(RuntimeError):  # noqa: N818 - what failed is the way there, not the program
    """A file could not be had in any of the tries: this says nothing of the file itself."""


class ShortBody(OSError):  # noqa: N818 - a kind of answer
    """An answer ended before its file did."""


def check_can_fetch(root: str) -> None:
    """Refuse a URL that cannot be read here, before anything is asked of anybody.

    Raises:
        ValueError: no file system has this protocol; the message lists the usual ones.
        Skip: its library is not installed; the text names what to install.
    """
    _tenacity()
    if protocol(root) in WEB:
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise Skip(f"{root} needs aiohttp, not installed; {REMOTE_EXTRA}") from None
    connections.class_of(root)


def url_of(root: str, name: str) -> str:
    """Give a file's whole URL; a name may lead up with ".."."""
    root, parts = root.rstrip("/"), list(PurePosixPath(name).parts)
    while parts[:1] == [".."]:
        root, parts = root.rpartition("/")[0], parts[1:]
    name = "/".join(parts)
    if protocol(root) in WEB:  # names may hold what a URL has other uses for
        name = quote(os.fsencode(name))
    return f"{root}/{name}"


def _path(opened: FileSystem, root: str, name: str) -> str:
    return opened.system._strip_protocol(url_of(root, name))


def read(root: str, name: str, size_bytes: int = 0) -> bytes:
    """Read one file whole.

    Args:
        root: the folder's URL.
        name: the file's path below it.
        size_bytes: what it must have; 0: unknown.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is refused.
        ValueError: it has another size.
        RemoteFailed: the way there failed in every try.
        Skip: a library is not installed.
    """

    def once() -> bytes:
        with using(root) as opened:
            content = opened.system.cat_file(_path(opened, root, name))
        _check_size(len(content), size_bytes)
        return content

    return _tried(url_of(root, name), once)


def save(
    root: str, name: str, to: Path, size_bytes: int = 0, cancel: threading.Event | None = None
) -> None:
    """Write one file to disk in pieces; arguments and errors as `read`'s.

    Raises:
        Cancelled: `cancel` was set between two tries.
    """

    def once() -> None:
        with using(root) as opened:
            opened.system.get_file(_path(opened, root, name), str(to))
        _check_size(to.stat().st_size, size_bytes)

    _tried(url_of(root, name), once, cancel)


def is_there(root: str, name: str) -> bool:
    """Say whether a folder that can be listed has a file."""

    def once() -> bool:
        with using(root) as opened:
            return bool(opened.system.isfile(_path(opened, root, name)))

    return _tried(url_of(root, name), once)


def listing(root: str) -> dict[str, tuple[int, str]]:
    """List a folder with all below it, where the file system can.

    Returns:
        Path below the folder -> bytes (0: unknown), and what names this version of the file.
    """

    def once() -> dict[str, Mapping]:
        with using(root) as opened:
            top = opened.system._strip_protocol(root).rstrip("/") + "/"
            found = opened.system.find(top, detail=True)
        return {path.removeprefix(top): info for path, info in found.items()}

    return {
        name: (int(info.get("size") or 0), str([info.get(key) for key in VERSION_KEYS]))
        for name, info in _tried(root, once).items()
    }


def _check_size(got_bytes: int, size_bytes: int) -> None:
    if size_bytes and got_bytes != size_bytes:
        raise ShortBody(f"must have {size_bytes} bytes, got {got_bytes}")


def _tenacity():
    try:
        import tenacity
    except ImportError:
        raise Skip(f"data at a URL needs tenacity, not installed; {REMOTE_EXTRA}") from None
    return tenacity


def _tried(url: str, once: Callable[[], T], cancel: threading.Event | None = None) -> T:
    """Call something again while what fails may pass; say in the end what failed."""
    tenacity = _tenacity()

    def one_try() -> T:
        if cancel is not None and cancel.is_set():
            raise Cancelled
        return once()

    tries = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(TRIES),
        wait=tenacity.wait_exponential(multiplier=FIRST_PAUSE_S),
        retry=tenacity.retry_if_exception(_may_pass),
        sleep=time.sleep if cancel is None else cancel.wait,
        reraise=True,
    )
    try:
        return tries(one_try)
    except (Skip, Cancelled):
        raise
    except ShortBody as error:
        raise ValueError(f"{url} {error}, in each of {TRIES} tries") from error
    except Exception as error:
        if not _may_pass(error):
            raise _refused(url, error) from error
        raise RemoteFailed(
            f"{url} must be readable, got {_words(error)} in the last of {TRIES} tries; "
            "look whether its server and the network are up, and run again"
        ) from error


def _may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later."""
    status = getattr(error, "status", None)
    if isinstance(status, int) and status >= 400:
        return status >= 500 or status in LATER
    if isinstance(error, (TimeoutError, ConnectionError, ShortBody)):
        return True
    # A body that ended early, a connection that did: aiohttp's own errors without a status.
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"ClientPayloadError", "ClientConnectionError"})


def _refused(url: str, error: Exception) -> Exception:
    """Word an error that no further try would mend."""
    if isinstance(error, (Skip, Cancelled, ValueError)):
        return error
    status = getattr(error, "status", None)
    if isinstance(error, FileNotFoundError) or status == 410:
        return FileNotFoundError(f"{url} must be there, got {_words(error)}")
    if isinstance(error, PermissionError) or status in (401, 403):
        return PermissionError(f"{url} must be readable by you, got {_words(error)}")
    return OSError(f"{url} must be readable, got {_words(error)}")


def _words(error: BaseException) -> str:
    status = getattr(error, "status", None)
    if isinstance(status, int) and status >= 400:
        return f"status {status} ({getattr(error, 'message', '') or 'no reason given'})"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, TimeoutError):
        return f"no answer within {connections.TIME_OUT_S:g} s"
    if type(error).__name__ == "ClientPayloadError":
        return "half a body: the connection ended before the answer did"
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no reason given'}"
