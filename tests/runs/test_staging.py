"""The data is where settings say, whole, and what the medium is called there was looked at."""

import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fakes import fake_info
from kernel import needs_fork, why_no_throttled_disk, why_not_evicted
from places import assert_same_data, folder_in_memory, make_coco, memory_mounted, tree

from labkit import units
from labkit.contracts import Skip
from labkit.machine import shared_memory
from labkit.machine.media import describe_medium, write_media
from labkit.parts.packing.folder import open_folder
from labkit.parts.storage import STORAGES, slow_disk
from labkit.parts.storage.distance import FORM
from labkit.resolve import complete_here, open_reader, resolve, source_folder
from labkit.runs import staging
from labkit.runs.active_run import ActiveRun
from labkit.runs.packs import ensure_pack
from labkit.runs.staging import staged
from labkit.runs.store import create_run
from labkit.settings import Settings
from tests.processes import PATIENCE_S, KilledAfter


@pytest.fixture(autouse=True)
def nothing_open():
    open_reader.cache_clear()


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """An empty folder to work in; whatever labkit.toml is written there counts."""
    folder = tmp_path / "lab"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def data(photos, tmp_path):
    """Photographs on a disk, as far as the temporary directory is on one."""
    return shutil.copytree(photos, tmp_path / "photos")


def settings_for(data, storage):
    return Settings(data=str(data), storage=storage, num_workers=1)


def place(settings):
    """The parts and folders that settings name."""
    return resolve(complete_here(settings))


def stage(settings, said=None):
    """Have the data staged; `said` takes the lines for the user."""
    return staged(place(settings), say=(said if said is not None else []).append)


def refused(settings, message, error=Skip):
    """Check that the data is not staged, with this reason."""
    with pytest.raises(error, match=message):
        stage(settings).__enter__()


def data_bytes(data):
    return sum(path.stat().st_size for path in data.rglob("*") if path.is_file())


def make_tree(photos, root):
    """Folders in folders, and names that are not plain ASCII; the boxes are synthesized."""
    names = ["b.jpg", "2019 summer/a 1.JPG", "日本/写真.jpg", "a/b/c/d.jpg"]
    if sys.platform == "linux":
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


# --- nothing to copy ------------------------------------------------------------------------


def test_here_nothing_is_copied_and_the_medium_is_described(lab, data):
    said, before = [], tree(data)
    with stage(settings_for(data, "here"), said) as facts:
        assert (facts["hardware"].how, facts["remark"]) == ("real", "")
        assert (facts["copied_bytes"], facts["copied_s"]) == (None, None)
        assert facts["cold_reads_per_s"] is None
        assert facts["filesystem"] == describe_medium(data).filesystem
        assert place(settings_for(data, "here")).storage.directory == data
    assert said == []
    assert tree(data) == before


# --- copying --------------------------------------------------------------------------------


@pytest.fixture
def memory():
    """A folder in memory: another file system than the data's."""
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
def plain(photos, tmp_path):
    """A tree of a few images, without a manifest, that is to be copied into memory."""
    return make_tree(photos, tmp_path / "data")


def kept(before, after):
    """Names of the files that were not written again."""
    return {
        name for name in before if after.get(name) == before[name] and name[-3:].lower() == "jpg"
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_is_whole_and_is_made_once(layout, lab, photos, tmp_path, memory):
    data = LAYOUTS[layout](photos, tmp_path / "data")
    settings = settings_for(data, str(memory))
    with stage(settings) as facts:
        assert facts["copied_bytes"] > 0
        assert place(settings).reader.root.is_relative_to(memory)
        assert_same_data(data, place(settings).reader.root)
    before = tree(memory)
    with stage(settings) as again:
        assert again["copied_bytes"] == 0
    assert len(kept(before, tree(memory))) == len(open_folder(data))


def test_what_changes_in_the_data_changes_in_the_copy_and_the_rest_stays(lab, plain, memory):
    settings = settings_for(plain, str(memory))
    with stage(settings):
        before = tree(memory)
    (plain / "b.jpg").write_bytes((plain / "b.jpg").read_bytes() + b"more")
    (plain / "a/b/c/d.jpg").unlink()
    (plain / "a/b/c/d.jpg").mkdir()
    shutil.copy2(plain / "b.jpg", plain / "a/b/c/d.jpg/new.jpg")
    open_reader.cache_clear()
    with stage(settings):
        assert_same_data(plain, place(settings).reader.root)
        same = {Path(name).name for name in kept(before, tree(memory))}
    assert len(same) == len(list(plain.rglob("*.[jJ]*"))) - 3  # the folder d.jpg is one of them
    assert same.isdisjoint({"b.jpg", "d.jpg", "new.jpg"})


def kill_while_staging(settings, cancel=None):
    """Stage in a process that is killed by `cancel`, or else at the end."""

    def stage_and_die():
        with staged(place(settings), say=str, cancel=cancel):
            signal.raise_signal(signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=stage_and_die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@needs_fork
def test_a_killed_copy_has_only_whole_files_and_goes_on(lab, plain, memory):
    kill_while_staging(settings_for(plain, str(memory)), KilledAfter(2))
    originals = {path.name: path.read_bytes() for path in plain.rglob("*") if path.is_file()}
    copied = [path for path in memory.rglob("*.[jJ][pP]*") if path.is_file()]
    assert len([path for path in copied if path.suffix != ".part"]) == 2
    assert all(
        path.read_bytes() == originals[path.name] for path in copied if path.suffix != ".part"
    )
    settings = settings_for(plain, str(memory))
    with stage(settings):
        assert_same_data(plain, place(settings).reader.root)
    assert list(memory.rglob("*.part")) == []


def test_a_file_that_is_gone_is_the_datas_fault_not_the_mediums(lab, data, memory):
    (data / "images" / "000000000003.jpg").unlink()
    message = r"data must be files that can be read, .*003\.jpg"
    refused(settings_for(data, str(memory)), message, ValueError)


def test_without_room_nothing_is_copied_and_the_numbers_are_told(lab, data):
    with memory_mounted(lab / "small", size="1m") as small:
        message = (
            r"small/labkit-data must have \d+(\.\d)? MB .*free for the data, got \S+ \SB; free"
        )
        refused(settings_for(data, str(small)), message)
        assert list(small.rglob("*.jpg")) == []


def test_a_folder_with_somebody_elses_files_is_refused_and_left_alone(lab, plain, memory):
    settings = settings_for(plain, str(memory))
    copy = place(settings).storage.copy
    copy.mkdir(parents=True)
    (copy / "thesis.txt").write_text("mine")
    refused(settings, "must be empty or the lab's own copy, got other files in it")
    assert list(copy.iterdir()) == [copy / "thesis.txt"]


# --- copies that go again -------------------------------------------------------------------


@pytest.fixture
def tmpfs(lab, data, memory, monkeypatch):
    """Settings that copy the data into memory for as long as a run takes.

    Not into /dev/shm itself, where runs of other tests would remove what is left there.
    """
    monkeypatch.setattr(shared_memory, "FOLDER", memory)
    return settings_for(data, "tmpfs")


def test_memory_holds_a_private_copy_for_as_long_as_it_is_needed(tmpfs, data):
    said, copy = [], place(tmpfs).storage.copy
    with stage(tmpfs, said) as facts:
        assert (facts["hardware"].how, facts["filesystem"]) == ("real", "tmpfs")
        assert facts["copied_bytes"] == data_bytes(data)
        assert_same_data(data, place(tmpfs).reader.root)
        assert place(tmpfs).reader.root.is_relative_to(copy)
        assert copy.stat().st_mode & 0o077 == 0
        # Another run would take it away from this one, or find it gone.
        refused(tmpfs, "must be used by one run at a time, got another one that")
        assert_same_data(data, place(tmpfs).reader.root)
    assert list(copy.parent.glob(f"{copy.name}*")) == []
    (line,) = said  # not how to remove it: that is done
    size = units.count_bytes(data_bytes(data))
    assert re.fullmatch(rf"copied {size} to tmpfs in [\d.,]+ m?s", line)
    with pytest.raises(ZeroDivisionError), stage(tmpfs):
        raise ZeroDivisionError
    assert list(copy.parent.glob(f"{copy.name}*")) == []


@needs_fork
def test_what_a_killed_run_left_goes_with_the_next_and_nothing_else(tmpfs, data, memory, tmp_path):
    left, thesis = place(tmpfs).storage.copy, memory / "labkit-thesis"
    kill_while_staging(tmpfs)
    assert len(list(left.rglob("*.jpg"))) == 24
    other = settings_for(shutil.copytree(data, tmp_path / "other"), "tmpfs")
    thesis.mkdir()
    Path(f"{thesis}.lock").touch()
    with stage(other):
        assert not left.exists()
        assert thesis.is_dir()


@needs_fork
def test_a_run_waits_while_another_removes_what_a_killed_one_left(tmpfs, data, tmp_path):
    kill_while_staging(tmpfs)
    other = settings_for(shutil.copytree(data, tmp_path / "other"), "tmpfs")
    removing, context = multiprocessing.Event(), multiprocessing.get_context("fork")

    def remove_slowly():
        shutil.rmtree = lambda copy: (removing.set(), time.sleep(0.3), rmtree(copy))
        with stage(other):
            pass

    rmtree, another = shutil.rmtree, context.Process(target=remove_slowly)
    another.start()
    assert removing.wait(PATIENCE_S)
    with stage(tmpfs):
        assert_same_data(data, place(tmpfs).reader.root)
    another.join()
    assert another.exitcode == 0


# --- media ----------------------------------------------------------------------------------


@pytest.mark.skipif(bool(why_no_throttled_disk()), reason=why_no_throttled_disk())
def test_two_data_sets_of_a_run_lie_on_one_throttled_disk(lab, data):
    if slow_disk.find() is not None:
        pytest.skip("one is up already")
    packed = replace(settings_for(data, "throttled"), packing="raw")
    ensure_pack(packed)
    plain, places = settings_for(data, "throttled"), ExitStack()
    with places:
        for settings, other in ((plain, packed), (packed, plain)):
            others = [place(other)]
            places.enter_context(staged(place(settings), say=str, others=others))
        mount = slow_disk.find()
        # In a process that ends, as trials are: a mapped file keeps the disk from going.
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as trial:
            (one_root, one), (other_root, other) = trial.map(_read_third, (plain, packed))
        assert one_root.is_relative_to(mount) and other_root.is_relative_to(mount)
        assert one == other
    assert slow_disk.find() is None


def _read_third(settings):
    reader = place(settings).reader
    return reader.root, bytes(reader.read(3)[0])


def test_a_tmpfs_of_ones_own_is_used_and_a_disk_of_that_name_is_not_believed(lab, photos, data):
    (lab / "disk").mkdir()
    if reason := why_not_evicted(lab):
        pytest.skip(reason)
    write_media("labkit.toml", tmpfs="disk")
    with stage(settings_for(data, "tmpfs")) as facts:
        assert facts["hardware"].details == f"on {facts['filesystem']}, not in memory"
        assert facts["remark"].startswith("could not confirm the kind of tmpfs: on ")
    with folder_in_memory() as memory:
        write_media("labkit.toml", tmpfs=memory)
        with stage(settings_for(data, "tmpfs")) as facts:
            assert (facts["hardware"].how, facts["remark"]) == ("real", "")
            assert_same_data(data, place(settings_for(data, "tmpfs")).reader.root)
            assert place(settings_for(data, "tmpfs")).reader.root.is_relative_to(memory)
        assert list(memory.iterdir()) == [memory / "labkit-data"]  # the user's: it stays


def test_a_copy_on_a_named_disk_stays_and_is_not_made_twice(lab, photos):
    (lab / "disk").mkdir()
    if reason := why_not_evicted(lab):
        pytest.skip(reason)
    write_media("labkit.toml", hdd="disk")
    with folder_in_memory() as memory:
        data = shutil.copytree(photos, memory / "my photos")
        settings, said = settings_for(data, "hdd"), []
        with stage(settings, said) as facts:
            assert facts["copied_bytes"] == data_bytes(data)
            doubt = "could not confirm the kind of hdd: "
            assert facts["hardware"].how == "real" or facts["remark"].startswith(doubt)
            assert facts["cold_reads_per_s"] > 0
        copy = place(settings).storage.copy
        assert copy.is_relative_to(lab / "disk")
        assert_same_data(data, place(settings).reader.root)
        # A user can type it as it stands, blanks and all.
        assert said[1] == f"the copy stays for other runs; remove it with: rm -r '{copy}'"
        with stage(settings, said) as facts:
            assert facts["copied_bytes"] == 0
        assert len(said) == 2


def test_a_run_makes_room_for_all_that_lies_on_the_same_storage(data, tmp_path, monkeypatch):
    variants = {
        "files": settings_for(data, "here"),
        "pack": replace(settings_for(data, "here"), packing="raw"),
        "again": replace(settings_for(data, "here"), seed=1),
        "elsewhere": settings_for(data, "modelled_ssd"),
    }
    asked = {}

    @contextmanager
    def noted(parts, *, others, **how):
        asked[parts.settings.storage, parts.folder.name] = [other.folder.name for other in others]
        yield {"hardware": parts.storage.hardware, "remark": "", "copied_bytes": None}

    monkeypatch.setattr(staging, "staged", noted)
    stored = {label: asdict(complete_here(chosen)) for label, chosen in variants.items()}
    info = fake_info([*variants], variants=stored)
    run = ActiveRun(create_run(tmp_path, info), info, parts={}, cancel=None, progress=False)
    with ExitStack() as cleanup:
        staging.stage(run, cleanup)
    pack = source_folder(variants["pack"]).name
    assert asked == {
        ("here", "photos"): [pack], ("here", pack): ["photos"], ("modelled_ssd", "photos"): [],
    }  # fmt: skip


# --- what cannot be -------------------------------------------------------------------------


def test_a_folder_that_is_not_there_says_what_to_do(lab, data):
    (lab / "labkit.toml").write_text('[media]\nhdd = "gone"\n')
    message = (
        f"hdd must be an existing directory, got {lab / 'gone'}; "
        "create it, mount the disk or correct labkit.toml"
    )
    refused(settings_for(data, "hdd"), re.escape(message))


def test_a_folder_inside_the_data_is_refused(lab, data):
    with memory_mounted(data / "images" / "mounted") as inside:
        message = f"must lie outside the data, or the copy would be part of it, got {inside}"
        refused(settings_for(data, str(inside)), re.escape(message))
        assert list(inside.iterdir()) == []


def test_an_unknown_storage_lists_the_choices_labkit_tomls_among_them(lab, data):
    (lab / "labkit.toml").write_text('[media]\nscratch = "."\ndata = "photos"\n')
    choices = ", ".join(sorted(["a folder's path", FORM, "scratch", *STORAGES]))
    for name in ("floppy", "data"):
        message = re.escape(f"storage must be one of {choices}, got '{name}'")
        refused(settings_for(data, name), message, ValueError)


def test_annotations_name_no_file_outside_the_data(lab, data, memory):
    listed, outside = data / "annotations.json", data.parent / "outside.jpg"
    shutil.copy(data / "images/000000000003.jpg", outside)
    listed.write_text(listed.read_text().replace("000000000003.jpg", "../../outside.jpg"))
    refused(settings_for(data, str(memory)), "data must be files below", ValueError)
