"""The words about a run: its conditions, what stands in for what, what a row rests on.

    Summary -> conditions(), stand_ins(), self_checks() -> around every chart, table and page
            -> second_line(), document(), reason()      -> beside a row's numbers
            -> describe(), describe_epochs() -> all of a chart, for people who cannot see it

Main trap: a figure without its conditions travels alone, so charts and reports take their
words from here and never make up their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from labkit import units
from labkit.parts.devices import FREE_LOADER_MIN_AU
from labkit.parts.storage.disks import MAX_ERROR_SHARE
from labkit.settings import CORRECTED
from labkit.statistics import UNSTABLE
from labkit.summary import Row, Summary

# How labels begin that are not the real thing, and those of which nobody knows that they are.
STAND_INS = {"accelerator": ("emulated",), "storage": ("throttled", "modelled")}
WARNED_OF = {**STAND_INS, "storage": (*STAND_INS["storage"], "unknown")}
# What a word of agreement becomes over a stand-in: it is not the document's own experiment.
EMULATED_WORDS = {"agrees": "consistent", "differs": "not consistent"}
PATTERNS = {"random": "at random", "sequential": "in sequence"}
LABEL_WORDS = ("real", "unknown", *(word for words in STAND_INS.values() for word in words))
LISTED = 4  # more names than these are a table's business
NOT_KNOWN = "unknown"  # where a dash would not say what is missing


def describe(summary: Summary) -> str:
    """Say in one paragraph what the chart shows, for screen readers."""
    sentences = [summary.question, *stand_ins(summary), conditions(summary)]
    sentences += self_checks(summary)
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
            said += f", published {document(summary, row)}"
        said += f", {row.verdict}" if row.verdict else ""
        sentences.append(f"{said}; {_outliers(row)}" if row.outliers else said)
    return _join_sentences(sentences)


def describe_epochs(summary: Summary) -> str:
    """Say in one paragraph what the chart of single epochs shows, for screen readers."""
    sentences = [summary.question, *stand_ins(summary), conditions(summary)]
    sentences += self_checks(summary)
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
    blocks = units.count(summary.n_blocks, "block")
    if summary.rejected:
        done = "rejected" if summary.are_rejected_left_out else "disturbed"
        blocks += f", {units.count(len(summary.rejected))} {done}"
    parts = [f"{summary.mode} mode", blocks]
    if summary.judged and not summary.stable:
        parts.append(f"{UNSTABLE}, no verdicts")
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
                    word, detail = _split(label)
                    sentence = f"{word} {kind}" + (f" ({detail})" if detail else "")
                    found.setdefault(sentence[0].upper() + sentence[1:], []).append(i)
    return [
        s if len(rows) == len(measured) else f"{s}: {join([names[i] for i in rows])}"
        for s, rows in found.items()
    ]


def find_stand_ins(rows: Sequence[Row]) -> dict[str, str]:
    """Find what stood in for the real thing in any of the rows.

    Returns:
        Name -> details, as "throttled storage" -> "81 reads/s"; empty where all was real.
    """
    found: dict[str, dict[str, None]] = {}
    for kind, known in STAND_INS.items():
        for label in (label for row in rows for label in row.labels.get(kind, "").split(" / ")):
            name, details = _split(label)
            if name in known:
                found.setdefault(f"{name} {kind}", {})[details] = None
    return {name: ", ".join(filter(None, details)) for name, details in found.items()}


def self_checks(summary: Summary) -> list[str]:
    """Say how close the stand-ins came to what they stand for, each checked before the run.

    Returns:
        Sentences such as "Emulated accelerator checked: 99.7 % busy with a free loader (at
        least 99 % wanted)"; empty where nothing stands in.
    """
    said, calibration = [], summary.calibration
    if (busy := calibration.get("free_loader_au")) is not None:
        said.append(
            f"Emulated accelerator checked{_when(calibration, 'free_loader_checked_utc')}: "
            f"{units.percent(busy)} busy with a free loader{_best_of(calibration)} "
            f"(at least {units.limit(FREE_LOADER_MIN_AU)} wanted)"
        )
    for name, facts in summary.storages.items():
        if rates := facts.get("rates"):
            done = "refused" if any(rate["refused"] for rate in rates) else "checked"
            said.append(
                f"{name} {done}{_when(facts, 'rates_checked_utc')}: {_delivered(rates)} "
                f"(within {units.limit(MAX_ERROR_SHARE)} wanted)"
            )
    return said


def _best_of(calibration: Mapping[str, object]) -> str:
    tries = calibration.get("free_loader_tries", 1)
    return f" in the best of {tries} tries" if tries > 1 else ""


def document(summary: Summary, row: Row) -> str:
    """Write the document's figure and, where a word may be said, whether this run agrees.

    Returns:
        "0.894", "0.894, agrees"; over a stand-in "0.894, consistent (emulated)"; or a dash.
    """
    figure = units.normalized(row.published)
    if not row.agreement:
        return figure
    compared = [r for r in summary.rows if r.variant in (summary.baseline, row.variant)]
    if find_stand_ins(compared):
        return f"{figure}, {EMULATED_WORDS.get(row.agreement, row.agreement)} (emulated)"
    return f"{figure}, {row.agreement}"


def second_line(summary: Summary, row: Row) -> str:
    """Say in small print what a row's number rests on.

    Returns:
        "10 blocks · shows effects from 4.1 % up · cold (0.0 % in memory before, 50.1 % of
        bytes from disk)" and what else is to be said; empty for a row without a number.
    """
    if row.normalized_time is None:
        return ""
    n = summary.n_blocks
    blocks = units.count(row.blocks, "block") if row.blocks == n else f"{row.blocks} of {n} blocks"
    noise = _noise_floor(summary) if row.variant == summary.baseline else _visible(row)
    left_out = ""
    if row.left_out:
        state = row.labels.get("cache", "")
        left_out = f"{units.count(row.left_out, 'trial')} left out: not known to be {state}"
    parts = [blocks, noise, _cache(row), *_own_labels(summary, row), _outliers(row), left_out]
    return " · ".join(part for part in parts if part)


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


def _noise_floor(summary: Summary) -> str:
    if summary.aa_ratio is None:
        return ""
    ratio = f"A/A {units.normalized(summary.aa_ratio)}"
    if summary.aa_s is None:
        return ratio
    interval = units.interval(summary.aa_low, summary.aa_high)
    return f"noise floor {units.percent(summary.aa_s)} ({ratio} {interval})"


def _visible(row: Row) -> str:
    return "" if row.mde is None else f"shows effects from {units.percent(row.mde)} up"


def _cache(row: Row) -> str:
    """Say what a cache label rests on; "cold (not measured)" where that is nothing."""
    cache, measured = row.labels.get("cache", ""), []
    if row.resident_share_before is not None:
        measured.append(f"{units.percent(row.resident_share_before)} in memory before")
    if row.device_read_share is not None:
        measured.append(f"{units.percent(row.device_read_share)} of bytes from disk")
    if row.swapped_pages:
        measured.append(f"{units.count(row.swapped_pages, 'page')} swapped")
    words = ", ".join(measured)
    return f"{cache} ({words or 'not measured'})" if cache else words


def _own_labels(summary: Summary, row: Row) -> list[str]:
    """Name what a row stands on where that is not the same for all rows."""
    said = []
    for kind in STAND_INS:
        label = row.labels.get(kind)
        if label is None or kind in summary.labels:
            continue
        word, _ = _split(label)
        twins = {r.labels[kind] for r in summary.rows if kind in r.labels}
        one_kind = sum(_split(twin)[0] == word for twin in twins) == 1 and " / " not in label
        # The details stand in the head, unless they are what tells two rows apart.
        said.append(f"{word} {kind}" if one_kind and word in LABEL_WORDS else f"{kind}: {label}")
    return said


def _outliers(row: Row) -> str:
    """Name a row's far-out ratios: they are kept, and where they lie shows in the chart."""
    if not row.outliers:
        return ""
    values = ", ".join(units.normalized(row.ratios[place]) for place in row.outliers)
    return f"{units.count(len(row.outliers), 'outlier')}, kept: {values}"


def _delivered(rates: Sequence[Mapping[str, object]]) -> str:
    readers = {rate["readers"] for rate in rates}
    parts = []
    for rate in rates:
        wanted = rate["requested_per_s"]
        said = units.delivered(rate["delivered_per_s"], wanted, rate["unit"])
        said += f" {PATTERNS.get(rate['pattern'], rate['pattern'])}"
        if len(readers) > 1:
            said += f" with {units.count(rate['readers'], 'reader')}"
        parts.append(said if wanted is not None else f"{said}, not slowed down")
    if len(readers) == 1:
        parts.append(units.count(*readers, "reader"))
    return ", ".join(parts)


def _when(facts: Mapping[str, object], key: str) -> str:
    return f" on {units.minute(facts[key])}" if facts.get(key) else ""


def _split(label: str) -> tuple[str, str]:
    """Split "throttled(81 reads/s)" into the word and its details."""
    word, _, details = label.partition("(")
    return word.strip(), details.removesuffix(")")


def _join_sentences(sentences: Sequence[str]) -> str:
    return " ".join(s if s.endswith(("?", "!", ".", "？", "。")) else f"{s}." for s in sentences)


def _is_stand_in(kind: str, label: str) -> bool:
    return kind in WARNED_OF and any(x.startswith(WARNED_OF[kind]) for x in label.split(" / "))
