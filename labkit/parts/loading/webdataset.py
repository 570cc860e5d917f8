"""WebDataset: tar shards that worker processes read one after the other, mixed in a buffer.

    shards of a worker, shuffled ─▶ buffer ─▶ labkit's sample ─▶ batches ─▶ DataLoader ─▶ loop

The images of an epoch are those of the other loaders, in an order of its own.  Shards leave each
worker a last batch that is not full: their samples are joined in the training process.
Source: webdataset.github.io, `DataPipeline` and `WebLoader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from labkit.contracts import open_library
from labkit.parts.loading.shards import BUFFER_IMAGES
from labkit.parts.loading.source import RIVALS, Source, pin
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


def load_with_webdataset(source: Source, settings: Settings) -> Iterable[dict[str, torch.Tensor]]:
    """Load the shards of a pack; each worker has its own ones.

    Args:
        source: the samples, packed as tar; images that the epoch leaves out are read, too.
        settings: complete.

    Raises:
        Skip: WebDataset is missing or broken.
    """
    loader = WebDatasetLoader(source, settings)
    is_simulated = settings.is_on_simulated_gpu  # elsewhere DataLoader pins
    return pin(loader, settings, threaded=settings.num_workers > 0) if is_simulated else loader


class WebDatasetLoader:
    """Epochs of a `DataPipeline` in a `WebLoader`."""

    def __init__(self, source: Source, settings: Settings) -> None:
        import torch

        wds = open_library("webdataset", RIVALS)
        self._source, self._size = source, settings.batch_size
        # Workers that are kept between epochs have a copy of the source: the epoch is shared.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._ids = frozenset(image_id for _, image_id in source.order)
        shards = list(map(str, source.reader.paths))
        seed, is_shuffled = settings.seed, settings.shuffle
        of_shards, of_samples = (
            [wds.detshuffle(count, seed=seed)] * is_shuffled
            for count in (len(shards), BUFFER_IMAGES)
        )
        self._shuffles = [*of_shards, *of_samples]
        pipeline = wds.DataPipeline(
            wds.SimpleShardList(shards),
            wds.split_by_worker,
            *of_shards,
            wds.tarfile_to_samples(),
            wds.select(self._is_wanted),
            *of_samples,
            wds.map(self._make),
            wds.batched(self._size, collation_fn=self._collate),
        )
        workers = settings.num_workers
        self._loader = wds.WebLoader(
            pipeline,
            batch_size=None,
            num_workers=workers,
            pin_memory=settings.pin_memory and settings.device == "cuda",
            prefetch_factor=settings.prefetch_factor if workers else None,
            persistent_workers=settings.persistent_workers and workers > 0,
            multiprocessing_context=settings.multiprocessing_context if workers else None,
            worker_init_fn=source.start_worker if workers else None,
        )

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Start an epoch."""
        epoch, _ = next(iter(self._source.order))
        self._epoch.fill_(epoch)
        for stage in self._shuffles:
            stage.epoch = epoch - 1  # each adds one when it starts; workers that are kept count on
        rest: list[dict[str, Any]] = []
        for batch in self._loader:
            if isinstance(batch, dict):
                yield batch
                continue
            rest += batch
            if len(rest) >= self._size:
                yield self._source.collate(rest[: self._size])
                del rest[: self._size]

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker gets what makes samples, not the loader that started it.
        return {**self.__dict__, "_loader": None}

    def _is_wanted(self, member: dict[str, Any]) -> bool:
        return int(member["__key__"]) in self._ids

    def _make(self, member: dict[str, Any]) -> tuple[dict]:
        key = int(self._epoch), int(member["__key__"])
        annotation = self._source.reader.annotation(key[1])
        return (self._source.make(key, (member["jpg"], annotation)),)  # a dict would get its key

    def _collate(self, samples: list[tuple[dict]]) -> Any:
        whole = [sample for (sample,) in samples]
        return self._source.collate(whole) if len(whole) == self._size else whole
