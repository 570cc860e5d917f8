"""Shared memory (/dev/shm): its size, and files that killed loader workers left there.

    loader worker ─ torch_<process id>_… in /dev/shm, unlinked at once ─▶ training loop

torch creates a file for each tensor and unlinks it at once.  A worker that is killed in between
leaves the memory of a batch occupied until the machine restarts.  So each worker writes down its
process id, and the process that ends a trial removes the files of these workers.  Files of other
programs that use torch stay.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from labkit import units
from labkit.contracts import Skip
from labkit.language import Text

FOLDER = Path("/dev/shm")
# Environment variable: the folder of the process ids; children inherit it by fork and by spawn.
ROLL = "LABKIT_WORKER_ROLL"
PREFIX = "worker-"
MORE = "give a container more with: docker run --shm-size=2g"


def usage() -> shutil._ntuple_diskusage | None:
    """Return total, used and free bytes; None where there is no such folder."""
    return shutil.disk_usage(FOLDER) if FOLDER.is_dir() else None


def open_roll(folder: str) -> None:
    """Have all loader workers that start from now on write down their process ids in a folder."""
    os.environ[ROLL] = folder


def note_worker() -> None:
    """Write down the process id of this loader worker."""
    if folder := os.environ.get(ROLL):
        Path(folder, f"{PREFIX}{os.getpid()}").touch()


def remove_left(folder: str) -> None:
    """Remove the files that loader workers left in shared memory, and their process ids.

    Args:
        folder: as given to `open_roll`; all its workers have ended, or have been sent SIGKILL.
    """
    deadline_s = time.monotonic() + 1.0  # a process may live on so long after SIGKILL
    for entry in Path(folder).glob(f"{PREFIX}*"):
        pid = int(entry.name.removeprefix(PREFIX))
        while _is_alive(pid) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        for left in FOLDER.glob(f"torch_{pid}_*"):
            # Containers may share the folder, and in each of them another process has this number.
            with suppress(OSError):
                if left.lstat().st_uid == os.geteuid():
                    left.unlink()
        entry.unlink(missing_ok=True)


def check_room(
    batch_bytes: int, *, workers: int, prefetch_factor: int, ranks: int = 1, advice: str = ""
) -> None:
    """Refuse loader workers whose batches may not fit.

    Args:
        batch_bytes: what one batch takes.
        workers: of each rank.
        prefetch_factor: how many batches each worker keeps ready.
        ranks: how many processes train.
        advice: what to do; empty: use as many workers as would fit, or a smaller batch.

    Raises:
        Skip: the text says what to do.
    """
    room = usage()
    if room is None or not workers or not batch_bytes:
        return
    batches = (workers * prefetch_factor + 1) * ranks  # one more, which is trained on
    needed_bytes = batches * batch_bytes
    if needed_bytes > room.free:
        fitting = (room.free // (batch_bytes * ranks) - 1) // prefetch_factor
        advice = advice or f"use num_workers {max(fitting, 0)} or a smaller batch"
        raise Skip(
            f"{FOLDER} must have room for {batches} batches of "
            f"{units.count_bytes(batch_bytes)}, got {units.count_bytes(room.free)} free of "
            f"{units.count_bytes(room.total)}; {advice}, or {MORE}"
        )


def why_full() -> str:
    """Return the error message for full shared memory; empty where there is no such folder."""
    room = usage()
    if room is None:
        return ""
    why = Text(
        "{folder} must have room for the batches of all loader workers, got {free} free of "
        "{total}; use fewer workers or a smaller batch, or {more}"
    )
    free, total = units.count_bytes(room.free), units.count_bytes(room.total)
    return why.format(folder=FOLDER, free=free, total=total, more=MORE)


def _is_alive(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
