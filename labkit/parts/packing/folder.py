"""One file per image: the layouts that labkit reads, and the one that it writes.

    ours   images/*.jpg            annotations.json              manifest.json
    COCO   val2017/*.jpg           annotations/instances_val2017.json
    tree   any folders of .jpg and .jpeg files; boxes are then synthesized

The manifest is written last, so a folder that has one is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from labkit.contracts import Annotation
from labkit.files import write_whole
from labkit.jpeg import read_size_px
from labkit.parts.packing.boxes import Listing, coco_json, read_coco, synthesize_boxes
from labkit.parts.packing.manifest import (
    ANNOTATIONS,
    MANIFEST,
    SCHEMA,
    difference,
    read_manifest,
    sha256,
)

LAYOUTS = (
    "accepted are images/ with annotations.json, COCO's val2017/ with annotations/, "
    'or any tree of .jpg files; labkit.make_photos("data/photos") makes some'
)
UNFINISHED = ".unfinished.json"  # in a folder whose manifest is still to be written


@dataclass(frozen=True, kw_only=True, eq=False)
class FolderReader:
    """A folder of JPEG files, opened; see `labkit.contracts.Reader`."""

    root: Path
    boxes: str
    has_manifest: bool
    """Whether labkit made the folder, with a manifest of every file."""
    kind: str
    """The data in words, as the manifest has them; "" where it has none."""
    stored: str
    """jpeg, or resized: scaled down from other data."""
    listing: Listing
    """The files' paths below `root`, and their boxes, if they have any."""
    annotations: Path | None = None
    """The file the boxes come from; None: they are synthesized."""

    def __len__(self) -> int:
        return len(self.listing)

    def __getstate__(self) -> dict[str, Any]:
        # Sizes are large, and quickly found again.
        return {name: value for name, value in vars(self).items() if name != "image_bytes"}

    @property
    def paths(self) -> tuple[Path, ...]:
        """The image files, absolute, in order; not kept, as each takes 600 bytes."""
        return self.files_of(range(len(self)))

    @cached_property
    def image_bytes(self) -> np.ndarray:
        """(N,) int64, the files' sizes; 0 for one that is missing."""
        return np.fromiter(map(self._size_bytes, range(len(self))), np.int64, len(self))

    def _size_bytes(self, i: int) -> int:
        try:
            # A million Paths take as long to make as the files' sizes to read.
            return os.stat(f"{self.root}/{self.name(i)}").st_size  # noqa: PTH116
        except OSError:
            return 0

    def name(self, i: int) -> str:
        """Return a file's path below `root`."""
        return self.listing.name(i)

    def where(self, i: int) -> str:
        """Name the file of image `i`."""
        return str(self.root / self.name(i))

    def files_of(self, indices: Iterable[int]) -> tuple[Path, ...]:
        """List the files of these images, in their order."""
        return tuple(self.root / self.name(i) for i in indices)

    def extents_of(self, indices: Iterable[int]) -> list[tuple[Path, int, int]]:
        """List where each of these images lies: file, first byte and the one after the last."""
        indices = list(indices)
        sizes = self.image_bytes[indices].tolist()
        return [(path, 0, size) for path, size in zip(self.files_of(indices), sizes)]

    def close(self) -> None:
        """Do nothing: each read opens and closes a file."""

    @property
    def companions(self) -> tuple[Path, ...]:
        """The boxes' file and the manifest, where there are any."""
        known = [self.annotations] if self.annotations else []
        return (*known, self.root / MANIFEST) if self.has_manifest else tuple(known)

    @cached_property
    def data_hash(self) -> str:
        """The manifest's SHA-256; without one, "sizes:" and that of the files' names and sizes."""
        if self.has_manifest:
            return sha256((self.root / MANIFEST).read_bytes())
        lines = (f"{self.name(i)}\0{size}\n" for i, size in enumerate(self.image_bytes.tolist()))
        digest = hashlib.sha256()
        for line in lines:
            digest.update(line.encode(errors="surrogateescape"))
        return f"sizes:{digest.hexdigest()}"

    def read(self, i: int) -> tuple[bytes, Annotation]:
        """Read one file and its boxes; see `labkit.contracts.Reader.read`."""
        return self.parse((self.root / self.name(i)).read_bytes(), i)

    def parse(self, jpeg: bytes, i: int) -> tuple[bytes, Annotation]:
        """Return the bytes of file `i`, which another reader has read, and its boxes."""
        if self.annotations is None:
            try:
                return jpeg, synthesize_boxes(self.name(i), *read_size_px(jpeg))
            except ValueError as error:
                raise ValueError(f"{self.where(i)}: {error}") from None
        return jpeg, self.annotation(i)

    def annotation(self, i: int) -> Annotation:
        """Return an image's boxes without reading it.

        Synthesized ones are in units of the shorter side, whose length is in the file.
        """
        if self.annotations is None:
            return synthesize_boxes(self.name(i), 1, 1)
        return self.listing.annotation(i)

    def verify(self, indices: Iterable[int]) -> list[str]:
        """Compare files with the manifest; see `labkit.contracts.Reader.verify`."""
        entries: dict[str, dict] = {}
        compared = []
        if self.has_manifest:
            changed = difference(self.root / MANIFEST, {"sha256": self.data_hash})
            if changed:  # then its entries for the files cannot be used
                return [changed]
            manifest = read_manifest(self.root)
            entries = manifest.get("files", {})
            if "annotations_sha256" in manifest:
                boxes_entry = {"sha256": manifest["annotations_sha256"]}
                compared.append(
                    difference(self.annotations or self.root / ANNOTATIONS, boxes_entry)
                )
        for i in indices:
            name = self.name(i)
            if entries and name not in entries:
                compared.append(f"{self.root / name} must be listed in {MANIFEST}, got no entry")
            else:
                compared.append(difference(self.root / name, entries.get(name, {})))
        return [line for line in compared if line]


def open_folder(path: Path | str) -> FolderReader:
    """Open a folder of JPEG files in whichever accepted layout it has.

    COCO images are those that are in the JSON *and* in the folder, so a part of COCO works too.

    Args:
        path: the dataset's folder, or one of COCO's image folders (`coco/val2017`).

    Returns:
        A reader in the order of COCO's image ids, or of the files' paths where there are none.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: no images, an unfinished folder, broken annotations, several COCO splits.
    """
    # Absolute, because workers may run in another directory; links stay as they are.
    root = Path(path).expanduser().absolute()
    if not root.is_dir():
        raise FileNotFoundError(f"data must be an existing folder, got {str(path)!r}; {LAYOUTS}")
    manifest = read_manifest(root)
    if "packing" in manifest:
        raise ValueError(
            f"packing must be {manifest['packing']!r} for {str(path)!r}, which is packed so, "
            "got 'folder'; choose that packing, or the folder that it was made from"
        )
    if not manifest and (root / UNFINISHED).is_file():
        raise ValueError(
            f"data must be a finished folder, got {str(path)!r}; "
            "run the command that makes it again, and it goes on where it stopped"
        )
    annotated = find_annotations(root)
    annotations = None
    boxes: dict[str, np.ndarray] = {}
    if annotated is None:
        names = _find_jpegs(root)
    else:
        annotations, images = annotated
        present = set(_find_jpegs(images))
        # A whole folder of ours keeps what is missing on disk, for `read` and `verify` to name.
        names, boxes = read_coco(annotations, None if manifest else present)
        prefix = "" if images == root else images.relative_to(root).as_posix() + "/"
        names = [prefix + name for name in names]
    if not names:
        of = f", none of the images in {annotated[0]}" if annotated else ", no .jpg file below it"
        raise ValueError(f"data must hold JPEG images, got {str(path)!r}{of}; {LAYOUTS}")
    reader = FolderReader(
        root=root,
        boxes="coco" if annotated else "synthesized",
        has_manifest=bool(manifest),
        kind=manifest.get("kind", ""),
        stored=manifest.get("stored", "jpeg"),
        listing=Listing.of_names(names, **boxes),
        annotations=annotations,
    )
    if reader.has_manifest:
        _ = reader.data_hash  # kept, as `verify` compares a later manifest with this one
    return reader


def write_folder(
    samples: Iterable[tuple[str, bytes, Annotation]],
    folder: Path,
    *,
    images: int,
    about: Mapping[str, Any],
) -> None:
    """Write images and boxes in labkit's own layout; the arguments are those of `write_pack`.

    Raises:
        ValueError: a name is given twice or leaves the folder.
    """
    written, names = [], set()
    for path, jpeg, annotation in samples:
        name = path.removeprefix("images/")
        pure = PurePosixPath(name)
        if name in names or pure.is_absolute() or ".." in pure.parts:
            raise ValueError(f"name must be a new path inside images/, got {name!r}")
        names.add(name)
        known = describe_image(name, jpeg, annotation) if jpeg else None  # else it is unreadable
        written.append(known or WrittenImage(name, 0, 0, annotation, 0, sha256(jpeg)))
        (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "images" / name).write_bytes(jpeg)
    finish_folder(folder, written, about={**about, "kind": "written samples", "seed": None})


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


def finish_folder(
    root: Path, images: Collection[WrittenImage], *, about: Mapping[str, Any]
) -> None:
    """Write annotations.json and, last, manifest.json; each replaces an older one in one step.

    Args:
        root: the folder.
        images: all that lie in its images/, in the order of their ids.
        about: what the manifest says of the data.
    """
    annotations = coco_json(images).encode()
    write_whole(root / ANNOTATIONS, annotations)
    manifest = {
        "schema": SCHEMA,
        **about,
        "images": len(images),
        "bytes": sum(image.size_bytes for image in images),
        "annotations_sha256": sha256(annotations),
        "files": {
            f"images/{image.name}": {"bytes": image.size_bytes, "sha256": image.sha256}
            for image in images
        },
    }
    write_whole(root / MANIFEST, json.dumps(manifest, indent=1))


def find_annotations(root: Path) -> tuple[Path, Path] | None:
    """Find a COCO JSON and the folder of its images."""
    if (root / ANNOTATIONS).is_file() and (root / "images").is_dir():
        return root / ANNOTATIONS, root / "images"
    for top in (root.parent, root.parent.parent):  # coco/val2017 or coco/images/val2017
        own = top / "annotations" / f"instances_{root.name}.json"
        if own.is_file():
            return own, root
    files = sorted(f for f in (root / "annotations").glob("instances_*.json") if f.is_file())
    folders: dict[Path, Path] = {}
    for file in files:
        split = file.stem.removeprefix("instances_")
        for folder in (root / split, root / "images" / split):
            if folder.is_dir():
                folders.setdefault(file, folder)
    if not folders and len(files) == 1 and (root / "images").is_dir():
        return files[0], root / "images"
    if len(folders) > 1:
        raise ValueError(
            f"data must be one of COCO's image folders, got {str(root)!r} with "
            f"{len(folders)} of them; choose {' or '.join(map(str, folders.values()))}"
        )
    return next(iter(folders.items()), None)


def _find_jpegs(root: Path) -> list[str]:
    """List .jpg and .jpeg files below a folder by their sorted posix paths, following links.

    Raises:
        ValueError: one of them is a named pipe, a socket or a device: reading it may never end.
    """
    names, seen, waiting = [], set(), [root]
    while waiting:
        folder = waiting.pop()
        real = folder.resolve()
        if real in seen:  # a link to a parent folder would never end
            continue
        seen.add(real)
        below = folder.relative_to(root).as_posix()
        prefix = "" if below == "." else below + "/"
        subfolders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                # Hidden: thumbnails, "._photo.jpg" of macOS, checkpoints of notebooks.
                if entry.name.startswith("."):
                    continue
                if Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir():
                    subfolders.append(folder / entry.name)
                elif entry.name.lower().endswith((".jpg", ".jpeg")):
                    _check_regular(entry)
                    names.append(prefix + entry.name)
        waiting += sorted(subfolders, reverse=True)
    return sorted(names)


def _check_regular(entry: os.DirEntry) -> None:
    if entry.is_file(follow_symlinks=False):
        return
    path = Path(entry.path)
    if path.exists() and not path.is_file():  # `read` reports a broken link
        raise ValueError(
            f"data must hold regular files, got a named pipe, socket or device at {path}; remove it"
        )
