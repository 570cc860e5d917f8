"""What this machine says of itself, its disks and what it skips."""

import os
import sys

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
