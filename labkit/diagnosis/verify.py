"""Verification: remedies that labkit can apply itself, measured against what was predicted.

All is measured again, the loader as it is, too: a prediction must not be judged by the numbers from
which it was made.

Source: EVIDENCE 1, "Design" and "Estimator".
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from labkit.analysis.statistics import log_ratio, ratio_interval
from labkit.diagnosis import loaders
from labkit.diagnosis.measure import Plan
from labkit.diagnosis.remedies import LESS_OFTEN, Remedy
from labkit.runs.experiment import Experiment
from labkit.runs.runner import run
from labkit.settings import Settings

if TYPE_CHECKING:
    from labkit.diagnosis.diagnose import Diagnosis

BLOCKS = 4
MOST_TRIED = 3
# Length of a stretch, as a share of the diagnosis' budget.
BUDGET_SHARE, SHORTEST_S, LONGEST_S = 0.03, 0.3, 1.5
SEED = 1
AS_IS = ("A1", "A2")


def verify_loader(
    found: Diagnosis, budget_s: float, say: Callable[[str, float], None]
) -> tuple[Remedy, ...]:
    """Time epochs with up to three remedies applied to copies of the user's DataLoader.

    Every block times the loader as it is twice and each remedy once, in random order.

    Args:
        found: what was diagnosed.
        budget_s: of the diagnosis; verifying three remedies takes about as long again.
        say: called with what is measured next and the share that is done.

    Returns:
        The same remedies; those that were tried have `measured` and its 95 % interval.
    """
    loop = found.collected.loop
    tried = [remedy for remedy in found.remedies if remedy.knobs][:MOST_TRIED]
    if not tried or found.broken or not loaders.is_data_loader(loop.loader):
        return found.remedies
    stretch_s = min(max(BUDGET_SHARE * budget_s, SHORTEST_S), LONGEST_S)
    plan = Plan(loop, fmean(s.step_s for s in found.collected.of("warm")), stretch_s)
    order = random.Random(SEED)
    with ExitStack() as stack, loaders.random_state_kept(loop.loader):
        arms = dict.fromkeys(AS_IS, loop.loader)
        for remedy in tried:
            arms[remedy.name] = stack.enter_context(_applied(loop.loader, remedy))
        epochs_s: dict[str, list[float]] = {name: [] for name in arms}
        for block in range(BLOCKS):
            for name in order.sample(list(arms), len(arms)):
                say(f"verifying, block {block + 1} of {BLOCKS}: {name}", block / BLOCKS)
                epochs_s[name].append(plan.epoch_s(arms[name]))
    base_s = list(zip(*(epochs_s[name] for name in AS_IS)))
    return tuple(
        _with_times(remedy, epochs_s[remedy.name], base_s) if remedy in tried else remedy
        for remedy in found.remedies
    )


def _applied(loader: object, remedy: Remedy) -> object:
    changes = dict(remedy.knobs)
    if changes.pop("limit_threads", False):
        changes["worker_init_fn"] = loaders.limited_threads(loader)
    return loaders.copied(loader, **changes)


def _with_times(remedy: Remedy, took_s: list[float], base_s: list[tuple[float, ...]]) -> Remedy:
    ratios = [log_ratio(time_s, base) for time_s, base in zip(took_s, base_s)]
    low, high = ratio_interval(ratios)
    return replace(remedy, measured=math.exp(fmean(ratios)), ci_low=low, ci_high=high)


def verify_settings(
    settings: Settings, remedies: tuple[Remedy, ...], *, results: Path | str, progress: bool
) -> tuple[Remedy, ...]:
    """Run the remedies that parts can apply as an experiment, in fresh processes.

    Args:
        settings: as they were diagnosed.
        remedies: as proposed.
        results: folder that takes the run, whose experiment is called `diagnosis`.
        progress: show it.

    Returns:
        The same remedies; those that were run have `measured` and its 95 % interval.
    """
    tried = {remedy.name: _changed(settings, remedy) for remedy in remedies}
    variants = {name: changed for name, changed in tried.items() if changed != settings}
    if not variants:
        return remedies
    experiment = Experiment(
        "diagnosis",
        question="Do the proposed remedies do what was predicted?",
        variants={"as it is": settings} | variants,
        baseline="as it is",
    )
    summary = run(experiment, results=results, blocks=BLOCKS, progress=progress).summary
    rows = {row.variant: row for row in summary.rows if row.normalized_time is not None}
    return tuple(
        replace(remedy, measured=row.normalized_time, ci_low=row.ci_low, ci_high=row.ci_high)
        if (row := rows.get(remedy.name))
        else remedy
        for remedy in remedies
    )


def _changed(settings: Settings, remedy: Remedy) -> Settings:
    """Return the settings with a remedy applied; unchanged where no part applies it."""
    rules = {
        "limit threads": {"cv2_threads": 0},
        "pin memory": {"pin_memory": True},
        "synchronize less often": {"sync_every": 0},
        "save less often": {"checkpoint_every": LESS_OFTEN * settings.checkpoint_every},
        "report less often": {"report_every": LESS_OFTEN * settings.report_every},
        "vectorize host work": {"loss": "vectorized", "metrics": _vectorized(settings.metrics)},
        "faster decode": {"decoder": "simplejpeg"},
        "faster transform": {"preprocessor": _simpler(settings.preprocessor)},
        "smaller batches to send": {"preprocessor": "on_device"},
        "faster medium": {"storage": "tmpfs"},
    }
    return replace(settings, **rules.get(remedy.name, remedy.knobs))


def _vectorized(metrics: str) -> str:
    return metrics if metrics == "none" else "vectorized"


def _simpler(preprocessor: str) -> str:
    return "vectorized" if preprocessor.startswith("loops") else preprocessor
