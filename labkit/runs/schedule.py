"""Schedule: which trials a run has, and in which order.

    run.json + rows so far ─▶ next_trials: what the planned blocks still lack

Every block runs each variant once and every group's baseline twice (A1, A2), shuffled by a recorded
seed; A1 and A2 of a block differ by noise alone.  In a fixed order, drift and a cold first run
favour later variants (EVIDENCE 1: 77 % false positives).  A group's trials follow one another, so
that drift does not come between what is compared.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from labkit.analysis.thresholds import MIN_JUDGED_BLOCKS
from labkit.records import OPERATION, AnyTrial, RunInfo
from labkit.settings import Mode


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
    groups: Mapping[str, str],
    shuffled: bool,
    blocks: Iterable[int],
    seed: int,
) -> list[Planned]:
    """Plan the trials of some blocks.

    Args:
        labels: the variants, in the experiment's order.
        baselines: the labels that run twice per block where the order is shuffled.
        groups: label -> what it is compared within; its trials follow one another.
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
            group_order = list(dict.fromkeys(map(groups.get, order)))
            order.sort(key=lambda label: group_order.index(groups.get(label)))
        roles = {label: iter(("A1", "A2")) for label in baselines}
        for position, label in enumerate(order):
            role = next(roles[label]) if label in roles else ""
            planned.append(Planned(block=block, position=position, variant=label, role=role))
    return planned


def next_trials(
    info: RunInfo, trials: Sequence[AnyTrial], dropped: Collection[str] = ()
) -> list[Planned]:
    """Return the planned trials that are not measured yet, in order; none once all are.

    A trial whose rows are all failed or skipped is returned again.

    Args:
        info: of the run.
        trials: the run's rows so far, of any status.
        dropped: variants that are not measured any more.

    Returns:
        The trials of the planned blocks that have no row with status ok.
    """
    planned = plan(
        list(info.variants),
        list(info.baseline_by_group.values()),
        groups=info.groups,
        shuffled=info.shuffled,
        blocks=range(info.blocks),
        seed=info.order_seed,
    )
    done = {(row.block, row.variant, row.role) for row in trials if row.status == "ok"}
    return [
        trial
        for trial in planned
        if trial.variant not in dropped and (trial.block, trial.variant, trial.role) not in done
    ]


def default_blocks(mode: Mode, kind: str) -> int:
    """Return the number of blocks of a run of some kind; a block of operations is a short round."""
    # The interval of an operation needs many rounds, and a round takes a fraction of a second.
    return max(mode.blocks, 10) if kind == OPERATION and mode.shuffled else mode.blocks


def check_blocks(mode: Mode, blocks: int | None, kind: str) -> int:
    """Return the number of blocks of a run.

    Args:
        mode: of the run.
        blocks: the user's number; None: as of `default_blocks`.
        kind: of the run.

    Raises:
        ValueError: too few for verdicts, or several where the mode has one.
    """
    default = default_blocks(mode, kind)
    blocks = default if blocks is None else blocks
    least = MIN_JUDGED_BLOCKS if mode.judged else 1
    if blocks < least:
        raise ValueError(
            f"blocks must be at least {least} in mode {mode.name}, got {blocks}; "
            f"leave it out for the mode's {default}"
        )
    if not mode.shuffled and blocks != 1:
        raise ValueError(
            f"blocks must be 1 in mode {mode.name}, got {blocks}; the documents ran everything once"
        )
    return blocks
