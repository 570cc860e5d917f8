"""The disturbance log: real load on this machine has to show up in it."""

import os
import subprocess
import sys
import time

import pytest

from labkit.machine.disturbance import disturbance, since

SPIN_S = 0.6
SPIN = f"import time\nwhile time.process_time() < {SPIN_S}: pass"
# Keeps a process, so that it can be asked for its CPU time, until its input ends.
STAY = "import sys\nprint(flush=True)\nsys.stdin.read()"
SPIN_AND_STAY = f"{SPIN}\n{STAY}"


def test_own_work_and_that_of_children_is_nobody_elses():
    before = disturbance()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    after = since(before)
    if after["other_cores"] is None:
        pytest.skip("this platform does not count the time of its cores")
    total = disturbance()["busy_s"] - before["busy_s"]
    assert total >= 0.8 * SPIN_S
    assert after["other_cores"] * after["duration_s"] <= total - 0.8 * SPIN_S


def test_the_busiest_other_program_is_named_but_never_the_trial_itself(tmp_path):
    program, trial = tmp_path / "other program", tmp_path / "the trial"
    for name in (program, trial):
        name.symlink_to(sys.executable)
    read, write = os.pipe()
    # Started by a process that ends at once, so that it is no child of this one.
    start = (
        "import subprocess, sys; subprocess.Popen([sys.argv[1], '-c', sys.argv[2]], "
        "stdin=int(sys.argv[3]), stdout=subprocess.DEVNULL)"
    )
    before = disturbance()
    other = [sys.executable, "-c", start, str(program), SPIN_AND_STAY, str(read)]
    subprocess.run(other, check=True, pass_fds=[read])
    command = [trial, "-c", f"{SPIN.replace(str(SPIN_S), str(2 * SPIN_S))}\n{STAY}"]
    with subprocess.Popen(command, stdin=read, stdout=subprocess.PIPE) as own:
        own.stdout.readline()
        after = since(before)
        os.close(read)
        os.close(write)
    assert after["busiest_program"] not in (None, trial.name)
    assert after["busiest_program_cores"] * after["duration_s"] >= 0.8 * SPIN_S


def test_what_was_unknown_stays_unknown():
    before = dict.fromkeys(disturbance()) | {"clock_s": time.monotonic(), "programs": {}}
    after = since(before)
    assert after["steal_share"] is None
    assert after["other_cores"] is None
    assert after["swapped_in_pages"] is None
