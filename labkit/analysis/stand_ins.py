"""Stand-ins: what a run emulated, throttled or modelled in place of real hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import units
from labkit.analysis.summary import Row, Summary

# How the labels of stand-ins begin.
STAND_INS = {
    "accelerator": ("emulated",),
    "storage": ("throttled", "modelled", "emulated distance"),
    "network": ("modelled",),
}
SIMULATED_GPU = "simulated GPU"
# Shown as a warning: stand-ins, and storage whose kind is not known.
WARNED_OF = {**STAND_INS, "storage": (*STAND_INS["storage"], "unknown")}
MAX_NAMES = 4  # variants named in one line; more are counted


def split_label(label: str) -> tuple[str, str]:
    """Split "throttled(81 reads/s)" into the word and its details."""
    word, _, details = label.partition("(")
    return word.strip(), details.removesuffix(")")


def stand_in_name(kind: str, label: str) -> str:
    """Return "simulated GPU" for "emulated(460 images/s)", "throttled storage" for a disk."""
    word, _ = split_label(label)
    if (kind, word) == ("accelerator", "emulated"):
        return SIMULATED_GPU
    words = {"unknown": "unconfirmed", "emulated distance": "simulated remote"}
    return f"{words.get(word, word)} {kind}"


def describe_stand_in(kind: str, label: str) -> str:
    """Return "simulated GPU, 460 images/s" or "throttled storage (81 reads/s)"."""
    name, (_, details) = stand_in_name(kind, label), split_label(label)
    if kind == "accelerator":
        return ", ".join(filter(None, (name, details)))
    return f"{name} ({details})" if details else name


def describe_rate(rate: Mapping[str, Any]) -> str:
    """Return what a stand-in delivered: "41.0 of 81.0 files/s random with 8 readers"."""
    wanted = rate["requested_per_s"]
    measured = units.delivered(rate["delivered_per_s"], wanted, rate["unit"])
    readers = f" with {units.count(rate['readers'], 'reader')}" if rate["readers"] else ""
    return f"{measured} {rate['pattern']}{readers}{', no limit' if wanted is None else ''}"


def is_warned_of(kind: str, label: str) -> bool:
    """Return whether a label names a stand-in, or storage of unknown kind."""
    return any(part.startswith(WARNED_OF.get(kind, ())) for part in label.split(" / "))


def find_stand_ins(rows: Sequence[Row]) -> dict[str, str]:
    """Find what stood in for the real thing in any of the rows.

    Returns:
        Name -> details, as "throttled storage" -> "81 reads/s"; empty where all was real.
    """
    found: dict[str, dict[str, None]] = {}
    for kind, known in STAND_INS.items():
        for label in (label for row in rows for label in row.labels.get(kind, "").split(" / ")):
            word, details = split_label(label)
            if word in known:
                found.setdefault(stand_in_name(kind, label), {})[details] = None
    return {name: ", ".join(filter(None, details)) for name, details in found.items()}


def simulated(rows: Sequence[Row]) -> str:
    """Return what was simulated in any of the rows: "simulated GPU and storage"; "" for none."""
    kinds = {"accelerator": "GPU", "storage": "storage", "network": "network"}
    found = [
        name
        for kind, name in kinds.items()
        if any(
            split_label(label)[0] in STAND_INS[kind]
            for row in rows
            for label in row.labels.get(kind, "").split(" / ")
        )
    ]
    return f"simulated {' and '.join(found)}" if found else ""


def stand_ins(summary: Summary) -> list[str]:
    """List what was emulated, throttled or modelled, with the variants unless it is all of them.

    Returns:
        Lines such as "Simulated GPU, 460 images/s (2.1 × the loading rate, 219 images/s)"; empty
        where everything is real.
    """
    measured = [row for row in summary.rows if row.labels]
    found: dict[str, list[Row]] = {}
    for kind in WARNED_OF:
        for row in measured:
            for label in filter(None, row.labels.get(kind, "").split(" / ")):
                if is_warned_of(kind, label):
                    line = describe_stand_in(kind, label)
                    if kind == "accelerator" and (summary.kind == "roofline" or summary.at_speeds):
                        line = f"{stand_in_name(kind, label)} at several speeds"
                        if rate := summary.calibration.load_images_per_s:
                            line += f"; the baseline alone loads {units.rate(rate)}"
                    elif kind == "accelerator":
                        same = [one for one in measured if one.labels.get(kind) == label]
                        line += f" ({x})" if (x := beside_the_loader(same)) else ""
                    elif split_label(label)[1] == row.name:
                        line = stand_in_name(kind, label)  # its variants are named by the details
                    found.setdefault(line[0].upper() + line[1:], []).append(row)
    return [
        line if len(rows) == len(measured) else f"{line}: {_names(rows)}"
        for line, rows in found.items()
    ]


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


def _names(rows: Sequence[Row]) -> str:
    names = dict.fromkeys(row.name for row in rows)  # once for all groups
    return f"{len(names)} variants" if len(names) > MAX_NAMES else "; ".join(names)
