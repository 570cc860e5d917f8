"""torch's DataLoader: samples made in worker processes, and sent as batches.

    keys -> worker processes: samples -> collate -> shared memory -> (pinning) -> training loop

Main trap: inside a forked trial a DataLoader would take its start method from the parent; it
is always passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from labkit.parts.loading.pinning import PinningLoader
from labkit.parts.loading.source import Source
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


def load_with_torch(
    source: Source, settings: Settings, make: Callable[..., Iterable] | None = None
) -> Iterable[dict[str, torch.Tensor]]:
    """Load with torch's DataLoader and every knob of Settings.

    Args:
        source: the samples.
        settings: complete.
        make: what is called as DataLoader is; None: DataLoader itself.
    """
    import torch

    workers = settings.num_workers
    loader = (make or torch.utils.data.DataLoader)(
        source,
        batch_size=settings.batch_size,
        sampler=source.order,
        drop_last=True,
        collate_fn=source.collate,
        num_workers=workers,
        # Without CUDA torch warns and pins nothing; the emulated device models the effect.
        pin_memory=settings.pin_memory and settings.device == "cuda",
        prefetch_factor=settings.prefetch_factor if workers else None,
        persistent_workers=settings.persistent_workers and workers > 0,
        multiprocessing_context=settings.start_method if workers else None,
        worker_init_fn=source.start_worker if workers else None,
    )
    if settings.pin_memory and settings.device == "emulated":
        # torch pins only where there is CUDA; what stands in for CUDA must pin, too.
        return PinningLoader(loader, threaded=workers > 0)
    return loader
