"""Forecast: how long a run will take, and the smallest effect that it can detect.

    last run of the experiment here ─ its noise ──┐
    variants, blocks, seconds of an epoch ────────┴─▶ Forecast ─▶ two sentences before the run

Noise is never guessed: without an earlier run on this machine the effect is unknown.

Source: EVIDENCE 1, "Minimum detectable effect".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from labkit import units
from labkit.analysis.statistics import ALPHA, detectable_share
from labkit.analysis.summary import is_floor, summarize
from labkit.runs.store import Run, list_runs, load_run, read_info
from labkit.settings import MODES, Mode

# Starting the process and its workers, bringing about the cache state and measuring it.
TRIAL_OVERHEAD_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What was seen of a machine's noise in an earlier run."""

    s: float
    """Standard deviation of the paired log-ratios, pooled over the variants."""
    epoch_s: float
    """Mean length of the baseline's epochs."""
    mode: str
    run: str
    """Its id."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is known of a run before it starts; None is unknown."""

    mode: str
    blocks: int
    trials: int
    total_s: float | None
    variants: int
    """Those that are judged together."""
    epoch_s: float | None
    """Expected length of the baseline's epochs."""
    noise: Noise | None

    def mde(self, blocks: int) -> float | None:
        """Give the smallest effect that so many blocks see with 80 % power, as a share."""
        if self.noise is None or blocks < 2 or not self.variants:
            return None
        # Holm's procedure may hold any variant to the strictest level.
        return detectable_share(self.noise.s, blocks, ALPHA / self.variants)

    def __str__(self) -> str:
        said = f"{self.mode} mode: "
        if self.total_s is None:
            said += "reads all images, however many there are."
        else:
            said += f"about {units.seconds(self.total_s)}."
        seen, more = self.mde(self.blocks), self.mde(2 * self.blocks)
        if seen is None:
            return f"{said} What it can detect is known after a first run on this machine."
        return (
            f"{said} Detects differences of {units.percent(seen)} or more; "
            f"{2 * self.blocks} blocks would detect {units.percent(more)} "
            f"(noise {units.percent(self.noise.s)}, from {self.noise.run})."
        )

    __repr__ = __str__


def forecast(
    results: Path | str,
    *,
    experiment: str,
    mode: str,
    blocks: int,
    variants: Mapping[str, Mapping[str, object]],
    baselines: Collection[str],
    machine_id: str,
    epoch_s: float | None = None,
    trial_s: float | None = None,
) -> Forecast:
    """Say what is known of a run before it starts.

    Args:
        results: folder that holds earlier runs.
        experiment: its name.
        mode: quick, document or full.
        blocks: repetitions.
        variants: label -> settings by name.
        baselines: the labels that run twice per block where the order is shuffled.
        machine_id: whose runs count.
        epoch_s: seconds of the baseline's epoch, from calibration; unset: as in the last run in
            this mode, else as long as the mode wants it.
        trial_s: seconds of a trial, where they are the same for all.
    """
    chosen = MODES[mode]
    noise, last = None, None
    for run in _earlier_runs(results, experiment, mode, machine_id):
        last = last or run
        if noise := noise_of(run):
            break
    trials = blocks * (len(variants) + chosen.shuffled * len(baselines))
    base = variants[next(iter(baselines))]
    if trial_s is None:
        trial_s = _trial_s(last, chosen, base, epoch_s)
    judged = [
        name
        for name, values in variants.items()
        if name not in baselines and not is_floor(values, base)
    ]
    return Forecast(
        mode=mode,
        blocks=blocks,
        trials=trials,
        total_s=None if trial_s is None else trials * trial_s,
        variants=len(judged),
        epoch_s=epoch_s,
        noise=noise,
    )


def noise_of(run: Run) -> Noise | None:
    """Measure the noise that a run shows; None where it has fewer than two blocks."""
    summary = summarize(run.info, run.trials)
    variants = run.info["variants"]
    base = variants[summary.baseline]
    known = [
        row.s
        for row in summary.rows
        if row.s is not None and not is_floor(variants[row.variant], base)
    ]
    if not known:
        return None
    epochs_s = [s for epochs in summary.rows[0].epochs_s for s in epochs]
    return Noise(
        s=math.sqrt(fmean(s * s for s in known)),
        epoch_s=fmean(epochs_s),
        mode=run.info["mode"],
        run=run.folder.name,
    )


def _earlier_runs(
    results: Path | str, experiment: str, mode: str, machine_id: str
) -> Iterator[Run]:
    """Yield this machine's finished runs, those in the same mode first, the newest first."""
    weighed = []
    for folder in list_runs(results, experiment):
        try:
            info = read_info(folder)
            measured_on = (info.get("provenance") or {}).get("machine_id")
            if (
                measured_on == machine_id
                and info["status"] == "finished"
                and info.get("shuffled", True)
            ):
                weighed.append((info["mode"] == mode, folder.name, folder))
        except (ValueError, KeyError):
            continue  # not a run of this lab's
    for _, _, folder in sorted(weighed, reverse=True):
        try:
            yield load_run(folder)
        except ValueError:
            continue  # of a newer labkit


def _trial_s(
    last: Run | None, mode: Mode, settings: Mapping[str, object], epoch_s: float | None
) -> float | None:
    if epoch_s is None and last is not None and last.info["mode"] == mode.name:
        times_s = [trial.time_s for trial in last.trials if trial.status == "ok"]
        return fmean(times_s) + TRIAL_OVERHEAD_S if times_s else None
    epoch_s = epoch_s or mode.epoch_s
    return settings["epochs"] * epoch_s + TRIAL_OVERHEAD_S if epoch_s else None
