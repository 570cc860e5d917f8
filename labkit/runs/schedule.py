"""Plan: which trials a run consists of, and in which order.

    settings of the run + rows so far ─▶ next_trials: the planned blocks ─ blocks in place of
    rejected ones ─ everything once more if the baseline's own two runs disagree

Every block runs each variant once and every group's baseline twice, shuffled by a recorded seed;
two runs of the same thing in one block show what noise alone does.  In a fixed order, drift and a
cold first run favour later variants (EVIDENCE 1: 77 % false positives).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from labkit.analysis.statistics import is_stable
from labkit.analysis.validity import (
    ATTEMPT_BLOCKS,
    a_over_a,
    attempt_of,
    baselines_of,
    is_baseline_run_twice,
    valid_trials,
)
from labkit.contracts import Trial
from labkit.settings import MIN_JUDGED_BLOCKS, MODES, Mode

# Rejected blocks are run again, up to half as many: on a machine that is never quiet it must end.
MAX_REPLACED_SHARE = 0.5
ATTEMPTS = 2  # EVIDENCE 1, "Noise floor": rerun once


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One trial to run."""

    block: int
    position: int
    variant: str
    role: str


def plan(
    labels: Sequence[str],
    baselines: Collection[str],
    *,
    shuffled: bool,
    blocks: Iterable[int],
    seed: int,
) -> list[Planned]:
    """Lay out the trials of a run.

    Args:
        labels: all variants, in the experiment's order.
        baselines: the labels that run twice per block where the order is shuffled.
        shuffled: shuffled blocks, or each variant once in the given order.
        blocks: their numbers.
        seed: of the order; recorded with the run.
    """
    planned = []
    for block in blocks:
        order = list(labels)
        if shuffled:
            order += baselines
            random.Random(f"{seed}/{block}").shuffle(order)
        # The earlier is A1: what changes from run to run makes the two differ, which is how a
        # machine that is not steady shows.
        roles = {label: ["A2", "A1"] for label in baselines}
        for position, label in enumerate(order):
            role = roles[label].pop() if label in roles else ""
            planned.append(Planned(block=block, position=position, variant=label, role=role))
    return planned


def next_trials(
    info: Mapping[str, object], trials: Sequence[Trial], dropped: Collection[str] = ()
) -> list[Planned]:
    """Return what has to be run now; nothing once the run is complete.

    Args:
        info: what `run.json` holds; needs mode, baseline, variants, blocks, order_seed.
        trials: the run's rows so far, of any status.
        dropped: variants that are out.

    Returns:
        What is missing of the planned blocks; then blocks in place of rejected ones; then, where
        the baseline's two runs disagree, the same once more.
    """
    n, shuffled = info["blocks"], is_baseline_run_twice(info)
    judged = MODES[info["mode"]].judged and shuffled
    done = {(t.block, t.variant, t.role) for t in trials if t.status == "ok"}
    # Nothing of the first attempt is wanted once there is a second: also when a run is resumed.
    begun = max((attempt_of(block, n) for block, _, _ in done), default=0)
    for attempt in range(begun, ATTEMPTS if judged else 1):
        valid, start = valid_trials(info, trials, attempt), attempt * ATTEMPT_BLOCKS * n
        replaced = min(len(valid.rejected), int(n * MAX_REPLACED_SHARE)) if judged else 0
        planned = plan(
            list(info["variants"]),
            list(baselines_of(info).values()),
            shuffled=shuffled,
            blocks=range(start, start + n + replaced),
            seed=info["order_seed"],
        )
        missing = [
            p
            for p in planned
            if p.variant not in dropped and (p.block, p.variant, p.role) not in done
        ]
        if missing or is_stable(a_over_a(valid)):
            return missing
    return []


def check_blocks(mode: Mode, blocks: int | None) -> int:
    """Return the number of blocks of a run.

    Args:
        mode: its own number is taken where none is given.
        blocks: the user's choice.

    Raises:
        ValueError: too few for verdicts, or several where the mode has one.
    """
    blocks = mode.blocks if blocks is None else blocks
    least = MIN_JUDGED_BLOCKS if mode.judged else 1
    if blocks < least:
        raise ValueError(
            f"blocks must be at least {least} in mode {mode.name}, got {blocks}; "
            f"leave it out for the mode's {mode.blocks}"
        )
    if not mode.shuffled and blocks != 1:
        raise ValueError(
            f"blocks must be 1 in mode {mode.name}, got {blocks}; the documents ran everything once"
        )
    return blocks
