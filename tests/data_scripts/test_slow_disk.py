"""slow_disk.py: what a person sees of the throttled disk, and the exit status."""

import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from data_scripts import slow_disk
from labkit.media import describe_medium
from labkit.parts.storage import slow_folder, throttled
from labkit.parts.storage.disks import Rate

pytestmark = pytest.mark.alone
SCRIPT = Path(__file__).parents[2] / "data_scripts" / "slow_disk.py"


@pytest.fixture
def place(tmp_path, monkeypatch):
    if reason := throttled.why_not():
        pytest.skip(f"a throttled disk {reason}")
    if describe_medium(tmp_path).in_memory:
        pytest.skip("the temporary directory is in memory, where there is no direct I/O")
    folder = tmp_path / "slow"
    yield folder
    throttled.down(folder)
    assert not folder.exists()


def call(capsys, *arguments, folder):
    status = slow_disk.main(list(map(str, arguments)), folder=folder)
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_up_status_down(place, capsys):
    status, out, _ = call(capsys, "status", folder=place)
    assert (status, out) == (1, "not up; `up` puts it up\n")
    status, out, _ = call(capsys, "up", "--gb", 0.01, folder=place)
    assert status == 0
    disk = throttled.find(place)
    assert disk.room_bytes == 10_000_000
    sentence = f"up: {disk.mount} on {disk.device}, put up by a person, room for 10 MB of data"
    assert out.startswith(sentence)
    assert str(disk.cgroup) in out
    assert call(capsys, "up", "--gb", 0.01, folder=place)[:2] == (0, out)
    status, out, _ = call(capsys, "down", folder=place)
    assert status == 0
    assert [line.split(" /")[0] for line in out.splitlines()] == [
        "removed: control group", "removed: mount", "removed: loop device", "removed: image",
    ]  # fmt: skip
    assert call(capsys, "down", folder=place)[:2] == (0, "nothing to take down\n")


def rate(pattern, unit, requested_per_s, delivered_per_s):
    return Rate(
        pattern=pattern,
        unit=unit,
        readers=1,
        requested_per_s=requested_per_s,
        delivered_per_s=delivered_per_s,
    )


@pytest.mark.parametrize("error_share", [0.012, 0.06])
def test_status_shows_what_was_requested_and_what_was_measured(
    place, capsys, monkeypatch, error_share
):
    def measured(disk):  # how fast this machine is at the moment is no matter for a test
        return [
            rate("random", "files", 81.0, 81 * (1 - error_share)),
            rate("sequential", "bytes", 106.2e6, 106.2e6),
        ]

    monkeypatch.setattr(throttled, "measure", measured)
    call(capsys, "up", "--gb", 0.01, folder=place)
    status, out, _ = call(capsys, "status", folder=place)
    assert status == (error_share > 0.05)
    assert "limits: 81 reads/s, 154 MB/s\n" in out
    assert re.search(r"a request reads .* at most, so reading in sequence can reach \d+ MB/s", out)
    rows = [line.split() for line in out.splitlines()[-2:]]
    off = f"{error_share:.1%}".removesuffix("%")
    files = f"{81 * (1 - error_share):.1f}"
    assert rows[0] == ["random", "1", "81.0", "files/s", files, "files/s", off, "%"]
    assert rows[1] == ["sequential", "1", "106.2", "MB/s", "106.2", "MB/s", "0.0", "%"]


def test_status_really_measures(place, capsys):
    call(capsys, "up", "--gb", 0.01, folder=place)
    _, out, _ = call(capsys, "status", folder=place)
    assert [line.split()[0] for line in out.splitlines()[-3:]] == [
        "pattern", "random", "sequential",
    ]  # fmt: skip


@contextlib.contextmanager
def another_process(*lines):
    """Have another process that says a word when it is ready, and sleeps."""
    program = "\n".join([*lines, "print('ready', flush=True)", "time.sleep(60)"])
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def test_status_leaves_a_runs_disk_in_peace_and_knows_what_a_killed_one_left(
    place, capsys, monkeypatch
):
    monkeypatch.setattr(slow_folder, "WAIT_S", 0.1)
    with another_process(
        "import time; from pathlib import Path; from labkit.parts.storage import throttled",
        f"throttled.up(data_bytes=1000, files=1, owner='run', folder=Path({str(place)!r}))",
    ) as pid:
        status, out, _ = call(capsys, "status", folder=place)
        assert status == 0
        assert f"\nin use by run {pid}, whose measurement a second one would spoil" in out
        assert "pattern" not in out
    status, out, _ = call(capsys, "status", folder=place)
    assert status == 1
    assert "\na leftover: that run is no more; " in out
    status, out, _ = call(capsys, "up", "--gb", 0.01, folder=place)
    assert status == 0
    assert "removed a leftover: loop device" in out


def test_status_leaves_whoever_reads_from_a_persons_disk_in_peace(place, capsys):
    call(capsys, "up", "--gb", 0.01, folder=place)
    group = throttled.find(place).cgroup
    with another_process(
        "import time; from pathlib import Path; from labkit.parts.storage import throttled",
        f"throttled.join(Path({str(group)!r}))",
    ) as pid:
        status, out, _ = call(capsys, "status", folder=place)
    assert status == 0
    assert f"\nin use by process {pid}, whose measurement a second one would spoil" in out
    assert "pattern" not in out


def test_room_is_made_for_a_folder(place, tmp_path, capsys):
    data = tmp_path / "data" / "images"
    data.mkdir(parents=True)
    for number in range(3):
        (data / f"{number}.jpg").write_bytes(bytes(1000))
    assert call(capsys, "up", "--data", data.parent, folder=place)[0] == 0
    disk = throttled.find(place)
    assert (disk.room_bytes, disk.room_files) == (3000, 3)


def test_a_leftover_is_named_when_it_goes(place, capsys):
    call(capsys, "up", "--gb", 0.01, folder=place)
    throttled.find(place).cgroup.rmdir()
    status, out, _ = call(capsys, "up", "--gb", 0.01, folder=place)
    assert status == 0
    assert f"removed a leftover: mount {place / 'mount'}\n" in out


def test_a_disk_that_is_too_small_is_refused_with_numbers(place, capsys):
    call(capsys, "up", "--gb", 0.01, folder=place)
    status, _, err = call(capsys, "up", "--gb", 0.02, folder=place)
    assert status == 1
    assert "must have room for 20 MB" in err
    assert "got 10 MB" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--gb", 0], "gb must be more than 0, got 0"),
        (["--gb", "nan"], "gb must be more than 0, got nan"),
        (["--data", "no/such"], "data must be a folder with files, got no/such"),
    ],
)
def test_bad_room_is_refused_in_one_line(tmp_path, capsys, arguments, reason):
    status, out, err = call(capsys, "up", *arguments, folder=tmp_path / "slow")
    assert (status, out) == (1, "")
    assert err.startswith(f"error: {reason}")
    assert err.count("\n") == 1


def test_ctrl_c_leaves_nothing(place, capsys, monkeypatch):
    def interrupt(point, lock):
        raise KeyboardInterrupt

    monkeypatch.setattr(slow_folder, "_write_checks", interrupt)
    assert call(capsys, "up", "--gb", 0.01, folder=place) == (130, "", "stopped\n")
    assert not place.exists()


@pytest.mark.parametrize("command", ["up", "status", "down"])
def test_without_root_it_says_so_and_what_instead(command):
    if sys.platform != "linux":
        reason = "needs Linux"
    else:
        reason = "needs root"
    with tempfile.TemporaryDirectory() as folder:
        program = (
            f"import os, sys; sys.path.insert(0, {str(SCRIPT.parents[1])!r})\n"
            "from data_scripts import slow_disk; from pathlib import Path\n"
            "if hasattr(os, 'geteuid') and os.geteuid() == 0: os.setuid(65534)\n"
            f"sys.exit(slow_disk.main([{command!r}], folder=Path({folder!r}, 'slow')))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: throttled disk: {reason}; compare with storage=modelled_hdd instead\n"
    )


def test_it_runs_from_a_shell():
    done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for command in ("up", "status", "down"):
        assert command in done.stdout
