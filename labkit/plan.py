"""Plan: which trials a run consists of, and in which order.

Every block runs each variant once and the baseline twice, shuffled by a recorded
seed; two runs of the same thing in one block show what noise alone does.  Main
trap: a fixed order lets drift and a cold first run favour whatever comes later
(EVIDENCE 1: 77 % false positives for all of one arm before the other).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from labkit.settings import MIN_JUDGED_BLOCKS, Mode


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One trial to run."""

    block: int
    position: int
    variant: str
    role: str


def plan(
    labels: list[str], baseline: str, *, shuffled: bool, blocks: int, seed: int
) -> list[Planned]:
    """Lay out the trials of a run.

    Args:
        labels: all variants, in the experiment's order.
        baseline: the label that runs twice per block where the order is shuffled.
        shuffled: shuffled blocks, or each variant once in the given order.
        blocks: how many times.
        seed: of the order; recorded with the run.
    """
    planned = []
    for block in range(blocks):
        order = list(labels)
        if shuffled:
            order.append(baseline)
            random.Random(f"{seed}/{block}").shuffle(order)
        runs_of_baseline = 0
        for position, label in enumerate(order):
            role = ""
            if label == baseline:
                runs_of_baseline += 1
                role = f"A{runs_of_baseline}"
            planned.append(Planned(block=block, position=position, variant=label, role=role))
    return planned


def check_blocks(mode: Mode, blocks: int | None) -> int:
    """Give the number of blocks of a run.

    Args:
        mode: its own number is taken where none is given.
        blocks: a person's choice.

    Raises:
        ValueError: too few for verdicts, or several where the mode has one.
    """
    blocks = mode.blocks if blocks is None else blocks
    least = MIN_JUDGED_BLOCKS if mode.judged else 1
    if blocks < least:
        raise ValueError(f"blocks must be at least {least} in mode {mode.name}, got {blocks}")
    if not mode.shuffled and blocks != 1:
        raise ValueError(
            f"blocks must be 1 in mode {mode.name}, got {blocks}; the documents ran everything once"
        )
    return blocks
