"""torch's DataLoader, used in its various ways, and a loader that repeats one batch.

    keys ─▶ worker processes: samples ─▶ collate ─▶ shared memory ─▶ (pinning) ─▶ training loop

The start method is always passed: inside a forked trial, DataLoader would use the parent's.
Source: torch/utils/data/dataloader.py, "Single- and Multi-process Data Loading"; _utils/fetch.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from labkit.parts.loading.source import Source, pin
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


def load_with_torch(
    source: Source,
    settings: Settings,
    make: Callable[..., Iterable] | None = None,
    *,
    by_batch: bool = False,
    in_order: bool = True,
    through_files: bool = False,
) -> Iterable[dict[str, torch.Tensor]]:
    """Load with torch's DataLoader and every setting that it has.

    Args:
        source: the samples.
        settings: complete.
        make: called with the arguments of DataLoader; None: DataLoader itself.
        by_batch: ask the data set for whole batches, by `__getitems__`.
        in_order: hand over batches in the order of their keys, and not as they get ready.
        through_files: workers share memory by the names of files and not by open files: torch's
            sharing strategy file_system.
    """
    import torch

    workers = settings.num_workers
    keeps_files_open = torch.multiprocessing.get_sharing_strategy() == "file_descriptor"
    if workers and keeps_files_open and not through_files:
        # Beside those ahead: one in the making, and the last two, which workers inherit.
        batches = workers * settings.prefetch_factor + 3
        _check_open_files(workers, 8 * batches)  # a sample has 8 entries at most
    start_worker = partial(_share_through_files, source) if through_files else source.start_worker
    loader = (make or torch.utils.data.DataLoader)(
        _ByBatch(source) if by_batch else source,
        batch_size=settings.batch_size,
        sampler=source.order,
        drop_last=True,
        collate_fn=source.collate,
        num_workers=workers,
        # Without CUDA torch warns and pins nothing; the simulated GPU models the effect.
        pin_memory=settings.pin_memory and settings.device == "cuda",
        prefetch_factor=settings.prefetch_factor if workers else None,
        persistent_workers=settings.persistent_workers and workers > 0,
        multiprocessing_context=settings.multiprocessing_context if workers else None,
        worker_init_fn=start_worker if workers else None,
        in_order=in_order,
    )
    # torch pins only with CUDA; the simulated GPU needs the same copy.
    return pin(loader, settings, threaded=workers > 0) if settings.is_on_simulated_gpu else loader


def _share_through_files(source: Source, worker_id: int) -> None:
    """Start a worker that shares its batches by the names of files.

    The process that makes a tensor decides how it is shared, so the training process keeps its own
    strategy.  Source: torch.multiprocessing, "Sharing strategies".
    """
    import torch

    torch.multiprocessing.set_sharing_strategy("file_system")
    source.start_worker(worker_id)


class _ByBatch:
    """A data set that DataLoader asks for a batch in one call.

    Samples that are made from a JPEG each share no work, so they are made one after the other.
    Source: torch/utils/data/_utils/fetch.py, _MapDatasetFetcher.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, key: tuple[int, int]) -> dict:
        return self._source[key]

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[dict]:
        return [self._source[key] for key in keys]


def _check_open_files(workers: int, sent: int) -> None:
    """Refuse workers that would run out of open files: torch's loader then waits forever.

    Args:
        workers: their number.
        sent: tensors of all batches that wait or are held, each an open file.

    Raises:
        ValueError: the limit is too low.
    """
    import resource

    import psutil

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = psutil.Process().num_fds()
    # The process of the loop holds 4 files for each worker, and later workers inherit them. A
    # worker opens 12: its sockets, the image, and what libraries open.
    needed = opened + 4 * workers + sent + 12
    if limit < needed:
        raise ValueError(
            f"num_workers must be fewer for a limit of {limit} open files, got {workers}, which "
            f"need {needed}; raise the limit with: ulimit -n {needed}, or use fewer"
        )


class ResidentLoader:
    """Repeat one batch, made when the loader is opened, so that an epoch measures the device alone.

    Args:
        source: the images; its first batch is repeated.
        settings: uses batch_size, pin_memory and device.
    """

    def __init__(self, source: Source, settings: Settings) -> None:
        keys = list(source.order)
        self._steps = len(keys) // settings.batch_size
        batch = source.collate([source[key] for key in keys[: settings.batch_size]])
        (self._batch,) = pin([batch], settings, threaded=False)  # once, not in every step

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Repeat the batch as often as the epoch has steps."""
        return itertools.repeat(self._batch, self._steps)


class IterableLoader:
    """A DataLoader over an iterable-style data set.

    If every worker iterated over all of it, each image would be delivered once per worker; split
    image by image, batches would depend on the number of workers.  So worker w of W makes the
    batches w, w + W, w + 2 W …; DataLoader asks the workers in turn and so keeps the order.

    Args:
        dataset: the samples.
        batch_size: images of a batch.
        sampler: the keys of an epoch.
        shares: (dataset, keys) -> what a worker iterates over; None: every W-th batch.
        **how: arguments of DataLoader.
    """

    def __init__(
        self,
        dataset: Source,
        *,
        batch_size: int,
        sampler: Iterable,
        shares: Callable[..., Iterable] | None = None,
        **how: Any,
    ):
        import torch

        self._sampler, self._batch_size = sampler, batch_size
        # Persistent workers have a copy of the sampler of the first epoch: the keys are shared.
        self._keys = self._list_keys().share_memory_()
        share: Any = (shares or _Shares)(dataset, self._keys)
        torch.utils.data.IterableDataset.register(type(share))  # torch is not imported before
        self._loader: torch.utils.data.DataLoader = torch.utils.data.DataLoader(
            share, batch_size, **how
        )

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        self._keys.copy_(self._list_keys())
        return iter(self._loader)

    def _list_keys(self) -> torch.Tensor:
        import torch

        keys = torch.tensor(list(self._sampler))
        whole = len(keys) // self._batch_size * self._batch_size
        return keys[:whole].unflatten(0, (-1, self._batch_size))


class _Shares:
    """A worker's share of the batches, sample by sample."""

    def __init__(self, dataset: Source, keys: torch.Tensor) -> None:
        self.dataset, self.keys = dataset, keys  # keys: (batches, batch_size, 2) int64, shared

    def __iter__(self) -> Iterator[dict]:
        import torch

        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for batch in self.keys[first::step]:
            for key in batch.tolist():
                yield self.dataset[tuple(key)]
