"""Formats: files that hold many records, written once and read record by record.

    write(folder, images, records) ─▶ files, spans        open(files, spans) ─▶ .read(i)

A format stores records only; names and boxes are in the pack's index. LMDB does not allow a process
to use a file that its parent opened; the other files may be read on after a fork.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

Records = Iterable[tuple[str, bytes]]
"""(name, bytes) of each image, in order."""


class Opened(Protocol):
    """The files of one pack, open in this process."""

    def read(self, i: int) -> bytes:
        """Return record `i`."""

    def close(self) -> None:
        """Close the files."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way to put many records into files."""

    name: str
    """Key of PACKINGS, and the beginning of its packs' folder names."""
    write: Callable[[Path, int, Records], np.ndarray | None]
    """(folder, images, records) -> writes files; returns (N, ...) int64, where each record lies in
    its file; None where the format looks records up by itself."""
    open: Callable[[Sequence[Path], np.ndarray], Opened]
    """(files, what `write` returned) -> opens them for reading in this process."""
    needs: str = ""
    """The module it is written and read with, of those that the extra `formats` brings."""
    images_per_file: Callable[[int], int] = int
    """Images of the pack -> those of one of its files."""


# --- raw: record after record in one file, mapped into memory ---------------------------------


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


class RawFile:
    """A file of bytes, mapped into memory, so that page faults read it instead of calls."""

    def __init__(self, files: Sequence[Path], spans: np.ndarray) -> None:
        self._spans = spans
        with files[0].open("rb") as opened:
            self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, i: int) -> bytes:
        """Copy one record out of the map."""
        start, end = self._spans[i]
        return self._map[start:end]

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


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


class PthFile:
    """A .pth file, mapped, read with `weights_only=True`, since a pickle can run any program."""

    def __init__(self, files: Sequence[Path], spans: np.ndarray) -> None:
        import torch

        self._images = torch.load(files[0], mmap=True, weights_only=True)

    def read(self, i: int) -> bytes:
        """Copy one record out of its tensor."""
        return self._images[i].numpy().tobytes()

    def close(self) -> None:
        """Release the tensors, and so the map."""
        self._images = []


# --- hdf5: one dataset of byte strings of any length -------------------------------------------


def write_hdf5(folder: Path, images: int, records: Records) -> None:
    """Write the dataset `images`, (N,) of uint8 strings."""
    import h5py

    with h5py.File(folder / "images.h5", "w") as file:
        rows = file.create_dataset("images", (images,), dtype=h5py.vlen_dtype(np.uint8))
        for i, (_, record) in enumerate(records):
            rows[i] = np.frombuffer(record, np.uint8)


class HDF5File:
    """An HDF5 file, opened."""

    def __init__(self, files: Sequence[Path], spans: np.ndarray) -> None:
        import h5py

        # A finished pack is not written to, and some network file systems have no locks.
        self._file = h5py.File(files[0], "r", locking=False)
        self._images = self._file["images"]

    def read(self, i: int) -> bytes:
        """Read one entry of the dataset."""
        return self._images[i].tobytes()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# --- lmdb: a B+ tree in one mapped file, from a running number to an image ----------------------

MAP_BYTES = 1 << 40  # what the file may grow to; py-lmdb's documentation: 1 TB costs nothing
IMAGES_PER_TRANSACTION = 100  # held in memory until they are written


def write_lmdb(folder: Path, images: int, records: Records) -> None:
    """Write one key for each image: its number in eight digits."""
    import lmdb

    file = folder / "images.lmdb"
    try:
        # Not synced after each transaction: an incomplete pack is removed.
        with lmdb.open(
            str(file), map_size=MAP_BYTES, subdir=False, lock=False, sync=False
        ) as environment:
            rest = enumerate(records)
            while batch := [item for _, item in zip(range(IMAGES_PER_TRANSACTION), rest)]:
                with environment.begin(write=True) as transaction:
                    for i, (_, record) in batch:
                        transaction.put(b"%08d" % i, record, append=True)
            environment.sync(True)
    except lmdb.Error as error:
        raise OSError(errno.EIO, f"{error}; is the disk full?", str(file)) from error


# py-lmdb refuses a file that this process has open already, so a second reader gets the first's.
_ENVIRONMENTS: weakref.WeakValueDictionary[Path, object] = weakref.WeakValueDictionary()
_OPENED: weakref.WeakSet[LMDBFile] = weakref.WeakSet()
_READING = threading.RLock()


class LMDBFile:
    """An LMDB environment, opened; closed before a fork, as a child must not use its parent's."""

    def __init__(self, files: Sequence[Path], spans: np.ndarray) -> None:
        self._path, self._environment = files[0], None
        with _READING:
            _OPENED.add(self)

    def read(self, i: int) -> bytes:
        """Look one number up, and copy what stands there."""
        with _READING:  # no fork meanwhile
            self._environment = self._environment or self._open()
            with self._environment.begin() as transaction:
                record = transaction.get(b"%08d" % i)
            del transaction  # it would hold the environment open
        if record is None:
            raise KeyError(f"number {i}")
        return record

    def _open(self) -> object:
        import lmdb

        if (environment := _ENVIRONMENTS.get(self._path)) is None:
            # A lock would be a file beside the pack, which is not written to. Reading ahead, LMDB's
            # default, is wasted where the order is shuffled.
            environment = _ENVIRONMENTS[self._path] = lmdb.open(
                str(self._path), subdir=False, readonly=True, lock=False, readahead=False,
                meminit=False,
            )  # fmt: skip
        return environment

    def close(self) -> None:
        """Release the environment, which is closed when no other reader has it."""
        with _READING:
            self._environment = None

    __del__ = close


def _close_before_fork() -> None:
    _READING.acquire()
    for file in list(_OPENED):
        file.close()


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
START_BYTES = LENGTH.size + CRC.size
# Loaders that read shards in parallel need several, even if an epoch has few images.
FEWEST_IN_SHARD, MOST_SHARDS = 16, 256


def images_per_shard(images: int) -> int:
    """Return how many images a TFRecord shard holds."""
    return max(FEWEST_IN_SHARD, -(-images // MOST_SHARDS))


def masked_crc(data: bytes) -> bytes:
    """Return TFRecord's checksum of data: CRC-32C, rotated, plus a constant, 4 bytes."""
    import crc32c

    crc = crc32c.crc32c(data)
    return CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def write_tfrecord(folder: Path, images: int, records: Records) -> np.ndarray:
    """Write shards; return where each frame begins, its image begins, and the frame ends."""
    spans = np.zeros((images, 3), np.int64)
    per_shard, file = images_per_shard(images), None
    try:
        for i, (name, record) in enumerate(records):
            if i % per_shard == 0:
                if file is not None:
                    file.close()
                file = (folder / f"images-{i // per_shard:05}.tfrecord").open("wb")
            content = _example(name, record)
            length, start = LENGTH.pack(len(content)), file.tell()
            file.writelines([length, masked_crc(length), content, masked_crc(content)])
            spans[i] = start, file.tell() - CRC.size - len(record), file.tell()
    finally:
        if file is not None:
            file.close()
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


class TFRecordFile:
    """The shards of a TFRecord pack, opened one by one as they are needed."""

    def __init__(self, files: Sequence[Path], spans: np.ndarray) -> None:
        self._files, self._spans = files, spans
        self._per_shard = images_per_shard(len(spans))
        self._opened: dict[int, BinaryIO] = {}
        self._lock = threading.Lock()

    def read(self, i: int) -> bytes:
        """Read one `Example`, check both checksums as TensorFlow does, and return the image.

        Raises:
            ValueError: a checksum differs.
        """
        start, image, end = map(int, self._spans[i])
        frame = self._read(i // self._per_shard, end - start, start)
        length, content = frame[: LENGTH.size], frame[START_BYTES : -CRC.size]
        found = masked_crc(length) + masked_crc(content)
        stored = frame[LENGTH.size : START_BYTES] + frame[-CRC.size :]
        if found != stored:
            raise ValueError(f"TFRecord must have CRCs {stored.hex()}, got {found.hex()}")
        return frame[image - start : -CRC.size]

    def _read(self, shard: int, size_bytes: int, at: int) -> bytes:
        if shard not in self._opened:
            # Without a lock: a fork would copy it while another thread holds it.
            opened = self._files[shard].open("rb", buffering=0)
            if self._opened.setdefault(shard, opened) is not opened:
                opened.close()  # another thread was first
        file = self._opened[shard]
        if hasattr(os, "pread"):
            return os.pread(file.fileno(), size_bytes, at)  # forks share the file's own position
        with self._lock:  # Windows, which has no forks
            file.seek(at)
            return file.read(size_bytes)

    def close(self) -> None:
        """Close the shards."""
        while self._opened:
            self._opened.popitem()[1].close()


RAW = Format(name="raw", write=write_raw, open=RawFile)
PTH = Format(name="pth", write=write_pth, open=PthFile)
HDF5 = Format(name="hdf5", write=write_hdf5, open=HDF5File, needs="h5py")
LMDB = Format(name="lmdb", write=write_lmdb, open=LMDBFile, needs="lmdb")
TFRECORD = Format(
    name="tfrecord",
    write=write_tfrecord,
    open=TFRecordFile,
    needs="crc32c",
    images_per_file=images_per_shard,
)
