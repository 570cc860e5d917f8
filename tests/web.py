"""A web server for tests that gives files, and misbehaves where it is told to."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class Web:
    """Where it is, and what it was asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: Counter[str] = Counter()


@contextlib.contextmanager
def web(folder: Path, faults: Mapping[str, Sequence[str]] | None = None) -> Iterator[Web]:
    """Serve a folder over http.

    Args:
        folder: its files, by their path below it.
        faults: the end of a path -> what happens to the first, second ... request for it: a
            status, "half", "reset" or "ok"; the last one goes on for ever.
    """
    faults = faults or {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            path = unquote(self.path).lstrip("/")
            with lock:
                asked, here.asked[path] = here.asked[path], here.asked[path] + 1
            happens = next((f for end, f in faults.items() if path.endswith(end)), ["ok"])
            what = happens[min(asked, len(happens) - 1)]
            if what == "reset":  # an end without a farewell
                end = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, end)
                self.connection.close()
                self.close_connection = True
                return
            file = folder / path
            if what == "ok" and not file.is_file():
                what = "404"
            body = file.read_bytes() if what in ("ok", "half") else what.encode()
            self.send_response(200 if what in ("ok", "half") else int(what))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if what == "half":
                body, self.close_connection = body[: len(body) // 2], True
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            pass

    lock = threading.Lock()
    with Server(("127.0.0.1", 0), Handler) as server:
        here = Web(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield here
        finally:
            server.shutdown()
            thread.join()
