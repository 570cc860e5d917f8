"""Experiments that time single operations, without files and workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from labkit.experiments.sweep import in_groups
from labkit.parts.operations import MEANINGS
from labkit.runs.experiment import Experiment, Variant
from labkit.runs.operation_trials import all_operations
from labkit.settings import Settings


def timed_alone(
    base: Settings,
    name: str,
    sizes: Mapping[str, tuple[str, Mapping[str, int]]],
    *,
    is_quick: Callable[[str, str], bool] = lambda group, library: True,
    notes: tuple[str, ...] = (),
    **fields: Any,
) -> Experiment:
    """Compare the libraries or ways of single operations.

    Args:
        base: settings that all share.
        name: of the experiment.
        sizes: group -> its operation, and the numbers that its inputs are made from.
        is_quick: of group and library; see `in_groups`.
        notes: beside what each operation does.
        **fields: of `Experiment`.
    """
    # The inputs are in memory, and nothing is trained.
    settings = Settings(data=base.data, seed=base.seed, cache="warm", device="cpu", num_workers=0)
    groups = {
        group: {
            library: Variant(
                settings=settings, task={"operation": operation, "library": library, **size}
            )
            for known, library in all_operations()
            if known == operation
        }
        for group, (operation, size) in sizes.items()
    }
    meanings = dict.fromkeys(operation for operation, _ in sizes.values())
    return Experiment(
        name,
        kind="operation",
        variants=in_groups(groups, is_quick),
        notes=(*(f"{operation}: {MEANINGS[operation]}" for operation in meanings), *notes),
        **fields,
    )
