"""Reports in the background: a remedy for sinks that take long.

    loop ─ line ─▶ queue ─▶ a thread ─ write ─▶ sink

Main trap: a sink that is slower than the loop fills the queue, and then the loop waits all the
same; and the thread shares the interpreter lock with the loop.
"""

from __future__ import annotations

import queue
import threading

from labkit.parts.training.sinks import ReportFailed, Sink

QUEUE_REPORTS = 100
"""Most reports that wait for the thread: some seconds' worth for a slow server."""


class in_background:  # noqa: N801 - reads as a function: in_background(open_sink(...))
    """A remedy: a thread writes, and the loop goes on.

    The reports keep their order.  Where `QUEUE_REPORTS` wait, `write` waits, too: a sink that is
    slower than the loop stops it all the same, later.  A failure is raised once, by the next
    `write` (whose own report is taken) or by `close`; what waited behind it until then is
    dropped and counted, since a server that hangs would fail each of them after its time-out.

    Args:
        sink: what the thread writes to.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lines: queue.Queue[str | None] = queue.Queue(QUEUE_REPORTS)
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_all, name="reports", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Hand a report over.

        Raises:
            ReportFailed: an earlier one did not arrive.
        """
        failure = self._take_failure()
        self._lines.put(line)
        if failure is not None:
            raise failure

    def finish(self) -> None:
        """Wait until all reports are written.

        Raises:
            ReportFailed: one of them did not arrive.
        """
        self._lines.join()
        if (failure := self._take_failure()) is not None:
            raise failure

    def close(self) -> None:
        """Wait until all reports are written, and close the sink.

        Raises:
            ReportFailed: one of them did not arrive.
        """
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join()
        try:
            self._sink.close()
        finally:
            if (failure := self._take_failure()) is not None:
                raise failure

    def _take_failure(self) -> ReportFailed | None:
        with self._lock:
            failure, dropped = self._failure, self._dropped
            self._failure, self._dropped = None, 0
        if failure is None:
            return None
        behind = f" ({dropped} reports behind it were dropped)" if dropped else ""
        return ReportFailed(f"{failure}{behind}")

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(line)
            finally:
                self._lines.task_done()

    def _write(self, line: str) -> None:
        if self._failure is not None:
            with self._lock:
                self._dropped += 1
            return
        try:
            self._sink.write(line)
        except Exception as error:  # raised where somebody hears of it
            with self._lock:
                self._failure = error
