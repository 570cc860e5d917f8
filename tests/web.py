"""A web server for tests that gives files, from any byte on, and misbehaves where it is told to."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class Web:
    """Where it is, and what it was asked for."""

    def __init__(self, url: str, faults: Mapping[str, Sequence[str]]) -> None:
        self.url = url
        self.faults = dict(faults)
        self.asked: Counter[str] = Counter()
        self.requests: list[tuple[str, str | None]] = []
        """Name of a file, and the Range header."""


@contextlib.contextmanager
def web(folder: Path, faults: Mapping[str, Sequence[str]] | None = None) -> Iterator[Web]:
    """Serve a folder over http.

    Args:
        folder: its files, by their path below it.
        faults: the end of a path -> what happens to the first, second ... request for it: a
            status, "half", "cut 100" (after 100 bytes) or "ok"; the last one goes on for ever.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            path, wanted = unquote(self.path).lstrip("/"), self.headers.get("Range")
            with lock:
                asked, here.asked[path] = here.asked[path], here.asked[path] + 1
                here.requests.append((path.rpartition("/")[2], wanted))
            happens = next((f for end, f in here.faults.items() if path.endswith(end)), ["ok"])
            what, _, most = happens[min(asked, len(happens) - 1)].partition(" ")
            if what.isdigit() or not (folder / path).is_file():
                return self.send_error(int(what) if what.isdigit() else 404)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            body = (folder / path).read_bytes()[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if what != "ok":
                body, self.close_connection = body[: int(most or len(body) // 2)], True
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            pass

    lock = threading.Lock()
    with Server(("127.0.0.1", 0), Handler) as server:
        here = Web(f"http://127.0.0.1:{server.server_address[1]}", faults or {})
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield here
        finally:
            server.shutdown()
            thread.join()
