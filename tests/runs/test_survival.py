"""What was finished stays, and a run can be completed, whichever process is killed.

200 kills instead of one of each kind: python -m benchmarks.kills
"""

import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from kernel import needs_fork

from benchmarks.kills import TARGETS, Siege


@needs_fork
@pytest.mark.long
def test_kills_lose_nothing_and_leave_nothing():
    rng = random.Random(10)
    targets = [*TARGETS]
    rng.shuffle(targets)
    # Sockets need a short path.
    with tempfile.TemporaryDirectory() as place, Siege(Path(place), rng, blocks=5) as siege:
        siege.strike(targets)
        assert siege.record.losses == []
        assert siege.leftovers() == []
        assert siege.record.kills == Counter(targets)
