"""Which trials and blocks count, for reasons that were fixed before any run.

    trials ─ last attempt ─ cache state proved ─ machine its own ─ baseline complete ─▶ valid

A trial whose cache state is not what its label says is left out.  Where verdicts are given, a whole
block is rejected if the machine was disturbed (EVIDENCE 1: steal, other programs, swapping); other
runs only say so.  Nothing here looks at a time: dropping rows after seeing the times could make any
result.  Variants that did other work than the baseline are found in `equal_work`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from labkit import units
from labkit.contracts import Trial
from labkit.parts.storage.cache_state import CACHED_WITHIN, COLD_MAX_SHARE, WARM_MIN_SHARE
from labkit.resolve import traits
from labkit.settings import MIN_JUDGED_BLOCKS, MODES

# EVIDENCE 1, "Estimator": the only reasons for which a block is rejected.
MAX_STEAL_SHARE = 0.02
SWAPPED = "swapped"
# Of the cores that the trial left free, other programs may take a tenth: with more, they compete
# for cores, caches and memory.  A fifth of a core is what a quiet desktop takes.
MAX_OTHER_SHARE, MIN_OTHER_CORES = 0.1, 0.2
# Of the GPU; a desktop draws its windows with it.
MAX_OTHER_GPU_SHARE = 0.05
# The kernel counts in hundredths of a second: of a block, trials shorter than this are judged
# together.
MIN_JUDGED_S = 1.0
# Of the files' bytes a cold trial must fetch most from its device, a warm one next to none: whole
# pages, directories and programs blur it.
COLD_MIN_DEVICE_SHARE = 0.8
WARM_MAX_DEVICE_SHARE = 0.1
# A page of a library that is faulted in brings its neighbours along (300 KB were measured).
PROGRAM_BYTES = 1 << 20
# A second attempt's blocks are numbered from twice the planned ones: between lie replacements.
ATTEMPT_BLOCKS = 2


@dataclass(frozen=True, kw_only=True)
class ValidTrials:
    """What of a run's trials counts."""

    base_runs: dict[str, dict[int, list[Trial]]]
    """Group -> block -> its baseline's runs (A1, A2); only blocks in which these are complete."""
    runs: dict[str, dict[int, Trial]]
    """Variant -> block -> its run; baselines left out."""
    rejected: dict[int, str]
    """Block -> why the machine was not the run's own meanwhile."""
    are_rejected_left_out: bool
    """Whether rejected blocks are missing above: where verdicts are spoken."""
    cache_violations: dict[str, tuple[str, ...]]
    """Variant -> for each trial left out why its cache state is not what its label says."""

    @property
    def blocks(self) -> set[int]:
        """Blocks in which the baselines of all measured groups are complete."""
        complete = [set(blocks) for blocks in self.base_runs.values() if blocks]
        return set.intersection(*complete) if complete else set()


def valid_trials(
    info: Mapping[str, Any], trials: Sequence[Trial], attempt: int | None = None
) -> ValidTrials:
    """Return the trials that count.

    Args:
        info: what `run.json` holds; needs mode, baseline and variants.
        trials: the run's rows in the order they were written, of any status.
        attempt: 0 or 1; unset: the last one with blocks enough for verdicts, else the first.
    """
    mode, failed = MODES.get(info["mode"]), info.get("failed") or {}
    planned = info.get("blocks") or 0
    # A block repeated after a crash counts once, the first time.
    measured: dict[tuple[str, int, str], Trial] = {}
    for trial in trials:
        if trial.status == "ok" and trial.epochs and trial.variant not in failed:
            measured.setdefault((trial.variant, trial.block, trial.role), trial)
    if attempt is None:
        attempt = max((attempt_of(block, planned) for _, block, _ in measured), default=0)
        again = valid_trials(info, trials, attempt) if attempt else None
        if again is not None and len(again.blocks) < MIN_JUDGED_BLOCKS:
            attempt = 0  # too little to judge by: what was there before still stands
    measured = {
        key: trial for key, trial in measured.items() if attempt_of(key[1], planned) == attempt
    }
    counting: dict[tuple[str, int, str], Trial] = {}
    cache_violations: dict[str, list[str]] = {}
    for key, trial in measured.items():
        if violation := cache_violation(trial):
            cache_violations.setdefault(trial.variant, []).append(violation)
        else:
            counting[key] = trial
    rejected = disturbed_blocks(measured.values())
    is_twice = is_baseline_run_twice(info)
    leaves_out = mode is not None and mode.judged and is_twice
    if leaves_out:
        counting = {key: trial for key, trial in counting.items() if trial.block not in rejected}
    blocks = sorted({block for _, block, _ in counting})
    roles = ("A1", "A2") if is_twice else ("A1",)
    base_runs = {}
    for group, baseline in baselines_of(info).items():
        runs_of = {b: [counting.get((baseline, b, role)) for role in roles] for b in blocks}
        base_runs[group] = {b: runs for b, runs in runs_of.items() if None not in runs}
    runs = {
        name: {
            b: counting[name, b, ""]
            for b in base_runs[group_of(info, name)]
            if (name, b, "") in counting
        }
        for name in info["variants"]
        if name not in baselines_of(info).values()
    }
    return ValidTrials(
        base_runs=base_runs,
        runs=runs,
        rejected=rejected,
        are_rejected_left_out=leaves_out,
        cache_violations={name: tuple(reasons) for name, reasons in cache_violations.items()},
    )


def baselines_of(info: Mapping[str, Any]) -> dict[str, str]:
    """Return group -> its baseline; a run without groups has one, "".

    Args:
        info: what `run.json` holds.
    """
    return info.get("baselines") or {"": info["baseline"]}


def group_of(info: Mapping[str, Any], variant: str) -> str:
    """Return what a variant is compared within; empty where a run has no groups."""
    return (info.get("groups") or {}).get(variant, "")


def is_baseline_run_twice(info: Mapping[str, Any]) -> bool:
    """Whether a run's blocks hold A1 and A2; before that was recorded, the mode told."""
    mode = MODES.get(info["mode"])
    return info.get("shuffled", mode is None or mode.shuffled)


def attempt_of(block: int, planned: int) -> int:
    """Return the attempt that a block belongs to: 0, or 1 after an unstable first."""
    return block // (ATTEMPT_BLOCKS * planned) if planned else 0


def cache_violation(trial: Trial) -> str:
    """Return why a trial's cache state is not what its label says; empty where it is proved.

    Residency is looked at before the epochs, and the device's bytes over all of them.  One of the
    two suffices as proof; where neither is known, a trial is not known to be cold.  Where a
    percentage was to be in memory, residency is looked at before every epoch, and has to be known.
    """
    proof = trial.cache_proof
    wanted, before = trial.labels.get("cache"), proof.get("resident_share_before")
    fetched, files = proof.get("device_read_bytes"), proof.get("file_bytes")
    # A resident batch was read before the epochs: no byte of them shows.
    is_read = "loading" not in traits(trial.settings).leaves_out
    from_device = fetched / files if fetched is not None and files and is_read else None
    if (percent := trial.settings.get("cached")) is not None:
        shares = shares_before(trial)
        if None in shares:
            return f"not known to be {wanted}: memory could not be looked at"
        for number, share in enumerate(shares, 1):
            if not math.isclose(share, percent / 100, rel_tol=0, abs_tol=CACHED_WITHIN):
                held = units.percent(share)
                return f"not {wanted}: {held} of the data was in memory before epoch {number}"
        missing = sum(1 - share for share in shares)
        if from_device is not None and from_device < COLD_MIN_DEVICE_SHARE * missing:
            came, lacked = units.percent(from_device / missing), "of what memory lacked"
            return f"not {wanted}: only {came} {lacked} came from disk"
    if wanted == "cold":
        if before is not None and before > COLD_MAX_SHARE:
            return f"not cold: {units.percent(before)} of the files were in memory"
        # Where memory cannot be looked at, the bytes alone are the proof.
        least = 1 - COLD_MAX_SHARE if before is None else COLD_MIN_DEVICE_SHARE
        if from_device is not None and from_device < least:
            return f"not cold: only {units.percent(from_device)} of the files' bytes came from disk"
        if before is None and from_device is None:
            return "not known to be cold: neither memory nor the disk's bytes could be looked at"
    if wanted == "warm":
        after = proof.get("resident_share_after")
        for share, when in ((before, "before"), (after, "after the epochs")):
            if share is not None and share < WARM_MIN_SHARE:
                return f"not warm: {units.percent(share)} of the files were in memory {when}"
        # Where memory can be looked at, that is the better proof: programs are read, too.
        most_bytes = WARM_MAX_DEVICE_SHARE * (files or 0) + PROGRAM_BYTES
        if before is None and from_device is not None and fetched > most_bytes:
            return f"not warm: {units.percent(from_device)} of the files' bytes came from disk"
    return ""


def shares_before(trial: Trial) -> list[float | None]:
    """Return the shares of the data that memory was measured to hold before epochs."""
    proof = trial.cache_proof
    return proof.get("resident_shares_before") or [proof.get("resident_share_before")]


def disturbed_blocks(trials: Iterable[Trial]) -> dict[int, str]:
    """Return block -> what kept the machine from being its own; other blocks are left out."""
    found: dict[int, str] = {}
    short: dict[int, list[Mapping]] = {}
    for trial in trials:
        log = trial.disturbance
        if log.get("duration_s", math.inf) < MIN_JUDGED_S:
            short.setdefault(trial.block, []).append(log)
        elif why := why_disturbed(log):
            found.setdefault(trial.block, f"{trial.variant}: {why}")
    for block, logs in short.items():
        if why := why_disturbed(_joined(logs)):
            found.setdefault(block, why)
    return dict(sorted(found.items()))


def _joined(logs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the logs of short trials: means over their time, the sum of pages."""
    total_s = sum(log["duration_s"] for log in logs)
    joined: dict[str, Any] = {
        name: sum((log.get(name) or 0.0) * log["duration_s"] for log in logs) / total_s
        for name in ("steal_share", "other_cores", "free_cores", "other_gpu_share")
    }
    for name in ("swapped_in_pages", "swapped_out_pages"):
        joined[name] = sum(log.get(name) or 0 for log in logs)
    return joined


def why_disturbed(log: Mapping[str, Any]) -> str:
    """Return what kept the machine from being a trial's own; empty where nothing did.

    What could not be watched is no reason, see `unwatched`.  Earlier versions did not record
    free_cores.
    """
    steal, others = log.get("steal_share") or 0.0, log.get("other_cores") or 0.0
    allowed = max(MIN_OTHER_CORES, MAX_OTHER_SHARE * (log.get("free_cores") or 0.0))
    swapped = (log.get("swapped_in_pages") or 0) + (log.get("swapped_out_pages") or 0)
    if steal > MAX_STEAL_SHARE:
        return f"{units.percent(steal)} of the CPU time was stolen by other machines"
    if others > allowed:
        return f"other programs took {units.percent(others)} of a core"
    if swapped:
        return f"{units.count(swapped, 'page')} {SWAPPED}"
    if (gpu := log.get("other_gpu_share") or 0.0) > MAX_OTHER_GPU_SHARE:
        reason = f"other programs used {units.percent(gpu)} of the GPU"
        name = log.get("busiest_gpu_program")
        return f"{reason}, most {name}" if name else reason
    return ""


# What a log may hold as None -> what could not be watched then.
WATCHED = {
    "steal_share": "CPU time stolen by other machines",
    "other_cores": "other programs",
    "other_gpu_share": "other programs on the GPU",
    "swapped_in_pages": "swapping",
}


def unwatched(trials: Iterable[Trial]) -> list[str]:
    """List what no block could be rejected for, as it could not be watched."""
    logs = [trial.disturbance for trial in trials if trial.status == "ok"]
    return [
        words for name, words in WATCHED.items() if any(log.get(name, 0) is None for log in logs)
    ]


def rejected_note(rejected: Mapping[int, str], *, left_out: bool) -> str:
    """Return how many blocks were disturbed, and one reason of each kind.

    Args:
        rejected: block -> reason.
        left_out: whether they do not count.
    """
    done = "rejected" if left_out else "disturbed (full mode rejects them)"
    # The same reason with another figure is the same reason.
    kinds = {re.sub(r"^.*?: |[\d.,]+", "", why): why for why in reversed([*rejected.values()])}
    return f"{units.count(len(rejected), 'block')} {done}: {'; '.join(reversed([*kinds.values()]))}"


def a_over_a(valid: ValidTrials) -> list[float]:
    """Return ln(A2/A1) of every block, the mean of its groups; nothing where it ran once.

    A block counts once, whatever its groups: they share what disturbs them.
    """
    found: dict[int, list[float]] = {}
    for blocks in valid.base_runs.values():
        for block, runs in blocks.items():
            if len(runs) == 2:
                log_ratio = math.log(runs[1].time_s / runs[0].time_s)
                found.setdefault(block, []).append(log_ratio)
    return [fmean(found[block]) for block in sorted(found)]
