"""Packs are made once, again when they are of something else, and whole or not at all."""

import multiprocessing
import re
import shutil
import signal
import sys
from dataclasses import replace

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
from labkit.resolve import complete_here, original, resolve, source_folder
from labkit.runs import packs
from labkit.runs.check_images import find_bad_images
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


SPOILT = {
    **{name: lambda pack, name=name: (pack / name).write_bytes(b"{")
       for name in ("images.raw", "index.npz", "manifest.json")},
    "cut": lambda pack: (pack / "images.raw").write_bytes((pack / "images.raw").read_bytes()[:-1]),
}  # fmt: skip


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_pack_that_is_damaged_is_made_again(data, spoilt):
    sentences = []
    make(wanted(data))
    pack = source_folder(wanted(data))
    before = contents(pack)
    SPOILT[spoilt](pack)
    make(wanted(data), say=sentences.append)
    assert "is damaged: " in sentences[0]
    assert contents(pack) == before


def test_boxes_are_stored_in_the_pixels_of_their_image(data):
    settings = complete_here(wanted(data))
    make(settings)
    whole, pack = (resolve(each).reader for each in (original(settings), settings))
    for n in range(8):
        (jpeg, boxes), (pixels, smaller) = whole.read(n), pack.read(n)
        factors = np.tile(np.divide(pixels.shape[1::-1], read_size_px(jpeg)), 2)
        assert (factors < 1).all()
        np.testing.assert_allclose(smaller.boxes_xyxy, boxes.boxes_xyxy * factors, rtol=1e-5)


def test_a_pack_by_another_decoder_or_of_other_data_is_made_again(photos, tmp_path):
    tree, sentences = tmp_path / "tree", []
    tree.mkdir()
    for path in sorted((photos / "images").iterdir())[:4]:
        shutil.copy(path, tree)
    make(wanted(tree))
    settings = wanted(tree, decoder="pillow")
    make(settings, say=sentences.append)
    sorted(tree.iterdir())[0].unlink()
    assert make(settings, say=sentences.append)["images"] == 3
    again = "of other data, or made otherwise: it is made again"
    assert sum(again in line for line in sentences) == 2


STORED = {"resized": "folder", "pixels": "raw", "sample": "raw", "jpeg": "pth", "yuv420": "mapped"}


@pytest.mark.parametrize("stored", STORED)
def test_an_unreadable_image_keeps_its_number_in_a_pack_and_is_found_there(
    stored, photos, tmp_path
):
    data, bad = tmp_path / "data", 3
    data.mkdir()
    for path in sorted((photos / "images").iterdir())[:8]:
        shutil.copy(path, data)
    sorted(data.iterdir())[bad].write_bytes(b"")
    settings = completed(
        data=str(data), packing=STORED[stored], storage_format=stored, on_bad_image="skip",
        preprocessor="classification", device="cpu",
    )  # fmt: skip
    make(settings)
    pack = replace(settings, data=str(source_folder(settings)))
    for each in (original(settings), pack):
        found, changed = find_bad_images(each, 0, 99, ["opencv"])
        assert ([index for index, _ in found], changed) == ([bad], [])
    ids = first_batch(resolve(settings), frozenset({bad}), 7)["sample_id"].tolist()
    assert bad not in ids


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
    packing = "folder" if stored == "jpeg" else (STORED | FOR_CROPS)[stored]
    how = {"packing": packing, "storage_format": stored}
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


@pytest.mark.parametrize("stored", sorted({*STORED, *FOR_CROPS} - {"jpeg"}))
def test_what_is_stored_gives_the_whole_images_of_the_original(stored, odd_data):
    how = {"preprocessor": "classification"}  # takes no parts
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


def words(data, packing, stored, *more):
    how = ["--to", packing, "--storage-format", stored, "--px", "256", "--jobs", "1"]
    return list(map(str, [data, *how, *more]))


@pytest.mark.parametrize(
    ("packing", "stored", "out"),
    [("raw", "pixels", []), ("folder", "resized", ["--out", "elsewhere"])],
)
def test_the_script_packs_and_says_how_to_read_it(
    packing, stored, out, data, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    asked = words(data, packing, stored, *out)
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert re.search(rf": 24 images, .*B as {packing}\nit took \S+ m?s with .* and 1 job: ", shown)
    code = re.search(r"Settings\(.*\)", shown)[0]
    reader = resolve(complete_here(eval(code, {"Settings": Settings}))).reader
    assert (reader.stored, len(reader)) == (stored, 24)
    assert main([*asked, "--verify"]) == 0
    assert "is whole: 24 images" in capsys.readouterr().out


def test_verify_names_a_record_that_differs_and_data_that_changed(data, tmp_path, capsys):
    asked = words(data, "raw", "pixels", "--out", tmp_path / "pack")
    assert main(asked) == 0
    file = tmp_path / "pack" / "images.raw"
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    assert main([*asked, "--decoder", "pillow", "--verify"]) == 1
    shown = capsys.readouterr()
    assert re.search(r"decoder must be 'pillow', got 'opencv' in .*pack", shown.out)
    assert re.search(r"images.raw, record 0 \(.*\) must have CRC-32 \w+, got \w+", shown.out)
    assert re.search(r"error: .* must be what was packed, got 2 differences; remove", shown.err)
