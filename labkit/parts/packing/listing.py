"""Names and boxes of a data set's images in a few arrays.

A Python object per image would be copied into every forked worker as soon as its reference count
changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from labkit.contracts import Annotation


@dataclass(frozen=True, kw_only=True, eq=False)
class Listing:
    """Names and boxes of N images."""

    name_bytes: np.ndarray
    """uint8, the images' paths in their data set, encoded for the file system, joined."""
    name_ends: np.ndarray
    """(N + 1,) int64, where each name ends; the first entry is 0."""
    box_ranges: np.ndarray
    """(N, 2) int64, which rows of the next two belong to an image."""
    boxes_xyxy: np.ndarray
    """(M, 4) float32 boxes of all images."""
    category_ids: np.ndarray
    """(M,) int64."""

    def __len__(self) -> int:
        return len(self.name_ends) - 1

    def name(self, i: int) -> str:
        """Return an image's path in its data set, with forward slashes."""
        return os.fsdecode(self.name_bytes[self.name_ends[i] : self.name_ends[i + 1]].tobytes())

    def annotation(self, i: int) -> Annotation:
        """Return copies of an image's boxes: a part that flips them in place changes no others."""
        first, end = self.box_ranges[i]
        return Annotation(
            boxes_xyxy=self.boxes_xyxy[first:end].copy(),
            category_ids=self.category_ids[first:end].copy(),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name, to be saved."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_names(cls, names: Iterable[str], **boxes: np.ndarray) -> Self:
        """Make a listing from the names; without `boxes` no image has any."""
        encoded = [os.fsencode(name) for name in names]
        none = {
            "box_ranges": np.zeros((len(encoded), 2), np.int64),
            "boxes_xyxy": np.empty((0, 4), np.float32),
            "category_ids": np.empty(0, np.int64),
        }
        return cls(
            name_bytes=np.frombuffer(b"".join(encoded), np.uint8),
            name_ends=np.cumsum([0, *map(len, encoded)]),
            **(boxes or none),
        )


class ListingBuilder:
    """Gathers names and boxes while images pass by."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._counts: list[int] = []
        self._boxes, self._categories = bytearray(), bytearray()

    def add(self, name: str, annotation: Annotation) -> None:
        """Note one image."""
        self._names.append(name)
        self._counts.append(len(annotation.category_ids))
        self._boxes += np.asarray(annotation.boxes_xyxy, np.float32).tobytes()
        self._categories += np.asarray(annotation.category_ids, np.int64).tobytes()

    def listing(self) -> Listing:
        """Return all that was noted."""
        ends = np.cumsum([0, *self._counts], dtype=np.int64)
        return Listing.of_names(
            self._names,
            box_ranges=np.stack([ends[:-1], ends[1:]], axis=1),
            boxes_xyxy=np.frombuffer(self._boxes, np.float32).reshape(-1, 4),
            category_ids=np.frombuffer(self._categories, np.int64),
        )
