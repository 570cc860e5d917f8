"""A share file holds nothing of this machine, and opens as the run of another one."""

import getpass
import re
import shutil
import socket
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import fake_info
from small import SMALL

import labkit as lab
from labkit.experiments.request import Request
from labkit.report import table
from labkit.report.run import open_shared
from labkit.report.share import write
from labkit.runs import store
from labkit.runs.store import (
    append_trials,
    create_run,
    find_run,
    hold,
    list_runs,
    load_run,
    newest_runs,
    write_info,
)

OWNER, HOST = "zquill", "quillbox"
SECRET = f"{OWNER}|{HOST}"
# Fields whose fields are named after variants or storages, and where zquill's run tells of the
# machine.
NAMED = (".variants", ".storages", ".costs", ".skipped", ".failed")
TOLD = {
    *(f".{place}.data" for place in ("settings", "variants.*", "request.settings")),
    *(f".{place}.checkpoint_to" for place in ("settings", "variants.*", "request.settings")),
    ".settings.storage", ".variants.*.storage", ".data.folder",
    ".storages.*", ".storages.*.device", ".storages.*.remark", ".provenance.gpu.reason",
    ".medium.device", ".disturbance.busiest_program", ".disturbance.busiest_gpu_program",
    ".reason", ".failed.*", ".skipped.*", ".unreadable",
    ".local_notes",
}  # fmt: skip
ELSEWHERE = {"machine_id": "0123456789ab", "cores": 4, "cpu_model": "Z", "gpu": {"works": False}}
FOLDER = Path(__file__).parents[2] / "results" / "examples" / "2-cores-simulated"
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
    places = {"data": str(data), "checkpoint_to": str(home / "checkpoints")}
    base = lab.Settings(on_bad_image="skip", **SMALL)
    experiment = lab.Experiment(
        "decoders",
        question="Is the decoder slow?",
        variants={
            "opencv": base,
            "pillow": replace(base, decoder="pillow"),
            "elsewhere": replace(base, storage=str(home / "no such disk")),
            "packed": replace(base, packing="raw"),
            "copied": replace(base, storage=str(home / "disk")),
        },
        baseline="opencv",
    )
    (home / "disk").mkdir()
    asked = Request(experiment=experiment, settings=places)
    run = lab.run(asked.build(), blocks=1, results=home / "results", progress=False)
    # What this machine has no reason to say.
    traceback = f'File "{home}/lab/mine.py", line 3, on {socket.gethostname()} and {HOST}'
    gpu = replace(run.info.provenance.gpu, reason=traceback)
    secret = {"device": f"//{HOST}/{OWNER}", "remark": traceback}
    info = replace(
        run.info,
        provenance=replace(run.info.provenance, gpu=gpu),
        failed={**run.info.failed, "copied": traceback},
        unreadable=(str(data / "broken.jpg"),),
        local_notes=(str(data / "broken.jpg"),),
        storages={x: replace(facts, **secret) for x, facts in run.info.storages.items()},
    )
    write_info(run.folder, info)
    failed = next(trial for trial in run.trials if trial.variant == "pillow")
    names = dict.fromkeys(("busiest_program", "busiest_gpu_program"), f"{OWNER}-sync")
    log = {**failed.disturbance, **names}
    medium = {**failed.medium, "device": f"//{HOST}/{OWNER}"}
    how = {"status": "failed", "reason": traceback, "disturbance": log, "medium": medium}
    append_trials(run.folder, replace(failed, block=1, epochs=(), **how))
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


def where(value, place=""):
    """List where in JSON something of the machine is told, in names or values; * is any name."""
    if isinstance(value, dict):
        for name, below in value.items():
            if re.search(SECRET, name):
                yield f"{place}.*"
            yield from where(below, f"{place}.*" if place in NAMED else f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for below in value:
            yield from where(below, place)
    elif isinstance(value, str) and re.search(SECRET, value):
        yield place


# --- write ---------------------------------------------------------------------------------------


def test_a_share_file_does_not_say_whose_machine_it_was(made, packed):
    info = store.to_json(load_run(made.folder).info)
    rows = [trial.to_row() for trial in made.trials]
    assert {*where(info), *where(rows)} == TOLD
    said = "\n".join([packed.name, *contents(packed).values()])
    for secret in (OWNER, HOST, socket.gethostname(), getpass.getuser(), "my disk", "photos"):
        assert not re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", said), secret
    assert re.findall(r'"[/~\\][^"]*"', said) == []


def test_notes_of_earlier_versions_named_files_and_are_not_shared(tmp_path):
    notes = [f"left out: /home/{OWNER}/photos/1.jpg"]
    info = fake_info(["a", "b"], schema=1, notes=notes, provenance=ELSEWHERE)
    run = load_run(create_run(tmp_path, info))
    assert [note for note in run.summary.notes if note in notes] == notes
    assert OWNER not in "".join(contents(write(run, tmp_path)).values())


def test_a_run_that_nobody_could_open_is_not_written(tmp_path):
    info = fake_info(["a", "b"], question="?" * 3000, provenance=ELSEWHERE)
    run = load_run(create_run(tmp_path / "ours", info))
    with pytest.raises(ValueError, match="must hold plain JSON objects within the limits of size"):
        write(run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_a_variant_labelled_with_a_folder_is_refused(made, tmp_path):
    disk = "/mnt/disk/fast"
    variants = {"a": lab.Settings(), f"from {disk}": lab.Settings(storage=disk)}
    run = replace(made, info=replace(made.info, variants=variants))
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


@pytest.mark.parametrize(
    ("reason", "shared"),
    [
        ("tensorflow is not installed; pip install it", "tensorflow is not installed"),
        ("torchvision.io is not installed", "torchvision.io is not installed"),
        ("torchcodec.decoders is not installed; pip", "torchcodec.decoders is not installed"),
        ("torchvision.transforms.v2.functional is not installed; pip install torchvision",
         "torchvision.transforms.v2.functional is not installed"),
        ("cv2 is installed and broken (ImportError: /home/ada/x.so); install it again",
         "cv2 is installed and broken"),
        ("no NVIDIA driver", "no NVIDIA driver"),
        ("it takes 2 GPUs, got 1 GPU", "it takes 2 GPUs, got 1 GPU"),
        ("my_secret_project is not installed; pip install it", "not shared"),
        ("/home/ada/secret is not readable", "not shared"),
        ("see /home/ada: torch is not installed", "not shared"),
    ],
)  # fmt: skip
def test_a_reason_in_labkits_own_words_is_shared_and_no_other(reason, shared):
    info = {"skipped": {"one": reason}, "failed": {"two": reason}, "reason": reason}
    theirs, local = store.split_local(info)
    assert theirs == {"skipped": {"one": shared}, "failed": {"two": shared}, "reason": shared}
    assert local == info


# --- open ---------------------------------------------------------------------------------------


def test_an_opened_run_has_the_same_numbers_of_another_machine(made, packed, opened):
    ours, theirs = (run.summary.rows for run in (made, opened))
    assert [row.variant for row in theirs] == ["opencv", "pillow", "elsewhere", "packed", "copied"]
    assert [row.normalized_time for row in theirs] == [row.normalized_time for row in ours]
    assert [row.status for row in theirs] == ["ok", "ok", "skipped", "ok", "failed"]
    assert theirs[2].reason == "not shared"
    assert opened.info.variants["opencv"].data.startswith("manifest ")
    assert opened.info.shared_from == lab.machine.hardware.describe(made.info.provenance)
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
    message = f"got one from {opened.info.shared_from}; start one here: labkit run decoders"
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
    assert (opened.info.status, opened.trials) == ("cancelled", ())
