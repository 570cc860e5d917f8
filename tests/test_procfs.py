"""Linux's own text files: how lines are taken apart, and what is there where there are none."""

from pathlib import Path

from labkit import procfs

# Docker on ext4, with a bind mount whose name has a blank in it.
MOUNTINFO = r"""
610 520 0:51 / / rw,relatime master:240 - overlay overlay rw,lowerdir=/a:/b,upperdir=/c
611 610 8:1 /srv/my\040photos /data rw - ext4 /dev/sda1 rw,errors=remount-ro
612 610 0:28 /docker/abc /sys/fs/cgroup/cpu ro shared:9 - cgroup cgroup rw,cpu,cpuacct
""".strip()


def test_mounts_are_taken_apart():
    overlay, photos, cgroup = procfs.parse_mounts(MOUNTINFO)
    assert (overlay.filesystem, overlay.point, overlay.device_number) == (
        "overlay",
        Path("/"),
        "0:51",
    )
    assert (photos.source, photos.root, photos.device_number) == (
        "/dev/sda1",
        "/srv/my photos",
        "8:1",
    )
    assert cgroup.options == ("rw", "cpu", "cpuacct")


def test_nothing_is_mounted_where_there_is_no_mountinfo():
    assert procfs.parse_mounts("") == []


def test_counters_are_read_with_and_without_a_colon(tmp_path):
    file = tmp_path / "meminfo"
    file.write_text("MemAvailable:   24212724 kB\npswpin 7\nActive(anon): 5 kB\n")
    assert procfs.counters(file) == {"MemAvailable": 24212724, "pswpin": 7}


def test_a_file_that_is_not_there_is_empty(tmp_path):
    assert procfs.text(tmp_path / "no") == ""
    assert procfs.number(tmp_path / "no") is None
    assert procfs.counters(tmp_path / "no") == {}


def test_a_number_may_be_negative_and_words_are_none(tmp_path):
    file = tmp_path / "quota"
    file.write_text("-1\n")
    assert procfs.number(file) == -1
    file.write_text("max\n")
    assert procfs.number(file) is None
