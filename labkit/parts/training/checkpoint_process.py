"""The process that writes checkpoints for another, and ends when that one does.

    snapshot in shared memory, its skeleton by a connection ─▶ file ─▶ bytes and seconds back

Main trap: loader workers inherit the other end of the connection, so it may stay open after the
training process was killed; this one waits for that process itself.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from labkit.clock import SystemClock
from labkit.parts.training.checkpoint_file import write
from labkit.parts.training.snapshot import Memory


def serve(path: Path, connection: Connection, descriptor: int, parent: int) -> None:
    """Write what comes until None comes.

    Args:
        path: the file.
        connection: gives (bytes of the snapshot, skeleton); takes for each (bytes of the file,
            seconds) or the exception.
        descriptor: the memory that snapshots lie in.
        parent: the process to end with.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training process's to handle
    _end_with(parent)
    torch.set_num_threads(1)  # the others stayed behind in the fork, and nothing here computes
    now, memory = SystemClock.now, Memory(descriptor)
    while order := connection.recv():
        size_bytes, skeleton = order
        start_s = now()
        try:
            memory.reserve(size_bytes)
            answer = write(path, memory.restore(skeleton)), now() - start_s
        except Exception as error:  # whatever it is, training must hear of it
            answer = error
        connection.send(answer)


def _end_with(parent: int) -> None:
    ended = os.pidfd_open(parent)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)

    def watch() -> None:
        select.select([ended], [], [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
