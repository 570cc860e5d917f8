"""Download COCO's val2017: 5,000 photographs and their boxes, 1.1 GB.

    python data_scripts/download_coco.py data/coco
    → data/coco/val2017/*.jpg   data/coco/annotations/instances_val2017.json

A stopped download continues where it stopped.  Archives that a user put into the folder are used
and kept.  Nothing is unpacked before the checksum of its archive is right.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shlex
import shutil
import sys
import zipfile
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from time import sleep
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from labkit import units
from labkit.contracts import Skip
from labkit.files import bar
from labkit.machine.media import check_room
from labkit.parts.packing.folder import open_folder
from labkit.parts.packing.manifest import MANIFEST

URL_BASE = "http://images.cocodataset.org"
IMAGES = "val2017"
TIMEOUT_S = 30  # to connect, and for the next bytes to arrive
WAITS_S = (1, 2, 4, 8)  # before each new try; new bytes start the row again
BLOCK_BYTES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One zip file to download, and what to unpack from it."""

    path: str
    """Below the base URL."""
    size_bytes: int
    sha256: str
    wanted: str
    """The file or folder to unpack."""

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]


# COCO publishes no checksums.  These SHA-256 sums are those that torchvision's prototype data sets
# demand, and several independent copies report them; the sizes stand in the output of Keras's
# keypoint-detection example, as the server gave them.
# The images come last: without them, labkit does not open the folder.
ARCHIVES = (
    Archive(
        path="annotations/annotations_trainval2017.zip",
        size_bytes=252_907_541,
        sha256="113a836d90195ee1f884e704da6304dfaaecff1f023f49b6ca93c4aaae470268",
        wanted=f"annotations/instances_{IMAGES}.json",
    ),
    Archive(
        path="zips/val2017.zip",
        size_bytes=815_585_330,
        sha256="4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05",
        wanted=IMAGES,
    ),
)


def download_coco(out: Path | str, url_base: str = URL_BASE) -> Path:
    """Download and unpack COCO's val2017; what is already unpacked is not downloaded again.

    Args:
        out: a folder for COCO: new, or one in which this function was stopped.
        url_base: the server; COCO's own, or a mirror with the same files.

    Returns:
        The folder of the images.

    Raises:
        ValueError: an archive is not the expected one, or `out` holds another data set.
        OSError: the server cannot be reached or sends only parts.
        Skip: there is too little free space.
    """
    if not re.fullmatch(r"https?://[^\s/]\S*", url_base):
        raise ValueError(f"url_base must be http:// or https:// and a server, got {url_base!r}")
    root = Path(out).expanduser().absolute()
    if (root / MANIFEST).exists():
        raise ValueError(
            f"out must be a folder for COCO, got {str(root)!r} with another data set; "
            "choose another folder"
        )
    missing = [archive for archive in ARCHIVES if not (root / archive.wanted).exists()]
    root.mkdir(parents=True, exist_ok=True)
    needed_bytes = 2 * sum(archive.size_bytes for archive in missing)  # JPEGs are hardly packed
    for archive in missing:
        there = (root / archive.name, root / f"{archive.name}.part")
        needed_bytes -= max(_size(path) for path in there)
    check_room(root, needed_bytes, "the archives and what they hold")
    for archive in missing:
        by_hand, part = root / archive.name, root / f"{archive.name}.part"
        if not by_hand.exists():
            _download(archive, part, f"{url_base.rstrip('/')}/{archive.path}")
        file = by_hand if by_hand.exists() else part
        _check_sum(archive, file, is_ours=file == part)
        _unpack(archive, file, root)
        part.unlink(missing_ok=True)
    return root / IMAGES


def main(arguments: list[str] | None = None) -> int:
    """Run from a shell.

    Returns:
        The exit status: 0, 1 after an error, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="new or unfinished folder, such as data/coco")
    parser.add_argument("--url-base", default=URL_BASE, help="a mirror; default: %(default)s")
    given = parser.parse_args(arguments)
    try:
        images = download_coco(given.out, given.url_base)
        reader = open_folder(images)
    except (ValueError, OSError, Skip) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command continues from here", file=sys.stderr)
        return 130
    first, end = reader.listing.box_ranges.T
    folder = Path(given.out) / IMAGES
    print(f"{len(reader)} images in {folder}, {(end > first).sum()} of them with boxes")
    print(f"next: labkit run --data {shlex.quote(str(folder))}")
    return 0


def _download(archive: Archive, part: Path, url: str) -> None:
    """Download what is missing of an archive; try again while new bytes arrive."""
    tries, furthest = 0, _size(part)
    options = {"unit": "B", "unit_scale": True, "desc": archive.name}
    with bar(total=archive.size_bytes, initial=furthest, **options) as shown:
        while _size(part) < archive.size_bytes:
            if tries:
                sleep(WAITS_S[tries - 1])
            try:
                _receive(part, url, shown)
                reason = "a closed connection"
            except HTTPError as error:
                error.close()
                reason = f"HTTP {error.code} ({error.reason})"
                if error.code == 416:  # the part is no beginning of the server's file
                    part.unlink(missing_ok=True)
                elif error.code < 500 and error.code != 429:
                    raise ValueError(
                        f"url_base must be a server with {archive.path}, got {reason} from {url}; "
                        "give another --url-base"
                    ) from None
            except (OSError, HTTPException) as error:  # not reachable, dropped, timed out
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            tries = 1 if _size(part) > furthest else tries + 1
            furthest = max(furthest, _size(part))
            if tries > len(WAITS_S) and _size(part) < archive.size_bytes:
                raise ConnectionError(
                    f"{urlsplit(url).netloc} must send {archive.name} completely, got {reason} "
                    f"{tries} times at {units.count_bytes(_size(part))} of "
                    f"{units.count_bytes(archive.size_bytes)}; the same command continues from "
                    f"there, or download {url} by hand into {part.parent}"
                )


def _receive(part: Path, url: str, shown: object) -> None:
    """Append what is missing; a server that does not know ranges starts over."""
    there = _size(part)
    request = Request(url, headers={"Range": f"bytes={there}-"} if there else {})
    with urlopen(request, timeout=TIMEOUT_S) as response:
        continues = response.status == 206
        shown.n = there if continues else 0
        with part.open("ab" if continues else "wb") as file:
            while block := response.read1(BLOCK_BYTES):
                file.write(block)
                shown.update(len(block))


def _check_sum(archive: Archive, file: Path, *, is_ours: bool) -> None:
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    if sha256 != archive.sha256:
        next_step = "wait until it is complete, or remove it"
        if is_ours:
            file.unlink()
            next_step = "the file was removed: run the same command to download it again"
        raise ValueError(
            f"{archive.name} must have SHA-256 {archive.sha256}, got {sha256}; {next_step}"
        )


def _unpack(archive: Archive, file: Path, root: Path) -> None:
    """Unpack what is wanted beside its place, and move it there once it is complete."""
    unpacking = root / f".{archive.name}.unpacking"
    shutil.rmtree(unpacking, ignore_errors=True)
    with zipfile.ZipFile(file) as zipped:
        members = [name for name in zipped.namelist() if name.startswith(archive.wanted)]
        for member in bar(members, unit="file", desc=f"{archive.name} unpacked"):
            zipped.extract(member, unpacking)
    target = root / archive.wanted
    target.parent.mkdir(exist_ok=True)
    (unpacking / archive.wanted).replace(target)
    shutil.rmtree(unpacking)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


if __name__ == "__main__":
    sys.exit(main())
