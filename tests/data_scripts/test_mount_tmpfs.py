"""mount_tmpfs.sh: it hides no files, promises no memory that is not there, and its lines work."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "data_scripts" / "mount_tmpfs.sh"
NASTY = "my 'own' \"földer\" \\040\\n\twith tab"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, where tmpfs is")


def script(*arguments, **options):
    return subprocess.run(["sh", SCRIPT, *arguments], capture_output=True, text=True, **options)


def line_after(output, start):
    lines = output.splitlines()
    return lines[next(n for n, line in enumerate(lines) if line.startswith(start)) + 1]


def is_mount(folder):
    return subprocess.run(["mountpoint", "-q", folder]).returncode == 0


@pytest.fixture
def mounting(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    place = tmp_path / NASTY
    place.mkdir()
    tried = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"this machine lets root mount nothing: {tried.stderr.strip()}")
    subprocess.run(["umount", place], check=True)
    yield place
    while is_mount(place):
        subprocess.run(["umount", place], check=True)


def test_it_mounts_what_it_says_for_whoever_called_sudo_and_umount_undoes_it(mounting):
    mounting.rmdir()  # it is made
    done = script(mounting, "10M", env={**os.environ, "SUDO_UID": "1234", "SUDO_GID": "56"})
    assert (done.returncode, done.stderr) == (0, "")
    assert f"mounted: {mounting}\n" in done.stdout
    assert shutil.disk_usage(mounting).total == 10 << 20
    stat = mounting.stat()
    assert (stat.st_mode & 0o777, stat.st_uid, stat.st_gid) == (0o755, 1234, 56)
    assert "uid=1234,gid=56" in line_after(done.stdout, "fstab:")
    again = script(mounting, "1M")
    assert again.returncode == 1
    assert f"must not be a mount point, got {mounting}" in again.stderr
    undo = done.stdout.splitlines()[-1].removeprefix("undo:")
    subprocess.run(["sh", "-c", undo], check=True)
    assert not is_mount(mounting)


def test_a_check_changes_nothing_and_its_lines_for_fstab_and_labkit_toml_are_valid(tmp_path):
    done = script("--check", tmp_path / NASTY, "10M")
    assert done.returncode == 0
    assert "would mount: mount -t tmpfs -o size=10M," in done.stdout
    assert list(tmp_path.iterdir()) == []
    # Source: fstab(5): blanks in a path are written as octal numbers.
    source, target, kind, options, *rest = line_after(done.stdout, "fstab:").split(" ")
    assert (source, kind, rest) == ("tmpfs", "tmpfs", ["0", "0"])
    assert options.split(",")[0] == "size=10M"
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\134", "\\")):
        target = target.replace(code, character)
    assert target == str(tmp_path / NASTY)
    place = tmp_path / NASTY.replace("\t", " ")
    line = line_after(script("--check", place, "10M").stdout, "labkit:")
    assert tomllib.loads(line) == {"tmpfs": str(place)}


def test_bad_folders_are_refused_in_words(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".hidden").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for folder, reason in {
        tmp_path / "full": f"got files in {tmp_path}/full, which the mount would hide",
        tmp_path / "full" / ".hidden": "which is something else",
        tmp_path / "dangling": "which is something else",
        tmp_path / "no/such": "must lie in a folder that exists",
        "/proc": "must not be a mount point",
        "": "got an empty one",
        f"{tmp_path}/two\nlines": "in one line",
    }.items():
        refused = script("--check", folder, "10M")
        assert refused.returncode == 1
        assert refused.stderr.startswith("error: FOLDER must ")
        assert reason in refused.stderr


@pytest.mark.parametrize("size", ["", "10", "0M", "1.5G", "50%", "1G,uid=0", "1G\n2G"])
def test_sizes_that_mount_would_misread_are_refused(tmp_path, size):
    refused = script("--check", tmp_path / "new", size)
    assert refused.returncode == 1
    assert f"SIZE must be a whole number followed by K, M or G, got '{size}'" in refused.stderr


def test_without_root_or_with_wrong_arguments_it_says_so():
    # From standard input, because root's folders are closed to others.
    stranger = {"user": 65534} if os.geteuid() == 0 else {}
    command = ["sh", "-s", "/var/tmp/no-such-folder", "1M"]
    text = SCRIPT.read_text()
    done = subprocess.run(command, input=text, capture_output=True, text=True, **stranger)
    assert done.returncode == 1
    assert "mounting needs root; run it with sudo" in done.stderr
    assert "usage: mount_tmpfs.sh [--check] FOLDER SIZE" in script("/mnt/x").stderr
