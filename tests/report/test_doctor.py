"""What this machine says of itself, its disks and what it skips."""

import errno
import os
import shutil
import sys
from pathlib import Path

import labkit as lab
from labkit.machine import media


def told(**folders):
    return {topic: (value, remark) for topic, value, remark in lab.doctor(**folders).rows}


def test_the_doctor_looks_at_the_media_of_labkit_toml_and_those_it_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in range(30):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(os.urandom(8192))
    media.write_media(tmp_path / "labkit.toml", hdd="photos")
    monkeypatch.setattr(media, "probe_random_reads", lambda directory: 3000.0)
    topics = told(data=tmp_path / "photos", ssd=tmp_path / "gone")
    medium = media.describe_medium(tmp_path)
    assert f": {medium.filesystem} on {medium.device}, " in topics["data"][0]
    if not medium.in_memory and hasattr(os, "posix_fadvise"):
        assert topics["data"][0].endswith(" cold reads/s")
        assert topics["hdd"][1].startswith("could not confirm the kind of hdd: ")
    assert topics["ssd"][1] == "not there; create it, mount the disk or correct labkit.toml"


def test_the_doctor_says_what_a_platform_without_fadvise_and_fork_skips(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told()  # imports what it needs
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    topics = told()
    assert topics["cache cold"][0] == "skipped"
    assert "no posix_fadvise" in topics["cache cold"][1]
    assert topics["multiprocessing_context fork"] == (
        "skipped",
        "this platform starts processes by spawn",
    )


def test_a_broken_medium_is_a_remark_beside_all_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("stale", "fine"):
        (tmp_path / name).mkdir()
    usage = shutil.disk_usage

    def stale_usage(path):
        if Path(path).name == "stale":
            raise OSError(errno.ESTALE, "Stale file handle")
        return usage(path)

    monkeypatch.setattr(shutil, "disk_usage", stale_usage)
    nobody_can_look = tmp_path / ("x" * 300)  # as is_dir raises for a server that has gone
    topics = told(hdd=tmp_path / "stale", ssd=nobody_can_look, nvme=tmp_path / "fine")
    assert topics["hdd"][1] == (
        "cannot be read: Stale file handle; mount the disk again or correct labkit.toml"
    )
    assert topics["ssd"][1] == "not there; create it, mount the disk or correct labkit.toml"
    assert " free" in topics["nvme"][0]
