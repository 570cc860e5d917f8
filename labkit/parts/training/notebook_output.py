"""A notebook's output, on the way that a kernel's print takes.

    print ─▶ buffer ─(every 0.2 s, a thread)─▶ ZeroMQ on loopback ─▶ in place of the Jupyter server

ipykernel's own stream, thread and messages.  Main trap: `print` returns before anything is sent;
the thread that sends shares the interpreter lock with the training loop.  The browser, which has
to draw it, is not there.  Source: ipykernel's iostream.py, and kernelapp.py for how it is set up.
"""

from __future__ import annotations

import asyncio
import atexit
import secrets
import threading

from labkit.parts.training import far_ends
from labkit.parts.training.terminal import far_end, take_arrived
from labkit.trial import Skip

START_TIMEOUT_MS = 10_000
LINGER_MS = 1000  # as a kernel's
END_TIMEOUT_S = 5.0


class NotebookOutput:
    """A sink: lines printed as in a cell.

    Raises:
        Skip: ipykernel is not installed, or nobody can be started to take its messages.
    """

    where = "the notebook's output"
    next_step = "restart the kernel or report elsewhere"

    def __init__(self) -> None:
        try:
            import zmq
            from ipykernel.iostream import IOPubThread, OutStream
            from jupyter_client.session import Session
        except ImportError as error:
            raise Skip(f"{error.name} is not installed; pip install ipykernel") from error
        self.arrived: list[str] = []
        """The lines that arrived, from `close` on."""
        self.file = self._thread = self._server = None
        self._context = zmq.Context()
        try:
            socket = self._context.socket(zmq.XPUB)
            socket.linger = LINGER_MS
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            address = f"tcp://127.0.0.1:{port}"
            self._server = far_end("the notebook's server", "notebook", address=address)
            if not socket.poll(START_TIMEOUT_MS):
                raise Skip("the notebook's server must subscribe, got nothing from it")
            socket.recv()  # its subscription: what is sent from here on arrives
            session = Session(key=secrets.token_bytes(), username="labkit")
            self._thread = IOPubThread(socket, pipe=True, session=session)
            self._thread.start()
            # A kernel also takes over the process's own stdout, which the trial's answers need.
            self.file = OutStream(session, self._thread, "stdout", watchfd=False)
            self.file.set_parent(session.msg("execute_request"))
        except BaseException:
            self.close()
            raise

    def write(self, line: str) -> None:
        """Print a line; it is sent later."""
        print(line, file=self.file)

    def close(self) -> None:
        """Send what is left, and end everything that was started."""
        if self._context is None:
            return
        if self.file is not None:
            self.file.flush()
            self._thread.send_multipart([far_ends.END.encode()])
        if self._server is not None:
            self.arrived = "".join(take_arrived(self._server)["arrived"]).splitlines()
        if self.file is not None:
            self.file.close()
        if self._thread is not None:
            _end_tasks(self._thread.io_loop)
            self._thread.stop()
            self._thread.close()
            atexit.unregister(self._thread.stop)  # it would keep all of this
        self._context.destroy(linger=0)
        self._context = None


def _end_tasks(loop: object) -> None:
    """End what runs in a thread's loop beside it: a loop that stops first complains of it."""
    ended = threading.Event()

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ended.set()

    loop.add_callback(end)
    ended.wait(END_TIMEOUT_S)
