"""Copies are whole or known not to be, whatever stops them; nobody else's files are touched."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import threading
from collections import namedtuple
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
from places import folder_in_memory, memory_mounted, tree

from labkit import copies
from labkit.copies import MARK, Copied, copy_data, held, remove_copy
from labkit.parts.packing.folder import open_folder
from labkit.parts.packing.manifest import MANIFEST
from labkit.trial import Cancelled, Skip

can_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this platform has no fork"
)
has_locks = pytest.mark.skipif(os.name != "posix", reason="this platform has no flock")
WAIT_S = 60  # for another process; only a broken test ever waits so long


# --- data in every layout -------------------------------------------------------------------


def make_coco(photos, root):
    """COCO's layout: the boxes' file lies outside the images' folder."""
    shutil.copytree(photos / "images", root / "val2017")
    (root / "annotations").mkdir()
    shutil.copy(photos / "annotations.json", root / "annotations" / "instances_val2017.json")
    return root / "val2017"


def make_tree(photos, root):
    """Folders in folders, and names that are not plain ASCII; the boxes are synthesized."""
    names = [
        "b.jpg",
        "2019 summer/a 1.JPG",
        "2019 summer/żółw/č.jpeg",
        "日本/写真.jpg",
        "a/b/c/d.jpg",
    ]
    if os.name == "posix" and os.uname().sysname == "Linux":
        names.append(os.fsdecode(b"caf\xe9/not utf-8 \xff.jpg"))
    for name, path in zip(names, sorted((photos / "images").iterdir())):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, root / name)
    (root / "notes.txt").write_text("no image")
    return root


LAYOUTS = {
    "labkit": lambda photos, root: shutil.copytree(photos, root),
    "coco": make_coco,
    "tree": make_tree,
}


@pytest.fixture(params=LAYOUTS)
def data(request, photos, tmp_path):
    """A data set of one's own, in each layout."""
    return LAYOUTS[request.param](photos, tmp_path / "data")


@pytest.fixture
def plain(photos, tmp_path):
    """A tree of six images, without a manifest."""
    return make_tree(photos, tmp_path / "data")


@pytest.fixture
def finished(photos, tmp_path):
    """A data set that has a manifest."""
    return shutil.copytree(photos, tmp_path / "data")


def copy_of(data, copy, **how):
    """Copy data into a folder, as `copy`/`its own name`."""
    return copy_data(open_folder(data), copy, copy / data.name, **how)


def assert_same_data(data, other):
    one, two = open_folder(data), open_folder(other)
    assert [path.relative_to(one.root) for path in one.paths] == [
        path.relative_to(two.root) for path in two.paths
    ]
    assert (one.boxes, one.manifest_hash) == (two.boxes, two.manifest_hash)
    assert two.verify(range(len(two))) == []
    for i in range(len(one)):
        (jpeg, boxes), (other_jpeg, other_boxes) = one.read(i), two.read(i)
        assert jpeg == other_jpeg
        np.testing.assert_array_equal(boxes.boxes_xyxy, other_boxes.boxes_xyxy)
        np.testing.assert_array_equal(boxes.category_ids, other_boxes.category_ids)


def is_whole(copy):
    return json.loads((copy / MARK).read_bytes())["complete"]


def kept(before, after):
    """Names of the files that were not written again."""
    return {name for name in before if after.get(name) == before[name]}


class AfterFiles(threading.Event):
    """Is set once it was asked for so many times: before so many files were copied."""

    def __init__(self, files, act=None):
        super().__init__()
        self.left, self.act = files, act or self.set

    def is_set(self):
        if self.left == 0:
            self.act()
        self.left -= 1
        return super().is_set()


# --- what is copied -------------------------------------------------------------------------


def test_a_copy_is_whole_and_reads_like_the_data(data, tmp_path):
    before = tree(tmp_path / "data")
    copied = copy_of(data, tmp_path / "copy")
    assert_same_data(data, tmp_path / "copy" / data.name)
    assert is_whole(tmp_path / "copy")
    assert tree(tmp_path / "data") == before
    there = tree(tmp_path / "copy")
    del there[MARK]
    size_bytes = sum(len(content) for _, _, content in there.values())
    assert copied == Copied(files=len(there), size_bytes=size_bytes, written_bytes=size_bytes)


def test_what_is_there_is_not_written_again(data, tmp_path):
    first = copy_of(data, tmp_path / "copy")
    before = tree(tmp_path / "copy")
    again = copy_of(data, tmp_path / "copy")
    assert (again.written_bytes, again.size_bytes) == (0, first.size_bytes)
    assert tree(tmp_path / "copy") == before


def test_what_changes_in_the_data_changes_in_the_copy_and_the_rest_stays(plain, tmp_path):
    copy_of(plain, tmp_path / "copy")
    before = tree(tmp_path / "copy")
    new = (plain / "a/b/c/d.jpg").read_bytes()
    (plain / "b.jpg").write_bytes(new)
    (plain / "日本/写真.jpg").unlink()
    (plain / "日本").rmdir()
    (plain / "new folder").mkdir()
    (plain / "new folder" / "new.jpg").write_bytes(new)
    assert copy_of(plain, tmp_path / "copy").written_bytes == 2 * len(new)
    assert_same_data(plain, tmp_path / "copy" / "data")
    assert not (tmp_path / "copy" / "data" / "日本").exists()
    rewritten = set(before) - kept(before, tree(tmp_path / "copy"))
    assert rewritten == {MARK, "data/b.jpg", "data/日本/写真.jpg"}


def test_a_file_that_becomes_a_folder_and_back_is_followed(plain, tmp_path):
    jpeg = (plain / "b.jpg").read_bytes()
    copy_of(plain, tmp_path / "copy")
    (plain / "b.jpg").unlink()
    (plain / "b.jpg").mkdir()
    (plain / "b.jpg" / "inside.jpg").write_bytes(jpeg)
    copy_of(plain, tmp_path / "copy")
    assert_same_data(plain, tmp_path / "copy" / "data")
    shutil.rmtree(plain / "b.jpg")
    (plain / "b.jpg").write_bytes(jpeg)
    copy_of(plain, tmp_path / "copy")
    assert_same_data(plain, tmp_path / "copy" / "data")


def test_another_file_of_the_same_size_and_nearly_the_same_time_is_copied(plain, tmp_path):
    path, to = plain / "b.jpg", tmp_path / "copy" / "data" / "b.jpg"
    os.utime(path, ns=(0, 1_000_000_123_456_789))
    copy_of(plain, tmp_path / "copy")
    if to.stat().st_mtime_ns % 1000 == 0:
        pytest.skip("this file system rounds times")
    jpeg = path.read_bytes()
    path.write_bytes(jpeg[:-3] + b"\0" + jpeg[-2:])
    os.utime(path, ns=(0, 1_000_001_123_456_789))
    copy_of(plain, tmp_path / "copy")
    assert to.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("made_ns", "kept_ns"), [
    (1_000_000_001_900_000_000, 1_000_000_000_000_000_000),  # FAT: even seconds
    (1_000_000_001_900_000_000, 1_000_000_001_000_000_000),  # ext3: seconds
    (1_000_000_001_987_654_321, 1_000_000_001_987_654_300),  # NTFS: 100 ns
])  # fmt: skip
def test_a_file_system_that_rounds_times_does_not_make_it_copy_for_ever(
    plain, tmp_path, made_ns, kept_ns
):
    os.utime(plain / "b.jpg", ns=(0, made_ns))
    copy_of(plain, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "data" / "b.jpg", ns=(0, kept_ns))
    assert copy_of(plain, tmp_path / "copy").written_bytes == 0


@pytest.mark.parametrize("spoil", [
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(bytes(path.stat().st_size)),
    lambda path: path.unlink(),
], ids=["shorter", "empty", "zeros", "gone"])  # fmt: skip
def test_a_file_that_is_spoilt_in_the_copy_is_copied_again(plain, tmp_path, spoil):
    copy_of(plain, tmp_path / "copy")
    spoil(tmp_path / "copy" / "data" / "b.jpg")
    copied = copy_of(plain, tmp_path / "copy")
    assert copied.written_bytes == (plain / "b.jpg").stat().st_size
    assert_same_data(plain, tmp_path / "copy" / "data")


def test_write_protected_files_can_be_copied_and_changed(plain, tmp_path):
    (plain / "b.jpg").chmod(0o400)
    copy_of(plain, tmp_path / "copy")
    (plain / "b.jpg").chmod(0o600)
    (plain / "b.jpg").write_bytes((plain / "a/b/c/d.jpg").read_bytes())
    (plain / "b.jpg").chmod(0o400)
    copy_of(plain, tmp_path / "copy")
    assert_same_data(plain, tmp_path / "copy" / "data")


def test_a_private_copy_is_nobody_elses_to_read(plain, tmp_path):
    copy_of(plain, tmp_path / "copy", private=True)
    if os.name == "posix":
        assert (tmp_path / "copy").stat().st_mode & 0o077 == 0
    assert_same_data(plain, tmp_path / "copy" / "data")


# --- what stops it --------------------------------------------------------------------------


def test_a_cancelled_copy_goes_on_where_it_stopped(data, tmp_path):
    with pytest.raises(Cancelled):
        copy_of(data, tmp_path / "copy", cancel=AfterFiles(4))
    before = tree(tmp_path / "copy")
    assert len(before) == 4 + 1
    assert not is_whole(tmp_path / "copy")
    copied = copy_of(data, tmp_path / "copy")
    assert 0 < copied.written_bytes < copied.size_bytes
    assert_same_data(data, tmp_path / "copy" / data.name)
    assert kept(before, tree(tmp_path / "copy")) == set(before) - {MARK}


def killed_in_child(work, owner, name, calls):
    """Do something in a process that is killed just before the last of so many calls."""
    real = getattr(owner, name)

    def counted(*args, **named):
        nonlocal calls
        calls -= 1
        if calls == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **named)

    def in_child():
        setattr(owner, name, counted)
        work()

    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == -signal.SIGKILL, "it was to be killed on the way"


# A moment -> what is called then, and for the how many-th time, of so many files.
MOMENTS = {
    "before its folder is there": (Path, "mkdir", lambda files: 1),
    "before its mark is there": (Path, "replace", lambda files: 1),
    "between two files": (copies, "_copy_file", lambda files: 5),
    "a file is written but has no time": (os, "utime", lambda files: 4),
    "a file has its time but not its name": (Path, "replace", lambda files: 5),
    "before it is called complete": (Path, "replace", lambda files: files + 2),
}


@can_fork
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_copy_has_only_whole_files_and_goes_on(plain, tmp_path, moment):
    owner, name, calls = MOMENTS[moment]
    files = len(open_folder(plain))
    killed_in_child(lambda: copy_of(plain, tmp_path / "copy"), owner, name, calls(files))
    left = tree(tmp_path / "copy") if (tmp_path / "copy").exists() else {}
    left = {path: entry for path, entry in left.items() if path.startswith("data/")}
    for path, (_, _, content) in left.items():
        assert content == (tmp_path / path).read_bytes()
    assert not (tmp_path / "copy" / MARK).exists() or not is_whole(tmp_path / "copy")
    copied = copy_of(plain, tmp_path / "copy")
    assert_same_data(plain, tmp_path / "copy" / "data")
    assert kept(left, tree(tmp_path / "copy")) == set(left)
    assert copied.written_bytes == copied.size_bytes - sum(len(x) for _, _, x in left.values())
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {MARK, "data"}


@can_fork
@pytest.mark.parametrize(("name", "calls"), [("unlink", 1), ("unlink", 3), ("rmdir", 1)])
def test_a_copy_whose_removal_was_killed_is_still_ours(plain, tmp_path, name, calls):
    copy_of(plain, tmp_path / "copy")
    killed_in_child(lambda: remove_copy(tmp_path / "copy"), os, name, calls)
    assert (tmp_path / "copy" / MARK).is_file()
    copy_of(plain, tmp_path / "copy")  # it can be completed
    assert_same_data(plain, tmp_path / "copy" / "data")
    remove_copy(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@can_fork
def test_two_runs_never_copy_to_the_same_folder_at_the_same_time(plain, tmp_path):
    here, there = multiprocessing.Pipe()

    def copy_slowly():
        def wait():
            there.send("half")
            there.recv()

        copy_of(plain, tmp_path / "copy", cancel=AfterFiles(3, wait))

    child = multiprocessing.get_context("fork").Process(target=copy_slowly)
    child.start()
    assert here.poll(WAIT_S)
    with pytest.raises(Skip, match=r"copied to by one run at a time, .*; run again when it has"):
        copy_of(plain, tmp_path / "copy")
    here.send("go on")
    child.join(WAIT_S)
    assert child.exitcode == 0
    assert copy_of(plain, tmp_path / "copy").written_bytes == 0
    assert_same_data(plain, tmp_path / "copy" / "data")


# --- what is refused ------------------------------------------------------------------------


def flip(path):
    jpeg = bytearray(path.read_bytes())
    jpeg[len(jpeg) // 2] ^= 1
    path.write_bytes(jpeg)


@pytest.mark.parametrize("name", ["images/000000000005.jpg", "annotations.json"])
def test_data_that_is_not_what_its_manifest_says_is_refused(finished, tmp_path, name):
    reader, good = open_folder(finished), (finished / name).read_bytes()
    flip(finished / name)
    message = (
        rf"data must be what its manifest says, but {re.escape(str(finished / name))} must have "
        r"SHA-256 \w+, got \w+; make the data again, or remove manifest.json to take it as it is"
    )
    with pytest.raises(ValueError, match=message):
        copy_data(reader, tmp_path / "copy", tmp_path / "copy" / "data")
    assert not is_whole(tmp_path / "copy")
    assert not (tmp_path / "copy" / "data" / name).exists()
    (finished / name).write_bytes(good)
    copy_of(finished, tmp_path / "copy")
    assert_same_data(finished, tmp_path / "copy" / "data")


def test_a_manifest_beside_cocos_images_is_checked_too(photos, tmp_path):
    images = make_coco(photos, tmp_path / "coco")
    manifest = json.loads((photos / MANIFEST).read_bytes())
    del manifest["annotations_sha256"]
    manifest["files"] = {
        name.removeprefix("images/"): entry for name, entry in manifest["files"].items()
    }
    (images / MANIFEST).write_text(json.dumps(manifest))
    copy_of(images, tmp_path / "copy")
    assert_same_data(images, tmp_path / "copy" / "val2017")
    flip(images / "000000000007.jpg")
    with pytest.raises(ValueError, match=r"data must be what its manifest says, .*0007\.jpg"):
        copy_of(images, tmp_path / "copy")


def test_a_file_that_is_gone_is_the_datas_fault_not_the_mediums(plain, tmp_path):
    reader = open_folder(plain)
    (plain / "b.jpg").unlink()
    message = rf"data must be files that can be read, got .* for {re.escape(str(plain / 'b.jpg'))};"
    with pytest.raises(ValueError, match=message):
        copy_data(reader, tmp_path / "copy", tmp_path / "copy" / "data")


def test_without_room_nothing_is_copied_and_the_numbers_are_told(plain, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2_000_000, 1_995_000, 5_000))
    size_bytes = sum(path.stat().st_size for path in open_folder(plain).paths)
    needed = f"{size_bytes * 1.05 / 1000:.0f} KB"
    message = (
        f"{tmp_path} must have {needed} free for the data, got 5.0 KB; free some space, "
        "choose another folder, or use less data"
    )
    with pytest.raises(Skip, match=re.escape(message)):
        copy_of(plain, tmp_path / "copy")
    assert set(tree(tmp_path / "copy")) == {MARK}


def test_a_small_file_system_refuses_what_does_not_fit(plain, tmp_path):
    with memory_mounted(tmp_path / "small", size="256k") as small:
        with pytest.raises(Skip, match=rf"{small} must have \d+ KB .* got \d+ KB; free some space"):
            copy_of(plain, small / "copy")
        assert set(tree(small)) == {f"copy/{MARK}"}


def test_room_that_a_smaller_data_set_frees_counts(plain, tmp_path):
    size_kb = sum(path.stat().st_size for path in open_folder(plain).paths) // 1000
    with memory_mounted(tmp_path / "small", size=f"{size_kb + 200}k") as small:
        copy_of(plain, small / "copy")
        for path in open_folder(plain).paths:
            path.rename(path.with_name(f"new {path.name}"))
        copy_of(plain, small / "copy")
        assert_same_data(plain, small / "copy" / "data")


def test_a_medium_that_is_full_on_the_way_is_told_and_goes_on_later(plain, tmp_path):
    with memory_mounted(tmp_path / "few", nr_inodes=9) as few:
        with pytest.raises(Skip, match=f"{few} must be a folder that can be written, got No space"):
            copy_of(plain, few / "copy")
        assert not is_whole(few / "copy")
    with memory_mounted(tmp_path / "few", nr_inodes=99) as few:
        copy_of(plain, few / "copy")
        assert_same_data(plain, few / "copy" / "data")


def test_a_copy_in_memory_needs_memory_not_only_room_in_the_file_system(plain, monkeypatch):
    with folder_in_memory() as folder:
        real = psutil.virtual_memory()
        monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(available=5_000))
        with pytest.raises(Skip, match=r"must have \d+ KB of memory free .*, got 5\.0 KB; free"):
            copy_of(plain, folder / "copy")


def as_stranger(work):
    """Do something as a user who is not root; say how it was skipped."""
    here, there = multiprocessing.Pipe()

    def in_child():
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        try:
            work()
        except Skip as reason:
            there.send(str(reason))

    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    there.close()
    child.join(WAIT_S)
    return here.recv()


@can_fork
def test_a_folder_that_cannot_be_written_to_is_said_with_the_next_step(photos):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        locked = Path(folder, "locked")
        locked.mkdir(mode=0o555)
        data = shutil.copytree(photos, Path(folder, "data"))
        data.chmod(0o755)
        said = as_stranger(lambda: copy_of(data, locked / "copy"))
    assert said == (
        f"{locked} must be a folder that can be written, got Permission denied "
        f"({locked / 'copy'}); choose another folder or free some space"
    )


def test_a_folder_with_somebody_elses_files_is_refused_and_left_alone(plain, tmp_path):
    theirs = tmp_path / "theirs"
    (theirs / "data").mkdir(parents=True)
    (theirs / "data" / "b.jpg").write_text("a diary")
    (theirs / "letter.txt").write_text("dear")
    before = tree(theirs)
    message = f"{theirs} must be empty or the lab's own copy, got other files in it; move them away"
    with pytest.raises(Skip, match=re.escape(message)):
        copy_of(plain, theirs)
    remove_copy(theirs)
    assert tree(theirs) == before


def test_a_file_in_the_place_of_the_copy_is_refused_and_left_alone(plain, tmp_path):
    (tmp_path / "copy").write_text("a diary")
    with pytest.raises(Skip, match=f"{tmp_path} must be a folder that can be written, got "):
        copy_of(plain, tmp_path / "copy")
    remove_copy(tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "a diary"


def test_an_empty_folder_may_become_a_copy(plain, tmp_path):
    (tmp_path / "copy").mkdir()
    copy_of(plain, tmp_path / "copy")
    assert_same_data(plain, tmp_path / "copy" / "data")


# --- what is removed ------------------------------------------------------------------------


def test_removing_a_copy_follows_no_links_out_of_it(plain, tmp_path):
    copy_of(plain, tmp_path / "copy")
    before = tree(plain)
    (tmp_path / "copy" / "data" / "link").symlink_to(plain, target_is_directory=True)
    (tmp_path / "copy" / "link").symlink_to(plain, target_is_directory=True)
    remove_copy(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert tree(plain) == before


def test_a_link_to_a_copy_is_not_a_copy_to_remove(plain, tmp_path):
    copy_of(plain, tmp_path / "copy")
    (tmp_path / "link").symlink_to(tmp_path / "copy", target_is_directory=True)
    remove_copy(tmp_path / "link")
    assert is_whole(tmp_path / "copy")


def test_what_is_not_there_is_removed_without_ado(tmp_path):
    remove_copy(tmp_path / "nowhere")
    remove_copy(tmp_path / "nowhere")


@has_locks
def test_a_copy_stays_until_its_last_holder_goes(plain, tmp_path):
    copy = tmp_path / "labkit-photos"
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(held(copy))
        copy_of(plain, copy)
        second.enter_context(held(copy))
        first.close()
        assert_same_data(plain, copy / "data")
        second.close()
        assert set(tmp_path.iterdir()) == {plain}


@has_locks
def test_a_copy_goes_when_its_holder_fails(plain, tmp_path):
    copy = tmp_path / "labkit-photos"
    with pytest.raises(ZeroDivisionError), held(copy):
        copy_of(plain, copy)
        raise ZeroDivisionError
    assert set(tmp_path.iterdir()) == {plain}


@has_locks
def test_holding_never_removes_what_is_not_a_copy(tmp_path):
    theirs = tmp_path / "labkit-photos"
    with held(theirs):
        theirs.mkdir()
        (theirs / "letter.txt").write_text("dear")
    assert (theirs / "letter.txt").read_text() == "dear"


@can_fork
def test_what_a_killed_holder_left_goes_and_everything_else_stays(plain, tmp_path):
    def hold(name, pipe):
        with held(tmp_path / name):
            copy_of(plain, tmp_path / name)
            pipe.send("held")
            pipe.recv()

    alive_pipe, alive_end = multiprocessing.Pipe()
    killed_pipe, killed_end = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    alive = fork.Process(target=hold, args=("labkit-alive", alive_end))
    killed = fork.Process(target=hold, args=("labkit-killed", killed_end))
    for process, pipe in ((alive, alive_pipe), (killed, killed_pipe)):
        process.start()
        assert pipe.poll(WAIT_S)
    killed.kill()
    killed.join(WAIT_S)
    assert is_whole(tmp_path / "labkit-killed")
    # Not ours: no mark; and ours, but not one that goes when a run ends: never held.
    (tmp_path / "labkit-theirs").mkdir()
    (tmp_path / "labkit-theirs" / "letter.txt").write_text("dear")
    (tmp_path / "labkit-theirs.lock").touch()
    copy_of(plain, tmp_path / "labkit-kept")
    with held(tmp_path / "labkit-mine"):
        assert not (tmp_path / "labkit-killed").exists()
        assert not (tmp_path / "labkit-killed.lock").exists()
        assert_same_data(plain, tmp_path / "labkit-alive" / "data")
        assert_same_data(plain, tmp_path / "labkit-kept" / "data")
        assert (tmp_path / "labkit-theirs" / "letter.txt").read_text() == "dear"
    assert is_whole(tmp_path / "labkit-alive")
    alive_pipe.send("go")
    alive.join(WAIT_S)
    assert not (tmp_path / "labkit-alive").exists()


@has_locks
def test_a_copy_that_is_being_removed_when_one_enters_is_held_all_the_same(
    plain, tmp_path, monkeypatch
):
    import fcntl

    copy, lock = tmp_path / "labkit-photos", tmp_path / "labkit-photos.lock"
    real, waited = fcntl.flock, []

    def flock(number, how):
        if how == fcntl.LOCK_SH and not waited:  # the last holder went while this one waited
            waited.append(lock)
            lock.unlink()
        real(number, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with held(copy):
        assert waited
        copy_of(plain, copy)
        with held(tmp_path / "labkit-other"):  # removes what nobody holds
            assert_same_data(plain, copy / "data")
    assert not copy.exists()


@has_locks
def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "labkit-photos.lock").symlink_to(tmp_path / "target")
    with pytest.raises(Skip, match=f"{tmp_path} must be a folder that can be written, got "):
        held(tmp_path / "labkit-photos").__enter__()
    assert not (tmp_path / "target").exists()
