"""Verifying: the remedies that the lab can apply itself, as a paired experiment.

    per block, in random order: as it is (twice), every remedy ─▶ normalized times, intervals

Main trap: the prediction must not be judged by the numbers it was made from, so everything is
measured anew, the loader as it is, too.

Source: EVIDENCE 1, "Design" and "Estimator".
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from labkit.analysis.statistics import log_ratio, ratio_interval
from labkit.diagnosis import knobs
from labkit.diagnosis.arms import Stopped
from labkit.diagnosis.collect import Plan
from labkit.diagnosis.remedies import Remedy

if TYPE_CHECKING:
    from labkit.diagnosis.conclusion import Diagnosis

BLOCKS = 4
MOST_TRIED = 3
# A stretch is as long as the diagnosis' budget lets one expect.
BUDGET_SHARE, SHORTEST_S, LONGEST_S = 0.03, 0.3, 1.5
SEED = 1
AS_IS = ("A1", "A2")


def verified(
    found: Diagnosis, budget_s: float, say: Callable[[str, float], None]
) -> tuple[Remedy, ...]:
    """Try remedies and write what they took beside what was predicted.

    Args:
        found: a diagnosis that was not broken off.
        budget_s: its budget; trying three remedies takes about as long again.
        say: hears what is tried and the share that is done.

    Returns:
        The same remedies; those that were tried have `measured` and its 95 % interval.
    """
    collected = found.collected
    loop, warm = collected.loop, collected.of("warm")
    tried = [remedy for remedy in found.remedies if remedy.knobs][:MOST_TRIED]
    if not tried or found.broken or not knobs.is_data_loader(loop.loader):
        return found.remedies
    loaders = dict.fromkeys(AS_IS, loop.loader)
    loaders |= {remedy.name: apply(loop.loader, remedy) for remedy in tried}
    stretch_s = min(max(BUDGET_SHARE * budget_s, SHORTEST_S), LONGEST_S)
    plan = Plan(loop, fmean(stretch.step_s for stretch in warm), stretch_s)
    epochs_s: dict[str, list[float]] = {name: [] for name in loaders}
    order = random.Random(SEED)
    with knobs.random_state_kept(loop.loader):
        for block in range(BLOCKS):
            for name in order.sample(list(loaders), len(loaders)):
                say(f"verifying, block {block + 1} of {BLOCKS}: {name}", block / BLOCKS)
                epochs_s[name].append(plan.epoch_s(loaders[name]))
    for name, loader in loaders.items():
        if name not in AS_IS:
            knobs.end(loader)
    base_s = list(zip(*(epochs_s[name] for name in AS_IS)))
    return tuple(
        _measured(remedy, epochs_s[remedy.name], base_s) if remedy in tried else remedy
        for remedy in found.remedies
    )


def apply(loader: object, remedy: Remedy) -> object:
    """Turn a remedy's knobs on a copy of a loader.

    Raises:
        Stopped: it has none.
    """
    if not remedy.knobs:
        raise Stopped(f"remedy must be one that the lab can apply, got {remedy.name}")
    changes = dict(remedy.knobs)
    if changes.pop("limit_threads", False):
        changes["worker_init_fn"] = knobs.limited_threads(loader)
    return knobs.with_knobs(loader, **changes)


def _measured(remedy: Remedy, took_s: list[float], base_s: list[tuple[float, ...]]) -> Remedy:
    ratios = [log_ratio(time_s, base) for time_s, base in zip(took_s, base_s)]
    low, high = ratio_interval(ratios)
    return replace(remedy, measured=math.exp(fmean(ratios)), ci_low=low, ci_high=high)
