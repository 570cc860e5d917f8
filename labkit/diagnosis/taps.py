"""A person's DataLoader, copied, with something of ours in its workers.

    loader ── tapped() ──▶ a copy: same class, sampler, generator │ our start-up in every worker,
                                                                  │ wrapped data set and collate
    end of the block ────▶ its workers have ended, also after an error

The person's own loader is never changed.  Main trap: an exception's traceback holds the iterator
and with it the workers, so they are ended by name and not by dropping what holds them.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

# A worker that is silent for so long is taken for stalled where the person set no time-out.
STALL_S = 30.0


@contextlib.contextmanager
def tapped(
    loader: DataLoader, *, start: Callable[[int], None] | None = None, **changes: object
) -> Iterator[DataLoader]:
    """Lend a copy of a loader.

    Args:
        loader: stays as it is; sampler, generator and data set are shared with the copy.
        start: called in every worker with its number, before the person's own start-up;
            picklable where workers are spawned.
        changes: attributes of the copy, also those that DataLoader guards: num_workers, dataset.
    """
    twin, iterators = copy.copy(loader), []

    def get_iterator() -> Iterator:
        iterators.append(type(loader)._get_iterator(twin))
        return iterators[-1]

    workers = changes.get("num_workers", loader.num_workers)
    changes = {
        "_iterator": None,  # persistent workers are the person's
        "_get_iterator": get_iterator,
        "worker_init_fn": _Start(start, loader.worker_init_fn) if start else loader.worker_init_fn,
        "timeout": (loader.timeout or STALL_S) if workers else 0,
        **changes,
    }
    for name, value in changes.items():
        object.__setattr__(twin, name, value)  # past DataLoader's guard
    try:
        yield twin
    finally:
        for iterator in iterators:
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()


class _Start:
    """What a worker calls first: ours, then the person's."""

    def __init__(self, ours: Callable[[int], None], own: Callable[[int], None] | None) -> None:
        self._ours, self._own = ours, own

    def __call__(self, worker_id: int) -> None:
        self._ours(worker_id)
        if self._own is not None:
            self._own(worker_id)
