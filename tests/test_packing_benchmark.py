"""The benchmark of packing judges growth, and leaves nothing behind, even where it was killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("fcntl")

from benchmarks.packing import ALLOWANCE_BYTES_PER_IMAGE, REPOSITORY, growth, own_folder


def start(folder):
    return subprocess.Popen(
        [
            sys.executable, "-m", "benchmarks.packing", "--folder", folder,
            "--formats", "raw", "--stored", "jpeg", "--images", "10", "20",
        ],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_what_a_killed_benchmark_left_goes_with_the_next(tmp_path):
    with start(tmp_path) as killed:
        while not list(tmp_path.glob("*/10")) and killed.poll() is None:
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
    assert list(tmp_path.iterdir())
    with start(tmp_path) as process:
        lines = process.stdout.read().splitlines()
    assert process.returncode == 0
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["raw", "jpeg", "10"],
        ["raw", "jpeg", "20"],
    ]
    assert lines[-1] == "peak memory is flat"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_stays(tmp_path):
    with own_folder(tmp_path) as first:
        with own_folder(tmp_path) as second:
            assert sorted(tmp_path.iterdir()) == sorted([first, second])
        assert list(tmp_path.iterdir()) == [first]
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_in_the_repository():
    with pytest.raises(
        ValueError, match=r"^folder must lie outside the repository, got '.*/data'; "
    ):
        with own_folder(REPOSITORY / "data"):
            pass


@pytest.mark.parametrize(("more_bytes", "grows"), [(0, False), (1, True)])
def test_growth_beyond_the_allowance_is_named(more_bytes, grows):
    allowed = 110_000_000 + 900 * ALLOWANCE_BYTES_PER_IMAGE
    first = {"images": 100, "peak_bytes": 100_000_000}
    said = growth([first, {"images": 1_000, "peak_bytes": allowed + more_bytes}])
    assert said.startswith("peak memory grows from 100 MB at 100 images to") == grows
