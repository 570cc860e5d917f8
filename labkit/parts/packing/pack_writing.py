"""Writing a pack: shard after shard, so that what was stopped can be gone on with.

    samples → 00000.tar 00000.npz  00001.tar 00001.npz …  ─ manifest.json ─ rename

The order is what makes it safe: a shard, its index, the manifest, the folder's name.  Main trap: a
disk that is full half way.  What is unfinished goes, what is whole stays for the next call.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from labkit.contracts import Annotation
from labkit.files import locked, write_whole
from labkit.parts.packing.content import Content, encode
from labkit.parts.packing.index import Index, IndexBuilder, load_index, save_index
from labkit.parts.packing.manifest import MANIFEST, sha256
from labkit.parts.packing.pack import PACK_SCHEMA, read_json, require
from labkit.parts.packing.shards import Format

ABOUT = "about.json"  # in the unfinished folder: what is being packed


def write_pack(
    format: Format,
    samples: Callable[[int], Iterable[tuple[str, Content, Annotation]]],
    path: Path | str,
    *,
    about: Mapping[str, object],
    shard_bytes: int | None = None,
) -> int:
    """Write a pack, or go on with one that was stopped.

    Args:
        format: how.
        samples: called once with the number of records that are already there; gives the
            (name, content, boxes) of all that follow.
        path: the pack's folder, which must not exist.
        about: what the manifest says of the data: stored, source_hash, boxes, and anything else
            that must be the same for a stopped pack to be gone on with.
        shard_bytes: a shard ends with the record that reaches this size; unset: the format's own.

    Returns:
        The bytes of all its files but the manifest.

    Raises:
        ValueError: `path` exists, there is no record, or a name is given twice in a row.
        Skip: the library that writes it is not installed.
        OSError: it cannot be written; what is whole stays for the next call.
    """
    root = Path(path).expanduser().absolute()
    _check_new(root)
    require(format)
    part = root.with_name(f".{root.name}.part")
    about = {**about, "packing": format.packed_as, "pack_schema": PACK_SCHEMA}
    about = json.loads(json.dumps(about))
    part.mkdir(parents=True, exist_ok=True)
    busy = ValueError(
        f"path must be packed to by one process at a time, got another one in {part}; "
        "wait until it has ended"
    )
    with locked(part, busy=busy):
        _check_new(root, part)  # another process may have finished it meanwhile
        shards = _whole_shards(part, about, format.suffix)
        done = sum(len(index) for _, index in shards)
        rest = iter(samples(done))
        while (first := next(rest, None)) is not None:
            file = part / f"{len(shards):05}{format.suffix}"
            records = itertools.chain([first], rest)
            index = _write_shard(format, records, file, about, shard_bytes or format.shard_bytes)
            shards.append((file, index))
        if not shards:
            raise ValueError(f"data must hold at least one image to be packed, got none for {path}")
        size_bytes = _finish(part, about, shards)
        part.rename(root)
    return size_bytes


def _check_new(root: Path, part: Path | None = None) -> None:
    if root.exists():
        if part is not None:
            with contextlib.suppress(OSError):
                part.rmdir()  # was made in vain
        raise ValueError(
            f"path must be a new folder, got {str(root)!r}, which exists; remove it first"
        )


def _write_shard(
    format: Format,
    samples: Iterator[tuple[str, Content, Annotation]],
    file: Path,
    about: Mapping[str, object],
    shard_bytes: int,
) -> Index:
    builder, written_bytes = IndexBuilder(), 0
    unfinished = file.with_name(f".{file.name}.part")
    try:
        _remove(unfinished)
        with format.create(unfinished, str(about["stored"])) as add:
            for name, content, annotation in samples:
                record, size_px = encode(content)
                offset = add(name, record, annotation, size_px)
                builder.add(name, record, annotation, offset, size_px)
                written_bytes += len(record)
                if written_bytes >= shard_bytes:
                    break
        _sync(unfinished)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(unfinished)  # it takes room that is wanted
        raise
    _remove(file)  # left without an index
    unfinished.rename(file)
    index = builder.finish()
    save_index(index, file.with_suffix(".npz"))  # last: it says that the shard is whole
    return index


def _whole_shards(part: Path, about: Mapping, suffix: str) -> list[tuple[Path, Index]]:
    """Give the shards that an earlier call finished; begin anew where it packed something else."""
    if read_json(part / ABOUT) != about:
        for left in part.iterdir():
            _remove(left)
        write_whole(part / ABOUT, json.dumps(about))
    found = []
    while (file := part / f"{len(found):05}{suffix}").exists():
        try:
            found.append((file, load_index(file.with_suffix(".npz"))))
        except (OSError, ValueError):  # killed between the two: this one is written again
            break
    return found


def _finish(part: Path, about: Mapping, shards: list[tuple[Path, Index]]) -> int:
    (part / ABOUT).unlink()
    keep = {name for file, _ in shards for name in (file.name, file.with_suffix(".npz").name)}
    for left in part.iterdir():
        if left.name not in keep:
            _remove(left)
    files, bytes_in_folders = {}, 0
    for file, records in shards:
        index = file.with_suffix(".npz")
        if file.is_dir():
            bytes_in_folders += int(records.record_bytes.sum())
        else:
            files[file.name] = {"bytes": file.stat().st_size}
        files[index.name] = {"bytes": index.stat().st_size, "sha256": sha256(index.read_bytes())}
    manifest = {
        "schema": 1,
        **about,
        "images": sum(len(index) for _, index in shards),
        "bytes": sum(entry["bytes"] for entry in files.values()) + bytes_in_folders,
        "shards": [file.name for file, _ in shards],
        "files": files,
    }
    write_whole(part / MANIFEST, json.dumps(manifest, indent=1))
    return manifest["bytes"]


def _sync(file: Path) -> None:
    """Have a file on the disk before an index says that it is whole."""
    if file.is_dir():
        return  # thousands of files would take minutes; what is lost with the power is named
    with file.open("rb+") as opened:  # Windows syncs only what may be written
        os.fsync(opened.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
