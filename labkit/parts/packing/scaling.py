"""Scaling: an image made smaller before it is stored, with its boxes.

    (H, W, 3) → shorter side of px pixels → pixels, or a JPEG again

Main trap: the result is another image: it was filtered once more, and compressed once more as a
JPEG.  Rows that read it are labelled so, and compared within a tolerance of their own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from labkit.contracts import Annotation

JPEG_QUALITY = 95  # nearly as good as it was; ImageNet's own files have about this


def scale(image_rgb: np.ndarray, annotation: Annotation, px: int) -> tuple[np.ndarray, Annotation]:
    """Shrink an image until its shorter side has `px` pixels; a smaller one stays as it is.

    Args:
        image_rgb: (H, W, 3) uint8.
        annotation: its boxes.
        px: the side in pixels.

    Returns:
        The image and its boxes in the new pixels.
    """
    import cv2

    height, width = image_rgb.shape[:2]
    factor = px / min(height, width)
    if factor >= 1:
        return image_rgb, annotation
    size = (max(px, round(width * factor)), max(px, round(height * factor)))
    # INTER_AREA averages what it drops, as everyone does who shrinks a data set for good.
    smaller = cv2.resize(image_rgb, size, interpolation=cv2.INTER_AREA)
    factors = np.array([size[0] / width, size[1] / height] * 2, np.float32)
    return smaller, replace(annotation, boxes_xyxy=annotation.boxes_xyxy * factors)


def encode_jpeg(image_rgb: np.ndarray) -> bytes:
    """Compress (H, W, 3) uint8 RGB as a JPEG of quality `JPEG_QUALITY`."""
    import cv2

    bgr = cv2.cvtColor(image_rgb, cv2.COLOR_RGB2BGR)
    _, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return jpeg.tobytes()
