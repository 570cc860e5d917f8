"""The page cache: how much of a file it holds, and evicting files from it.

    cachestat(2), Linux 6.5+  →  else mincore(2)  →  else "unknown"

A counter that finds nothing is believed only if it notices that a page is read: on overlayfs, which
containers use, cachestat asks an inode that never holds pages, while mincore maps the file below.
Pages not yet written to disk cannot be evicted, nor can those that another process has mapped.
cachestat and mincore answer only about files that the user owns or may write; about others mincore
says that everything is resident (kernel commit 134fca9063ad).
Source: cachestat(2), mincore(2), posix_fadvise(2).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from io import FileIO
from pathlib import Path

import numpy as np

from labkit.machine import procfs

Extent = tuple[Path, int, int]
"""A part of a file: its path, and the first byte and the one after the last."""


def can_evict() -> bool:
    """Return whether this platform can drop files from its page cache; some filesystems cannot."""
    return hasattr(os, "posix_fadvise")


def evict(path: Path, keep: Sequence[tuple[int, int]] = ()) -> None:
    """Drop a file from the page cache, as far as the kernel does.

    Args:
        path: of the file.
        keep: (start, stop) of bytes that are read again afterwards, without reading ahead: a folio
            that lies partly outside of a range is not evicted.

    Raises:
        OSError: it cannot be read.
        AttributeError: there is no posix_fadvise on this platform.
    """
    with path.open("rb", buffering=0) as file:
        if not _is_clean(file, path):
            try:
                os.fdatasync(file.fileno())
            except OSError as error:  # squashfs, EROFS, ISO 9660: there is nothing to write
                if error.errno not in (errno.EINVAL, errno.EROFS):
                    raise
        if keep != [(0, _size_bytes(file))]:
            # Length 0 is up to the end: a length that ends inside a page keeps that page.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if keep:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for start, stop in keep:
            os.pread(file.fileno(), stop - start, start)


def residency(extents: Iterable[Path | Extent]) -> tuple[float | None, str]:
    """Measure how much of some files, or of parts of them, the page cache holds.

    Returns:
        Share of all pages, 0 to 1, and how it was measured ("cachestat", "mincore");
        None and "unknown" where that is impossible or not to be trusted.  The share is None
        too where there are no bytes.

    Raises:
        OSError: a file cannot be opened.
    """
    extents = list(extents)
    for name in COUNTERS:
        try:
            return _share(extents, name), name
        except _CannotCount:
            continue
    return None, "unknown"


def fetched_bytes(path: Path) -> int:
    """Evict a file, read its first page, and return what the kernel says this process fetched.

    Returns:
        Bytes from a device or a server; 0 where the kernel does not count them, as with FUSE, or
        does not tell, as in gVisor.

    Raises:
        OSError: the file cannot be read.
    """
    before = _read_bytes()
    evict(path)
    _read_page(path, 0)
    return _read_bytes() - before


def _read_bytes() -> int:
    """Return what this process has read from devices; 0 where that is not known."""
    return procfs.counters("/proc/self/io").get("read_bytes", 0)


class _CannotCount(Exception):  # noqa: N818 - the next way of counting is tried
    """This way of counting does not work here, or not for this file."""


def _size_bytes(file: FileIO) -> int:
    return os.fstat(file.fileno()).st_size


def _share(extents: list[Path | Extent], counter: str) -> float | None:
    pages = 0
    resident: dict[int, int] = {}  # of each filesystem
    empty: dict[int, tuple[Path, int]] = {}  # filesystem -> a page that does not seem resident
    for extent in extents:
        path, *span = extent if isinstance(extent, tuple) else (extent,)
        with path.open("rb", buffering=0) as file:
            start, stop = span or (0, _size_bytes(file))
            if start < stop:
                start -= start % mmap.PAGESIZE
                counted = COUNTERS[counter](file, start, stop)
                filesystem = os.fstat(file.fileno()).st_dev
                resident[filesystem] = resident.get(filesystem, 0) + counted
                pages += -(-(stop - start) // mmap.PAGESIZE)
                if not counted:
                    empty.setdefault(filesystem, (path, start))
    for filesystem, page in empty.items():
        if not resident[filesystem] and not _notices_reads(counter, filesystem, *page):
            raise _CannotCount
    return sum(resident.values()) / pages if pages else None


# (counter, filesystem) -> whether it notices that a page is read.
_NOTICES: dict[tuple[str, int], bool] = {}


def _notices_reads(counter: str, filesystem: int, path: Path, start: int) -> bool:
    """Return whether a counter that says that a page is not resident says so no more once it is."""
    key = (counter, filesystem)
    if key not in _NOTICES:
        with path.open("rb", buffering=0) as file:
            _read_page(path, start)
            _NOTICES[key] = COUNTERS[counter](file, start, start + 1) > 0
            if can_evict():  # as it was before
                os.posix_fadvise(file.fileno(), start, mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
    return _NOTICES[key]


def _read_page(path: Path, start: int) -> None:
    with path.open("rb", buffering=0) as file:
        if can_evict():  # without reading ahead
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 1, start)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return libc


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("resident", "dirty", "write_back", "evicted", "recently_evicted")
    )


def _cachestat(file: FileIO, start: int, stop: int) -> _CacheStat:
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise _CannotCount
    stat = _CacheStat()
    # With length 0 (to the end) pages of a large folio beyond the end would count too.
    span = _Range(start, stop - start)
    failed = _libc().syscall(
        ctypes.c_long(451),  # cachestat, of Linux 6.5 and later, on x86-64 and arm64
        ctypes.c_int(file.fileno()),
        ctypes.byref(span),
        ctypes.byref(stat),
        ctypes.c_uint(0),
    )
    if failed:  # an older kernel, a sandbox, or a file that is not ours
        raise _CannotCount
    return stat


def _count_by_cachestat(file: FileIO, start: int, stop: int) -> int:
    return _cachestat(file, start, stop).resident


def _count_by_mincore(file: FileIO, start: int, stop: int) -> int:
    if sys.platform != "linux" or not _mincore_tells_the_truth(file):
        raise _CannotCount
    length = stop - start
    pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
    try:
        mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
    except OSError as error:  # some network filesystems let no file be mapped
        raise _CannotCount from error
    with mapped:
        array = np.frombuffer(mapped, np.uint8)
        failed = _libc().mincore(array.ctypes.data, length, pages)
        del array  # or the map could not be closed
    if failed:
        raise _CannotCount
    flags = np.frombuffer(pages.raw, np.uint8)
    return int(np.count_nonzero(flags & 1))  # the other bits are undefined


def _mincore_tells_the_truth(file: FileIO) -> bool:
    """Whether the kernel lets us see: we own the file or may write it."""
    return os.fstat(file.fileno()).st_uid == os.geteuid() or os.access(
        file.name, os.W_OK, effective_ids=True
    )


# Tried in this order; the first that works for all files counts.
COUNTERS: dict[str, Callable[[FileIO, int, int], int]] = {
    "cachestat": _count_by_cachestat,
    "mincore": _count_by_mincore,
}


def _is_clean(file: FileIO, path: Path) -> bool:
    """Whether everything is known to be on the disk; a sync for nothing costs a disk's flush."""
    try:
        stat = _cachestat(file, 0, _size_bytes(file))
    except _CannotCount:
        return False
    if stat.resident or not _size_bytes(file):
        return not stat.dirty and not stat.write_back
    return _notices_reads("cachestat", os.fstat(file.fileno()).st_dev, path, 0)
