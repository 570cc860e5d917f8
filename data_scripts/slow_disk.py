"""Put up a disk that the kernel slows down to a hard disk's rates, and measure it.

    python data_scripts/slow_disk.py          root on Linux; Enter or Ctrl-C takes it down again

A run with `--storage throttled` puts one up for itself; this one is for a look. Only processes that
join its control group are slowed down: what else reads from the disk, such as `cat`, reads at full
speed.
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
        folder: where the disk is made.

    Returns:
        The exit status: 0; 1 after an error and where a rate is more than 5 % off.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=2.0, help="room for data (%(default)s)")
    is_off = False
    data_bytes = round(parser.parse_args(arguments).gb * 1e9)
    try:
        # Photographs are seldom smaller than a quarter of the typical size.
        disk = slow_disk.up(
            data_bytes=data_bytes, files=4 * data_bytes // TYPICAL_FILE_BYTES, folder=folder
        )
        try:
            print(f"up: {disk.mount} on {disk.device}, limited by {disk.cgroup}")
            is_off = _print_rates(disk)
            input("Enter takes it down: ")
        except (KeyboardInterrupt, EOFError):
            print()
        finally:
            slow_disk.down(folder)
    except (OSError, Skip) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(is_off)


def _print_rates(disk: slow_disk.SlowDisk) -> bool:
    """Measure and print requested and delivered rates; return whether one is too far off."""
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
    return any(rate.refused for rate in rates)


if __name__ == "__main__":
    sys.exit(main())
