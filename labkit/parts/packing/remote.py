"""Data at a URL, which is copied to a folder of this machine once.

"data/photos"                                ─▶ data/photos
"https://host/photos", "s3://bucket/photos"  ─▶ ~/.cache/labkit/photos-1f2e3d4c
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from labkit import install
from labkit.contracts import Cancelled
from labkit.files import bar, whole

WHOLE = ".copied-from-url"  # in a copy that is whole
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")  # one letter is a drive of Windows


def data_folder(data: str) -> Path:
    """Return the folder that holds the data, or will hold the copy of data at a URL."""
    if data.lower().startswith("file://"):
        return Path(url2pathname(urlsplit(data).path))
    if not _URL.match(data):
        return Path(data).expanduser()
    parts = urlsplit(data)
    names = re.split(r"[/\\]+", unquote(parts.netloc.replace(":", "-") + parts.path).rstrip("/\\"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(data.rstrip("/").encode()).hexdigest()[:8]
    return cache / "labkit" / f"{names[-1]}-{digest}"


def download(data: str, *, cancel: threading.Event | None = None, progress: bool = True) -> Path:
    """Copy data at a URL to its folder on this machine, once, and return the folder that holds it.

    What a stopped call has copied is kept, file by file. To copy data that has changed, remove the
    folder.

    Args:
        data: a folder, or the URL of one that fsspec can read.
        cancel: set by another thread to stop.
        progress: show a bar.

    Raises:
        ValueError: no file system has this protocol, or there is no file.
        ImportError: a library is not installed.
        OSError: the data cannot be read, or the copy cannot be written.
        Cancelled: `cancel` was set.
    """
    folder = data_folder(data)
    if not _URL.match(data) or data.lower().startswith("file://") or (folder / WHOLE).is_file():
        return folder
    import fsspec

    try:
        system, root = fsspec.url_to_fs(data.rstrip("/"))
    except ImportError as error:
        raise ImportError(f"{error}; for https: pip install {install.extra('remote')}") from error
    except ValueError as error:
        raise ValueError(
            f"data must be a folder or a URL that fsspec knows, got {data!r}"
        ) from error

    def check(*_: int, **__: object) -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled

    def fetch(name: str, path: str, size_bytes: int | None) -> None:
        check()
        to = folder / name
        if to.is_file() and size_bytes in (None, to.stat().st_size):
            return
        to.parent.mkdir(parents=True, exist_ok=True)
        with whole(to) as part:
            # The callback is called for every block that arrives.
            system.get_file(path, str(part), callback=fsspec.Callback(hooks={"cancel": check}))
            if size_bytes not in (None, part.stat().st_size):
                raise OSError(f"{path} must have {size_bytes} bytes, got {part.stat().st_size}")

    try:
        files = _list_files(system, root, is_http=data.lower().startswith("http"))
        with ThreadPoolExecutor(8) as pool:
            fetched = pool.map(fetch, *zip(*files))
            for _ in bar(
                fetched, desc=f"copying to {folder}", total=len(files), disable=not progress
            ):
                pass
        (folder / WHOLE).write_text(data)
    except (ValueError, Cancelled):
        raise
    except Exception as error:  # every file system has errors of its own
        raise OSError(
            f"data must be readable at {data}, got {type(error).__name__}: {error}; "
            "run again: copying goes on where it stopped"
        ) from error
    return folder


def _list_files(system: Any, root: str, *, is_http: bool) -> list[tuple[str, str, int | None]]:
    """Return (name below the folder, path for fsspec, bytes if known) of every file of the data.

    labkit's own manifest lists them; without one, the file system does.
    """
    try:
        manifest = json.loads(system.cat_file(f"{root}/manifest.json"))
    except FileNotFoundError:
        entries = system.find(root, detail=True)
        files = [
            (path.removeprefix(f"{root}/"), path, entry.get("size"))
            for path, entry in entries.items()
        ]
        if is_http:  # what was found are the links of a page, some of which sort it
            files = [(unquote(name), path, size) for name, path, size in files if "?" not in path]
    else:
        sizes = {name: entry.get("bytes") for name, entry in manifest["files"].items()}
        sizes |= {"annotations.json": None} if "annotations_sha256" in manifest else {}
        sizes["manifest.json"] = None
        files = [
            (name, f"{root}/{quote(os.fsencode(name)) if is_http else name}", size)
            for name, size in sizes.items()
        ]
    if not files:
        raise ValueError(f"data must be a folder with files or a manifest.json, got {root!r}")
    for name, _, _ in files:
        if PurePath(name).anchor or ".." in PurePath(name).parts:
            raise ValueError(f"data must be files below {root}, got {name!r}")
    return files
