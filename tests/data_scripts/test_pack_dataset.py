"""The script packs any data set: killed at any moment it leaves no pack, and it goes on."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from web import web

from data_scripts.pack_dataset import main
from labkit.packs import COST
from labkit.parts.packing import PACKINGS, is_pack
from labkit.parts.packing.manifest import MANIFEST
from labkit.settings import Settings
from labkit.stored import open_source

REPOSITORY = Path(__file__).parents[2]
WAIT_S = 60  # only a broken test waits so long
PIXELS = ["--to", "raw", "--stored", "pixels", "--px", "256"]
SMALL = ["--shard-mb", "2"]  # seven images


@pytest.fixture
def data(photos, tmp_path):
    return shutil.copytree(photos, tmp_path / "data")


@pytest.fixture(scope="module")
def many(photos, tmp_path_factory):
    """96 images in one folder: the same 24, linked four times."""
    folder = tmp_path_factory.mktemp("many") / "images"
    folder.mkdir()
    for path in (photos / "images").iterdir():
        for number in range(4):
            (folder / f"{path.stem}-{number}.jpg").symlink_to(path)
    return folder


@pytest.fixture(scope="module")
def undisturbed(many, tmp_path_factory):
    """What is in a pack of them that nobody stopped."""
    out = tmp_path_factory.mktemp("undisturbed") / "pack"
    assert main([str(many), *PIXELS, *SMALL, "--out", str(out)]) == 0
    return contents(out)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != COST}


def start(*words, **more):
    return subprocess.Popen(
        [sys.executable, "data_scripts/pack_dataset.py", *map(str, words)],
        cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, **more,
    )  # fmt: skip


def wait_for(condition, process):
    for _ in range(WAIT_S * 200):
        if condition() or process.poll() is not None:
            return
        time.sleep(0.005)
    raise AssertionError("it did not come so far")


def test_it_packs_and_says_what_it_made_and_how_to_read_it(data, capsys):
    assert main([str(data), *PIXELS]) == 0
    shown = capsys.readouterr().out
    folder = data.with_name("data.packs") / "raw-pixels-256"
    assert f"{folder} is made: 24 images, " in shown
    assert re.search(r"it took \S+ m?s with the engine local and \d+ workers?: .* images/s", shown)
    words = re.search(r"Settings\((.*)\)", shown)[1]
    reader = open_source(eval(f"Settings({words})", {"Settings": Settings}))
    assert (reader.root, reader.stored, len(reader)) == (folder, "pixels", 24)
    assert f"labkit run EXPERIMENT --data {data} --packing raw --stored pixels" in shown
    assert main([str(data), *PIXELS]) == 0
    assert "is there already: 24 images" in capsys.readouterr().out


def test_another_place_is_read_as_data_of_its_own(data, tmp_path, capsys):
    assert main([str(data), *PIXELS, "--out", str(tmp_path / "pack")]) == 0
    words = re.search(r"Settings\((.*)\)", capsys.readouterr().out)[1]
    reader = open_source(eval(f"Settings({words})", {"Settings": Settings}))
    assert (reader.root, len(reader)) == (tmp_path / "pack", 24)


def test_what_it_says_can_be_pasted_whatever_the_folder_is_called(photos, tmp_path, capsys):
    data = shutil.copytree(photos, tmp_path / "meine Bilder ü")
    assert main([str(data), *PIXELS]) == 0
    line = re.search(r"a shell: (.*)", capsys.readouterr().out)[1]
    assert shlex.split(line)[3:5] == ["--data", str(data)]


def test_data_at_a_url_is_packed_into_a_folder_of_this_machine(photos, tmp_path, capsys):
    out = str(tmp_path / "pack")
    with web(photos) as here:
        assert main([here.url, "--to", "raw"]) == 2
        assert "out must be a folder of this machine for data at" in capsys.readouterr().err
        assert main([here.url, "--to", "raw", "--out", out]) == 0
        assert main([here.url, "--to", "raw", "--out", out, "--verify"]) == 0
    reader = PACKINGS["raw"].open(out)
    assert bytes(reader.read(5)[0]) == PACKINGS["folder"].open(photos).read(5)[0]


@pytest.mark.parametrize("packing", [name for name in PACKINGS if "_" not in name])
def test_every_packing_is_packed_and_verified(data, tmp_path, packing, capsys):
    out = str(tmp_path / "pack")
    words = [str(data), "--to", packing, "--stored", "resized", "--px", "64", "--out", out]
    assert main(words) == 0
    assert main([*words, "--verify"]) == 0
    assert "is whole: 24 images" in capsys.readouterr().out


@pytest.mark.parametrize("shards", [0, 1, 5])
def test_killed_at_any_moment_it_leaves_no_pack_and_goes_on(many, tmp_path, shards, undisturbed):
    words = [many, *PIXELS, *SMALL, "--jobs", "1" if shards else "2"]
    out, part = tmp_path / "pack", tmp_path / ".pack.part"
    process = start(*words, "--out", out)
    wait_for(lambda: part.is_dir() and len(list(part.glob("0*.npz"))) >= shards, process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"
    assert not is_pack(out)
    assert not is_pack(part)
    kept = {file.name: file.stat().st_mtime_ns for file in part.glob("0*.raw")}
    assert len(kept) >= shards
    assert main([*map(str, words), "--out", str(out)]) == 0
    names = sorted(kept)[:-1]  # of the last one the index may be missing
    assert all((out / name).stat().st_mtime_ns == kept[name] for name in names)
    assert contents(out) == undisturbed


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_says_so_and_leaves_no_process(many, tmp_path, with_signal):
    part = tmp_path / ".pack.part"
    process = start(many, *PIXELS, *SMALL, "--jobs", "2", "--out", tmp_path / "pack")
    wait_for(lambda: list(part.glob("0*.npz")), process)
    if with_signal == signal.SIGINT:
        os.killpg(process.pid, with_signal)  # as a terminal does it
    else:
        process.send_signal(with_signal)
    _, said = process.communicate(timeout=WAIT_S)  # ends when nobody holds the pipe any more
    assert process.returncode == 130
    assert "stopped; the same command goes on from here" in said
    assert "Traceback" not in said
    assert not is_pack(tmp_path / "pack")


def test_verify_names_the_record_that_is_damaged(data, capsys):
    main([str(data), *PIXELS])
    folder = data.with_name("data.packs") / "raw-pixels-256"
    assert main([str(folder), "--verify"]) == 0
    with (folder / "00000.raw").open("r+b") as shard:
        shard.seek(5)
        shard.write(b"damage")
    capsys.readouterr()
    for words in ([str(folder)], [str(data), *PIXELS]):
        assert main([*words, "--verify"]) == 1
        shown = capsys.readouterr()
        assert re.search(r"00000\.raw, record 0 \(images/0*1\.jpg\) must have CRC-32", shown.out)
        assert "must be what was packed, got 1 difference; remove it and pack" in shown.err


def test_verify_tells_a_pack_of_other_data(data, capsys):
    main([str(data), *PIXELS])
    (data / MANIFEST).write_text((data / MANIFEST).read_text() + " ")
    assert main([str(data), *PIXELS, "--verify"]) == 1
    assert "source_hash must be" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "said"), [
    (["--to", "raw", "--px", "100"], "input_px must be a positive multiple of 32, got 100"),
    (["--to", "folder", "--stored", "pixels"], "stored must be jpeg or resized for the packing"),
    (["--to", "folder"], "stored must be resized for the packing folder, got 'jpeg', which is"),
    (["--to", "raw", "--master", "local[2]"], "master must be left out for the engine local"),
    (["--to", "raw", "--jobs", "0"], "jobs must be at least 1, got 0"),
    (["--to", "raw", "--shard-mb", "0"], "shard_mb must be more than 0, and left out for"),
    ([], "to must be one of folder, "),
])  # fmt: skip
def test_wrong_use_is_said_in_one_line(data, words, said, capsys):
    assert main([str(data), *words]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {said}")
    assert shown.count("\n") == 1


def test_a_pack_inside_its_data_or_of_a_pack_is_refused(data, tmp_path, capsys):
    assert main([str(data), *PIXELS, "--out", str(data / "pack")]) == 2
    assert "out must be a folder outside of the data" in capsys.readouterr().err
    main([str(data), *PIXELS, "--out", str(tmp_path / "pack")])
    assert main([str(tmp_path / "pack"), "--to", "raw"]) == 2
    assert "data must be images as they were made, got a pack (raw)" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["no such folder", "no images"])
def test_what_cannot_be_packed_is_an_error(tmp_path, missing, capsys):
    if missing == "no images":
        (tmp_path / "data").mkdir()
    assert main([str(tmp_path / "data"), "--to", "raw"]) == 1
    assert capsys.readouterr().err.startswith("error: data must ")
