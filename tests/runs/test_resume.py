"""A run that was killed or stopped by a full disk is completed, and only where it can be."""

import contextlib
import mmap
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace

import psutil
import pytest
from kernel import needs_fork
from places import memory_mounted
from small import compare

import labkit as lab
from labkit.runs.store import hold, load_run, write_info
from tests.processes import until

OTHER_WORK = "other work"


@pytest.fixture(scope="module")
def one_block(photos, tmp_path_factory):
    """A finished run of two variants, and a third that is not the same work."""
    variants = {
        "opencv": {},
        "pillow": {"decoder": "pillow"},
        OTHER_WORK: {"preprocessor": "classification"},
    }
    return compare(photos, tmp_path_factory.mktemp("results"), variants, {"num_workers": 1})


def unfinished(run, folder, *, blocks):
    """A copy of a run that wants more blocks than it has."""
    shutil.copytree(run.folder, folder)
    write_info(folder, replace(run.info, blocks=blocks, status="running"))
    return folder


def rows_in(folder):
    return (folder / "trials.jsonl").read_bytes()


def assert_complete(run, blocks):
    assert run.info.status == "finished"
    done = Counter((t.variant, t.block, t.role) for t in run.trials if t.status == "ok")
    arms = [("opencv", "A1"), ("opencv", "A2"), ("pillow", "")]
    assert done == {(name, block, role): 1 for name, role in arms for block in range(blocks)}
    assert run.summary.n_blocks == blocks
    rows = {row.variant: row for row in run.summary.rows}
    assert (rows["opencv"].blocks, rows["pillow"].blocks) == (blocks, blocks)
    # What was refused as other work is never measured, however often the run is resumed.
    assert rows[OTHER_WORK].status == "failed"
    assert "not the same work" in rows[OTHER_WORK].reason


class FillsTheDisk(threading.Event):
    """Is asked whether to cancel while each trial runs: fills the disk once there are new rows."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.filler = folder, folder.parent / "filler"
        self.rows_before = rows_in(folder)

    def is_set(self):
        if not self.filler.exists() and rows_in(self.folder) != self.rows_before:
            with self.filler.open("wb", buffering=0) as file:
                try:
                    while file.write(b"x" * 4096):
                        pass
                except OSError:
                    self.rows_before = rows_in(self.folder)
        return False


def test_a_full_disk_is_one_clear_sentence_and_costs_no_finished_row(one_block, tmp_path):
    with memory_mounted(tmp_path / "small", size="1m") as small:
        folder = unfinished(one_block, small / "run", blocks=2)
        # After one more row, half of the next one has room in the file's last page.
        rows = rows_in(folder)
        pad = b" " * (-(len(rows) + len(rows.splitlines()[-1]) * 3 // 2) % mmap.PAGESIZE)
        (folder / "trials.jsonl").write_bytes(rows.removesuffix(b"\n") + pad + b"\n")
        fills = FillsTheDisk(folder)
        message = (
            f"results must have room for more, got 0 B free in {folder} (No space left on device); "
            f"free some space, then complete the run with: labkit run --resume {folder}"
        )
        with pytest.raises(OSError, match=f"^{re.escape(message)}$"):
            lab.resume(folder, cancel=fills, progress=False)
        assert rows_in(folder).startswith(fills.rows_before)
        assert not rows_in(folder).endswith(b"\n")  # an append came to nothing midway
        stopped = load_run(folder)
        assert (len(stopped.trials), stopped.set_aside) == (rows_in(folder).count(b"\n"), 1)

        fills.filler.unlink()
        completed = lab.resume(folder, progress=False)
        assert rows_in(folder).startswith(fills.rows_before)
        assert_complete(completed, 2)
        assert completed.set_aside == 1
        assert completed.info.calibration == one_block.info.calibration


@needs_fork
def test_a_server_killed_before_it_can_answer_costs_no_variant(one_block, tmp_path):
    folder = unfinished(one_block, tmp_path / "run", blocks=2)
    runner = psutil.Popen(
        [sys.executable, "-m", "labkit", "run", "--resume", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    killed = set()

    def kill_every_server():
        for child in runner.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "labkit.runs.server" in child.cmdline() and child.pid not in killed:
                    child.kill()
                    killed.add(child.pid)
        return runner.poll() is not None

    until(kill_every_server)
    assert 2 <= len(killed) <= 4  # the baseline is asked once more; others may lie between
    assert runner.returncode == 1
    said = r"^labkit: baseline 'opencv' must be able to run here, got: the trial.* ended "
    assert re.search(said, runner.stderr.read(), re.MULTILINE)
    assert load_run(folder).info.skipped == {}
    assert_complete(lab.resume(folder, progress=False), 2)


def test_a_run_that_is_in_progress_is_not_resumed(one_block, tmp_path):
    folder = unfinished(one_block, tmp_path / "run", blocks=2)
    with hold(folder), pytest.raises(RuntimeError, match="in progress in one process at a time"):
        lab.resume(folder, progress=False)
