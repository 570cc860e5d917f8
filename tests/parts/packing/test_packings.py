"""Every packing gives back the same images and boxes, in any order, process and thread."""

import json
import mmap
import multiprocessing
import os
import pickle
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from labkit.contracts import Annotation, Skip
from labkit.files import whole_folder
from labkit.parts.packing import PACKINGS
from labkit.parts.packing.manifest import MANIFEST, read_manifest, sha256
from labkit.parts.packing.yuv420 import Yuv420Image, to_yuv420
from tests.processes import PATIENCE_S

FORMATS = [name for name in PACKINGS if name != "folder"]
NAMES = ["b.jpg", "a.b/c d.tar.jpg", "straße/写真.jpeg", "not utf-8 \udcff.jpg", "a.jpg", "ż.JPG"]
can_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this platform has no fork"
)
EVERY = [(name, kind) for name, packing in PACKINGS.items() for kind in packing.stores]


def content(stored, rng, height, width):
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if stored == "pixels":
        return pixels
    if stored == "yuv420":
        return to_yuv420(pixels)
    if stored == "sample":
        return {
            "image": np.float32(pixels).transpose(2, 0, 1),  # not in C order
            "none_ragged": np.empty((0, 5), np.float32),
            "sample_id": np.array(7),
        }
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def some_samples(stored="jpeg", count=6):
    """Images of different sizes, with 0 to 3 boxes and awkward names."""
    rng = np.random.default_rng(0)
    samples = []
    for i in range(count):
        corners = rng.uniform(0, 500, (i % 4, 2))
        boxes = Annotation(
            boxes_xyxy=np.float32(np.hstack([corners, corners + rng.uniform(1, 100, (i % 4, 2))])),
            category_ids=rng.integers(1, 91, i % 4, dtype=np.int64),
        )
        name = NAMES[i] if i < len(NAMES) else f"{i}.jpg"
        samples.append((name, content(stored, rng, 16 + 8 * (i % 5), 20 + 4 * (i % 7)), boxes))
    return samples


def write(packing, folder, samples, stored="jpeg"):
    """Write a list of samples, and open them."""
    about = {"stored": stored, "source_hash": "abc", "boxes": "coco"}
    with whole_folder(folder) as part:
        PACKINGS[packing].write(iter(samples), part, images=len(samples), about=about)
    return PACKINGS[packing].open(folder)


def assert_same(found, wanted):
    if isinstance(wanted, dict):
        assert set(found) == set(wanted)
        for name, array in wanted.items():
            assert_same(found[name], array)
    elif isinstance(wanted, Yuv420Image):
        assert found.shape == wanted.shape
        assert np.array_equal(found.planes, wanted.planes)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert np.array_equal(found, wanted)
    else:
        assert found == wanted


def assert_gives(reader, samples, seed=0):
    """Check names, contents and boxes, bit by bit, in a random order."""
    assert len(reader) == len(samples)
    for i in np.random.default_rng(seed).permutation(len(samples)).tolist():
        name, wanted, annotation = samples[i]
        found, boxes = reader.read(i)
        assert reader.name(i).removeprefix("images/") == name
        assert_same(found, wanted)
        for given in (boxes, reader.annotation(i)):
            assert_same(given.boxes_xyxy, annotation.boxes_xyxy)
            assert_same(given.category_ids, annotation.category_ids)
        boxes.boxes_xyxy[:] = -1  # a part that changes its boxes changes no others


@pytest.mark.parametrize(("packing", "stored"), EVERY)
def test_what_is_written_is_read_back_whoever_reads(packing, stored, tmp_path):
    samples = some_samples(stored, count=20)  # more than a shard of TFRecord holds
    reader = write(packing, tmp_path / "data", samples, stored)
    assert (reader.stored, reader.boxes, reader.has_manifest) == (stored, "coco", True)
    assert read_manifest(reader.root)["source_hash"] == "abc"
    assert_gives(reader, samples)
    assert_gives(pickle.loads(pickle.dumps(reader)), samples, seed=1)
    assert reader.verify(range(20)) == []
    files = {path for i in range(20) for path in reader.files_of([i])}
    assert files == set(reader.paths)
    assert all(path.is_file() for path in (*reader.paths, *reader.companions))


@pytest.mark.parametrize("packing", FORMATS)
def test_a_pack_keeps_the_size_of_an_original_that_was_larger(packing, tmp_path):
    samples = some_samples()
    name, jpeg, boxes = samples[2]
    samples[2] = name, jpeg, replace(boxes, size_px=(640, 480))
    reader = write(packing, tmp_path / "data", samples)
    for boxes in (reader.annotation(2), reader.read(2)[1]):
        assert boxes.size_px == (640, 480)
    assert reader.annotation(1).size_px is None


def test_a_pack_of_an_earlier_version_knows_no_originals(tmp_path):
    samples = some_samples()
    reader = write("raw", tmp_path / "data", samples)
    (index, manifest) = reader.companions
    with np.load(index) as arrays:
        np.savez(index, **{name: a for name, a in arrays.items() if name != "original_sizes"})
    stored = json.loads(manifest.read_text())
    content = index.read_bytes()
    stored["files"]["index.npz"] = {"bytes": len(content), "sha256": sha256(content)}
    manifest.write_text(json.dumps(stored))
    assert_gives(PACKINGS["raw"].open(tmp_path / "data"), samples)


def test_a_mapped_record_can_be_used_after_its_pack_was_closed(tmp_path):
    samples = some_samples("yuv420")
    reader = write("mapped", tmp_path / "data", samples, "yuv420")
    image, _ = reader.read(3)
    assert isinstance(image.planes.base.obj, mmap.mmap)  # no copy
    reader.close()
    assert_same(image, samples[3][1])
    assert_gives(reader, samples)


def change(file, old, new):
    content = file.read_bytes()
    assert content.count(old) == 1
    file.write_bytes(content.replace(old, new))


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_changed_image_is_named_and_the_others_are_read(packing, tmp_path):
    samples = some_samples()
    reader = write(packing, tmp_path / "data", samples)
    (file,) = reader.files_of([2])
    change(file, samples[2][1][40:], samples[2][1][40:-1] + b"\x00")
    (line,) = PACKINGS[packing].open(tmp_path / "data").verify(range(6))
    assert str(file) in line and "straße/写真.jpeg" in line
    reader = PACKINGS[packing].open(tmp_path / "data")
    for i in (0, 1, 3, 4, 5):
        assert reader.read(i)[0] == samples[i][1]


class Code:
    """Makes a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize(("packing", "name"), [("raw", "index.npz"), ("pth", "images.pth")])
def test_a_pack_that_holds_code_is_refused_and_runs_none_of_it(packing, name, tmp_path):
    folder, code = tmp_path / "data", Code(tmp_path / "made")
    write(packing, folder, some_samples())
    if name == "index.npz":
        with np.load(folder / name) as index:
            np.savez(folder / name, **{**index, "spans": np.array([code], object)})
    else:
        torch.save([code], folder / name)
    manifest = json.loads((folder / MANIFEST).read_text())
    content = (folder / name).read_bytes()
    manifest["files"][name] = {"bytes": len(content), "sha256": sha256(content)}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(Exception, match=r"Object arrays cannot be loaded|Weights only load failed"):
        PACKINGS[packing].open(folder).read(0)
    assert not code.file.exists()


@pytest.mark.parametrize("packing", FORMATS)
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda pack: pack.paths[0].write_bytes(b"cut"), "pack must be whole, but .* must have"),
        (lambda pack: pack.paths[0].unlink(), "pack must be whole, but .* readable file"),
        (lambda pack: pack.companions[0].write_bytes(b""), "pack must be whole, but .*index.npz"),
        (lambda pack: pack.companions[1].write_text("{"), "manifest.json must be JSON, got .*"),
        (lambda pack: change(pack.companions[1], b'"pack_schema": 2', b'"pack_schema": 1'),
         "pack_schema must be 2, got 1 in .*manifest.json; pack the data again"),
    ],
    ids=["cut", "gone", "index", "manifest", "schema"],
)  # fmt: skip
def test_a_damaged_pack_is_refused_when_it_is_opened(packing, spoil, message, tmp_path):
    spoil(write(packing, tmp_path / "pack", some_samples()))
    with pytest.raises(ValueError, match=message):
        PACKINGS[packing].open(tmp_path / "pack")


def test_another_packing_is_named_with_what_makes_this_one(tmp_path):
    write("raw", tmp_path / "pack", some_samples())
    with pytest.raises(ValueError, match=r"packing must be 'raw' for .*, got 'folder'"):
        PACKINGS["folder"].open(tmp_path / "pack")
    with pytest.raises(ValueError, match=r"packed as lmdb, got raw in .*pack_dataset.py DATA --to"):
        PACKINGS["lmdb"].open(tmp_path / "pack")
    with pytest.raises(
        FileNotFoundError, match=r"data must be an existing folder, got '/no/where'"
    ):
        PACKINGS["hdf5"].open("/no/where")


@pytest.mark.parametrize(
    ("module", "packing", "stored"),
    [("h5py", "hdf5", "jpeg"), ("lmdb", "lmdb", "jpeg"), ("crc32c", "tfrecord", "jpeg"),
     ("safetensors.numpy", "raw", "sample")],
)  # fmt: skip
def test_a_library_that_is_not_installed_is_a_skip_with_the_line_that_installs_it(
    module, packing, stored, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Skip, match=r"not installed; pip install 'torch-labkit\[formats\]'$"):
        write(packing, tmp_path / "pack", some_samples(stored), stored)


# --- what other programs read ---------------------------------------------------------------


def test_other_programs_read_hdf5_lmdb_and_pth(tmp_path):
    import h5py
    import lmdb
    import torch

    samples = some_samples()
    files = {name: write(name, tmp_path / name, samples).paths[0] for name in FORMATS}
    with h5py.File(files["hdf5"]) as file:
        assert [row.tobytes() for row in file["images"]] == [jpeg for _, jpeg, _ in samples]
    with lmdb.open(str(files["lmdb"]), subdir=False, lock=False).begin() as transaction:
        assert transaction.get(b"00000003") == samples[3][1]
    tensors = torch.load(files["pth"], weights_only=True)
    assert [tensor.numpy().tobytes() for tensor in tensors] == [jpeg for _, jpeg, _ in samples]
    assert files["raw"].read_bytes() == b"".join(jpeg for _, jpeg, _ in samples)


def test_tar_reads_the_shards(tmp_path):
    samples = some_samples(count=130)
    shards = write("tar", tmp_path / "tar", samples).paths
    read = []
    for shard in shards:
        with tarfile.open(shard) as file:
            read.append([(m.name, file.extractfile(m).read()) for m in file.getmembers()])
    assert [len(members) for members in read] == [64, 64, 2]
    wanted = [(f"{i:08}.jpg", jpeg) for i, (_, jpeg, _) in enumerate(samples)]
    assert [member for members in read for member in members] == wanted


# --- open files ------------------------------------------------------------------------------


def in_child(action):
    """Run something in a fork; it must end well, so it waits for no lock of the parent's."""
    child = multiprocessing.get_context("fork").Process(target=action, daemon=True)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == 0


@can_fork
@pytest.mark.parametrize("packing", FORMATS)
def test_forks_read_while_threads_of_the_parent_read(packing, tmp_path):
    samples, seconds = some_samples(count=20), []
    reader, other = write(packing, tmp_path / "pack", samples), PACKINGS[packing]
    stop, failures = threading.Event(), []

    def read():
        try:
            while not stop.is_set():
                assert_gives(reader, samples)
                seconds.append(other.open(tmp_path / "pack").read(3)[0])  # a reader beside it
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            in_child(lambda: assert_gives(reader, samples))
            in_child(lambda: assert_gives(other.open(tmp_path / "pack"), samples))
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert failures == []
    assert seconds


def test_a_corrupt_record_is_named_and_the_next_ones_are_read(tmp_path):
    samples = some_samples()
    reader = write("tfrecord", tmp_path / "pack", samples)
    change(reader.paths[0], samples[2][1], b"x" * len(samples[2][1]))
    with pytest.raises(ValueError, match=r"TFRecord must have CRCs .* record 2 \(straße/写真"):
        reader.read(2)
    assert [reader.read(i)[0] for i in (3, 4, 5)] == [jpeg for _, jpeg, _ in samples[3:]]


def test_lmdb_reads_ahead(tmp_path, monkeypatch):
    import lmdb

    asked = []

    def recording(*args, readahead=True, **options):
        asked.append(readahead)
        return opened(*args, readahead=readahead, **options)

    samples, opened = some_samples(), lmdb.open
    reader = write("lmdb", tmp_path / "pack", samples)
    monkeypatch.setattr(lmdb, "open", recording)
    assert reader.read(0)[0] == samples[0][1]
    assert asked == [True]


@pytest.mark.skipif(not hasattr(os, "pread"), reason="this platform has no pread")
def test_raw_reads_each_record_with_one_call_that_releases_the_gil(tmp_path, monkeypatch):
    calls, pread = [], os.pread
    samples = some_samples()
    reader = write("raw", tmp_path / "pack", samples)

    def recording(file, size_bytes, at):
        calls.append(size_bytes)
        return pread(file, size_bytes, at)

    monkeypatch.setattr(os, "pread", recording)
    assert_gives(reader, samples)
    assert sorted(calls) == sorted(len(jpeg) for _, jpeg, _ in samples)
