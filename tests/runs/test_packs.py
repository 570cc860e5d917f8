"""Packs are made once, again when they are of something else, and whole or not at all."""

import multiprocessing
import re
import shutil
import signal
import sys

import numpy as np
import pytest
from jpegs import encode, exif, with_segment
from kernel import needs_fork
from PIL import Image
from small import completed

import labkit as lab
from data_scripts.pack_dataset import main
from labkit.contracts import Cancelled, Skip
from labkit.jpeg import read_size_px
from labkit.parts.packing import PACKINGS
from labkit.parts.preprocessing import Preprocessor
from labkit.pipeline import first_batch
from labkit.resolve import complete_here, open_reader, resolve, source_folder
from labkit.runs import packs
from labkit.runs.packs import ensure_pack
from labkit.settings import Settings
from tests.processes import AfterLooks, KilledAfter


@pytest.fixture
def data(photos, tmp_path):
    """A data set of one's own, with a manifest."""
    return shutil.copytree(photos, tmp_path / "data")


def wanted(data, **more):
    return Settings(
        **{"data": str(data), "packing": "raw", "storage_format": "pixels", "input_px": 64, **more}
    )


def make(settings, **how):
    return ensure_pack(settings, **{"jobs": 1, **how})


def contents(folder):
    """What is in a pack, but for what it cost."""
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    return {name: content for name, content in files.items() if name != packs.COST}


def test_a_pack_is_made_once(data):
    sentences = []
    cost = make(wanted(data), say=sentences.append)
    folder = source_folder(wanted(data))
    assert folder == data.with_name("data.packs") / "raw-pixels-64"
    assert (cost["folder"], cost["images"], cost["jobs"]) == (str(folder), 24, 1)
    assert cost["bytes"] > 24 * 64 * 64 * 3
    assert cost["pack_s"] > 0
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert make(wanted(data), say=sentences.append) == cost
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert len(sentences) == 1
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("packing", ["folder", "tfrecord"])
def test_a_cancelled_pack_is_none_and_the_next_call_makes_it(packing, data, tmp_path):
    settings = wanted(data, packing=packing, storage_format="resized")
    make(settings, to=tmp_path / "whole")
    with pytest.raises(Cancelled):
        make(settings, to=tmp_path / "pack", cancel=AfterLooks(17))
    assert {path.name for path in tmp_path.iterdir()} == {"data", "whole"}
    make(settings, to=tmp_path / "pack")
    assert contents(tmp_path / "pack") == contents(tmp_path / "whole")


def start(action):
    """Run a function in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=action)
    process.start()
    return process


@needs_fork
def test_a_killed_packer_leaves_nothing_that_opens_and_the_next_call_makes_it(data, tmp_path):
    settings = wanted(data, packing="tfrecord", storage_format="resized")  # in several files
    packer = start(lambda: make(settings, to=tmp_path / "pack", cancel=KilledAfter(12)))
    packer.join()
    assert packer.exitcode == -signal.SIGKILL
    assert not (tmp_path / "pack").exists()
    make(settings, to=tmp_path / "pack")
    assert len(PACKINGS["tfrecord"].open(tmp_path / "pack")) == 24
    assert not list(tmp_path.glob("*.part"))


@needs_fork
def test_of_two_processes_that_want_the_same_pack_one_makes_it(data):
    sentences = multiprocessing.SimpleQueue()
    both = [start(lambda: make(wanted(data), say=sentences.put)) for _ in range(2)]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    lines = []
    while not sentences.empty():
        lines.append(sentences.get())
    assert sum("packed" in line for line in lines) == 1


def test_a_pack_of_data_that_changed_or_by_another_decoder_is_made_again(photos, tmp_path):
    tree = shutil.copytree(photos / "images", tmp_path / "tree")
    sentences = []
    make(wanted(tree))
    make(wanted(tree, decoder="pillow"), say=sentences.append)
    next(iter(sorted(tree.iterdir()))).unlink()
    assert make(wanted(tree, decoder="pillow"), say=sentences.append)["images"] == 23
    again = [
        line for line in sentences if "of other data, or made otherwise: it is made again" in line
    ]
    assert len(again) == 2


@pytest.mark.parametrize("name", ["images.raw", "index.npz", "manifest.json"])
def test_a_pack_that_is_damaged_is_made_again(data, name):
    settings, sentences = wanted(data), []
    make(settings)
    before = contents(source_folder(settings))
    (source_folder(settings) / name).write_bytes(b"{")
    make(settings, say=sentences.append)
    assert "is damaged: " in sentences[0]
    assert contents(source_folder(settings)) == before


# --- stored for random crops ------------------------------------------------------------------

FOR_CROPS = {"small": "raw", "yuv420": "mapped"}


@pytest.fixture
def odd_data(photos, tmp_path):
    """A tree of photographs of all kinds: large, odd, small, gray, and with an EXIF orientation."""
    folder = tmp_path / "odd"
    folder.mkdir()
    large = sorted((photos / "images").iterdir())[:2]
    for number, path in enumerate(large):
        (folder / f"large{number}.jpg").write_bytes(path.read_bytes())
    image = Image.open(large[0])
    images = {
        "odd": encode(image.resize((331, 207))),
        "small": encode(image.resize((53, 37))),
        "gray": encode(image.convert("L")),
        "turned": with_segment(encode(image.resize((160, 400))), 0xE1, exif(6)),
    }
    for name, jpeg in images.items():
        (folder / f"{name}.jpg").write_bytes(jpeg)
    return folder


def for_crops(data, stored="jpeg", **more):
    chosen = {"preprocessor": "classification_crop", "decoder": "simplejpeg", "device": "cpu"}
    how = {"packing": FOR_CROPS.get(stored, "folder"), "storage_format": stored}
    return completed(data=str(data), batch_size=6, **{"input_px": 96, **chosen, **how, **more})


def first_images(settings):
    make(settings)
    return first_batch(resolve(settings), frozenset())["image"]


def psnr_db(images, wanted):
    """Of each image, normalized pixels span about 4.6."""
    squares = np.square(images - wanted).mean(axis=(1, 2, 3))
    return 10 * np.log10(4.6**2 / np.maximum(squares, 1e-9))


@pytest.mark.parametrize("stored", FOR_CROPS)
def test_what_is_stored_for_random_crops_gives_the_crops_of_the_original(stored, odd_data):
    wanted = first_images(for_crops(odd_data))
    images = first_images(for_crops(odd_data, stored))
    assert psnr_db(images, wanted).min() > 24
    mirrored = images[..., ::-1]
    assert psnr_db(mirrored, wanted).max() < psnr_db(images, wanted).min()
    # Whole images, by a preprocessor that takes no parts.
    how = {"preprocessor": "classification"}
    wanted, images = (first_images(for_crops(odd_data, kind, **how)) for kind in ("jpeg", stored))
    assert psnr_db(images, wanted).min() > 20


def test_a_store_for_crops_has_the_size_that_crops_need_and_keeps_smaller_images(odd_data):
    reader = resolve(for_crops(odd_data)).reader
    for stored in FOR_CROPS:
        settings = for_crops(odd_data, stored)
        make(settings)
        pack = resolve(settings).reader
        for i in range(len(pack)):
            content, boxes = pack.read(i)
            width, height = read_size_px(reader.read(i)[0])
            if stored == "small":
                sides = read_size_px(content)
            else:
                sides = content.shape[1::-1]
            is_smaller = min(width, height) > 110  # 8/7 of 96, rounded up
            assert min(sides) == (110 if is_smaller else min(width, height))
            assert boxes.size_px == ((width, height) if is_smaller else None)
            if stored == "small" and not is_smaller:
                assert content == reader.read(i)[0]


@pytest.mark.parametrize("stored", FOR_CROPS)
def test_a_store_for_crops_that_is_damaged_or_of_other_data_is_made_again(stored, odd_data):
    settings, sentences = for_crops(odd_data, stored), []
    make(settings)
    file = source_folder(settings) / "images.raw"
    before = file.read_bytes()
    file.write_bytes(before[:-1])
    make(settings, say=sentences.append)
    assert "is damaged: " in sentences[0]
    assert file.read_bytes() == before
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    open_reader.cache_clear()
    (line,) = resolve(settings).reader.verify(range(6))
    assert "must have CRC-32" in line
    (odd_data / "gray.jpg").unlink()
    assert make(settings, say=sentences.append)["images"] == 5
    assert "of other data, or made otherwise: it is made again" in sentences[2]


def test_too_little_room_is_said_with_numbers_before_anything_is_written(
    data, tmp_path, monkeypatch
):
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: free)
    with pytest.raises(Skip, match=r"must have \d+ KB free for pack, got 1.0 KB; free some space"):
        make(wanted(data), to=tmp_path / "pack")
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


# --- who does the work ----------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.long)])
def test_every_engine_makes_the_pack_that_one_process_makes(engine, data, tmp_path, monkeypatch):
    if engine == "spark":
        pytest.importorskip("pyspark")
        if shutil.which("java") is None:
            pytest.skip("no Java here")
    # One of the user's own, which other processes do not know.
    mine = Preprocessor(lambda sample, px: {"mine": sample.image_rgb[:px, :px] // 2})
    monkeypatch.setitem(lab.PREPROCESSORS, "mine", mine)
    settings = wanted(data, storage_format="sample", preprocessor="mine")
    make(settings, to=tmp_path / "one")
    make(settings, to=tmp_path / "two", engine=engine, jobs=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    path = sorted((data / "images").iterdir())[9]
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=f"^{path}: image must be a complete JPEG, got 5000"):
        make(wanted(data), to=tmp_path / "pack", engine=engine, jobs=2)


def test_without_pyspark_or_java_spark_says_what_to_install(data, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    message = r"^spark must have pyspark and Java 17 or newer, got .*'torch-labkit\[spark\]'"
    with pytest.raises(Skip, match=message):
        make(wanted(data), engine="spark")


# --- the script -----------------------------------------------------------------------------

PIXELS = ["--to", "raw", "--storage-format", "pixels", "--px", "256", "--jobs", "1"]


@pytest.mark.parametrize(
    ("packing", "stored", "out"),
    [("raw", "pixels", []), ("folder", "resized", ["--out", "elsewhere"])],
)
def test_the_script_packs_and_says_how_to_read_it(
    packing, stored, data, out, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    how = [
        str(data),
        "--to",
        packing,
        "--storage-format",
        stored,
        "--px",
        "256",
        "--jobs",
        "1",
        *out,
    ]
    assert main(how) == 0
    shown = capsys.readouterr().out
    assert re.search(rf": 24 images, .*B as {packing}\nit took \S+ m?s with .* and 1 job: ", shown)
    words = re.search(r"Settings\((.*)\)", shown)[1]
    settings = eval(f"Settings({words})", {"Settings": Settings})
    reader = resolve(complete_here(settings)).reader
    assert (reader.stored, len(reader)) == (stored, 24)
    assert main([*how, "--verify"]) == 0
    assert "is whole: 24 images" in capsys.readouterr().out


def test_verify_names_a_record_that_differs_and_data_that_changed(data, tmp_path, capsys):
    out = str(tmp_path / "pack")
    assert main([str(data), *PIXELS, "--out", out]) == 0
    file = tmp_path / "pack" / "images.raw"
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    assert main([str(data), *PIXELS, "--out", out, "--decoder", "pillow", "--verify"]) == 1
    shown = capsys.readouterr()
    assert re.search(r"decoder must be 'pillow', got 'opencv' in .*pack", shown.out)
    assert re.search(r"images.raw, record 0 \(.*\) must have CRC-32 \w+, got \w+", shown.out)
    assert re.search(r"error: .* must be what was packed, got 2 differences; remove", shown.err)
