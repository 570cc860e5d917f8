"""A run of operations in real processes: saved block by block, cancelled, resumed, refused."""

import contextlib
import json
import re
import shutil
import threading

import pytest
from jpegs import why_missing

from labkit import operations_run
from labkit.launcher import TrialFailed
from labkit.operations import OPERATIONS
from labkit.operations_run import resume_operations, run_operations
from labkit.operations_summary import summarize_operations
from labkit.results import create_run, find_run, list_runs, load_run, write_info

CELLS = len(OPERATIONS) + 1  # decoding by pillow twice


@pytest.fixture
def one_size(monkeypatch):
    """The smallest size alone: the others take time and show nothing new here."""
    monkeypatch.setattr(operations_run, "QUICK_SIZES", 1)


def test_a_run_saves_its_blocks_and_a_half_saved_one_is_run_again(one_size, photos, tmp_path):
    run = run_operations(photos, results=tmp_path, blocks=2, progress=False)
    assert run.info["status"] == "finished"
    assert [row["block"] for row in run.rows] == [0] * CELLS + [1] * CELLS
    assert {row["kind"] for row in run.rows} == {"operation"}
    missing = {library for _, library in OPERATIONS if why_missing(library)}
    assert {row["library"] for row in run.rows if row["status"] != "ok"} == missing
    assert {row["size"] for row in run.rows} == {"320x240"}
    assert all(row["image_s"] > 0 for row in run.rows if row["status"] == "ok")
    logs = [[row["disturbance"] for row in run.rows if row["block"] == b] for b in (0, 1)]
    assert all(log == logs_of[0] for logs_of in logs for log in logs_of)
    assert logs[0][0] != logs[1][0]
    assert all(logs_of[0]["duration_s"] > 0 for logs_of in logs)
    assert find_run(tmp_path, "operations").rows == run.rows

    # A crash in the middle of the second block's lines.
    lines = (run.folder / "trials.jsonl").read_bytes().splitlines(keepends=True)
    (run.folder / "trials.jsonl").write_bytes(b"".join(lines[: CELLS + 5]) + lines[-1][:40])
    again = resume_operations(run.folder, progress=False)
    assert again.info["status"] == "finished"
    assert again.set_aside == 1
    assert len(again.rows) == 2 * CELLS + 5
    assert again.rows[:CELLS] == run.rows[:CELLS]
    summary = summarize_operations(again)
    assert {len(row.blocks_s) for row in summary if row.library not in missing} == {2}
    # Nothing is missing now.
    assert resume_operations(run.folder, progress=False).rows == again.rows


def test_a_cancelled_run_says_so_and_leaves_nothing_half_done(photos, tmp_path):
    cancel = threading.Event()
    cancel.set()
    run = run_operations(photos, results=tmp_path, cancel=cancel, progress=False)
    assert run.info["status"] == "cancelled"
    assert run.rows == ()


def test_a_broken_photograph_ends_the_run_and_is_named(photos, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for path in sorted((photos / "images").glob("*.jpg"))[:4]:
        shutil.copy(path, folder)
        whole = (folder / path.name).read_bytes()
    (folder / path.name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TrialFailed, match=rf"{path.name}: image must be a complete JPEG, got"):
        run_operations(folder, results=tmp_path, progress=False)
    (run,) = map(load_run, list_runs(tmp_path))
    assert run.info["status"] == "failed"
    assert path.name in run.info["reason"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"mode": "slow"}, "mode must be one of document, full, quick, got 'slow'"),
        ({"blocks": 0}, "blocks must be at least 1 in mode quick, got 0"),
        ({"mode": "full", "blocks": 5}, "blocks must be at least 6 in mode full, got 5"),
    ],
)
def test_what_cannot_work_is_refused_before_a_folder_is_made(photos, tmp_path, how, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        run_operations(photos, results=tmp_path, progress=False, **how)
    assert list_runs(tmp_path) == []


def test_too_few_photographs_are_refused(photos, tmp_path):
    shutil.copy(next((photos / "images").glob("*.jpg")), tmp_path)
    with pytest.raises(ValueError, match=r"data must hold at least 4 photographs, got 1 in"):
        run_operations(tmp_path, results=tmp_path, progress=False)


def test_a_run_of_something_else_or_elsewhere_is_not_resumed(photos, tmp_path):
    other = create_run(tmp_path, {"experiment": "prefetching"})
    with pytest.raises(ValueError, match="folder must hold a run of operations, got one of pref"):
        resume_operations(other)
    cancel = threading.Event()
    cancel.set()
    folder = run_operations(photos, results=tmp_path, cancel=cancel, progress=False).folder
    info = json.loads((folder / "run.json").read_text())
    for name, change in (
        ("machine", {"provenance": {**info["provenance"], "machine_id": "another"}}),
        ("data", {"data": {**info["data"], "images": 7}}),
    ):
        (folder / "run.json").write_text(json.dumps({**info, **change}))
        with pytest.raises(ValueError, match=rf"{name} must be what the run began with \("):
            resume_operations(folder)


def test_a_resumed_run_is_as_whoever_had_it_last_left_it(one_size, photos, tmp_path, monkeypatch):
    cancel = threading.Event()
    cancel.set()
    folder = run_operations(photos, results=tmp_path, cancel=cancel, progress=False).folder

    @contextlib.contextmanager
    def hold_late(folder):
        info = json.loads((folder / "run.json").read_text())
        write_info(folder, {**info, "notes": ["written meanwhile"]})
        yield

    monkeypatch.setattr(operations_run, "hold", hold_late)
    again = resume_operations(folder, cancel=cancel, progress=False)
    assert again.info["notes"] == ["written meanwhile"]
