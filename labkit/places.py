"""Places: where data lies: a folder of this machine, or a URL.

    "data/photos"                → Path        "https://host/photos"  → the same text
    "file:///srv/photos"         → Path        "s3://bucket/photos"   → the same text

Main trap: a URL that goes through `Path` loses a slash and names nothing any more.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

Place = Path | str
"""A folder, or the URL of one."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")  # one letter is a drive of Windows


def is_url(data: object) -> bool:
    """Say whether data is named by a URL."""
    return isinstance(data, str) and _URL.match(data) is not None


def place(data: str) -> Place:
    """Say where data lies: a folder, with ~ replaced; or a URL, which stays as it is.

    A file:// URL is a folder of this machine like any other.
    """
    if not is_url(data):
        return Path(data).expanduser()
    parts = urlsplit(data)
    if parts.scheme.lower() == "file":
        return Path(url2pathname(parts.path))
    return data.rstrip("/") if parts.path.strip("/") or parts.netloc else data


def last_name(where: Place) -> str:
    """Give the last part of a place: what the data set is called."""
    if isinstance(where, Path):
        return where.name
    parts = urlsplit(where)
    return unquote(parts.path.rstrip("/").rpartition("/")[2]) or parts.netloc.replace(":", "-")
