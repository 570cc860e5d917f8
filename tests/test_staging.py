"""The data is where settings say, and what the medium is called there was looked at."""

import os
import re
import shutil
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import LABELS, fake_info, fake_trials
from places import folder_in_memory, memory_mounted, tree
from test_copies import assert_same_data, make_coco

from labkit import units
from labkit.captions import stand_ins
from labkit.copies import copy_data, held
from labkit.media import describe_medium, write_media
from labkit.packs import ensure_pack
from labkit.pagecache import can_evict
from labkit.parts.storage import STORAGES, slow_disk
from labkit.parts.storage.distance import FORM
from labkit.settings import Settings
from labkit.staging import check_rates, staged
from labkit.stored import locate_data, open_reader, open_source
from labkit.summary import summarize
from labkit.trial import Skip

FACTS = {
    "label", "filesystem", "device", "rotational", "scheduler", "readahead_kb",
    "cold_reads_per_s", "remark", "copied_bytes", "copied_s",
    "whole_copy_bytes", "whole_copy_s",
}  # fmt: skip


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


def stage(settings, said=None):
    """Have the data staged; `said` takes the lines for the person."""
    return staged(settings, say=(said if said is not None else []).append)


def data_bytes(data):
    return sum(path.stat().st_size for path in data.rglob("*") if path.is_file())


# --- nothing to copy ------------------------------------------------------------------------


def test_here_nothing_is_copied_and_the_medium_is_described(lab, data):
    said, before = [], tree(data)
    with stage(settings_for(data, "here"), said) as facts:
        assert set(facts) == FACTS
        assert (facts["label"], facts["remark"]) == ("real", "")
        assert (facts["copied_bytes"], facts["copied_s"]) == (None, None)
        assert facts["cold_reads_per_s"] is None
        assert facts["filesystem"] == describe_medium(data).filesystem
        assert locate_data(settings_for(data, "here")).directory == data
    assert said == []
    assert tree(data) == before


def assert_believed_only_if_it_is_one(facts, name, is_hard_disk):
    """What a disk claims and how it reads decide; the name does not."""
    if facts["filesystem"] in ("tmpfs", "ramfs"):
        assert (facts["label"], facts["cold_reads_per_s"]) == ("unknown(in memory)", None)
        return
    slow = facts["cold_reads_per_s"] is not None and facts["cold_reads_per_s"] <= 250
    known = {True: True if slow else None, False: False, None: None}[facts["rotational"]]
    if known is is_hard_disk:
        assert (facts["label"], facts["remark"]) == ("real", "")
        return
    doubt = re.fullmatch(r"unknown\((.+)\)", facts["label"])[1]
    assert facts["remark"] == f"{name} is not known to be one: {doubt}"
    if facts["rotational"]:
        assert ("claims to be rotational" in doubt) is (known is None)
    if facts["cold_reads_per_s"] is not None:
        assert f"{facts['cold_reads_per_s']:,.0f} cold reads/s" in doubt


def test_without_a_named_ssd_the_datas_own_disk_is_probed(lab, data):
    with stage(settings_for(data, "ssd")) as facts:
        assert facts["copied_bytes"] is None
        assert locate_data(settings_for(data, "ssd")).directory == data
        assert_believed_only_if_it_is_one(facts, "ssd", False)


def test_a_hard_disk_that_holds_the_data_already_gets_no_copy_and_is_probed(lab, data):
    (lab / "disk").mkdir()
    write_media("labkit.toml", hdd="disk")
    with stage(settings_for(data, "hdd")) as facts:
        assert locate_data(settings_for(data, "hdd")).directory == data
        assert facts["copied_bytes"] is None
        assert_believed_only_if_it_is_one(facts, "hdd", True)
    assert list((lab / "disk").iterdir()) == []


def test_data_of_a_home_folder_is_found(lab, data, monkeypatch):
    monkeypatch.setenv("HOME", str(data.parent))
    monkeypatch.setenv("USERPROFILE", str(data.parent))
    (data.parent / "disk").mkdir()
    for storage in ("here", "ssd", "~/disk"):
        with stage(settings_for("~/photos", storage)) as facts:
            assert facts["copied_bytes"] is None
            assert locate_data(settings_for("~/photos", storage)).directory == data


# --- copies ---------------------------------------------------------------------------------


def test_memory_holds_a_private_copy_for_as_long_as_it_is_needed(lab, data):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("this platform has no /dev/shm")
    settings, said = settings_for(data, "tmpfs"), []
    copy = locate_data(settings).copy
    assert copy.parent == Path("/dev/shm")
    with stage(settings, said) as facts:
        assert (facts["label"], facts["filesystem"]) == ("real", "tmpfs")
        assert facts["copied_bytes"] == data_bytes(data)
        assert facts["copied_s"] > 0
        assert_same_data(data, open_source(settings).root)
        assert open_source(settings).root.is_relative_to(copy)
        assert copy.stat().st_mode & 0o077 == 0
        with stage(settings) as others:
            assert others["copied_bytes"] == 0
        assert_same_data(data, open_source(settings).root)
    assert not copy.exists()
    assert not copy.with_name(f"{copy.name}.lock").exists()
    (line,) = said  # not how to remove it: that is done
    size = units.count_bytes(data_bytes(data))
    assert re.fullmatch(rf"copied {size} to tmpfs in [\d.,]+ m?s", line)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a process that can be killed")
def test_a_killed_runs_copy_on_a_persons_throttled_disk_goes_with_the_next_run(
    data, tmp_path, monkeypatch
):
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setattr(slow_disk, "MOUNT", disk)
    first, second = (locate_data(settings_for(d, "throttled")).copy for d in (data, tmp_path))
    pid = os.fork()
    if pid == 0:
        try:
            with held(first):
                copy_data(open_reader("folder", data), first, first / "photos")
                signal.raise_signal(signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    assert len(list(first.rglob("*.jpg"))) == len(list(data.rglob("*.jpg")))
    with held(second):
        assert not first.exists()


@pytest.mark.alone
@pytest.mark.skipif(bool(slow_disk.why_not()), reason="a throttled disk cannot be put up here")
def test_two_data_sets_of_a_run_lie_on_one_throttled_disk(lab, data):
    if slow_disk.find() is not None:
        pytest.skip("one is up already")
    packed = replace(settings_for(data, "throttled"), packing="raw")
    ensure_pack(packed)
    plain, places = settings_for(data, "throttled"), ExitStack()
    with places:
        for settings, other in ((plain, packed), (packed, plain)):
            places.enter_context(staged(settings, say=lambda line: None, beside=[other]))
        readers = [open_source(settings) for settings in (plain, packed)]
        assert all(r.root.is_relative_to(slow_disk.find().mount) for r in readers)
        assert bytes(readers[0].read(3)[0]) == bytes(readers[1].read(3)[0])
    assert slow_disk.find() is None


def test_a_failing_run_leaves_nothing_in_memory(lab, data):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("this platform has no /dev/shm")
    settings = settings_for(data, "tmpfs")
    with pytest.raises(ZeroDivisionError), stage(settings):
        assert locate_data(settings).copy.exists()
        raise ZeroDivisionError
    assert not locate_data(settings).copy.exists()


def test_a_tmpfs_of_ones_own_is_used_and_a_disk_of_that_name_is_not_believed(lab, photos, data):
    (lab / "disk").mkdir()
    if describe_medium(lab).in_memory:
        pytest.skip("the temporary directory is in memory")
    write_media("labkit.toml", tmpfs="disk")
    with stage(settings_for(data, "tmpfs")) as facts:
        assert facts["label"] == f"unknown(on {facts['filesystem']}, not in memory)"
        assert facts["remark"].startswith("tmpfs is not known to be one: on ")
    with folder_in_memory() as memory:
        write_media("labkit.toml", tmpfs=memory)
        with stage(settings_for(data, "tmpfs")) as facts:
            assert (facts["label"], facts["remark"]) == ("real", "")
            assert_same_data(data, open_source(settings_for(data, "tmpfs")).root)
            assert open_source(settings_for(data, "tmpfs")).root.is_relative_to(memory)
        assert list(memory.iterdir()) == [memory / "labkit-data"]  # the person's: it stays


def test_a_copy_on_a_named_disk_stays_and_is_not_made_twice(lab, photos):
    (lab / "disk").mkdir()
    if describe_medium(lab).in_memory:
        pytest.skip("the temporary directory is in memory")
    write_media("labkit.toml", hdd="disk")
    with folder_in_memory() as memory:
        data = shutil.copytree(photos, memory / "my photos")
        settings, said = settings_for(data, "hdd"), []
        with stage(settings, said) as facts:
            assert facts["copied_bytes"] == data_bytes(data)
            assert_believed_only_if_it_is_one(facts, "hdd", True)
            if can_evict():
                assert facts["cold_reads_per_s"] > 0
        copy = locate_data(settings).copy
        assert copy.is_relative_to(lab / "disk")
        assert_same_data(data, open_source(settings).root)
        # A person can type it as it stands, blanks and all.
        assert said[1] == f"the copy stays for other runs; remove it with: rm -r '{copy}'"
        with stage(settings, said) as facts:
            assert facts["copied_bytes"] == 0
        assert len(said) == 2


@pytest.mark.parametrize("name", ["hdd", "ssd", "nvme"])
def test_a_disk_that_is_in_memory_is_called_unknown_and_the_chart_says_so(lab, data, name):
    with memory_mounted(lab / "mounted") as mounted:
        (lab / "labkit.toml").write_text(f'[media]\n{name} = "mounted"\n')
        with stage(settings_for(data, name)) as facts:
            assert facts["copied_bytes"] == data_bytes(data)
            assert facts["filesystem"] == "tmpfs"
            assert facts["cold_reads_per_s"] is None
            assert facts["label"] == "unknown(in memory)"
            assert facts["remark"] == f"{name} is not known to be one: in memory"
            assert_same_data(data, open_source(settings_for(data, name)).root)
        assert list(mounted.iterdir()) == [mounted / "labkit-data"]
    trials = fake_trials({"a": 1.0}, labels={**LABELS, "storage": facts["label"]})
    summary = summarize(fake_info(["a"]), trials)
    assert "Unknown storage (in memory)" in stand_ins(summary)


@pytest.mark.parametrize("how", ["path", "name in labkit.toml"])
def test_any_folder_can_be_a_storage(lab, data, how):
    with folder_in_memory() as memory:
        (lab / "labkit.toml").write_text(f'[media]\nscratch = "{memory}"\n')
        settings = settings_for(data, str(memory) if how == "path" else "scratch")
        with stage(settings) as facts:
            assert facts["copied_bytes"] == data_bytes(data)
            assert (facts["label"], facts["remark"]) == ("real", "")
            assert_same_data(data, open_source(settings).root)
            assert open_source(settings).root.is_relative_to(memory)


def test_two_data_sets_of_one_name_get_copies_of_their_own(lab, data, tmp_path):
    (tmp_path / "other").mkdir()
    other = shutil.copytree(data, tmp_path / "other" / "photos")
    with folder_in_memory() as memory:
        settings = settings_for(data, str(memory))
        with stage(settings), stage(replace(settings, data=str(other))) as facts:
            assert facts["copied_bytes"] == data_bytes(other)
        assert len(list((memory / "labkit-data").iterdir())) == 2


def test_data_behind_a_link_keeps_its_boxes(lab, photos, tmp_path):
    images = make_coco(photos, tmp_path / "coco")
    images.rename(tmp_path / "elsewhere")
    images.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with folder_in_memory() as memory:
        settings = settings_for(images, str(memory))
        with stage(settings):
            assert open_source(settings).boxes == "coco"
            assert_same_data(images, open_source(settings).root)


def test_relative_paths_are_found_with_their_own_name(lab, data, monkeypatch):
    monkeypatch.chdir(data)
    with folder_in_memory() as memory:
        names = [
            locate_data(settings_for(name, str(memory))).directory for name in (".", "../photos")
        ]
        assert {name.name for name in names} == {"photos"}
        with stage(settings_for(".", str(memory))) as facts:
            assert facts["copied_bytes"] == data_bytes(data)
        with stage(settings_for("images/..", str(memory))) as facts:
            assert facts["copied_bytes"] == 0


# --- what cannot be -------------------------------------------------------------------------


def test_media_that_are_not_named_say_how_to_name_them(lab, data):
    for name in ("hdd", "nvme"):
        message = f"{name} is not named on this machine; name a folder on it with: labkit doctor"
        with pytest.raises(Skip, match=f"{message} --write --{name} DIR"):
            stage(settings_for(data, name)).__enter__()


@pytest.mark.parametrize("name", ["hdd", "ssd", "tmpfs", "scratch"])
def test_a_folder_that_is_not_there_says_what_to_do(lab, data, name):
    (lab / "labkit.toml").write_text(f'[media]\n{name} = "gone"\n')
    message = (
        f"{name} must be an existing directory, got {lab / 'gone'}; "
        "create it, mount the disk or correct labkit.toml"
    )
    with pytest.raises(Skip, match=re.escape(message)):
        stage(settings_for(data, name)).__enter__()


def test_a_folder_inside_the_data_is_refused(lab, data):
    with memory_mounted(data / "images" / "mounted") as inside:
        message = f"must lie outside the data, or the copy would be part of it, got {inside}"
        with pytest.raises(Skip, match=re.escape(message)):
            stage(settings_for(data, str(inside))).__enter__()
        assert list(inside.iterdir()) == []


def test_an_unknown_storage_lists_the_choices_labkit_tomls_among_them(lab, data):
    (lab / "labkit.toml").write_text('[media]\nscratch = "."\ndata = "photos"\n')
    choices = ", ".join(sorted(["a folder's path", FORM, "scratch", *STORAGES]))
    message = f"storage must be one of {choices}, got 'floppy'"
    with pytest.raises(ValueError, match=re.escape(message)):
        stage(settings_for(data, "floppy")).__enter__()
    with pytest.raises(ValueError, match=r"storage must be one of .*, got 'data'"):
        stage(settings_for(data, "data")).__enter__()


def test_data_that_is_not_what_its_manifest_says_is_not_put_into_memory(lab, data):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("this platform has no /dev/shm")
    (data / "images" / "000000000003.jpg").write_bytes(b"\xff\xd8 spoilt")
    settings = settings_for(data, "tmpfs")
    with pytest.raises(ValueError, match=r"data must be what its manifest says, .*003\.jpg"):
        stage(settings).__enter__()
    assert not locate_data(settings).copy.exists()


# --- stand-ins ------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["here", "ssd", "tmpfs"])
def test_real_media_have_no_rates_to_check(lab, data, storage):
    try:
        with stage(settings_for(data, storage)):
            assert check_rates(settings_for(data, storage)) == []
    except Skip as reason:
        pytest.skip(str(reason))
