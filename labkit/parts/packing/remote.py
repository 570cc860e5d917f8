"""Places: where data lies: in a folder of this machine; data at a URL is copied to one, once.

"data/photos"                                ─▶ data/photos
"https://host/photos", "s3://bucket/photos"  ─▶ ~/.cache/labkit/photos-1f2e3d4c
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from labkit.files import whole
from labkit.progress import bar

CONNECTIONS = 8
WHOLE = ".copied-from-url"  # in a copy that is whole
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")  # one letter is a drive of Windows


def is_url(data: str) -> bool:
    """Say whether data is named by a URL, other than that of a folder of this machine."""
    return _URL.match(data) is not None and not data.lower().startswith("file://")


def place(data: str) -> Path:
    """Return the folder that holds the data, or will hold the copy of data at a URL."""
    if data.lower().startswith("file://"):
        return Path(url2pathname(urlsplit(data).path))
    if not is_url(data):
        return Path(data).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(data.rstrip("/").encode()).hexdigest()[:8]
    return cache / "labkit" / f"{_last_name(data)}-{digest}"


def _last_name(url: str) -> str:
    """Return the last part of a URL: what the data set is called."""
    parts = urlsplit(url)
    return unquote(parts.path.rstrip("/").rpartition("/")[2]) or parts.netloc.replace(":", "-")


def local_folder(data: str) -> Path:
    """Return the folder that holds the data, after copying it there from a URL; see `download`."""
    return download(data) if is_url(data) else place(data)


def download(url: str, *, progress: bool = True) -> Path:
    """Copy a data set from any URL that fsspec knows, unless that was done before.

    What a stopped call has copied is kept.  To copy data that has changed, remove the folder.

    Args:
        url: of the folder.
        progress: show a bar.

    Returns:
        The folder of the copy.

    Raises:
        ValueError: no file system has this protocol, or there is no file.
        ImportError: a library is not installed.
        OSError: the data cannot be read, or the copy cannot be written.
    """
    folder = place(url)
    if (folder / WHOLE).is_file():
        return folder
    import fsspec

    try:
        system, root = fsspec.url_to_fs(url.rstrip("/"))
    except ImportError as error:
        raise ImportError(f"{error}; for https: pip install 'labkit[remote]'") from error
    except ValueError as error:
        raise ValueError(
            f"data must be a folder or a URL that fsspec knows, got {url!r}"
        ) from error

    def fetch(name: str, path: str, size_bytes: int | None) -> None:
        to = folder / name
        if to.is_file() and size_bytes in (None, to.stat().st_size):
            return
        to.parent.mkdir(parents=True, exist_ok=True)
        with whole(to) as part:
            system.get_file(path, str(part))
            if size_bytes not in (None, part.stat().st_size):
                raise OSError(f"{path} must have {size_bytes} bytes, got {part.stat().st_size}")

    try:
        files = _files(system, root, is_http=url.lower().startswith("http"))
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            fetched = pool.map(fetch, *zip(*files))
            for _ in bar(
                fetched, desc=f"copying to {folder}", total=len(files), disable=not progress
            ):
                pass
        (folder / WHOLE).write_text(url)
    except ValueError:
        raise
    except Exception as error:  # every file system has errors of its own
        raise OSError(
            f"data must be readable at {url}, got {type(error).__name__}: {error}; "
            "run again: copying goes on where it stopped"
        ) from error
    return folder


def _files(system: object, root: str, *, is_http: bool) -> list[tuple[str, str, int | None]]:
    """List (name below the folder, path for fsspec, bytes if known) of what the data consists of.

    labkit's own manifest lists it; without one, the file system does.
    """
    try:
        manifest = json.loads(system.cat_file(f"{root}/manifest.json"))
    except FileNotFoundError:
        found = system.find(root, detail=True)
        files = [(path.removeprefix(f"{root}/"), path, found[path].get("size")) for path in found]
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
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"data must be files below {root}, got {name!r}")
    return files
