"""What was finished stays, and a run can be completed, whoever kills it and however full the disk.

Processes and file systems are real.  200 kills instead of ten: python -m benchmarks.kills
"""

import contextlib
import copy
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from places import memory_mounted

import labkit as lab
from benchmarks.kills import TARGETS, Siege
from labkit import machine
from labkit.results import append_trial, create_run, load_run, write_info

PATIENCE_S = 300.0  # how long to look for something that must happen; not a speed limit

needs_fork = pytest.mark.skipif(not machine.can_fork(), reason="no server to kill without fork")


@pytest.mark.thorough
@needs_fork
def test_ten_kills_lose_nothing_and_leave_nothing():
    rng = random.Random(10)
    targets = [*TARGETS, *TARGETS, "runner", "trial"]
    rng.shuffle(targets)
    # Sockets need a short path.
    with tempfile.TemporaryDirectory() as place, Siege(Path(place), rng, blocks=4) as siege:
        siege.strike(targets)
        assert siege.record.losses == []
        assert siege.leftovers() == []
        assert siege.record.kills == Counter(targets)


# --- one run, in many states ----------------------------------------------------------------


@pytest.fixture(scope="module")
def one_block(photos, tmp_path_factory):
    """A finished run of two variants."""
    base = lab.Settings(
        data=str(photos), device="cpu", step="nothing", preprocessor="vectorized",
        cache="as found", input_px=64, batch_size=4, images=8, num_workers=1, epochs=1,
    )  # fmt: skip
    experiment = lab.Experiment(
        "test",
        question="?",
        variants=lab.vary(base, decoder=["opencv", "pillow"]),
        baseline="opencv",
    )
    results = tmp_path_factory.mktemp("results")
    return lab.run(experiment, blocks=1, results=results, progress=False)


def unfinished(run, folder, *, blocks):
    """A copy of a run that wants more blocks than it has."""
    shutil.copytree(run.folder, folder)
    write_info(folder, {**run.info, "blocks": blocks, "status": "running"})
    return folder


def rows_in(folder):
    return (folder / "trials.jsonl").read_bytes()


def assert_complete(run, blocks):
    assert run.info["status"] == "finished"
    done = Counter((t.variant, t.block, t.role) for t in run.trials if t.status == "ok")
    arms = [("opencv", "A1"), ("opencv", "A2"), ("pillow", "")]
    assert done == {(name, block, role): 1 for name, role in arms for block in range(blocks)}
    summary = lab.summarize(run)
    assert [summary.n_blocks, *(row.blocks for row in summary.rows)] == [blocks] * 3


def until(condition):
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


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
        folder = unfinished(one_block, small / "run", blocks=3)
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
        assert_complete(completed, 3)
        assert completed.set_aside == 1


def test_a_half_written_last_line_is_set_aside_and_its_trial_run_again(one_block, tmp_path):
    folder = unfinished(one_block, tmp_path / "run", blocks=1)
    whole = rows_in(folder)
    half = whole[: -len(whole.splitlines()[-1]) // 2]
    (folder / "trials.jsonl").write_bytes(half)
    completed = lab.resume(folder, progress=False)
    assert rows_in(folder).startswith(half)
    assert_complete(completed, 1)
    assert completed.set_aside == 1


@needs_fork
def test_a_server_killed_before_it_can_answer_costs_no_variant(one_block, tmp_path):
    folder = unfinished(one_block, tmp_path / "run", blocks=2)
    runner = psutil.Popen(
        [sys.executable, "-m", "labkit.cli", "run", "--resume", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    killed = set()

    def kill_every_server():
        for child in runner.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "labkit.worker" in child.cmdline() and child.pid not in killed:
                    child.kill()
                    killed.add(child.pid)
        return runner.poll() is not None

    assert until(kill_every_server)
    assert 2 <= len(killed) <= 4  # the baseline is asked once more; others may lie between
    assert runner.returncode == 1
    said = r"^labkit: baseline 'opencv' must be able to run here, got: the trial.* ended "
    assert re.search(said, runner.stderr.read(), re.MULTILINE)
    assert load_run(folder).info["skipped"] == {}
    assert_complete(lab.resume(folder, progress=False), 2)


# --- an older schema ------------------------------------------------------------------------

# A row as schema 1 had it: no `medium`, no `file_bytes`, no `major_faults`, no GPU's clocks.
ROW_1 = {
    "experiment": "preprocessing", "variant": "original", "block": 0, "position": 0, "role": "",
    "settings": {"data": "data/photos", "storage": "here", "cache": "cold"},
    "status": "ok", "reason": "",
    "epochs": [
        {"epoch_s": 0.6, "startup_s": 0.02, "first_batch_s": 0.06, "wait_s": 0.05,
         "transfer_s": 0.0007, "forward_s": None, "backward_s": None, "launch_s": 0.11,
         "sync_s": 0.42, "steps": 22, "images": 176, "batch_bytes": 34637176, "compute_s": 0.53},
    ] * 2,
    "cpu_s": 1.28, "cpu_percent": 106.5, "gpu_util_mean": None, "gpu_util_zero_share": None,
    "gpu_memory_bytes": None, "emulated_busy_share": 0.88, "peak_rss_bytes": 251752448,
    "cache_proof": {"wanted": "cold", "method": "fadvise", "measured_by": "cachestat",
                    "resident_share_before": 0.0, "resident_share_after": 1.0,
                    "logical_read_bytes": 43977049, "device_read_bytes": 21790720},
    "disturbance": {"duration_s": 1.3, "steal_share": 0.0, "other_cores": 0.02,
                    "cpu_pressure_share": 0.12, "io_pressure_share": 0.016,
                    "memory_pressure_share": 0.0, "swapped_in_pages": 0, "swapped_out_pages": 0,
                    "throttled_count": None, "load_1min": 1.8, "cpu_hz": None,
                    "memory_available_bytes": 23935852544},
    "labels": {"storage": "real", "cache": "cold", "accelerator": "emulated(matched, 3 ms/image)"},
    "loss": None, "machine_id": "7a93da180d42", "started_utc": "2026-11-21T19:12:32Z", "schema": 1,
}  # fmt: skip
INFO_1 = {
    "schema": 1, "experiment": "preprocessing", "question": "How much time is saved?",
    "mode": "quick", "blocks": 3, "baseline": "original",
    "variants": {"original": {"cache": "cold"}, "simplified": {"cache": "cold"}},
    "published": {"original": 1.0, "simplified": 0.661}, "source": "[004] section 3.3",
    "skipped": {}, "failed": {}, "status": "finished", "reason": "", "notes": [],
    "order_seed": 1, "created_utc": "2026-11-21T19:12:22Z",
    "calibration": {"images_per_s": 226.1, "images": 176}, "excluded": [],
}  # fmt: skip


def test_a_run_of_schema_1_loads_summarizes_and_charts(tmp_path):
    folder = create_run(tmp_path, INFO_1)
    lines = []
    for block in range(3):
        for variant, role in (("original", "A1"), ("simplified", ""), ("original", "A2")):
            row = copy.deepcopy({**ROW_1, "variant": variant, "block": block, "role": role})
            for epoch in row["epochs"]:
                epoch["epoch_s"] = 0.3 if variant == "simplified" else 0.6
            lines.append(json.dumps(row) + "\n")
    (folder / "trials.jsonl").write_text("".join(lines))
    run = load_run(folder)
    assert len(run.trials) == 9
    assert {trial.schema for trial in run.trials} == {1}
    summary = lab.summarize(run)
    rows = {row.variant: row for row in summary.rows}
    assert (summary.n_blocks, rows["simplified"].blocks) == (3, 3)
    assert rows["simplified"].normalized_time == pytest.approx(0.5)
    assert list(lab.table(run).index) == ["original", "simplified"]
    assert {file.suffix for file in lab.save(run)} >= {".csv", ".png"}
    # What is added today stands beside what there was.
    append_trial(folder, run.trials[0])
    assert len(load_run(folder).trials) == 10
