"""Checkpoints: the state of training, kept in a file while training waits as little as it can.

    sync     state ─────────────────────────── write, fsync, replace ─▶ training goes on
    thread   state ─ copy ─▶ training goes on; a thread writes the copy
    process  state ─ copy ─▶ training goes on; a process writes the copy, from shared memory

At most one save is under way: a second waits for the first, and that wait is training's, too.
The file is whole at any moment, see `checkpoint_file`.  Main trap: what is written in the
background must be a copy, or the file holds weights of two steps.
Importing this module does not import torch.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from labkit import units
from labkit.clock import SystemClock
from labkit.contracts import Clock
from labkit.parts.training import checkpoint_file
from labkit.trial import Skip

FULL = (errno.ENOSPC, errno.EDQUOT)
REAL_CLOCK = SystemClock()


class CheckpointFailed(OSError):  # noqa: N818 - what failed is the checkpoint; training may go on
    """A checkpoint could not be written; the previous file is whole."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One checkpoint that is on the medium."""

    step: int | None
    """The state's own entry "step", if it has one."""
    size_bytes: int
    blocked_s: float
    """How long training waited, for the save before this one included; the first in the background
    also allocates its memory."""
    took_s: float
    """From the call until it was on the medium."""


class Saver(Protocol):
    """Keeps the newest state in one file."""

    saved: list[Saved]
    """What is on the medium; complete after `finish`."""

    def save(self, state: dict) -> None:
        """Save a state: returns as soon as training may change it again.

        Args:
            state: nested dicts and lists of tensors and numbers, as state_dict() gives.

        Raises:
            CheckpointFailed: this one (sync) or the one before (in the background) could not be
                written; of the latter nothing has been started, so call again to go on.
        """

    def finish(self) -> None:
        """Wait until everything saved is on the medium.

        Raises:
            CheckpointFailed: it could not be written.
        """

    def close(self) -> None:
        """End the thread or process, after what it is writing; whatever happened, and once."""


class _Writer(Protocol):
    """How one state gets to the medium."""

    needed_bytes: int
    """What the tensors of the last state take; known where writing it failed."""

    def begin(self, state: dict) -> None:
        """Return as soon as the state may be changed."""

    def end(self) -> tuple[int, float]:
        """Wait for it; give the file's bytes and the seconds since `begin` has returned."""

    def close(self) -> None:
        """End what was started, once."""


class _Saver:
    def __init__(
        self, build: Callable[[Path, Clock], _Writer], path: Path, clock: Clock = REAL_CLOCK
    ) -> None:
        self._path = Path(path).absolute()
        checkpoint_file.remove_left(self._path)
        self._writer, self._clock = build(self._path, clock), clock
        self._under_way: tuple[int | None, float] | None = None  # its step, seconds blocked
        self.saved: list[Saved] = []

    def save(self, state: dict) -> None:
        start_s = self._clock.now()
        self.finish()
        with self._explained():
            self._writer.begin(state)
        self._under_way = state.get("step"), self._clock.now() - start_s

    def finish(self) -> None:
        if self._under_way is None:
            return
        (step, blocked_s), self._under_way = self._under_way, None
        with self._explained():
            size_bytes, rest_s = self._writer.end()
        took_s = blocked_s + rest_s
        self.saved.append(
            Saved(step=step, size_bytes=size_bytes, blocked_s=blocked_s, took_s=took_s)
        )

    def close(self) -> None:
        self._writer.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointFailed(self._explain(error)) from error

    def _explain(self, error: OSError) -> str:
        folder, got, then = self._path.parent, error.strerror or str(error), "save elsewhere"
        if error.errno in FULL:
            needed, free = self._writer.needed_bytes, shutil.disk_usage(folder).free
            got += f" (needs {units.count_bytes(needed)}, {units.count_bytes(free)} free)"
            then = "free space or save elsewhere"
        text = f"checkpoint must be written to {folder}, got {got}"
        with contextlib.suppress(OSError):  # a folder that cannot be looked into
            if self._path.exists():
                step = self.saved[-1].step if self.saved else None
                text += f"; the {'earlier one' if step is None else f'one of step {step}'} is whole"
        return f"{text}; {then}"


class _Here:
    """Writes in the training loop."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self.needed_bytes = self._size_bytes = 0

    def begin(self, state: dict) -> None:
        try:
            self._size_bytes = checkpoint_file.write(self._path, state)
        except OSError:
            from labkit.parts.training.snapshot import size_of

            self.needed_bytes = size_of(state)
            raise

    def end(self) -> tuple[int, float]:
        return self._size_bytes, 0.0

    def close(self) -> None:
        """Nothing was started."""


class _Thread:
    """Writes in a thread of this process.

    Python code of the training loop goes on beside it: of the 150 ms of CPU time that 190 MB in 393
    tensors took (measured), 9 ms were names, shapes and numbers, with the GIL; the rest, checksums
    and writing, torch does without.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        from labkit.parts.training.snapshot import Memory

        self._path, self._clock, self._memory = path, clock, Memory()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._written: Future | None = None

    @property
    def needed_bytes(self) -> int:
        return self._memory.used_bytes

    def begin(self, state: dict) -> None:
        self._written = self._thread.submit(self._write, self._memory.take(state))

    def end(self) -> tuple[int, float]:
        return self._written.result()

    def close(self) -> None:
        self._thread.shutdown()
        self._memory.close()

    def _write(self, skeleton: bytes) -> tuple[int, float]:
        start_s = self._clock.now()
        size_bytes = checkpoint_file.write(self._path, self._memory.restore(skeleton))
        return size_bytes, self._clock.now() - start_s


class _Process:
    """Writes in a process of its own, from memory that both have.

    It is forked when this is built, in milliseconds where a fresh one would import torch first.
    So build it before CUDA is touched and threads run, as loader workers should be: it inherits
    both, and every page that training then writes to is copied once.  The memory is a file that
    never had a name: whoever is killed, nothing of it stays in /dev/shm.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        from labkit.parts.training import checkpoint_process
        from labkit.parts.training.snapshot import Memory

        if not hasattr(os, "memfd_create"):
            raise Skip(
                "checkpoints by a process need fork and memory without a name, which only Linux "
                "has; choose thread or sync"
            )
        self._descriptor = os.memfd_create("labkit-checkpoint")
        self._memory = Memory(self._descriptor)
        fork = multiprocessing.get_context("fork")
        self._connection, theirs = fork.Pipe()
        arguments = path, theirs, self._descriptor, os.getpid()
        self._process = fork.Process(target=checkpoint_process.serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    @property
    def needed_bytes(self) -> int:
        return self._memory.used_bytes

    def begin(self, state: dict) -> None:
        skeleton = self._memory.take(state)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `end` says so
            self._connection.send((self._memory.used_bytes, skeleton))

    def end(self) -> tuple[int, float]:
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            text = f"an end of the process that writes it (exit status {self._process.exitcode})"
            raise ChildProcessError(errno.ECHILD, text) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        if self._connection.closed:
            return
        with contextlib.suppress(OSError):  # it has ended
            self._connection.send(None)
        self._process.join()
        self._process.close()
        self._connection.close()
        self._memory.close()
        os.close(self._descriptor)


SAVERS: dict[str, Callable[[Path], Saver]] = {
    "sync": partial(_Saver, _Here),
    "thread": partial(_Saver, _Thread),
    "process": partial(_Saver, _Process),
}
"""Name -> takes the file, and a `clock` if not the real one; gives a saver."""
