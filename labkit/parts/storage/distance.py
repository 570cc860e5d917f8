"""Distance: data far away, simulated by a server on this machine that answers late.

    request ──▶ server: one round trip, then the body at the link's rate ──▶ reader
                (one round trip more for a new connection; one link for all connections)

Real files, real sockets, real HTTP; only the waiting is added. TCP's slow start, lost packets and a
busy server are left out, so a real distance of the same round trip and bandwidth is slower, not
faster. What this machine itself takes for a request, a tenth of a millisecond, is measured and
counted as part of the round trip.

Source: RFC 9293 section 3.5, a connection takes one round trip before the first request.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from labkit.contracts import Annotation, Chosen, Reader, Skip
from labkit.machine.helper import Helper
from labkit.machine.late_server import PROGRAM, SOON_S
from labkit.parts.storage import cache_state
from labkit.parts.storage.disks import Rate, measure_together
from labkit.parts.storage.folder import Storage, WrappedReader, copy_in
from labkit.records import Hardware

FORM = "far_<round trip>ms_<bandwidth>mbit, as far_20ms_1000mbit, or with _staged after it"
COPIES = Path("/var/tmp")  # not /tmp, which is memory on many systems
NAME = re.compile(r"far_(\d{1,5})ms_([1-9]\d{0,6})mbit(_staged)?")


@dataclass(frozen=True, kw_only=True)
class Distance(Storage):
    """Copy the data from a server that is as far away."""

    rtt_s: float
    """One round trip."""
    bytes_per_s: float
    """The link's bandwidth, shared by all connections."""
    copied_at_once: ClassVar[int] = 8

    @property
    def address(self) -> str:
        """The server's address while a run has it up; else empty."""
        return os.environ.get(self._variable, "")

    @property
    def _variable(self) -> str:
        """The environment variable by which trials know the address, too."""
        return f"LABKIT_{self.name}_{zlib.crc32(os.fsencode(self.directory.absolute())):x}"

    @contextlib.contextmanager
    def put_up(
        self, reader: Reader, others: Sequence[Reader], say: Callable[[str], None]
    ) -> Iterator[None]:
        """Serve the data set's files, each by its place in the list; see `Storage.put_up`.

        The server is a process of its own; it ends when this one does, however that happens. The
        CPU time that it takes is the run's own, and no disturbance of a trial.
        """
        say(f"{self.name}: the distance is simulated by a server on this machine")
        secret = secrets.token_urlsafe(16)  # other users of this machine must not read the data
        spec = {
            "files": [os.fspath(path) for path in (*reader.paths, *reader.companions)],
            "rtt_s": self.rtt_s,
            "bytes_per_s": self.bytes_per_s,
            "secret": secret,
        }
        server = Helper("the distance's server", PROGRAM, spec)
        try:
            os.environ[self._variable] = f"127.0.0.1:{server.ready['port']}/{secret}"
            server.say({"own_s": _own_s(self.address)})
            yield
        finally:
            os.environ.pop(self._variable, None)
            vars(_KEPT).clear()
            server.close()

    def pieces(self, number: int, file: Path) -> Iterator[bytes]:
        """Fetch a file that is to be copied here; see `Storage.pieces`."""
        return fetch(self.address, f"files/{number}")

    def measure(
        self,
        reader: Reader,
        ids: Sequence[int],
        readers: int,
        start_method: str,
        seconds: float,
    ) -> list[Rate]:
        """Measure round trips, and bytes per second of 1 and 4 readers; see `Storage.measure`."""
        seconds = min(seconds, 0.5)
        trips = min(max(int(seconds / self.rtt_s), 8), 200) if self.rtt_s else 200
        try:
            # The median: what another program takes of one trip is not the distance's doing.
            trip_s = _trip_s(self.address, "zeros/0", trips)
            together = {n: self._bytes_per_s(n, start_method, seconds) for n in (1, 4)}
        except OSError as error:
            raise Skip(f"the distance's server does not answer: {error}") from error
        round_trips = Rate(
            pattern="round trips",
            unit="requests",
            readers=1,
            requested_per_s=1 / self.rtt_s if self.rtt_s else float("inf"),
            delivered_per_s=1 / trip_s,
        )
        at_once = [
            Rate(
                pattern="together",
                unit="bytes",
                readers=n,
                requested_per_s=self.bytes_per_s,
                delivered_per_s=delivered,
            )
            for n, delivered in together.items()
        ]
        return [round_trips, *at_once]

    def _bytes_per_s(self, readers: int, start_method: str, seconds: float) -> float:
        size_bytes = max(1, round(self.bytes_per_s * seconds / readers))
        asked = [(self.address, f"zeros/{size_bytes}")] * readers
        starts_s, ends_s = zip(*measure_together(_time_span, asked, start_method))
        # A new connection's two round trips are not the link's.
        took_s = max(ends_s) - min(starts_s) - 2 * self.rtt_s
        return readers * size_bytes / max(took_s, 1e-9)


@dataclass(frozen=True, kw_only=True)
class RemoteStorage(Distance):
    """Fetch every image from the server when it is read."""

    is_remote: ClassVar[bool] = True
    needs_our_reader: ClassVar[bool] = True

    def why_not(self, chosen: Chosen) -> str:
        """Refuse what cannot be where every image comes over a network; see `Storage.why_not`."""
        settings = chosen.settings
        if settings.cache != "as found":
            return (
                "cache must be 'as found' for images that come over a network, got "
                f"{settings.cache_label!r}: none of them is in this machine's page cache, so no "
                "state of it can be produced; set cache='as found', or a storage to copy them to"
            )
        if settings.packing != "folder":
            return (
                "packing must be 'folder' for images that come over a network one by one, got "
                f"{settings.packing!r}; set a storage to copy the pack to"
            )
        return ""

    def open(self, reader: Reader, start_method: str) -> Reader:
        """Return a reader that asks the server; see `Storage.open`.

        Raises:
            Skip: no run has the server up.
        """
        if not self.address:
            raise Skip(f"{self.name} is there for as long as a run takes; start one")
        return RemoteReader(reader, self.address)

    def prepare_cache(self, reader: Any, ids: np.ndarray, cache: str | int) -> dict[str, Any]:
        """Return a proof without a page cache of this machine; see `Storage.prepare_cache`."""
        cache_state.make_warm(reader.reader.files_of(np.sort(ids)))  # the server's own reads
        return {
            "wanted": "as found",
            "method": "none",
            "measured_by": "remote: no page cache of this machine",
            "resident_share_before": None,
        }

    def prove_cache(self, reader: Reader, ids: np.ndarray, proof: dict[str, Any]) -> dict[str, Any]:
        """Complete the proof; see `Storage.prove_cache`."""
        unknown = ("resident_share_after", "logical_read_bytes", "device_read_bytes")
        file_bytes = int(reader.image_bytes[ids].sum()) or None
        return {**proof, **dict.fromkeys(unknown), "file_bytes": file_bytes}


def at_distance(name: str, data: Path) -> Distance | None:
    """Read the data from a server as far away, which the run puts up; or copy it from there.

    Returns:
        None where the name is not that of a distance, as in `FORM`.

    Raises:
        Skip: there is no folder to copy to.
    """
    match = NAME.fullmatch(name)
    if match is None:
        return None
    rtt_ms, mbit_per_s, staged = int(match[1]), int(match[2]), ", staged" if match[3] else ""
    known: dict[str, Any] = {
        "name": name,
        "hardware": Hardware("storage", "simulated", f"{rtt_ms} ms, {mbit_per_s:,} Mbit/s{staged}"),
        "rtt_s": rtt_ms / 1e3,
        "bytes_per_s": mbit_per_s * 1e6 / 8,
    }
    if not staged:
        return RemoteStorage(directory=data, **known)
    if not (hasattr(os, "getuid") and os.access(COPIES, os.W_OK)):
        raise Skip(f"{name} needs {COPIES} to copy to, which this platform does not have")
    copy = copy_in(COPIES, f"labkit-{os.getuid()}-{name}-", data)
    return Distance(temporary=True, **copy, **known)


class RemoteReader(WrappedReader):
    """A folder of images that are fetched one by one; names, sizes and boxes are known here.

    Args:
        reader: the opened folder.
        address: of the server, with the secret.
    """

    # Of images that come over a network no page cache here holds anything.
    paths: tuple[Path, ...] = ()

    def __init__(self, reader: Reader, address: str) -> None:
        super().__init__(reader)
        self.address = address

    def files_of(self, indices: Iterable[int]) -> tuple[Path, ...]:
        """List nothing, as `paths`."""
        return ()

    def read(self, i: int) -> tuple[bytes, Annotation]:
        """Fetch one file and add its boxes."""
        try:
            jpeg = b"".join(fetch(self.address, f"files/{i}"))
        except OSError as error:
            raise OSError(
                f"{self.where(i)} must be given by the distance's server, got {error}"
            ) from error
        return self.reader.parse(jpeg, i)


# --- requests -----------------------------------------------------------------------------------

_KEPT = threading.local()


def fetch(address: str, path: str) -> Iterator[bytes]:
    """Fetch a path in pieces, over a connection that this thread keeps.

    Raises:
        OSError: the server refuses, or is gone.
    """
    host, _, secret = address.partition("/")
    own = address, os.getpid()  # a fork must not read from its parent's connection
    # Kept again at the end only: after an error there may be half an answer in it.
    owner, connection = vars(_KEPT).pop("connection", (None, None))
    if owner != own:
        connection = HTTPConnection(host, timeout=60)
    try:
        connection.request("GET", f"/{secret}/{path}")
        answer = connection.getresponse()
        while piece := answer.read(1 << 20):
            yield piece
    except HTTPException as error:
        raise OSError(f"the connection ended: {error}") from error
    if answer.status != 200:
        raise OSError(f"status {answer.status}")
    if answer.length:  # `read` says nothing of bytes that did not come
        raise OSError("the connection ended")
    _KEPT.connection = own, connection


def _time_span(asked: tuple[str, str]) -> tuple[float, float]:
    """Return when a path of an address was asked for, and when the last byte of it was there."""
    start_s = time.perf_counter()
    for _ in fetch(*asked):
        pass
    return start_s, time.perf_counter()


def _trip_s(address: str, path: str, trips: int) -> float:
    """Return the median time of a request on a connection that is open already."""
    spans_s = [_time_span((address, path)) for _ in range(1 + trips)]
    return statistics.median(end_s - start_s for start_s, end_s in spans_s[1:])


def _own_s(address: str) -> float:
    """Measure what a request takes here beyond its wait: the loopback, and late awakenings."""
    return max(0.0, _trip_s(address, "soon", 50) - SOON_S)
