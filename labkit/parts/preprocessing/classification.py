"""The classification sample: the whole image resized, and one label.

    image -> resize (OpenCV or Pillow) -> 0..1 -> mean/std -> planes
                                          (the last three on the device where only pixels are sent)
    boxes -> class of the largest one

It takes less preprocessing than the detector sample, so storage, decoding and loading have a larger
share. Nothing is drawn at random here; `crops.py` takes random crops. When it shrinks, Pillow's
`Image.resize` averages all pixels, while OpenCV's linear filter reads four; Pillow's affine
transform is the same filter as OpenCV's.
Source: torchvision's classification reference for mean and std; DOCUMENTS, dispute 8.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from labkit.contracts import Annotation, ResizeAndNormalize, Sample
from labkit.parts.preprocessing.draws import class_of

if TYPE_CHECKING:
    import torch
    from PIL import Image

# Of ImageNet's pixels scaled to 0..1, RGB.
MEAN_RGB = np.array([0.485, 0.456, 0.406], np.float32)
STD_RGB = np.array([0.229, 0.224, 0.225], np.float32)
SCALE_RGB, SHIFT_RGB = 1 / (255 * STD_RGB), -MEAN_RGB / STD_RGB


def classification(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make one classification sample, resized by OpenCV.

    Args:
        sample: a decoded image with its boxes.
        input_px: side of the square output.

    Returns:
        The entries of `batches.classifier_batch` without the batch axis; `label` is the
        class of the largest box, the first of equals, and 0 for an image without boxes.

    Raises:
        ValueError: the largest box's category id is not one of COCO's.
    """
    return finish(sample, _resize(sample.image_rgb, input_px))


def classification_on_device(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make a classification sample that the device normalizes: a quarter of the bytes.

    Args:
        sample: a decoded image with its boxes.
        input_px: side of the square output.

    Returns:
        pixels: (input_px, input_px, 3) uint8 RGB; label and sample_id as in `classification`.

    Raises:
        ValueError: the largest box's category id is not one of COCO's.
    """
    return {"pixels": _resize(sample.image_rgb, input_px), **numbers(sample)}


def normalize_on_device(batch: dict[str, torch.Tensor], input_px: int) -> dict[str, torch.Tensor]:
    """Finish a batch of `classification_on_device` where its tensors lie.

    Args:
        batch: pixels (B, S, S, 3) uint8, label (B,), sample_id (B,), on one device.
        input_px: S, side of the input.

    Returns:
        The entries of `batches.classifier_batch`, on the same device.

    Source: [003], [004] 2.2, data_prefetcher.preload.
    """
    pixels = batch["pixels"]
    mean, std = _mean_and_std(pixels.device)
    image = pixels.permute(0, 3, 1, 2).contiguous().float().sub_(mean).div_(std)
    return {"image": image, "label": batch["label"], "sample_id": batch["sample_id"]}


@cache
def _mean_and_std(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (1, 3, 1, 1) of uint8 levels; made once, as the host waits for such a copy."""
    import torch

    both = torch.tensor(255 * np.stack([MEAN_RGB, STD_RGB]), device=device)
    mean, std = both.view(2, 1, 3, 1, 1).unbind()
    return mean, std


def classification_pillow(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make the same sample, resized by Pillow.

    Arguments, result and errors as `classification`: the same four pixels with the same weights
    as OpenCV's linear filter; Pillow drops the fraction of a grey level where OpenCV rounds.
    What another library decoded is converted to a Pillow image first.
    """
    from PIL import Image

    image = as_pillow(sample.image_rgb)
    step_x, step_y = image.width / input_px, image.height / input_px
    resized = image.transform(
        (input_px, input_px),
        Image.Transform.AFFINE,
        (step_x, 0, 0, 0, step_y, 0),  # from corner to corner; both count from pixel centres
        resample=Image.Resampling.BILINEAR,
    )
    return finish(sample, np.asarray(resized))


def as_pillow(image_rgb: np.ndarray) -> Image.Image:
    """Return a sample's image as Pillow's; what Pillow decoded already is one."""
    from PIL import Image

    return Image.fromarray(image_rgb) if isinstance(image_rgb, np.ndarray) else image_rgb


def finish(sample: Sample, resized_rgb: np.ndarray) -> dict[str, np.ndarray]:
    """Normalize pixels into planes, and add label and id.

    Args:
        sample: whose label and id.
        resized_rgb: (S, S, 3) uint8.

    Returns:
        The entries of `batches.classifier_batch` without the batch axis.

    Raises:
        ValueError: the largest box's category id is not one of COCO's.
    """
    image = np.empty((3, *resized_rgb.shape[:2]), np.float32)
    for channel in range(3):
        np.multiply(resized_rgb[:, :, channel], SCALE_RGB[channel], out=image[channel])
        image[channel] += SHIFT_RGB[channel]
    return {"image": image, **numbers(sample)}


def _resize(image_rgb: np.ndarray, input_px: int) -> np.ndarray:
    import cv2

    return cv2.resize(image_rgb, (input_px, input_px), interpolation=cv2.INTER_LINEAR)


def numbers(sample: Sample) -> dict[str, np.ndarray]:
    """Return label and id of a sample, () int64 each; errors as `finish`'s."""
    return {
        "label": np.array(_label(sample.annotation), np.int64),
        "sample_id": np.array(sample.sample_id, np.int64),
    }


def _label(annotation: Annotation) -> int:
    boxes = annotation.boxes_xyxy
    if len(boxes) == 0:
        return 0
    widths, heights = (boxes[:, 2:] - boxes[:, :2]).T
    largest = np.argmax(widths * heights)
    return class_of(int(annotation.category_ids[largest]))


IN_NUMBERS = ResizeAndNormalize(
    scale_rgb=tuple(SCALE_RGB.tolist()), shift_rgb=tuple(SHIFT_RGB.tolist()), label=_label
)
PIXELS_IN_NUMBERS = ResizeAndNormalize(label=_label)
