"""The throttled disk for real: it limits who joined, and leaves nothing, however it ends.

Reference: the kernel's own lists of mounts, loop devices and control groups, and its count
of the reads that a group was let through.  A disk, mount and group of somebody else's stand
beside it all the time, and have to be the same afterwards.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.media import describe_medium
from labkit.pagecache import evict
from labkit.parts.storage import blkio, loop_disk, slow_folder, throttled
from labkit.trial import Skip

pytestmark = [
    pytest.mark.skipif(bool(throttled.why_not()), reason=f"a throttled disk {throttled.why_not()}"),
    pytest.mark.alone,
]

ROOM = {"data_bytes": 3_000_000, "files": 30}
STRANGER = 65534


def shell(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)


def devices_below(place):
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [Path("/dev", file.parts[3]) for file in files if str(place) in file.read_text()]


def traces(place):
    """List what the kernel knows of a disk in a folder, and the folder itself."""
    mounts = Path("/proc/self/mountinfo").read_text().replace("\\040", " ").splitlines()
    paths = [path for path in (place, throttled.cgroup_folder(place)) if path.exists()]
    return [line for line in mounts if str(place) in line] + devices_below(place) + paths


def clean(place):
    """Remove by hand what a broken test left."""
    group = throttled.cgroup_folder(place)
    for pid in blkio.processes(group):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while loop_disk.mounted(place / "mount"):
        subprocess.run(["umount", "--lazy", place / "mount"], check=False)
    for device in devices_below(place):
        subprocess.run(["losetup", "--detach", device], check=False)
    with contextlib.suppress(OSError):
        blkio.remove(group)


@pytest.fixture
def place(tmp_path, monkeypatch):
    if describe_medium(tmp_path).in_memory:
        pytest.skip("the temporary directory is in memory, where there is no direct I/O")
    monkeypatch.setattr(slow_folder, "SEQUENTIAL_BYTES", 16 << 20)
    monkeypatch.setattr(slow_folder, "CHECK_FILES", 40)
    folder = tmp_path / "slow dísk"
    yield folder
    with contextlib.suppress(OSError):
        throttled.down(folder)
    left = traces(folder)
    clean(folder)
    assert left == []


@pytest.fixture
def somebody_elses(tmp_path):
    """A loop device with a mount and a control group that are not ours; checked at the end."""
    image, point = tmp_path / "other.img", tmp_path / "other"
    group = throttled.cgroup_folder().with_name(f"not-labkit-{os.getpid()}")
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(4 << 20)
    shell("mkfs.ext4", "-q", "-F", image)
    device = shell("losetup", "--find", "--show", image).stdout.strip()
    try:
        shell("mount", device, point)
        group.mkdir()
        (point / "file").write_text("theirs")
        yield point
        assert (point / "file").read_text() == "theirs"
        assert loop_disk.backed_by(Path(device), image)
        assert group.is_dir()
    finally:
        subprocess.run(["umount", point], check=False)
        shell("losetup", "--detach", device)
        group.rmdir()


def in_child(action):
    """Start a function in a forked process; a pipe says when it is over."""
    ended, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        return pid, ended
    try:
        os.close(ended)
        slow_folder._owned.clear()
        os.write(told, str(action()).encode())
    except BaseException as error:
        os.write(told, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(0)


def wait_for(path):
    deadline_s = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def answer(action):
    """Give what a function says in another process."""
    pid, ended = in_child(action)
    with os.fdopen(ended) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text


@contextlib.contextmanager
def living_run(place):
    """Have another process that owns a disk."""

    def own():
        throttled.up(**ROOM, owner="run", folder=place)
        Path(place.parent / "up").touch()
        time.sleep(60)

    pid, ended = in_child(own)
    try:
        wait_for(place.parent / "up")
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ended)


def test_it_is_a_real_disk_with_limits_and_goes_without_a_trace(place, somebody_elses):
    disk = throttled.up(**ROOM, owner="run", folder=place)
    assert disk == throttled.find(place)
    assert disk.owned
    assert disk.owner == f"run {os.getpid()}"
    medium = describe_medium(disk.mount)
    assert (medium.filesystem, medium.device) == ("ext4", str(disk.device))
    assert medium.readahead_kb * 1024 == disk.request_bytes
    assert medium.free_bytes >= 1.05 * ROOM["data_bytes"]
    (disk.mount / "data").write_bytes(bytes(ROOM["data_bytes"]))
    removed = throttled.down(place)
    assert [line.split(" /")[0] for line in removed] == [
        "control group", "mount", "loop device", "image",
    ]  # fmt: skip
    assert traces(place) == []
    assert throttled.find(place) is None
    assert throttled.down(place) == []


def counted_reads(disk):
    """Ask the kernel how many reads of the device it let the group do."""
    if disk.cgroup_version == 1:
        lines = (disk.cgroup / "blkio.throttle.io_serviced").read_text().splitlines()
        return sum(int(s.split()[2]) for s in lines if s.startswith(f"{disk.device_number} Read"))
    line = (disk.cgroup / "io.stat").read_text().partition(disk.device_number)[2]
    return int(line.partition("rios=")[2].split()[0]) if line else 0


def test_reads_of_those_who_joined_and_of_their_children_are_limited(place):
    disk = throttled.up(**ROOM, owner="run", folder=place)
    files = sorted((disk.mount / slow_folder.CHECKS).iterdir())[1:21]

    def read_all():
        for path in files:
            path.read_bytes()

    def join_and_read():
        throttled.join(disk.cgroup)
        return answer(read_all)

    for reader, least, most in ((read_all, 0, 0), (join_and_read, 20, 30)):
        for path in files:
            evict(path)
        before = counted_reads(disk)
        assert answer(reader) == "None"
        assert least <= counted_reads(disk) - before <= most


def test_measuring_says_what_was_requested_and_what_came(place, monkeypatch):
    monkeypatch.setattr(slow_folder, "SEQUENTIAL_BYTES", 64 << 20)
    disk = throttled.up(**ROOM, owner="run", folder=place)
    rates = throttled.measure(disk, readers=2, seconds=0.5)
    assert [(rate.pattern, rate.unit, rate.readers) for rate in rates] == [
        ("random", "files", 2), ("sequential", "bytes", 1),
    ]  # fmt: skip
    assert [rate.requested_per_s for rate in rates] == [81, disk.sequential_bytes_per_s]
    for rate in rates:
        off = abs(rate.delivered_per_s / rate.requested_per_s - 1)
        assert rate.error_share == pytest.approx(off)
    with pytest.raises(ValueError, match="readers must be 1 to 40, got 0"):
        throttled.measure(disk, readers=0)
    with pytest.raises(ValueError, match=r"seconds must be at least 0\.5, got 0\.2"):
        throttled.measure(disk, seconds=0.2)


def test_a_persons_disk_stays_and_runs_use_it(place):
    answer(lambda: throttled.up(**ROOM, owner="person", folder=place))
    assert throttled.remove_leftovers(place) == []
    disk = throttled.up(**ROOM, owner="run", folder=place)
    assert (disk.owner, disk.owned) == ("person", False)
    reason = "must have room for 4.0 MB in 30 files, got 3.0 MB in 30; make a larger one with: "
    with pytest.raises(Skip, match=reason):
        throttled.up(data_bytes=4_000_000, files=30, owner="run", folder=place)
    assert throttled.find(place) == disk


def test_a_living_runs_disk_is_left_alone_and_a_killed_runs_is_removed(
    place, somebody_elses, monkeypatch
):
    monkeypatch.setattr(slow_folder, "WAIT_S", 0.1)
    with living_run(place) as pid:
        reason = f"throttled disk: {place} is in use by run {pid}; wait until that has ended"
        with pytest.raises(Skip, match=reason):
            throttled.up(**ROOM, owner="run", folder=place)
        with pytest.raises(OSError, match=reason):
            throttled.down(place)
        assert throttled.remove_leftovers(place) == []
        assert throttled.find(place).owner == f"run {pid}"
    assert len(throttled.remove_leftovers(place)) == 4
    assert traces(place) == []


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

    pid, ended = in_child(hooked)
    os.close(ended)
    status = os.waitpid(pid, 0)[1]
    return os.WIFSIGNALED(status)


def test_killed_at_any_step_it_leaves_nothing_after_the_next_start(
    place, somebody_elses, monkeypatch
):
    monkeypatch.setattr(slow_folder, "SEQUENTIAL_BYTES", 1 << 20)
    monkeypatch.setattr(slow_folder, "CHECK_FILES", 2)
    steps = {"up": 0, "down": 0}
    while kill_at(steps["up"] + 1, lambda: throttled.up(**ROOM, owner="person", folder=place)):
        steps["up"] += 1
        throttled.remove_leftovers(place)
        assert traces(place) == [], f"killed at change {steps['up']}"
    while kill_at(steps["down"] + 1, lambda: throttled.down(place)):
        steps["down"] += 1
        throttled.up(**ROOM, owner="run", folder=place)
        throttled.down(place)
        assert traces(place) == [], f"killed at change {steps['down']}"
        answer(lambda: throttled.up(**ROOM, owner="person", folder=place))
    assert steps["up"] > 15
    assert steps["down"] > 5


def fake_tool(tmp_path, monkeypatch, name, text):
    tool = tmp_path / "bin" / name
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")


def test_a_tool_that_outlives_its_killed_caller_is_waited_for(place, tmp_path, monkeypatch):
    begun = tmp_path / "begun"
    text = f'touch {begun}; sleep 0.5; PATH=/usr/sbin:/sbin:/usr/bin:/bin; losetup "$@"'
    fake_tool(tmp_path, monkeypatch, "losetup", text)
    pid, ended = in_child(lambda: throttled.up(**ROOM, owner="run", folder=place))
    os.close(ended)
    wait_for(begun)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert any("loop device" in line for line in throttled.remove_leftovers(place))
    assert traces(place) == []


@pytest.mark.parametrize("tool", ["mkfs.ext4", "losetup", "mount", "sync"])
def test_a_step_that_is_refused_skips_with_its_reason_and_leaves_nothing(
    place, tmp_path, monkeypatch, tool
):
    fake_tool(tmp_path, monkeypatch, tool, f"echo '{tool}: permission denied.\nmore' >&2; exit 32")
    reason = f"^throttled disk: {tool}: permission denied; compare with storage=modelled_hdd "
    with pytest.raises(Skip, match=reason):
        throttled.up(**ROOM, owner="run", folder=place)
    assert traces(place) == []


def test_a_control_group_that_is_refused_skips_with_its_reason(place, monkeypatch):
    def refuse(tree, group, settings):
        group.mkdir()
        raise PermissionError(13, "Permission denied", str(group))

    monkeypatch.setattr(blkio, "make", refuse)
    group = throttled.cgroup_folder(place)
    with pytest.raises(Skip, match=f"throttled disk: permission denied: {group}; compare"):
        throttled.up(**ROOM, owner="run", folder=place)
    assert traces(place) == []
    with pytest.raises(Skip, match=f"no such file or directory: {group}/cgroup.procs; compare"):
        throttled.join(group)


def test_what_cannot_be_like_a_hard_disk_is_refused_with_numbers(place, monkeypatch):
    with pytest.raises(Skip, match=r"must have 1.1 TB free, got .* [GT]B; free some space"):
        throttled.up(data_bytes=10**12, files=30, owner="run", folder=place)
    monkeypatch.setattr(loop_disk, "largest_request_bytes", lambda device: 128 << 10)
    with pytest.raises(Skip, match=r"requests of at most 131 KB, .* slower in sequence"):
        throttled.up(**ROOM, owner="run", folder=place)


def test_down_names_processes_that_are_still_in_the_group_and_ends_none(place, monkeypatch):
    monkeypatch.setattr(blkio, "WAIT_S", 0.1)
    disk = throttled.up(**ROOM, owner="person", folder=place)
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            (disk.cgroup / "cgroup.procs").write_text(str(sleeper.pid))
            reason = f"processes {sleeper.pid} are still in it; end them first"
            with pytest.raises(OSError, match=reason):
                throttled.down(place)
            assert sleeper.poll() is None
            assert throttled.find(place) == disk
        finally:
            sleeper.kill()
    assert throttled.down(place)


def test_files_in_use_stop_down_until_they_are_closed(place, monkeypatch):
    monkeypatch.setattr(loop_disk, "WAIT_S", 0.1)
    disk = throttled.up(**ROOM, owner="run", folder=place)
    with (disk.mount / "open").open("w"):
        with pytest.raises(OSError, match=r"target is busy; then take it down again with: "):
            throttled.down(place)
    assert throttled.down(place)


def test_somebody_elses_mount_on_ours_is_left_alone(place):
    disk = throttled.up(**ROOM, owner="run", folder=place)
    shell("mount", "-t", "tmpfs", "tmpfs", disk.mount)
    try:
        assert throttled.find(place) is None
        with pytest.raises(OSError, match=f"something else is mounted on {disk.mount}; unmount it"):
            throttled.down(place)
        assert len(loop_disk.mounted(disk.mount)) == 2
    finally:
        shell("umount", disk.mount)
    assert throttled.down(place)


@pytest.mark.parametrize("length", [0, 30, 100])
def test_a_half_written_state_is_a_leftover(place, somebody_elses, length):
    throttled.up(**ROOM, owner="person", folder=place)
    os.truncate(place / slow_folder.STATE, length)
    assert throttled.find(place) is None
    assert len(throttled.remove_leftovers(place)) == 4
    assert traces(place) == []


def test_a_disk_without_its_limits_is_not_throttled(place):
    disk = throttled.up(**ROOM, owner="person", folder=place)
    disk.cgroup.rmdir()
    assert throttled.find(place) is None
    assert throttled.up(**ROOM, owner="person", folder=place).cgroup.is_dir()


def test_folders_that_are_not_ours_are_refused_and_left_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(slow_folder, "WAIT_S", 0.1)
    for name in ("photo.jpg", slow_folder.IMAGE):
        folder = tmp_path / name.replace(".", " ")
        folder.mkdir()
        (folder / name).write_text("theirs")
        with pytest.raises(Skip, match=f"must be empty or an earlier disk's, got {name}"):
            throttled.up(**ROOM, owner="run", folder=folder)
        assert throttled.remove_leftovers(folder) == []
        assert (folder / name).read_text() == "theirs"
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(Skip, match=r"throttled disk: .*link"):
        throttled.up(**ROOM, owner="run", folder=tmp_path / "link")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(Skip, match="must be this user's, and writable by nobody else"):
        throttled.up(**ROOM, owner="run", folder=open_to_all)


def test_a_label_is_the_same_before_and_while_it_is_up(place):
    before = throttled.describe(place)
    disk = throttled.up(**ROOM, owner="run", folder=place)
    assert throttled.describe(place) == before
    megabytes = disk.sequential_bytes_per_s / 1e6
    assert before == f"7200 rpm: 81 reads/s, {megabytes:.0f} MB/s"


def test_other_users_and_other_powers_are_told_why_not(place):
    def as_stranger():
        os.setuid(STRANGER)
        with contextlib.suppress(Skip):
            throttled.up(**ROOM, owner="run", folder=place)
        return throttled.why_not(), throttled.describe(), throttled.find()

    reason, label, found = eval(answer(as_stranger))
    assert (reason, found) == ("needs root", None)
    assert label.startswith("7200 rpm: 81 reads/s, ")
    program = "from labkit.parts.storage import throttled; print(throttled.why_not())"
    bounded = ["setpriv", "--bounding-set", "-sys_admin", sys.executable, "-c", program]
    assert "needs the capability CAP_SYS_ADMIN" in shell(*bounded).stdout


def test_the_state_is_json_that_names_everything_that_is_there(place):
    disk = throttled.up(**ROOM, owner="run", folder=place)
    state = json.loads((place / slow_folder.STATE).read_text())
    for name in ("mount", "device", "cgroup"):
        assert Path(state[name]) == getattr(disk, name)
    assert place.stat().st_mode & 0o777 == 0o700
