"""Formats: files that hold many records, written once and read record by record.

    write(folder, images, records) ─▶ files, spans        with open(files, spans) as read: read(i)

A format stores records only; names and boxes are in the pack's index. LMDB does not allow a process
to use a file that its parent opened; the other files may be read on after a fork.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import struct
import tarfile
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from labkit.jpeg import JPEG_START

Records = Iterable[tuple[str, bytes]]
"""(name, bytes) of each image, in order."""
Record = bytes | memoryview
"""Bytes of an image, in a mapped file or copied."""
Read = Callable[[int], Record]
"""Returns a record by its number."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way to put many records into files."""

    name: str
    """Key of PACKINGS, and the beginning of its packs' folder names."""
    write: Callable[[Path, int, Records], np.ndarray | None]
    """(folder, images, records) -> writes files; returns (N, ...) int64, where each record lies in
    its file; None where the format looks records up by itself."""
    open: Callable[[Sequence[Path], np.ndarray], AbstractContextManager[Read]]
    """(files, what `write` returned) -> has them open for reading in this process."""
    needs: str = ""
    """The module it is written and read with, of those that the extra `formats` brings."""
    images_per_file: Callable[[int], int] = int
    """Images of the pack -> those of one of its files."""


# --- raw: record after record in one file -----------------------------------------------------


def write_raw(folder: Path, images: int, records: Records) -> np.ndarray:
    """Write one file of bytes."""
    with (folder / "images.raw").open("wb") as file:
        return _write_bytes(file, records)


def _write_bytes(file: BinaryIO, records: Records) -> np.ndarray:
    sizes = array("q", [0])
    for _, record in records:
        file.write(record)
        sizes.append(len(record))
    ends = np.cumsum(sizes)
    return np.stack([ends[:-1], ends[1:]], axis=1)


@contextmanager
def open_raw(files: Sequence[Path], spans: np.ndarray) -> Iterator[Read]:
    """Open the file; read with a call, as a page fault of a mapped file would hold the GIL."""

    def read(i: int) -> bytes:
        start, end = map(int, spans[i])
        return _read_at(file, start, end - start)

    with files[0].open("rb", buffering=0) as file:
        yield read


# --- mapped: the same file, mapped into memory ------------------------------------------------


@contextmanager
def open_mapped(files: Sequence[Path], spans: np.ndarray) -> Iterator[Read]:
    """Map the file into memory: nothing is copied, and only what is used of a record is read.

    Page faults hold the interpreter lock only where Python code causes them; OpenCV releases it.
    """
    with files[0].open("rb") as file:
        # It stays mapped for as long as a record is used.
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def read(i: int) -> Record:
        start, end = map(int, spans[i])
        return content[start:end]

    yield read


# --- pth: torch's own file with a list of uint8 tensors ----------------------------------------


def write_pth(folder: Path, images: int, records: Records) -> None:
    """Save a list of tensors, which are views of one: a mapped file, so not in memory."""
    import torch

    raw = folder / "images.part"
    with raw.open("wb") as file:
        spans = _write_bytes(file, records)
    together = torch.from_file(str(raw), size=raw.stat().st_size, dtype=torch.uint8)
    try:
        torch.save([together[start:end] for start, end in spans.tolist()], folder / "images.pth")
    except RuntimeError as error:  # what torch raises if the disk is full
        raise OSError(errno.EIO, f"{error}; is the disk full?", str(folder)) from error
    raw.unlink()


@contextmanager
def open_pth(files: Sequence[Path], spans: np.ndarray) -> Iterator[Read]:
    """Map the file into memory; with `weights_only=True`, since a pickle can run any program."""
    import torch

    images = torch.load(files[0], mmap=True, weights_only=True)
    yield lambda i: images[i].numpy().tobytes()


# --- hdf5: one dataset of byte strings of any length -------------------------------------------


def write_hdf5(folder: Path, images: int, records: Records) -> None:
    """Write the dataset `images`, (N,) of uint8 strings."""
    import h5py

    with h5py.File(folder / "images.h5", "w") as file:
        rows = file.create_dataset("images", (images,), dtype=h5py.vlen_dtype(np.uint8))
        for i, (_, record) in enumerate(records):
            rows[i] = np.frombuffer(record, np.uint8)


@contextmanager
def open_hdf5(files: Sequence[Path], spans: np.ndarray) -> Iterator[Read]:
    """Open the file without a lock: a finished pack is not written to, and some disks have none."""
    import h5py

    with h5py.File(files[0], "r", locking=False) as file:
        images = file["images"]
        yield lambda i: images[i].tobytes()


# --- lmdb: a B+ tree in one mapped file, from a running number to an image ----------------------


def write_lmdb(folder: Path, images: int, records: Records) -> None:
    """Write one key for each image: its number in eight digits."""
    import lmdb

    file = folder / "images.lmdb"
    try:
        # It may grow to 1 TB, which costs nothing (py-lmdb's documentation).
        # Not synced after each transaction: an incomplete pack is removed.
        with lmdb.open(
            str(file), map_size=1 << 40, subdir=False, lock=False, sync=False
        ) as environment:
            rest = enumerate(records)
            # A transaction's images are in memory until they are written.
            while batch := [item for _, item in zip(range(100), rest)]:
                with environment.begin(write=True) as transaction:
                    for i, (_, record) in batch:
                        transaction.put(b"%08d" % i, record, append=True)
            environment.sync(True)
    except lmdb.Error as error:
        raise OSError(errno.EIO, f"{error}; is the disk full?", str(file)) from error


# All environments that this process has open: py-lmdb opens no file twice in a process, and a child
# must not use its parent's.
_ENVIRONMENTS: dict[Path, Any] = {}
_READERS: Counter[Path] = Counter()
_READING = threading.RLock()


@contextmanager
def open_lmdb(files: Sequence[Path], spans: np.ndarray) -> Iterator[Read]:
    """Open the environment when a record is read; it is closed before a fork.

    Args:
        files: the pack's only one.
        spans: not used: LMDB looks records up by itself.
    """
    import lmdb

    (path,) = files

    def read(i: int) -> bytes:
        with _READING:  # no fork meanwhile
            if path not in _ENVIRONMENTS:
                # A lock would be a file beside the pack, which is not written to.  Readahead: an
                # image is many pages, and without it each is a request (0.50 s instead of 0.05 s
                # for 750 images, cold, measured).
                _ENVIRONMENTS[path] = lmdb.open(
                    str(path), subdir=False, readonly=True, lock=False, readahead=True,
                    meminit=False,
                )  # fmt: skip
            with _ENVIRONMENTS[path].begin() as transaction:
                record = transaction.get(b"%08d" % i)
        if record is None:
            raise KeyError(f"number {i}")
        return record

    with _READING:
        _READERS[path] += 1
    try:
        yield read
    finally:
        with _READING:
            _READERS[path] -= 1
            if not _READERS[path]:
                _close(path)


def _close(path: Path) -> None:
    if path in _ENVIRONMENTS:
        _ENVIRONMENTS.pop(path).close()


def _close_before_fork() -> None:
    _READING.acquire()
    for path in list(_ENVIRONMENTS):
        _close(path)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_close_before_fork, after_in_parent=_READING.release, after_in_child=_READING.release
    )


# --- tfrecord: TensorFlow's framed protocol buffers, in shards ----------------------------------
#
#     length (8) ─ its CRC (4) ─ Example: image/filename, image/encoded ─ its CRC (4)
#
# Source: tensorflow.org/tutorials/load_data/tfrecord; tensorflow/core/example/example.proto.

LENGTH, CRC = struct.Struct("<Q"), struct.Struct("<I")


def images_per_shard(images: int) -> int:
    """Return how many images a TFRecord shard holds: at least 16, in at most 256 shards.

    Loaders that read shards in parallel need several, even if an epoch has few images.
    """
    return max(16, -(-images // 256))


def masked_crc(data: bytes) -> bytes:
    """Return TFRecord's checksum of data: CRC-32C, rotated, plus a constant, 4 bytes."""
    import crc32c

    crc = crc32c.crc32c(data)
    return CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def write_tfrecord(folder: Path, images: int, records: Records) -> np.ndarray:
    """Write shards; return where each frame begins, its image begins, and the frame ends."""
    spans, per_shard = np.zeros((images, 3), np.int64), images_per_shard(images)
    for number, shard in groupby(enumerate(records), lambda item: item[0] // per_shard):
        with (folder / f"images-{number:05}.tfrecord").open("wb") as file:
            for i, (name, record) in shard:
                content = _example(name, record)
                length, start = LENGTH.pack(len(content)), file.tell()
                file.writelines([length, masked_crc(length), content, masked_crc(content)])
                spans[i] = start, file.tell() - CRC.size - len(record), file.tell()
    return spans


def _example(name: str, record: bytes) -> bytes:
    """Encode an `Example` with two features of bytes; the image's come last."""
    features = {b"image/filename": os.fsencode(name), b"image/encoded": record}
    entries = (
        _field(1, key) + _field(2, _field(1, _field(1, value))) for key, value in features.items()
    )
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def _field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field of a protocol buffer: tag, length in groups of 7 bits."""
    head, left = bytearray([number << 3 | 2]), len(content)
    while left > 0x7F:
        head.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes(head) + bytes([left]) + content


@contextmanager
def open_tfrecord(files: Sequence[Path], spans: np.ndarray) -> Iterator[Read]:
    """Open each shard when it is needed; check both checksums of a record, as TensorFlow does."""
    per_shard = images_per_shard(len(spans))

    @cache
    def shard(number: int) -> BinaryIO:
        return opened.enter_context(files[number].open("rb", buffering=0))

    def read(i: int) -> bytes:
        start, image, end = map(int, spans[i])
        frame = _read_at(shard(i // per_shard), start, end - start)
        begin = LENGTH.size + CRC.size
        length, content = frame[: LENGTH.size], frame[begin : -CRC.size]
        computed = masked_crc(length) + masked_crc(content)
        stored = frame[LENGTH.size : begin] + frame[-CRC.size :]
        if computed != stored:
            raise ValueError(f"TFRecord must have CRCs {stored.hex()}, got {computed.hex()}")
        return frame[image - start : -CRC.size]

    with ExitStack() as opened:
        yield read


# --- tar: shards that tar and WebDataset read -------------------------------------------------


def images_per_tar(images: int) -> int:
    """Return how many images a tar shard holds: at least 64, in at most 256 shards.

    A shard has to be long beside the way to the next one: 64 photographs have some megabytes.
    """
    return max(64, -(-images // 256))


def write_tar(folder: Path, images: int, records: Records) -> np.ndarray:
    """Write shards of files that are named by their number; return where each begins and ends."""
    spans, per_shard = np.zeros((images, 2), np.int64), images_per_tar(images)
    for number, shard in groupby(enumerate(records), lambda item: item[0] // per_shard):
        path = folder / f"images-{number:05}.tar"
        with path.open("wb") as file, tarfile.open(fileobj=file, mode="w") as members:
            for i, (_, record) in shard:
                suffix = "jpg" if record.startswith(JPEG_START) else "bin"
                member = tarfile.TarInfo(f"{i:08}.{suffix}")
                member.size = len(record)
                start = file.tell() + tarfile.BLOCKSIZE  # after its header
                members.addfile(member, io.BytesIO(record))
                spans[i] = start, start + len(record)
    return spans


@contextmanager
def open_tar(files: Sequence[Path], spans: np.ndarray) -> Iterator[Read]:
    """Open each shard when it is needed; records lie in it as they are."""
    per_shard = images_per_tar(len(spans))

    @cache
    def shard(number: int) -> BinaryIO:
        return opened.enter_context(files[number].open("rb", buffering=0))

    def read(i: int) -> bytes:
        start, end = map(int, spans[i])
        return _read_at(shard(i // per_shard), start, end - start)

    with ExitStack() as opened:
        yield read


_SEEKING = threading.Lock()


def _read_at(file: BinaryIO, at: int, size_bytes: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(file.fileno(), size_bytes, at)  # forks share the file's own position
    with _SEEKING:  # Windows, which has no forks
        file.seek(at)
        return file.read(size_bytes)


FORMATS = (
    Format(name="raw", write=write_raw, open=open_raw),
    Format(name="mapped", write=write_raw, open=open_mapped),
    Format(name="pth", write=write_pth, open=open_pth),
    Format(name="hdf5", write=write_hdf5, open=open_hdf5, needs="h5py"),
    Format(name="lmdb", write=write_lmdb, open=open_lmdb, needs="lmdb"),
    Format(
        name="tfrecord",
        write=write_tfrecord,
        open=open_tfrecord,
        needs="crc32c",
        images_per_file=images_per_shard,
    ),
    Format(name="tar", write=write_tar, open=open_tar, images_per_file=images_per_tar),
)
