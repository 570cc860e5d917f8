"""Disturbance: what else the machine did while a trial was measured.

    before = disturbance()  ─▶  the trial  ─▶  since(before): a dict that the row keeps

Shared and virtual machines are the main source of noise, so each row records stolen time, other
programs and swapping, for which `analysis.validity` leaves blocks out (EVIDENCE 1).  What cannot be
read is None, never 0.  In a container the counters are those of the whole host, because its other
programs disturb, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from labkit.machine import helper, procfs
from labkit.machine.usage import own_cpu_s


def disturbance() -> dict[str, float | None]:
    """Take a snapshot of the machine's counters, for `since`."""
    import psutil

    times = psutil.cpu_times()._asdict()
    # Guest time is part of user and nice time.
    cpu_s = sum(times.values()) - sum(times.get(name, 0.0) for name in ("guest", "guest_nice"))
    # In these no program of this machine ran.
    idle_s = sum(times.get(name, 0.0) for name in ("idle", "iowait", "steal"))
    pages = procfs.counters("/proc/vmstat")
    return {
        "clock_s": time.monotonic(),
        "cpu_s": cpu_s,
        "busy_s": cpu_s - idle_s,
        "own_s": _own_s(),
        "steal_s": times.get("steal"),
        "swapped_in_pages": pages.get("pswpin"),
        "swapped_out_pages": pages.get("pswpout"),
    }


def since(before: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return what disturbed the machine since a snapshot; None where that is unknown.

    Args:
        before: from `disturbance`, taken in this process.

    Returns:
        duration_s; steal_share (of all CPU time); other_cores (cores kept busy by programs
        that are not this process, its children or the run's own helpers); and swapped pages.
    """
    now = disturbance()
    spent: dict[str, Any] = {
        name: None if now[name] is None or value is None else now[name] - value
        for name, value in before.items()
    }
    duration_s = max(spent["clock_s"], 1e-9)
    other_cores = steal_share = None
    if spent["cpu_s"]:  # some sandboxes show counters that never count
        if spent["steal_s"] is not None:
            steal_share = max(spent["steal_s"] / spent["cpu_s"], 0.0)
        # All count in hundredths of a second, at different moments.
        other_cores = max(spent["busy_s"] - spent["own_s"], 0.0) / duration_s
    return {
        "duration_s": duration_s,
        "steal_share": steal_share,
        "other_cores": other_cores,
        "swapped_in_pages": spent["swapped_in_pages"],
        "swapped_out_pages": spent["swapped_out_pages"],
    }


def _own_s() -> float:
    """Return the CPU seconds of this process, its children and the run's helpers."""
    import psutil

    own_s = own_cpu_s()
    for number in helper.pids():
        try:
            own_s += sum(psutil.Process(number).cpu_times()[:2])
        except psutil.Error:
            continue  # it has ended: its time now counts as another program's
    return own_s
