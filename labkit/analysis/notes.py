"""Notes below a run's table: what is missing, what was left out, why there are no verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from labkit import units
from labkit.analysis.compare import Comparison, blind_below, is_stable
from labkit.analysis.rows import Row
from labkit.analysis.statistics import blocks_needed
from labkit.analysis.thresholds import DELTA, MIN_JUDGED_BLOCKS
from labkit.analysis.validity import ValidTrials, disturbed_note, unwatched
from labkit.records import AnyTrial, RunInfo, Trial
from labkit.settings import AS_PUBLISHED, MODES

LISTED_IMAGES = 5  # unreadable ones that a note names


def notes_of(
    info: RunInfo,
    trials: Sequence[AnyTrial],
    valid: ValidTrials,
    rows: Sequence[Row],
    noise_floors: Mapping[str, Comparison],
    set_aside: int,
) -> Iterator[str]:
    """Yield the notes of a run, a sentence each.

    Args:
        info: of the run; its own notes come first.
        trials: its rows of any status.
        valid: those that count.
        rows: what they come to.
        noise_floors: group -> its baseline's second runs over the first ones.
        set_aside: lines of the run's file that are no rows.
    """
    yield from info.notes
    yield from _notes_of_images(info, trials)
    yield from _notes_of_run(info, valid, set_aside)
    if valid.judged:
        yield from _notes_of_noise(noise_floors)
    yield from _notes_of_variants(info, valid, trials)
    for row in rows:
        if row.verdict == "inconclusive":
            if (needed := blocks_needed(row.s, row.level)) > row.blocks:
                yield f"{row.variant}: about {needed} blocks would detect {units.limit(DELTA)}"


def _notes_of_run(info: RunInfo, valid: ValidTrials, set_aside: int) -> Iterator[str]:
    """Yield why there are no verdicts, and what is not finished or was not monitored."""
    mode, n_blocks, judged = info.mode, len(valid.blocks), valid.judged
    if info.protocol == AS_PUBLISHED:
        yield (
            "as in the document: variants in its order, only the first of a block starts cold; no "
            "verdicts, as the order may explain a difference"
        )
    elif mode in MODES and not MODES[mode].judged:
        yield f"no verdicts in {mode} mode"
    elif not judged:
        complete = units.count(len(valid.undisturbed), "complete block")
        undisturbed = " without disturbance" if valid.disturbed else ""
        yield f"no verdicts: {complete}{undisturbed}, {MIN_JUDGED_BLOCKS} needed"
    if n_blocks < info.blocks:
        state = "" if info.status == "finished" else f"{info.status}: "
        yield f"{state}{n_blocks} of {info.blocks} blocks count"
    if valid.disturbed:
        yield disturbed_note(valid.disturbed, left_out=valid.are_disturbed_left_out)
    base = (run for blocks in valid.base_runs.values() for runs in blocks.values() for run in runs)
    if judged and (unseen := unwatched(base)):
        yield f"not monitored on this machine: {', '.join(unseen)}"
    if set_aside:
        yield (
            f"{units.count(set_aside, 'incomplete line')} of trials.jsonl skipped, after a killed "
            "process or a full disk; resume the run to measure the trial again"
        )


def _notes_of_noise(noise_floors: Mapping[str, Comparison]) -> Iterator[str]:
    """Yield in which groups the baseline's two runs differ, or agree too loosely."""
    unstable = [group for group, floor in noise_floors.items() if not is_stable(floor.log_ratios)]
    if unstable:
        yield (
            f"machine unstable{_of_groups(unstable)}: the baseline's two runs differ "
            "systematically; close other programs and run again"
        )
    blind = {group: blind_below(floor.log_ratios) for group, floor in noise_floors.items()}
    noisy = [group for group, log_ratio in blind.items() if log_ratio and group not in unstable]
    if noisy:
        yield (
            f"noisy machine{_of_groups(noisy)}: the baseline's two runs are known to agree only "
            f"within {units.percent(math.expm1(max(map(blind.get, noisy))))}, so smaller effects "
            "get no verdict; close other programs, or measure longer epochs or more blocks"
        )


def _of_groups(groups: Sequence[str]) -> str:
    named = ", ".join(filter(None, groups))
    return f" ({named})" if named else ""


def _notes_of_images(info: RunInfo, trials: Sequence[AnyTrial]) -> Iterator[str]:
    """Yield how many images were left out, and the first of them."""
    yield from info.local_notes
    of_epochs = [trial for trial in trials if isinstance(trial, Trial)]
    if left_out := max((trial.unreadable_images or 0 for trial in of_epochs), default=0):
        yield f"{units.count(left_out, 'unreadable image')} left out for all variants"
    if lines := info.unreadable:
        more = "; run.json lists all" if len(lines) > LISTED_IMAGES else ""
        yield "; ".join(lines[:LISTED_IMAGES]) + more


def _notes_of_variants(
    info: RunInfo, valid: ValidTrials, trials: Sequence[AnyTrial]
) -> Iterator[str]:
    """Yield which variants lost trials, and why."""
    for name in info.variants:
        broken = [t for t in trials if t.variant == name and t.status in ("failed", "skipped")]
        if often := valid.swapping.get(name):
            yield f"{name}: {often}; it needs more memory than the machine has free"
        if violations := valid.cache_violations.get(name, ()):
            lost = units.count(len(violations), "trial")
            yield f"{name}: {lost} left out, last: {violations[-1]}"
        if broken and valid.trials_of(name, info.group_of(name)):
            last = broken[-1]
            yield f"{name}: {last.status} {len(broken)}×, last: {last.reason}"
