"""Samples: which arrays one has, and how many samples become one batch without a copy of it.

    {"image": (H, W, 3) uint8, "label": 3}  ->  Node(dict, names, (Rows, Rows)), [array, array]
    Rows -> row i of a batch array that is there already      anything else -> torch's collate

The batch is what torch's default_collate makes of the samples: numbers and arrays become
tensors, dicts stay dicts, tuples become lists.  Entries of a dict whose name ends in `_ragged`
are joined end to end instead, with `<name>_counts` added.  Main trap: writing into an array
casts without a word (0.5 becomes 0 in whole numbers), so every sample's shapes and dtypes are
compared with the batch's before it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch

RAGGED = "_ragged"
# Every entry of every sample is asked these.  Types before abstract classes, which are slower to
# ask: the first match decides.
MAPPINGS = (dict, Mapping)
ARRAYS = (np.ndarray, np.generic, int, float, complex)


class Rows(NamedTuple):
    """An entry that is the same size in every sample: one row of a batch array each."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Ragged(NamedTuple):
    """An entry with any number of rows in each sample."""

    row_shape: tuple[int, ...]
    dtype: np.dtype


class Other(NamedTuple):
    """Whatever torch's default_collate knows and this does not: text, tensors on a device."""


class Node(NamedTuple):
    """A dict, list or tuple of entries."""

    kind: type
    names: tuple
    parts: tuple


Layout = Rows | Ragged | Other | Node


def take_apart(sample: object) -> tuple[Layout, list]:
    """Find a sample's arrays.

    Args:
        sample: an array, tensor or number, or dicts, lists and tuples of them.

    Returns:
        What the sample looks like, to be compared with another's, and its entries in order:
        arrays for `Rows` and `Ragged`, anything for `Other`.

    Raises:
        ValueError: an entry that is named ragged has no rows.
    """
    entries: list = []
    return _walk(sample, entries), entries


def entries_of(layout: Layout, path: str = "") -> Iterator[tuple[str, Layout]]:
    """Name a layout's entries in the order of `take_apart`: ("['image']", Rows(...))."""
    if not isinstance(layout, Node):
        yield path, layout
        return
    for name, part in zip(layout.names, layout.parts):
        yield from entries_of(part, f"{path}[{name!r}]")


def difference(layout: Layout, wanted: Layout) -> str:
    """Say in one line how a sample's layout differs from the one it should have."""
    found, expected = dict(entries_of(layout)), dict(entries_of(wanted))
    if list(found) != list(expected):
        return f"sample must have the entries {_names(expected)}, got {_names(found)}"
    for path, entry in expected.items():
        if found[path] != entry:
            return f"sample{path} must be {_words(entry)}, got {_words(found[path])}"
    return f"sample must be {wanted}, got {layout}"  # a list and a tuple of the same


def put_together(layout: Layout, entries: Iterator[object]) -> object:
    """Build the batch that has a sample's structure.

    Args:
        layout: of every sample.
        entries: what each entry became, in order; for `Ragged` a pair of all rows and counts.
    """
    if not isinstance(layout, Node):
        return next(entries)
    if not issubclass(layout.kind, MAPPINGS):
        parts = [put_together(part, entries) for part in layout.parts]
        # As default_collate does it: a plain tuple becomes a list.
        return layout.kind(*parts) if hasattr(layout.kind, "_fields") else parts
    batch = {}
    for name, part in zip(layout.names, layout.parts):
        if isinstance(part, Ragged):
            batch[name], batch[f"{name}_counts"] = next(entries)
        else:
            batch[name] = put_together(part, entries)
    if layout.kind is dict:
        return batch
    try:
        return layout.kind(batch)
    except TypeError:  # a mapping that is made in a way of its own
        return batch


def join(arrays: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Join ragged arrays.

    Returns:
        All their rows, and (samples,) int64: how many rows each had.
    """
    import torch

    counts = torch.tensor([len(array) for array in arrays], dtype=torch.int64)
    return torch.from_numpy(np.concatenate(arrays)), counts


def pin(batch: object) -> object:
    """Copy a batch's tensors to page-locked memory, as torch's pin_memory does."""
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, Mapping):
        return {name: pin(part) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(pin, batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(pin, batch))
    return batch


def _walk(value: object, entries: list, name: object = "") -> Layout:
    array = _as_array(value)
    if array is None and isinstance(value, MAPPINGS):
        parts = tuple([_walk(part, entries, key) for key, part in value.items()])
        return Node(type(value), tuple(value), parts)
    if array is None and isinstance(value, (list, tuple)):
        parts = tuple([_walk(part, entries) for part in value])
        return Node(type(value), tuple(range(len(value))), parts)
    entries.append(value if array is None else array)
    if isinstance(name, str) and name.endswith(RAGGED):
        if array is None or array.ndim == 0:
            raise ValueError(
                f"sample[{name!r}] must be an array of rows, got {type(value).__name__}; "
                f"only entries with any number of rows may be named {RAGGED}"
            )
        return Ragged(array.shape[1:], array.dtype)
    return Other() if array is None else Rows(array.shape, array.dtype)


def _as_array(value: object) -> np.ndarray | None:
    """See a value as an array of a kind that a tensor can have; None where that is torch's."""
    if isinstance(value, ARRAYS):
        array = np.asarray(value)
    elif type(value).__module__ == "torch" and hasattr(value, "numpy"):
        try:
            array = value.numpy()  # the same memory
        except (RuntimeError, TypeError):  # on a device, with a gradient, bfloat16
            return None
    else:
        return None
    return array if array.dtype.kind in "biufc" and array.dtype.isnative else None


def _names(entries: Mapping[str, Layout]) -> str:
    return ", ".join(entries) or "none"


def _words(entry: Layout) -> str:
    if isinstance(entry, Rows):
        return f"{entry.shape} {entry.dtype}"
    if isinstance(entry, Ragged):
        return f"rows of {entry.row_shape} {entry.dtype}"
    return "no array"
