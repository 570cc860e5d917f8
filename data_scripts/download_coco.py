"""Download COCO's val2017: 5,000 photographs and their boxes, 1.1 GB.

    python data_scripts/download_coco.py data/coco
    → data/coco/val2017/*.jpg   data/coco/annotations/instances_val2017.json

A stopped or broken download goes on where it stopped, and so does the unpacking.  Archives that
a person put into the folder are used and kept.  Main trap: nothing that came over the network is
to be trusted, so the checksum of every archive and the names of all its members are checked
before the first file is unpacked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import shutil
import stat
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from labkit import units
from labkit.parts.packing.folder import open_folder
from labkit.parts.packing.manifest import MANIFEST, UNFINISHED, write_whole
from labkit.progress import bar

URL_BASE = "http://images.cocodataset.org"
IMAGES = "val2017"
RECORD = ".downloaded.json"  # which files came out of which archive, written when all are there
MARK = b'{"kind": "COCO val2017"}'
TIMEOUT_S = 30  # to connect, and for the next bytes to arrive
WAITS_S = (1, 2, 4, 8)  # before each new try; bytes that are new start the row again
BLOCK_BYTES = 1 << 18
BOMB = 4  # times the expected size, unpacked, is refused


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One zip file to fetch, and what is wanted of it."""

    path: str
    """Below the base URL."""
    size_bytes: int
    sha256: str
    wanted: str
    """The members to unpack; * stands for anything but a slash."""
    unpacked_bytes: int
    """What these take, about."""

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]


# COCO publishes no checksums.  These SHA-256 sums are those that torchvision's prototype data sets
# demand, and several independent copies report them; the sizes stand in the output of Keras's
# keypoint-detection example, as the server gave them.
ARCHIVES = (
    Archive(
        path="zips/val2017.zip",
        size_bytes=815_585_330,
        sha256="4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05",
        wanted=f"{IMAGES}/*.jpg",
        unpacked_bytes=820_000_000,
    ),
    Archive(
        path="annotations/annotations_trainval2017.zip",
        size_bytes=252_907_541,
        sha256="113a836d90195ee1f884e704da6304dfaaecff1f023f49b6ca93c4aaae470268",
        wanted=f"annotations/instances_{IMAGES}.json",
        unpacked_bytes=20_000_000,
    ),
)


def download_coco(
    out: Path | str,
    *,
    url_base: str = URL_BASE,
    archives: Sequence[Archive] = ARCHIVES,
    keep_archives: bool = False,
    progress: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Download and unpack COCO's val2017; what lies there already is not fetched again.

    Args:
        out: a folder for COCO: new, or one that this function was stopped in.
        url_base: the server; COCO's own, or a mirror with the same files.
        archives: what to fetch.
        keep_archives: keep what was downloaded; archives put there by hand are always kept.
        progress: show bars.
        sleep: waits before another try.

    Returns:
        The folder of the images.

    Raises:
        ValueError: an archive is not the expected one or not safe, or `out` holds other data.
        OSError: the server cannot be reached or sends only parts; no room; `out` not writable.
    """
    if not re.fullmatch(r"https?://[^\s/]\S*", url_base):
        raise ValueError(f"url_base must be http:// or https:// and a server, got {url_base!r}")
    root = Path(out).expanduser().absolute()
    marks = (root / UNFINISHED, root / IMAGES / UNFINISHED)
    _refuse_other_data(root)
    record = _read_record(root)
    missing = [archive for archive in archives if not _is_unpacked(root, archive, record)]
    if missing:
        _check_space(root, missing)
        urls = {archive: f"{url_base.rstrip('/')}/{archive.path}" for archive in missing}
        by_hand = f"download {' and '.join(urls.values())} by hand into {root}"
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"out must be a folder that can be written to, got {str(out)!r} "
                f"({error.strerror}); choose another folder"
            ) from error
        ready = []
        for archive in missing:
            file = _fetch(
                archive, root, urls[archive], by_hand=by_hand, progress=progress, sleep=sleep
            )
            _check_sum(archive, file)
            ready.append((archive, file, _safe_members(archive, file, root)))
        for mark in marks:  # half of COCO opens like a whole one, so it must not open at all
            mark.parent.mkdir(exist_ok=True)
            write_whole(mark, MARK)
        for archive, file, members in ready:
            _unpack(archive, file, members, root, progress=progress)
            files = {member.filename: member.file_size for member in members}
            record[archive.name] = {"sha256": archive.sha256, "files": files}
            write_whole(root / RECORD, json.dumps(record).encode())
            part = _part(archive, root)
            if keep_archives and file == part:
                part.replace(root / archive.name)
            part.unlink(missing_ok=True)
    for mark in marks:
        if mark.exists():
            mark.unlink()
    return root / IMAGES


def main(arguments: list[str] | None = None) -> int:
    """Run from a shell.

    Returns:
        The exit status: 0, 1 after an error, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="folder to make or to go on with, such as data/coco")
    parser.add_argument("--url-base", default=URL_BASE, help="a mirror; default: %(default)s")
    parser.add_argument(
        "--keep-archives", action="store_true", help="keep the zip files, another 1.1 GB"
    )
    given = parser.parse_args(arguments)
    try:
        images = download_coco(
            given.out, url_base=given.url_base, keep_archives=given.keep_archives
        )
        reader = open_folder(images)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    first, end = reader.listing.box_ranges.T
    folder = Path(given.out) / IMAGES
    print(f"{len(reader)} images in {folder}, {(end > first).sum()} of them with boxes")
    print(f"next: labkit run --data {shlex.quote(str(folder))}")
    return 0


def _refuse_other_data(root: Path) -> None:
    mark = root / UNFINISHED
    if (root / MANIFEST).exists() or (mark.exists() and mark.read_bytes() != MARK):
        raise ValueError(
            f"out must be a folder for COCO, got {str(root)!r} with another data set; "
            "choose another folder"
        )


def _read_record(root: Path) -> dict[str, dict]:
    try:
        return json.loads((root / RECORD).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}  # damaged is as good as none: files that are whole are found to be so


def _is_unpacked(root: Path, archive: Archive, record: dict[str, dict]) -> bool:
    """Compare with the record by size only, which takes microseconds a file."""
    entry = record.get(archive.name, {})
    return entry.get("sha256") == archive.sha256 and all(
        _size(root / name) == size_bytes for name, size_bytes in entry["files"].items()
    )


def _check_space(root: Path, archives: Sequence[Archive]) -> None:
    download_bytes = sum(
        max(0, archive.size_bytes - max(map(_size, (root / archive.name, _part(archive, root)))))
        for archive in archives
    )
    unpacked_bytes = sum(
        max(0, archive.unpacked_bytes - sum(map(_size, root.glob(archive.wanted))))
        for archive in archives
    )
    _require_room(
        root,
        download_bytes + unpacked_bytes,
        f"{units.count_bytes(download_bytes)} to download and "
        f"{units.count_bytes(unpacked_bytes)} unpacked",
    )


def _require_room(root: Path, needed_bytes: int, what: str) -> None:
    folder = next(folder for folder in (root, *root.parents) if folder.is_dir())
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise OSError(
            f"out must have about {units.count_bytes(needed_bytes)} free for {what}, "
            f"got {units.count_bytes(free_bytes)} in {root}; free space or choose another disk"
        )


def _fetch(
    archive: Archive,
    root: Path,
    url: str,
    *,
    by_hand: str,
    progress: bool,
    sleep: Callable[[float], None],
) -> Path:
    """Give the archive's file: one put there by hand, or our own after fetching what it lacks."""
    part, own = _part(archive, root), root / archive.name
    if _size(own) >= archive.size_bytes:
        return own
    if own.is_file():
        own.replace(part)  # somebody's unfinished download: go on with it
    if _size(part) > archive.size_bytes:
        part.unlink()
    failed, reason, furthest, host = 0, "", _size(part), urlsplit(url).netloc
    options = {"unit": "B", "unit_scale": True, "desc": archive.name, "disable": not progress}
    with bar(total=archive.size_bytes, initial=furthest, **options) as shown:
        while (there := _size(part)) != archive.size_bytes:
            if reason:  # of the try before
                failed = 1 if there > furthest else failed + 1  # new bytes: worth going on
                furthest = max(furthest, there)
                if failed > len(WAITS_S):
                    raise ConnectionError(
                        f"{host} must send {archive.name} whole, got {reason} {failed} times at "
                        f"{units.count_bytes(there)} of {units.count_bytes(archive.size_bytes)}; "
                        "the same command goes on from there"
                    )
                sleep(WAITS_S[failed - 1])
            try:
                _receive(archive, part, url, shown)
                reason = "a closed connection"
            except HTTPError as error:
                error.close()
                reason = f"HTTP {error.code} ({error.reason})"
                if error.code == 416:  # what lies there is no beginning of the server's file
                    part.unlink(missing_ok=True)
                elif error.code < 500 and error.code != 429:
                    raise ValueError(
                        f"url_base must be a server with {archive.path}, got {reason} from {url}; "
                        f"give another --url-base, or {by_hand}"
                    ) from None
            except URLError as error:
                offline = not reason
                reason = getattr(error.reason, "strerror", None) or str(error.reason)
                if offline:
                    raise ConnectionError(
                        f"cannot reach {host}: {reason}; connect to the internet, or {by_hand}: "
                        "the same command then goes on from there"
                    ) from None
            except (ConnectionError, TimeoutError, HTTPException) as error:
                reason = str(error) or type(error).__name__
    return part


def _receive(archive: Archive, part: Path, url: str, shown: object) -> None:
    """Append what is missing, as far as it comes; a server that sends all of it starts over."""
    there = _size(part)
    request = Request(url, headers={"Range": f"bytes={there}-"} if there else {})
    with urlopen(request, timeout=TIMEOUT_S) as response:
        start, total = 0, response.length
        if response.status == 206:
            found = re.match(r"bytes (\d+)-\d+/(\d+)$", response.headers.get("Content-Range", ""))
            start, total = map(int, found.groups()) if found else (None, None)
        if total not in (None, archive.size_bytes):
            raise ValueError(
                f"{archive.name} must have {archive.size_bytes} bytes, got {total} from {url}; "
                "something else answers in its place: see what a browser shows there"
            )
        if start not in (0, there):  # another piece than the one asked for
            part.unlink()
            return
        shown.n = start
        with part.open("ab" if start else "wb") as file:
            while block := _read(response, min(BLOCK_BYTES, archive.size_bytes - file.tell())):
                file.write(block)
                shown.update(len(block))


def _read(response: HTTPResponse, most_bytes: int) -> bytes:
    try:
        return response.read1(most_bytes)
    except OSError as error:  # told apart from a disk that cannot be written to
        raise ConnectionError(str(error)) from error


def _check_sum(archive: Archive, file: Path) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != archive.sha256:
        file.unlink()
        raise ValueError(
            f"{archive.name} must have SHA-256 {archive.sha256}, got {found}; the broken file was "
            "removed and nothing unpacked: run the same command to download it again"
        )


def _safe_members(archive: Archive, file: Path, root: Path) -> list[zipfile.ZipInfo]:
    """List the wanted members, if all of the archive's may be unpacked."""
    try:
        with zipfile.ZipFile(file) as zipped:
            members = zipped.infolist()
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{archive.name} must be a zip file, got {file} ({error}); remove it"
        ) from error
    for member in members:
        # zipfile tidies names as it reads them, so both forms are looked at.
        names = (member.orig_filename, member.filename)
        leaves = any(
            name.startswith("/") or ".." in name.split("/") or re.search(r"[\\:\0]", name)
            for name in names
        )
        if leaves or stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            kind = "a path that leaves them" if leaves else "a link or device"
            raise ValueError(
                f"{archive.name} must hold only plain files in its own folders, got {kind}, "
                f"{names[0]!r}; nothing was unpacked: remove {file} and do not use its source"
            )
    wanted = [
        member
        for member in members
        if fnmatchcase(member.filename, archive.wanted)
        and member.filename.count("/") == archive.wanted.count("/")
    ]
    unpacked_bytes = sum(member.file_size for member in wanted)
    most_bytes = BOMB * archive.unpacked_bytes
    if not 0 < unpacked_bytes <= most_bytes:
        raise ValueError(
            f"{archive.name} must hold {archive.wanted} of up to {units.count_bytes(most_bytes)}, "
            f"got {units.count_bytes(unpacked_bytes)}; nothing was unpacked: remove {file}"
        )
    new = [member for member in wanted if _size(root / member.filename) != member.file_size]
    new_bytes = sum(member.file_size for member in new)
    _require_room(root, new_bytes, f"what {archive.name} holds")
    return wanted


def _unpack(
    archive: Archive, file: Path, members: list[zipfile.ZipInfo], root: Path, *, progress: bool
) -> None:
    """Write the members that do not lie there whole."""
    with zipfile.ZipFile(file) as zipped:
        options = {"unit": "file", "desc": f"{archive.name} unpacked", "disable": not progress}
        for member in bar(members, **options):
            target = root / member.filename
            whole = _size(target) == member.file_size and (
                zlib.crc32(target.read_bytes()) == member.CRC
            )
            if not whole:
                target.parent.mkdir(parents=True, exist_ok=True)
                write_whole(target, zipped.read(member))


def _part(archive: Archive, root: Path) -> Path:
    return root / f"{archive.name}.part"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


if __name__ == "__main__":
    sys.exit(main())
