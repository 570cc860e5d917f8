"""What the kernel allows on this machine, asked without labkit.

A test that skipped where labkit says that it cannot do something would not notice that labkit is
wrong.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest

TRIES = 5  # a page in use for a moment is not dropped
FORKS = sys.platform == "linux"
needs_fork = pytest.mark.skipif(not FORKS, reason="labkit forks on Linux alone")
needs_read_counts = pytest.mark.skipif(
    not os.access("/proc/self/io", os.R_OK), reason="no /proc/self/io counts what is read"
)


def why_not_evicted(folder: Path) -> str:
    """Write a file and drop it from the page cache; return why that cannot be seen, if so."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(os.urandom(20 * mmap.PAGESIZE))
            file.flush()
            os.fsync(file.fileno())
            written = resident_share(Path(file.name))
            for _ in range(TRIES):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                dropped = resident_share(Path(file.name))
                if not dropped:
                    break
                time.sleep(0.1)
    except (AttributeError, OSError) as error:
        return f"the kernel does not say what the page cache holds: {error}"
    if (written, dropped) == (1, 0):
        return ""
    return "the temporary directory is not on a disk whose files can be evicted"


def resident_share(path: Path) -> float:
    """Return the share of a file's pages that mincore(2) calls resident."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Mapped for writing, which ctypes needs for the address; nothing is written.
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        length = ctypes.c_size_t(len(mapped))
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), length, pages)
        del start  # or the map could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) / len(pages)


def why_no_device(folder: Path) -> str:
    """Return why no device counts the reads of a folder's files, if so."""
    number = folder.stat().st_dev
    counts = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    return "" if counts.exists() else "no device counts the reads of the temporary directory"


def with_mounts_of_its_own() -> list[str]:
    """Return what starts a command whose mounts nobody else sees; skip where that cannot be."""
    before = ["unshare", "--mount", "--propagation", "private"]
    # In a chroot the root folder is no mount, and its propagation cannot be changed.
    if not shutil.which("unshare") or subprocess.run([*before, "true"]).returncode:
        pytest.skip("unshare cannot do this here")
    return before


@cache
def why_no_throttled_disk() -> str:
    """Mount a disk in a file and make a control group for its reads; return why not, if so."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux can mount a disk in a file"
    tools = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    with tempfile.TemporaryDirectory() as folder:
        image, point = Path(folder, "image"), Path(folder, "point")
        image.write_bytes(bytes(1 << 20))
        point.mkdir()
        commands = (["mkfs.ext4", "-q", "-F", image], ["mount", "-o", "loop", image, point])
        for name, *words in commands:
            program = shutil.which(name, path=tools)
            if program is None:
                return f"there is no {name} here"
            done = subprocess.run([program, *words], capture_output=True, text=True)
            if done.returncode:
                return f"no disk in a file can be mounted here: {done.stderr.strip()}"
        subprocess.run(["umount", point], check=True)
    return why_no_group("io")


@cache
def why_no_group(controller: str) -> str:
    """Make a control group that limits "cpu" or "io"; return why that is not possible, if so."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux can make control groups"
    for mount in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options, *_ = mount.split()
        # Version 1 has a tree for each controller, and calls this one otherwise.
        name = {"io": "blkio"}.get(controller, controller)
        if kind == "cgroup2" or (kind == "cgroup" and name in options.split(",")):
            if _can_limit(Path(point), controller if kind == "cgroup2" else ""):
                return ""
    return f"no control group that limits {controller} can be made here"


def _can_limit(tree: Path, handed_down: str) -> bool:
    group = tree / f"labkit-tests-{os.getpid()}"
    limits = ("io.max", "cpu.max", "blkio.throttle.read_iops_device", "cpu.cfs_quota_us")
    try:
        if handed_down:
            (tree / "cgroup.subtree_control").write_text(f"+{handed_down}")
            limits = (f"{handed_down}.max",)
        group.mkdir()
        return any((group / name).exists() for name in limits)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()
