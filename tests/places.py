"""Places to copy to: small file systems of their own, made where a test may; what lies there."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.parts.packing.folder import open_folder

SHARED_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def memory_mounted(folder: Path, **options: object) -> Iterator[Path]:
    """Mount a tmpfs of its own for as long as the context lasts; skip where that is not allowed.

    Args:
        folder: made if missing.
        **options: tmpfs's own, as ``size="1m"`` or ``nr_inodes=20``.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    folder.mkdir(exist_ok=True)
    chosen = ",".join(f"{name}={value}" for name, value in options.items())
    command = ["mount", "-t", "tmpfs", "-o", chosen or "rw", "labkit-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Make a folder in /dev/shm; skip where there is none."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        pytest.skip("this platform has no /dev/shm")
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        yield Path(folder)


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """List the files of a folder: path below it -> inode, time of the last change, content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            name = str(path.relative_to(folder))
            found[name] = (stat.st_ino, stat.st_ctime_ns, path.read_bytes())
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder: path below it -> bytes."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def make_coco(photos: Path, root: Path) -> Path:
    """Copy photographs to COCO's layout: the boxes' file lies outside the images' folder."""
    shutil.copytree(photos / "images", root / "val2017")
    (root / "annotations").mkdir()
    shutil.copy(photos / "annotations.json", root / "annotations" / "instances_val2017.json")
    return root / "val2017"


def assert_same_data(data: Path, other: Path) -> None:
    """Check that two folders hold the same images with the same boxes."""
    one, two = open_folder(data), open_folder(other)
    names = [[reader.name(i) for i in range(len(reader))] for reader in (one, two)]
    assert names[0] == names[1]
    assert (one.boxes, one.data_hash) == (two.boxes, two.data_hash)
    assert two.verify(range(len(two))) == []
    for i in range(len(one)):
        (jpeg, boxes), (other_jpeg, other_boxes) = one.read(i), two.read(i)
        assert jpeg == other_jpeg
        assert boxes.boxes_xyxy.tolist() == other_boxes.boxes_xyxy.tolist()
