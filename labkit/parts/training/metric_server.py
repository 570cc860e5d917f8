"""A metric server, and the client that waits for its answer.

    write ─▶ POST {"report": line} on a connection that is kept ─▶ server ─(a delay)─▶ 200 ─▶ back

One request for every report, as metric clients send them; the training loop waits for the answer.
Main trap: a server that hangs would stop the training; after `TIMEOUT_S` the report has failed.
Python's own http.client; clients on top of requests take a few tenths of a millisecond more.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from labkit.parts.training.terminal import far_end, take_arrived

TIMEOUT_S = 2.0


class MetricClient:
    """A sink: one POST for every line.

    Args:
        url: the server's, `http://host:port/path`.
        timeout_s: how long to wait for a connection or an answer.

    Raises:
        ValueError: another kind of URL.
    """

    next_step = "start the server or report elsewhere"

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"url must be http://<host>:<port>, got {url!r}")
        self.where, self._path = url, parts.path or "/"
        self._connection = HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)

    def write(self, line: str) -> None:
        """Send a line, and wait for the answer.

        Raises:
            OSError: there is none, or one that says it was not taken.
        """
        body = json.dumps({"report": line})
        head = {"Content-Type": "application/json"}
        try:
            self._connection.request("POST", self._path, body, head)
            answer = self._connection.getresponse()
            answer.read()  # to its end: the connection is used again
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"no answer within {self._connection.timeout:g} s") from error
        except (OSError, HTTPException) as error:
            self.close()  # the next report tries a new one
            if isinstance(error, HTTPException) and not isinstance(error, OSError):
                raise OSError(f"no HTTP: {error!r}") from error
            raise
        if not 200 <= answer.status < 300:
            raise OSError(f"status {answer.status} {answer.reason}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class EmulatedServer:
    """A sink with a server of its own on loopback, which answers after a set delay.

    Args:
        delay_ms: from a report's arrival to the answer.

    Raises:
        Skip: the server does not start.
    """

    next_step = MetricClient.next_step

    def __init__(self, delay_ms: int) -> None:
        self.arrived: list[str] = []
        """The bodies that arrived, from `close` on."""
        self.waited_s: list[float] = []
        """How long each waited for its answer, by the server's clock."""
        self._server = far_end("the metric server", "metrics", delay_s=delay_ms / 1e3)
        self.where = f"http://127.0.0.1:{self._server.ready['port']}"
        self._client = MetricClient(self.where)
        self.write = self._client.write

    def close(self) -> None:
        """Close the connection and end the server."""
        self._client.close()
        if self._server is not None:
            found, self._server = take_arrived(self._server), None
            self.arrived, self.waited_s = found["arrived"], found.get("waited_s", [])
