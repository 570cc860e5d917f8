"""Preprocessing: from a decoded image and its boxes to the arrays a training step takes.

    Sample -> preprocessor (loader worker) -> collate -> transfer -> on_device -> step

All detector preprocessors deliver the same batch; they differ in how and where it is made. The
loader's collate stacks the arrays along a new first axis; arrays whose name ends in `_ragged` are
concatenated, and `<name>_counts` is added. Random draws depend on the sample alone, not on a
worker's state.
Source: documents [001] 2.1 and [004] 2.5; xingyizhou/CenterNet, commit 4c50fd3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.batches import BATCHES, bytes_of
from labkit.contracts import Annotation, Part, ResizeAndNormalize, Sample
from labkit.parts.preprocessing.classification import (
    IN_NUMBERS,
    PIXELS_IN_NUMBERS,
    classification,
    classification_on_device,
    classification_pillow,
    normalize_on_device,
)
from labkit.parts.preprocessing.crops import (
    classification_crop,
    classification_crop_on_device,
    classification_crop_pillow,
    classification_crop_v2,
    draw_crop,
)
from labkit.parts.preprocessing.loops import loops
from labkit.parts.preprocessing.on_device import finish_on_device, on_device_sample
from labkit.parts.preprocessing.vectorized import vectorized

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Preprocessor(Part):
    """How a sample becomes an entry of a batch.

    The function takes (sample, input_px) and returns arrays without the batch axis; it runs in the
    loader worker.
    """

    on_device: Callable[[dict[str, torch.Tensor], int], dict[str, torch.Tensor]] | None = None
    """(batch, input_px) -> the finished batch, after the transfer; None: it is finished already."""
    batch: str = "detector"
    """The finished batch's name in `batches.BATCHES`."""
    in_numbers: ResizeAndNormalize | None = None
    """The same work in numbers, for loaders that preprocess themselves; None: they cannot."""
    in_pillow: bool = False
    """It also takes an image as Pillow decoded it, and not as an array."""
    in_parts: bool = False
    """It also takes an `ImageInParts`, as it uses one rectangle of the image's pixels."""
    crop: Callable[[tuple[int, int, int], int, int], tuple[int, int, int, int, bool]] | None = None
    """The part of the image that it takes, as of `draw_crop`; None: all of it."""
    weighs_by_distance: bool = False
    """Where it shrinks a crop, pixels near the middle of an average count more, as in Pillow."""

    def at_least_px(
        self, key: tuple[int, int, int], size_px: tuple[int, int], input_px: int
    ) -> int:
        """Return how long a scaled decoder must leave the image's shorter side.

        What the preprocessor takes of the image then still has `input_px` a side, where it has them
        at all.

        Args:
            key: (seed, epoch, image).
            size_px: width and height as stored.
            input_px: side of the square output.
        """
        if self.crop is None:
            return input_px
        _, _, width, height, _ = self.crop(key, *size_px)
        return -(-min(size_px) * input_px // min(width, height))  # rounded up


PREPROCESSORS: dict[str, Preprocessor] = {
    "loops": Preprocessor(loops, library="opencv"),
    "vectorized": Preprocessor(vectorized, library="opencv"),
    "on_device": Preprocessor(on_device_sample, finish_on_device, library="opencv"),
    "classification": Preprocessor(
        classification, library="opencv", batch="classifier", in_numbers=IN_NUMBERS
    ),
    "classification_on_device": Preprocessor(
        classification_on_device, normalize_on_device, library="opencv", batch="classifier"
    ),
    "classification_pillow": Preprocessor(
        classification_pillow, library="pillow", batch="classifier", in_pillow=True
    ),
    "classification_crop": Preprocessor(
        classification_crop,
        library="opencv",
        batch="classifier",
        in_parts=True,
        crop=draw_crop,
    ),
    "classification_crop_on_device": Preprocessor(
        classification_crop_on_device,
        normalize_on_device,
        library="opencv",
        batch="classifier",
        in_numbers=PIXELS_IN_NUMBERS,
        in_parts=True,
        crop=draw_crop,
    ),
    "classification_crop_pillow": Preprocessor(
        classification_crop_pillow,
        library="pillow",
        batch="classifier",
        in_pillow=True,
        crop=draw_crop,
        weighs_by_distance=True,
    ),
    "classification_crop_v2": Preprocessor(
        classification_crop_v2,
        library="torchvision",
        batch="classifier",
        crop=draw_crop,
        weighs_by_distance=True,
    ),
}


def typical_arrays(preprocessor: Preprocessor, input_px: int) -> dict[str, np.ndarray]:
    """Return what a preprocessor makes of one artificial image with as many boxes as COCO's have.

    Raises:
        ValueError: as the preprocessor's own.
    """
    height, width, count = 480, 640, 7  # of most COCO images; 7.3 boxes on average
    # The whole image as every box, so that none falls outside the crop.
    boxes = np.tile(np.array([0, 0, width, height], np.float32), (count, 1))
    sample = Sample(
        image_rgb=np.full((height, width, 3), 128, np.uint8),
        annotation=Annotation(boxes_xyxy=boxes, category_ids=np.ones(count, np.int64)),
        sample_id=0,
        epoch=0,
        seed=0,
    )
    return preprocessor(sample, input_px)


def device_bytes(preprocessor: Preprocessor, batch_size: int, input_px: int) -> int:
    """Return how many bytes the on-device work of a batch reads and writes.

    The simulated GPU derives the time of this work from it. Counted from the shapes of the
    arrays, so it also holds for a user's own preprocessor.
    """
    arrays = typical_arrays(preprocessor, input_px)
    counts_bytes = 8 * sum(key.endswith("_ragged") for key in arrays)
    read_bytes = batch_size * (sum(array.nbytes for array in arrays.values()) + counts_bytes)
    return read_bytes + bytes_of(BATCHES[preprocessor.batch](batch_size, input_px))
