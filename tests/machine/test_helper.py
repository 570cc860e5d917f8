"""Helpers: processes beside a run, which answer, end with it and are none of its work."""

import os

import psutil
import pytest

from labkit.contracts import Skip
from labkit.machine import helper
from labkit.machine.helper import HELPERS, Helper
from tests.processes import left

# Answers every line with what it was told, until its input ends.
ECHO = ["-c", "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"]


def test_it_answers_line_by_line_and_is_known_while_it_is_up():
    before = os.environ.get(HELPERS)
    one, other = Helper("the echo", ECHO, {"n": 1}), Helper("the echo", ECHO, {"n": 2})
    assert (one.ready, other.ready, one.say({"a": "ü"})) == ({"n": 1}, {"n": 2}, {"a": "ü"})
    assert {one.pid, other.pid} <= helper.pids()
    for _ in range(2):
        one.close()
        assert not psutil.pid_exists(one.pid)
    assert one.pid not in helper.pids() and other.pid in helper.pids()
    other.close()
    assert os.environ.get(HELPERS) == before


@pytest.mark.parametrize("program", [["-c", "print('hello')"], ["-m", "labkit.gone"]])
def test_one_that_does_not_answer_is_skipped_and_leaves_nothing(program):
    before = left()
    with pytest.raises(Skip, match=r"^the echo could not be started: "):
        Helper("the echo", program, {})
    assert left() <= before


def test_one_that_says_nothing_is_skipped_and_ended(monkeypatch):
    before = left()
    monkeypatch.setattr(helper, "ANSWER_TIMEOUT_S", 0.05)
    with pytest.raises(Skip, match=r"the echo must answer within 0\.05 s, got nothing"):
        Helper("the echo", ["-c", "import time; time.sleep(600)"], {})
    assert left() <= before
