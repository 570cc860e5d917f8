"""A file system that answers as slowly as a network's: a folder, shown through FUSE with delays.

    python -m benchmarks.environments.slow_files FOLDER MOUNT_POINT

Every call to the server takes a millisecond more, as NFS in a local network does; the kernel keeps
pages and attributes as it does for NFS.  Needs libfuse and mfusepy, which labkit does not use.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable

CALL_S = 0.001
ATTRIBUTES_S = 3.0  # acregmin of nfs(5): how long the kernel answers without asking the server


def serve(folder: str, point: str) -> None:
    """Serve the folder until it is unmounted."""
    import mfusepy

    class SlowFiles(mfusepy.Operations):
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            status = os.lstat(folder + path)
            names = ("mode", "nlink", "uid", "gid", "size", "blocks", "ino")
            times = {f"st_{x}time": getattr(status, f"st_{x}time_ns") for x in "amc"}
            return {f"st_{name}": getattr(status, f"st_{name}") for name in names} | times

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *os.listdir(folder + path)]  # noqa: PTH208 - names are wanted

        def statfs(self, path: str) -> dict[str, int]:
            filesystem = os.statvfs(folder + path)
            return {
                name: getattr(filesystem, name) for name in dir(filesystem) if name.startswith("f_")
            }

        def create(self, path: str, mode: int, fi: object = None) -> int:
            return os.open(folder + path, os.O_RDWR | os.O_CREAT, mode)

        def open(self, path: str, flags: int) -> int:
            # The kernel has applied O_APPEND to the offset already.
            return os.open(folder + path, flags & ~os.O_APPEND)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            return os.pwrite(fh, data, offset)

        def truncate(self, path: str, length: int, fh: int | None = None) -> None:
            os.truncate(folder + path, length)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

        def fsync(self, path: str, datasync: int, fh: int) -> None:
            os.fsync(fh)

        def rename(self, old: str, new: str) -> None:
            os.rename(folder + old, folder + new)  # noqa: PTH104 - as all others here

        def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
            os.utime(folder + path, ns=times)

        def symlink(self, target: str, source: str) -> None:
            os.symlink(source, folder + target)  # noqa: PTH211 - as all others here

        def readlink(self, path: str) -> str:
            return os.readlink(folder + path)  # noqa: PTH115 - a string is wanted

        def link(self, target: str, source: str) -> None:
            os.link(folder + source, folder + target)

        mkdir = _on_path(folder, os.mkdir)
        rmdir = _on_path(folder, os.rmdir)
        unlink = _on_path(folder, os.unlink)
        chmod = _on_path(folder, os.chmod)
        chown = _on_path(folder, os.chown)

    for name, method in list(vars(SlowFiles).items()):
        if callable(method):
            setattr(SlowFiles, name, _delayed(method))
    # NFS keeps a file's pages until its time changes; FUSE calls that auto_cache.
    kept = {"auto_cache": True, "attr_timeout": ATTRIBUTES_S, "entry_timeout": ATTRIBUTES_S}
    mfusepy.FUSE(SlowFiles(), point, foreground=True, allow_other=True, **kept)


def _on_path(folder: str, call: Callable[..., None]) -> Callable[..., None]:
    return lambda self, path, *more: call(folder + path, *more)


def _delayed(method: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(method)
    def later(*arguments: object) -> object:
        time.sleep(CALL_S)
        return method(*arguments)

    return later


if __name__ == "__main__":
    serve(*sys.argv[1:])
