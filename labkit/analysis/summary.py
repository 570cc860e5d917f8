"""From raw trials to rows: one summary per run, ready for tables and charts.

    trials -> blocks that count -> paired log-ratios -> one Row per variant -> Summary

The formulas are in `statistics`, what counts in `validity`.  A block is one repetition; images and
steps are not.  A variant without numbers keeps its row, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, geometric_mean, stdev
from typing import Any

from labkit import units
from labkit.analysis.published import compare
from labkit.analysis.statistics import (
    ALPHA,
    DELTA,
    UNSTABLE,
    blind_below,
    blocks_needed,
    detectable_share,
    is_stable,
    judge,
    log_ratio,
    outliers,
    ratio_interval,
)
from labkit.analysis.validity import (
    ValidTrials,
    a_over_a,
    disturbed_note,
    shares_before,
    unwatched,
    valid_trials,
)
from labkit.records import (
    EPOCHS,
    ROOFLINE,
    AnyTrial,
    Calibration,
    Epoch,
    Facts,
    Hardware,
    RunInfo,
    Trial,
)
from labkit.settings import AS_PUBLISHED, MIN_JUDGED_BLOCKS, MODES
from labkit.steady_rate import SteadyRate, arrivals_of, steady_rate

# Settings on which the rate of a real device with the model alone depends.
STEP = (
    "step", "gpu_slowdown", "loss", "precision", "memory_format", "input_px", "batch_size",
    "ranks", "exchange",
)  # fmt: skip
LISTED_IMAGES = 5  # unreadable ones that a note names


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant's numbers; None is unknown."""

    variant: str
    group: str = ""
    """What it is compared within; empty where all variants compare."""
    status: str
    """ok, skipped, failed, cancelled, or missing (no complete block)."""
    reason: str = ""
    normalized_time: float | None = None
    """Geometric mean over blocks of the variant's time over the baseline's; lower is better."""
    ci_low: float | None = None
    """Lower end of the 95 % interval; None below two blocks."""
    ci_high: float | None = None
    ratios: tuple[float, ...] = ()
    """One per complete block; the baseline has its two runs of each block against their mean."""
    outliers: tuple[int, ...] = ()
    """Places in `ratios` of values far from the others; shown, never dropped."""
    blocks: int = 0
    """Complete blocks that count."""
    disturbed: tuple[tuple[int, float], ...] = ()
    """Block and ratio of its trials in disturbed blocks that are left out of the verdict."""
    left_out: int = 0
    """Trials that do not count, as their cache state is not what their label says."""
    s: float | None = None
    """Standard deviation of the log-ratios; None below two blocks."""
    level: float | None = None
    """Level of the verdict's test: 0.05 alone, less by Holm's procedure among others."""
    mde: float | None = None
    """Smallest effect that these blocks would show with 80 % power, as a share."""
    time_s: float | None = None
    """Geometric mean of a trial's epochs added up."""
    images_per_s: float | None = None
    """All images over all epoch seconds, start-up included."""
    published: float | None = None
    """The normalized time that the document reported."""
    agreement: str = ""
    """One of `published.WORDS`; empty where nothing is judged or was published."""
    verdict: str = ""
    """Empty where nothing is judged."""
    epochs_s: tuple[tuple[float, ...], ...] = ()
    """The epochs of every valid trial, in the order of `ratios`; of operations, one time each."""
    startups_s: tuple[tuple[float, ...], ...] = ()
    """What starting up took of each of them."""
    in_blocks: tuple[int, ...] = ()
    """The block of each of them: what one variant is paired with another by."""
    epoch1_s: float | None = None
    epoch2_s: float | None = None
    startup_s: float | None = None
    """Mean per epoch."""
    steady_images_per_s: float | None = None
    """Images per second over whole rounds of workers, of all trials; see `labkit.steady_rate`."""
    steady_rates: tuple[float, ...] = ()
    """The same of every valid trial, in the order of `in_blocks`; empty where one is unknown."""
    steady_reason: str = ""
    """Why there is no steady rate."""
    wait_share: float | None = None
    """Share of the epochs in which the host waited for data."""
    transfer_share: float | None = None
    step_share: float | None = None
    """Share of the epochs in which the host ran, or launched, forward and backward pass."""
    sync_share: float | None = None
    """Share of the epochs in which the host waited for the device, as `sync_every` asks for."""
    compute_share: float | None = None
    """Share of the epochs in which the device computed, where the device tells."""
    stall_share: float | None = None
    """Share of the epochs in which the device did not compute."""
    cpu_percent: float | None = None
    gpu_util: float | None = None
    """Share of NVML's periods in which some kernel ran."""
    emulated_busy_share: float | None = None
    cpu_s_per_1000_images: float | None = None
    """CPU-seconds of the training process and its workers; the cheapest of equals is [002]'s."""
    wait_p50_s: float | None = None
    """Median over all steps of the host's wait for a batch."""
    wait_p99_s: float | None = None
    """What one step in a hundred waits longer than."""
    peak_rss_bytes: int | None = None
    peak_pss_bytes: int | None = None
    """Proportional memory of the training process and its workers, the largest seen."""
    peak_shm_bytes: int | None = None
    """Of /dev/shm, the most seen."""
    gpu_memory_bytes: int | None = None
    """Of the whole GPU, by whatever program; the most seen."""
    gpu_allocated_bytes: int | None = None
    """What torch's tensors held of it at most."""
    gpu_reserved_bytes: int | None = None
    """What torch's allocator had taken of it at most: the rest of it is cache."""
    resident_share_before: float | None = None
    """Share of the files' pages that memory held before epoch 1, or before every epoch where
    `cached` is set: the furthest from what was asked; measured."""
    device_read_share: float | None = None
    """Bytes fetched from a device, of those asked for, over all epochs."""
    swapped_pages: int | None = None
    """Pages that the machine swapped in or out during this variant's trials."""
    hardware: tuple[Hardware, ...] = ()
    """All that its trials used."""
    labels: dict[str, str] = field(default_factory=dict)
    device_images_per_s: float | None = None
    """The device's rate with the model alone."""
    load_images_per_s: float | None = None
    """The run's own loading rate: the steady rate of the group's baseline, which is the loading
    rate where the loader is the limit; where the device is, it is the device's.  In a roofline, of
    the baseline's loading alone."""
    x: float | None = None
    """The device's rate ÷ the loading rate; None, like both, on a device that is not the
    baseline's."""

    @property
    def name(self) -> str:
        """The label without the group."""
        return self.variant.removeprefix(f"{self.group}: ")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One run of one experiment, ready for tables and charts."""

    info: RunInfo
    run: str
    """The run folder's name; empty of rows that are not on disk."""
    question: str
    mode: str
    baseline: str
    rows: tuple[Row, ...]
    """Group by group: its baseline first, then the variants in their given order."""
    epochs: int
    """Epochs per trial: what `time_s` adds up."""
    n_blocks: int
    """Blocks that count and in which the baseline is complete."""
    n_undisturbed: int
    """Of these, the blocks that a verdict may rest on."""
    disturbed: Mapping[int, str]
    """Block -> in which variant's trials the machine was disturbed, and by what."""
    are_disturbed_left_out: bool
    """Where enough other blocks remain for verdicts; elsewhere they count, and it is only said."""
    aa_ratio: float | None
    """Geometric mean of A2 over A1: 1 on a steady machine."""
    aa_low: float | None
    aa_high: float | None
    stable: bool
    """Whether the baseline's two runs agree; without verdicts nothing depends on it."""
    blind: float
    """Log-ratio below which effects are not judged, as the baseline's two runs differ by as much;
    0 where they are closer than the smallest practical difference."""
    labels: dict[str, str]
    """What all measured rows have in common."""
    hardware: tuple[Hardware, ...]
    """Likewise."""
    notes: tuple[str, ...]
    judged: bool
    """Whether the verdicts are filled."""
    baselines: Mapping[str, str] = field(default_factory=dict)
    """Group -> its baseline, where a run has groups."""

    @property
    def kind(self) -> str:
        """What was timed, one of `labkit.records.KINDS`."""
        return self.info.kind

    @property
    def protocol(self) -> str:
        """Corrected, or as in the document."""
        return self.info.protocol

    @property
    def calibration(self) -> Calibration:
        """What was measured before the trials."""
        return self.info.calibration or Calibration()

    @property
    def has_groups(self) -> bool:
        """Whether the variants are compared in groups."""
        return any(self.baselines)

    @property
    def x(self) -> float | None:
        """The device's rate ÷ the run's own loading rate."""
        return next((row.x for row in self.rows if row.variant == self.baseline), None)

    def is_baseline(self, row: Row) -> bool:
        """Whether the others of a row's group are divided by it."""
        return row.variant == self.baselines.get(row.group, self.baseline)

    def facts(self, variant: str) -> Facts:
        """Return what of a variant's parts counts where it is compared."""
        return self.info.facts_of(variant)

    def is_floor(self, variant: str) -> bool:
        """Return whether a variant does only part of the baseline's work."""
        return is_floor(self.facts(variant), self.facts(self.baseline))

    def groups(self) -> dict[str, tuple[Row, ...]]:
        """Return the rows of each group, in their order."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.group, []).append(row)
        return {group: tuple(rows) for group, rows in found.items()}

    @property
    def at_speeds(self) -> dict[float, Summary]:
        """What was measured at each speed of the device, the slowest first; empty of others.

        x, the device's rate ÷ the baseline's loading rate -> a summary with its own baseline.
        """
        if not self.has_groups or self.kind != EPOCHS:
            return {}
        speeds = {row.group: self.info.x_of(row.variant) for row in self.rows}
        if None in speeds.values():
            return {}
        found = {
            speeds[group]: replace(self, rows=rows, baseline=self.baselines[group], baselines={})
            for group, rows in self.groups().items()
        }
        return dict(sorted(found.items()))

    @property
    def comparisons(self) -> tuple[Summary, ...]:
        """The parts of epochs that load every batch that are compared with one baseline each."""
        return (self,) if not self.has_groups else tuple(self.at_speeds.values())


def summarize(
    info: RunInfo, trials: Sequence[AnyTrial], *, run: str = "", set_aside: int = 0
) -> Summary:
    """Derive one row per variant from a run's raw trials.

    Args:
        info: of the run.
        trials: the run's rows in the order they were written, of any status.
        run: the run folder's name.
        set_aside: lines of its file that are no rows.

    Returns:
        The rows, the noise floor and sentences about what is missing.
    """
    mode, valid = MODES.get(info.mode), valid_trials(info, trials)
    baselines = info.baseline_by_group

    def log_ratio_of(trial: AnyTrial) -> float:
        group = info.group_of(trial.variant)
        base_runs = {**valid.base_runs[group], **valid.left_out_base_runs[group]}[trial.block]
        return log_ratio(trial.time_s, [run.time_s for run in base_runs])

    log_ratios = {name: [*map(log_ratio_of, runs.values())] for name, runs in valid.runs.items()}
    base = info.facts_of(info.baseline)
    floors = {name for name in log_ratios if is_floor(info.facts_of(name), base)}
    aa = a_over_a(valid)
    aa_low, aa_high = ratio_interval(aa)
    stable, blind = is_stable(aa), blind_below(aa)
    n_blocks = len(valid.blocks)
    # A fixed order confounds a variant with its place in it: nothing to judge.
    n_undisturbed = len(valid.undisturbed)
    is_for_verdicts = mode is not None and mode.judged and info.shuffled
    judged = is_for_verdicts and n_undisturbed >= MIN_JUDGED_BLOCKS
    testable = [name for name, d in log_ratios.items() if len(d) >= 2]
    tests = dict.fromkeys(testable, (ALPHA, ""))
    if judged or len(baselines) == 1:  # the rows of many groups are judged together, or not at all
        together = [name for name in testable if name not in floors]
        found = judge([log_ratios[name] for name in together], stable=stable, blind=blind)
        tests |= zip(together, found)

    rows = []
    for group, baseline in baselines.items():
        for name in (baseline, *(x for x in log_ratios if info.group_of(x) == group)):
            if name == baseline:
                runs = [run for block in valid.base_runs[group].values() for run in block]
                left_out = [run for b in valid.left_out_base_runs[group].values() for run in b]
                d, verdict = [*map(log_ratio_of, runs)], "baseline" if judged else ""
                numbers: dict[str, Any] = {
                    "normalized_time": 1.0 if runs else None,
                    "verdict": verdict,
                }
            else:
                runs, d = [*valid.runs[name].values()], log_ratios[name]
                left_out = [*valid.left_out_runs[name].values()]
                level, verdict = tests.get(name, (None, ""))
                if not judged or len(d) < MIN_JUDGED_BLOCKS:
                    verdict = ""
                numbers = _compare(d, level, verdict)
            row = Row(
                **_outcome(name, info, trials, valid, measured=bool(runs)),
                **numbers,
                ratios=tuple(math.exp(x) for x in d),
                outliers=outliers(d),
                blocks=len({run.block for run in runs}),
                disturbed=tuple((run.block, math.exp(log_ratio_of(run))) for run in left_out),
                **_average(runs),
            )
            rows.append(row)
    rows = _beside_the_document(_beside_the_device(info, rows), baselines)
    return Summary(
        info=info,
        run=run,
        question=info.question or info.experiment,
        mode=info.mode,
        baseline=info.baseline,
        rows=tuple(rows),
        epochs=max((len(row.epochs_s[0]) for row in rows if row.epochs_s), default=2),
        n_blocks=n_blocks,
        n_undisturbed=n_undisturbed,
        disturbed=valid.disturbed,
        are_disturbed_left_out=valid.are_disturbed_left_out,
        aa_ratio=math.exp(fmean(aa)) if aa else None,
        aa_low=aa_low,
        aa_high=aa_high,
        stable=stable,
        blind=blind,
        labels=in_common([row.labels for row in rows if row.labels]),
        hardware=_shared([row.hardware for row in rows if row.hardware]),
        notes=(
            *info.notes,
            *_unreadable_notes(info, trials),
            *_run_notes(info, valid, set_aside, judged=judged, stable=stable, blind=blind),
            *_row_notes(info, valid, trials),
            *(
                f"{row.variant}: about {needed} blocks would detect {units.limit(DELTA)}"
                for row in rows
                if row.verdict == "inconclusive"
                and (needed := blocks_needed(row.s, row.level)) > row.blocks
            ),
        ),
        judged=judged,
        baselines=baselines,
    )


def _beside_the_device(info: RunInfo, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the device's rate, the loading rate and x, as far as they are known."""
    calibration = info.calibration or Calibration()
    bases = {row.group: row for row in rows if row.variant == info.baseline_by_group.get(row.group)}
    own_rate, load_alone = calibration.device_images_per_s, calibration.load_images_per_s
    is_trained = not info.facts_of(info.baseline).trains_nothing
    found = []
    for row in rows:
        base = bases[row.group]
        settings, own = info.variants[base.variant], _devices(base)
        its, x = info.variants[row.variant], info.x_of(row.variant)
        facts, device = info.facts_of(row.variant), own_rate and own_rate / its.gpu_slowdown
        if not is_trained:  # on no device
            row = replace(row, hardware=tuple(h for h in row.hardware if h.kind != "device"))
        elif x and facts.is_simulated:
            row = _at_speed(row, load_alone and x * load_alone, load_alone)
        elif info.tasks and row.images_per_s and not (facts.is_simulated or facts.leaves_out):
            row = _at_speed(row, device, load_alone)
        elif (
            not (info.tasks or info.kind == ROOFLINE)
            and _devices(row) == own
            and (
                facts.is_simulated
                or all(getattr(its, name) == getattr(settings, name) for name in STEP)
            )
        ):
            # Without workers, loading stops while the step is waited for.
            is_loaded = not info.facts_of(base.variant).leaves_out
            is_loaded_beside = settings.num_workers and is_loaded
            load = base.steady_images_per_s if is_loaded_beside else None
            row = _at_speed(row, device, load)
        found.append(row)
    return found


def _beside_the_document(rows: Sequence[Row], baselines: Mapping[str, str]) -> list[Row]:
    """Return the rows with what they say of the document's times, where they are judged."""
    bases = {row.group: row for row in rows if row.variant == baselines.get(row.group)}
    found = []
    for row in rows:
        if row.published is not None and row.verdict not in ("", "baseline", UNSTABLE):
            word = compare(
                row.published, row.normalized_time, row.ci_low, row.ci_high, row.verdict,
                bases[row.group],
            )  # fmt: skip
            row = replace(row, agreement=word)
        found.append(row)
    return found


def _at_speed(row: Row, device: float | None, load: float | None) -> Row:
    x = device / load if device and load else None
    return replace(row, device_images_per_s=device, load_images_per_s=load if device else None, x=x)


def is_floor(facts: Facts, baseline: Facts) -> bool:
    """Return whether a variant does only part of its baseline's work, which is never judged.

    Args:
        facts: of the variant.
        baseline: of what it is divided by; where it leaves out the same, that is the question, as
            of what a loop does beside its steps.
    """
    return bool(facts.leaves_out - baseline.leaves_out)


def _compare(d: Sequence[float], level: float | None, verdict: str) -> dict[str, Any]:
    """Return what a variant's log-ratios come to."""
    low, high = ratio_interval(d)
    s = stdev(d) if len(d) >= 2 else None
    return {
        "normalized_time": math.exp(fmean(d)) if d else None,
        "ci_low": low,
        "ci_high": high,
        "s": s,
        "level": level,
        "mde": None if s is None else detectable_share(s, len(d), level),
        "verdict": verdict,
    }


def _outcome(
    name: str, info: RunInfo, trials: Sequence[AnyTrial], valid: ValidTrials, *, measured: bool
) -> dict:
    """Return whether a variant has numbers, and if not, why."""
    status, reason = ("ok", "") if measured else _why_none(name, info, trials, valid)
    return {
        "variant": name,
        "group": info.group_of(name),
        "published": info.published.get(name),
        "status": status,
        "reason": reason,
        "left_out": len(valid.cache_violations.get(name, ())),
    }


def _why_none(
    name: str, info: RunInfo, trials: Sequence[AnyTrial], valid: ValidTrials
) -> tuple[str, str]:
    """Return the status and the reason of a variant without numbers."""
    for status, reasons in (("skipped", info.skipped), ("failed", info.failed)):
        if name in reasons:
            return status, reasons[name]
    yet = " yet" if info.status == "running" else ""
    rows = [trial for trial in trials if trial.variant == name]
    if not rows:
        return "missing", "not measured" + yet
    # What went wrong once and well thereafter is not why there are no numbers.
    if rows[-1].status != "ok":
        return rows[-1].status, rows[-1].reason
    if violations := valid.cache_violations.get(name):
        return "failed", violations[-1]
    return "missing", "no block in which this and the baseline are complete" + yet


def in_common(mappings: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all mappings hold under the same name."""
    first, *others = mappings or [{}]
    return {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}


# --- any two variants of a run -----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How one variant's time compares with another's."""

    ratio: float
    low: float | None
    """Lower end of the 95 % interval; None below two blocks."""
    high: float | None
    blocks: int
    """That have both."""
    verdict: str
    """Empty where nothing is judged."""


def ratios(
    summary: Summary, wanted: Sequence[tuple[Row, Row]], which: str
) -> dict[tuple[str, str], Ratio]:
    """Compare variants with each other, in any mode.

    Args:
        summary: what `summarize` returns.
        wanted: one row, and the row it is divided by.
        which: times, as of `log_times`.

    Returns:
        (variant, the one it is divided by) -> ratio, for those with a block in common; with a
        verdict where the run is judged and they have enough blocks.
    """
    log_ratios = {}
    for one, other in wanted:
        a, b = log_times(one, which), log_times(other, which)
        if shared := [block for block in a if block in b]:
            log_ratios[one.variant, other.variant] = [a[x] - b[x] for x in shared]
    testable = [key for key, d in log_ratios.items() if len(d) >= 2]
    found = judge([log_ratios[key] for key in testable], stable=summary.stable, blind=summary.blind)
    tests = dict(zip(testable, found))
    compared = {}
    for key, d in log_ratios.items():
        low, high = ratio_interval(d)
        is_judged = summary.judged and len(d) >= MIN_JUDGED_BLOCKS
        verdict = tests[key][1] if is_judged else ""
        compared[key] = Ratio(
            ratio=math.exp(fmean(d)), low=low, high=high, blocks=len(d), verdict=verdict
        )
    return compared


def log_times(row: Row, which: str) -> dict[int, float]:
    """Return one log time per block; of the baseline's two runs the geometric mean.

    Args:
        row: a variant's.
        which: total: the epochs added up; steady: the time per image at the steady rate.
    """
    if which == "steady":
        times_s = [1 / rate for rate in row.steady_rates]
    else:
        times_s = [sum(epochs_s) for epochs_s in row.epochs_s]
    logs: dict[int, list[float]] = {}
    for block, time_s in zip(row.in_blocks, times_s):
        logs.setdefault(block, []).append(math.log(time_s))
    return {block: fmean(both) for block, both in logs.items()}


@dataclass(frozen=True, kw_only=True)
class EpochBar:
    """The first epoch of a variant, or those after it."""

    name: str
    mean_s: float
    """Geometric mean over trials."""
    all_s: tuple[float, ...]
    """Of every trial."""
    startup_s: float = 0.0
    """Mean of what starting up takes of an epoch, however many images it has."""


def epoch_bars(row: Row) -> tuple[EpochBar, ...]:
    """Return the first epoch of a variant and the later ones, which memory may serve.

    Returns:
        One or two; none without a trial.
    """
    if not row.epochs_s:
        return ()
    first = tuple(epochs_s[0] for epochs_s in row.epochs_s)
    startup_s = fmean(startups_s[0] for startups_s in row.startups_s)
    mean_s = geometric_mean(first)
    bars = [EpochBar(name="epoch 1", mean_s=mean_s, all_s=first, startup_s=startup_s)]
    if later := [epochs_s[1:] for epochs_s in row.epochs_s if len(epochs_s) > 1]:
        n = 1 + max(map(len, later))
        mean_s = geometric_mean(map(fmean, later))
        name = "epoch 2" if n == 2 else f"epochs 2 to {n} (mean)"
        startup_s = fmean(fmean(startups_s[1:]) for startups_s in row.startups_s if startups_s[1:])
        bars.append(EpochBar(name=name, mean_s=mean_s, all_s=sum(later, ()), startup_s=startup_s))
    return tuple(bars)


# --- averages of a variant's trials --------------------------------------------------


# Fields of a trial of which a row holds the largest.
MOST_BYTES = (
    "peak_rss_bytes", "peak_pss_bytes", "peak_shm_bytes", "gpu_memory_bytes",
    "gpu_allocated_bytes", "gpu_reserved_bytes",
)  # fmt: skip


def _average(runs: Sequence[AnyTrial]) -> dict[str, Any]:
    """Average everything but the normalized time over a variant's valid trials."""
    if not runs:
        return {}
    of_epochs = [trial for trial in runs if isinstance(trial, Trial)]
    return {
        "time_s": geometric_mean(trial.time_s for trial in runs),
        "in_blocks": tuple(trial.block for trial in runs),
        "epochs_s": tuple((trial.time_s,) for trial in runs),
        "swapped_pages": _sum(
            trial.disturbance.get(f"swapped_{way}_pages") for trial in runs for way in ("in", "out")
        ),
        "labels": _merge_labels(runs),
        **(_average_epochs(of_epochs) if of_epochs else {}),
    }


def _average_epochs(runs: Sequence[Trial]) -> dict[str, Any]:
    """Average what only epochs have.

    Rates and shares are sums over sums, so a long epoch counts more; times are geometric means.
    A share that one epoch does not know is unknown for the row.
    """
    epochs = [epoch for trial in runs for epoch in trial.epochs]
    total_s = sum(epoch.epoch_s for epoch in epochs)
    compute_share = _share((epoch.compute_s for epoch in epochs), total_s)
    steady, steady_each = _steady_rate(runs), [_steady_rate([trial]) for trial in runs]
    second_s = [trial.epochs[1].epoch_s for trial in runs if len(trial.epochs) > 1]
    wait_p50_s, wait_p99_s = _wait_percentiles(epochs)
    return {
        "images_per_s": sum(epoch.images for epoch in epochs) / total_s,
        "epochs_s": tuple(tuple(epoch.epoch_s for epoch in trial.epochs) for trial in runs),
        "startups_s": tuple(tuple(epoch.startup_s for epoch in trial.epochs) for trial in runs),
        "epoch1_s": geometric_mean(trial.epochs[0].epoch_s for trial in runs),
        "epoch2_s": geometric_mean(second_s) if second_s else None,
        "startup_s": fmean(epoch.startup_s for epoch in epochs),
        "steady_images_per_s": steady.images_per_s,
        "steady_rates": () if steady.reason else tuple(each.images_per_s for each in steady_each),
        "steady_reason": steady.reason,
        "wait_share": _share((epoch.wait_s for epoch in epochs), total_s),
        "transfer_share": _share((epoch.transfer_s for epoch in epochs), total_s),
        "step_share": _share(map(_step_s, epochs), total_s),
        "sync_share": _share((epoch.sync_s for epoch in epochs), total_s),
        "compute_share": compute_share,
        "stall_share": None if compute_share is None else 1 - compute_share,
        "cpu_percent": _mean_known(trial.cpu_percent for trial in runs),
        "gpu_util": _mean_known(trial.gpu_util_mean for trial in runs),
        "emulated_busy_share": _mean_known(trial.emulated_busy_share for trial in runs),
        "cpu_s_per_1000_images": _share(
            (trial.cpu_s for trial in runs), sum(trial.images for trial in runs) / 1000
        ),
        "wait_p50_s": wait_p50_s,
        "wait_p99_s": wait_p99_s,
        **{name: _largest_known(getattr(trial, name) for trial in runs) for name in MOST_BYTES},
        "resident_share_before": _resident_share_before(runs),
        # Spawned workers also ask for their libraries: what the files hold is the steadier measure.
        "device_read_share": _share(
            (trial.cache_proof.get("device_read_bytes") for trial in runs),
            _sum(trial.cache_proof.get("file_bytes") for trial in runs for _ in trial.epochs),
        ),
        "hardware": tuple(dict.fromkeys(h for trial in runs for h in trial.hardware)),
    }


def _sum(parts: Iterable[float | None]) -> float | None:
    """Add up; None where a part is unknown."""
    parts = list(parts)
    return None if None in parts else sum(parts)


def _share(parts: Iterable[float | None], whole: float | None) -> float | None:
    part = _sum(parts)
    return part / whole if part is not None and whole else None


def _step_s(epoch: Epoch) -> float | None:
    return _sum((epoch.forward_s, epoch.backward_s)) if epoch.launch_s is None else epoch.launch_s


def _wait_percentiles(epochs: Sequence[Epoch]) -> tuple[float | None, float | None]:
    """Return the median and the 99th percentile of a step's wait."""
    if any(epoch.waits_s is None for epoch in epochs):  # rows of schema 2 have only their sum
        return None, None
    waits_s = sorted(wait_s for epoch in epochs for wait_s in epoch.waits_s)
    if not waits_s:
        return None, None
    p50, p99 = (waits_s[math.ceil(share * len(waits_s)) - 1] for share in (0.50, 0.99))
    return p50, p99


def _steady_rate(runs: Sequence[Trial]) -> SteadyRate:
    """Return the steady rate of a variant's trials, of several ranks together."""
    its = runs[0].settings
    return steady_rate(
        [
            (_arrivals_s(epoch), epoch.images / epoch.steps if epoch.steps else 0.0)
            for trial in runs
            for epoch in trial.epochs
        ],
        workers=(its.get("num_workers") or 0) // (its.get("ranks") or 1),
    )


def _arrivals_s(epoch: Epoch) -> Sequence[float] | None:
    """Return when an epoch's batches arrived; None for rows of schema 2, which do not tell.

    Rows of schemas 3 to 5 have every wait, and the sum of what lies between the waits.
    """
    if epoch.arrivals_s is not None or epoch.waits_s is None:
        return epoch.arrivals_s
    between_s = (
        epoch.transfer_s, epoch.forward_s, epoch.backward_s, epoch.launch_s, epoch.sync_s,
        epoch.callbacks_s,
    )  # fmt: skip
    step_s = sum(part_s or 0.0 for part_s in between_s) / max(epoch.steps, 1)
    return arrivals_of(epoch.waits_s, step_s)


def _resident_share_before(runs: Sequence[Trial]) -> float | None:
    """Return the share of the epoch that is furthest from what its label says."""
    shares = [share for trial in runs for share in shares_before(trial)]
    if None in shares:
        return None
    percent = runs[0].settings.get("cached")
    cold = any(trial.labels.get("cache") == "cold" for trial in runs)
    asked = float(not cold) if percent is None else percent / 100
    return max(shares, key=lambda share: abs(share - asked))


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _largest_known(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _devices(row: Row) -> set[Hardware]:
    return {hardware for hardware in row.hardware if hardware.kind == "device"}


def _shared(rows: Sequence[tuple[Hardware, ...]]) -> tuple[Hardware, ...]:
    return tuple(h for h in (rows[0] if rows else ()) if all(h in others for others in rows))


def _merge_labels(runs: Sequence[AnyTrial]) -> dict[str, str]:
    names = dict.fromkeys(name for trial in runs for name in trial.labels)
    return {
        name: " / ".join(dict.fromkeys(t.labels[name] for t in runs if name in t.labels))
        for name in names
    }


# --- notes beside the numbers --------------------------------------------------------


def _run_notes(
    info: RunInfo,
    valid: ValidTrials,
    set_aside: int,
    *,
    judged: bool,
    stable: bool,
    blind: float,
) -> list[str]:
    """Return why there are no verdicts, what is not finished, and what is unstable."""
    notes, mode, n_blocks = [], info.mode, len(valid.blocks)
    if info.protocol == AS_PUBLISHED:
        notes.append(
            "as in the document: variants in its order, only the first of a block starts cold; no "
            "verdicts, as the order may explain a difference"
        )
    elif mode in MODES and not MODES[mode].judged:
        notes.append(f"no verdicts in {mode} mode")
    elif not judged:
        found = units.count(len(valid.undisturbed), "complete block")
        undisturbed = " without disturbance" if valid.disturbed else ""
        notes.append(f"no verdicts: {found}{undisturbed}, {MIN_JUDGED_BLOCKS} needed")
    if n_blocks < info.blocks:
        state = "" if info.status == "finished" else f"{info.status}: "
        notes.append(f"{state}{n_blocks} of {info.blocks} blocks count")
    if valid.disturbed:
        notes.append(disturbed_note(valid.disturbed, left_out=valid.are_disturbed_left_out))
    base = (run for blocks in valid.base_runs.values() for runs in blocks.values() for run in runs)
    if judged and (unseen := unwatched(base)):
        notes.append(f"not monitored on this machine: {', '.join(unseen)}")
    if set_aside:
        notes.append(
            f"{units.count(set_aside, 'incomplete line')} of trials.jsonl skipped, after a killed "
            "process or a full disk; resume the run to measure the trial again"
        )
    if judged and not stable:
        notes.append(
            "machine unstable: the baseline's two runs differ systematically; "
            "close other programs and run again"
        )
    elif judged and blind:
        notes.append(
            "noisy machine: the baseline's two runs are known to agree only within "
            f"{units.percent(math.expm1(blind))}, so smaller effects get no verdict; close other "
            "programs, or measure longer epochs or more blocks"
        )
    return notes


def _unreadable_notes(info: RunInfo, trials: Sequence[AnyTrial]) -> list[str]:
    """Return how many images were left out, and the first of them."""
    lines, notes = info.unreadable, [*info.local_notes]
    of_epochs = [trial for trial in trials if isinstance(trial, Trial)]
    if left_out := max((trial.unreadable_images or 0 for trial in of_epochs), default=0):
        notes.append(f"{units.count(left_out, 'unreadable image')} left out for all variants")
    if lines:
        more = "; run.json lists all" if len(lines) > LISTED_IMAGES else ""
        notes.append("; ".join(lines[:LISTED_IMAGES]) + more)
    return notes


def _row_notes(info: RunInfo, valid: ValidTrials, trials: Sequence[AnyTrial]) -> list[str]:
    """Return which variants lost trials, and why."""
    notes, baselines = [], info.baseline_by_group
    for name in info.variants:
        broken = [t for t in trials if t.variant == name and t.status in ("failed", "skipped")]
        group = info.group_of(name)
        counted = valid.base_runs[group] if name == baselines.get(group) else valid.runs[name]
        if often := valid.swapping.get(name):
            notes.append(f"{name}: {often}; it needs more memory than the machine has free")
        if violations := valid.cache_violations.get(name, ()):
            notes.append(
                f"{name}: {units.count(len(violations), 'trial')} left out, last: {violations[-1]}"
            )
        if counted and broken:
            last = broken[-1]
            notes.append(f"{name}: {last.status} {len(broken)}×, last: {last.reason}")
    return notes
