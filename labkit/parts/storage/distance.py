"""Distance: data far away, stood in for by a server on this machine that answers as late.

    request ──▶ server: one round trip, then the body at the link's rate ──▶ reader
                (one round trip more for a new connection; one link for all connections)

Real files, real sockets, real HTTP; only the waiting is added.  What it does not do: TCP's slow
start, lost packets, a server that is busy.  A real distance of the same round trip and bandwidth
is slower, not faster.  The loopback's own time, a tenth of a millisecond, is measured and counted
as part of the round trip.
Source: RFC 9293 section 3.5, a connection takes one round trip before the first request.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from labkit.contracts import Annotation, Skip
from labkit.machine.helper import Helper
from labkit.parts.storage.disks import Rate

FORM = "far_<round trip>ms_<bandwidth>mbit, as far_20ms_1000mbit, or with _staged after it"
_NAME = re.compile(r"far_(\d{1,5})ms_(\d{1,7})mbit(_staged)?")
# Of this process and all that it starts: name and folder -> the server's address.
ADDRESSES = "LABKIT_DISTANCES"
SOON_S = 0.002  # what an answer waits by which the machine's own share is measured
OWN_TRIPS = 50
CHECK_READERS = (1, 4)
CHECK_S = 0.5
CHECK_TRIPS = (8, 200)  # fewest and most small requests of a check
ANSWER_TIMEOUT_S = 60.0
FILES, ZEROS, SOON = "files", "zeros", "soon"


class FolderReader(Protocol):
    """What `FarReader` needs of an opened folder; see `labkit.parts.packing`."""

    image_bytes: np.ndarray

    def __len__(self) -> int: ...

    def where(self, i: int) -> str:
        """Name the file of image `i`."""

    def parse(self, jpeg: bytes, i: int) -> tuple[bytes, Annotation]:
        """Check the bytes of file `i`, and add its boxes."""


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far away data is."""

    rtt_ms: int
    mbit_per_s: int
    staged: bool = False
    """Copied from there first, and then read here."""

    @property
    def rtt_s(self) -> float:
        """One round trip."""
        return self.rtt_ms / 1e3

    @property
    def bytes_per_s(self) -> float:
        """The link's bandwidth, shared by all connections."""
        return self.mbit_per_s * 1e6 / 8

    @property
    def label(self) -> str:
        """What the rows call it: emulated distance(20 ms, 1,000 Mbit/s)."""
        staged = ", staged" if self.staged else ""
        return f"emulated distance({self.rtt_ms} ms, {self.mbit_per_s:,} Mbit/s{staged})"


def parse(name: str) -> Distance | None:
    """Take a distance from a storage's name; None where it is no such name."""
    found = _NAME.fullmatch(name)
    if found is None or not int(found[2]):
        return None
    return Distance(rtt_ms=int(found[1]), mbit_per_s=int(found[2]), staged=bool(found[3]))


def address(name: str, folder: Path) -> str:
    """Find the server that a run has put up; empty where there is none."""
    return _addresses().get(_key(name, folder), "")


def _key(name: str, folder: Path) -> str:
    return f"{name} {folder.expanduser().absolute()}"


def _addresses() -> dict[str, str]:
    return json.loads(os.environ.get(ADDRESSES, "{}"))


@contextlib.contextmanager
def served(distance: Distance, name: str, folder: Path, files: Sequence[Path]) -> Iterator[str]:
    """Serve files at a distance for as long as the context lasts, each by its place in the list.

    The server is a process of its own; it ends when this one does, however that happens.  What it
    takes of the CPU is the run's own, and no disturbance of a trial.

    Args:
        distance: round trip and bandwidth.
        name: the storage's.
        folder: as settings name it; with `name` what `address` finds it by.
        files: those of the images first, in their order.

    Yields:
        Its address, with a secret in it: other users of this machine must not read the data.

    Raises:
        Skip: it does not start.
    """
    secret = secrets.token_urlsafe(16)
    spec = {
        "files": [os.fspath(path) for path in files],
        "rtt_s": distance.rtt_s,
        "bytes_per_s": distance.bytes_per_s,
        "secret": secret,
    }
    program = ["-m", "labkit.parts.storage.distance_server"]
    server = Helper("the distance's server", program, spec)
    try:
        found = f"http://127.0.0.1:{server.ready['port']}/{secret}"
        server.say({"own_s": _own_s(found)})
        _remember(_key(name, folder), found)
        yield found
    finally:
        _remember(_key(name, folder), None)
        server.close()


def _remember(key: str, found: str | None) -> None:
    known = {**_addresses(), key: found}
    os.environ[ADDRESSES] = json.dumps({k: v for k, v in known.items() if v})


def measure(distance: Distance, address: str, seconds: float = CHECK_S) -> list[Rate]:
    """Measure what a server delivers: round trips one after another, and bytes of many.

    Args:
        distance: what is requested of it.
        address: from `served`.
        seconds: about how long each of the measurements takes.

    Returns:
        Small requests a second on one connection, and bytes a second with 1 and with 4 readers.

    Raises:
        Skip: it does not answer.
    """
    try:
        with Line(address) as line:
            line.get(f"{ZEROS}/0")
            fewest, most = CHECK_TRIPS
            trips = most if not distance.rtt_ms else int(seconds / distance.rtt_s)
            trips = min(max(trips, fewest), most)
            trip_s = [line.get(f"{ZEROS}/0") for _ in range(trips)]
        rates = [
            Rate(
                pattern="round trips",
                unit="requests",
                readers=1,
                requested_per_s=1 / distance.rtt_s if distance.rtt_ms else float("inf"),
                # The median: what another program takes of one trip is not the distance's doing.
                delivered_per_s=1 / statistics.median(trip_s),
            )
        ]
        for readers in CHECK_READERS:
            rates.append(
                Rate(
                    pattern="together",
                    unit="bytes",
                    readers=readers,
                    requested_per_s=distance.bytes_per_s,
                    delivered_per_s=_bytes_per_s(distance, address, readers, seconds),
                )
            )
    except OSError as error:
        raise Skip(f"the distance's server does not answer: {error}") from error
    return rates


def _bytes_per_s(distance: Distance, address: str, readers: int, seconds: float) -> float:
    size_bytes = max(1, round(distance.bytes_per_s * seconds / readers))
    start, times, failed = threading.Barrier(readers), [], []

    def read() -> None:
        try:
            with Line(address) as line:
                line.get(f"{ZEROS}/0")  # the connection's own round trip
                start.wait(ANSWER_TIMEOUT_S)
                start_s = time.perf_counter()
                line.get(f"{ZEROS}/{size_bytes}")
                times.append((start_s, time.perf_counter()))
        except (OSError, threading.BrokenBarrierError) as error:
            failed.append(error)
            start.abort()

    threads = [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise OSError(f"{failed[0]}")
    starts_s, ends_s = zip(*times)
    # The request's round trip is not the link's.
    took_s = max(ends_s) - min(starts_s) - distance.rtt_s
    return readers * size_bytes / max(took_s, 1e-9)


def _own_s(address: str) -> float:
    """Measure what a request takes here beyond its wait: the loopback, and late awakenings."""
    with Line(address) as line:
        line.get(SOON)
        trips_s = [line.get(SOON) for _ in range(OWN_TRIPS)]
    return max(0.0, statistics.median(trips_s) - SOON_S)


class Line:
    """One connection to the server, with next to no work of its own."""

    def __init__(self, address: str) -> None:
        self.address, self.pid = address, os.getpid()
        host, _, self._secret = address.removeprefix("http://").partition("/")
        name, _, port = host.partition(":")
        self._socket = socket.create_connection((name, int(port)), ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Line:
        """Nothing more to open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._socket.close()

    def get(self, path: str, take: Callable[[bytes], object] = len) -> float:
        """Ask for a path and read the answer to its end; `take` gets the body's pieces.

        Returns:
            Seconds until the last byte.

        Raises:
            OSError: the server refuses, or is gone.
        """
        start_s = time.perf_counter()
        request = f"GET /{self._secret}/{path} HTTP/1.1\r\nHost: far\r\n\r\n"
        self._socket.sendall(request.encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._receive()
        head, _, piece = head.partition(b"\r\n\r\n")
        status, size = head.split()[1], re.search(rb"(?i)content-length: *(\d+)", head)
        if status != b"200" or size is None:
            raise OSError(f"status {status.decode()}")
        take(piece)
        left_bytes = int(size[1]) - len(piece)
        while left_bytes > 0:
            take(piece := self._receive())
            left_bytes -= len(piece)
        return time.perf_counter() - start_s

    def _receive(self) -> bytes:
        if not (piece := self._socket.recv(1 << 20)):
            raise OSError("the connection ended")
        return piece


_LINES = threading.local()


def fetch(address: str, number: int, take: Callable[[bytes], object]) -> None:
    """Fetch file `number`, over a connection that this thread keeps; `take` gets its pieces."""
    line = getattr(_LINES, "line", None)
    # A fork must not read from its parent's connection.
    if line is None or (line.address, line.pid) != (address, os.getpid()):
        line = _LINES.line = Line(address)
    try:
        line.get(f"{FILES}/{number}", take)
    except OSError:
        _LINES.line = None  # there may be half an answer in it
        raise


class FarReader:
    """A folder of images that are fetched one by one; all else of it is known here.

    Args:
        reader: the opened folder.
        address: from `served`.
    """

    # Of images that come over a network no page cache here holds anything.
    paths: tuple[Path, ...] = ()

    def __init__(self, reader: FolderReader, address: str) -> None:
        self.reader, self.address = reader, address

    def __len__(self) -> int:
        return len(self.reader)

    def __getattr__(self, name: str) -> object:
        # While this is unpickled there is no `reader` yet: asking for it would go on for ever.
        if name == "reader" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.reader, name)

    def files_of(self, indices: Iterable[int]) -> tuple[Path, ...]:
        """List nothing, as `paths`."""
        return ()

    def read(self, i: int) -> tuple[bytes, Annotation]:
        """Fetch one file; see `labkit.parts.packing.Reader.read`."""
        jpeg = bytearray()
        try:
            fetch(self.address, i, jpeg.extend)
        except OSError as error:
            raise OSError(
                f"{self.where(i)} must be given by the distance's server, got {error}"
            ) from error
        return self.reader.parse(bytes(jpeg), i)

    def prepare(self) -> dict[str, object]:
        """Begin the proof of a cache state: that there is none; see `storage.prepare`."""
        return {
            "wanted": "as found",
            "method": "none",
            "measured_by": "remote: no page cache of this machine",
            "resident_share_before": None,
        }

    def prove(self, ids: np.ndarray, proof: dict[str, object]) -> dict[str, object]:
        """Complete the proof; see `storage.prove`."""
        unknown = ("resident_share_after", "logical_read_bytes", "device_read_bytes")
        file_bytes = int(self.image_bytes[np.unique(ids)].sum()) or None
        return {**proof, **dict.fromkeys(unknown), "file_bytes": file_bytes}
