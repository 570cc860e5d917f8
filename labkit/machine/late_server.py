"""A server on loopback that answers late, as a distant one does; see `helper` for how it is run.

    stdin: one line of JSON (what to serve, how late) ─▶ port on stdout ─▶ requests until stdin ends

It gives the listed files, by number, to who knows the secret, and takes what they post. A thread
per connection waits until the answer is due, by the clock and not by lengths of sleep, so that
waking late is made up for by the next piece. It imports nothing of labkit, so it starts quickly.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO

# Python's arguments that start it: what lies beside the file is not imported.
PROGRAM = ("-P", __file__)
# It gives files/<number>, a listed file; zeros/<number>, so many bytes; and soon: nothing, after
# this time.
SOON_S = 0.002


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, spec: dict) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.secret = spec["files"], spec["secret"]
        self.rtt_s, self.bytes_per_s = spec["rtt_s"], spec["bytes_per_s"]
        self.own_s = 0.0  # what this machine itself takes for a request: part of the round trip
        self._link_free_s = float("-inf")
        self._link = threading.Lock()

    def book(self, ready_s: float, size_bytes: int) -> float:
        """Book bytes of the one link that could leave at `ready_s`; return when the last arrives.

        Every piece comes after the one before, whichever connection asked for it.
        """
        with self._link:
            self._link_free_s = max(ready_s, self._link_free_s) + size_bytes / self.bytes_per_s
            return self._link_free_s

    def handle_error(self, *_: object) -> None:
        return  # a reader that went away


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    round_trips = 2  # before the first answer: a new connection takes one of its own

    def parse_request(self) -> bool:
        self.asked_s = time.perf_counter()
        return super().parse_request()

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        server = self.server
        secret, _, path = self.path.removeprefix("/").partition("/")
        content = self._body(path) if secret == server.secret else None
        status, size_bytes, body = (200, *content) if content else (404, 0, io.BytesIO())
        wait_s = max(0.0, self.round_trips * server.rtt_s - server.own_s)
        self.round_trips = 1
        ready_s = self.asked_s + (SOON_S if path == "soon" else wait_s)
        head = (
            f"HTTP/1.1 {status} {self.responses[status][0]}\r\n"
            "Content-Type: application/octet-stream\r\n"
            f"Content-Length: {size_bytes}\r\n\r\n"
        )
        with body:
            # Two small packets would be two more awakenings.
            piece_bytes = 256 << 10
            piece = head.encode() + body.read(piece_bytes)
            while piece:
                ready_s = server.book(ready_s, len(piece))
                _sleep_until(ready_s)
                self.wfile.write(piece)
                # 0.05 s are made up for: who did not take the bytes earns no faster link.
                ready_s = max(ready_s, time.perf_counter() - 0.05)
                piece = body.read(piece_bytes)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        _sleep_until(self.asked_s + self.server.rtt_s)
        known = self.path == f"/{self.server.secret}"
        status = b"200 OK" if known else b"404 Not Found"
        # In one packet: two would wake the client twice.
        self.wfile.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}")

    def _body(self, path: str) -> tuple[int, BinaryIO] | None:
        """Return what a path names: its size and the bytes; None where there is no such thing."""
        kind, _, number = path.partition("/")
        if kind == "zeros" and number.isdecimal():
            return int(number), io.BytesIO(bytes(int(number)))
        if kind == "soon":
            return 0, io.BytesIO()
        if kind != "files" or not number.isdecimal() or int(number) >= len(self.server.files):
            return None
        try:
            # Opened before the answer begins: its size is what will be sent.
            file = open(self.server.files[int(number)], "rb")  # noqa: PTH123
        except OSError:
            return None
        return os.fstat(file.fileno()).st_size, file


def _sleep_until(due_s: float) -> None:
    while (remaining_s := due_s - time.perf_counter()) > 0:
        time.sleep(remaining_s)


def serve() -> None:
    """Serve until the input ends: the process at its other end is then gone."""
    server = _Server(json.loads(sys.stdin.readline()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)  # noqa: T201
    for line in sys.stdin:
        server.own_s = json.loads(line)["own_s"]
        print(line, end="", flush=True)  # noqa: T201
    os._exit(0)  # threads may be in the middle of an answer


if __name__ == "__main__":
    serve()
