"""Disks that are simulated where a machine has none of their kind, and how rates are proved.

    Disk ──▶ slow_disk: the kernel limits real reads to its figures
         ──▶ modelled:  our own reader waits as long as it would take
    Rate: what a simulated disk should deliver, and what processes that read at once measured

A hard disk has one arm: however many processes read, seeks come one after the other. So `channels`
is 1 there, and adding workers must not help.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

A = TypeVar("A")
R = TypeVar("R")

Pattern = Literal["random", "sequential", "round trips", "together", "to the other ranks"]
Unit = Literal["files", "bytes", "requests", "Mbit"]

# COCO val2017's mean JPEG; what "random reads per second" means below.
TYPICAL_FILE_BYTES = 114_660


@dataclass(frozen=True, kw_only=True)
class Disk:
    """What a disk is able to do."""

    name: str
    access_s: float
    """From the request to the first byte of a read that does not follow the one before."""
    bytes_per_s: float
    """Once it reads; shared by all channels."""
    channels: int
    """Accesses that may be under way at once."""

    def files_per_s(self, file_bytes: float = TYPICAL_FILE_BYTES, readers: int = 1) -> float:
        """How many files in random places it reads in a second.

        Args:
            file_bytes: mean size of a file.
            readers: processes that read at the same time, each one file after the other.
        """
        transfer_s = file_bytes / self.bytes_per_s
        alone = self.access_s + transfer_s
        if alone == 0:
            return math.inf
        # A channel is held until its bytes are through, and only one transfers at a time.
        together = min(readers, self.channels) / alone
        return min(together, 1 / transfer_s) if transfer_s else together


# Access: average read seek 7.4 ms (WD Ultrastar DC HC310 specification) and half a turn at
# 7200 rpm, 4.16 ms; bandwidth: storagereview's WD Black 4 TB.
HARD_DISK = Disk(
    name="7200 rpm",
    access_s=7.4e-3 + 4.16e-3,
    bytes_per_s=154e6,
    channels=1,
)
# Samsung 870 EVO data sheet: 13,000 reads/s one at a time and 98,000 with 32 under way, so eight
# channels.
SATA_SSD = Disk(
    name="SATA SSD",
    access_s=77e-6,
    bytes_per_s=560e6,
    channels=8,
)
# Samsung 970 EVO Plus data sheet: 19,000 reads/s one at a time and 600,000 with 32 under way.
NVME_SSD = Disk(
    name="NVMe Gen3",
    access_s=53e-6,
    bytes_per_s=3.5e9,
    channels=32,
)
# Reads take the time that they really take.
MEMORY = Disk(
    name="memory",
    access_s=0.0,
    bytes_per_s=math.inf,
    channels=1,
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What a simulated disk should deliver here, and what it did."""

    pattern: Pattern
    unit: Unit
    readers: int
    """Processes that read at the same time."""
    requested_per_s: float
    """Infinite where nothing is waited for."""
    delivered_per_s: float

    @property
    def error_share(self) -> float:
        """How far off it is, in either direction; 0.05 is 5 %."""
        if math.isinf(self.requested_per_s):
            return 0.0
        return abs(self.delivered_per_s / self.requested_per_s - 1)

    def facts(self) -> dict[str, object]:
        """Return what `run.json` records; a rate without a limit is None there."""
        requested_per_s = None if math.isinf(self.requested_per_s) else self.requested_per_s
        facts = {"requested_per_s": requested_per_s, "error_share": self.error_share}
        return asdict(self) | facts


def measure_together(
    measure: Callable[[A], R], arguments: Sequence[A], start_method: str
) -> list[R]:
    """Call a function in a process for each argument, all beginning at the same time.

    Args:
        measure: travels to the processes as they start, so it may hold shared memory.
        arguments: one for each process.
        start_method: how the processes are started.

    Returns:
        What the calls returned, in the order of the arguments.
    """
    context = multiprocessing.get_context(start_method)
    begin = context.Barrier(len(arguments))
    with ProcessPoolExecutor(len(arguments), context, _receive, (measure, begin)) as processes:
        return list(processes.map(_measure, arguments))


_received: tuple = ()  # in a process of `measure_together`


def _receive(*what: object) -> None:
    global _received
    _received = what


def _measure(argument: object) -> Any:
    measure, begin = _received
    # Two minutes: a spawned process imports for seconds.  Who waits takes no second argument.
    begin.wait(120)
    return measure(argument)
