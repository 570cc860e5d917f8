"""Notes: what has to be said of a run beside its numbers.

    run.json + what counts -> sentences: what is missing, left out, rejected or unstable

Main trap: a figure that lost half of its blocks looks like any other, so every loss is a note.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from labkit import units
from labkit.counted import Counted, baselines_of, group_of, say_rejected, unwatched
from labkit.settings import AS_PUBLISHED, MIN_JUDGED_BLOCKS, MODES
from labkit.statistics import ALPHA, DELTA, blocks_needed, detectable_share, ratio_interval
from labkit.trial import Trial


def run_notes(
    info: Mapping[str, object], counted: Counted, *, judged: bool, stable: bool
) -> list[str]:
    """Say why there are no verdicts, what is not finished, and what is unstable.

    Args:
        info: what `run.json` holds.
        counted: what of its trials counts.
        judged: whether verdicts are spoken.
        stable: whether the baseline's two runs agree.
    """
    notes, mode, planned = [], info["mode"], info.get("blocks") or 0
    n_blocks = len(counted.blocks)
    if info.get("protocol") == AS_PUBLISHED:
        notes.append(
            "as in the document: variants in its order, only the first of a block starts cold, "
            "the others find what it left in memory; a difference may be the order's, so no "
            "verdicts"
        )
    elif mode in MODES and not MODES[mode].judged:
        notes.append(f"{mode} mode: numbers, no verdicts")
    elif not judged:
        notes.append(f"{n_blocks} complete blocks: verdicts need at least {MIN_JUDGED_BLOCKS}")
    if n_blocks < planned and info.get("status") == "finished":
        notes.append(f"{n_blocks} of {planned} blocks count")
    elif n_blocks < planned:
        state = {"running": "not finished", "cancelled": "cancelled"}.get(info.get("status"), "")
        notes.append(f"{state or 'incomplete'}: {n_blocks} of {planned} blocks are complete")
    if counted.rejected:
        notes.append(say_rejected(counted.rejected, left_out=counted.are_rejected_left_out))
    base = (
        run for blocks in counted.base_runs.values() for runs in blocks.values() for run in runs
    )
    if judged and (unseen := unwatched(base)):
        notes.append(f"no block could be rejected for {', '.join(unseen)}: not watched here")
    if torn := info.get("set_aside"):
        notes.append(
            f"{units.count(torn, 'half-written line')} set aside: a process was killed or the "
            "disk was full; its trial does not count, and a resumed run measures it again"
        )
    if judged and not stable:
        notes.append(
            "machine unstable: the baseline's own two runs differ systematically; "
            "close other programs and run again"
        )
    return notes


def second_attempt_note(aa: Sequence[float]) -> str:
    """Say why everything was measured once more.

    Args:
        aa: the first attempt's ln(A2/A1), one per block.
    """
    ratio = units.normalized(math.exp(fmean(aa)))
    interval = units.interval(*ratio_interval(aa, ALPHA))
    return (
        f"the baseline's own two runs differed at first (A/A ratio {ratio} {interval}): "
        "everything is measured once more, and then that is what counts"
    )


def row_notes(info: Mapping[str, object], counted: Counted, trials: Sequence[Trial]) -> list[str]:
    """Say which variants have fewer blocks than the run, and why.

    Args:
        info: what `run.json` holds.
        counted: what of its trials counts.
        trials: the run's rows, of any status.
    """
    notes, n_blocks, baselines = [], len(counted.blocks), baselines_of(info)
    for name in info["variants"]:
        broken = [t for t in trials if t.variant == name and t.status in ("failed", "skipped")]
        group = group_of(info, name)
        is_baseline = name == baselines.get(group)
        blocks = len(counted.base_runs[group] if is_baseline else counted.runs[name])
        if doubts := counted.doubts.get(name, ()):
            notes.append(
                f"{name}: {units.count(len(doubts), 'trial')} left out, last: {doubts[-1]}"
            )
        if 0 < blocks < n_blocks:
            notes.append(f"{name}: {blocks} of {n_blocks} blocks")
        if blocks and broken:
            last = broken[-1]
            notes.append(f"{name}: {last.status} {len(broken)}×, last: {last.reason}")
    return notes


def inconclusive_note(name: str, s: float, blocks: int, alpha: float) -> str:
    """Say what these blocks would have shown, and how many would show more.

    Args:
        name: the variant.
        s: standard deviation of its log-ratios.
        blocks: how many there are.
        alpha: the level that is really used.
    """
    seen, needed = detectable_share(s, blocks, alpha), blocks_needed(s, alpha)
    note = f"{name}: inconclusive; these blocks show effects from {units.percent(seen)} up"
    if needed > blocks:
        note += f", about {needed} blocks would show {units.percent(DELTA)}"
    return note
