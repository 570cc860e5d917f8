"""Which trials and blocks count, for reasons that were fixed before any run.

    trials ─ cache state proved ─ machine undisturbed ─ baseline complete ─▶ valid

A trial whose cache state is not what its label says is left out (`cache_state`).  A block in which
the machine was disturbed (EVIDENCE 1: steal, other programs, swapping) is marked with the reason
and the variant.  It is left out where enough other blocks remain for verdicts; if too few remain,
it counts, and there are no verdicts.  Nothing here looks at a time: dropping rows after seeing the
times could make any result.  `equal_work` detects variants that did other work than the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from labkit import units
from labkit.analysis.cache_state import cache_violation
from labkit.analysis.thresholds import (
    MAX_OTHER_GPU_SHARE,
    MAX_OTHER_SHARE,
    MAX_STEAL_SHARE,
    MIN_JUDGED_BLOCKS,
    MIN_JUDGED_S,
    MIN_OTHER_CORES,
    MIN_SWAPPING_TRIALS,
)
from labkit.records import AnyTrial, RunInfo, Trial
from labkit.settings import MODES

T = TypeVar("T")
SWAPPED_PAGES = ("swapped_in_pages", "swapped_out_pages")


@dataclass(frozen=True, kw_only=True)
class ValidTrials:
    """The trials of a run that count, and those that are left out."""

    base_runs: dict[str, dict[int, list[AnyTrial]]]
    """Group -> block -> its baseline's runs (A1, A2); only blocks in which these are complete."""
    runs: dict[str, dict[int, AnyTrial]]
    """Variant -> block -> its run; baselines left out."""
    disturbed: dict[int, str]
    """Block -> in which variant's trial the machine was disturbed, and by what."""
    judged: bool
    """Whether enough undisturbed blocks remain for verdicts, and mode and order allow them."""
    are_disturbed_left_out: bool
    """Whether disturbed blocks are missing above: where enough others remain for verdicts."""
    left_out_base_runs: dict[str, dict[int, list[AnyTrial]]]
    """Like `base_runs`, of the disturbed blocks that are left out: they are shown."""
    left_out_runs: dict[str, dict[int, AnyTrial]]
    """Like `runs`, of the same blocks."""
    swapping: dict[str, str]
    """Variant that swaps again and again -> in how many of its trials."""
    cache_violations: dict[str, tuple[str, ...]]
    """Variant -> for each trial left out why its cache state is not what its label says."""

    @property
    def blocks(self) -> set[int]:
        """Blocks that count and in which the baselines of all measured groups are complete."""
        return _complete(self.base_runs)

    @property
    def undisturbed(self) -> set[int]:
        """The blocks from which verdicts may be computed."""
        return self.blocks - self.disturbed.keys()

    def trials_of(self, variant: str, group: str) -> tuple[AnyTrial, ...]:
        """Return a variant's trials that count; a baseline's are those of its group."""
        return _trials_of(variant, self.runs, self.base_runs[group])

    def left_out_of(self, variant: str, group: str) -> tuple[AnyTrial, ...]:
        """Return a variant's trials in disturbed blocks that are left out, likewise."""
        return _trials_of(variant, self.left_out_runs, self.left_out_base_runs[group])


def valid_trials(info: RunInfo, trials: Sequence[AnyTrial]) -> ValidTrials:
    """Return the trials that count.

    Args:
        info: of the run.
        trials: the run's rows in the order they were written, of any status.
    """
    # A block repeated after a crash counts once, the first time.
    measured: dict[tuple[str, int, str], AnyTrial] = {}
    for trial in trials:
        if trial.status == "ok" and trial.time_s and trial.variant not in info.failed:
            measured.setdefault((trial.variant, trial.block, trial.role), trial)
    proved: dict[tuple[str, int, str], AnyTrial] = {}
    cache_violations: dict[str, list[str]] = {}
    for key, trial in measured.items():
        violation = ""
        if isinstance(trial, Trial):  # operations read no files
            violation = cache_violation(trial, info.facts_of(trial.variant))
        if violation:
            cache_violations.setdefault(trial.variant, []).append(violation)
        else:
            proved[key] = trial
    base_runs, runs = _in_complete_blocks(info, proved)
    disturbed = disturbed_blocks(measured.values(), cores_of(info))
    mode, n_undisturbed = MODES.get(info.mode), len(_complete(base_runs) - disturbed.keys())
    # A fixed order confounds a variant with its place in it: nothing to judge.
    is_for_verdicts = mode is not None and mode.judged and info.shuffled
    judged = is_for_verdicts and n_undisturbed >= MIN_JUDGED_BLOCKS
    left_out: set[int] = {*disturbed} if judged else set()
    return ValidTrials(
        base_runs=_choose(base_runs, lambda block: block not in left_out),
        runs=_choose(runs, lambda block: block not in left_out),
        disturbed=disturbed,
        judged=judged,
        are_disturbed_left_out=bool(left_out),
        left_out_base_runs=_choose(base_runs, left_out.__contains__),
        left_out_runs=_choose(runs, left_out.__contains__),
        swapping=swapping_variants(measured.values()),
        cache_violations={name: tuple(reasons) for name, reasons in cache_violations.items()},
    )


def _trials_of(
    variant: str,
    runs: Mapping[str, Mapping[int, AnyTrial]],
    base_runs: Mapping[int, list[AnyTrial]],
) -> tuple[AnyTrial, ...]:
    if variant in runs:
        return tuple(runs[variant].values())
    return tuple(trial for both in base_runs.values() for trial in both)


def _complete(base_runs: Mapping[str, Mapping[int, list[AnyTrial]]]) -> set[int]:
    complete = [set(blocks) for blocks in base_runs.values() if blocks]
    return set.intersection(*complete) if complete else set()


def _choose(
    runs: Mapping[str, Mapping[int, T]], is_wanted: Callable[[int], bool]
) -> dict[str, dict[int, T]]:
    return {
        name: {block: run for block, run in by_block.items() if is_wanted(block)}
        for name, by_block in runs.items()
    }


def _in_complete_blocks(
    info: RunInfo, proved: Mapping[tuple[str, int, str], AnyTrial]
) -> tuple[dict[str, dict[int, list[AnyTrial]]], dict[str, dict[int, AnyTrial]]]:
    """Return the runs of baselines and variants in blocks in which the baseline is complete."""
    blocks = sorted({block for _, block, _ in proved})
    roles = ("A1", "A2") if info.shuffled else ("A1",)
    base_runs: dict[str, dict[int, list[AnyTrial]]] = {}
    for group, baseline in info.baseline_by_group.items():
        keys_of = {b: [(baseline, b, role) for role in roles] for b in blocks}
        base_runs[group] = {
            b: [proved[key] for key in keys]
            for b, keys in keys_of.items()
            if all(key in proved for key in keys)
        }
    runs = {
        name: {
            b: proved[name, b, ""]
            for b in base_runs[info.group_of(name)]
            if (name, b, "") in proved
        }
        for name in info.variants
        if name not in info.baseline_by_group.values()
    }
    return base_runs, runs


def cores_of(info: RunInfo) -> int:
    """Return the cores of the machine that a run was measured on; 0 where they are unknown."""
    return info.provenance.cpu_count or info.provenance.cores or 0


def disturbed_blocks(trials: Iterable[AnyTrial], cores: int) -> dict[int, str]:
    """Return block -> in which variant's trials the machine was disturbed, and by what.

    Args:
        trials: all that were measured; what one variant does again and again shows only in all.
        cores: of the machine; 0: unknown.

    Returns:
        The disturbed blocks only.
    """
    trials = list(trials)
    own = swapping_variants(trials)
    reasons: dict[int, dict[str, str]] = {}
    short: dict[int, list[AnyTrial]] = {}
    for trial in trials:
        if trial.variant in own:
            log = {**trial.disturbance, **dict.fromkeys(SWAPPED_PAGES, 0)}
            trial = replace(trial, disturbance=log)
        if trial.disturbance.get("duration_s", math.inf) < MIN_JUDGED_S:
            short.setdefault(trial.block, []).append(trial)
        elif why := why_disturbed(trial.disturbance, cores):
            reasons.setdefault(trial.block, {}).setdefault(trial.variant, why)
    for block, together in short.items():
        if why := why_disturbed(_joined([trial.disturbance for trial in together]), cores):
            # The variants whose own logs show it are named.
            names = dict.fromkeys(
                trial.variant for trial in together if why_disturbed(trial.disturbance, cores)
            )
            reasons.setdefault(block, {}).setdefault(", ".join(names), why)
    return {block: _in_variants(reasons[block]) for block in sorted(reasons)}


def _in_variants(reasons: Mapping[str, str]) -> str:
    """Return what disturbed a block, by variant; of many, in the first of them."""
    each = [f"{name}: {why}" if name else why for name, why in reasons.items()]
    if len(each) > 2:
        return f"{len(each)} variants, the first {each[0]}"
    return ", ".join(each)


def swapping_variants(trials: Iterable[AnyTrial]) -> dict[str, str]:
    """Return the variants that swap in most of their trials, each with how often.

    That is a result about them.  Where all variants swap, it is the machine's state.
    """
    swapped: dict[str, list[bool]] = {}
    for trial in trials:
        swapped.setdefault(trial.variant, []).append(_swapped_pages(trial.disturbance) > 0)
    swapping = {
        name: f"swapped in {sum(times)} of {len(times)} trials"
        for name, times in swapped.items()
        if sum(times) >= MIN_SWAPPING_TRIALS and 2 * sum(times) > len(times)
    }
    return swapping if len(swapping) < len(swapped) else {}


def _swapped_pages(log: Mapping[str, Any]) -> int:
    return sum(log.get(name) or 0 for name in SWAPPED_PAGES)


def _joined(logs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the logs of short trials: means over their time, the sum of pages."""
    total_s = sum(log["duration_s"] for log in logs)
    joined: dict[str, Any] = {
        name: sum((log.get(name) or 0.0) * log["duration_s"] for log in logs) / total_s
        for name in ("steal_share", "other_cores", "other_gpu_share")
    }
    for name in SWAPPED_PAGES:
        joined[name] = sum(log.get(name) or 0 for log in logs)
    return joined


def why_disturbed(log: Mapping[str, Any], cores: int) -> str:
    """Return what disturbed the machine during a trial; empty where nothing did.

    What could not be watched is no reason, see `unwatched`.

    Args:
        log: of a trial.
        cores: of the machine; 0: unknown.
    """
    steal, others = log.get("steal_share") or 0.0, log.get("other_cores") or 0.0
    if steal > MAX_STEAL_SHARE:
        return f"{units.percent(steal)} of the CPU time was stolen by other machines"
    if others > max(MIN_OTHER_CORES, MAX_OTHER_SHARE * cores):
        return f"other programs took {units.percent(others)} of a core"
    if swapped := _swapped_pages(log):
        return f"{units.count(swapped, 'page')} swapped"
    if (gpu := log.get("other_gpu_share") or 0.0) > MAX_OTHER_GPU_SHARE:
        reason = f"other programs used {units.percent(gpu)} of the GPU"
        name = log.get("busiest_gpu_program")
        return f"{reason}, most {name}" if name else reason
    return ""


def unwatched(trials: Iterable[AnyTrial]) -> list[str]:
    """List the disturbances that could not be watched: those that a log has as None."""
    watched = {
        "steal_share": "CPU time stolen by other machines",
        "other_cores": "other programs",
        "other_gpu_share": "other programs on the GPU",
        "swapped_in_pages": "swapping",
    }
    logs = [trial.disturbance for trial in trials if trial.status == "ok"]
    return [
        words for name, words in watched.items() if any(log.get(name, 0) is None for log in logs)
    ]


def disturbed_note(disturbed: Mapping[int, str], *, left_out: bool) -> str:
    """Return which blocks were disturbed, in which variant's trials, and by what.

    Args:
        disturbed: block -> variant and reason.
        left_out: whether they do not count.
    """
    done = "disturbed, left out of the verdicts" if left_out else "disturbed"
    blocks = "; ".join(f"block {block + 1}, {why}" for block, why in disturbed.items())
    return f"{units.count(len(disturbed), 'block')} {done}: {blocks}"
