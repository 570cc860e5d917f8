"""Helpers: processes beside a run, which answer, end with it and are none of its work."""

import pytest

from labkit.contracts import Skip
from labkit.machine import helper
from labkit.machine.helper import Helper
from tests.processes import left


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
