"""Share file: one zip with a manifest, and all that is checked before a byte of it is believed.

    members ─▶ to_bytes() ─▶ .labkit.zip ─▶ read() ─▶ the same members, or a sentence why not

    share.json     format, schema, experiment, run, and of every member its size and SHA-256
    run.json       what was run, how, on what          trials.jsonl   all rows
    table.csv, table.md, chart.png …                   for who has no labkit; never read here

Main trap: a zip from somebody else may be anything: names that lead out of a folder, links, a
gigabyte in a kilobyte.  So only known plain names are taken, at most `MAX_BYTES` in all, counted
also while reading; nothing is written by this module.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from labkit import units
from labkit.results import RUN_FILE, TRIALS_FILE

FORMAT, SCHEMA = "labkit share file", 1
SUFFIX = ".labkit.zip"
MANIFEST = "share.json"
TABLES = ("table.csv", "table.md")
PICTURES = tuple(f"{name}.{kind}" for name in ("chart", "epochs") for kind in ("png", "svg", "pdf"))
NAMES = (MANIFEST, RUN_FILE, TRIALS_FILE, *TABLES, *PICTURES)
# A full run of all media has a few MB of rows and pictures.
MAX_BYTES = 200_000_000
MAX_FILE_BYTES = 50_000_000
CHUNK_BYTES = 1 << 16
# What zipfile raises where bytes are not what they should be.
UNREADABLE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
    UnicodeDecodeError,
)  # fmt: skip
# What becomes a folder's name here.
EXPERIMENT = re.compile(r"[a-z0-9_]{1,80}")
RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}")


def to_bytes(members: Mapping[str, bytes], about: Mapping[str, object]) -> bytes:
    """Make the zip; equal members give equal bytes.

    Args:
        members: name -> content.
        about: what the manifest says beside: labkit, experiment, run.
    """
    listed = {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in members.items()}
    manifest = {"format": FORMAT, "schema": SCHEMA, **about, "members": listed}
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in {MANIFEST: text.encode(), **members}.items():
            entry = zipfile.ZipInfo(name)  # dated 1980: no clock
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, wherever it is made
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            file.writestr(entry, data, compresslevel=6)
    return buffer.getvalue()


def read(path: Path) -> tuple[dict[str, object], dict[str, bytes]]:
    """Read and check a share file; runs and writes nothing.

    Returns:
        The manifest, and name -> content of all other members.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a share file, is damaged, too large, or of a newer labkit.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"file must be a share file, got {path}, which is not there; "
            "make one with: labkit pack RUN"
        )
    if (size_bytes := path.stat().st_size) > MAX_FILE_BYTES:
        raise _too_large(size_bytes, MAX_FILE_BYTES)
    try:
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
            _check_entries(entries)
            # Of a newer labkit the rest may look otherwise: that is said first.
            (first,) = [entry for entry in entries if entry.filename == MANIFEST]
            manifest = parse(MANIFEST, _read_members(file, [first])[MANIFEST])
            _check_format(manifest)
            _check_names(entries)
            contents = _read_members(file, [entry for entry in entries if entry is not first])
    except (*UNREADABLE, OSError) as error:
        raise refused("a zip that can be read", str(error) or type(error).__name__) from None
    _check_list(manifest, contents)
    return manifest, contents


def parse(name: str, data: bytes) -> dict[str, object]:
    """Read a JSON object.

    Raises:
        ValueError: it is none.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise refused("one whose texts are JSON", f"another {name}") from None
    if not isinstance(value, dict):
        raise refused("one whose texts are JSON objects", f"another {name}")
    return value


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    names = Counter(entry.filename for entry in entries)
    if names[MANIFEST] != 1:
        raise refused("one made by labkit pack", f"one with {names[MANIFEST]} of {MANIFEST}")
    for entry in entries:
        mode = entry.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise refused("one of plain files", f"{entry.filename!r}, which is none")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise refused("one of deflated files", f"{entry.filename!r}, packed otherwise")
        if entry.flag_bits & 1:
            raise refused("one without a password", f"{entry.filename!r} with one")
    if (total_bytes := sum(entry.file_size for entry in entries)) > MAX_BYTES:
        raise _too_large(total_bytes, MAX_BYTES)


def _check_names(entries: list[zipfile.ZipInfo]) -> None:
    names = Counter(entry.filename for entry in entries)
    for name, times in names.items():
        if name not in NAMES or times > 1:
            raise refused(f"one that holds each of {', '.join(NAMES)} at most once", repr(name))
    for name in (RUN_FILE, TRIALS_FILE):
        if name not in names:
            raise refused("one made by labkit pack", f"one without {name}")


def _read_members(file: zipfile.ZipFile, entries: list[zipfile.ZipInfo]) -> dict[str, bytes]:
    """Read all, and no more than allowed: what the entries say of their sizes may be a lie."""
    contents, left_bytes = {}, MAX_BYTES
    for entry in entries:
        chunks = []
        with file.open(entry) as member:
            while chunk := member.read(CHUNK_BYTES):
                left_bytes -= len(chunk)
                if left_bytes < 0:
                    raise _too_large(MAX_BYTES - left_bytes, MAX_BYTES)
                chunks.append(chunk)
        contents[entry.filename] = b"".join(chunks)
    return contents


def _check_format(manifest: Mapping[str, object]) -> None:
    if manifest.get("format") != FORMAT:
        raise refused("one made by labkit pack", f"another format, {manifest.get('format')!r}")
    schema = manifest.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ValueError(
            f"schema must be at most {SCHEMA}, got {schema!r}; update labkit to open this file"
        )


def _check_list(manifest: Mapping[str, object], contents: Mapping[str, bytes]) -> None:
    listed = manifest.get("members")
    if not isinstance(listed, dict) or set(listed) != set(contents):
        raise refused("one whose manifest lists what it holds", "another list")
    for name, data in contents.items():
        if listed[name] != {"bytes": len(data), "sha256": _sha256(data)}:
            raise refused("as it was packed", f"{name} changed since")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _too_large(size_bytes: int, limit_bytes: int) -> ValueError:
    limit = units.count_bytes(limit_bytes)
    return refused(f"of at most {limit}", f"{units.count_bytes(size_bytes)} or more")


def refused(rule: str, got: str) -> ValueError:
    """Make the error that says why a file is not opened."""
    return ValueError(f"share file must be {rule}, got {got}; ask for it again")
