"""LMDB: a B+ tree in one memory-mapped file, from a running number to an image.

    00000000 → image   00000000.json → name and boxes   00000001 → image   …

Main traps: its file grows only to a size that was set before (here it is set anew when it is
reached); the kernel reads ahead of every access, which shuffled reading throws away, unless it is
told not to (`lmdb_readahead` lets it); and an environment must not be used by the child of the
process that opened it (`lmdb_one_handle` does, to be measured).
"""

from __future__ import annotations

import contextlib
import errno
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from labkit.contracts import Annotation
from labkit.parts.packing.content import boxes_json
from labkit.parts.packing.index import Index
from labkit.parts.packing.shards import OPENING, Add, Format

MAP_BYTES = 64 << 20  # to begin with
BATCH_BYTES = 16 << 20  # of a transaction, which is held in memory and repeated where it fails


@contextlib.contextmanager
def create_lmdb(file: Path, stored: str, *, map_bytes: int = MAP_BYTES) -> Iterator[Add]:
    """Write one shard; see `labkit.parts.packing.shards.Format`.

    Args:
        file: to be made.
        stored: what is stored of an image.
        map_bytes: size to begin with; it doubles as often as it has to.
    """
    import lmdb

    waiting: list[tuple[bytes, bytes]] = []
    images, waiting_bytes = 0, 0

    def flush() -> None:
        nonlocal waiting_bytes
        while True:
            try:
                with environment.begin(write=True) as transaction:
                    for key, value in waiting:
                        transaction.put(key, value, append=True)
                break
            except lmdb.MapFullError:  # nothing of the transaction was kept
                environment.set_mapsize(2 * environment.info()["map_size"])
        waiting.clear()
        waiting_bytes = 0

    def add(name: str, record: bytes, annotation: Annotation, size_px: tuple) -> int:
        nonlocal images, waiting_bytes
        # Beside each image, not all in one value: that would be held in memory to the end.
        described = boxes_json(name, annotation).encode()
        waiting.append((b"%08d" % images, record))
        waiting.append((b"%08d.json" % images, described))
        waiting_bytes += len(record) + len(described)
        images += 1
        if waiting_bytes >= BATCH_BYTES:
            flush()
        return -1

    try:
        # Not synced after each transaction: a shard that is not whole is thrown away.
        environment = lmdb.open(
            str(file), map_size=map_bytes, subdir=False, lock=False, sync=False, metasync=False
        )
        with environment:
            yield add
            flush()
            environment.sync(True)
    except lmdb.Error as error:  # what it says of a full disk is "Input/output error", too
        raise OSError(errno.EIO, f"{error}; is the disk full?", str(file)) from error


# py-lmdb refuses a file that this process has open already, so a second reader gets the first's.
_OPEN: weakref.WeakValueDictionary[tuple[int, int], object] = weakref.WeakValueDictionary()


class LMDBShard:
    """One shard, opened; see `labkit.parts.packing.shards.Shard`."""

    def __init__(self, file: Path, index: Index, *, readahead: bool = False) -> None:
        import lmdb

        stat = file.stat()
        with OPENING:
            self._environment = _OPEN.get((stat.st_dev, stat.st_ino))
            if self._environment is None:
                # A lock would want to write beside a pack, which nobody changes.
                self._environment = lmdb.open(
                    str(file), subdir=False, readonly=True, lock=False, readahead=readahead,
                    meminit=False,
                )  # fmt: skip
                _OPEN[stat.st_dev, stat.st_ino] = self._environment

    def read(self, j: int) -> bytes:
        """Look one number up, and copy what stands there.

        Raises:
            KeyError: there is nothing.
        """
        with self._environment.begin() as transaction:
            record = transaction.get(b"%08d" % j)
        if record is None:
            raise KeyError(f"number {j}")
        return record

    def close(self) -> None:
        """Close the environment, unless another reader of this process uses it."""
        with OPENING:
            self._environment = None  # it closes itself where nobody has it any more

    __del__ = close


LMDB = Format(
    name="lmdb",
    suffix=".lmdb",
    create=create_lmdb,
    open=LMDBShard,
    needs=("lmdb",),
    handles="closed before a fork",
)
LMDB_READAHEAD = replace(
    LMDB, name="lmdb_readahead", variant_of="lmdb", open=partial(LMDBShard, readahead=True)
)
LMDB_ONE_HANDLE = replace(LMDB, name="lmdb_one_handle", variant_of="lmdb", handles="shared")
