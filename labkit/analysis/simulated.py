"""The hardware that a run simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import units
from labkit.analysis.summary import Row, Summary
from labkit.records import Hardware


def describe_rate(rate: Mapping[str, Any]) -> str:
    """Return what simulated hardware delivered: "41.0 of 81.0 files/s random with 8 readers"."""
    wanted = rate["requested_per_s"]
    measured = units.delivered(rate["delivered_per_s"], wanted, rate["unit"])
    readers = f" with {units.count(rate['readers'], 'reader')}" if rate["readers"] else ""
    return f"{measured} {rate['pattern']}{readers}{', no limit' if wanted is None else ''}"


def simulated_hardware(rows: Sequence[Row]) -> dict[str, str]:
    """Return what was simulated in any of the rows.

    Returns:
        Name -> details, as "throttled storage" -> "81 reads/s"; empty where all was real.
    """
    details: dict[str, dict[str, None]] = {}
    for hardware in (hardware for row in rows for hardware in row.hardware):
        if hardware.is_simulated:
            details.setdefault(hardware.name, {})[hardware.details] = None
    return {name: ", ".join(filter(None, each)) for name, each in details.items()}


def simulated(rows: Sequence[Row]) -> str:
    """Return what was simulated in any of the rows: "simulated GPU and storage"; "" for none."""
    kinds = {hardware.kind for row in rows for hardware in row.hardware if hardware.is_simulated}
    names = {"device": "GPU", "storage": "storage", "network": "network"}
    words = [name for kind, name in names.items() if kind in kinds]
    return f"simulated {' and '.join(words)}" if words else ""


def warnings(summary: Summary) -> list[str]:
    """List simulated hardware and unconfirmed storage, with the variants unless it is all of them.

    Returns:
        Lines such as "Simulated GPU, 460 images/s (2.1 × the loading rate, 219 images/s)"; empty
        where everything is real.
    """
    measured = [row for row in summary.rows if row.hardware]
    lines: dict[str, list[Row]] = {}
    for kind in ("device", "storage", "network"):
        for row in measured:
            for hardware in row.hardware:
                if hardware.kind == kind and hardware.how != "real":
                    line = _line(summary, measured, row, hardware)
                    lines.setdefault(line[0].upper() + line[1:], []).append(row)
    return [
        line if len(rows) == len(measured) else f"{line}: {_names(rows, measured)}"
        for line, rows in lines.items()
    ]


def _line(summary: Summary, measured: Sequence[Row], row: Row, hardware: Hardware) -> str:
    if hardware.kind == "device" and (summary.kind == "roofline" or summary.at_speeds):
        rate = summary.calibration.load_images_per_s
        loads = f"; the baseline alone loads {units.rate(rate)}" if rate else ""
        # Rows that load alone have no device, and so no x.
        own_rate = next((x.load_images_per_s for x in summary.rows if x.load_images_per_s), None)
        if rate and own_rate and units.rate(own_rate) != units.rate(rate):
            loads += f", in the trials {units.rate(own_rate)}: x = 1 is {rate / own_rate:.2f}"
        return f"{hardware.name} at several speeds{loads}"
    if hardware.kind == "device":
        x = beside_the_loader([other for other in measured if hardware in other.hardware])
        return f"{hardware} ({x})" if x else str(hardware)
    # Its variants are named by the details.
    return hardware.name if hardware.details == row.name else str(hardware)


def beside_the_loader(rows: Sequence[Row]) -> str:
    """Return "2.1 × the loading rate, 219 images/s": x and the rows' own; "" if not known."""
    known = sorted((row for row in rows if row.x is not None), key=lambda row: row.x)
    if not known:
        return ""
    least, most = f"{known[0].x:.1f}", f"{known[-1].x:.1f}"
    if float(most) <= 1:
        return "loading keeps up with it"
    if least != most:  # of several groups
        return f"{least} to {most} × the loading rate"
    return f"{most} × the loading rate, {units.rate(known[0].load_images_per_s)}"


def _names(rows: Sequence[Row], measured: Sequence[Row]) -> str:
    """Return which variants: their names, or how many of all there are."""
    names, every = ([*dict.fromkeys(row.name for row in some)] for some in (rows, measured))
    listed = "; ".join(names)  # each once for all groups
    if len(names) <= 4 and len(listed) <= 60:
        return listed
    return f"{len(names)} of {len(every)} variants"
