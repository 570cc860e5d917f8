"""Put up, look at or take down a disk that the kernel slows down to a hard disk's rates.

    python data_scripts/slow_disk.py up --data data/photos     root on Linux
    labkit run --storage throttled …                           as often as you like
    python data_scripts/slow_disk.py status | down

A run that finds none puts one up for itself and takes it down again; this one stays, up to
`down` or the next start of the machine.  Main trap: only labkit's own trials are slowed down.
What else reads from the disk, such as `cat`, reads at full speed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from labkit import units
from labkit.parts.storage import throttled
from labkit.parts.storage.disks import TYPICAL_FILE_BYTES
from labkit.trial import Skip

DEFAULT_GB = 2.0


def main(arguments: list[str] | None = None, *, folder: Path = throttled.FOLDER) -> int:
    """Run from a shell.

    Args:
        arguments: instead of the command line's.
        folder: where the disk is, or is made.

    Returns:
        The exit status: 0; 1 after an error, and of `status` also where the disk is not up, a
        leftover, or its rates are off; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    put_up = commands.add_parser("up", help="put it up, or say that it is")
    size = put_up.add_mutually_exclusive_group()
    size.add_argument("--gb", type=float, default=DEFAULT_GB, help="room for data (%(default)s)")
    size.add_argument("--data", metavar="DIR", help="room for this folder's files")
    commands.add_parser("status", help="say what is up, and measure it; takes 3 s")
    commands.add_parser("down", help="take it down, with all that is on it")
    given = parser.parse_args(arguments)
    try:
        if given.command == "up":
            return up(folder, *_room(given))
        return {"status": status, "down": down}[given.command](folder)
    except (ValueError, OSError, Skip) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def up(folder: Path, data_bytes: int, files: int) -> int:
    """Put it up to stay, and say where it is."""
    _check_able()
    for what in throttled.remove_leftovers(folder):
        print(f"removed a leftover: {what}")
    disk = throttled.up(data_bytes=data_bytes, files=files, owner="person", folder=folder)
    print(_sentence(disk))
    return 0


def status(folder: Path) -> int:
    """Say what is up, and how fast it is."""
    disk = throttled.find(folder)
    if disk is None:
        _check_able()  # only root sees one
        print("not up; `up` puts it up")
        return 1
    print(_sentence(disk))
    print(f"limits: {disk.reads_per_s} reads/s, {units.count_bytes(disk.bytes_per_s)}/s")
    request, most = (
        units.count_bytes(size) for size in (disk.request_bytes, disk.sequential_bytes_per_s)
    )
    print(f"a request reads {request} at most, so reading in sequence can reach {most}/s")
    if user := throttled.user(disk):
        print(f"in use by {user}, whose measurement a second one would spoil: not measured")
        return 0
    if disk.owner != throttled.PERSON:
        print("a leftover: that run is no more; the next one removes it, and so do `up` and `down`")
        return 1
    print(f"\n{'pattern':<12}{'readers':>7}{'requested':>16}{'measured':>16}{'off':>9}")
    rates = throttled.measure(disk)
    for rate in rates:
        scale, unit = (1e6, "MB") if rate.unit == "bytes" else (1, rate.unit)
        requested, measured = (
            f"{per_s / scale:.1f} {unit}/s"
            for per_s in (rate.requested_per_s, rate.delivered_per_s)
        )
        off = units.percent(rate.error_share)
        print(f"{rate.pattern:<12}{rate.readers:>7}{requested:>16}{measured:>16}{off:>9}")
    return int(any(rate.refused for rate in rates))


def down(folder: Path) -> int:
    """Take it down, whole or not."""
    _check_able()
    removed = throttled.down(folder)
    for what in removed:
        print(f"removed: {what}")
    if not removed:
        print("nothing to take down")
    return 0


def _check_able() -> None:
    if reason := throttled.why_not():
        raise Skip(f"throttled disk: {reason}; {throttled.INSTEAD}")


def _sentence(disk: throttled.SlowDisk) -> str:
    room = units.count_bytes(disk.room_bytes)
    return (
        f"up: {disk.mount} on {disk.device}, put up by a {disk.owner}, room for {room} of data, "
        f"limited by {disk.cgroup} (version {disk.cgroup_version})"
    )


def _room(given: argparse.Namespace) -> tuple[int, int]:
    """Say for how many bytes in how many files there must be room."""
    if given.data is None:
        if not given.gb > 0:
            raise ValueError(f"gb must be more than 0, got {given.gb:g}")
        data_bytes = round(given.gb * 1e9)
        return data_bytes, 4 * data_bytes // TYPICAL_FILE_BYTES  # photographs are seldom smaller
    sizes = [
        (Path(parent) / name).stat().st_size
        for parent, _, names in os.walk(given.data)
        for name in names
    ]
    if not sizes:
        raise ValueError(f"data must be a folder with files, got {given.data}; make the data first")
    return sum(sizes), len(sizes)


if __name__ == "__main__":
    sys.exit(main())
