"""The detector sample as the original code makes it: loops, full-frame passes, unused arrays.

    image -> warp -> a dozen float32 passes -> transposed view
    boxes -> one at a time -> point by point -> one Gaussian each -> heat map

The reference for the other preprocessors, and slow on purpose: documents [001] and [004] advise to
vectorize. This does the opposite, as CenterNet does. Do not optimize it: every line that looks
wasteful is part of what is measured.
Source: xingyizhou/CenterNet, commit 4c50fd3, sample/ctdet.py and utils/image.py.
"""

from __future__ import annotations

import math

import numpy as np

from labkit.batches import CLASSES, MAX_BOXES, STRIDE
from labkit.contracts import Sample
from labkit.parts.preprocessing.draws import MEAN_RGB, STD_RGB, Draws, affine, class_of, draw

MIN_OVERLAP = 0.7  # CenterNet's default overlap of a box whose corners moved by the radius


def gaussian_radius(height: int, width: int) -> float:
    """Return the radius of a box's Gaussian, from three quadratic equations.

    CenterNet took the equations from CornerNet with a known mistake (roots not divided by 2a, and
    the larger root of the first two). It is kept: the published models were trained with it, and it
    makes the Gaussians about three times as wide, which is more work.

    Args:
        height: of the box, whole heat map cells.
        width: likewise.

    Returns:
        The smallest of the three radii, in cells.

    Source: xingyizhou/CenterNet, commit 4c50fd3, utils/image.py; the mistake: its issue 273.
    """
    b1 = height + width
    c1 = width * height * (1 - MIN_OVERLAP) / (1 + MIN_OVERLAP)
    r1 = (b1 + np.sqrt(b1**2 - 4 * c1)) / 2

    b2 = 2 * (height + width)
    c2 = (1 - MIN_OVERLAP) * width * height
    r2 = (b2 + np.sqrt(b2**2 - 16 * c2)) / 2

    a3 = 4 * MIN_OVERLAP
    b3 = -2 * MIN_OVERLAP * (height + width)
    c3 = (MIN_OVERLAP - 1) * width * height
    r3 = (b3 + np.sqrt(b3**2 - 4 * a3 * c3)) / 2
    return min(r1, r2, r3)


def gaussian_2d(radius: int) -> np.ndarray:
    """Return a Gaussian of standard deviation diameter / 6.

    Returns:
        (2 * radius + 1, 2 * radius + 1) float64, 1 in the middle.
    """
    sigma = (2 * radius + 1) / 6
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    bump = np.exp(-(x * x + y * y) / (2 * sigma * sigma))
    # Never true at this sigma, whose corners are above exp(-9), but the original checks it.
    bump[bump < np.finfo(bump.dtype).eps * bump.max()] = 0
    return bump


def _draw_gaussian(heatmap: np.ndarray, x: int, y: int, radius: int) -> None:
    bump = gaussian_2d(radius)
    height, width = heatmap.shape
    left, right = min(x, radius), min(width - x, radius + 1)
    top, bottom = min(y, radius), min(height - y, radius + 1)
    part = heatmap[y - top : y + bottom, x - left : x + right]
    np.maximum(part, bump[radius - top : radius + bottom, radius - left : radius + right], out=part)


def _move_point(point_xy: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return np.dot(matrix, np.array([point_xy[0], point_xy[1], 1.0], np.float32))


def _augment(image: np.ndarray, draws: Draws) -> None:
    # In place on (S, S, 3) float32; each line is one or more passes over the full frame.
    import cv2

    gray: np.ndarray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    gray_mean = gray.mean()
    for operation, factor in draws.colours:
        image *= factor
        if operation == "contrast":
            image += gray_mean * (1 - factor)
        elif operation == "saturation":
            gray *= 1 - factor
            image += gray[:, :, None]
    image += draws.lighting_rgb


def loops(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make one detector sample the way the original code does.

    Args:
        sample: a decoded image with its boxes.
        input_px: side of the square output, a multiple of 4.

    Returns:
        The entries of `batches.detector_batch` without the batch axis; `image` is a
        transposed view, as in the original.

    Raises:
        ValueError: a category id is not one of COCO's.

    Source: xingyizhou/CenterNet, commit 4c50fd3, CTDetDataset.__getitem__.
    """
    import cv2

    draws = draw(sample)
    image = sample.image_rgb
    width = image.shape[1]
    if draws.flipped:
        image = image[:, ::-1, :]
    image = cv2.warpAffine(
        image, affine(draws, input_px), (input_px, input_px), flags=cv2.INTER_LINEAR
    )
    image = image.astype(np.float32) / 255.0
    _augment(image, draws)
    image = (image - MEAN_RGB) / STD_RGB
    image = image.transpose(2, 0, 1)

    cells = input_px // STRIDE
    to_cells = affine(draws, cells)
    heatmap = np.zeros((CLASSES, cells, cells), np.float32)
    size_wh = np.zeros((MAX_BOXES, 2), np.float32)
    offset_xy = np.zeros((MAX_BOXES, 2), np.float32)
    cell = np.zeros(MAX_BOXES, np.int64)
    mask = np.zeros(MAX_BOXES, np.uint8)
    # The original fills these for options that are off by default, and does not return them.
    dense_wh = np.zeros((2, cells, cells), np.float32)  # noqa: F841
    class_wh = np.zeros((MAX_BOXES, CLASSES * 2), np.float32)
    class_mask = np.zeros((MAX_BOXES, CLASSES * 2), np.uint8)

    boxes, category_ids = sample.annotation.boxes_xyxy, sample.annotation.category_ids
    for slot in range(min(len(boxes), MAX_BOXES)):
        box = np.array(boxes[slot], np.float32)
        index = class_of(int(category_ids[slot]))
        if draws.flipped:
            box[[0, 2]] = width - box[[2, 0]] - 1
        box[:2] = _move_point(box[:2], to_cells)
        box[2:] = _move_point(box[2:], to_cells)
        box[[0, 2]] = np.clip(box[[0, 2]], 0, cells - 1)
        box[[1, 3]] = np.clip(box[[1, 3]], 0, cells - 1)
        h, w = box[3] - box[1], box[2] - box[0]
        if h > 0 and w > 0:
            radius = max(0, int(gaussian_radius(math.ceil(h), math.ceil(w))))
            center = np.array([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2], np.float32)
            center_cell = center.astype(np.int32)
            _draw_gaussian(heatmap[index], center_cell[0], center_cell[1], radius)
            size_wh[slot] = w, h
            offset_xy[slot] = center - center_cell
            cell[slot] = center_cell[1] * cells + center_cell[0]
            mask[slot] = 1
            class_wh[slot, index * 2 : index * 2 + 2] = size_wh[slot]
            class_mask[slot, index * 2 : index * 2 + 2] = 1
    return {
        "image": image,
        "heatmap": heatmap,
        "size_wh": size_wh,
        "offset_xy": offset_xy,
        "cell": cell,
        "mask": mask,
        "sample_id": np.array(sample.sample_id, np.int64),
    }
