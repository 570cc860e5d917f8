"""The words about a run: its conditions, what stands in for what, why a variant has no number.

    Summary -> conditions(), stand_ins()    -> the head of every chart, table and page
            -> describe(), describe_epochs() -> all of a chart, for people who cannot see it

Main trap: a figure without its conditions travels alone, so charts and reports take their
words from here and never make up their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from labkit import units
from labkit.settings import CORRECTED
from labkit.summary import Row, Summary

# How labels begin that are not the real thing, and those of which nobody knows that they are.
STAND_INS = {"accelerator": ("emulated",), "storage": ("throttled", "modelled")}
WARNED_OF = {**STAND_INS, "storage": (*STAND_INS["storage"], "unknown")}
LISTED = 4  # more names than these are a table's business
NOT_KNOWN = "unknown"  # where a dash would not say what is missing


def describe(summary: Summary) -> str:
    """Say in one paragraph what the chart shows, for screen readers."""
    sentences = [summary.question, *stand_ins(summary), conditions(summary)]
    sentences.append(f"Bars of normalized epoch time, lower is better; {summary.baseline} is 1")
    for row in summary.rows:
        if row.variant == summary.baseline and row.normalized_time:
            continue
        if why := reason(row):
            sentences.append(f"{row.variant}: {why}")
            continue
        said = f"{row.variant}: {units.normalized(row.normalized_time)}"
        if row.ci_low is not None:
            said += f", 95 % interval {units.interval(row.ci_low, row.ci_high)}"
        if row.published is not None:
            said += f", published {units.normalized(row.published)}"
        sentences.append(f"{said}, {row.verdict}" if row.verdict else said)
    return _join_sentences(sentences)


def describe_epochs(summary: Summary) -> str:
    """Say in one paragraph what the chart of single epochs shows, for screen readers."""
    sentences = [summary.question, *stand_ins(summary), conditions(summary)]
    sentences.append("Bars of seconds per epoch, lower is better")
    for row in summary.rows:
        if why := reason(row):
            sentences.append(f"{row.variant}: {why}")
            continue
        times = [f"{bar.name} {units.seconds(bar.mean_s)}" for bar in epoch_bars(row)]
        memory, disk, swap = proof(row)
        sentences.append(
            f"{row.variant}: {', '.join(times)}; in memory before epoch 1: {memory}; "
            f"bytes read from disk: {disk}; pages swapped: {swap}"
        )
    return _join_sentences(sentences)


@dataclass(frozen=True, kw_only=True)
class EpochBar:
    """The first epoch of a variant, or those after it."""

    name: str
    mean_s: float
    """Geometric mean over trials."""
    all_s: tuple[float, ...]
    """Every single one of every trial."""


def epoch_bars(row: Row) -> tuple[EpochBar, ...]:
    """Tell a measured variant's first epoch from the later ones, which memory may serve.

    Returns:
        One or two; none without a trial.
    """
    if not row.epochs_s:
        return ()
    first = tuple(epochs_s[0] for epochs_s in row.epochs_s)
    bars = [EpochBar(name="epoch 1", mean_s=geometric_mean(first), all_s=first)]
    if later := [epochs_s[1:] for epochs_s in row.epochs_s if len(epochs_s) > 1]:
        n = 1 + max(map(len, later))
        mean_s = geometric_mean(map(fmean, later))
        name = "epoch 2" if n == 2 else f"epochs 2 to {n} (mean)"
        bars.append(EpochBar(name=name, mean_s=mean_s, all_s=sum(later, ())))
    return tuple(bars)


def proof(row: Row) -> tuple[str, str, str]:
    """Say of a measured variant what was in memory, what came from a disk, and what was swapped.

    Returns:
        "0.0 % (cold)" (before epoch 1), "50.0 %" (of the bytes of all epochs), "0" (pages).
    """
    cache, share = row.labels.get("cache", ""), row.resident_share_before
    in_memory = NOT_KNOWN if share is None else units.percent(share)
    read = NOT_KNOWN if row.device_read_share is None else units.percent(row.device_read_share)
    swapped = NOT_KNOWN if row.swapped_pages is None else units.count(row.swapped_pages)
    return f"{in_memory} ({cache})" if cache else in_memory, read, swapped


def conditions(summary: Summary) -> str:
    """Say in one line how the numbers came about: mode, blocks, labels, document."""
    n = summary.n_blocks
    parts = [f"{summary.mode} mode", f"{n} block" if n == 1 else f"{n} blocks"]
    if summary.protocol != CORRECTED:
        parts.append(summary.protocol)
    parts += [
        f"{name}: {label}"
        for name, label in sorted(summary.labels.items())
        if not _is_stand_in(name, label)  # these have a line of their own
    ]
    if summary.source:
        parts.append(f"document: {summary.source}")
    return " · ".join(parts)


def stand_ins(summary: Summary) -> list[str]:
    """List what was emulated, throttled or modelled, and for which variants unless for all.

    Returns:
        Sentences such as "Emulated accelerator (matched, 11.2 ms/image)"; empty where
        everything is real.
    """
    measured = [row.labels for row in summary.rows if row.labels] or [summary.labels]
    names = [row.variant for row in summary.rows if row.labels]
    found: dict[str, list[int]] = {}
    for kind in WARNED_OF:
        for i, labels in enumerate(measured):
            for label in labels.get(kind, "").split(" / "):
                if _is_stand_in(kind, label):
                    word, _, detail = label.partition("(")
                    sentence = f"{word.strip()} {kind}" + (f" ({detail}" if detail else "")
                    found.setdefault(sentence[0].upper() + sentence[1:], []).append(i)
    return [
        s if len(rows) == len(measured) else f"{s}: {join([names[i] for i in rows])}"
        for s, rows in found.items()
    ]


def join(names: Sequence[str]) -> str:
    """List variants so that it is seen where one ends: hdd, ssd and “ssd, warm”; or count them."""
    if len(names) > LISTED:
        return f"{len(names)} variants"
    *others, last = map(quote, names)
    return f"{', '.join(others)} and {last}" if others else last


def quote(name: str) -> str:
    """Put quotes around a variant's name that is more than one word."""
    return f"“{name}”" if re.search(r"[\s,，、]", name) else name


def reason(row: Row) -> str:
    """Say why a variant has no number; empty where it has one."""
    if row.normalized_time is not None:
        return ""
    return f"{row.status}: {row.reason}" if row.reason else row.status


def _join_sentences(sentences: Sequence[str]) -> str:
    return " ".join(s if s.endswith(("?", "!", ".", "？", "。")) else f"{s}." for s in sentences)


def _is_stand_in(kind: str, label: str) -> bool:
    return kind in WARNED_OF and any(x.startswith(WARNED_OF[kind]) for x in label.split(" / "))
