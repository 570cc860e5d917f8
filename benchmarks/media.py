"""The disks that stand in, beside each other: requested against delivered rates.

The throttled disk (the kernel limits real reads, needs root on Linux) and the modelled one
(our reader waits) are read at random by 1, 2, 4 and 8 processes and in sequence by one.
Exits with 1 where a rate is more than 5 % off.

    python -m benchmarks.media [DATA] [--seconds S]
"""

import argparse
import sys

from labkit.contracts import Skip
from labkit.machine import hardware
from labkit.runs.staging import check_rates, staged
from labkit.settings import MODES, Settings, complete

STORAGES = ("throttled", "modelled_hdd", "modelled_ssd")
READERS = (1, 2, 4, 8)
MEGA = 1e6


def settings_for(storage: str, data: str, readers: int) -> Settings:
    return complete(
        Settings(data=data, storage=storage, num_workers=readers),
        MODES["quick"],
        cores=hardware.cores(),
        has_cuda=False,
        can_fork=hardware.can_fork(),
    )


def print_rates(storage: str, data: str, seconds: float) -> bool:
    """Measure one storage and print a line per pattern; say whether all are within 5 %."""
    whole = True
    with staged(settings_for(storage, data, 1), say=print) as facts:
        print(f"\n{storage}: {facts['label']}")
        for readers in READERS:
            for rate in check_rates(settings_for(storage, data, readers), seconds=seconds):
                if rate["pattern"] == "sequential" and readers > 1:
                    continue  # one reader only, and measured already
                scale, unit = (MEGA, "MB/s") if rate["unit"] == "bytes" else (1, "files/s")
                ratio = rate["delivered_per_s"] / rate["requested_per_s"]
                print(
                    f"  {rate['pattern']:10} {rate['readers']} readers"
                    f"  requested {rate['requested_per_s'] / scale:8.1f} {unit:7}"
                    f"  delivered {rate['delivered_per_s'] / scale:8.1f}  ratio {ratio:.3f}"
                    + ("  MORE THAN 5 % OFF" if rate["refused"] else "")
                )
                whole = whole and not rate["refused"]
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", default="data/photos")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    whole = True
    for storage in STORAGES:
        try:
            whole = print_rates(storage, options.data, options.seconds) and whole
        except Skip as reason:
            print(f"\n{storage}: skipped: {reason}")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
