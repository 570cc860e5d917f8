"""Put up, look at or take down a disk that the kernel slows down to a hard disk's rates.

    python data_scripts/slow_disk.py up --data data/photos     root on Linux
    labkit run --storage throttled …                           as often as you like
    python data_scripts/slow_disk.py status | down

A run that finds none puts one up for itself and takes it down again; this one stays, up to
`down` or the next start of the machine. Only labkit's own trials are slowed down: what else reads
from the disk, such as `cat`, reads at full speed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from labkit import units
from labkit.contracts import Skip
from labkit.parts.storage import slow_disk
from labkit.parts.storage.disks import TYPICAL_FILE_BYTES


def main(arguments: list[str] | None = None, *, folder: Path = slow_disk.FOLDER) -> int:
    """Run from a shell.

    Args:
        arguments: instead of the command line's.
        folder: where the disk is, or is made.

    Returns:
        The exit status: 0; 1 after an error, and of `status` also where the disk is not up, a
        run's, or its rates are off; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    put_up = commands.add_parser("up", help="put it up")
    size = put_up.add_mutually_exclusive_group()
    size.add_argument("--gb", type=float, default=2.0, help="room for data (%(default)s)")
    size.add_argument("--data", metavar="DIR", help="room for this folder's files")
    commands.add_parser("status", help="measure the one that is up; takes 3 s")
    commands.add_parser("down", help="take it down, with all that is on it")
    given = parser.parse_args(arguments)
    try:
        if reason := slow_disk.why_not():
            raise Skip(f"throttled disk: {reason}; {slow_disk.INSTEAD}")
        if given.command == "up":
            data_bytes, files = _room(given)
            _print(slow_disk.up(data_bytes=data_bytes, files=files, owner="person", folder=folder))
        elif given.command == "down":
            removed = slow_disk.down(folder)
            print("\n".join(f"removed: {what}" for what in removed) or "nothing to take down")
        else:
            return status(folder)
    except (ValueError, OSError, Skip) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def status(folder: Path) -> int:
    """Print what is up, and how fast it is."""
    disk = slow_disk.find(folder)
    if disk is None:
        print("not up; `up` puts it up")
        return 1
    _print(disk)
    if disk.owner != slow_disk.PERSON:
        print(f"not measured: when {disk.owner} has ended, `down` or the next run removes it")
        return 1
    rates = slow_disk.measure(disk)
    print(f"\n{'pattern':<12}{'requested':>16}{'measured':>16}{'off':>9}")
    for rate in rates:
        scale, unit = (1e6, "MB") if rate.unit == "bytes" else (1, rate.unit)
        requested, measured = (
            f"{per_s / scale:.1f} {unit}/s"
            for per_s in (rate.requested_per_s, rate.delivered_per_s)
        )
        off = units.percent(rate.error_share)
        print(f"{rate.pattern:<12}{requested:>16}{measured:>16}{off:>9}")
    return int(any(rate.refused for rate in rates))


def _print(disk: slow_disk.SlowDisk) -> None:
    print(
        f"up: {disk.mount} on {disk.device}, put up by a {disk.owner}, room for "
        f"{units.count_bytes(disk.room_bytes)} of data, limited by {disk.cgroup} to "
        f"{slow_disk.READS_PER_S} reads/s"
    )


def _room(given: argparse.Namespace) -> tuple[int, int]:
    """Return for how many bytes in how many files there must be room."""
    if given.data is None:
        if not given.gb > 0:
            raise ValueError(f"gb must be more than 0, got {given.gb:g}")
        data_bytes = round(given.gb * 1e9)
        return data_bytes, 4 * data_bytes // TYPICAL_FILE_BYTES  # photographs are seldom smaller
    sizes = [path.stat().st_size for path in Path(given.data).rglob("*") if path.is_file()]
    if not sizes:
        raise ValueError(f"data must be a folder with files, got {given.data}; make the data first")
    return sum(sizes), len(sizes)


if __name__ == "__main__":
    sys.exit(main())
