"""Search for the largest batch that trains in a GPU's memory.

4, 8, 16 … until one does not fit, then the gap is halved in multiples of 4.  The allocator keeps
*reserved* memory and hands it out again, so a GPU that is "90 % full" in nvidia-smi may be half
empty; *allocated* memory is in use (DOCUMENTS D11).

Source: torch.cuda.max_memory_allocated, max_memory_reserved.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labkit.machine.clock import SystemClock
from labkit.pipeline import build
from labkit.runs.failure_reasons import is_out_of_gpu_memory
from labkit.runs.trial import warm_up
from labkit.settings import Settings

BATCH_SIZE_MULTIPLE = 4  # [002]: a multiple of 2, better of 4
PeakBytes = tuple[int, int]  # allocated, reserved


def search(fits: Callable[[int], PeakBytes | None], most: int) -> dict[int, PeakBytes | None]:
    """Find the largest size that fits, by doubling and then halving the gap.

    Args:
        fits: returns the allocated and reserved bytes of a size; None: it does not fit.
        most: the largest size worth trying.

    Returns:
        Every size that was tried, ascending; all of them multiples of `BATCH_SIZE_MULTIPLE`.
    """
    tried: dict[int, PeakBytes | None] = {}
    low, high = 0, most // BATCH_SIZE_MULTIPLE + 1  # in multiples: low fits, high does not
    step = 1
    while high - low > 1:
        middle = min(step, high - 1) if step else (low + high) // 2
        tried[middle * BATCH_SIZE_MULTIPLE] = peak_bytes = fits(middle * BATCH_SIZE_MULTIPLE)
        if peak_bytes is None:
            high, step = middle, 0
        else:
            low, step = middle, 2 * step
    return dict(sorted(tried.items()))


def search_on_cuda(settings: Settings) -> dict[str, Any]:
    """Find the largest batch that trains on this process's GPU.

    Args:
        settings: complete, on device cuda; `batch_size` must be a small one.

    Returns:
        total_bytes of the GPU, most (images there are), and tried: size, allocated and reserved
        bytes, the last two None where it did not fit.
    """
    import torch

    pipeline = build(settings, SystemClock())
    images = len(pipeline.source.reader)

    def fits(batch_size: int) -> PeakBytes | None:
        gc.collect()  # what the last size left behind
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            sized = replace(pipeline.parts, settings=replace(settings, batch_size=batch_size))
            warm_up(replace(pipeline, parts=sized))
        except RuntimeError as error:
            if not is_out_of_gpu_memory(error):
                raise
            return None
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()

    tried = search(fits, images)
    return {
        "total_bytes": torch.cuda.get_device_properties(0).total_memory,
        "images": images,
        "tried": [[size, *(peak_bytes or (None, None))] for size, peak_bytes in tried.items()],
    }
