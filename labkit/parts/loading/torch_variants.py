"""torch's DataLoader used in its other ways: what the samples come from, and who joins them.

    IterableLoader      each worker iterates over its share of the batches    (IterableDataset)
    BatchSampledLoader  a list of keys per batch, asked for in one call       (__getitems__)
    LoopJoiningLoader   workers send samples, the training loop joins them    (collate in the loop)

Each takes what DataLoader takes and delivers the same batches in the same order.  Main trap: an
iterable data set that every worker iterates over whole delivers each image once per worker; and
one that is split image by image delivers other batches for every number of workers.  So worker w
of W has the batches w, w + W, w + 2 W …, which DataLoader, asking them in turn, puts in order.

Source: torch/utils/data/dataloader.py, "Single- and Multi-process Data Loading"; _utils/fetch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from labkit.parts.loading.samples import RAGGED, pin
from labkit.trial import Skip

if TYPE_CHECKING:
    import torch


class IterableLoader:
    """A DataLoader over a data set that can only be iterated.

    Args:
        dataset: gives a sample for a key, a tuple of whole numbers.
        batch_size: samples in a batch; what does not fill the last one is left out.
        sampler: the keys, as many in every epoch.
        drop_last: must be True, as a worker cannot know of the others' last samples.
        **how: as DataLoader's.
    """

    def __init__(
        self, dataset: object, *, batch_size: int, sampler: Iterable, drop_last: bool, **how: object
    ) -> None:
        import torch

        if not drop_last:
            raise ValueError("drop_last must be True for an iterable data set, got False")
        self.sampler, self._batch_size = sampler, batch_size
        # A worker that persists never sees its copy of the sampler move on: the keys are shared.
        self._keys = self._list_keys().share_memory_()
        torch.utils.data.IterableDataset.register(_Shares)  # torch is not imported before
        shares = _Shares(dataset, self._keys)
        self._loader = torch.utils.data.DataLoader(shares, batch_size, drop_last=True, **how)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator:
        self._keys.copy_(self._list_keys())
        return iter(self._loader)

    def _list_keys(self) -> torch.Tensor:
        import torch

        keys = torch.tensor(list(self.sampler))
        whole = len(keys) // self._batch_size * self._batch_size
        return keys[:whole].unflatten(0, (-1, self._batch_size))


class _Shares:
    """What a worker iterates over: its own share of the batches, sample by sample."""

    def __init__(self, dataset: object, keys: torch.Tensor) -> None:
        self.dataset, self.keys = dataset, keys  # keys: (batches, batch_size, 2) int64, shared

    def __iter__(self) -> Iterator:
        import torch

        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for batch in self.keys[first::step]:
            for key in batch.tolist():
                yield self.dataset[tuple(key)]


class BatchSampledLoader:
    """A DataLoader whose sampler gives lists of keys, each asked for in one call.

    Args:
        dataset: gives a sample for a key.
        batch_size: keys in a list.
        sampler: the keys.
        drop_last: leave out a last list that is not full.
        **how: as DataLoader's.
    """

    def __init__(
        self, dataset: object, *, batch_size: int, sampler: Iterable, drop_last: bool, **how: object
    ) -> None:
        import torch

        self.sampler = sampler
        lists = torch.utils.data.BatchSampler(sampler, batch_size, drop_last)
        self._loader = torch.utils.data.DataLoader(_Lists(dataset), batch_sampler=lists, **how)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator:
        return iter(self._loader)


class _Lists:
    """A data set that is asked for a whole batch at once, as one that reads ranges would be."""

    def __init__(self, dataset: object) -> None:
        self.dataset = dataset

    def __getitems__(self, keys: list) -> list:
        return [self.dataset[key] for key in keys]


class LoopJoiningLoader:
    """A DataLoader whose workers send their samples one by one, to be joined in the training loop.

    Args:
        dataset: gives a sample for a key.
        collate_fn: joins samples; None: torch's default_collate.
        pin_memory: page-locked batches, once they are joined; needs CUDA.
        **how: as DataLoader's.
    """

    def __init__(
        self,
        dataset: object,
        *,
        collate_fn: Callable[[list], object] | None = None,
        pin_memory: bool = False,
        **how: object,
    ) -> None:
        import torch

        data = torch.utils.data
        self.sampler, self._pins = how.get("sampler"), pin_memory
        self._join = collate_fn or data.default_collate
        # As tensors, which travel in shared memory; arrays would be pickled through a pipe.
        self._loader = data.DataLoader(dataset, collate_fn=data.default_convert, **how)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator:
        return map(self._finish, iter(self._loader))

    def _finish(self, samples: list) -> object:
        batch = self._join(samples)
        return pin(batch) if self._pins else batch


def default_joining_loader(
    dataset: object, *, collate_fn: object = None, **how: object
) -> torch.utils.data.DataLoader:
    """Make a DataLoader that joins samples with torch's default_collate, whatever it is given."""
    import torch

    return torch.utils.data.DataLoader(dataset, collate_fn=_join_by_default, **how)


def _join_by_default(samples: list[dict]) -> dict[str, torch.Tensor]:
    import torch

    ragged = [name for name in samples[0] if name.endswith(RAGGED)]
    if ragged:
        raise Skip(
            f"torch's default_collate joins entries of one size, got {', '.join(ragged)}; choose "
            "a preprocessor that makes none, as vectorized or classification"
        )
    return torch.utils.data.default_collate(samples)
