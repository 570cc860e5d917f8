"""The words beside one row: what its number rests on, and why there is none.

    Summary, Row -> second_line(), document(), reason() -> tables and charts
    Row          -> epoch_bars(), proof()               -> its single epochs

What is said of a whole run is in `captions`.  Main trap: over a stand-in no word may sound
like the document's own experiment, so agreement is "consistent (emulated)" there.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, geometric_mean

from labkit import units
from labkit.analysis.stand_ins import EMULATED_WORDS, STAND_INS, find_stand_ins, split_label
from labkit.analysis.summary import Row, Summary

# Labels of rows that do their work otherwise.
OF_WORK = ("images", "loss", "precision", "training loop")
LABEL_WORDS = ("real", "unknown", *(word for words in STAND_INS.values() for word in words))
NOT_KNOWN = "unknown"  # where a dash would not say what is missing


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


def document(summary: Summary, row: Row) -> str:
    """Write the document's figure and, where a word may be said, whether this run agrees.

    Returns:
        "0.894", "0.894, agrees"; over a stand-in "0.894, consistent (emulated)"; or a dash.
    """
    figure = units.normalized(row.published)
    if not row.agreement:
        return figure
    compared = [r for r in summary.rows if summary.is_baseline(r) or r.variant == row.variant]
    if find_stand_ins(compared):
        return f"{figure}, {EMULATED_WORDS.get(row.agreement, row.agreement)} (emulated)"
    return f"{figure}, {row.agreement}"


def second_line(summary: Summary, row: Row) -> str:
    """Say in small print what a row's number rests on.

    Returns:
        "10 blocks · smallest detectable effect 4.1 % · cold (0.0 % in memory before, 50.1 % of
        bytes from disk)" and what else is to be said; empty for a row without a number.
    """
    if row.normalized_time is None:
        return ""
    n = summary.n_blocks
    blocks = units.count(row.blocks, "block") if row.blocks >= n else f"{row.blocks} of {n} blocks"
    if summary.is_baseline(row) and summary.has_groups:
        noise = ""  # stands above, once for all groups
    elif summary.is_baseline(row):
        noise = say_noise_floor(summary.aa_s, summary.aa_ratio, summary.aa_low, summary.aa_high)
    else:
        noise = say_visible("" if row.mde is None else units.percent(row.mde))
    left_out = ""
    if row.left_out:
        state = row.labels.get("cache", "")
        left_out = f"{units.count(row.left_out, 'trial')} left out: not known to be {state}"
    work = [row.labels.get(kind, "") for kind in OF_WORK if kind not in summary.labels]
    labels = [*work, *_own_labels(summary, row)]
    parts = [blocks, noise, _cache(row), *labels, say_outliers(row), left_out]
    return " · ".join(part for part in parts if part)


def reason(row: Row) -> str:
    """Say why a variant has no number; empty where it has one."""
    if row.normalized_time is not None:
        return ""
    return f"{row.status}: {row.reason}" if row.reason else row.status


def say_outliers(row: Row) -> str:
    """Name a row's far-out ratios: they are kept, and where they lie shows in the chart."""
    if not row.outliers:
        return ""
    values = ", ".join(units.normalized(row.ratios[place]) for place in row.outliers)
    return f"{units.count(len(row.outliers), 'outlier')}, kept: {values}"


def say_noise_floor(
    noise: float | None, ratio: float | None, low: float | None, high: float | None
) -> str:
    """Say what noise alone does: "noise floor 1.2 % (A/A 0.996 [0.981, 1.012])".

    Args:
        noise: standard deviation of ln(A2/A1); None below two blocks.
        ratio: of the second of two equal runs over the first; None: nothing to say.
        low: lower end of its interval.
        high: the upper one.
    """
    if ratio is None:
        return ""
    said = f"A/A {units.normalized(ratio)}"
    if noise is None:
        return said
    return f"noise floor {units.percent(noise)} ({said} {units.interval(low, high)})"


def say_visible(share: str) -> str:
    """Say the smallest effect that would show; nothing where it is not known."""
    return f"smallest detectable effect {share}" if share else ""


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
        word, _ = split_label(label)
        twins = {r.labels[kind] for r in summary.rows if kind in r.labels}
        one_kind = sum(split_label(twin)[0] == word for twin in twins) == 1 and " / " not in label
        # The details stand in the head, unless they are what tells two rows apart.
        said.append(f"{word} {kind}" if one_kind and word in LABEL_WORDS else f"{kind}: {label}")
    return said
