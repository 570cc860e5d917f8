"""The command line: one experiment through, its table and its charts."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest

import labkit as lab
from labkit.cli import main
from labkit.contracts import Cancelled
from labkit.experiments.request import Request
from labkit.machine import gpu
from labkit.photos.make import make_photos
from labkit.runs import check_run
from labkit.settings import field_kinds
from tests.places import memory_mounted
from tests.processes import PATIENCE_S

ALL_IMAGES = ["--input-px", "64", "--batch-size", "4", "--num-workers", "0"]
ALL_IMAGES += ["--device", "cpu", "--step", "nothing", "--epochs", "1"]  # ready at once
ALL_IMAGES += ["--storage", "here"]
SMALL = [*ALL_IMAGES, "--images", "8"]
BLOCKS = ["--blocks", "2"]


# By the command itself, which cannot end before: when it adds its third row, it has two.  A command
# in the background ignores SIGINT, so a suite that runs there could not send that one.
TERMINATED = """
import signal, sys
from labkit.cli import main

rows = 0

def terminate(event, arguments):
    global rows
    if event == "open" and str(arguments[0]).endswith("trials.jsonl") and arguments[1] == "a+":
        rows += 1
        if rows == 3:
            signal.raise_signal(signal.SIGTERM)

sys.addaudithook(terminate)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def terminated(photos, tmp_path_factory):
    """A command that was told to end after two rows: its folder of results and what it said."""
    if sys.platform == "win32":
        pytest.skip("no POSIX signals")
    folder = tmp_path_factory.mktemp("results")
    how = ["--data", str(photos), "--results", str(folder), *BLOCKS, *SMALL]
    command = [sys.executable, "-c", TERMINATED, "run", "preprocessing", *how]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert done.returncode == 130
    return lab.find_run("preprocessing", folder), done.stderr


@pytest.fixture(scope="module")
def finished(terminated):
    """A results folder with one run of the preprocessing experiment, which was resumed."""
    run, _ = terminated
    results = run.folder.parents[1]
    assert main(["run", "--resume", run.folder.name, "--results", str(results)]) == 0
    return results


def test_a_run_leaves_its_rows_its_table_and_its_charts(finished):
    (folder,) = lab.list_runs(finished)
    names = {path.name for path in folder.iterdir()}
    assert {"run.json", "trials.jsonl", "table.csv", "chart.png", "chart.svg", "chart.pdf"} <= names
    run = lab.find_run(folder)
    assert run.info.status == "finished"
    asked = Request.read(run.info)
    assert (asked.experiment, asked.mode, asked.settings["images"]) == ("preprocessing", "quick", 8)
    # Equal work: every trial delivered the same number of images.
    assert {trial.images for trial in run.trials if trial.status == "ok"} == {8}


def test_a_terminated_command_keeps_its_rows_and_resume_completes_them(terminated, finished):
    cancelled, errors = terminated
    assert "cancelled; complete it with: labkit run --resume" in errors
    assert cancelled.info.status == "cancelled"
    before = [trial for trial in cancelled.trials if trial.status == "ok"]
    assert len(before) == 2
    after = [t for t in lab.find_run("preprocessing", finished).trials if t.status == "ok"]
    done = [(t.block, t.variant, t.role) for t in after]
    assert len(done) == len(set(done)) == 8
    assert after[: len(before)] == before


def test_the_json_table_has_the_promised_columns(finished, capsys):
    assert main(["table", "preprocessing", "--json", "--results", str(finished)]) == 0
    rows = json.loads(capsys.readouterr().out)
    promised = (
        "variant normalized_time ci_low ci_high blocks time_s images_per_s published verdict "
        "gpu_util status labels"
    ).split()
    assert [row["variant"] for row in rows] == ["original", "vectorized", "simplified"]
    assert all(set(promised) <= set(row) for row in rows)
    assert [row["published"] for row in rows] == [1.0, None, 0.661]
    assert rows[0]["normalized_time"] == 1.0
    assert rows[1]["ci_low"] < rows[1]["normalized_time"] < rows[1]["ci_high"]
    assert rows[1]["blocks"] == 2


def test_every_other_command_shows_or_writes_the_run(finished, tmp_path, capsys):
    def say(*words):
        assert main([*map(str, words), "--results", str(finished)]) == 0
        return capsys.readouterr().out

    listed = say("list")
    table, _, runs = listed.partition("runs in ")
    assert max(map(len, table.splitlines())) <= 100
    assert re.search(r"^prefetching +≥ .*\d+ s +– +Does fetching", table, re.MULTILINE)
    assert re.search(
        r"^preprocessing +(\d+ min )?\d+ s +(\w+ 0\.\d+|no variant meas)", table, re.MULTILINE
    )
    assert "quick, finished" in runs
    assert "How much time does simpler preprocessing code save?" in say("table", "preprocessing")
    assert "resident_share_before" in say("table", "preprocessing", "--detail")
    (claim,) = json.loads(say("claims", "1", "--json"))
    assert claim["number"] == 1
    say("recipe", "preprocessing", "--out", tmp_path / "fast.py")
    compile((tmp_path / "fast.py").read_text(), "fast.py", "exec")
    say("report", "preprocessing", "--out", tmp_path)
    assert "How much time does simpler" in (tmp_path / "report.html").read_text(encoding="utf-8")
    say("share", "preprocessing", "--out", tmp_path / "run.labkit.zip")
    assert main(["open", str(tmp_path / "run.labkit.zip"), "--results", str(tmp_path)]) == 0
    (opened,) = lab.list_runs(tmp_path / "shared")
    assert str(opened) in capsys.readouterr().out


def test_all_experiments_go_on_where_an_earlier_call_stopped(
    finished, photos, tmp_path, monkeypatch, capsys
):
    results = shutil.copytree(finished, tmp_path / "results")
    names = ("preprocessing", "opencv_vs_pil", "workers")
    monkeypatch.setattr(lab, "CATALOG", {name: lab.CATALOG[name] for name in names})
    how = ["--data", str(photos), "--results", str(results), *BLOCKS, *SMALL]
    assert main(["run", "--all", *how]) == 0
    said = capsys.readouterr()
    # It chooses the workers itself; one of the others is complete.
    assert "workers is left out: num_workers must be left out" in said.err
    assert re.search(r"^quick mode: 1 experiment, at least .*; 1 finished before$", said.out, re.M)
    assert len(re.findall(r"100%.*trial \d+/\d+", said.err)) >= 1
    assert re.search(r"^ 1  A profiler's call graph", said.out, re.MULTILINE)
    assert {run.parent.name for run in lab.list_runs(results)} == {
        "preprocessing",
        "opencv_vs_pil",
    }
    assert main(["run", "--all", *how]) == 0
    assert "quick mode: 0 experiments, about" in capsys.readouterr().out
    assert len(lab.list_runs(results)) == 2


def test_an_experiment_of_which_nothing_can_run_here_is_skipped(
    photos, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(lab, "CATALOG", {"prefetching": lab.CATALOG["prefetching"]})
    monkeypatch.setattr(gpu, "cuda", lambda: gpu.CudaState(works=False, reason="none here"))
    how = ["--data", str(photos), "--results", str(tmp_path), "--device", "cuda"]
    assert main(["run", "--all", *how]) == 0
    said = "^prefetching: skipped: baseline 'original' must be able to run here, got: .*none here"
    assert re.search(said, capsys.readouterr().err, re.MULTILINE)
    assert lab.list_runs(tmp_path) == []


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    command = f"{sys.executable} -m labkit list --results {tmp_path} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("experiment ")
    assert done.stderr == ""


def test_help_has_a_line_per_command_and_an_option_per_setting(capsys):
    for words in (["--help"], ["run", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
    shown = capsys.readouterr().out
    for name in "list run table claims report recipe share open diagnose doctor".split():
        assert re.search(rf"^    {name} +\w.*$", shown, re.MULTILINE)
    first = re.findall(r"^    (\w+) +\w.*$", shown, re.MULTILINE)[:3]
    assert first == ["watch", "diagnose", "run"]
    assert all(f"--{name.replace('_', '-')}" in shown for name in field_kinds())


def test_doctor_says_what_will_be_skipped(monkeypatch, photos, capsys):
    def absent(jpeg):
        raise ImportError("mine is not installed; pip install mine")

    monkeypatch.setitem(lab.DECODERS, "mine", absent)
    assert main(["doctor", "--data", str(photos)]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^data +{re.escape(str(photos))}", shown, re.MULTILINE)
    assert re.search(r"^decoder mine +skipped\n +→ mine is not installed", shown, re.MULTILINE)


def test_calibrating_prints_the_rate_and_where_it_is_kept(photos, tmp_path, capsys):
    words = ["--data", photos, "--input-px", 64, 96, "--results", tmp_path]
    assert main(["calibrate", *map(str, words)]) == 0
    said = capsys.readouterr().out
    for input_px in (64, 96):
        assert re.search(rf"simulated GPU of [\d.,]+ images/s at {input_px} px: 2 × .* ± ", said)
    assert f"kept in {tmp_path / 'calibration.json'}" in said
    assert len(json.loads((tmp_path / "calibration.json").read_text())) == 2


def test_where_nobody_names_data_photographs_are_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = partial(make_photos, images=8, progress=False)
    monkeypatch.setattr(check_run, "make_photos", made)
    assert main(["run", "preprocessing", *ALL_IMAGES, "--images", "99"]) == 1  # more than there are
    assert "at most the number of" in capsys.readouterr().err
    assert len(list((tmp_path / "data" / "photos").rglob("*.jpg"))) == 8


def test_photographs_that_a_stopped_run_began_are_finished_by_the_next_run(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    made = partial(make_photos, images=8, jobs=1, progress=False)
    monkeypatch.setattr(check_run, "make_photos", made)
    stop = SimpleNamespace(is_set=iter([False, False, True]).__next__)
    with pytest.raises(Cancelled):
        lab.run(lab.experiment("preprocessing"), cancel=stop, progress=False)
    assert len(list((tmp_path / "data" / "photos").rglob("*.jpg"))) == 3
    assert main(["run", "preprocessing", *ALL_IMAGES, "--images", "99"]) == 1  # more than there are
    assert "at most the number of" in capsys.readouterr().err
    assert len(list((tmp_path / "data" / "photos").rglob("*.jpg"))) == 8


def test_where_the_photographs_have_no_room_a_run_says_so_in_one_line(
    tmp_path, monkeypatch, capsys
):
    with memory_mounted(tmp_path / "small", size="1m") as small, monkeypatch.context() as patch:
        patch.chdir(small)
        assert main(["run", "preprocessing", *SMALL]) == 1
        assert list(small.iterdir()) == []
    message = r"labkit: \S+/small must have 147 MB of memory free for 1,000 images, got 1\.\d MB; "
    assert re.fullmatch(rf"{message}free some space, or use less data\n", capsys.readouterr().err)
