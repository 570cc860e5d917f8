"""A pack is whole or says what is wrong with it, and one that was stopped can be gone on with."""

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed import (
    FORMATS,
    PIXELS,
    SAMPLE,
    about,
    assert_gives,
    content,
    some_samples,
    write,
)
from places import memory_mounted

from labkit.parts.packing import JPEG, PACKINGS, is_pack, pack_format
from labkit.parts.packing.index import IndexBuilder, load_index, save_index

WAIT_S = 60  # for another process; only a broken test ever waits so long
CAN_FORK = "fork" in multiprocessing.get_all_start_methods()
can_fork = pytest.mark.skipif(not CAN_FORK, reason="this platform has no fork")
has_locks = pytest.mark.skipif(os.name != "posix", reason="this platform has no flock")
SHARD_BYTES = 5000  # about three records


def files_in(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def corrupt(reader, content):
    """Overwrite a stored image's beginning with zeros, wherever it stands; say in which file."""
    found = None
    for path in reader.paths:
        whole = path.read_bytes()
        if content in whole:  # LMDB may leave a second one in pages that nothing points to
            path.write_bytes(whole.replace(content, bytes(16) + content[16:]))
            found = path
    assert found is not None, "the record is in no file"
    return found


# --- damage ---------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", FORMATS)
def test_a_corrupt_record_is_named_and_the_others_are_read(packing, tmp_path):
    samples = some_samples()
    reader = write(packing, tmp_path / "pack", samples)
    path = corrupt(reader, samples[2][1])
    reader = PACKINGS[packing].open(tmp_path / "pack")
    said = "TFRecord must have CRCs" if packing.startswith("tfrecord") else "image must be a JPEG"
    with pytest.raises(ValueError, match=rf"{said}.*00000\.\w+, record 2 \(straße/写真.jpeg\)"):
        reader.read(2)
    assert_gives(reader, samples, order=[0, 1, 3, 4, 5])
    (line,) = reader.verify(range(6))
    assert "record 2 (straße/写真.jpeg)" in line
    assert ("must have CRC" in line) and path.is_relative_to(tmp_path / "pack")


@pytest.mark.parametrize(("stored", "packing"), [(PIXELS, "raw"), (SAMPLE, "tar")])
def test_verify_names_what_no_decoder_can_notice(stored, packing, tmp_path):
    samples = some_samples(stored)
    reader = write(packing, tmp_path / "pack", samples, stored)
    last_bytes = (samples[2][1] if stored == PIXELS else samples[2][1]["image"]).tobytes()[-50:]
    (path,) = reader.paths
    path.write_bytes(path.read_bytes().replace(last_bytes, bytes(50)))
    (line,) = PACKINGS[packing].open(tmp_path / "pack").verify(range(6))
    assert f"{path}, record 2 (straße/写真.jpeg) must have CRC-32 " in line


@pytest.mark.parametrize("packing", [name for name in FORMATS if not name.startswith("split")])
def test_a_truncated_shard_is_refused_when_opened_and_when_read(packing, tmp_path):
    samples = some_samples()
    reader = write(packing, tmp_path / "pack", samples)
    (path,) = reader.paths
    size_bytes = path.stat().st_size
    with path.open("rb+") as file:
        file.truncate(size_bytes // 2)
    cut = rf"must have {size_bytes} bytes, got {size_bytes // 2}"
    with pytest.raises(ValueError, match=rf"pack must be whole, but .*00000\.\w+ {cut}; pack "):
        PACKINGS[packing].open(tmp_path / "pack")
    # As a loader worker does that opens its file later.
    with pytest.raises(ValueError, match=rf"shard {cut} in .*00000\.\w+, record 5 \(ż.JPG\); "):
        reader.read(5)


def test_a_piece_that_is_cut_or_gone_is_named(tmp_path):
    samples = [(f"{i}.jpg", content(JPEG, np.random.default_rng(i), 80, 80), *rest)
               for i, (_, _, *rest) in enumerate(some_samples())]  # fmt: skip
    reader = write("split_4k", tmp_path / "pack", samples)
    reader.files_of([1])[1].write_bytes(b"cut")
    gone = reader.files_of([3])[0]
    gone.unlink()
    with pytest.raises(ValueError, match=r"record must have \d+ bytes, got \d+ in .* record 1 \("):
        reader.read(1)
    with pytest.raises(FileNotFoundError, match=str(gone)):
        reader.read(3)
    assert_gives(reader, samples, order=[0, 2, 4, 5])
    assert len(reader.verify(range(6))) == 2


def test_a_shard_that_is_gone_is_named(tmp_path):
    reader = write("tar", tmp_path / "pack", some_samples())
    reader.paths[0].unlink()
    with pytest.raises(FileNotFoundError, match=str(reader.paths[0])):
        reader.read(0)
    with pytest.raises(ValueError, match=r"pack must be whole, but .*00000.tar must be a readable"):
        PACKINGS["tar"].open(tmp_path / "pack")


def rewrite_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def test_a_newer_pack_asks_for_a_newer_labkit(tmp_path):
    write("raw", tmp_path / "pack", some_samples())
    rewrite_manifest(tmp_path / "pack", pack_schema=2)
    message = r"pack_schema must be at most 1, got 2 in .*manifest.json; update labkit"
    with pytest.raises(ValueError, match=message):
        PACKINGS["raw"].open(tmp_path / "pack")


@pytest.mark.parametrize("missing", ["pack_schema", "files", "shards", "stored", "boxes"])
def test_a_manifest_that_lacks_something_is_refused(missing, tmp_path):
    write("raw", tmp_path / "pack", some_samples())
    manifest = json.loads((tmp_path / "pack/manifest.json").read_bytes())
    del manifest[missing]
    (tmp_path / "pack/manifest.json").write_text(json.dumps(manifest))
    message = (
        rf"manifest.json must have {missing}, got .*manifest.json without; pack the data again"
    )
    with pytest.raises(ValueError, match=message):
        PACKINGS["raw"].open(tmp_path / "pack")


def test_a_manifest_that_changes_under_a_reader_is_noticed(tmp_path):
    reader = write("raw", tmp_path / "pack", some_samples())
    rewrite_manifest(tmp_path / "pack", source_hash="other")
    (line,) = reader.verify(range(6))
    assert "manifest.json must have SHA-256" in line


def test_another_format_is_named_with_what_makes_this_one(tmp_path):
    write("tar", tmp_path / "pack", some_samples())
    message = r"data must be packed as lmdb, got tar in .*pack_dataset.py DATA --to lmdb"
    with pytest.raises(ValueError, match=message):
        PACKINGS["lmdb_readahead"].open(tmp_path / "pack")
    write("folder", tmp_path / "data", some_samples())
    with pytest.raises(ValueError, match=r"must be packed as raw, got folder in "):
        PACKINGS["raw"].open(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"must be packed as raw, got another folder in "):
        PACKINGS["raw"].open(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match=r"data must be an existing folder, got .*--to raw"):
        PACKINGS["raw"].open(tmp_path / "nowhere")
    assert [pack_format(tmp_path / name) for name in ("pack", "data", "empty")] == [
        "tar",
        None,
        None,
    ]


def test_a_damaged_index_is_refused_before_anything_is_read(tmp_path):
    reader = write("raw", tmp_path / "pack", some_samples())
    index = reader.paths[0].with_suffix(".npz")
    whole = index.read_bytes()
    index.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"pack must be whole, but .*00000.npz must have SHA-256"):
        PACKINGS["raw"].open(tmp_path / "pack")


@settings(max_examples=60)
@given(st.data())
def test_any_damage_to_an_index_is_an_error_with_its_name(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("index")
    builder = IndexBuilder()
    for name, jpeg, annotation in some_samples():
        builder.add(name, jpeg, annotation, 0, (0, 0))
    save_index(builder.finish(), folder / "a.npz")
    whole = (folder / "a.npz").read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    (folder / "a.npz").write_bytes(whole[:at] + (b"" if cut else b"\xff" + whole[at + 1 :]))
    try:
        found = load_index(folder / "a.npz")
    except ValueError as error:
        assert "index must be what was written with its pack, got " in str(error)
        assert "a.npz" in str(error)
    else:
        assert len(found) == 6  # the byte was not part of what it says


# --- writing --------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", FORMATS)
def test_no_images_are_refused_and_nothing_opens(packing, tmp_path):
    message = r"data must hold at least one image to be packed, got none for .*pack"
    with pytest.raises(ValueError, match=message):
        write(packing, tmp_path / "pack", [])
    assert not (tmp_path / "pack").exists()


def test_a_folder_that_exists_is_not_written_to(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/letter.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"path must be a new folder, got .*pack', which exists"):
        write("raw", tmp_path / "pack", some_samples())
    assert files_in(tmp_path) == {"pack/letter.txt": b"dear"}


def test_what_was_packed_of_other_data_is_not_gone_on_with(tmp_path):
    samples = some_samples(count=9)

    def stops(done):
        yield from samples[:7]
        raise KeyboardInterrupt

    raw = PACKINGS["raw"]
    with pytest.raises(KeyboardInterrupt):
        raw.write(stops, tmp_path / "pack", about=about(), shard_bytes=SHARD_BYTES)
    others = some_samples(count=5, seed=1)
    asked = []

    def give(done):
        asked.append(done)
        return others

    raw.write(give, tmp_path / "pack", about={**about(), "source_hash": "other"})
    assert asked == [0]
    assert_gives(raw.open(tmp_path / "pack"), others)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What each format's pack looks like when nothing happens to its writer."""
    base = tmp_path_factory.mktemp("whole")
    for packing in FORMATS:
        write(packing, base / packing, some_samples(count=9), shard_bytes=SHARD_BYTES)
    return base


def write_killed(packing, folder, moment):
    """Write a pack in a process that kills itself before the `moment`th step."""
    steps = 0

    def step(*_):
        nonlocal steps
        steps += 1
        if steps > moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def give(done):
        for sample in some_samples(count=9)[done:]:
            step()
            yield sample
        step()

    def watch(event, args):
        # Whatever Python does to a file is a step, too.
        if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(folder.parent) in str(
            args
        ):
            step()

    sys.addaudithook(watch)
    PACKINGS[packing].write(give, folder, about=about(), shard_bytes=SHARD_BYTES)


@can_fork
@pytest.mark.parametrize("packing", FORMATS)
def test_a_killed_writer_leaves_nothing_that_opens_and_the_next_goes_on(
    packing, uninterrupted, tmp_path
):
    fork, whole = multiprocessing.get_context("fork"), files_in(uninterrupted / packing)
    kept_counts = set()
    # One file and one folder of files at every step: around the shards all do the same.
    for moment in itertools.count(0, 1 if packing in ("raw", "split_64k") else 5):
        folder = tmp_path / str(moment) / "pack"
        folder.parent.mkdir()
        writer = fork.Process(target=write_killed, args=(packing, folder, moment))
        writer.start()
        writer.join(WAIT_S)
        if writer.exitcode == 0:
            assert moment > 9  # it had no more steps to be killed at
            break
        assert writer.exitcode == -signal.SIGKILL
        assert not is_pack(folder)
        assert not folder.exists() or files_in(folder) == whole
        if folder.exists():
            continue
        asked = []

        def give(done, asked=asked):
            asked.append(done)
            return some_samples(count=9)[done:]

        PACKINGS[packing].write(give, folder, about=about(), shard_bytes=SHARD_BYTES)
        kept_counts |= set(asked)
        assert files_in(folder) == whole
        assert [path.name for path in folder.parent.iterdir()] == ["pack"]
    assert min(kept_counts) == 0 < max(kept_counts)  # some were killed late enough to keep shards


@has_locks
def test_two_writers_at_once_are_one_too_many(tmp_path):
    samples = some_samples()

    def give(done):
        message = r"path must be packed to by one process at a time, got another one in .*pack.part"
        with pytest.raises(ValueError, match=message):
            write("raw", tmp_path / "pack", samples)
        return samples

    PACKINGS["raw"].write(give, tmp_path / "pack", about=about())
    assert_gives(PACKINGS["raw"].open(tmp_path / "pack"), samples)


def write_late(folder):
    """Write a pack that another writer finishes just before this one gets the lock."""
    others = [lambda: write("raw", folder, some_samples(count=9), shard_bytes=SHARD_BYTES)]

    def watch(event, args):
        if event == "fcntl.flock" and others:
            others.pop()()

    sys.addaudithook(watch)
    with pytest.raises(ValueError, match=r"path must be a new folder, got .*pack', which exists"):
        write("raw", folder, some_samples())
    assert not others


@can_fork
@has_locks
def test_a_writer_that_comes_as_another_finishes_leaves_its_pack_alone(tmp_path, uninterrupted):
    fork = multiprocessing.get_context("fork")
    writer = fork.Process(target=write_late, args=(tmp_path / "pack",))
    writer.start()
    writer.join(WAIT_S)
    assert writer.exitcode == 0
    assert files_in(tmp_path / "pack") == files_in(uninterrupted / "raw")
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]


@can_fork
@has_locks
def test_of_writers_that_race_one_wins_and_its_pack_is_whole(tmp_path, uninterrupted):
    fork = multiprocessing.get_context("fork")

    def race(folder, start, said):
        start.wait(WAIT_S)
        try:
            write("raw", folder, some_samples(count=9), shard_bytes=SHARD_BYTES)
        except Exception as error:
            said.put(f"{type(error).__name__}: {error}")
        else:
            said.put("written")

    for number in range(4):
        folder = tmp_path / str(number) / "pack"
        folder.parent.mkdir()
        start, said = fork.Barrier(3), fork.Queue()
        writers = [fork.Process(target=race, args=(folder, start, said)) for _ in range(3)]
        for writer in writers:
            writer.start()
        found = sorted(said.get(timeout=WAIT_S) for _ in writers)
        for writer in writers:
            writer.join(WAIT_S)
        assert found.pop() == "written"
        for line in found:
            assert line.startswith(
                ("ValueError: path must be packed to by one", "ValueError: path must be a new fol")
            )
        assert files_in(folder) == files_in(uninterrupted / "raw")
        assert [path.name for path in folder.parent.iterdir()] == ["pack"]


# --- media ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size_kib", [64, 256, 512])
@pytest.mark.parametrize("packing", FORMATS)
def test_a_disk_that_is_full_half_way_costs_no_finished_shard(packing, size_kib, tmp_path):
    rng = np.random.default_rng(0)
    samples = [(f"{i}.jpg", content(JPEG, rng, 80, 80), some_samples()[1][2]) for i in range(80)]
    with memory_mounted(tmp_path / "small", size=f"{size_kib}k") as small:
        folder = small / "pack"
        with pytest.raises(OSError, match=r"No space left on device|is the disk full\?"):
            write(packing, folder, samples, shard_bytes=150_000)
        assert not folder.exists()
        left = [path.name for path in (small / ".pack.part").iterdir()]
        assert not [name for name in left if name.endswith(".part")]  # it took room
        remount(small, "size=8m")
        asked = []

        def give(done):
            asked.append(done)
            return samples[done:]

        PACKINGS[packing].write(give, folder, about=about(), shard_bytes=150_000)
        assert (asked != [0]) == (size_kib > 64)  # else not one was finished
        reader = PACKINGS[packing].open(folder)
        assert_gives(reader, samples)
        reader.handles.close()


def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def test_a_pack_on_a_read_only_medium_is_read_but_none_is_written(tmp_path):
    samples = some_samples()
    with memory_mounted(tmp_path / "small") as small:
        for packing in FORMATS:
            write(packing, small / packing, samples)
        remount(small, "ro")
        for name, packing in PACKINGS.items():
            if name == "folder":
                continue
            reader = packing.open(small / (packing.packed_as or name))
            assert_gives(reader, samples)
            assert reader.verify(range(6)) == []
            reader.handles.close()
            with pytest.raises(OSError, match=r"Read-only file system"):
                write(name, small / "new", samples)


NOT_INSTALLED = """
import sys
from importlib.machinery import PathFinder
from pathlib import Path

missing, folder = sys.argv[1], Path(sys.argv[2])

class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] != missing:
            return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Others
from packed import some_samples, write
from labkit.parts.packing import PACKINGS
from labkit.trial import Skip

packing, stored = sys.argv[3:5]
for try_it in (
    lambda: PACKINGS[packing].open(folder / "pack").read(0),
    lambda: write(packing, folder / "new", some_samples(stored), stored),
):
    try:
        try_it()
    except Skip as skip:
        print(skip)
"""


@pytest.mark.parametrize(
    ("missing", "packing", "stored"),
    [("h5py", "hdf5", JPEG), ("lmdb", "lmdb", JPEG), ("lmdb", "lmdb_one_handle", JPEG),
     ("crc32c", "tfrecord", JPEG), ("safetensors", "raw", SAMPLE)],
)  # fmt: skip
def test_a_library_that_is_not_installed_is_a_skip_with_the_line_that_installs_it(
    missing, packing, stored, tmp_path
):
    write(packing, tmp_path / "pack", some_samples(stored), stored)
    shown = subprocess.run(
        [sys.executable, "-c", NOT_INSTALLED, missing, str(tmp_path), packing, stored],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    needy = "stored samples need" if stored == SAMPLE else f"{packing} needs"
    line = f"{needy} {missing}, which is not installed; pip install 'labkit[formats]'"
    assert shown.stdout.splitlines() == [line, line]
    assert not (tmp_path / "new").exists()
