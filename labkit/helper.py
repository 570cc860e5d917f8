"""Helper: a process of the run's own that stands in for what is elsewhere: a server, a terminal.

    Helper(program, spec) ── a line of JSON ──▶ the process ── a line of JSON ──▶ .ready
    say(line)             ── a line of JSON ──▶             ── a line of JSON ──▶ its answer
    close(), or the end of this process ──────▶ its input ends, and it with it

A process, not a thread, so that it takes nothing of this one's interpreter lock; what it takes of
the CPU is the run's own, and neither a trial's work nor its disturbance.  Main trap: whatever is
forked from this process holds the helper's input open, too.  A helper that must end before such a
process does has to be told so by a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence

from labkit.trial import Skip

# In the environment of a trial: ids of the helpers that are up.
HELPERS = "LABKIT_HELPERS"
ANSWER_TIMEOUT_S = 30.0  # a first import from a cold disk takes seconds
END_TIMEOUT_S = 5.0


def numbers() -> set[int]:
    """Give the ids of the helpers of this process and of those that started it."""
    return {int(one) for one in os.environ.get(HELPERS, "").split() if one.isdecimal()}


class Helper:
    """A process that takes lines of JSON and answers each with one.

    Args:
        what: its name in messages, as "the distance's server".
        program: Python's arguments: `-m` and a module, or a file.
        spec: its first line.
        pass_fds: open files of this process that it is to have.
        start_new_session: Ctrl-C in a terminal, and the end of this process's group, pass it by.

    Raises:
        Skip: it does not start.
    """

    def __init__(
        self,
        what: str,
        program: Sequence[str],
        spec: Mapping[str, object],
        *,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> None:
        self._what = what
        self._process = subprocess.Popen(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=pass_fds,
            start_new_session=start_new_session,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.pid = self._process.pid
        _register(numbers() | {self.pid})
        try:
            self.ready = self.say(spec)
        except BaseException:
            self.close()
            raise

    def say(self, line: Mapping[str, object]) -> dict:
        """Send a line, and take its answer.

        Raises:
            Skip: there is none.
        """
        process = self._process
        try:
            process.stdin.write(json.dumps(line).encode() + b"\n")
            process.stdin.flush()
            can_wait = sys.platform != "win32"  # there a pipe cannot be waited for with a limit
            if can_wait and not select.select([process.stdout], [], [], ANSWER_TIMEOUT_S)[0]:
                raise Skip(f"{self._what} must answer within {ANSWER_TIMEOUT_S:g} s, got nothing")
            return json.loads(process.stdout.readline())
        except (OSError, ValueError) as error:
            raise Skip(f"{self._what} could not be started: {error}") from error

    def close(self) -> None:
        """End it, however it is; more than once does no harm."""
        process = self._process
        with contextlib.suppress(OSError):
            process.stdin.close()  # what it ends by
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        _register(numbers() - {self.pid})


def _register(pids: set[int]) -> None:
    os.environ.pop(HELPERS, None)
    if pids:
        os.environ[HELPERS] = " ".join(map(str, sorted(pids)))
