"""Loop disk: a file that the kernel treats as a disk.

    image file ──losetup, direct I/O──▶ /dev/loop0 ──mount ext4──▶ folder

Direct I/O keeps the image itself out of memory, so a file evicted from the mounted disk is
cold for good.  Without a journal and with its tables written beforehand, the disk has no
traffic of its own.  Main trap: loop devices belong to the whole machine and are numbered as
they come, so a device counts as ours only if the kernel says that our image is behind it.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from labkit import procfs

# Where the tools lie on systems whose PATH leaves administrators' tools out.
MORE_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
TOOLS = {
    "losetup": "util-linux",
    "mount": "util-linux",
    "umount": "util-linux",
    "mkfs.ext4": "e2fsprogs",
}
BLOCK_BYTES = 4096
LOOP_GET_STATUS64 = 0x4C05  # linux/loop.h; the struct starts with the file's device and inode
STATUS_BYTES = 232
WAIT_S = 2.0  # for readers that are about to end
PAUSE_S = 0.05


class Failed(Exception):  # noqa: N818 - the reason, for whoever says it in a sentence
    """A step could not be done; the text is the tool's own reason."""


def missing_tool() -> str:
    """Name a tool that is not installed; empty where all are."""
    for name, package in TOOLS.items():
        if _tool(name) is None:
            return f"{name} (package {package})"
    return ""


def run(name: str, *arguments: str | Path, lock: int) -> str:
    """Run a tool, and give what it prints.

    Args:
        name: of the tool.
        *arguments: for it.
        lock: an open file whose lock the tool is to hold as well: should this process be
            killed, nobody else may begin before the tool has ended.

    Raises:
        Failed: it is not there, or says why it cannot.
    """
    try:
        done = subprocess.run(
            [_tool(name) or name, *map(str, arguments)],
            capture_output=True,
            env={**os.environ, "LC_ALL": "C"},
            errors="surrogateescape",
            pass_fds=[lock],
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise Failed(f"{name}: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"{name}: status {done.returncode}"]
        raise Failed(said[0].rstrip("."))
    return done.stdout.strip()


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}{os.pathsep}{MORE_PATH}")


def make_image(image: Path, size_bytes: int, files: int, *, lock: int) -> None:
    """Make the image: a hole with an empty ext4 in it.

    Raises:
        Failed, OSError: why not.
    """
    with image.open("xb") as file:
        file.truncate(size_bytes)
    # Small disks would get blocks of 1 KiB, and files in more pieces.
    options = ["-b", str(BLOCK_BYTES), "-m", "0", "-N", str(files)]
    options += ["-E", "lazy_itable_init=0,nodiscard", "-O", "^has_journal"]
    run("mkfs.ext4", "-q", "-F", *options, image, lock=lock)


def attach(image: Path, *, lock: int) -> Path:
    """Make an image a device, read past the page cache.

    Raises:
        Failed: why not.
    """
    device = Path(run("losetup", "--find", "--show", "--direct-io=on", image, lock=lock))
    if procfs.number(_sys(device) / "loop/dio") != 1:
        raise Failed(f"losetup: the disk under {image.parent} allows no direct I/O")
    return device


def device_number(device: Path) -> str:
    """Give a device's number as the kernel writes it, "7:0"."""
    return procfs.text(_sys(device) / "dev").strip()


def largest_request_bytes(device: Path | None = None) -> int | None:
    """Say how much one read request of a loop device can be; None where that is not known.

    Args:
        device: which; None: any, used or not.
    """
    folders = [_sys(device)] if device else sorted(Path("/sys/block").glob("loop*"))
    kib = procfs.number(folders[0] / "queue/max_sectors_kb") if folders else None
    return None if kib is None else kib * 1024


def set_read_ahead(device: Path, size_bytes: int) -> None:
    """Let sequential reads come in requests of one size.

    Raises:
        OSError: not allowed.
    """
    (_sys(device) / "queue/read_ahead_kb").write_text(str(size_bytes // 1024))


def mount(device: Path, point: Path, *, lock: int) -> None:
    """Mount a device.

    Raises:
        Failed: why not.
    """
    options = "noatime,nodev,nosuid,noexec"
    run("mount", "-t", "ext4", "-o", options, device, point, lock=lock)


def mounted(point: Path) -> list[str]:
    """List the numbers of the devices mounted on a folder, the uppermost last."""
    return [mount.device_number for mount in procfs.mounts() if mount.point == point]


def backed_by(device: Path, image: Path) -> bool:
    """Say whether the kernel reads an image for a device."""
    return procfs.text(_sys(device) / "loop/backing_file").rstrip("\n") == str(image)


def devices_of(image: Path) -> list[Path]:
    """List the devices that an image is behind.

    Raises:
        OSError: a device cannot be asked.
    """
    names = sorted(folder.name for folder in Path("/sys/block").glob("loop*"))
    named = [Path("/dev", name) for name in names if backed_by(Path("/dev", name), image)]
    # Another container's image can have the same path, but not the same inode.
    return [device for device in named if _status(device) == _identity(image)]


def _identity(image: Path) -> tuple[int, int]:
    stat = image.stat()
    return stat.st_dev, stat.st_ino


def _status(device: Path) -> tuple[int, int] | None:
    import fcntl  # only where there are loop devices

    try:
        file = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = fcntl.ioctl(file, LOOP_GET_STATUS64, bytes(STATUS_BYTES))
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):  # detached in this moment
            return None
        raise
    return struct.unpack_from("=QQ", status)


def unmount(point: Path, *, lock: int) -> None:
    """Unmount what is uppermost on a folder, after a little while if it is in use.

    Raises:
        Failed: it still is.
    """
    _insist(lambda: run("umount", point, lock=lock))


def detach(device: Path, image: Path, *, lock: int) -> None:
    """Take the image from its device.

    Raises:
        Failed: it is in use, as where a person has mounted it somewhere else too.
    """

    def step() -> None:
        run("losetup", "--detach", device, lock=lock)
        # With users left the kernel says yes, and detaches it when the last one goes.
        if backed_by(device, image):
            raise Failed(f"losetup: {device} is in use, mounted somewhere else perhaps")

    if backed_by(device, image):
        _insist(step)


def _insist(step: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            step()
            return
        except Failed:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(PAUSE_S)


def _sys(device: Path) -> Path:
    return Path("/sys/block", device.name)
