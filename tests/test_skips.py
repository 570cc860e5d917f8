"""Which skips fail where all reasons have to be known."""

import pytest
import skips


@pytest.mark.parametrize(
    ("reason", "fails"),
    [
        ("there is no NVIDIA GPU", False),
        ("not installed: tensorflow", False),
        ("there is no Chromium: apt-get install chromium", True),
        ("labkit says that it cannot", True),
    ],
)
def test_a_skip_fails_for_a_reason_that_is_not_in_the_table(monkeypatch, reason, fails):
    monkeypatch.setattr(skips, "FAILS_ON_SKIPS", True)
    assert skips.fails(reason) is fails
    monkeypatch.setattr(skips, "FAILS_ON_SKIPS", False)
    assert not skips.fails(reason)
