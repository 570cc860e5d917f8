"""labkit.toml and the media it names: real files, and the disks that this machine has."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from kernel import why_not_evicted
from places import folder_in_memory

from labkit.contracts import Skip
from labkit.machine.media import (
    Medium,
    check_medium,
    describe_medium,
    is_hard_disk,
    media,
    probe_random_reads,
    write_media,
)

DISK = Medium(filesystem="ext4", device="/dev/sda1")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("disk", "data"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_what_is_written_is_read_back_also_from_a_folder_below(lab, monkeypatch):
    assert media() == {}
    odd = lab / 'my "disk" é'
    odd.mkdir()
    write_media(lab / "labkit.toml", hdd=lab / "disk", data="data", ssd=odd)
    text = (lab / "labkit.toml").read_text()
    assert 'data = "data"' in text  # beside the file: relative
    (lab / "notebooks").mkdir()
    monkeypatch.chdir(lab / "notebooks")
    assert media() == {"hdd": lab / "disk", "data": lab / "data", "ssd": odd}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '# mine\n[media]\n# spins\nhdd = "old"  # gone\nssd = "s"\n',
            '# mine\n[media]\ndata = "data"\n# spins\nhdd = "disk"\nssd = "s"\n',
        ),
        ("[other]\nx = 1\n", "[other]\nx = 1\n"),
    ],
)
def test_writing_keeps_comments_and_other_keys(lab, before, after):
    (lab / "labkit.toml").write_text(before)
    write_media("labkit.toml", hdd="disk", data="data")
    assert after in (lab / "labkit.toml").read_text()
    assert {**media(), "ssd": None} == {"hdd": lab / "disk", "data": lab / "data", "ssd": None}


@pytest.mark.parametrize(
    ("dirs", "message"),
    [
        ({}, "dirs must be one or more of hdd, ssd, nvme, tmpfs, data, got none"),
        ({"hdd": "nowhere"}, "hdd must be an existing directory, got "),
    ],
)
def test_wrong_media_are_refused_and_nothing_is_written(lab, dirs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        write_media("labkit.toml", **dirs)
    assert not (lab / "labkit.toml").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[media\n", "must be a TOML file, got an error"),
        ("media = 3\n", "must be a table with a line [media], got 3"),
        ("[media]\nhdd = 3\n", "must be a directory in quotes, got 3"),
    ],
)
def test_a_wrong_file_is_refused_and_left_alone(lab, text, message):
    (lab / "labkit.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        media()
    with pytest.raises(ValueError, match=re.escape(message)):
        write_media("labkit.toml", hdd="disk")
    assert (lab / "labkit.toml").read_text() == text


def test_tmpfs_is_known_to_be_memory_and_is_not_probed():
    if not Path("/dev/shm").is_dir():
        pytest.skip("this platform has no /dev/shm")
    medium = describe_medium("/dev/shm")
    assert medium.in_memory
    assert check_medium("tmpfs", Path("/dev/shm")) == (medium, None, "")
    assert check_medium("hdd", Path("/dev/shm")) == (medium, None, "in memory")


def test_reads_of_files_that_stay_in_memory_are_not_called_cold():
    with folder_in_memory() as folder:
        for number in range(20):
            (folder / f"{number}.jpg").write_bytes(bytes(8192))
        with pytest.raises(Skip, match="its files could not be evicted from memory"):
            probe_random_reads(folder)


def test_files_that_leave_memory_are_read_cold(tmp_path):
    if reason := why_not_evicted(tmp_path):
        pytest.skip(reason)
    for number in range(20):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(8192))
    assert probe_random_reads(tmp_path) > 0


@pytest.mark.parametrize(
    ("rotational", "reads_per_s", "believed"),
    [
        (True, 81.0, True),
        (True, 250.0, True),
        (True, 3000.0, None),  # a virtual disk: it says so and does not behave so
        (True, None, None),
        (False, 81.0, False),
        (None, 81.0, None),
    ],
)
def test_a_hard_disk_must_claim_it_and_behave_so(rotational, reads_per_s, believed):
    assert is_hard_disk(replace(DISK, rotational=rotational), reads_per_s) is believed
