"""A folder of JPEG files that is only known by its URL, in the layouts of `folder`.

    manifest.json (or a listing) ─ names, sizes ─┐
    annotations.json, COCO's instances_*.json ───┴─▶ RemoteFolder ─ read(i) ─▶ one request

Names and boxes are fetched once, on opening; each image is one request for the whole file.  Main
trap: nothing of it lies in this machine's page cache, so there are no `paths`, and neither cold nor
warm can be produced or proved.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from labkit.parts.packing import fetching
from labkit.parts.packing.coco import parse_coco
from labkit.parts.packing.connections import WEB, protocol
from labkit.parts.packing.folder import LAYOUTS, FolderReader, is_jpeg
from labkit.parts.packing.manifest import (
    ANNOTATIONS,
    MANIFEST,
    UNFINISHED,
    parse_manifest,
    sha256,
)

CONNECTIONS = 8
"""Files that are fetched at the same time where the order does not matter."""
# What a folder and the same folder at a URL have in common.
KNOWN_HERE = (
    "boxes", "manifest_hash", "source_hash", "stored", "name_bytes", "name_ends",
    "box_ranges", "boxes_xyxy", "category_ids",
)  # fmt: skip
MEASURED_BY = "remote: no page cache of this machine"


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set at a URL."""

    root: str
    name: str
    size_bytes: int
    """0: unknown."""
    sha256: str
    """From the manifest; empty: unknown."""
    version: str
    """Another text for another content, as far as the file system tells."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RemoteFolder(FolderReader):
    """A folder of JPEG files at a URL, opened; see `labkit.parts.packing.Reader`."""

    root: str
    """The URL."""
    sizes: np.ndarray
    """(N,) int64, the files' bytes; 0: unknown."""
    beside: str = ""
    """The name of the boxes' file, seen from `root`; empty: synthesized."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Nothing: no file of it is this machine's."""
        return ()

    @property
    def companions(self) -> tuple[Path, ...]:
        """Nothing, as `paths`."""
        return ()

    @property
    def image_bytes(self) -> np.ndarray:
        """(N,) int64, the files' sizes; 0 where they are not known."""
        return self.sizes

    def where(self, i: int) -> str:
        """Give the URL of image `i`."""
        return fetching.url_of(self.root, self.name(i))

    def files_of(self, indices: Iterable[int]) -> tuple[Path, ...]:
        """List nothing, as `paths`."""
        return ()

    def content(self, i: int) -> bytes:
        """Fetch one file whole; errors as `fetching.read`'s."""
        return fetching.read(self.root, self.name(i), int(self.sizes[i]))

    def prepare(self) -> dict[str, object]:
        """Begin the proof of a cache state: that there is none; see `storage.prepare`."""
        return {
            "wanted": "as found",
            "method": "none",
            "measured_by": MEASURED_BY,
            "resident_share_before": None,
        }

    def prove(self, ids: np.ndarray, proof: dict[str, object]) -> dict[str, object]:
        """Complete the proof; see `storage.prove`."""
        unknown = ("resident_share_after", "logical_read_bytes", "device_read_bytes")
        file_bytes = int(self.sizes[np.unique(ids)].sum()) or None
        return {**proof, **dict.fromkeys(unknown), "file_bytes": file_bytes}

    def files(self) -> list[RemoteFile]:
        """List all that belongs to the data, boxes and manifest among it, to be copied.

        Raises:
            OSError, ValueError, RemoteFailed: as `fetching.read`.
        """
        known = self._known_files()
        names = [self.name(i) for i in range(len(self))]
        names += [self.beside] if self.beside else []
        names += [MANIFEST] if self.manifest_hash != "unknown" else []
        return [
            RemoteFile(self.root, name, *known.get(name, (0, "", self.manifest_hash)))
            for name in names
        ]

    def _known_files(self) -> dict[str, tuple[int, str, str]]:
        if self.manifest_hash == "unknown":
            found = fetching.listing(self.root)
            return {name: (size, "", f"{size} {seen}") for name, (size, seen) in found.items()}
        content = fetching.read(self.root, MANIFEST)
        if sha256(content) != self.manifest_hash:
            raise ValueError(
                f"data must stay what it was when it was opened, got another {MANIFEST} in "
                f"{self.root}; run again"
            )
        manifest = parse_manifest(content, fetching.url_of(self.root, MANIFEST))
        known = {
            name: (entry.get("bytes", 0), entry.get("sha256", ""), entry.get("sha256", ""))
            for name, entry in manifest["files"].items()
        }
        if "annotations_sha256" in manifest:
            known[ANNOTATIONS] = (0, manifest["annotations_sha256"], manifest["annotations_sha256"])
        known[MANIFEST] = (len(content), self.manifest_hash, self.manifest_hash)
        return known

    def verify(self, indices: Iterable[int]) -> list[str]:
        """Compare files with the manifest; see `labkit.parts.packing.Reader.verify`."""
        if self.manifest_hash == "unknown":
            return []
        try:
            known = self._known_files()
        except ValueError as error:
            return [str(error)]
        names = [self.name(i) for i in indices]
        names += [ANNOTATIONS] if ANNOTATIONS in known else []

        def compare(name: str) -> str:
            url = fetching.url_of(self.root, name)
            if name not in known:
                return f"{url} must be listed in {MANIFEST}, got no entry"
            try:
                found = sha256(fetching.read(self.root, name, known[name][0]))
            except (OSError, ValueError) as error:
                return str(error)
            wanted = known[name][1]
            return "" if found == wanted else f"{url} must have SHA-256 {wanted}, got {found}"

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            return [line for line in pool.map(compare, names) if line]


def open_remote(url: str) -> RemoteFolder:
    """Open a folder of JPEG files at a URL in whichever accepted layout it has.

    Args:
        url: of the folder, as fsspec understands it.  Over http there is no listing that could
            be relied on, so a manifest.json has to name the files.

    Raises:
        FileNotFoundError: nothing is there.
        OSError: it is refused.
        ValueError: no images, no manifest where one is needed, an unfinished or packed folder.
        RemoteFailed: the way there failed in every try.
        Skip: a library is not installed; the text names the line that installs it.
    """
    root = url.rstrip("/")
    fetching.check_can_fetch(root)
    manifest_hash, manifest, sizes = "unknown", {}, {}
    try:
        content = fetching.read(root, MANIFEST)
    except FileNotFoundError:
        sizes = _listed(root, url)
    else:
        manifest = parse_manifest(content, fetching.url_of(root, MANIFEST))
        manifest_hash = sha256(content)
        if "packing" in manifest:
            raise ValueError(
                f"data must be a folder of images where it is at a URL, got a "
                f"{manifest['packing']} pack in {url!r}; copy it to a folder of this machine"
            )
        sizes = {name: int(entry.get("bytes", 0)) for name, entry in manifest["files"].items()}
    names, boxes = _names_and_boxes(root, sizes, manifest)
    if not names:
        raise ValueError(f"data must hold JPEG images, got {url!r} with none; {LAYOUTS}")
    encoded = [os.fsencode(name) for name in names]
    return RemoteFolder(
        root=root,
        boxes="coco" if boxes else "synthesized",
        manifest_hash=manifest_hash,
        source_hash=manifest.get("source_hash", manifest_hash),
        stored=manifest.get("stored", "jpeg"),
        name_bytes=b"".join(encoded),
        name_ends=np.cumsum([0, *map(len, encoded)]),
        sizes=np.array([sizes.get(name, 0) for name in names], np.int64),
        **boxes,
    )


def at_url(reader: FolderReader, url: str) -> RemoteFolder:
    """Read the images of an opened folder from a server that gives them; all else is known here.

    Raises:
        Skip: a library is not installed.
    """
    fetching.check_can_fetch(url)  # it also imports what every worker would import anew
    return RemoteFolder(
        **{name: getattr(reader, name) for name in KNOWN_HERE},
        root=url,
        sizes=reader.image_bytes,
    )


def _listed(root: str, url: str) -> dict[str, int]:
    if protocol(root) in WEB:
        raise ValueError(
            f"data must have a {MANIFEST} where it is read over http, got none in {url!r}; write "
            "one by making the data with labkit, or use a file system that can list, as s3://"
        )
    found = {name: size for name, (size, _) in fetching.listing(root).items()}
    if not found:
        raise FileNotFoundError(f"data must be an existing folder, got {url!r}; {LAYOUTS}")
    if UNFINISHED in found:
        raise ValueError(
            f"data must be a finished folder, got {url!r}; "
            "run the command that makes it again, and copy it once more"
        )
    return found


def _names_and_boxes(
    root: str, sizes: Collection[str], manifest: Mapping[str, object]
) -> tuple[list[str], dict[str, object]]:
    """Find the images, and their boxes if there are any."""
    jpegs = sorted(
        name
        for name in sizes
        if is_jpeg(name.rpartition("/")[2])
        and not any(part.startswith(".") for part in name.split("/"))
    )
    for file, below in _annotations(root, sizes, manifest):
        try:
            content = fetching.read(root, file)
        except FileNotFoundError:
            if "annotations_sha256" in manifest:
                raise  # without its boxes it would be other data
            continue
        on_disk = {name.removeprefix(below) for name in jpegs if name.startswith(below)}
        where = fetching.url_of(root, file)
        names, boxes = parse_coco(content, where, None if manifest else on_disk)
        return [below + name for name in names], {**boxes, "beside": file}
    return jpegs, {}


def _annotations(
    root: str, names: Collection[str], manifest: Mapping[str, object]
) -> Iterable[tuple[str, str]]:
    """Say where COCO's JSON may be, and which folder's images it would be of."""
    if "annotations_sha256" in manifest or ANNOTATIONS in names:
        yield ANNOTATIONS, "images/"
    above = root.partition("://")[2].count("/")  # folders that it lies in
    for top in ("../annotations", "../../annotations")[:above]:  # coco/val2017, coco/images/val2017
        own = f"{top}/instances_{root.rpartition('/')[2]}.json"
        if manifest or fetching.is_there(root, own):
            yield own, ""
    folders = {f"{parent}/" for name in names for parent in map(str, PurePosixPath(name).parents)}
    found = []
    for name in sorted(names):
        path = PurePosixPath(name)
        if path.parts[:1] == ("annotations",) and path.match("annotations/instances_*.json"):
            split = path.stem.removeprefix("instances_")
            found += [(name, f) for f in (f"{split}/", f"images/{split}/") if f in folders]
    if len(found) > 1:
        raise ValueError(
            f"data must be one of COCO's image folders, got {root!r} with {len(found)} of them; "
            f"choose {' or '.join(fetching.url_of(root, below) for _, below in found)}"
        )
    yield from found
