"""Synthetic photographs: the same bytes for the same seed, whatever stops or shares the work."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from data_scripts.make_photos import main
from labkit.contracts import Skip
from labkit.parts.packing import PACKINGS
from labkit.photos.make import LOCK, make_photos
from labkit.photos.scenes import annotate, plan_scene, visible_map
from tests.places import contents, tree
from tests.processes import until

SCRIPT = Path(__file__).parents[2] / "data_scripts" / "make_photos.py"


def make(out, images=8, **more):
    return make_photos(out, images, progress=False, **{"jobs": 1, **more})


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "photos"
    make(folder)
    return folder


def test_bytes_are_the_same_on_one_and_on_two_processes(photos, tmp_path):
    make(tmp_path / "two", jobs=2)
    assert contents(tmp_path / "two") == contents(photos)


def test_sizes_in_bytes_are_those_of_coco_photographs(photos):
    manifest = json.loads((photos / "manifest.json").read_bytes())
    assert 100_000 <= manifest["bytes"] / manifest["images"] <= 160_000


def test_annotations_describe_the_files_with_cocos_categories(photos):
    coco = json.loads((photos / "annotations.json").read_bytes())
    for image in coco["images"]:
        pixels = cv2.imread(str(photos / "images" / image["file_name"]))
        assert pixels.shape == (image["height"], image["width"], 3)
        assert max(pixels.shape) == 640
    ids = {category["id"] for category in coco["categories"]}
    assert len(ids) == 80
    assert ids >= {row["category_id"] for row in coco["annotations"]}


@settings(max_examples=40)
@given(seed=st.integers(0, 2**40), image_id=st.integers(1, 200_000))
def test_boxes_enclose_exactly_what_is_visible(seed, image_id):
    scene = plan_scene(seed, image_id)
    owners = visible_map(scene)
    boxes = annotate(scene).boxes_xyxy.astype(int)
    assert 1 <= len(boxes) <= 15
    enclosing = set()
    for number in np.unique(owners[owners > 0]):
        y, x = np.nonzero(owners == number)
        enclosing.add((x.min(), y.min(), x.max() + 1, y.max() + 1))
    assert {tuple(box) for box in boxes} <= enclosing


def test_more_images_extend_and_fewer_remove_none(photos, tmp_path):
    make(tmp_path / "grown", images=5)
    kept = (tmp_path / "grown" / "images" / "000000000003.jpg").stat()
    make(tmp_path / "grown")
    assert contents(tmp_path / "grown") == contents(photos)
    assert make(tmp_path / "grown", images=3)["images"] == 8
    again = (tmp_path / "grown" / "images" / "000000000003.jpg").stat()
    assert (again.st_ino, again.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)


@pytest.mark.parametrize("damage", ["missing", "cut off", "no annotations"])
def test_damage_is_repaired(photos, tmp_path, damage):
    folder = tmp_path / "damaged"
    make(folder)
    file = folder / ("annotations.json" if "ann" in damage else "images/000000000007.jpg")
    whole = file.read_bytes()
    file.unlink()
    if damage == "cut off":
        file.write_bytes(whole[:1000])
    make(folder)
    assert contents(folder) == contents(photos)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize(("stop", "status"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_a_stopped_run_leaves_whole_files_and_goes_on(tmp_path, stop, status):
    folder = tmp_path / "stopped"
    command = [sys.executable, SCRIPT, folder, "--images=2000", "--jobs=2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while len(list(folder.glob("images/*.jpg"))) < 8 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(getattr(signal, stop))
    assert process.wait() == status
    # The pipe closes when the last worker has ended, so none is left behind.
    said = process.stderr.read().decode()
    assert "Traceback" not in said
    assert not (folder / "manifest.json").exists()
    made = list(folder.glob("images/*.jpg"))
    assert 8 <= len(made) < 2000
    assert all(file.read_bytes()[-2:] == b"\xff\xd9" for file in made)
    with pytest.raises(ValueError, match="data must be a finished folder, got"):
        PACKINGS["folder"].open(folder)


def test_a_second_process_waits_and_takes_what_the_first_has_made(photos, tmp_path, capsys):
    folder = tmp_path / "photos"
    folder.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(folder / LOCK):
            second = pool.submit(make_photos, folder, 8, jobs=1)
            until(lambda: f"another run is making {folder}" in capsys.readouterr().err)
            shutil.copytree(photos, folder, dirs_exist_ok=True)
            copied = tree(folder)
        assert second.result()["images"] == 8
    copied.pop(LOCK)
    assert tree(folder) == copied


def test_another_seed_over_existing_data_is_refused(photos):
    message = f"seed must be 0, with which {str(photos)!r} was made, got 1; choose another folder"
    with pytest.raises(ValueError, match=re.escape(message)):
        make(photos, seed=1)


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(ValueError, match=r"folder must be new or empty, got .* with other files"):
        make(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"jobs": 0}, ValueError, "jobs must be at least 1, got 0"),
        ({"images": 10**12}, Skip, "must have .* free for 1,000,000,000,000 images, got"),
    ],
)
def test_numbers_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path, wrong, error, message
):
    with pytest.raises(error, match=message):
        make(tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_the_shell_command_says_what_it_made_and_what_is_wrong(photos, capsys):
    assert main([str(photos), "--images=8"]) == 0
    assert re.search(r"8 images of \d+ KB on average", capsys.readouterr().out)
    assert main([str(photos), "--images=-3"]) == 1
    assert "error: images must be at least 1, got -3" in capsys.readouterr().err


def test_a_folder_that_holds_images_is_taken_as_it_is(tmp_path, photos, capsys):
    own = tmp_path / "my images"
    own.mkdir()
    for path in sorted((photos / "images").iterdir())[:3]:
        (own / path.name).write_bytes(path.read_bytes())
    before = sorted(own.rglob("*"))
    assert main([str(own), "--or-adopt", "--images", "5"]) == 0
    assert "using the 3 images in" in capsys.readouterr().out
    assert sorted(own.rglob("*")) == before
