"""From raw trials to rows: one summary per run, ready for tables and charts.

    trials -> complete blocks -> paired log-ratios -> one Row per variant -> Summary

The formulas are in `statistics`, plain averages in `averages`.  A block is one repetition;
images and steps are not.  Nothing is dropped: a block counts unless it is incomplete.  Main
trap: a variant without numbers keeps its row, which says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, geometric_mean, stdev

from labkit import units
from labkit.averages import average
from labkit.settings import AS_PUBLISHED, CORRECTED, MIN_JUDGED_BLOCKS, MODES
from labkit.statistics import (
    ALPHA,
    DELTA,
    blocks_needed,
    detectable_share,
    holm,
    p_value,
    ratio_interval,
    verdict,
)
from labkit.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant's numbers; None is unknown."""

    variant: str
    status: str
    """ok, skipped, failed, cancelled, or missing (no complete block)."""
    reason: str = ""
    normalized_time: float | None = None
    """Geometric mean over blocks of the variant's time over the baseline's; lower is better."""
    ci_low: float | None = None
    """Lower end of the 95 % interval, Holm-adjusted; None below two blocks."""
    ci_high: float | None = None
    ratios: tuple[float, ...] = ()
    """One per complete block; the baseline has its two runs of each block against their mean."""
    blocks: int = 0
    """Complete blocks."""
    time_s: float | None = None
    """Geometric mean of a trial's epochs added up."""
    images_per_s: float | None = None
    """All images over all epoch seconds, start-up included."""
    published: float | None = None
    """The normalized time that the document reported."""
    verdict: str = ""
    """Empty where nothing is judged."""
    epochs_s: tuple[tuple[float, ...], ...] = ()
    """The epochs of every counted trial, in the order of `ratios`."""
    epoch1_s: float | None = None
    epoch2_s: float | None = None
    startup_s: float | None = None
    """Mean per epoch."""
    steady_images_per_s: float | None = None
    """Images per second after the first batch."""
    wait_share: float | None = None
    """Share of the epochs in which the host waited for data."""
    transfer_share: float | None = None
    compute_share: float | None = None
    """Share of the epochs in which the device computed, where the device tells."""
    stall_share: float | None = None
    """Share of the epochs in which the device did not compute."""
    cpu_percent: float | None = None
    gpu_util: float | None = None
    """Percent, as NVML reports it."""
    emulated_busy_share: float | None = None
    peak_rss_bytes: int | None = None
    resident_share_before: float | None = None
    """Share of the files' pages that memory held before epoch 1; measured."""
    device_read_share: float | None = None
    """Bytes fetched from a device, of those asked for, over all epochs."""
    swapped_pages: int | None = None
    """Pages that the machine swapped in or out during this variant's trials."""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One run of one experiment, ready for tables and charts."""

    experiment: str
    question: str
    mode: str
    baseline: str
    source: str
    rows: tuple[Row, ...]
    """The baseline first, then the variants in their given order."""
    epochs: int
    """Epochs per trial: what `time_s` adds up."""
    n_blocks: int
    """Blocks in which the baseline is complete."""
    aa_ratio: float | None
    """Geometric mean of A2 over A1: 1 on a steady machine."""
    aa_low: float | None
    aa_high: float | None
    aa_s: float | None
    """Standard deviation of ln(A2/A1): the machine's noise floor."""
    mde: float | None
    """Smallest effect that every row would show with 80 % power, as a share."""
    labels: dict[str, str]
    """What all measured rows have in common."""
    protocol: str
    """Corrected, or as in the document."""
    notes: tuple[str, ...]
    judged: bool
    """Whether the verdicts are filled."""


def summarize(info: Mapping[str, object], trials: Sequence[Trial]) -> Summary:
    """Derive one row per variant from a run's raw trials.

    Args:
        info: what `run.json` holds; needs experiment, mode, baseline and variants.
        trials: the run's rows in the order they were written, of any status.

    Returns:
        The rows, the noise floor and sentences about what is missing.
    """
    mode = MODES.get(info["mode"])
    # Runs from before the protocol was recorded: the mode told.
    twice = info.get("shuffled", mode is None or mode.shuffled)
    base_runs, runs = _complete_blocks(info, trials, twice=twice)
    log_ratios = {name: _log_ratios(by_block, base_runs) for name, by_block in runs.items()}
    floors = {name for name in runs if _is_floor(info["variants"][name])}
    testable = [name for name, d in log_ratios.items() if len(d) >= 2]
    judged_together = [name for name in testable if name not in floors]
    levels = dict.fromkeys(testable, ALPHA)
    levels |= zip(judged_together, holm([p_value(log_ratios[name]) for name in judged_together]))
    pairs = base_runs.values() if twice else []
    aa = [math.log(a2.time_s / a1.time_s) for a1, a2 in pairs]
    aa_low, aa_high = ratio_interval(aa, ALPHA)
    stable = aa_low is None or aa_low <= 1 <= aa_high
    # A fixed order confounds a variant with its place in it: nothing to judge.
    judged = mode is not None and mode.judged and twice and len(base_runs) >= MIN_JUDGED_BLOCKS

    rows = [_baseline_row(info, base_runs, trials, judged=judged)]
    for name, d in log_ratios.items():
        words = judged and len(d) >= MIN_JUDGED_BLOCKS and name not in floors
        said = verdict(d, levels[name], stable=stable) if words else ""
        outcome = _outcome(name, info, trials, measured=bool(d))
        rows.append(_variant_row(outcome, d, levels.get(name), said, list(runs[name].values())))
    effects = [detectable_share(log_ratios[name], levels[name]) for name in judged_together]
    inconclusive = [row.variant for row in rows if row.verdict == "inconclusive"]
    return Summary(
        experiment=info["experiment"],
        question=info.get("question") or info["experiment"],
        mode=info["mode"],
        baseline=info["baseline"],
        source=info.get("source") or "",
        rows=tuple(rows),
        epochs=max((len(trial.epochs) for trial in trials if trial.status == "ok"), default=2),
        n_blocks=len(base_runs),
        aa_ratio=math.exp(fmean(aa)) if aa else None,
        aa_low=aa_low,
        aa_high=aa_high,
        aa_s=stdev(aa) if len(aa) >= 2 else None,
        mde=max(effects, default=None),
        labels=_common_labels(info, rows),
        protocol=info.get("protocol") or CORRECTED,
        notes=(
            *(info.get("notes") or ()),
            *_run_notes(info, len(base_runs), judged=judged, stable=stable),
            *_row_notes(rows, trials, len(base_runs)),
            *(_inconclusive_note(name, log_ratios[name], levels[name]) for name in inconclusive),
        ),
        judged=judged,
    )


def _is_floor(settings: Mapping[str, object]) -> bool:
    """Whether a variant does only part of the work: it is no remedy to be judged."""
    return settings.get("step") == "nothing" or settings.get("loader") == "resident"


def _complete_blocks(
    info: Mapping, trials: Sequence[Trial], *, twice: bool
) -> tuple[dict[int, list[Trial]], dict[str, dict[int, Trial]]]:
    """Keep the blocks in which the baseline is complete.

    Returns:
        block -> the baseline's runs (A1, A2); variant -> block -> its run.
    """
    done: dict[tuple[str, int, str], Trial] = {}
    for trial in trials:
        if trial.status == "ok" and trial.epochs:
            # A block repeated after a crash counts once, the first time.
            done.setdefault((trial.variant, trial.block, trial.role), trial)
    baseline, roles = info["baseline"], ("A1", "A2") if twice else ("A1",)
    base_runs = {}
    for block in sorted({block for _, block, _ in done}):
        if all((baseline, block, role) in done for role in roles):
            base_runs[block] = [done[baseline, block, role] for role in roles]
    runs = {
        name: {block: done[name, block, ""] for block in base_runs if (name, block, "") in done}
        for name in info["variants"]
        if name != baseline
    }
    return base_runs, runs


def _log_ratios(by_block: dict[int, Trial], base_runs: dict[int, list[Trial]]) -> list[float]:
    return [
        math.log(trial.time_s) - fmean(math.log(run.time_s) for run in base_runs[block])
        for block, trial in by_block.items()
    ]


def _baseline_row(
    info: Mapping, base_runs: dict[int, list[Trial]], trials: Sequence[Trial], *, judged: bool
) -> Row:
    runs = [trial for block in base_runs.values() for trial in block]
    return Row(
        **_outcome(info["baseline"], info, trials, measured=bool(runs)),
        normalized_time=1.0 if runs else None,  # by definition, so it has no interval
        ratios=tuple(
            trial.time_s / geometric_mean(run.time_s for run in block)
            for block in base_runs.values()
            for trial in block
        ),
        blocks=len(base_runs),
        verdict="baseline" if judged else "",
        **average(runs),
    )


def _variant_row(
    outcome: dict, d: Sequence[float], level: float | None, said: str, runs: Sequence[Trial]
) -> Row:
    low, high = ratio_interval(d, level)
    return Row(
        **outcome,
        normalized_time=math.exp(fmean(d)) if d else None,
        ci_low=low,
        ci_high=high,
        ratios=tuple(math.exp(x) for x in d),
        blocks=len(d),
        verdict=said,
        **average(runs),
    )


def _outcome(name: str, info: Mapping, trials: Sequence[Trial], *, measured: bool) -> dict:
    """Say whether a variant has numbers, and if not, why."""
    published = (info.get("published") or {}).get(name)
    status, reason = "ok", ""
    if not measured:
        others = [trial for trial in trials if trial.variant == name and trial.status != "ok"]
        if name in (info.get("skipped") or {}):
            status, reason = "skipped", info["skipped"][name]
        elif others:
            status, reason = others[-1].status, others[-1].reason
        elif any(trial.variant == name for trial in trials):
            status, reason = "missing", "no block in which this and the baseline are complete"
        else:
            status, reason = "missing", "not measured"
    return {"variant": name, "published": published, "status": status, "reason": reason}


def _common_labels(info: Mapping, rows: Sequence[Row]) -> dict[str, str]:
    labelled = [row.labels for row in rows if row.labels]
    if not labelled:
        return {"accelerator": info["accelerator"]} if info.get("accelerator") else {}
    first, *others = labelled
    return {k: v for k, v in first.items() if all(labels.get(k) == v for labels in others)}


def _run_notes(info: Mapping, n_blocks: int, *, judged: bool, stable: bool) -> list[str]:
    notes, mode, planned = [], info["mode"], info.get("blocks") or 0
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
    if n_blocks < planned:
        state = {"running": "not finished", "cancelled": "cancelled"}.get(info.get("status"), "")
        notes.append(f"{state or 'incomplete'}: {n_blocks} of {planned} blocks are complete")
    if judged and not stable:
        notes.append(
            "machine unstable: the baseline's own two runs differ systematically; "
            "close other programs and run again"
        )
    return notes


def _row_notes(rows: Sequence[Row], trials: Sequence[Trial], n_blocks: int) -> list[str]:
    notes = []
    for row in rows:
        failures = [t for t in trials if t.variant == row.variant and t.status == "failed"]
        if row.status == "ok" and row.blocks < n_blocks:
            notes.append(f"{row.variant}: {row.blocks} of {n_blocks} blocks")
        if row.status == "ok" and failures:
            notes.append(f"{row.variant}: failed {len(failures)}×, last: {failures[-1].reason}")
    return notes


def _inconclusive_note(name: str, d: Sequence[float], alpha: float) -> str:
    seen, needed = detectable_share(d, alpha), blocks_needed(stdev(d), alpha)
    note = f"{name}: inconclusive; these blocks show effects from {units.percent(seen)} up"
    if needed > len(d):
        note += f", about {needed} blocks would show {units.percent(DELTA)}"
    return note
