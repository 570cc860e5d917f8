"""Disturbance: what else went on in the machine while a trial was measured.

    before = disturbance();  the trial;  since(before)  →  one dict of the row

A shared or virtual machine is the main source of noise, and the rows say so:
stolen time, other programs, swapping, page faults, waiting for memory or disks.  Whole blocks
may be set aside for such reasons and for no other (EVIDENCE 1).  Unreadable is
None, never 0.  Main trap: in a container /proc/stat counts the whole host; that
is meant here, since neighbours disturb wherever they run.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from labkit.machine import helper, procfs
from labkit.machine.usage import own_cpu_s, own_major_faults

# Order of the numbers in /proc/stat's first line (proc(5)); guest time is part of user time.
CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
BUSY_FIELDS = ("user", "nice", "system", "irq", "softirq")
CPU_FOLDER = Path("/sys/devices/system/cpu")


def disturbance() -> dict[str, float | None]:
    """Take a snapshot of the machine's counters, for `since`.

    Returns:
        JSON-able; `*_s`, `*_pages` and `*_faults` are counters, the rest is as of now.
    """
    ticks_per_s = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    numbers = procfs.text("/proc/stat").partition("\n")[0].split()[1:]
    cpu_s = {name: int(ticks) / ticks_per_s for name, ticks in zip(CPU_FIELDS, numbers)}
    pages = procfs.counters("/proc/vmstat")
    memory_kb = procfs.counters("/proc/meminfo").get("MemAvailable")
    return {
        "clock_s": time.monotonic(),
        "cpu_s": sum(cpu_s.values()) if cpu_s else None,
        "busy_s": sum(cpu_s[name] for name in BUSY_FIELDS) if cpu_s else None,
        "own_s": _own_s(),
        "steal_s": cpu_s.get("steal"),
        "cpu_pressure_s": _pressure_s("cpu"),
        "io_pressure_s": _pressure_s("io"),
        "memory_pressure_s": _pressure_s("memory"),
        "swapped_in_pages": pages.get("pswpin"),
        "swapped_out_pages": pages.get("pswpout"),
        "major_faults": own_major_faults(),
        "machine_major_faults": pages.get("pgmajfault"),
        "throttled_count": _throttled_count(),
        "load_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "cpu_hz": _cpu_hz(),
        "memory_available_bytes": None if memory_kb is None else memory_kb * 1024,
    }


def since(before: dict[str, float | None]) -> dict[str, float | None]:
    """Say what disturbed the machine since a snapshot; None where that is unknown.

    Args:
        before: from `disturbance`, taken in this process.

    Returns:
        duration_s; steal_share (of all CPU time); other_cores (cores kept busy by programs
        that are not this process, its children or the run's own helpers); cpu, io and memory
        pressure_share (of the time, in which some program waited for it); swapped pages;
        major_faults (pages that this process and its children had to wait for, memory-mapped
        files included) and those of the whole machine; throttled_count; and as of now
        load_1min, cpu_hz, memory_available_bytes.
    """
    now = disturbance()
    spent = {
        name: None if now[name] is None or value is None else now[name] - value
        for name, value in before.items()
    }
    duration_s = max(spent["clock_s"], 1e-9)

    def share(name: str, of: float | None) -> float | None:
        return None if spent[name] is None or not of else max(spent[name] / of, 0.0)

    other_cores = None
    # A sandbox's /proc/stat may be there and never count: that is no idle machine.
    if spent["cpu_s"] and spent["busy_s"] is not None and spent["own_s"] is not None:
        # Both count in hundredths of a second, at different moments.
        other_cores = max(spent["busy_s"] - spent["own_s"], 0.0) / duration_s
    return {
        "duration_s": duration_s,
        "steal_share": share("steal_s", spent["cpu_s"]),
        "other_cores": other_cores,
        "cpu_pressure_share": share("cpu_pressure_s", duration_s),
        "io_pressure_share": share("io_pressure_s", duration_s),
        "memory_pressure_share": share("memory_pressure_s", duration_s),
        "swapped_in_pages": spent["swapped_in_pages"],
        "swapped_out_pages": spent["swapped_out_pages"],
        # A child that ended and that nobody waited for takes its count along: unknown, not 0.
        "major_faults": None if (spent["major_faults"] or 0) < 0 else spent["major_faults"],
        "machine_major_faults": spent["machine_major_faults"],
        "throttled_count": spent["throttled_count"],
        "load_1min": now["load_1min"],
        "cpu_hz": now["cpu_hz"],
        "memory_available_bytes": now["memory_available_bytes"],
    }


def _own_s() -> float:
    """CPU seconds of this process, its children, and what the run keeps beside it."""
    import psutil

    own_s = own_cpu_s()
    for number in helper.pids():
        try:
            own_s += sum(psutil.Process(number).cpu_times()[:2])
        except psutil.Error:
            continue  # it has ended: what it took before is then another program's
    return own_s


def _pressure_s(what: str) -> float | None:
    """Seconds in which at least one program waited for cpu, io or memory."""
    some, _, total_us = procfs.text(f"/proc/pressure/{what}").partition("\n")[0].partition("total=")
    return int(total_us) / 1e6 if some.startswith("some") and total_us else None


def _throttled_count() -> int | None:
    """How often the packages slowed down for heat."""
    files = CPU_FOLDER.glob("cpu[0-9]*/thermal_throttle/package_throttle_count")
    counts = [count for file in files if (count := procfs.number(file)) is not None]
    return sum(counts) if counts else None


def _cpu_hz() -> float | None:
    """Mean frequency of the cores just now."""
    files = CPU_FOLDER.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
    found_khz = [khz for file in files if (khz := procfs.number(file)) is not None]
    return 1000.0 * sum(found_khz) / len(found_khz) if found_khz else None
