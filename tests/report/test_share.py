"""A share file holds nothing of this machine, and opens as the run of another one."""

import getpass
import json
import re
import shutil
import socket
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import fake_info, fake_trials
from small import SMALL

import labkit as lab
from labkit.report import share, table
from labkit.report.run import open_shared
from labkit.report.share import write
from labkit.runs.store import (
    append_trial,
    create_run,
    find_run,
    hold,
    list_runs,
    load_run,
    newest_runs,
)

OWNER, HOST = "zquill", "quillbox"
ELSEWHERE = {"machine_id": "0123456789ab", "cores": 4, "cpu_model": "Z", "gpu": {"works": False}}
RUN_ID = "20250102T030405Z-beef"
FOLDER = Path(__file__).parents[2] / "results" / "examples" / "2-cores-emulated"
EARLIER = ("combined", "distance", "preprocessing_full", "storage")


@pytest.fixture(scope="module")
def made(photos, tmp_path_factory):
    """A run in a folder of zquill's: one image is broken, one variant fails, one is skipped."""
    home = tmp_path_factory.mktemp("home") / OWNER
    data = home / "my disk" / "photos"
    shutil.copytree(photos, data)
    (data / "manifest.json").unlink(missing_ok=True)
    broken = next(data.rglob("*.jpg"))
    broken.write_bytes(b"no image")
    checkpoints = {"checkpoint_to": str(home / "checkpoints")}
    base = lab.Settings(data=str(data), on_bad_image="skip", **checkpoints, **SMALL)
    experiment = lab.Experiment(
        "decoders",
        question="Is the decoder slow?",
        variants={
            "opencv": base,
            "pillow": replace(base, decoder="pillow"),
            "elsewhere": replace(base, storage=str(home / "no such disk")),
        },
        baseline="opencv",
    )
    run = lab.run(experiment, blocks=1, results=home / "results", progress=False)
    failed = next(trial for trial in run.trials if trial.variant == "pillow")
    traceback = f'File "{home}/lab/mine.py", line 3, on {socket.gethostname()} and {HOST}'
    log = {**failed.disturbance, "busiest_program": f"{OWNER}-sync"}
    broken = replace(failed, block=1, status="failed", reason=traceback, epochs=(), disturbance=log)
    append_trial(run.folder, broken)
    return load_run(run.folder)


@pytest.fixture(scope="module")
def packed(made, tmp_path_factory):
    return write(made, tmp_path_factory.mktemp("sent"))


@pytest.fixture(scope="module")
def opened(packed, tmp_path_factory):
    return open_shared(packed, tmp_path_factory.mktemp("colleague"))


def contents(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name).decode() for name in file.namelist()}


# --- write ---------------------------------------------------------------------------------------


def test_a_share_file_does_not_say_whose_machine_it_was(made, packed):
    said = "\n".join([packed.name, *contents(packed).values()])
    stored = (made.folder / "run.json").read_text() + (made.folder / "trials.jsonl").read_text()
    for secret in (OWNER, HOST, socket.gethostname(), getpass.getuser(), "my disk", "photos"):
        assert not re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", said), secret
    assert OWNER in stored
    assert re.findall(r'"[/~\\][^"]*"', said) == []


def test_what_may_not_leave_stands_in_one_block_of_run_json(made):
    stored = json.loads((made.folder / "run.json").read_text())
    block = stored.pop("local")
    assert OWNER not in json.dumps(stored)
    assert block["data"] == {"folder": made.info["data"]["folder"]}
    assert OWNER in made.info["local_notes"][0]
    assert block["skipped"] == made.info["skipped"]


def test_a_variant_labelled_with_a_folder_is_refused(made, tmp_path):
    disk = "/mnt/disk/fast"
    variants = {"a": {"storage": "here"}, f"from {disk}": {"storage": disk}}
    run = replace(made, info={**made.info, "variants": variants})
    with pytest.raises(ValueError, match=f"labelled with a folder to be shared, got 'from {disk}'"):
        write(run, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_progress_is_not_shared(made, tmp_path):
    folder = tmp_path / "decoders" / made.folder.name
    shutil.copytree(made.folder, folder)
    with hold(folder), pytest.raises(RuntimeError, match="run must have ended before"):
        write(load_run(folder))


@pytest.mark.parametrize("name", EARLIER)
def test_runs_of_earlier_versions_can_be_shared(name, tmp_path):
    run = load_run(FOLDER / name)
    opened = open_shared(write(run, tmp_path), tmp_path)
    assert len(opened.trials) == len(run.trials)
    rows, theirs = (table.table(each.summary).rows for each in (run, opened))
    assert theirs == rows


# --- open ---------------------------------------------------------------------------------------


def test_an_opened_run_has_the_same_numbers_of_another_machine(made, packed, opened):
    ours, theirs = (run.summary.rows for run in (made, opened))
    assert [row.variant for row in theirs] == ["opencv", "pillow", "elsewhere"]
    assert [row.normalized_time for row in theirs] == [row.normalized_time for row in ours]
    assert [row.status for row in theirs] == ["ok", "ok", "skipped"]
    assert theirs[2].reason == "not shared"
    assert opened.info["variants"]["opencv"]["data"].startswith("manifest ")
    assert opened.info["shared"]["from"] == lab.machine.hardware.describe(made.info["provenance"])
    assert {path.name for path in opened.folder.iterdir()} == {"run.json", "trials.jsonl"}
    assert [path.name for path in opened.folder.parents[1].iterdir()] == ["decoders"]
    results = opened.folder.parents[2]
    assert open_shared(packed, results) == opened
    assert list_runs(results / "shared") == [opened.folder]


def test_a_shared_run_is_never_taken_for_this_machines(opened, tmp_path):
    results = opened.folder.parents[2]
    assert list_runs(results) == []
    # Not even where somebody put it among the others.
    shutil.copytree(opened.folder, tmp_path / "decoders" / opened.folder.name)
    assert newest_runs(tmp_path, lambda info: 0) == {}
    message = f"got one from {opened.info['shared']['from']}; start one here: labkit run decoders"
    with pytest.raises(ValueError, match=re.escape(message)):
        lab.resume(opened.folder)


def test_a_shared_run_is_found_by_its_id_but_ours_wins(made, opened, tmp_path):
    results = tmp_path / "results"
    theirs = results / "shared" / "decoders" / opened.folder.name
    shutil.copytree(opened.folder, theirs)
    assert find_run(results, made.folder.name).folder == theirs
    with pytest.raises(FileNotFoundError, match="got 'decoders'"):
        find_run(results, "decoders")  # an experiment's newest run is one of ours
    ours = results / "decoders" / made.folder.name
    shutil.copytree(made.folder, ours)
    assert find_run(results, made.folder.name).folder == ours


def test_a_killed_run_goes_and_comes_as_cancelled(tmp_path):
    info = fake_info(["a", "b"], status="running", notes=[], provenance=ELSEWHERE)
    folder = create_run(tmp_path / "ours", info)
    (folder / "trials.jsonl").write_bytes(b'{"reason": "\xc3')  # half a letter
    opened = open_shared(write(load_run(folder)), tmp_path / "theirs")
    assert (opened.info["status"], opened.trials) == ("cancelled", ())


# --- files that somebody made up ----------------------------------------------------------------


def zipped(path, members, **how):
    with zipfile.ZipFile(path, "w", **how) as file:
        for name, text in members:
            file.writestr(name, text)
    return path


def crafted(path, *, rows=None, **info):
    """A share file with rows of its own and whatever else its run.json says."""
    info = {**fake_info(["a", "b"]), "run": RUN_ID, "provenance": ELSEWHERE, **info}
    if rows is None:
        rows = [trial.to_row() for trial in fake_trials({"a": 1.0, "b": 0.9})]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    return zipped(path, [("run.json", json.dumps(info)), ("trials.jsonl", lines)], compression=8)


def row(**changes):
    return {**fake_trials({"a": 1.0, "b": 0.9})[0].to_row(), **changes}


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


SPEEDS = {"load_images_per_s": 200.0, "device_images_per_s": 400.0}
ROOFLINE = {
    "kind": "roofline", "calibration": SPEEDS, "tasks": {name: {"x": 1.0} for name in "ab"},
}  # fmt: skip


def test_the_crafted_file_itself_is_one(tmp_path):
    run = open_shared(crafted(tmp_path / "x.zip"), tmp_path)
    assert run.folder.parent == tmp_path / "shared" / "prefetching"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experiment": "../../etc"}, "letters, digits, - and _, got '../../etc'"),
        ({"experiment": "shared"}, "letters, digits, - and _, got 'shared'"),
        ({"run": "../x"}, "letters, digits, - and _, got '../x'"),
        ({"schema": 99}, r"schema must be at most 2, got 99 in run.json; update labkit"),
        ({"schema": "2"}, r"schema must be at most 2, got '2' in run.json; update labkit"),
        ({"kind": "operations"}, "got operations in run.json, made by an earlier version"),
        ({"variants": {"a": {"data": {"x": 1}}}}, "hold variants as labkit writes it"),
        ({"variants": {str(i): {} for i in range(201)}}, "within the limits of size"),
        ({"variants": {"x" * 101: {}}}, "within the limits of size"),
        ({"blocks": True}, "hold blocks as labkit writes it, got True"),
        ({"order_seed": float("nan")}, "within the limits of size"),
        ({"question": "x" * 2001}, "within the limits of size"),
        ({"question": "a\x1b[2Jb"}, "within the limits of size"),
        ({"question": "a\ud800"}, "within the limits of size"),
        ({"notes": ["a", 1]}, "hold notes as labkit writes it"),
        ({"local_notes": [{}]}, "hold local_notes as labkit writes it"),
        ({"request": {"foo": 1}}, "hold a run that can be shown, got TypeError"),
        ({"request": {"settings": {"x=1)\nimport os": 1}}}, "settings must be named as in"),
        ({"excluded": ["a", {}]}, "hold excluded as labkit writes it"),
        ({"dial": "x"}, "hold dial as labkit writes it"),
        ({"costs": ["x"]}, "hold costs as labkit writes it"),
        ({"reads": {"a": 1}}, "hold reads as labkit writes it"),
        ({"calibration": {"x": nested(600)}}, "nested too deeply|JSON texts"),
        ({"baseline": "c"}, "hold a run that can be shown, got KeyError"),
        ({"kind": "roofline", "calibration": SPEEDS}, "can be shown, got KeyError"),
        ({**ROOFLINE, "tasks": {name: {"x": -1} for name in "ab"}}, "x must be a number above 0"),
        ({**ROOFLINE, "calibration": {**SPEEDS, "device_images_per_s": -4}}, "above 0, got -4"),
        ({**ROOFLINE, "calibration": {"load_images_per_s": "abc"}}, "number above 0, got 'abc'"),
        ({"calibration": {"x": "a"}}, "hold a run that can be shown, got ValueError"),
        ({"rows": [row(schema=99)]}, "schema must be at most 5, got 99 in trials.jsonl"),
        ({"rows": [row(evil=1)]}, "hold rows as labkit writes them"),
        ({"rows": [row(variant="c")]}, "hold rows as labkit writes them"),
        ({"rows": [row(epochs=[{"epoch_s": 1.0}])]}, "hold rows as labkit writes them"),
        ({"rows": [row(status="great")]}, "hold rows as labkit writes them"),
        ({"rows": [{}] * 5_001}, "within the limits of size"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else None,
)
def test_a_hostile_run_is_refused_in_one_sentence(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message) as refused:
        open_shared(crafted(tmp_path / "x.zip", **changes), tmp_path / "results")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400
    assert not list((tmp_path / "results").rglob("run.json"))


GOOD = [("run.json", "{}"), ("trials.jsonl", "")]


@pytest.mark.parametrize(
    ("members", "how", "message"),
    [
        ([*GOOD, ("../evil.py", "x")], {}, "hold run.json and trials.jsonl, got .*'../evil.py'"),
        ([("/etc/run.json", "{}"), GOOD[1]], {}, r"hold run.json and trials.jsonl, got \['/etc"),
        ([], {}, r"hold run.json and trials.jsonl, got \[\]"),
        (GOOD, {"compression": zipfile.ZIP_LZMA}, "a plain zip, got another compression of run"),
        ([("run.json", "[1]"), GOOD[1]], {}, "hold plain JSON objects"),
        ([("run.json", "\x80abc"), GOOD[1]], {}, "hold JSON texts"),
        ([("run.json", "[" * 10_000), GOOD[1]], {}, "hold JSON texts"),
    ],
)  # fmt: skip
def test_a_hostile_zip_is_refused(members, how, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        open_shared(zipped(tmp_path / "x.zip", members, **how), tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_no_more_is_unpacked_than_allowed(monkeypatch, tmp_path):
    monkeypatch.setattr(share, "MAX_MEMBER_BYTES", 1000)
    bomb = zipped(tmp_path / "x.zip", [GOOD[0], ("trials.jsonl", "0" * 10**6)], compression=8)
    with pytest.raises(ValueError, match="have at most 1,000 bytes unpacked, got more"):
        open_shared(bomb, tmp_path)
    monkeypatch.setattr(share, "MAX_FILE_BYTES", 100)
    with pytest.raises(ValueError, match="have at most 100 bytes, got "):
        open_shared(bomb, tmp_path)


def test_what_is_no_share_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="make one with: labkit share"):
        open_shared(tmp_path / "none.zip")
    (tmp_path / "x.zip").write_bytes(b"no zip")
    with pytest.raises(ValueError, match="share file must be a zip that can be read"):
        open_shared(tmp_path / "x.zip", tmp_path)
    whole = crafted(tmp_path / "y.zip").read_bytes()
    (tmp_path / "y.zip").write_bytes(whole[:40] + b"\xff" * 20 + whole[60:])
    with pytest.raises(ValueError, match="share file must be"):
        open_shared(tmp_path / "y.zip", tmp_path)
