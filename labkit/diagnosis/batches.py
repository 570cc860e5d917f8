"""Batches as trees with arrays at their ends: mappings, sequences and dataclasses, nested."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from labkit.diagnosis.facts import Batch

if TYPE_CHECKING:
    import torch


def map_batch(batch: object, change: Callable[[Any], object]) -> object:
    """Return a batch of the same form with changed leaves.

    Args:
        batch: mappings, sequences and dataclasses, nested; all else in it is a leaf.
        change: leaf -> leaf.
    """
    again = partial(map_batch, change=change)
    kind: Any = type(batch)
    if isinstance(batch, Mapping):
        changed = {key: again(value) for key, value in batch.items()}
        return changed if isinstance(batch, defaultdict) else kind(changed)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
        return kind(*map(again, batch))
    if isinstance(batch, list | tuple):
        return kind(map(again, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = dataclasses.fields(batch)
        return dataclasses.replace(batch, **{f.name: again(getattr(batch, f.name)) for f in fields})
    return change(batch)


def leaves(batch: object) -> list[Any]:
    """Return everything in a batch that is no container, in order."""
    items: list[Any] = []

    def note(leaf: object) -> object:
        items.append(leaf)
        return leaf

    map_batch(batch, note)
    return items


def arrays(batch: object) -> list[torch.Tensor]:
    """Return a batch's tensors and arrays, in order."""
    return [leaf for leaf in leaves(batch) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]


def count_samples(batch: Any, size: int | None) -> int:
    """Return how many samples a batch has; 0 where it does not tell.

    Args:
        batch: samples, or what holds them: a mapping, a list or a tuple.
        size: the loader's batch size; it decides where batches are lists of samples, and no batch
            has more.
    """
    # For every batch of a training that is watched: whether something is a `Mapping` takes long.
    length = _length(batch)
    parts: Iterable[Any] = ()
    if isinstance(batch, (list, tuple)):
        parts = batch
    elif length is None and isinstance(batch, Mapping):
        parts = batch.values()
    lengths = [each for each in map(_length, parts) if each is not None][:1]
    if length is not None:
        lengths.append(length)
    if size and (not lengths or size in lengths or lengths[0] > size):
        return size
    return lengths[0] if lengths else 0


def _length(part: Any) -> int | None:
    """Return the length of a list or an array; None of what has none."""
    if isinstance(part, (list, tuple)):
        return len(part)
    # `len` of a tensor is Python code.
    return part.shape[0] if getattr(part, "ndim", 0) else None


def copy_batch(batch: object) -> object:
    """Return a copy of a batch in memory of its own; pinned tensors stay pinned."""

    def copy_leaf(leaf: Any) -> object:
        if hasattr(leaf, "clone") and not hasattr(leaf, "is_pinned"):  # no tensor
            return leaf.clone()
        if hasattr(leaf, "clone"):
            twin = leaf.clone()
            return twin.pin_memory() if leaf.device.type == "cpu" and leaf.is_pinned() else twin
        return leaf.copy() if hasattr(leaf, "dtype") and hasattr(leaf, "copy") else leaf

    return map_batch(batch, copy_leaf)


def move_batch(batch: object, device: torch.device | str) -> object:
    """Return a batch with its tensors on a device."""
    return map_batch(batch, lambda leaf: leaf.to(device) if hasattr(leaf, "is_pinned") else leaf)


def bytes_by_dtype(batch: object) -> dict[str, int]:
    """Return the bytes of a batch's tensors and arrays by dtype, such as "float32"."""
    total_bytes: dict[str, int] = {}
    for array in arrays(batch):
        name = str(array.dtype).removeprefix("torch.")
        total_bytes[name] = total_bytes.get(name, 0) + array.nbytes
    return total_bytes


def whole(batch: object) -> object:
    """Return a kept batch for a step, which may take things out of what holds them."""
    return copy.copy(batch) if isinstance(batch, Mapping | list) else batch


def batch_facts(batch: object, size: int | None) -> Batch:
    """Return what the rules need to know of a batch.

    Args:
        batch: its first one.
        size: the loader's batch size.
    """
    parts = arrays(batch)
    return Batch(
        bytes_by_dtype=bytes_by_dtype(batch),
        samples=count_samples(batch, size),
        unit="images" if any(map(_is_images, parts)) else "samples",
        objects=len(leaves(batch)) - len(parts),
        tensors=len(parts),
    )


def _is_images(array: Any) -> bool:
    """Return whether an array is a batch of pictures: four dimensions, one to four channels."""
    shape = tuple(array.shape)
    return len(shape) == 4 and (shape[1] in (1, 3, 4) or shape[3] in (1, 3, 4))
