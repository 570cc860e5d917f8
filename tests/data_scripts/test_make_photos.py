"""Synthetic photographs: the same bytes for the same seed, whatever stops or shares the work."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_scripts.make_photos import main, make_photos
from data_scripts.photo_scenes import annotate, paint, plan_scene, visible_map
from labkit.parts.packing import PACKINGS

REPOSITORY = Path(__file__).parents[2]


def make(out, images=12, **more):
    return make_photos(out, images, progress=False, **{"jobs": 1, **more})


def contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "photos"
    make(folder)
    return folder


def test_bytes_are_the_same_on_one_and_on_two_processes(photos, tmp_path):
    make(tmp_path / "two", jobs=2)
    assert contents(tmp_path / "two") == contents(photos)


def test_another_seed_makes_other_images(photos, tmp_path):
    make(tmp_path / "other", images=1, seed=1)
    name = "images/000000000001.jpg"
    assert (tmp_path / "other" / name).read_bytes() != (photos / name).read_bytes()


def test_manifest_counts_what_lies_there(photos):
    manifest = json.loads((photos / "manifest.json").read_bytes())
    sizes = {name: (photos / name).stat().st_size for name in manifest["files"]}
    assert manifest["images"] == len(sizes) == 12
    assert manifest["bytes"] == sum(sizes.values())
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == sizes
    assert PACKINGS["folder"].open(photos).verify(range(12)) == []


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


@settings(max_examples=40, deadline=None)
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


def test_power_spectrum_falls_like_that_of_photographs():
    # Photographs: power ~ 1 / frequency^2, single ones between 1.4 and 3 (Field 1987).
    slopes = [spectrum_slope(paint(plan_scene(0, image_id))) for image_id in range(1, 25)]
    assert -2.5 < np.mean(slopes) < -1.7


def spectrum_slope(image_bgr):
    """Slope of log power over log frequency, from 4 cycles per image to 0.4 per pixel."""
    grey = cv2.cvtColor(image_bgr, cv2.COLOR_BGR2GRAY).astype(float)
    side = min(grey.shape)
    grey = (grey[:side, :side] - grey.mean()) * np.outer(np.hanning(side), np.hanning(side))
    power = np.abs(np.fft.fft2(grey)) ** 2
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side))
    ring = np.rint(frequency * side).astype(int).ravel()
    mean_power = np.bincount(ring, power.ravel()) / np.bincount(ring)
    cycles = np.arange(4, int(0.4 * side))
    return np.polyfit(np.log(cycles), np.log(mean_power[cycles]), 1)[0]


def test_more_images_extend_and_fewer_remove_none(photos, tmp_path):
    make(tmp_path / "grown", images=5)
    kept = (tmp_path / "grown" / "images" / "000000000003.jpg").stat()
    make(tmp_path / "grown", images=12)
    assert contents(tmp_path / "grown") == contents(photos)
    assert make(tmp_path / "grown", images=3)["images"] == 12
    again = (tmp_path / "grown" / "images" / "000000000003.jpg").stat()
    assert (again.st_ino, again.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)


def test_a_call_on_complete_data_writes_nothing(photos):
    before = {file: file.stat().st_mtime_ns for file in photos.rglob("*")}
    make(photos)
    assert {file: file.stat().st_mtime_ns for file in photos.rglob("*")} == before


@pytest.mark.parametrize("damage", ["missing", "cut off", "empty", "no annotations"])
def test_damage_is_repaired(photos, tmp_path, damage):
    folder = tmp_path / "damaged"
    make(folder)
    file = folder / ("annotations.json" if "ann" in damage else "images/000000000007.jpg")
    whole = file.read_bytes()
    file.unlink()
    if damage in ("cut off", "empty"):
        file.write_bytes(whole[: 1000 if damage == "cut off" else 0])
    make(folder)
    assert contents(folder) == contents(photos)


def test_files_that_a_power_cut_emptied_before_the_manifest_are_made_again(photos, tmp_path):
    folder = tmp_path / "unfinished"
    make(folder)
    (folder / "manifest.json").rename(folder / ".unfinished.json")  # it has the kind and the seed
    (folder / "images" / "000000000002.jpg").write_bytes(b"")
    make(folder)
    assert contents(folder) == contents(photos)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize(("stop", "status"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_a_stopped_run_leaves_whole_files_and_goes_on(tmp_path, stop, status):
    folder = tmp_path / "stopped"
    command = [sys.executable, "data_scripts/make_photos.py", folder, "--images=2000", "--jobs=2"]
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE
    )
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
    ("wrong", "message"),
    [
        ({"images": 0}, "images must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_more_images_than_fit_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(OSError, match=r"out must have about .* free for 1000000000000 images, got"):
        make(tmp_path / "out", images=10**12)
    assert not (tmp_path / "out").exists()


def test_out_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"out must be a folder that can be written to, got"):
        make(tmp_path / "file" / "photos")


def test_the_shell_command_says_what_it_made_and_what_is_wrong(photos, capsys):
    assert main([str(photos), "--images=12"]) == 0
    assert re.search(r"12 images of \d+ KB on average", capsys.readouterr().out)
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


def test_a_missing_folder_is_made_even_if_one_could_be_adopted(tmp_path, capsys):
    assert main([str(tmp_path / "new"), "--or-adopt", "--images", "2"]) == 0
    assert "2 images of" in capsys.readouterr().out
