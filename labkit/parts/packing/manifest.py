"""The folder that labkit writes, and the manifest that says it is whole.

    start_folder → images/*.jpg, each whole → finish_folder: annotations.json, manifest.json

Everything appears under its name only when complete and the manifest comes
last, so a stop at any moment leaves either finished data or a marked folder
that the same command goes on with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from labkit.contracts import Annotation
from labkit.files import write_whole
from labkit.jpeg import read_size_px
from labkit.parts.packing.coco import coco_json

# Format history of manifest.json
#   1  first version
SCHEMA = 1
MANIFEST, ANNOTATIONS, UNFINISHED = "manifest.json", "annotations.json", ".unfinished.json"


class WrittenImage(NamedTuple):
    """What the manifest and the annotations record about an image in images/."""

    name: str
    """Path inside images/, with forward slashes."""
    width_px: int
    height_px: int
    annotation: Annotation
    size_bytes: int
    sha256: str


def describe_image(name: str, jpeg: bytes, annotation: Annotation) -> WrittenImage:
    """Gather what `finish_folder` records about an image.

    Raises:
        ValueError: not a JPEG.
    """
    return WrittenImage(name, *read_size_px(jpeg), annotation, len(jpeg), sha256(jpeg))


def start_folder(root: Path, *, kind: str, seed: int | None) -> dict | None:
    """Make root/images/ and mark the folder unfinished until `finish_folder`.

    Args:
        root: a new or empty folder, or one of the same kind and seed.
        kind: what the images are, in words.
        seed: what they are made from, if anything.

    Returns:
        The manifest of what lies there already, or None.

    Raises:
        ValueError: the folder holds something else, or the same made with another seed.
        OSError: the folder cannot be written to.
    """
    manifest = read_manifest(root)
    before = manifest or _read_json(root / UNFINISHED)
    if before is None and root.is_dir() and any(root.iterdir()):
        raise ValueError(
            f"folder must be new or empty, got {str(root)!r} with other files in it; "
            "choose another folder"
        )
    if before is not None and before.get("kind") != kind:
        raise ValueError(
            f"folder must hold {kind}, got {before.get('kind')} in {str(root)!r}; "
            "choose another folder"
        )
    if before is not None and before.get("seed") != seed:
        raise ValueError(
            f"seed must be {before.get('seed')}, with which {str(root)!r} was made, got {seed}; "
            "choose another folder for another seed"
        )
    (root / "images").mkdir(parents=True, exist_ok=True)
    write_whole(root / UNFINISHED, json.dumps({"kind": kind, "seed": seed}).encode())
    return manifest


def finish_folder(
    root: Path,
    images: Collection[WrittenImage],
    *,
    kind: str,
    seed: int | None,
    about: Mapping[str, object] | None = None,
) -> dict:
    """Write annotations.json and, last, manifest.json; each replaces an older one in one step.

    Args:
        root: the folder that `start_folder` prepared.
        images: all that lie in images/, in the order of their ids.
        kind: as in `start_folder`.
        seed: as in `start_folder`.
        about: what else the manifest says.

    Returns:
        The manifest, without its list of files.
    """
    digest = hashlib.sha256()
    write_whole(root / ANNOTATIONS, _hashed(coco_json(images), digest.update))
    manifest = {
        "schema": SCHEMA,
        **(about or {}),
        "kind": kind,
        "seed": seed,
        "images": len(images),
        "bytes": sum(image.size_bytes for image in images),
        "annotations_sha256": digest.hexdigest(),
    }
    files = {
        f"images/{image.name}": {"bytes": image.size_bytes, "sha256": image.sha256}
        for image in images
    }
    write_whole(root / MANIFEST, json.dumps({**manifest, "files": files}, indent=1))
    (root / UNFINISHED).unlink()
    return manifest


def read_manifest(root: Path) -> dict | None:
    """Read a folder's manifest; None where there is none.

    Raises:
        ValueError: it is damaged, or written by a newer labkit.
    """
    path = root / MANIFEST
    manifest = _read_json(path)
    if manifest is not None and manifest.get("schema", 0) > SCHEMA:
        raise ValueError(
            f"schema must be at most {SCHEMA}, got {manifest['schema']} in {path}; "
            "update labkit to use this data"
        )
    return manifest


def difference(path: Path, entry: dict[str, object]) -> str:
    """Say in one line how a file differs from its entry in the manifest; empty where it does not.

    Args:
        path: the file.
        entry: its "bytes" and "sha256"; what is not given is not compared.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes != entry.get("bytes", size_bytes):
            return f"{path} must have {entry['bytes']} bytes, got {size_bytes}"
        found = sha256(path.read_bytes()) if "sha256" in entry else None
        if found != entry.get("sha256"):
            return f"{path} must have SHA-256 {entry['sha256']}, got {found}"
    except OSError as error:
        return f"{path} must be a readable file, got {error.strerror}"
    return ""


def sha256(content: bytes) -> str:
    """Hash bytes, in hex."""
    return hashlib.sha256(content).hexdigest()


def _read_json(path: Path) -> dict | None:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{path.name} must be JSON, got {path} ({error}); make or download the data again"
        ) from error


def _hashed(pieces: Iterable[bytes], update: Callable[[bytes], None]) -> Iterator[bytes]:
    for piece in pieces:
        update(piece)
        yield piece
