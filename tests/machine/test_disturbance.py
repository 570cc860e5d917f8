"""The disturbance log: real load on this machine has to show up in it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.machine.disturbance import disturbance, since

SPIN_S = 0.6
SPIN = f"import time\nwhile time.process_time() < {SPIN_S}: pass"


def test_own_work_and_that_of_children_is_nobody_elses():
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc/stat counts the time of the cores")
    before = disturbance()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    after = since(before)
    now = disturbance()
    # A process may count what was stolen from it meanwhile as its own.
    total = sum((now[name] or 0) - (before[name] or 0) for name in ("busy_s", "steal_s"))
    assert total >= 0.8 * SPIN_S
    assert after["other_cores"] * after["duration_s"] <= total - 0.8 * SPIN_S


def test_what_was_unknown_stays_unknown():
    before = dict.fromkeys(disturbance()) | {"clock_s": time.monotonic()}
    after = since(before)
    assert after["steal_share"] is None
    assert after["other_cores"] is None
    assert after["swapped_in_pages"] is None
