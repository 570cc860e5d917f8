"""The words around a figure: its conditions, what stands in for what, and all that it shows.

    Summary -> conditions(), stand_ins(), self_checks() -> around every chart, table and page
            -> describe(), describe_epochs() -> all of a chart, for people who cannot see it

What is said beside one row is in `row_words`.  Main trap: a figure without its conditions
travels alone, so charts and reports take their words from here and never make up their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit import units
from labkit.analysis.stand_ins import is_warned_of, stand_ins
from labkit.analysis.statistics import UNSTABLE
from labkit.analysis.summary import Row, Summary
from labkit.machine import hardware
from labkit.parts.devices import FREE_LOADER_MIN_AU
from labkit.parts.storage.disks import MAX_ERROR_SHARE
from labkit.report.row_words import (
    document,
    epoch_bars,
    proof,
    reason,
    say_noise_floor,
    say_outliers,
)
from labkit.settings import CORRECTED

REVISION_SHOWN = 7  # letters of a commit's name, as git shows it
PATTERNS = {"random": "at random", "sequential": "in sequence", "round trips": "one by one"}


def describe(summary: Summary) -> str:
    """Write what the chart shows, for screen readers."""
    if summary.has_groups:
        sentences = ["Bars of normalized time, lower is better; each group has its baseline"]
    else:
        sentences = [f"Bars of normalized epoch time, lower is better; {summary.baseline} is 1"]
    for row in summary.rows:
        if summary.has_groups and row.time_s is not None:
            said = f"{units.seconds(row.time_s)}, {describe_row(summary, row)}"
            sentences.append(f"{row.variant}: {said}")
        elif not summary.is_baseline(row) or not row.normalized_time:
            sentences.append(f"{row.variant}: {describe_row(summary, row)}")
    return describe_run(summary, sentences)


def describe_row(summary: Summary, row: Row) -> str:
    """Say all that a chart shows of one variant: its numbers, or why it has none."""
    if why := reason(row):
        return why
    said = units.normalized(row.normalized_time)
    if row.ci_low is not None:
        said += f", 95 % interval {units.interval(row.ci_low, row.ci_high)}"
    if row.published is not None:
        said += f", published {document(summary, row)}"
    said += f", {row.verdict}" if row.verdict else ""
    return f"{said}; {say_outliers(row)}" if row.outliers else said


def describe_epochs(summary: Summary) -> str:
    """Write what the chart of single epochs shows, for screen readers."""
    sentences = ["Bars of seconds per epoch, lower is better"]
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
    return describe_run(summary, sentences)


def describe_run(summary: Summary, shown: Sequence[str]) -> str:
    """Put a run's question, conditions and origin around what its chart shows."""
    about = [summary.question, *stand_ins(summary), conditions(summary), *other_images(summary)]
    about += self_checks(summary)
    source = [f"From: {where}"] if (where := origin(summary.info)) else []
    return join_sentences([*about, *shown, *source])


def conditions(summary: Summary) -> str:
    """Say in one line how the numbers came about: mode, blocks, labels, document."""
    parts = [*how_measured(summary), *plain_labels(summary)]
    if summary.source:
        parts.append(f"document: {summary.source}")
    return " · ".join(parts)


def how_measured(summary: Summary) -> list[str]:
    """Say the mode, the blocks that count, and what is special about the run."""
    blocks = units.count(summary.n_blocks, "block")
    if summary.rejected:
        done = "rejected" if summary.are_rejected_left_out else "disturbed"
        blocks += f", {units.count(len(summary.rejected))} {done}"
    parts = [f"{summary.mode} mode", blocks]
    if summary.judged and not summary.stable:
        parts.append(f"{UNSTABLE}, no verdicts")
    if summary.has_groups and summary.aa_ratio is not None:
        aa = (summary.aa_ratio, summary.aa_low, summary.aa_high)
        parts.append(say_noise_floor(summary.aa_s, *aa))
    if summary.protocol != CORRECTED:
        parts.append(summary.protocol)
    return parts


def plain_labels(summary: Summary) -> list[str]:
    """List what all measured rows have in common; stand-ins have a line of their own."""
    return [
        f"{name}: {label}"
        for name, label in sorted(summary.labels.items())
        if not is_warned_of(name, label)
    ]


def other_images(summary: Summary) -> list[str]:
    """Name the variants that read or decode other images, unless all do: charts have no fine print.

    Returns:
        Parts such as "scaled: decoded to half a side or less where 64 px remain, so other pixels".
    """
    found: dict[str, list[str]] = {}
    for row in summary.rows:
        if "images" in row.labels and "images" not in summary.labels:
            found.setdefault(row.labels["images"], []).append(row.variant)
    return [f"{'; '.join(names)}: {label}" for label, names in found.items()]


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


def join_sentences(sentences: Sequence[str]) -> str:
    """End every sentence with a mark of its own."""
    return " ".join(s if s.endswith(("?", "!", ".", "？", "。")) else f"{s}." for s in sentences)


def origin(info: Mapping[str, object]) -> str:
    """Say in one line where a run's numbers come from.

    Args:
        info: what `run.json` holds, and `run`: its folder's own name; what is not there is
            left out.

    Returns:
        Parts joined by " · "; empty where nothing is known.
    """
    provenance, parts = info.get("provenance") or {}, []
    if provenance.get("machine_id"):
        parts.append(hardware.describe(provenance))
    parts.append(", ".join(_versions(info)))
    if (revision := provenance.get("revision") or "unknown") != "unknown":
        changed = " with changes" if provenance.get("dirty") is True else ""
        parts.append(f"labkit {revision[:REVISION_SHOWN]}{changed}")
    if run := info.get("run"):
        parts.append(f"run {run}")
    if created := info.get("created_utc"):
        parts.append(units.minute(created))
    return " · ".join(part for part in parts if part)


def _versions(info: Mapping[str, object]) -> list[str]:
    """List torch, and the libraries that a variant's settings name."""
    versions = (info.get("provenance") or {}).get("versions") or {}
    settings = [x for key in ("variants", "tasks") for x in (info.get(key) or {}).values()]
    named = {value for chosen in settings for value in chosen.values() if isinstance(value, str)}
    # A library's scaled decoder, DALI on the CPU, and tf.data in all its ways.
    named |= {value.removesuffix("_scaled").removesuffix("_cpu") for value in named}
    named |= {"tensorflow" for value in named if value.startswith("tf_data")}
    return [
        f"{name} {version}"
        for name, version in versions.items()
        if name in {"torch", *named} and version != "unknown"
    ]
