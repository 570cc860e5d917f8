"""The loader `threads`: `ThreadLoader` with the settings of torch's loader."""

from __future__ import annotations

from labkit.parts.loading.source import Source
from labkit.recipes.thread_loader import ThreadLoader
from labkit.settings import Settings


def load_with_threads(source: Source, settings: Settings) -> ThreadLoader:
    """Load with threads of this process: as many as torch's loader has workers, as far ahead."""
    threads = settings.num_workers
    return ThreadLoader(
        source,
        batch_size=settings.batch_size,
        sampler=source.order,
        num_threads=threads,
        drop_last=True,
        # Without CUDA nothing is left of pinning: no batch is sent, so none is copied.
        pin_memory=settings.pin_memory and settings.device == "cuda",
        prefetch_batches=settings.prefetch_factor * max(1, threads),
    )
