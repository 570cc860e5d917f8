"""From raw trials to rows: paired log-ratios, intervals and verdicts, all pure functions.

    trials -> complete blocks -> ln(T_variant / gm(T_A1, T_A2)) -> t-interval -> verdict

A block is one repetition, and pairing inside it cancels the machine's drift; images and steps
are not repetitions.  Nothing is dropped: a block counts unless it is incomplete.  Main trap:
"not significant" is not "the same", so equality is a verdict that must be earned.

Source: EVIDENCE section 1 (estimator, Holm, minimum detectable effect, order of verdicts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from labkit import units
from labkit.settings import MIN_JUDGED_BLOCKS, MODES
from labkit.trial import Epoch, Trial

ALPHA = 0.05
# A difference that people would act on; fixed before any run.
DELTA = 0.03
POWER = 0.8


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
    base_runs, runs = _complete_blocks(info, trials, twice=mode is None or mode.shuffled)
    log_ratios = {name: _log_ratios(by_block, base_runs) for name, by_block in runs.items()}
    testable = [name for name, d in log_ratios.items() if len(d) >= 2]
    levels = dict(zip(testable, holm([p_value(log_ratios[name]) for name in testable])))
    aa = [math.log(a2.time_s / a1.time_s) for a1, a2 in filter(_is_pair, base_runs.values())]
    aa_low, aa_high = _ratio_interval(aa, ALPHA)
    stable = aa_low is None or aa_low <= 1 <= aa_high
    judged = mode is not None and mode.judged and len(base_runs) >= MIN_JUDGED_BLOCKS

    rows = [_baseline_row(info, base_runs, trials, judged=judged)]
    for name, d in log_ratios.items():
        words = judged and len(d) >= MIN_JUDGED_BLOCKS
        said = verdict(d, levels[name], stable=stable) if words else ""
        outcome = _outcome(name, info, trials, measured=bool(d))
        rows.append(_variant_row(outcome, d, levels.get(name), said, list(runs[name].values())))
    effects = [detectable_share(log_ratios[name], level) for name, level in levels.items()]
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
        notes=(
            *(info.get("notes") or ()),
            *_run_notes(info, len(base_runs), judged=judged, stable=stable),
            *_row_notes(rows, trials, len(base_runs)),
            *(_inconclusive_note(name, log_ratios[name], levels[name]) for name in inconclusive),
        ),
        judged=judged,
    )


def paired_interval(d: Sequence[float], alpha: float) -> tuple[float, float]:
    """Bound the mean of paired log-ratios by Student's t.

    Args:
        d: one log-ratio per block, at least two.
        alpha: 0.05 for a 95 % interval.

    Returns:
        Lower and upper bound, still as logarithms.

    Raises:
        ValueError: fewer than two blocks.
    """
    from scipy.special import stdtrit

    n = len(d)
    if n < 2:
        raise ValueError(f"d must be at least 2 blocks, got {n}; measure more blocks")
    half = float(stdtrit(n - 1, 1 - alpha / 2)) * stdev(d) / math.sqrt(n)
    return fmean(d) - half, fmean(d) + half


def p_value(d: Sequence[float]) -> float:
    """Test against "no difference" with a two-sided paired t-test.

    Args:
        d: one log-ratio per block, at least two.
    """
    from scipy.special import stdtr

    mean, s = fmean(d), stdev(d)
    if s == 0:  # identical blocks: any difference is beyond doubt, and none is none
        return float(mean == 0)
    return 2 * float(stdtr(len(d) - 1, -abs(mean) * math.sqrt(len(d)) / s))


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """Give each of several tests its own level, so that together they err with `alpha`.

    The smallest p-value is examined at alpha/m, the next at alpha/(m-1), and so on.  Where
    one fails, the rest are examined no more leniently: an interval then excludes 1 exactly
    if Holm's procedure rejects.

    Returns:
        One level per test, in the given order.
    """
    levels, m, stopped = [0.0] * len(p_values), len(p_values), None
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        levels[i] = stopped or alpha / (m - rank)
        if stopped is None and p_values[i] > levels[i]:
            stopped = levels[i]
    return levels


def detectable_share(d: Sequence[float], alpha: float) -> float:
    """Say how large an effect must be to be seen with 80 % power, given these blocks' noise.

    Args:
        d: one log-ratio per block, at least two.
        alpha: the level that is really used, Holm included.

    Returns:
        A share: 0.05 is a variant that takes 1.05 times as long.
    """
    from scipy.special import stdtrit

    n = len(d)
    quantiles = float(stdtrit(n - 1, 1 - alpha / 2)) + float(stdtrit(n - 1, POWER))
    return math.expm1(quantiles * stdev(d) / math.sqrt(n))


def blocks_needed(s: float, alpha: float) -> int:
    """Estimate how many blocks would show an effect of `DELTA` with 80 % power.

    Args:
        s: standard deviation of the log-ratios.
        alpha: the level that is really used.
    """
    from scipy.special import ndtri

    # At 5 % the quantiles add up to 2.8; two more blocks pay for not knowing s.
    quantiles = float(ndtri(1 - alpha / 2)) + float(ndtri(POWER))
    return math.ceil((quantiles * s / DELTA) ** 2 + 2)


def verdict(d: Sequence[float], alpha: float, *, stable: bool) -> str:
    """Put one variant's log-ratios into words, in EVIDENCE's order.

    Args:
        d: one log-ratio per block.
        alpha: level of the interval, from `holm`.
        stable: the baseline's two runs agree.

    Returns:
        machine unstable, no practical difference, faster, slower, real but small, or
        inconclusive.
    """
    practical = math.log1p(DELTA)
    low, high = paired_interval(d, alpha)
    # A 90 % interval inside the band is two one-sided tests at 5 % each.
    equal_low, equal_high = paired_interval(d, 2 * ALPHA)
    if not stable:
        return "machine unstable"
    if -practical <= equal_low and equal_high <= practical:
        return "no practical difference"
    if low <= 0 <= high:
        return "inconclusive"
    if abs(fmean(d)) < practical:
        return "real but small"
    return "faster" if high < 0 else "slower"


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


def _is_pair(runs: Sequence[Trial]) -> bool:
    return len(runs) == 2


def _log_ratios(by_block: dict[int, Trial], base_runs: dict[int, list[Trial]]) -> list[float]:
    return [
        math.log(trial.time_s) - _mean_log_time(base_runs[block])
        for block, trial in by_block.items()
    ]


def _mean_log_time(runs: Sequence[Trial]) -> float:
    return fmean(math.log(trial.time_s) for trial in runs)


def _ratio_interval(d: Sequence[float], alpha: float | None) -> tuple[float | None, float | None]:
    if len(d) < 2:
        return None, None
    low, high = paired_interval(d, alpha)
    return math.exp(low), math.exp(high)


def _baseline_row(
    info: Mapping, base_runs: dict[int, list[Trial]], trials: Sequence[Trial], *, judged: bool
) -> Row:
    runs = [trial for block in base_runs.values() for trial in block]
    return Row(
        **_outcome(info["baseline"], info, trials, measured=bool(runs)),
        normalized_time=1.0 if runs else None,  # by definition, so it has no interval
        ratios=tuple(
            trial.time_s / math.exp(_mean_log_time(block))
            for block in base_runs.values()
            for trial in block
        ),
        blocks=len(base_runs),
        verdict="baseline" if judged else "",
        **_measures(runs),
    )


def _variant_row(
    outcome: dict, d: Sequence[float], level: float | None, said: str, runs: Sequence[Trial]
) -> Row:
    low, high = _ratio_interval(d, level)
    return Row(
        **outcome,
        normalized_time=math.exp(fmean(d)) if d else None,
        ci_low=low,
        ci_high=high,
        ratios=tuple(math.exp(x) for x in d),
        blocks=len(d),
        verdict=said,
        **_measures(runs),
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


def _measures(runs: Sequence[Trial]) -> dict[str, object]:
    """Average everything but the normalized time over a variant's counted trials."""
    if not runs:
        return {}
    epochs = [epoch for trial in runs for epoch in trial.epochs]
    total_s = sum(epoch.epoch_s for epoch in epochs)

    def share(part_s: Callable[[Epoch], float | None]) -> float | None:
        parts_s = [part_s(epoch) for epoch in epochs]
        return None if None in parts_s else sum(parts_s) / total_s

    compute_share = share(lambda epoch: epoch.compute_s)
    first_s = [trial.epochs[0].epoch_s for trial in runs]
    second_s = [trial.epochs[1].epoch_s for trial in runs if len(trial.epochs) > 1]
    memory = [trial.peak_rss_bytes for trial in runs if trial.peak_rss_bytes is not None]
    return {
        "time_s": math.exp(_mean_log_time(runs)),
        "images_per_s": sum(epoch.images for epoch in epochs) / total_s,
        "epoch1_s": math.exp(fmean(map(math.log, first_s))),
        "epoch2_s": math.exp(fmean(map(math.log, second_s))) if second_s else None,
        "startup_s": fmean(epoch.startup_s for epoch in epochs),
        "steady_images_per_s": _steady_images_per_s(epochs),
        "wait_share": share(lambda epoch: epoch.wait_s),
        "transfer_share": share(lambda epoch: epoch.transfer_s),
        "compute_share": compute_share,
        "stall_share": None if compute_share is None else 1 - compute_share,
        "cpu_percent": _mean_known(trial.cpu_percent for trial in runs),
        "gpu_util": _mean_known(trial.gpu_util_mean for trial in runs),
        "emulated_busy_share": _mean_known(trial.emulated_busy_share for trial in runs),
        "peak_rss_bytes": max(memory, default=None),
        "labels": _merge_labels(runs),
    }


def _steady_images_per_s(epochs: Sequence[Epoch]) -> float | None:
    images = sum(epoch.images * (epoch.steps - 1) / epoch.steps for epoch in epochs if epoch.steps)
    left_s = sum(epoch.epoch_s - epoch.first_batch_s for epoch in epochs)
    return images / left_s if images and left_s > 0 else None


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _merge_labels(runs: Sequence[Trial]) -> dict[str, str]:
    names = dict.fromkeys(name for trial in runs for name in trial.labels)
    return {
        name: " / ".join(dict.fromkeys(t.labels[name] for t in runs if name in t.labels))
        for name in names
    }


def _common_labels(info: Mapping, rows: Sequence[Row]) -> dict[str, str]:
    labelled = [row.labels for row in rows if row.labels]
    if not labelled:
        return {"accelerator": info["accelerator"]} if info.get("accelerator") else {}
    first, *others = labelled
    return {k: v for k, v in first.items() if all(labels.get(k) == v for labels in others)}


def _run_notes(info: Mapping, n_blocks: int, *, judged: bool, stable: bool) -> list[str]:
    notes, mode, planned = [], info["mode"], info.get("blocks") or 0
    if mode in MODES and not MODES[mode].judged:
        notes.append(f"{mode} mode: numbers, no verdicts")
    elif not judged:
        notes.append(f"{n_blocks} complete blocks: verdicts need at least {MIN_JUDGED_BLOCKS}")
    if n_blocks < planned:
        state = {"running": "still running", "cancelled": "cancelled"}.get(info.get("status"), "")
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
