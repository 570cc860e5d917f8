"""Openings are counted by what the kernel says, whoever opens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import opens
from labkit.opens import Opens

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "a" / "1.jpg", tmp_path / "a" / "2.jpg", tmp_path / "ä b" / "3.jpg"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
    return paths


def test_every_opening_counts_also_of_the_same_file(files):
    with Opens(files) as watched:
        for path in files:
            path.read_bytes()
        for _ in range(50):  # equal events that wait are joined to one, were there nothing between
            files[0].read_bytes()
    assert watched.count() == 3 + 50


def test_other_files_and_folders_do_not_count(files, tmp_path):
    other = files[0].with_name("other.jpg")
    other.write_bytes(b"y")
    with Opens(files[:1]) as watched:
        other.read_bytes()
        list(files[0].parent.iterdir())
        files[2].read_bytes()
        files[0].stat()
    assert watched.count() == 0


def test_another_process_counts_too(files):
    with Opens(files) as watched:
        subprocess.run([sys.executable, "-c", f"open({str(files[2])!r}).read()"], check=True)
    assert watched.count() == 1


def test_a_file_behind_a_link_counts(files, tmp_path):
    link = tmp_path / "link.jpg"
    link.symlink_to(files[1])
    with Opens([link]) as watched:
        link.read_bytes()
    assert watched.count() == 1


def test_where_events_were_lost_nothing_is_claimed(files, monkeypatch):
    with Opens(files) as watched:
        most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        for number in range(most // 2 + 2):
            os.close(os.open(files[number % 2], os.O_RDONLY))
    assert watched.count() is None


def test_without_inotify_nothing_is_claimed(files, monkeypatch):
    class NoLibrary:
        def __init__(self, *_, **__):
            pass

    monkeypatch.setattr(opens.ctypes, "CDLL", NoLibrary)
    with Opens(files) as watched:
        files[0].read_bytes()
    assert watched.count() is None
