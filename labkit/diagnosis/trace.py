"""Some steps as a trace that Perfetto and chrome://tracing open: every operation, CPU and CUDA.

    first batch and step, not traced ─▶ torch.profiler: next batch │ step │ next batch │ step …
                                        ─▶ one JSON file

Main trap: with CUDA, torch keeps its tracing library attached to the process afterwards, which
costs later steps a little; so nothing is timed after a trace in the same process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from labkit.diagnosis.taps import tapped

NEXT_BATCH, STEP = "next batch", "step"


def export_trace(
    loader: Iterable, step: Callable[[object], object], path: Path | str, *, steps: int = 10
) -> int:
    """Write a trace of some steps; what workers do is not in it.

    Args:
        loader: is not changed; a copy of a torch DataLoader is iterated over.
        step: called with every batch; what it does to a model is not taken back.
        path: the file; one that ends in .gz is compressed.
        steps: how many to trace, after one that is not traced.

    Returns:
        How many there are in the trace: fewer if batches ran out.

    Raises:
        ValueError: no batch is left after the first.
        Exception: of the loader or the step; what was traced until then is written.
    """
    from torch.utils.data import DataLoader

    if not isinstance(loader, DataLoader):
        return _export(loader, step, Path(path), steps)
    with tapped(loader) as twin:
        return _export(twin, step, Path(path), steps)


def _export(loader: Iterable, step: Callable[[object], object], path: Path, steps: int) -> int:
    import torch
    from torch.profiler import ProfilerActivity, record_function

    batches, end, traced = iter(loader), object(), 0
    if (first := next(batches, end)) is not end:
        step(first)
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    tracing = torch.profiler.profile(activities=activities)
    try:
        with tracing:
            while traced < steps:
                with record_function(NEXT_BATCH):
                    batch = next(batches, end)
                if batch is end:
                    break
                with record_function(STEP):
                    step(batch)
                traced += 1
    finally:
        if traced:
            tracing.export_chrome_trace(str(path))
    if not traced:
        raise ValueError(
            "loader must have at least two batches to trace one step, got "
            f"{0 if first is end else 1}; use more data or smaller batches"
        )
    return traced
