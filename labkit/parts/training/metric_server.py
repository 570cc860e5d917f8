"""A metric server on loopback that answers each report after a delay.

Started by its path in a process of its own, so that it takes no time from the training loop.  It
imports nothing of labkit, so that it starts quickly.

    stdin: {"delay_s": 0.005}     stdout: {"port": 40123}     ends when stdin does
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        return

    def do_POST(self) -> None:
        due_s = time.perf_counter() + self.server.delay_s
        self.rfile.read(int(self.headers["Content-Length"]))
        while (remaining_s := due_s - time.perf_counter()) > 0:
            time.sleep(remaining_s)
        # In one packet: two would wake the client twice.
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.delay_s = json.loads(sys.stdin.readline())["delay_s"]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)  # noqa: T201
    sys.stdin.read()
    os._exit(0)  # without waiting for answers in progress
