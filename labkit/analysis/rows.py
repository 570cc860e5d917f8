"""A row for each variant of a run: the averages of its trials, and how they compare.

    trials that count ─┬─ describe ─▶ averages    ┐
                       └─ compare ──▶ comparisons ┴─▶ one Row per variant

A block is one repetition; images and steps are not.  A variant without numbers keeps its row, with
the reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.analysis.compare import NOTHING, Comparison, Verdict, compare
from labkit.analysis.describe import Averages
from labkit.analysis.equal_work import STEP, is_floor
from labkit.analysis.validity import ValidTrials
from labkit.records import ROOFLINE, AnyTrial, Calibration, Hardware, RunInfo, Trial

# What of a row JSON and a table of numbers hold, in this order.
COLUMNS = (
    "variant", "group", "status", "reason", "normalized_time", "ci_low", "ci_high", "ratios",
    "outliers", "blocks", "disturbed", "left_out", "s", "level", "mde", "time_s", "images_per_s",
    "published", "verdict", "epoch1_s", "epoch2_s", "startup_s",
    "steady_images_per_s", "steady_reason", "wait_share", "transfer_share", "step_share",
    "sync_share", "compute_share", "stall_share", "cpu_percent", "gpu_util",
    "simulated_busy_share", "cpu_s_per_1000_images", "wait_p50_s", "wait_p99_s", "peak_rss_bytes",
    "peak_pss_bytes", "peak_shm_bytes", "gpu_memory_bytes", "gpu_allocated_bytes",
    "gpu_reserved_bytes", "resident_share_before", "device_read_share", "swapped_pages",
    "labels", "device_images_per_s", "load_images_per_s", "x",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row(Averages):
    """One variant's numbers; None is unknown."""

    variant: str
    name: str
    """The label without the group."""
    group: str = ""
    """The group in which the variant is compared; empty where a run has no groups."""
    status: str
    """ok, skipped, failed, cancelled, or missing (no complete block)."""
    reason: str = ""
    is_baseline: bool = False
    """Whether the other variants of the group are divided by this one."""
    compared: Comparison = NOTHING
    """With its group's baseline; of a baseline, each of its runs with the mean of their block."""
    disturbed: tuple[tuple[int, float], ...] = ()
    """Block and ratio of its trials in disturbed blocks that are left out of the verdict."""
    left_out: int = 0
    """Trials that do not count because their cache state is not that of their label."""
    published: float | None = None
    """The normalized time that the document reported."""
    hardware: tuple[Hardware, ...] = ()
    """The hardware that the trials used; without a device where nothing is trained."""
    device_images_per_s: float | None = None
    """The device's rate with the model alone."""
    load_images_per_s: float | None = None
    """The run's own loading rate: the steady rate of the group's baseline, which is the loading
    rate where the loader is the limit; where the device is, it is the device's.  At several speeds
    of the device, one rate for all groups, of the baseline."""

    @property
    def normalized_time(self) -> float | None:
        """Geometric mean over blocks of the variant's time ÷ the baseline's; lower is better."""
        return (1.0 if self.trials else None) if self.is_baseline else self.compared.ratio

    @property
    def ci_low(self) -> float | None:
        """Lower end of the 95 % interval; None below two blocks."""
        return None if self.is_baseline else self.compared.low

    @property
    def ci_high(self) -> float | None:
        """Upper end of the 95 % interval; None below two blocks."""
        return None if self.is_baseline else self.compared.high

    @property
    def s(self) -> float | None:
        """Standard deviation of the log-ratios; None below two blocks."""
        return None if self.is_baseline else self.compared.s

    @property
    def ratios(self) -> tuple[float, ...]:
        """One per trial, in the order of `trials`."""
        return self.compared.ratios

    @property
    def outliers(self) -> tuple[int, ...]:
        """Places in `ratios` of values far from the others; shown, never dropped."""
        return self.compared.outliers

    @property
    def level(self) -> float | None:
        """Level of the verdict's test."""
        return self.compared.level

    @property
    def mde(self) -> float | None:
        """Smallest effect that these blocks would show with 80 % power, as a share."""
        return self.compared.mde

    @property
    def verdict(self) -> Verdict:
        """Empty where nothing is judged."""
        return self.compared.verdict

    @property
    def x(self) -> float | None:
        """The device's rate ÷ the loading rate; None on a device that is not the baseline's."""
        device, load = self.device_images_per_s, self.load_images_per_s
        return device / load if device and load else None


def make_rows(
    info: RunInfo,
    trials: Sequence[AnyTrial],
    valid: ValidTrials,
    noise_floors: Mapping[str, Comparison],
) -> list[Row]:
    """Return a row per variant, group by group, each compared with its group's baseline.

    Args:
        info: of the run.
        trials: the run's rows, of any status.
        valid: those that count.
        noise_floors: group -> its baseline's second runs over the first ones.
    """
    rows = [
        Row(**_outcome(name, info, trials, valid), is_baseline=name == baseline)
        for group, baseline in info.baseline_by_group.items()
        for name in (baseline, *(x for x in valid.runs if info.group_of(x) == group))
    ]
    bases = {row.group: row for row in rows if row.is_baseline}
    pairs = {
        row.variant: (row.log_times, bases[row.group].log_times)
        for row in rows
        if not row.is_baseline
    }
    base = info.facts_of(info.baseline)
    unjudged: Collection[str] = [name for name in pairs if is_floor(info.facts_of(name), base)]
    if not valid.judged and len(bases) > 1:
        unjudged = pairs  # the rows of many groups are judged together, or not at all
    floors = {row.variant: noise_floors[row.group] for row in rows}
    compared = compare(pairs, noise_floors=floors, judged=valid.judged, unjudged=unjudged)
    compared |= {row.variant: _in_itself(row, judged=valid.judged) for row in bases.values()}
    rows = [replace(row, compared=compared.get(row.variant, NOTHING)) for row in rows]
    return _beside_the_device(info, rows)


def _in_itself(base: Row, *, judged: bool) -> Comparison:
    """Compare each of a baseline's runs with the mean of their block."""
    log_ratios = _log_ratios(base.trials, base.trials)
    return Comparison(log_ratios=log_ratios, verdict="baseline" if judged else "")


def _log_ratios(trials: Sequence[AnyTrial], base_trials: tuple[AnyTrial, ...]) -> tuple[float, ...]:
    """Divide each trial by the baseline's runs of its block."""
    base = Averages(trials=base_trials).log_times
    return tuple(math.log(trial.time_s) - base[trial.block] for trial in trials)


def noise_floors_of(valid: ValidTrials) -> dict[str, Comparison]:
    """Compare the baseline's second run of each block with its first, group by group."""
    return {
        group: Comparison(
            log_ratios=tuple(
                math.log(runs[1].time_s / runs[0].time_s)
                for _, runs in sorted(blocks.items())
                if len(runs) == 2
            )
        )
        for group, blocks in valid.base_runs.items()
    }


def _beside_the_device(info: RunInfo, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the device's rate and the loading rate, as far as they are known."""
    calibration = info.calibration or Calibration()
    bases = {row.group: row for row in rows if row.is_baseline}
    own_rate, load_alone = calibration.device_images_per_s, calibration.load_images_per_s
    measured_load = _loading_rate(info, rows) or load_alone
    is_trained = not info.facts_of(info.baseline).trains_nothing
    at_speeds = any("x" in task for task in info.tasks.values())
    completed = []
    for row in rows:
        base = bases[row.group]
        base_settings, own = info.variants[base.variant], _devices(base)
        settings, x = info.variants[row.variant], info.x_of(row.variant)
        facts, slowdown = info.facts_of(row.variant), info.gpu_slowdown_of(row.variant)
        device = own_rate and own_rate / slowdown
        if not is_trained:  # on no device
            row = replace(row, hardware=tuple(h for h in row.hardware if h.kind != "device"))
        elif x and facts.is_simulated:
            row = _at_speed(row, load_alone and x * load_alone, measured_load)
        elif at_speeds and row.images_per_s and not (facts.is_simulated or facts.leaves_out):
            row = _at_speed(row, device, measured_load)
        elif (
            not (at_speeds or info.kind == ROOFLINE)
            and _devices(row) == own
            and (
                facts.is_simulated
                or all(getattr(settings, name) == getattr(base_settings, name) for name in STEP)
            )
        ):
            # Without workers, loading stops while the step is waited for.
            is_loaded = not info.facts_of(base.variant).leaves_out
            is_loaded_beside = base_settings.num_workers and is_loaded
            load = base.steady_images_per_s if is_loaded_beside else None
            row = _at_speed(row, device, load)
        completed.append(row)
    return completed


def _loading_rate(info: RunInfo, rows: Sequence[Row]) -> float | None:
    """Return the baseline's loading rate in the trials themselves; None if none of them shows it.

    Those that load alone show it; without them, those whose device was to be at least twice as
    fast as the loader.
    """
    steady = {
        row.variant: row.steady_images_per_s
        for row in rows
        if row.is_baseline and row.steady_images_per_s
    }
    alone = [rate for label, rate in steady.items() if info.facts_of(label).trains_nothing]
    beside = [rate for label, rate in steady.items() if (info.x_of(label) or 0) >= 2]
    rates = alone or beside
    return statistics.geometric_mean(rates) if rates else None


def _devices(row: Row) -> set[Hardware]:
    return {hardware for hardware in row.hardware if hardware.kind == "device"}


def _at_speed(row: Row, device: float | None, load: float | None) -> Row:
    return replace(row, device_images_per_s=device, load_images_per_s=load if device else None)


def _outcome(
    name: str, info: RunInfo, trials: Sequence[AnyTrial], valid: ValidTrials
) -> dict[str, Any]:
    """Return a variant's trials that count and labels, or why it has no numbers."""
    group = info.group_of(name)
    counted, left_out = valid.trials_of(name, group), valid.left_out_of(name, group)
    left_out_base = valid.left_out_of(info.baseline_by_group[group], group)
    ratios = map(math.exp, _log_ratios(left_out, left_out_base))
    timed = [trial for trial in counted if isinstance(trial, Trial)]
    status, reason = ("ok", "") if counted else _why_none(name, info, trials, valid)
    return {
        "variant": name,
        "name": info.name_of(name),
        "group": group,
        "published": info.published.get(name),
        "status": status,
        "reason": reason,
        "trials": counted,
        "hardware": tuple(dict.fromkeys(each for trial in timed for each in trial.hardware)),
        "disturbed": tuple(zip((trial.block for trial in left_out), ratios)),
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
