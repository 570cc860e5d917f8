"""Batches of any kind: what a person's loader yields, taken as a tree with tensors at its ends.

Main trap: a loader may use a batch's memory again (a ring of buffers), so a batch that is to be
kept is copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def rebuilt(batch: object, change: Callable[[object], object]) -> object:
    """Make a batch of the same form out of changed leaves.

    Args:
        batch: mappings, sequences and dataclasses, nested; whatever else it holds is a leaf.
        change: leaf -> leaf.
    """
    if isinstance(batch, Mapping):
        return type(batch)((key, rebuilt(value, change)) for key, value in batch.items())
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
        return type(batch)(*(rebuilt(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(rebuilt(value, change) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch)]
        changed = {name: rebuilt(getattr(batch, name), change) for name in names}
        return dataclasses.replace(batch, **changed)
    return change(batch)


def leaves(batch: object) -> Iterator[object]:
    """Yield what a batch holds at its ends, in order."""
    found: list[object] = []
    rebuilt(batch, lambda leaf: found.append(leaf) or leaf)
    yield from found


def arrays(batch: object) -> Iterator[torch.Tensor]:
    """Yield a batch's tensors and arrays."""
    return (leaf for leaf in leaves(batch) if hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


def copied(batch: object) -> object:
    """Copy a batch's tensors and arrays; pinned ones stay pinned."""

    def copy(leaf: object) -> object:
        if hasattr(leaf, "clone"):
            twin = leaf.clone()
            return twin.pin_memory() if leaf.device.type == "cpu" and leaf.is_pinned() else twin
        return leaf.copy() if hasattr(leaf, "dtype") and hasattr(leaf, "copy") else leaf

    return rebuilt(batch, copy)


def moved(batch: object, device: str) -> object:
    """Copy a batch's tensors to a device."""
    return rebuilt(batch, lambda leaf: leaf.to(device) if hasattr(leaf, "is_pinned") else leaf)


def count_bytes(batch: object) -> int:
    """Add up what a batch's tensors and arrays hold."""
    return sum(leaf.nbytes for leaf in arrays(batch))


def count_images(batch: object) -> int:
    """Count the samples in a batch: the first length of its first array that has one; else 1."""
    return next((int(leaf.shape[0]) for leaf in arrays(batch) if len(leaf.shape)), 1)


def shapes(batch: object) -> tuple[str, ...]:
    """Describe a batch's arrays without its size: "3x224x224 float32"."""
    return tuple(
        f"{'x'.join(map(str, leaf.shape[1:])) or 'scalar'} {str(leaf.dtype).removeprefix('torch.')}"
        for leaf in arrays(batch)
    )
