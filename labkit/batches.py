"""The finished batches: their entries, shapes, dtypes, and the differences that are the same work.

    preprocessor -> batch of named arrays, as `BATCHES` describes it -> step

Batches are checked before anything is timed: a variant that delivers something else than the others
never gets a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

CLASSES = 80  # COCO object classes
MAX_BOXES = 128  # slots for boxes per image, as in CenterNet's detector sample
STRIDE = 4  # input pixels per heat map cell, CenterNet's down_ratio


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """Shape and dtype of one entry of a finished batch."""

    shape: tuple[int, ...]
    dtype: str
    tolerance: float
    """Largest absolute difference from the baseline's entry that still is the same work."""


# Normalized pixels span about -2.2 to 2.7.  float32 sums taken in another order differ by
# about 1e-5; a wrong filter, channel order or a second normalization differs by 0.01 and more.
IMAGE_TOLERANCE = 1e-3
# Libraries turn a resized grey level into a whole number by rounding (OpenCV) or by dropping
# its fraction (Pillow): at most one level apart, where a wrong filter is tens apart at edges.
# One level is largest where the standard deviation is smallest, 0.224.
RESIZED_TOLERANCE = 1 / 255 / 0.224 + IMAGE_TOLERANCE


def detector_batch(batch_size: int, input_px: int) -> dict[str, ArraySpec]:
    """Describe the finished batch of the detector sample (CenterNet's, DOCUMENTS B).

    Returns:
        entry name -> spec; `sample_id` says which images are in it.
    """
    cells = input_px // STRIDE
    return {
        "image": ArraySpec(
            shape=(batch_size, 3, input_px, input_px), dtype="float32", tolerance=IMAGE_TOLERANCE
        ),
        # In 0 to 1; a product of two float32 exponentials against one is off by 1e-7.
        "heatmap": ArraySpec(
            shape=(batch_size, CLASSES, cells, cells), dtype="float32", tolerance=1e-5
        ),
        "size_wh": ArraySpec(shape=(batch_size, MAX_BOXES, 2), dtype="float32", tolerance=1e-4),
        "offset_xy": ArraySpec(shape=(batch_size, MAX_BOXES, 2), dtype="float32", tolerance=1e-4),
        "cell": ArraySpec(shape=(batch_size, MAX_BOXES), dtype="int64", tolerance=0),
        "mask": ArraySpec(shape=(batch_size, MAX_BOXES), dtype="uint8", tolerance=0),
        "sample_id": ArraySpec(shape=(batch_size,), dtype="int64", tolerance=0),
    }


def classifier_batch(batch_size: int, input_px: int) -> dict[str, ArraySpec]:
    """Describe the finished batch of the classification sample.

    Returns:
        entry name -> spec; `label` is the class index of the image's largest box.
    """
    return {
        "image": ArraySpec(
            shape=(batch_size, 3, input_px, input_px), dtype="float32", tolerance=RESIZED_TOLERANCE
        ),
        "label": ArraySpec(shape=(batch_size,), dtype="int64", tolerance=0),
        "sample_id": ArraySpec(shape=(batch_size,), dtype="int64", tolerance=0),
    }


# What a step needs -> the batch that satisfies it.
BATCHES = {"detector": detector_batch, "classifier": classifier_batch}


def bytes_of(specs: Mapping[str, ArraySpec]) -> int:
    """Return the size of a finished batch."""
    return sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in specs.values())


def check_batch(batch: Mapping[str, np.ndarray], specs: Mapping[str, ArraySpec]) -> None:
    """Check names, shapes and dtypes of a finished batch.

    Raises:
        ValueError: an entry is missing, left over, or of another shape or dtype.
    """
    if set(batch) != set(specs):
        raise ValueError(
            f"batch must have exactly the entries {', '.join(sorted(specs))}, "
            f"got {', '.join(sorted(batch))}"
        )
    for name, spec in specs.items():
        array = batch[name]
        if tuple(array.shape) != spec.shape:
            raise ValueError(f"batch[{name!r}] must have shape {spec.shape}, got {array.shape}")
        if str(array.dtype) != spec.dtype:
            raise ValueError(f"batch[{name!r}] must be {spec.dtype}, got {array.dtype}")
