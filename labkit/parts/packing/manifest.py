"""manifest.json: sizes and hashes of a dataset's files; written last, it marks a whole dataset."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

# Format history of manifest.json
#   1  first version
SCHEMA = 1
MANIFEST, ANNOTATIONS = "manifest.json", "annotations.json"


def read_manifest(root: Path, name: str = MANIFEST) -> dict:
    """Read a folder's manifest; empty where there is none.

    Raises:
        ValueError: it is damaged, or written by a newer labkit.
    """
    path = root / name
    if not path.is_file():
        return {}
    try:
        manifest = json.loads(path.read_bytes())
        if not (isinstance(manifest, dict) and isinstance(manifest.get("schema", 0), int)):
            raise ValueError("no object, or without a schema")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{name} must be JSON, got {path} ({error}); make or download the data again"
        ) from error
    if manifest.get("schema", 0) > SCHEMA:
        raise ValueError(
            f"schema must be at most {SCHEMA}, got {manifest['schema']} in {path}; "
            "update labkit to use this data"
        )
    return manifest


def difference(path: Path, entry: dict[str, Any]) -> str:
    """Describe in one line how a file differs from its entry in the manifest; empty if it does not.

    Args:
        path: the file.
        entry: its "bytes" and "sha256"; what is not given is not compared.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes != entry.get("bytes", size_bytes):
            return f"{path} must have {entry['bytes']} bytes, got {size_bytes}"
        digest = sha256(path.read_bytes()) if "sha256" in entry else None
        if digest != entry.get("sha256"):
            return f"{path} must have SHA-256 {entry['sha256']}, got {digest}"
    except OSError as error:
        return f"{path} must be a readable file, got {error.strerror}"
    return ""


def sha256(content: bytes) -> str:
    """Return the SHA-256 of bytes, in hex."""
    return hashlib.sha256(content).hexdigest()
