"""The server of `distance`: a process of its own, which ends when whoever started it does.

    stdin: one line of JSON (what to serve, how late) ─▶ port on stdout ─▶ requests until stdin ends

A thread per connection waits until the answer is due, by the clock and not by lengths of sleep: a
late awakening is made up for by the next piece.  It listens on loopback only, wants the secret
first, and gives the listed files, by number.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from labkit.contracts import Clock, SleepingClock
from labkit.parts.storage.distance import FILES, SOON, SOON_S, ZEROS

PIECE_BYTES = 256 << 10
MAX_CREDIT_S = 0.05
"""Most lateness that is made up for: who did not take its bytes earns no faster link."""


class Link:
    """The one link: every piece is booked after the one before, whoever asked for it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = float("-inf")
        self._lock = threading.Lock()

    def book(self, ready_s: float, size_bytes: int) -> float:
        """Book bytes that could leave at `ready_s`; say when the last one arrives."""
        with self._lock:
            self._free_s = max(ready_s, self._free_s) + size_bytes / self._bytes_per_s
            return self._free_s


@dataclass(frozen=True, kw_only=True)
class Way:
    """The way between the server and its readers."""

    link: Link
    clock: Clock
    rtt_s: float
    own_s: float = 0.0
    """What this machine itself takes for a request: part of the round trip."""

    def due_s(self, asked_s: float, *, first: bool) -> float:
        """Say when an answer may begin: a new connection takes a round trip of its own."""
        return asked_s + max(0.0, (2 if first else 1) * self.rtt_s - self.own_s)

    def deliver(
        self, pieces: Iterable[bytes], ready_s: float, send: Callable[[bytes], None]
    ) -> None:
        """Send pieces when the link would have brought them."""
        for piece in pieces:
            ready_s = self.link.book(ready_s, len(piece))
            self.clock.sleep_until(ready_s)
            send(piece)
            ready_s = max(ready_s, self.clock.now() - MAX_CREDIT_S)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.first = True

    def parse_request(self) -> bool:
        self.asked_s = self.server.way.clock.now()
        return super().parse_request()

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        first, self.first = self.first, False
        secret, _, path = self.path.removeprefix("/").partition("/")
        size_bytes, body = self._body(path) if secret == self.server.secret else (None, None)
        way = self.server.way
        ready_s = way.due_s(self.asked_s, first=first)
        if path == SOON:
            ready_s = self.asked_s + SOON_S
        head = self._head(404 if body is None else 200, size_bytes or 0)
        way.deliver(_with_head(head, body or ()), ready_s, self.wfile.write)

    def _body(self, path: str) -> tuple[int | None, Iterator[bytes] | None]:
        kind, _, number = path.partition("/")
        if kind == ZEROS and number.isdecimal():
            return int(number), _zeros(int(number))
        if kind == SOON:
            return 0, iter(())
        if kind != FILES or not number.isdecimal() or int(number) >= len(self.server.files):
            return None, None
        try:
            # Opened before the answer begins: its size is what will be sent.
            file = open(self.server.files[int(number)], "rb")  # noqa: PTH123
        except OSError:
            return None, None
        return os.fstat(file.fileno()).st_size, _pieces(file)

    def _head(self, status: int, size_bytes: int) -> bytes:
        reason = self.responses[status][0]
        return (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/octet-stream\r\n"
            f"Content-Length: {size_bytes}\r\n\r\n"
        ).encode()


def _with_head(head: bytes, body: Iterable[bytes]) -> Iterator[bytes]:
    """Put the head before the first piece: two small packets would be two more awakenings."""
    for piece in body:
        yield head + piece
        head = b""
    if head:
        yield head


def _zeros(size_bytes: int) -> Iterator[bytes]:
    block = bytes(PIECE_BYTES)
    while size_bytes > 0:
        yield block[:size_bytes]
        size_bytes -= PIECE_BYTES


def _pieces(file: object) -> Iterator[bytes]:
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, spec: dict) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.secret = spec["files"], spec["secret"]
        link = Link(spec["bytes_per_s"])
        self.way = Way(link=link, clock=SleepingClock(), rtt_s=spec["rtt_s"])

    def handle_error(self, *_: object) -> None:
        return  # a reader that went away


def serve() -> None:
    """Serve until the input ends: whoever holds its other end is then gone."""
    server = _Server(json.loads(sys.stdin.readline()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)  # noqa: T201
    for line in sys.stdin:
        way = server.way
        own_s = json.loads(line)["own_s"]
        server.way = Way(link=way.link, clock=way.clock, rtt_s=way.rtt_s, own_s=own_s)
        print(json.dumps({"own_s": own_s}), flush=True)  # noqa: T201
    os._exit(0)  # threads may be in the middle of an answer


if __name__ == "__main__":
    serve()
