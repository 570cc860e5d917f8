"""Forecast from earlier runs how long a run takes and what it can detect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.analysis.forecast import Forecast
from labkit.analysis.forecast import forecast as forecast_from
from labkit.machine import hardware
from labkit.records import OPERATION
from labkit.resolve import gather_facts
from labkit.runs.active_run import ActiveRun
from labkit.runs.experiment import Experiment
from labkit.runs.schedule import check_blocks
from labkit.runs.store import earlier_runs
from labkit.runs.thresholds import EPOCH_LENGTH_SHARES, MIN_ROUND_S
from labkit.settings import MODES, pick


def forecast(
    experiment: Experiment,
    mode: str = "full",
    *,
    blocks: int | None = None,
    results: Path | str = "results",
) -> Forecast:
    """Forecast how long a run takes and the smallest effect that it can detect.

    Args:
        experiment: what would be compared.
        mode: quick, document or full.
        blocks: repetitions; unset: the mode's.
        results: folder with earlier runs, whose noise is taken.

    Returns:
        Shows itself as a sentence.

    Examples:
        >>> lab.forecast(experiment, "quick", blocks=3).trials
        9
    """
    chosen = pick(MODES, mode, "mode")
    wanted = experiment.measured(in_full=chosen.judged)
    return _expect(
        results,
        experiment.name,
        kind=experiment.kind,
        mode=mode,
        blocks=check_blocks(chosen, blocks, experiment.kind),
        variants={label: variant.settings for label, variant in wanted.items()},
        baselines=experiment.run_fields(wanted)
        .get("baselines", {"": experiment.baseline})
        .values(),
        facts={label: gather_facts(vars(variant.settings)) for label, variant in wanted.items()},
    )


def say_forecast(run: ActiveRun) -> None:
    """Print how long a run with verdicts takes and what it can detect."""
    if not run.mode.judged:
        return
    images, rate = run.info.calibration.images, run.info.calibration.images_per_s
    expected = _expect(
        run.folder.parents[1],
        run.info.experiment,
        kind=run.info.kind,
        mode=run.mode.name,
        blocks=run.info.blocks,
        variants=run.remaining,
        baselines=run.info.baseline_by_group.values(),
        facts={label: run.info.facts_of(label) for label in run.variants},
        epoch_s=images and rate and images / rate,
    )
    run.progress.say(str(expected))


def _expect(
    results: Path | str, experiment: str, *, kind: str, mode: str, **known: Any
) -> Forecast:
    """Forecast a run from the earlier ones of this machine.

    Args:
        results: folder with earlier runs.
        experiment: its name.
        kind: of its trials, one of `labkit.records.KINDS`.
        mode: quick, document or full.
        **known: the other arguments of `labkit.analysis.forecast.forecast`.
    """
    machine_id = hardware.provenance().machine_id
    earlier = earlier_runs(results, experiment, machine_id=machine_id, mode=mode)
    summaries = (run.summary for run in earlier)
    known["round_s"] = MIN_ROUND_S[mode] if kind == OPERATION else None
    known["epoch_share"] = EPOCH_LENGTH_SHARES.get(kind, 1.0)
    return forecast_from(summaries, mode=mode, **known)
