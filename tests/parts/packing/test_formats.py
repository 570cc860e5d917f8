"""Every format gives back what it was given, to labkit and to the programs it is meant for."""

import json
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed import FORMATS, KINDS, VARIANTS, assert_gives, content, some_samples, write

import labkit as lab
from labkit.contracts import Annotation
from labkit.parts.packing import JPEG, PACKINGS, PIXELS, RESIZED, SAMPLE
from labkit.parts.packing.folder import open_folder


@pytest.mark.parametrize("stored", KINDS)
@pytest.mark.parametrize("packing", FORMATS)
def test_what_is_written_is_read_back_in_any_order(packing, stored, tmp_path):
    samples = some_samples(stored)
    reader = write(packing, tmp_path / "pack", samples, stored)
    assert_gives(reader, samples)
    assert_gives(reader, samples, order=[5, 0, 3, 0, 4, 1, 2])
    assert (reader.stored, reader.boxes, reader.source_hash) == (stored, "coco", "abc")
    assert reader.verify(range(6)) == []
    assert set(reader.files_of([5, 0])) <= set(reader.paths)
    assert all(path.is_file() for path in (*reader.paths, *reader.companions))
    everything = {path for path in (tmp_path / "pack").rglob("*") if path.is_file()}
    assert everything == {*reader.paths, *reader.companions}
    assert len(set(reader.paths)) == len(reader.paths)


@pytest.mark.parametrize("stored", [JPEG, RESIZED])
def test_a_folder_gives_back_what_was_written(stored, tmp_path):
    samples = some_samples(stored)
    reader = write("folder", tmp_path / "data", samples, stored)
    named = [("images/" + name.removeprefix("images/"), *rest) for name, *rest in samples]
    assert_gives(reader, named)
    assert (reader.stored, reader.source_hash) == (stored, "abc")


@pytest.mark.parametrize("packing", FORMATS)
def test_records_go_on_in_the_next_shard(packing, tmp_path):
    samples = some_samples(count=9)
    reader = write(packing, tmp_path / "pack", samples, shard_bytes=5000)
    assert 3 <= len(reader.shards) < 9
    assert_gives(reader, samples, order=[8, 0, 4, 7, 1, 2, 3, 5, 6])
    first, last = reader.files_of([0]), reader.files_of([8])
    assert not set(first) & set(last)


def test_what_is_to_be_read_in_parallel_lies_in_several_shards(tmp_path):
    # A tenth of the photographs that are 117 MB.
    samples = [(f"{i}.jpg", bytes(1 << 20), some_samples()[0][2]) for i in range(12)]
    chosen = lab.experiment("num_parallel_reads").variants
    (packing,) = {settings.packing for settings in chosen.values()}
    assert len(write(packing, tmp_path / "pack", samples).shards) == 3


@pytest.mark.parametrize("packing", FORMATS)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=9000),
            st.lists(st.tuples(*[st.floats(width=32, allow_nan=False)] * 4), max_size=3),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_bytes_and_any_boxes_survive(packing, tmp_path_factory, drawn):
    samples = [
        (
            f"{i}.jpg",
            b"\xff\xd8" + noise,
            Annotation(
                boxes_xyxy=np.array(rows, np.float32).reshape(-1, 4),
                category_ids=np.arange(len(rows)) - 2**62,
            ),
        )
        for i, (noise, rows) in enumerate(drawn)
    ]
    folder = tmp_path_factory.mktemp("any") / "pack"
    assert_gives(write(packing, folder, samples, shard_bytes=6000), samples)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_writes_and_reads_the_packs_of_its_format(variant, tmp_path):
    samples = some_samples()
    write(VARIANTS[variant], tmp_path / "pack", samples)
    assert_gives(PACKINGS[variant].open(tmp_path / "pack"), samples)
    assert_gives(write(variant, tmp_path / "own", samples), samples)
    assert_gives(PACKINGS[VARIANTS[variant]].open(tmp_path / "own"), samples)
    manifest = json.loads((tmp_path / "own/manifest.json").read_bytes())
    assert manifest["packing"] == VARIANTS[variant]


def test_several_readers_have_one_pack_open_at_once(tmp_path):
    samples = some_samples()
    write("lmdb", tmp_path / "pack", samples)
    names = ["lmdb", "lmdb", "lmdb_one_handle", "lmdb_readahead"]
    readers = [PACKINGS[name].open(tmp_path / "pack") for name in names]
    for reader in readers:
        assert_gives(reader, samples)
    readers.pop(0).handles.close()
    for reader in readers:
        assert_gives(reader, samples)


MAPS = Path("/proc/self/maps")


def maps_of(path):
    """Count the ways in which this process has a file mapped."""
    return MAPS.read_text().count(str(path))


@pytest.mark.skipif(not MAPS.exists(), reason="needs Linux's list of maps")
@pytest.mark.parametrize("packing", ["raw", "lmdb", "pth"])
def test_closed_shards_are_no_longer_mapped(packing, tmp_path):
    reader = write(packing, tmp_path / "pack", some_samples())
    reader.read(0)
    assert maps_of(tmp_path / "pack")
    reader.handles.close()
    assert not maps_of(tmp_path / "pack")


# --- read by others -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "extension"),
    [(JPEG, "jpg"), (RESIZED, "jpg"), (PIXELS, "npy"), (SAMPLE, "safetensors")],
)
def test_tar_is_what_webdataset_reads(stored, extension, tmp_path):
    import io

    import safetensors.numpy

    samples = some_samples(stored, count=9)
    reader = write("tar", tmp_path / "pack", samples, stored, shard_bytes=40_000)
    found = []
    for path in reader.paths:
        with tarfile.open(path) as archive:
            members = [(entry.name, archive.extractfile(entry).read()) for entry in archive]
        # A sample's files follow one another, and share what stands before the first dot.
        for (name, record), (json_name, about) in zip(members[::2], members[1::2]):
            key, _, rest = name.partition(".")
            assert (json_name, rest) == (f"{key}.json", extension)
            found.append((key, record, json.loads(about)))
    assert len({key for key, _, _ in found}) == len(samples)  # unique in the whole pack
    parse = {
        "jpg": bytes,
        "npy": lambda record: np.load(io.BytesIO(record)),
        "safetensors": safetensors.numpy.load,
    }[extension]
    for (_, record, about), (name, wanted, annotation) in zip(found, samples):
        np.testing.assert_equal(parse(record), wanted)
        assert about["name"] == name
        assert about["boxes_xyxy"] == annotation.boxes_xyxy.tolist()
        assert about["category_ids"] == annotation.category_ids.tolist()


def test_tfrecord_is_what_its_package_reads(tmp_path):
    # In a process of its own: TensorFlow cannot be imported beside it.
    program = """
import pickle, sys
import numpy as np
from tfrecord.reader import tfrecord_loader
as_array = lambda value: np.array(value) if isinstance(value, np.ndarray) else bytes(value)
records = tfrecord_loader(sys.argv[1], None)
pickle.dump([{k: as_array(v) for k, v in record.items()} for record in records], sys.stdout.buffer)
"""
    samples = some_samples()
    (path,) = write("tfrecord", tmp_path / "pack", samples).paths
    shown = subprocess.run(
        [sys.executable, "-c", program, str(path)], check=True, timeout=60, stdout=subprocess.PIPE
    )
    for found, (name, jpeg, annotation) in zip(pickle.loads(shown.stdout), samples, strict=True):
        assert bytes(found["image/encoded"]) == jpeg
        assert bytes(found["image/format"]) == b"jpeg"
        assert bytes(found["image/filename"]) == os.fsencode(name)
        sides = [found[f"image/object/bbox/{side}"] for side in ("xmin", "ymin", "xmax", "ymax")]
        np.testing.assert_array_equal(np.stack(sides, axis=1), annotation.boxes_xyxy)
        labels = found["image/object/class/label"]
        np.testing.assert_array_equal(labels, annotation.category_ids)


@pytest.mark.needs_rivals
def test_tfrecord_is_what_tensorflow_reads(tmp_path):
    import tensorflow

    samples = some_samples(PIXELS)
    (path,) = write("tfrecord", tmp_path / "pack", samples, PIXELS).paths
    frames = tensorflow.data.TFRecordDataset(str(path)).as_numpy_iterator()
    for frame, (_, pixels, annotation) in zip(frames, samples, strict=True):
        features = tensorflow.train.Example.FromString(frame).features.feature
        height, width = (
            features[f"image/{side}"].int64_list.value[0] for side in ("height", "width")
        )
        assert (height, width, 3) == pixels.shape
        assert features["image/encoded"].bytes_list.value[0] == pixels.tobytes()
        found = features["image/object/bbox/xmin"].float_list.value
        np.testing.assert_array_equal(np.float32(found), annotation.boxes_xyxy[:, 0])


@pytest.mark.parametrize("stored", [JPEG, PIXELS])
def test_hdf5_and_pth_hold_the_same_arrays(stored, tmp_path):
    import h5py
    import torch

    samples = some_samples(stored)
    (hdf5,) = write("hdf5", tmp_path / "hdf5", samples, stored).paths
    (pth,) = write("pth", tmp_path / "pth", samples, stored).paths
    with h5py.File(hdf5) as opened:
        for_both = {name: values[()] for name, values in opened.items()}
    loaded = torch.load(pth, weights_only=True)
    assert [os.fsdecode(name) for name in for_both.pop("names")] == loaded.pop("names")
    images = for_both.pop("images"), loaded.pop("images")
    for i, (_, wanted, _) in enumerate(samples):
        record = wanted.tobytes() if stored == PIXELS else wanted
        assert [bytes(of[i]) for of in images] == [record, record]
    assert for_both.keys() == loaded.keys()
    for name, values in for_both.items():
        np.testing.assert_array_equal(values, loaded[name])
        assert values.dtype == loaded[name].numpy().dtype
    ends = for_both["box_ends"]
    for i, (_, wanted, annotation) in enumerate(samples):
        own = for_both["boxes_xyxy"][ends[i] : ends[i + 1]]
        np.testing.assert_array_equal(own, annotation.boxes_xyxy)
        if stored == PIXELS:
            assert for_both["heights_widths"][i].tolist() == list(wanted.shape[:2])


def test_lmdb_is_what_its_package_reads(tmp_path):
    import lmdb

    samples = some_samples()
    (path,) = write("lmdb", tmp_path / "pack", samples).paths
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment:
        with environment.begin() as transaction:
            found = list(transaction.cursor())
    images, described = found[::2], found[1::2]
    assert images == [(f"{i:08}".encode(), jpeg) for i, (_, jpeg, _) in enumerate(samples)]
    assert [key for key, _ in described] == [f"{i:08}.json".encode() for i in range(6)]
    for (_, text), (name, _, annotation) in zip(described, samples, strict=True):
        assert json.loads(text) == {
            "name": name,
            "boxes_xyxy": annotation.boxes_xyxy.tolist(),
            "category_ids": annotation.category_ids.tolist(),
        }


@pytest.mark.parametrize(("packing", "piece_bytes"), [("split_64k", 65536), ("split_4k", 4096)])
def test_split_files_have_at_most_their_size_and_join_to_the_image(packing, piece_bytes, tmp_path):
    rng = np.random.default_rng(0)
    sizes = [1, piece_bytes - 1, piece_bytes, piece_bytes + 1, 3 * piece_bytes]
    samples = [
        (
            f"{i}.jpg",
            b"\xff\xd8" + rng.bytes(size - 2) if size > 1 else b"\xff",
            some_samples()[0][2],
        )
        for i, size in enumerate(sizes)
    ]
    reader = write(packing, tmp_path / "pack", samples[1:])
    for i, (_, image, _) in enumerate(samples[1:]):
        pieces = reader.files_of([i])
        assert [len(piece.read_bytes()) for piece in pieces[:-1]] == [piece_bytes] * (
            len(pieces) - 1
        )
        assert len(pieces[-1].read_bytes()) <= piece_bytes
        assert b"".join(piece.read_bytes() for piece in pieces) == image
    assert [len(reader.files_of([i])) for i in range(4)] == [1, 1, 2, 3]
    assert reader.files_of([0, 3]) == reader.files_of([0]) + reader.files_of([3])


# --- limits ---------------------------------------------------------------------------------


def test_an_lmdb_map_that_is_too_small_grows(tmp_path):
    from labkit.parts.packing.index import IndexBuilder
    from labkit.parts.packing.lmdb_env import LMDBShard, create_lmdb

    rng = np.random.default_rng(0)
    records = [rng.bytes(size) for size in (100, 300_000, 5_000, 17_000_000, 1)]
    nothing = some_samples()[0][2]
    with create_lmdb(tmp_path / "file", JPEG, map_bytes=1 << 16) as add:
        for i, record in enumerate(records):
            add(f"{i}.jpg", record, nothing, (0, 0))
    shard = LMDBShard(tmp_path / "file", IndexBuilder().finish())
    assert [shard.read(j) for j in range(5)] == records
    assert (tmp_path / "file").stat().st_size < 1.2 * sum(map(len, records))


def test_pth_shards_stay_small_because_one_is_held_in_memory(tmp_path):
    from dataclasses import replace

    from labkit.parts.packing.pack import open_pack
    from labkit.parts.packing.pack_writing import write_pack
    from labkit.parts.packing.pth import PTH
    from labkit.parts.packing.raw import RAW

    assert PTH.shard_bytes < RAW.shard_bytes
    samples = some_samples(count=9)
    small = replace(PTH, shard_bytes=5000)
    about = {"stored": JPEG, "source_hash": "abc", "boxes": "coco"}
    write_pack(small, lambda done: samples[done:], tmp_path / "pack", about=about)
    reader = open_pack(small, tmp_path / "pack")
    assert len(reader.paths) >= 3
    assert_gives(reader, samples)


def test_a_name_that_leaves_the_folder_makes_no_file_outside(tmp_path):
    samples = [("../../x.jpg", content(JPEG, np.random.default_rng(0)), some_samples()[0][2])]
    for packing in FORMATS:
        write(packing, tmp_path / "a" / packing, samples)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert {path.name for path in (tmp_path / "a").iterdir()} == set(FORMATS)


def test_a_folder_says_which_packing_a_pack_needs(tmp_path):
    write("split_16k", tmp_path / "pack", some_samples())
    with pytest.raises(ValueError, match=r"packing must be 'split_16k' for .*, got 'folder'"):
        open_folder(tmp_path / "pack")
