"""The throttled disk for real: it limits who joined, and leaves nothing, however it ends.

Reference: the kernel's own lists of mounts, loop devices and control groups, and its count of the
reads that a group was let through. A disk and mount of somebody else's stand beside it.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from kernel import why_no_throttled_disk, why_not_evicted, with_mounts_of_its_own

from labkit.contracts import Skip
from labkit.machine import procfs
from labkit.machine.media import describe_medium
from labkit.machine.page_cache import evict
from labkit.parts.packing.folder import open_folder
from labkit.parts.storage import slow_disk
from labkit.runs.thresholds import MAX_RATE_ERROR_SHARE, RATE_TRIES
from tests.processes import PATIENCE_S, until

needs_disk = pytest.mark.skipif(bool(why_no_throttled_disk()), reason=why_no_throttled_disk())
ROOM = {"data_bytes": 3_000_000, "files": 30}
STRANGER = 65534


def shell(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)


def devices_below(place):
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [Path("/dev", file.parts[3]) for file in files if str(place) in file.read_text()]


def traces(place):
    """List what the kernel knows of a disk in a folder, and the folder itself."""
    points = (Path(mount.mountpoint) for mount in psutil.disk_partitions(all=True))
    mounts = [point for point in points if place in point.parents]
    paths = [path for path in (place, slow_disk.cgroup_folder()) if path.exists()]
    return mounts + devices_below(place) + paths


@pytest.fixture
def place(tmp_path, monkeypatch):
    if reason := why_not_evicted(tmp_path):  # in memory there is no direct I/O
        pytest.skip(reason)
    monkeypatch.setattr(slow_disk, "SEQUENTIAL_BYTES", 1 << 20)
    monkeypatch.setattr(slow_disk, "CHECK_FILES", 40)
    folder = tmp_path / "slow dísk"
    monkeypatch.setattr(slow_disk, "FOLDER", folder)
    yield folder
    for left in multiprocessing.active_children():  # of a test that failed
        left.kill()
    with contextlib.suppress(OSError):
        slow_disk.down()
    assert traces(folder) == []


@pytest.fixture
def somebody_elses(tmp_path):
    """A loop device with a mount that is not ours; checked at the end."""
    image, point = tmp_path / "other.img", tmp_path / "other"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(4 << 20)
    shell("mkfs.ext4", "-q", "-F", image)
    device = shell("losetup", "--find", "--show", image).stdout.strip()
    try:
        shell("mount", device, point)
        (point / "file").write_text("theirs")
        yield point
        assert (point / "file").read_text() == "theirs"
        assert devices_below(image) == [Path(device)]
    finally:
        subprocess.run(["umount", point], check=False)
        shell("losetup", "--detach", device)


def test_places_of_one_name_in_two_containers_have_two_control_groups(tmp_path, monkeypatch):
    """Containers may share the control groups of their host; one must not remove the other's."""
    monkeypatch.setattr(slow_disk, "FOLDER", tmp_path / "var" / "slow-disk")
    groups = []
    for number in range(2):
        (tmp_path / "var").mkdir()
        groups.append(slow_disk.cgroup_folder())
        (tmp_path / "var").rename(tmp_path / str(number))  # so that its inode is not used again
    assert len(set(groups)) == 2


def start(action):
    """Run a function in a forked process, which owns no disk."""

    def run():
        slow_disk._lock_fd = None
        action()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def answer(action):
    """Return what a function returns in another process."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = start(lambda: sender.send(action()))
    process.join()
    assert process.exitcode == 0
    return receiver.recv()


@needs_disk
def test_it_is_a_real_disk_with_limits_and_goes_without_a_trace(place, somebody_elses):
    mount = slow_disk.up(**ROOM)
    assert mount == slow_disk.find()
    assert describe_medium(mount).filesystem == "ext4"
    queue = f"/sys/block/{device_of(mount)}/queue"
    assert procfs.number(f"{queue}/read_ahead_kb") == procfs.number(f"{queue}/max_sectors_kb")
    (mount / "data").write_bytes(bytes(ROOM["data_bytes"]))
    assert slow_disk.DESCRIPTION == "7200 rpm: 81 reads/s, 106 MB/s"
    assert place.stat().st_mode & 0o777 == 0o700  # the data may be private
    slow_disk.down()
    assert traces(place) == []
    assert slow_disk.find() is None
    slow_disk.down()  # nothing is there any more


def device_of(mount):
    return Path(describe_medium(mount).device).name


def counted_reads(mount):
    """Return how many reads of the device the kernel let the group do."""
    number = procfs.text(f"/sys/block/{device_of(mount)}/dev").strip()
    group = slow_disk.cgroup_folder()
    if slow_disk.find_tree()[1] == 1:
        lines = (group / "blkio.throttle.io_serviced").read_text().splitlines()
        return sum(int(line.split()[2]) for line in lines if line.startswith(f"{number} Read"))
    line = (group / "io.stat").read_text().partition(number)[2]
    return int(line.partition("rios=")[2].split()[0]) if line else 0


@needs_disk
def test_reads_of_those_who_joined_and_of_their_children_are_limited(place):
    mount = slow_disk.up(**ROOM)
    files = sorted((mount / slow_disk.CHECKS).iterdir())[1:21]

    def read_all():
        for path in files:
            path.read_bytes()

    def join_and_read():
        slow_disk.join(slow_disk.cgroup_folder())
        answer(read_all)

    for reader, least, most in ((read_all, 0, 0), (join_and_read, 20, 30)):
        for path in files:
            evict(path)
        before = counted_reads(mount)
        answer(reader)
        assert least <= counted_reads(mount) - before <= most


def bunches(slices, per_slice, begun_s=100.0):
    """Reads that the kernel lets through at the beginning of each slice of 0.1 s, 1 ms apart."""
    reads = [
        (begun_s + 0.1 * slice_ + 0.001 * n, 1)
        for slice_ in range(slices)
        for n in range(per_slice)
    ]
    return [(begun_s, reads[::2]), (begun_s, reads[1::2])]  # of two processes


def test_a_disks_rate_is_counted_over_whole_slices():
    for slices in (10, 12, 20):
        rate = slow_disk._delivered_per_s(bunches(slices, 8))
        assert rate == pytest.approx(80.0)


@pytest.mark.parametrize("slices", [5, 7])
def test_a_few_slices_have_no_rate(slices):
    with pytest.raises(OSError, match=r"reads were over within 0\.\d s, which is too short"):
        slow_disk._delivered_per_s(bunches(slices, 8))


@needs_disk
@pytest.mark.alone
def test_what_was_requested_is_delivered(place, monkeypatch):
    monkeypatch.setattr(slow_disk, "SEQUENTIAL_BYTES", 128 << 20)
    mount = slow_disk.up(**ROOM)

    def error_share():
        rates = slow_disk.on_throttled(mount).measure(None, (), 2, "fork", 1.0)
        assert [(rate.pattern, rate.unit, rate.readers) for rate in rates] == [
            ("random", "files", 2), ("sequential", "bytes", 1),
        ]  # fmt: skip
        assert [rate.requested_per_s for rate in rates] == [81, 81 * (1280 << 10)]
        return max(rate.error_share for rate in rates)

    # As a run does: another program may use the disk for a moment.
    assert any(error_share() < MAX_RATE_ERROR_SHARE for _ in range(RATE_TRIES))


@needs_disk
def test_a_living_runs_disk_is_left_alone_and_a_killed_runs_is_removed(
    place, somebody_elses, monkeypatch
):
    is_up = multiprocessing.Event()

    def own():
        slow_disk.up(**ROOM)
        is_up.set()
        signal.pause()

    owner = start(own)
    assert is_up.wait(PATIENCE_S)
    with monkeypatch.context() as patch:
        patch.setattr(slow_disk, "WAIT_S", 0.2)
        reason = f"throttled disk: {place} is in use by another run; wait until that has ended"
        with pytest.raises(Skip, match=reason):
            slow_disk.up(**ROOM)
        with pytest.raises(OSError, match=reason):
            slow_disk.down()
    assert slow_disk.find() is not None
    owner.kill()
    owner.join()
    slow_disk.down()
    assert traces(place) == []


KILLED_IN_A_CONTAINER = """
import os, sys
from pathlib import Path
from labkit.parts.storage import slow_disk
slow_disk.FOLDER = Path(sys.argv[1])
slow_disk.SEQUENTIAL_BYTES, slow_disk.CHECK_FILES = 1 << 20, 2
slow_disk.up(data_bytes=3_000_000, files=30)
os.kill(os.getpid(), 9)
"""


@needs_disk
def test_killed_with_its_container_it_leaves_no_loop_device(place):
    """The mount ends with the last process of its namespace."""
    command = [sys.executable, "-c", KILLED_IN_A_CONTAINER, str(place)]
    subprocess.run([*with_mounts_of_its_own(), *command], check=False)
    assert (place / slow_disk.IMAGE).exists()  # it was up
    until(lambda: devices_below(place) == [])


def kill_at(number, action):
    """Run in another process that kills itself before its nth change; say whether it got there."""
    changes = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "subprocess.Popen")

    def die_in_time(event, arguments):
        nonlocal number
        writing = event == "open" and isinstance(arguments[1], str) and arguments[1] != "r"
        number -= event in changes or writing
        if number == 0:
            signal.raise_signal(signal.SIGKILL)  # os.kill would be an event again

    def hooked():
        sys.addaudithook(die_in_time)
        action()

    process = start(hooked)
    process.join()
    return process.exitcode == -signal.SIGKILL


@needs_disk
def test_killed_at_any_step_it_leaves_nothing_after_the_next_start(
    place, somebody_elses, monkeypatch
):
    monkeypatch.setattr(slow_disk, "CHECK_FILES", 2)
    steps = {"up": 0, "down": 0}
    while kill_at(steps["up"] + 1, lambda: slow_disk.up(**ROOM)):
        steps["up"] += 1
        slow_disk.down()
        assert traces(place) == [], f"killed at change {steps['up']}"
    while kill_at(steps["down"] + 1, slow_disk.down):
        steps["down"] += 1
        slow_disk.up(**ROOM)
        slow_disk.down()
        assert traces(place) == [], f"killed at change {steps['down']}"
        answer(lambda: slow_disk.up(**ROOM))
    assert steps["up"] > 15
    assert steps["down"] > 5


def fake_tool(tmp_path, monkeypatch, name, text):
    tool = tmp_path / "bin" / name
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")


@needs_disk
@pytest.mark.parametrize("tool", ["losetup", "mount"])
def test_a_step_that_is_refused_skips_with_its_reason_and_leaves_nothing(
    place, tmp_path, monkeypatch, tool
):
    text = f"echo '{tool}: permission denied.\nmore' >&2; exit 32"
    if tool == "losetup":  # asking is allowed
        text = f'[ "$1" = --find ] || exec {slow_disk._tool("losetup")} "$@"; {text}'
    fake_tool(tmp_path, monkeypatch, tool, text)
    reason = f"^throttled disk: {tool}: permission denied; compare with storage=modelled_hdd "
    with pytest.raises(Skip, match=reason):
        slow_disk.up(**ROOM)
    assert traces(place) == []


def test_the_reason_why_there_is_no_disk_comes_without_the_advice(photos, monkeypatch):
    monkeypatch.setattr(slow_disk, "why_no_slow_disk", lambda: "needs root; or a capability")
    assert slow_disk.why_not_throttled(open_folder(photos)) == "needs root; or a capability"
    with pytest.raises(Skip, match=r"^throttled disk: needs root; .*; compare with ") as skip:
        slow_disk.up(**ROOM)
    again = pickle.loads(pickle.dumps(skip.value))
    assert (str(again), again.reason) == (str(skip.value), "needs root; or a capability")


@needs_disk
def test_a_disk_that_does_not_fit_is_refused_with_numbers(place):
    with pytest.raises(Skip, match=r"must have 1.2 TB free for .*, got .* [GT]B; free some space"):
        slow_disk.up(data_bytes=10**12, files=30)


@needs_disk
def test_folders_that_are_not_ours_are_refused_and_left_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(slow_disk, "WAIT_S", 0.1)
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "photo.jpg").write_text("theirs")
    monkeypatch.setattr(slow_disk, "FOLDER", folder)
    message = "must be empty or an earlier disk's, got photo.jpg"
    with pytest.raises(Skip, match=message):
        slow_disk.up(**ROOM)
    with pytest.raises(OSError, match=message):
        slow_disk.down()
    assert (folder / "photo.jpg").read_text() == "theirs"
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.setattr(slow_disk, "FOLDER", tmp_path / "link")
    with pytest.raises(Skip, match=r"throttled disk: .*link"):
        slow_disk.up(**ROOM)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setattr(slow_disk, "FOLDER", open_to_all)
    with pytest.raises(Skip, match="must be this user's, and writable by nobody else"):
        slow_disk.up(**ROOM)


@needs_disk
def test_other_users_and_other_powers_are_told_why_not():
    program = "from labkit.parts.storage import slow_disk; print(slow_disk.why_no_slow_disk())"
    bounded = ["setpriv", "--bounding-set", "-sys_admin", sys.executable, "-c", program]
    assert "needs the capability CAP_SYS_ADMIN" in shell(*bounded).stdout

    def as_stranger():
        os.setuid(STRANGER)
        return slow_disk.why_no_slow_disk()

    assert answer(as_stranger) == "needs root"


# --- control groups of version 2: a made-up tree of plain files ---------------------------------


def test_version_2_gets_one_line_with_both_limits_once_io_is_switched_on(tmp_path, monkeypatch):
    # Source: cgroup-v2.rst: "+name" enables a controller; "$MAJ:$MIN" and then key=value.
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    mount = SimpleNamespace(mountpoint=str(tmp_path), fstype="cgroup2", opts="rw")
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [mount])
    mkdir = Path.mkdir

    def mkdir_with_files(self, *arguments, **options):
        mkdir(self, *arguments, **options)
        if "io" in (tmp_path / "cgroup.subtree_control").read_text():
            (self / "io.max").touch()

    monkeypatch.setattr(Path, "mkdir", mkdir_with_files)
    assert slow_disk.find_tree() == (tmp_path, 2)
    group = slow_disk.cgroup_folder()
    assert group.parent == tmp_path
    slow_disk._make_group(group, "7:0")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+io"
    assert (group / "io.max").read_text() == "7:0 rbps=154000000 riops=81"
