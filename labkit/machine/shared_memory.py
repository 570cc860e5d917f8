"""Shared memory: how batches come from loader workers, and what killed workers leave there.

    loader worker ─ torch_<process>_… in /dev/shm, unlinked at once ─▶ training loop

torch makes a file per tensor and removes its name in the next moment.  Killed between the two, a
worker leaves as much memory as a batch has until the machine restarts.  So workers write their
process numbers down, and whoever ends a trial removes what they left.  Main trap: other programs
use torch too; nothing is removed that none of our own processes made.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from labkit import units

FOLDER = Path("/dev/shm")
# Where a server's loader workers write themselves down; inherited whatever the start method.
ROLL = "LABKIT_WORKER_ROLL"
PREFIX = "worker-"
DYING_S = 1.0  # how long a process that was sent SIGKILL may still be there


def usage() -> shutil._ntuple_diskusage | None:
    """Say how much there is and how much is free, in bytes; None where there is no such folder."""
    return shutil.disk_usage(FOLDER) if FOLDER.is_dir() else None


def open_roll(folder: str) -> None:
    """Have all loader workers started from here on write themselves down in a folder."""
    os.environ[ROLL] = folder


def note_worker() -> None:
    """Write this process down as a loader worker."""
    if folder := os.environ.get(ROLL):
        Path(folder, f"{PREFIX}{os.getpid()}").touch()


def remove_left(folder: str) -> None:
    """Remove what loader workers left in shared memory, and strike them off the roll.

    Args:
        folder: as given to `open_roll`; all its workers have ended, or have been sent SIGKILL.
    """
    deadline_s = time.monotonic() + DYING_S
    for entry in Path(folder).glob(f"{PREFIX}*"):
        pid = int(entry.name.removeprefix(PREFIX))
        while _is_alive(pid) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        for left in FOLDER.glob(f"torch_{pid}_*"):
            left.unlink(missing_ok=True)
        entry.unlink(missing_ok=True)


def why_full() -> str:
    """Say that batches found no room on their way; empty where there is no such folder."""
    room = usage()
    if room is None:
        return ""
    return (
        f"{FOLDER} must have room for the batches of all loader workers, got "
        f"{units.count_bytes(room.free)} free of {units.count_bytes(room.total)}; use fewer "
        "workers or a smaller batch, or give a container more with: docker run --shm-size=2g"
    )


def _is_alive(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
