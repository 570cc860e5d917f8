"""Savings in words: what is saved, whether the data fits, and what was assumed.

    Savings -> describe() -> sentences for a notebook and a shell

Main trap: days that rest on a stand-in, or on a run that speaks no verdict, must say so in the
same breath.
"""

from __future__ import annotations

from labkit import units
from labkit.row_words import quote
from labkit.savings import CACHE_SHARE, DAY_S, Projection, Savings


def describe(found: Savings) -> list[str]:
    """Say in plain sentences what is saved, whether the data fits, and what was assumed."""
    baseline, *others = found.projections
    lines = []
    for name, details in found.stand_ins.items():
        shown = f"{name.capitalize()} ({details})" if details else name.capitalize()
        lines.append(f"{shown}: the times below are those of the stand-in")
    if baseline.reason:
        lines.append(f"Nothing is extrapolated: {baseline.reason}")
    elif not found.winner:
        lines.append(
            f"Nothing to save: no variant is known to be faster than {quote(baseline.variant)}"
        )
    else:
        lines += _describe_winner(found, baseline, found.projection(found.winner))
    if found.data_bytes is not None:
        lines += _describe_fit(found)
    for p in others:
        if p.reason and p.reason != baseline.reason:
            lines.append(f"{quote(p.variant)} is left out: {p.reason}")
    for p in found.projections:
        if p.not_counted:
            lines.append(f"Not counted for {quote(p.variant)}: {p.not_counted}")
    lines.append(
        "Assumed: each image of the full data set takes as long as a measured one; the start of "
        "the workers is counted with the images"
    )
    return [*lines, document_savings()]


def _describe_winner(found: Savings, baseline: Projection, winner: Projection) -> list[str]:
    saved_s = found.saved_s(winner.variant)
    now, then = quote(baseline.variant), quote(winner.variant)
    lines = [
        f"An epoch of {found.images:,} images: {_epochs(baseline)} with {now}, {_epochs(winner)} "
        f"with {then}",
        f"{units.count(found.epochs, 'epoch')}: {_days(baseline.total_s)} with {now}, "
        f"{_days(winner.total_s)} with {then}: {_days(saved_s)} saved "
        f"({units.percent(saved_s / baseline.total_s)})",
    ]
    if found.gpu_hour is not None:
        lines.append(
            f"At {found.gpu_hour:g} per GPU hour: {found.saved_money(winner.variant):,.2f} saved"
        )
    if not winner.verdict:
        lines.append("Not established: this run speaks no verdict; run it with --mode full")
    best = max(found.projections, key=lambda p: found.saved_s(p.variant) or 0.0)
    if best is not winner:
        lines.append(
            f"Over {units.count(found.epochs, 'epoch')} {quote(best.variant)} saves more, "
            f"{_days(found.saved_s(best.variant))}: its gain is in the later epochs"
        )
    return lines


def _epochs(projection: Projection) -> str:
    first, later = units.seconds(projection.first_epoch_s), units.seconds(projection.later_epoch_s)
    if later in (first, units.UNKNOWN):
        return first
    return f"{first} for the first and {later} for each later one"


def _describe_fit(found: Savings) -> list[str]:
    size = f"The full data set, about {units.count_bytes(found.data_bytes)},"
    room = f"the page cache ({units.count_bytes(found.cache_bytes)}, "
    room += f"{units.percent(CACHE_SHARE)} of memory)"
    if found.fits_cache:
        line = f"{size} fits into {room}: only the first epoch reads the disk"
    else:
        line = (
            f"{size} does not fit into {room}: every epoch reads the disk like the first; what the "
            "second one gained from memory holding the few measured images is not extrapolated"
        )
    held = "fits into" if found.fits_tmpfs else "does not fit into"
    return [line, f"It {held} a tmpfs ({units.count_bytes(found.tmpfs_bytes)})"]


def _days(s: float) -> str:
    return units.seconds(s) if s < DAY_S else f"{s / DAY_S:.2f} days"


def document_savings() -> str:
    """Do the sum that [004] closes with, from its own figures.

    Source: [004] sections 1 and 4; DOCUMENTS A, "Headline arithmetic".
    """
    images, epoch_min, epochs, share = 110_000, 100, 100, 0.39
    days, said_days, said_after_days = epoch_min * 60 * epochs / DAY_S, 7, 4.5
    return (
        f"The document: {epochs} epochs of {images:,} images at {epoch_min} min each are "
        f"{days:.2f} days, said to be {said_days}; {units.percent(share)} less is "
        f"{said_days * (1 - share):.2f} days ({days * (1 - share):.2f} from the exact figure), "
        f"said to be {said_after_days}"
    )
