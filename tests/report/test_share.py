"""A share file holds nothing of this machine, and opens as the run of another one."""

import getpass
import json
import math
import re
import shutil
import socket
import types
import typing
import zipfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
from fake_runs import save_rows
from fakes import fake_info, fake_trials
from hypothesis import given, settings
from hypothesis import strategies as st
from json_changes import changed
from small import SMALL

import labkit as lab
from labkit.experiments.request import Request
from labkit.records import RUN_SCHEMA, SCHEMA, RunInfo, Trial
from labkit.report import table
from labkit.report.run import open_shared
from labkit.report.share import write
from labkit.runs import store
from labkit.runs.store import (
    StoredRun,
    create_run,
    find_run,
    hold,
    list_runs,
    load_run,
    newest_runs,
    write_info,
)

OWNER = "zquill"
ELSEWHERE = {"machine_id": "0123456789ab", "cores": 4, "cpu_model": "Z", "gpu": {"works": False}}
FOLDER = Path(__file__).parents[2] / "results" / "examples" / "2-cores-simulated"
EARLIER = ("combined", "distance", "preprocessing_full", "storage")


@pytest.fixture(scope="module")
def made(photos, tmp_path_factory):
    """A run in a folder of zquill's: one image is broken, one variant is skipped, one fails."""
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
    traceback = f'File "{home}/lab/mine.py", line 3, on {socket.gethostname()}'
    write_info(run.folder, replace(run.info, failed={"copied": traceback}))
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


# --- every string -----------------------------------------------------------------------------

# What has to be as it is for a run to be shared at all.
PLAIN = {
    "info.schema": RUN_SCHEMA, "info.experiment": "decoders", "info.run": "20250102T030405Z-beef",
    "info.kind": "epochs", "info.baseline": "a", "info.data.data_hash": "0123456789abcdef",
    "info.variants.*.input_px": 32, "row.schema": SCHEMA, "row.variant": "a",
}  # fmt: skip
# The names in these mappings are the user's own words, or those of labkit.
LABELLED = {
    "variants", "facts", "groups", "names", "baselines", "tasks", "published", "psnr_db", "costs",
    "reads", "skipped", "failed", "unknown_settings", "versions", "links", "rates", "labels",
    "last_means", "*",
}  # fmt: skip
# Places whose text a share file passes on: what labkit itself measured and wrote, and what the user
# wrote for others to read.
SHARED = {
    "info.mode", "info.protocol", "info.question", "info.source", "info.status", "info.notes",
    "info.created_utc", "info.shared_from", "info.groups.*", "info.baselines.*", "info.names.*",
    "info.tasks.*.*", "info.facts.*.other_pixels", "info.x_axis.setting", "info.x_axis.source",
    "info.data.boxes", "info.data.kind", "info.calibration.calibrated",
    "info.storages.*.filesystem", "info.storages.*.hardware.details", "info.storages.*.rates.a",
    "info.storages.*.rates_checked_utc",
    "info.calibration.free_loader_checked_utc", "info.links.*.rates.a",
    "info.links.*.rates_checked_utc", "info.provenance.machine_id", "info.provenance.platform",
    "info.provenance.kernel", "info.provenance.python", "info.provenance.cpu_model",
    "info.provenance.versions.*", "info.provenance.revision", "info.provenance.gpu.name",
    "info.provenance.gpu.driver", "info.provenance.gpu.capability",
    "request.experiment", "request.mode", "request.protocol", "request.variants", "request.added",
    "request.baseline",
    "row.experiment", "row.group", "row.run", "row.machine_id", "row.started_utc", "row.labels.*",
    "row.hardware.details", "row.medium.filesystem", "row.cache_proof.wanted",
    "row.cache_proof.method", "row.cache_proof.measured_by",
}  # fmt: skip
REQUEST = {name for name in SHARED if name.startswith("request.")}
PROOF = ("wanted", "method", "measured_by")


def secret(place):
    """A path of this machine that names where in a run it stands."""
    return f"/home/{OWNER}/{place}/end"


def places_in(text):
    return {*re.findall(rf"/home/{OWNER}/(\S+?)/end", text)}


def filled(hint, place):
    """Return a value of a type in which every string is a secret."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if place in PLAIN:
        return PLAIN[place]
    if is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        values = {f.name: filled(hints[f.name], f"{place}.{f.name}") for f in fields(hint)}
        return hint(**values)
    if origin in (types.UnionType, typing.Union):  # text where that may stand, too
        return filled(str if str in inner else inner[0], place)
    if origin is typing.Literal:
        return inner[0]
    if origin is tuple:
        return (filled(inner[0], place),)
    if origin in (dict, Mapping):
        own = "a" if place.rpartition(".")[2] in LABELLED else secret(place)
        # A medium of labkit.toml has a name; another folder is named by its path.
        names = ("own_disk", own) if place == "info.storages" else (own,)
        is_anything = inner[1] is typing.Any
        return {x: filled(inner[1], f"{place}.{x if is_anything else '*'}") for x in names}
    return secret(place) if hint in (str, typing.Any) else hint(1)


def secrets_of(place, names):
    return {name: secret(f"{place}.{name}") for name in names}


def test_no_text_of_a_run_or_row_is_shared_but_those_that_tell_nothing_of_the_machine(
    made, tmp_path
):
    asked = {name: secret(place) for place in REQUEST for _, name in [place.split(".")]}
    asked |= {name: [asked[name]] for name in ("variants", "added")}
    asked["settings"] = secrets_of("request.settings", lab.Settings.__dataclass_fields__)
    info = replace(filled(RunInfo, "info"), request=asked)
    row, real = filled(Trial, "row"), made.trials[0]
    texts = {
        "settings": [*lab.Settings.__dataclass_fields__, "of_another_version"],
        "medium": ("filesystem", "device"),
        "cache_proof": PROOF,
        "disturbance": [name for name, x in real.disturbance.items() if isinstance(x, str)]
        + ["busiest_program", "busiest_gpu_program"],
    }
    row = replace(row, **{name: secrets_of(f"row.{name}", each) for name, each in texts.items()})
    run = StoredRun(folder=tmp_path / "run", info=info, trials=(row,))
    put_in = places_in(json.dumps([store.to_json(info), row.to_row()]))
    file = write(run, tmp_path)
    assert places_in("\n".join(contents(file).values())) <= SHARED <= put_in
    for name in PROOF:
        assert name in real.cache_proof


def test_a_run_that_was_measured_says_nothing_of_whose_machine_it_was(made, packed):
    text = json.dumps(store.to_json(made.info))
    assert all(secret in text for secret in (OWNER, "my disk", socket.gethostname()))
    shared = "\n".join([packed.name, *contents(packed).values()])
    for secret in (OWNER, socket.gethostname(), getpass.getuser(), "my disk", "photos"):
        assert not re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", shared), secret
    assert re.findall(r'"[/~\\][^"]*"', shared) == []


# --- write ---------------------------------------------------------------------------------------


def test_notes_of_earlier_versions_named_files_and_are_not_shared(tmp_path):
    notes = [f"left out: /home/{OWNER}/photos/1.jpg"]
    info = fake_info(["a", "b"], schema=1, notes=notes, provenance=ELSEWHERE)
    run = load_run(create_run(tmp_path, info))
    assert [note for note in run.summary.notes if note in notes] == notes
    assert OWNER not in "".join(contents(write(run, tmp_path)).values())


def test_what_nobody_could_open_names_a_folder_or_is_in_progress_is_not_written(made, tmp_path):
    info = fake_info(["a", "b"], question="?" * 3000, provenance=ELSEWHERE)
    run = load_run(create_run(tmp_path / "ours", info))
    with pytest.raises(ValueError, match="must hold plain JSON objects within the limits of size"):
        write(run, tmp_path)
    disk = "/mnt/disk/fast"
    variants = {"a": lab.Settings(), f"from {disk}": lab.Settings(storage=disk)}
    run = replace(made, info=replace(made.info, variants=variants))
    with pytest.raises(ValueError, match=f"labelled with a folder to be shared, got 'from {disk}'"):
        write(run, tmp_path)
    folder = tmp_path / "ours" / "decoders" / made.folder.name
    shutil.copytree(made.folder, folder)
    with hold(folder), pytest.raises(RuntimeError, match="run must have ended before"):
        write(load_run(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


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
    assert local == (info if shared != reason else {})


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


def test_a_shared_run_is_found_by_its_id_but_never_taken_for_this_machines(made, opened, tmp_path):
    assert list_runs(opened.folder.parents[2]) == []
    # Not even where somebody put it among the others.
    shutil.copytree(opened.folder, tmp_path / "decoders" / opened.folder.name)
    assert newest_runs(tmp_path, lambda info: 0) == {}
    message = f"got one from {opened.info.shared_from}; start one here: labkit run decoders"
    with pytest.raises(ValueError, match=re.escape(message)):
        lab.resume(opened.folder)
    results = tmp_path / "results"
    theirs = results / "shared" / "decoders" / opened.folder.name
    shutil.copytree(opened.folder, theirs)
    assert find_run(results, made.folder.name).folder == theirs
    with pytest.raises(FileNotFoundError, match="got 'decoders'"):
        find_run(results, "decoders")  # an experiment's newest run is one of ours
    ours = results / "decoders" / made.folder.name
    shutil.copytree(made.folder, ours)
    assert find_run(results, made.folder.name).folder == ours


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e30])
def test_a_run_whose_training_diverged_can_be_shared(loss, tmp_path):
    info = fake_info(["a", "b"], provenance=ELSEWHERE)
    trials = [replace(trial, loss=loss) for trial in fake_trials({"a": 1.0, "b": 0.8})]
    opened = open_shared(write(load_run(save_rows(tmp_path / "ours", info, trials))), tmp_path)
    assert {str(trial.loss) for trial in opened.trials} == {str(loss)}


def test_a_run_of_a_large_roofline_can_be_shared(tmp_path):
    names = [f"x = 1: {number}" for number in range(207)]
    info = fake_info(names, status="cancelled", provenance=ELSEWHERE)
    opened = open_shared(write(load_run(create_run(tmp_path / "ours", info))), tmp_path)
    assert [*opened.info.variants] == names


def test_a_killed_run_goes_and_comes_as_cancelled(tmp_path):
    info = fake_info(["a", "b"], status="running", notes=[], provenance=ELSEWHERE)
    folder = create_run(tmp_path / "ours", info)
    (folder / "trials.jsonl").write_bytes(b'{"reason": "\xc3')  # half a letter
    opened = open_shared(write(load_run(folder)), tmp_path / "theirs")
    assert (opened.info.status, opened.trials) == ("cancelled", ())


# --- damaged files --------------------------------------------------------------------------------


def open_or_refuse(file, results):
    """Return the run, or None where it is refused in a line and nothing is kept of it."""
    try:
        return open_shared(file, results)
    except (ValueError, OSError) as error:
        assert "\n" not in str(error) and len(str(error)) < 400
        assert not results.exists()


@settings(max_examples=60)
@given(data=st.data())
def test_a_file_with_any_byte_changed_or_cut_off_is_refused_or_opens_equal(
    packed, opened, tmp_path_factory, data
):
    content, folder = packed.read_bytes(), tmp_path_factory.mktemp("changed")
    # The directory of a zip is at its end.
    place = data.draw(st.integers(0, len(content) - 1) | st.integers(-250, -1) | st.integers(0, 90))
    change = data.draw(st.none() | st.integers(1, 255))
    damaged = bytearray(content)
    damaged[place] ^= change or 0
    (folder / "x.zip").write_bytes(damaged if change else damaged[:place])
    run = open_or_refuse(folder / "x.zip", folder / "results")
    assert run is None or (run.info, run.trials) == (opened.info, opened.trials)


def write_zip(file, info, rows):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("run.json", json.dumps(info))
        target.writestr("trials.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return file


INFO = store.to_json(
    fake_info(["a", "b"], run="20250102T030405Z-beef", provenance=ELSEWHERE, notes=["n"])
)
ROWS = [trial.to_row() for trial in fake_trials({"a": 1.0, "b": 0.9})]


@settings(max_examples=30)
@given(st.tuples(changed(INFO), st.just(ROWS)) | st.tuples(st.just(INFO), changed(ROWS)))
def test_a_file_with_any_value_changed_is_refused_or_shown(tmp_path_factory, run_and_rows):
    folder = tmp_path_factory.mktemp("changed")
    run = open_or_refuse(write_zip(folder / "x.zip", *run_and_rows), folder / "results")
    assert run is None or "<table" in run.table()._repr_html_()
