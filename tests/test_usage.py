"""CPU-seconds: those of every process below this one count, ended or still alive.

Run: python -m pytest tests/test_usage.py
"""

import subprocess
import sys

from labkit.usage import Usage, own_cpu_s

SPIN_S = 0.3
SPIN = f"import time\nwhile time.process_time() < {SPIN_S}: pass"
# A child that stays alive after its own child has ended.
WAIT = f"""import subprocess, sys
subprocess.run([sys.executable, "-c", {SPIN!r}])
print(flush=True)
input()"""


def test_ended_children_of_a_living_child_count():
    before_s = own_cpu_s()
    child = subprocess.Popen(
        [sys.executable, "-c", WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        child.stdout.readline()
        assert own_cpu_s() - before_s >= 0.9 * SPIN_S
        child.communicate(b"\n")


def test_what_a_context_used_is_a_share_of_its_time():
    with Usage(gpu=False) as usage:
        subprocess.run([sys.executable, "-c", SPIN], check=True)
    totals = usage.totals(wall_s=2.0)
    assert totals["cpu_s"] >= 0.9 * SPIN_S
    assert totals["cpu_percent"] == 50 * totals["cpu_s"]
    assert totals["peak_rss_bytes"] is None or totals["peak_rss_bytes"] > 1 << 20
