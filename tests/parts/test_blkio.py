"""Block-I/O control groups and the counting of reads, without a kernel that throttles.

The version 2 tree here is a made-up one of plain files: what would be written where is
tested, and no kernel of that kind has read it.
"""

import re
from pathlib import Path

import pytest

from labkit import procfs
from labkit.parts.storage import blkio, cold_reads
from labkit.parts.storage.blkio import Tree

V2 = {"rbps": 154_000_000, "riops": 81}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A version 2 tree: like the kernel's, a new folder in it has files at once."""
    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    (root / "cgroup.subtree_control").write_text("cpu memory\n")
    mkdir = Path.mkdir

    def mkdir_with_files(self, *arguments, **options):
        mkdir(self, *arguments, **options)
        if self.parent == root and "io" in (root / "cgroup.subtree_control").read_text():
            (self / "io.max").touch()
            (self / "cgroup.procs").touch()

    monkeypatch.setattr(Path, "mkdir", mkdir_with_files)
    return Tree(root=root, version=2)


def mount(point, filesystem, *options):
    return procfs.Mount(
        device_number="0:1",
        root="/",
        point=point,
        filesystem=filesystem,
        source=filesystem,
        options=options,
    )


def test_version_2_gets_one_line_with_both_limits_once_io_is_switched_on(tree):
    group = tree.root / "labkit"
    blkio.make(tree, group, blkio.limits(2, "7:0", 81, 154_000_000))
    # Source: cgroup-v2.rst: "+name" enables a controller; "$MAJ:$MIN" and then key=value.
    assert (tree.root / "cgroup.subtree_control").read_text() == "+io"
    number, *pairs = (group / "io.max").read_text().split()
    assert number == "7:0"
    assert {key: int(value) for key, value in (pair.split("=") for pair in pairs)} == V2
    assert blkio.in_force(group, 2, "7:0")
    assert not blkio.in_force(group, 2, "7:1")


def test_a_controller_that_is_on_is_not_switched_again(tree):
    switch = tree.root / "cgroup.subtree_control"
    switch.write_text("cpu io\n")
    blkio.make(tree, tree.root / "labkit", blkio.limits(2, "7:0", 81, 154_000_000))
    assert switch.read_text() == "cpu io\n"


def test_version_1_gets_a_file_for_each_limit():
    # Source: blkio-controller.rst: "<major>:<minor> <rate>".
    assert blkio.limits(1, "7:0", 81, 154_000_000) == {
        "blkio.throttle.read_iops_device": "7:0 81",
        "blkio.throttle.read_bps_device": "7:0 154000000",
    }


def test_a_kernel_without_limits_is_named(tmp_path):
    group = tmp_path / "labkit"
    with pytest.raises(FileNotFoundError, match="this kernel has no such limit"):
        blkio.make(Tree(root=tmp_path, version=1), group, blkio.limits(1, "7:0", 81, 154))
    assert "got none with blkio.throttle" in blkio.why_not(Tree(root=tmp_path, version=1))
    assert "not mounted here" in blkio.why_not(None)


def test_the_tree_is_the_one_that_has_block_io(tree, tmp_path):
    v1, other, v2 = tmp_path / "v1", tmp_path / "other", tree.root
    mounts = [
        mount(other, "cgroup", "rw", "memory"),
        mount(tmp_path, "cgroup2", "rw"),
        mount(v1, "cgroup", "rw", "blkio"),
        mount(v2, "cgroup2", "rw"),
    ]
    assert blkio.find_tree(mounts) == Tree(root=v1, version=1)
    assert blkio.find_tree(mounts[:2]) is None
    assert blkio.find_tree([*mounts[:2], mounts[3]]) == tree
    assert blkio.why_not(tree) == ""


def test_joining_makes_no_file_where_there_is_no_group(tmp_path):
    with pytest.raises(FileNotFoundError):
        blkio.join(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_removing_what_is_not_there_is_no_error(tmp_path):
    assert blkio.remove(tmp_path / "gone") is False


def bunches(count, start_s=0.004, jitter_s=0.0003):
    """The times of reads that a limit of 81 lets through: 8 each 100 ms, and 8 at once."""
    return [(start_s + 0.1 * n + jitter_s * k, 1) for n in range(count) for k in range(8)]


@pytest.mark.parametrize("start_s", [0.0, 0.02, 0.049, 0.051, 0.08])
@pytest.mark.parametrize("left_out", [0, 3, 7])
def test_reads_in_bunches_are_counted_by_whole_slices(start_s, left_out):
    reads = bunches(14, start_s)
    assert cold_reads._per_s(reads[: len(reads) - left_out], 0.0) == pytest.approx(80)


@pytest.mark.parametrize("per_s", [43.0, 81.0, 500.0])
def test_reads_that_come_evenly_are_counted_to_one_more_or_less(per_s):
    reads = [(n / per_s, 1) for n in range(round(1.25 * per_s))]
    assert cold_reads._per_s(reads, 0.0) == pytest.approx(per_s, abs=1.2)


def test_bytes_count_as_bytes():
    reads = [(time_s, 1_310_720) for time_s, _ in bunches(14)]
    assert cold_reads._per_s(reads, 0.0) == pytest.approx(80 * 1_310_720)


@pytest.mark.parametrize("reads", [[], [(0.3, 1)], bunches(2), [(0.3, 1), (0.31, 1)]])
def test_too_few_reads_are_no_measurement(reads):
    with pytest.raises(cold_reads.CannotMeasure, match=r"there were \d+ reads only|over at once"):
        cold_reads._per_s(reads, 0.0)


def test_a_reader_that_cannot_join_or_read_says_why(tmp_path):
    for group, reason in ((tmp_path / "none", "none/cgroup.procs: No such file"), (tmp_path, "")):
        missing = re.escape(reason or f"{tmp_path}/gone.jpg: No such file")
        with pytest.raises(cold_reads.CannotMeasure, match=missing):
            cold_reads.measure([tmp_path / "gone.jpg"], group=group, readers=1, seconds=0.1)
