"""Knobs: what can be turned at a person's own DataLoader, on a copy of it.

    loader ─ with_knobs(num_workers=4) ─▶ copy: same dataset, sampler, collate; workers of its own

Main traps: torch forbids most changes after construction, and a subclass may be constructed in
its own way, so the copy is changed behind that guard; and the copy shares the sampler's
generator, whose state whoever iterates over it has to restore.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

DEFAULT_PREFETCH_FACTOR = 2  # torch's own, where there are workers


def is_data_loader(loader: object) -> bool:
    """Say whether it is torch's DataLoader, or a kind of it."""
    from torch.utils.data import DataLoader

    return isinstance(loader, DataLoader)


def with_knobs(loader: DataLoader, **changes: object) -> DataLoader:
    """Copy a DataLoader, other knobs turned.

    Args:
        loader: stays as it is, with the workers that it may have.
        **changes: num_workers, prefetch_factor, persistent_workers, pin_memory, worker_init_fn,
            timeout, dataset or collate_fn.

    Returns:
        A loader without workers yet; `end` ends those it gets.
    """
    twin = copy.copy(loader)
    values = {"_iterator": None, **changes}
    workers = values.get("num_workers", loader.num_workers)
    if not workers:
        values |= {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
        # A context is refused without workers, and there is nothing it would start.
        values["_DataLoader__multiprocessing_context"] = None
    elif values.get("prefetch_factor", loader.prefetch_factor) is None:
        values["prefetch_factor"] = DEFAULT_PREFETCH_FACTOR
    for name, value in values.items():
        object.__setattr__(twin, name, value)
    return twin


def end(loader: object) -> None:
    """End the workers that a loader keeps between epochs, if it is one of `with_knobs`."""
    if is_data_loader(loader):
        object.__setattr__(loader, "_iterator", None)


def limited_threads(loader: DataLoader) -> Callable[[int], None]:
    """Make a `worker_init_fn` that does what the loader's own does, and then limits threads."""
    return partial(_start_with_one_thread, loader.worker_init_fn)


def _start_with_one_thread(own: Callable[[int], None] | None, number: int) -> None:
    import sys

    import torch

    if own is not None:
        own(number)
    torch.set_num_threads(1)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)


@contextmanager
def random_state_kept(loader: object) -> Iterator[None]:
    """Leave every generator of random numbers as it was: Python's, numpy's, torch's, the loader's.

    Args:
        loader: its own generator, and its sampler's, are restored too.
    """
    import random
    import sys

    import torch

    own = [getattr(loader, "generator", None), getattr(_sampler(loader), "generator", None)]
    kept = [(g, g.get_state()) for g in own if isinstance(g, torch.Generator)]
    python, numbers, here = random.getstate(), torch.get_rng_state(), sys.modules.get("numpy")
    arrays = here.random.get_state() if here else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(numbers)
        if arrays is not None:
            here.random.set_state(arrays)
        for generator, state in kept:
            generator.set_state(state)


def _sampler(loader: object) -> object:
    batches = getattr(loader, "batch_sampler", None)
    return getattr(batches, "sampler", None) or getattr(loader, "sampler", None)
