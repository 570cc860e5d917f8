"""Helper: a server in a process of its own, for the time of a run.

    Helper(what, program, spec) ── a line of JSON ──▶ the process ── a line of JSON ──▶ .ready
    say(line)                   ── a line of JSON ──▶             ── a line of JSON ──▶ its answer

A process, not a thread: it must not hold the interpreter lock of the training loop.  Its CPU time
counts neither as the trial's nor as a disturbance.  It ends when its input does, so also when this
process is killed.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.contracts import Skip

# Environment variable: the process ids of the helpers that are running.
HELPERS = "LABKIT_HELPERS"
ANSWER_TIMEOUT_S = 30.0  # a first import from a cold disk takes seconds


def pids() -> set[int]:
    """Return the process ids of the helpers of this process and of its parents."""
    return {int(pid) for pid in os.environ.get(HELPERS, "").split()}


class Helper:
    """A process that answers lines of JSON with lines of JSON.

    Args:
        what: its name in messages, as "the distance's server".
        program: Python's arguments: `-m` and a module, or a file.
        spec: its first line.

    Raises:
        Skip: it does not start.
    """

    def __init__(self, what: str, program: Sequence[str], spec: Mapping[str, Any]) -> None:
        self._what = what
        self._process = subprocess.Popen(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal reaches the runner alone
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.pid = self._process.pid
        _register(pids() | {self.pid})
        try:
            self.ready = self.say(spec)
        except BaseException:
            self.close()
            raise

    def say(self, line: Mapping[str, Any]) -> dict:
        """Send a line and return the answer.

        Raises:
            Skip: there is none.
        """
        process: Any = self._process  # with pipes
        try:
            process.stdin.write(json.dumps(line).encode() + b"\n")
            process.stdin.flush()
            can_wait = sys.platform != "win32"  # where select takes no pipes
            if can_wait and not select.select([process.stdout], [], [], ANSWER_TIMEOUT_S)[0]:
                raise Skip(f"{self._what} must answer within {ANSWER_TIMEOUT_S:g} s, got nothing")
            return json.loads(process.stdout.readline())
        except (OSError, ValueError) as error:
            raise Skip(f"{self._what} could not be started: {error}") from error

    def close(self) -> None:
        """End the process; may be called again."""
        self._process.kill()  # forked loader workers may still hold its input open
        self._process.communicate()
        _register(pids() - {self.pid})


def _register(pids: set[int]) -> None:
    os.environ.pop(HELPERS, None)
    if pids:
        os.environ[HELPERS] = " ".join(map(str, sorted(pids)))
