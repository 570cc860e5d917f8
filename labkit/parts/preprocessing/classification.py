"""The classification sample: the whole image squeezed into a square, and one label.

    image -> resize -> 0..1 -> mean/std -> planes;   boxes -> class of the largest one

The light counterpart of the detector sample: little preprocessing, so storage,
decoding and loading weigh more.  Main trap: mean and std here are ImageNet's, not
the detector's.  Nothing is drawn at random.
Source: torchvision's classification reference for mean and std.
"""

from __future__ import annotations

import numpy as np

from labkit.contracts import Sample
from labkit.parts.preprocessing.draws import class_from_dict, config

# Of ImageNet's pixels scaled to 0..1, RGB.
MEAN_RGB = np.array([0.485, 0.456, 0.406], np.float32)
STD_RGB = np.array([0.229, 0.224, 0.225], np.float32)


def classification(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make one classification sample.

    Args:
        sample: a decoded image with its boxes.
        input_px: side of the square output.

    Returns:
        The entries of `contracts.classifier_batch` without the batch axis; `label` is the
        class of the largest box, the first of equals, and 0 for an image without boxes.

    Raises:
        ValueError: the largest box's category id is not one of COCO's.
    """
    import cv2

    resized = cv2.resize(
        sample.image_rgb, (input_px, input_px), interpolation=cv2.INTER_LINEAR
    ).astype(np.float32)
    image = np.empty((3, input_px, input_px), np.float32)
    scale, shift = 1 / (255 * STD_RGB), -MEAN_RGB / STD_RGB
    for channel, row in enumerate(np.column_stack([np.diag(scale), shift])):
        cv2.transform(resized, row[None].astype(np.float32), dst=image[channel])
    return {
        "image": image,
        "label": np.array(_label(sample), np.int64),
        "sample_id": np.array(sample.sample_id, np.int64),
    }


def _label(sample: Sample) -> int:
    boxes = sample.annotation.boxes_xyxy
    if len(boxes) == 0:
        return 0
    largest = np.argmax(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))
    return class_from_dict(config(), int(sample.annotation.category_ids[largest]))
