"""Ranks that train together take the same steps while the first of them is diagnosed.

    first rank ── begin(arm, changes), step, step, …, end ──▶ store ──▶ each other rank, in order

Each step of one rank waits for those of all others, so they must take as many.  Where the first
rank's loader runs alone, theirs do, too: cores, disk and memory are shared.  Each loads samples of
its own sampler, with its own functions; no object of the user's is sent.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from labkit.diagnosis import loaders
from labkit.diagnosis.batches import copy_batch
from labkit.diagnosis.thresholds import STALL_S


class Group(NamedTuple):
    """Processes that train together."""

    rank: int
    store: Any
    """torch's store of keys and values, which all of them share."""


def group() -> Group | None:
    """Return the group of this process; None where it trains alone."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    distributed = torch.distributed
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return None
    store = distributed.distributed_c10d._get_default_store()
    return Group(distributed.get_rank(), distributed.PrefixStore("labkit", store))


def have_all_begun(group: Group) -> bool:
    """Return whether all ranks are about to begin, after waiting for them for a while."""
    ranks = range(sys.modules["torch"].distributed.get_world_size())
    group.store.set(f"rank {group.rank}", "")
    try:
        group.store.wait([f"rank {rank}" for rank in ranks], timedelta(seconds=STALL_S))
    except RuntimeError:
        return False
    return True


class Leader:
    """Tells the other ranks what the first one does."""

    def __init__(self, group: Group) -> None:
        self._store, self._sent = group.store, 0

    def begin(self, arm: str, changes: Mapping[str, Any]) -> None:
        """Have them load and compute as in an arm of the diagnosis.

        Args:
            arm: its name.
            changes: arguments of the loader's copy.
        """
        sent = {name: value for name, value in changes.items() if name != "batch_sampler"}
        init = sent.get("worker_init_fn")
        if isinstance(init, loaders.OneThread):
            sent["worker_init_fn"] = replace(init, own=None)
        self._send((arm, sent))

    def step(self) -> None:
        """Have them take one step."""
        self._send("step")

    def end(self) -> None:
        """Have them end."""
        self._send("end")

    def _send(self, message: object) -> None:
        self._store.set(str(self._sent), pickle.dumps(message))
        self._sent += 1


def follow(
    group: Group,
    loader: Any,
    step: Callable[[object], object],
    as_trained: Callable[[Iterable], Iterable] = iter,
) -> None:
    """Do what the first rank does, until it ends.

    Args:
        group: of this rank.
        loader: this rank's own; copies of it are iterated over.
        step: called with a batch.
        as_trained: returns the batches of a copy as the training gets them.
    """
    kept: list[object] = []
    own: dict[str, Any] = {}
    if loaders.is_data_loader(loader):
        own = loaders.spread_over_epoch(loader)
    store, arm, number = group.store, "warm", 0
    with ExitStack() as stack:
        copy = stack.enter_context(ExitStack())
        batches = _batches(copy, loader, own, as_trained)
        while True:
            while arm == "alone" and not store.check([str(number)]):
                next(batches)
            message = pickle.loads(store.get(str(number)))
            number += 1
            if message == "end":
                return
            if message != "step":
                arm, changes = message
                batches.close()  # a thread may load ahead
                copy.close()
                init = changes.get("worker_init_fn")
                if isinstance(init, loaders.OneThread):
                    changes["worker_init_fn"] = replace(init, own=loader.worker_init_fn)
                batches = _batches(copy, loader, own | changes, as_trained)
                continue
            if arm == "resident" and kept:
                batch = kept[number % len(kept)]
            else:
                batch = next(batches)
            if len(kept) < 4:  # enough to compute with
                kept.append(copy_batch(batch))
            step(batch)


def _batches(
    stack: ExitStack,
    loader: Any,
    changes: Mapping[str, Any],
    as_trained: Callable[[Iterable], Iterable],
) -> Generator:
    """Return endless batches of a copy of a loader, whose workers end with the stack."""
    if loaders.is_data_loader(loader):
        loader = stack.enter_context(loaders.copied(loader, **changes))
    return loaders.epochs(lambda: iter(as_trained(loader)))
