"""The far ends of what a training loop reports to: programs of their own, which take it in.

    terminal   behind a pseudo-terminal: takes what is printed, draws nothing
    notebook   in the place of a Jupyter server: takes a kernel's messages, sends them nowhere
    metrics    a metric server on loopback, which answers so many seconds after it was asked

    stdin: a line of JSON (which, how) ─▶ a line on stdout: it is ready ─▶ reports
           a second line ─▶ what has arrived, on stdout, and it ends; as it does when stdin ends

Main trap: this file is run by its path, so that a trial waits for it no longer than it must; it
may import nothing of labkit.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

END = "\x04"
"""What ends a terminal's text: bytes go through the kernel's terminal later than they are sent."""
END_TIMEOUT_S = 2.0  # what was sent before the second line arrives within milliseconds
DELIMITER = b"<IDS|MSG>"  # before a message's signature, header, parent, metadata and content


def tell(**what: object) -> None:
    """Answer with one line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def asked_to_end() -> bool:
    """Wait for the second line; without it, whoever started this process is gone."""
    if not sys.stdin.readline():
        os._exit(0)
    return True


def take_terminal(descriptor: int) -> None:
    """Read a pseudo-terminal's other side to its end."""
    tell()
    text, ending = b"", False
    while not text.endswith(END.encode()):
        watched = [descriptor] if ending else [descriptor, sys.stdin]
        ready, _, _ = select.select(watched, [], [], END_TIMEOUT_S if ending else None)
        if not ready:
            break
        if descriptor in ready:
            try:
                text += os.read(descriptor, 1 << 16)
            except OSError:  # EIO: nobody has it open to write to it
                if ending or asked_to_end():
                    break
        elif sys.stdin in ready:
            ending = asked_to_end()
    tell(arrived=[text.decode(errors="replace").removesuffix(END)])


def take_notebook(address: str) -> None:
    """Subscribe to everything that a kernel publishes, as a Jupyter server does."""
    import zmq

    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"")
    socket.connect(address)
    tell()
    asked = threading.Event()
    threading.Thread(target=lambda: asked_to_end() and asked.set(), daemon=True).start()
    messages = []
    while messages[-1:] != [[END.encode()]]:
        if socket.poll(END_TIMEOUT_S * 1e3):
            messages.append(socket.recv_multipart())
        elif asked.is_set():
            break
    contents = [m[m.index(DELIMITER) + 5] for m in messages if DELIMITER in m]
    tell(arrived=[json.loads(content)["text"] for content in contents])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Metrics

    def log_message(self, *_: object) -> None:
        return

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked_s = time.perf_counter()
        due_s = asked_s + self.server.delay_s
        while (remaining_s := due_s - time.perf_counter()) > 0:
            time.sleep(remaining_s)
        self.server.arrived.append(body.decode())
        self.server.waited_s.append(time.perf_counter() - asked_s)
        # One packet: two would be two awakenings of whoever waits for it.
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


class _Metrics(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, delay_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.delay_s = delay_s
        self.arrived, self.waited_s = [], []

    def handle_error(self, *_: object) -> None:
        return  # whoever asked went away


def serve_metrics(delay_s: float) -> None:
    """Answer every report so many seconds after it has arrived."""
    server = _Metrics(delay_s)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tell(port=server.server_address[1])
    asked_to_end()
    tell(arrived=server.arrived, waited_s=server.waited_s)
    os._exit(0)  # threads may be in the middle of an answer


KINDS = {"terminal": take_terminal, "notebook": take_notebook, "metrics": serve_metrics}

if __name__ == "__main__":
    spec = json.loads(sys.stdin.readline())
    KINDS[spec.pop("kind")](**spec)
