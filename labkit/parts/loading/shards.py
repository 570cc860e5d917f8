"""Sequential shards with a shuffle buffer, as WebDataset, MDS and LitData read them.

    shards, shuffled ─▶ a part for each worker, read image after image ─▶ buffer ─▶ drawn at random

A disk does not seek within a shard.  Samples are mixed in the buffer alone: `mixing` says how well.
A worker's part is a whole number of batches, so no image is left out.
Source: WebDataset, `wds.shuffle`; MosaicML streaming, "Shuffling".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from labkit import units
from labkit.parts.loading.source import Source
from labkit.parts.loading.torch_loader import IterableLoader, load_with_torch
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Key = tuple[int, int]  # epoch, image index
# WebDataset's examples take 1,000 of a million images or more; runs here have thousands.
BUFFER_IMAGES = 100


def load_shards(source: Source, settings: Settings) -> Iterable[dict[str, torch.Tensor]]:
    """Load shard after shard; with `shuffle`, shards are shuffled, and samples in a buffer.

    Args:
        source: the samples; each file of a pack is a shard.
        settings: complete.
    """
    parts = partial(_Part, settings=settings)
    return load_with_torch(source, settings, partial(IterableLoader, shares=parts))


def describe_order(source: Source, settings: Settings) -> str:
    """Return what a row says of the order: how it is read, and how well it is mixed."""
    if not settings.shuffle:
        return "shard after shard, as stored"
    mixed = mixing(list(source.order), source, settings)
    return (
        f"shard after shard, a buffer of {BUFFER_IMAGES} images in each worker: batches are mixed "
        f"to {units.whole_percent(mixed)} of a full shuffle"
    )


def mixing(keys: Sequence[Key], source: Source, settings: Settings) -> float:
    """Return how far apart the images of a batch lie in the data, on average over all pairs.

    Args:
        keys: of an epoch, in any order.
        source: tells which images a shard holds.
        settings: uses num_workers, batch_size, seed and shuffle.

    Returns:
        As a share of what they are apart in random batches: 1 for a full shuffle, nearly 0 for
        the stored order.
    """
    size, workers = settings.batch_size, max(1, settings.num_workers)
    places = {key: place for place, key in enumerate(sorted(keys))}
    in_shards = read_order(keys, source, settings)
    parts = [_cut(in_shards, number, workers, size) for number in range(workers)]
    drawn = [
        places[key] for number, part in enumerate(parts) for key in draw(part, settings, number)
    ]
    batches = np.array(drawn[: len(drawn) // size * size]).reshape(-1, size)
    apart = np.abs(batches[:, :, None] - batches[:, None, :]).sum() / (size * (size - 1) or 1)
    return float(apart / len(batches) / ((len(places) + 1) / 3))


def read_order(keys: Iterable[Key], source: Source, settings: Settings) -> list[Key]:
    """Return an epoch's keys in the order in which they are read, of all workers."""
    ordered = sorted(keys)
    files = groupby(ordered, lambda key: source.reader.files_of([key[1]]))
    shards = [list(images) for _, images in files]
    if settings.shuffle:
        # 9 tells this draw from others with the same seed and epoch.
        numbers = np.random.default_rng((settings.seed, ordered[0][0], 9)).permutation(len(shards))
        shards = [shards[number] for number in numbers]
    return [key for shard in shards for key in shard]


def draw(items: Iterable[Item], settings: Settings, worker: int, epoch: int = 0) -> Iterator[Item]:
    """Draw a worker's items from a buffer that is filled in their order.

    Args:
        items: each is taken when there is room for it.
        settings: uses seed and shuffle; without, nothing is buffered.
        worker: its number.
        epoch: of the draw.
    """
    if not settings.shuffle:
        yield from items
        return
    rng = np.random.default_rng((settings.seed, epoch, worker, 10))
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < BUFFER_IMAGES:
            buffer.append(item)
            continue
        at = rng.integers(BUFFER_IMAGES)
        drawn, buffer[at] = buffer[at], item
        yield drawn
    yield from (buffer[at] for at in rng.permutation(len(buffer)))


def _cut(keys: Sequence[Key], number: int, workers: int, batch_size: int) -> Sequence[Key]:
    """Return a worker's part: whole batches, one after the other."""
    batches = len(keys) // batch_size
    start, stop = (n * batches // workers * batch_size for n in (number, number + 1))
    return keys[start:stop]


class _Part:
    """A worker's part of the shards, sample by sample."""

    def __init__(self, dataset: Source, keys: torch.Tensor, settings: Settings) -> None:
        self.dataset, self.keys = dataset, keys  # keys: (batches, batch_size, 2) int64, shared
        self.settings = settings

    def __iter__(self) -> Iterator[dict]:
        import torch

        worker = torch.utils.data.get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        keys: list[Key] = [(epoch, i) for epoch, i in self.keys.flatten(0, 1).tolist()]
        in_shards = read_order(keys, self.dataset, self.settings)
        part = _cut(in_shards, number, workers, self.settings.batch_size)
        read = ((key, self.dataset.read(key)) for key in part)
        for key, stored in draw(read, self.settings, number, keys[0][0]):
            yield self.dataset.make(key, stored)
