"""The disks that stand in, beside each other: delivered over requested rates.

    python -m benchmarks.media [--data FOLDER] [--seconds 2]

The throttled disk (the kernel limits real reads, needs root on Linux) and the modelled ones (the
reader waits) are read at random by 1, 2, 4 and 8 processes and in sequence by one.  Every rate must
be within 5 %.
"""

import sys
from collections.abc import Iterator

from benchmarks import frame
from labkit import units
from labkit.contracts import Skip
from labkit.resolve import complete_here
from labkit.runs.staging import check_rates, staged
from labkit.settings import MODES, Settings

IMAGES = 200
STORAGES = ("throttled", "modelled_hdd", "modelled_ssd")
READERS = (1, 2, 4, 8)


def settings_for(storage: str, data: str, readers: int) -> Settings:
    settings = Settings(data=data, storage=storage, num_workers=readers)
    return complete_here(settings, MODES["quick"])


def rates_of(storage: str, data: str, seconds: float) -> Iterator[dict[str, object]]:
    for readers in READERS:
        for rate in check_rates(settings_for(storage, data, readers), seconds=seconds):
            if rate["pattern"] == "random" or readers == 1:
                yield rate


def main() -> int:
    options = frame.parser(__doc__, data=True, seconds=2.0).parse_args()
    report = frame.Report("Delivered over requested rates of the disks that stand in", options)
    measured = []
    with frame.photographs(options.data, IMAGES) as (data, _):
        for storage in STORAGES:
            try:
                with staged(settings_for(storage, str(data), 1), say=print) as facts:
                    report.line(f"{storage}: {facts['label']}")
                    for rate in rates_of(storage, str(data), options.seconds):
                        got, wanted = rate["delivered_per_s"], rate["requested_per_s"]
                        report.limit(
                            not rate["refused"],
                            f"{storage}, {rate['pattern']}, {rate['readers']} readers: "
                            f"{got / wanted:.3f}, {units.delivered(got, wanted, rate['unit'])}",
                        )
                        measured.append({"storage": storage, **rate})
            except Skip as reason:
                report.line(f"{storage}: skipped: {reason}")
    return report.finish(measured)


if __name__ == "__main__":
    sys.exit(main())
