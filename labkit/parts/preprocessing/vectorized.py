"""The detector sample with the same numbers as `loops`, vectorized.

    image -> warp -> one 3x4 colour matrix -> contiguous planes
    boxes -> all at once -> cached Gaussians -> heat map

Brightness, contrast, saturation, lighting, mean and std are all affine per pixel, because they
blend with the grey image from before augmentation; so one matrix replaces them. Cells and masks
equal those of `loops` bit for bit, so coordinates are rounded to float32 at the same places.
Source: xingyizhou/CenterNet, commit 4c50fd3; document [004] 2.5 for the advice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from labkit.batches import CLASSES, MAX_BOXES, STRIDE
from labkit.contracts import Sample
from labkit.parts.preprocessing.draws import MEAN_RGB, STD_RGB, Draws, affine, class_of, draw
from labkit.parts.preprocessing.loops import MIN_OVERLAP


@dataclass(frozen=True, kw_only=True)
class PlacedBoxes:
    """The n boxes of an image that show in the crop, in cells of the heat map."""

    slot: np.ndarray
    """(n,) int64, place among the image's boxes."""
    class_index: np.ndarray
    """(n,) int64."""
    radius: np.ndarray
    """(n,) int64, of the Gaussian, cells."""
    center_xy: np.ndarray
    """(n, 2) float32."""
    size_wh: np.ndarray
    """(n, 2) float32, above 0."""


def warp(sample: Sample, draws: Draws, input_px: int) -> np.ndarray:
    """Cut the crop out of the image.

    Returns:
        (input_px, input_px, 3) uint8 RGB, black outside the image.
    """
    import cv2

    image = sample.image_rgb
    if draws.flipped:
        # A flip folded into the matrix would save this pass, and round some pixels differently.
        image = cv2.flip(image, 1)
    return cv2.warpAffine(
        image, affine(draws, input_px), (input_px, input_px), flags=cv2.INTER_LINEAR
    )


def colour_matrix(image_rgb: np.ndarray, draws: Draws) -> np.ndarray:
    """Return scaling to 0..1, colour augmentation and normalization as one matrix.

    Args:
        image_rgb: (S, S, 3) uint8, the crop; contrast blends in its mean grey.
        draws: the operations with their factors.

    Returns:
        (3, 4) float32, to be applied to (r, g, b, 1) with r, g, b in 0..255.
    """
    import cv2

    gray = np.array([0.299, 0.587, 0.114]) / 255  # as cv2.COLOR_RGB2GRAY
    gray_mean = gray @ cv2.mean(image_rgb)[:3]
    matrix = np.eye(3, 4) / 255
    for operation, factor in draws.colours:
        matrix *= factor
        if operation == "contrast":
            matrix[:, 3] += gray_mean * (1 - factor)
        elif operation == "saturation":
            matrix[:, :3] += gray * (1 - factor)
    matrix[:, 3] += draws.lighting_rgb
    matrix[:, 3] -= MEAN_RGB
    return (matrix / STD_RGB[:, None]).astype(np.float32)


def gaussian_radii(size_wh: np.ndarray) -> np.ndarray:
    """Return the radius of every box's Gaussian.

    Only the last of the three equations in `loops.gaussian_radius`: its root is at most
    0.14 (h + w), the others' are at least 0.5 (h + w).

    Args:
        size_wh: (n, 2), in cells.

    Returns:
        (n,) int64, in cells.
    """
    width, height = np.ceil(size_wh).astype(np.float64).T
    a = 4 * MIN_OVERLAP
    b = -2 * MIN_OVERLAP * (height + width)
    c = (MIN_OVERLAP - 1) * width * height
    return ((b + np.sqrt(b**2 - 4 * a * c)) / 2).astype(np.int64)


def place_boxes(sample: Sample, draws: Draws, cells: int) -> PlacedBoxes:
    """Map the first `MAX_BOXES` boxes to the heat map, and keep those that show in the crop.

    Args:
        sample: with the boxes, in image pixels.
        draws: crop and flip.
        cells: side of the heat map.

    Raises:
        ValueError: a category id is not one of COCO's.
    """
    boxes = sample.annotation.boxes_xyxy[:MAX_BOXES].astype(np.float32)  # (N, 4), a copy
    ids = sample.annotation.category_ids[:MAX_BOXES].tolist()
    classes = np.array([class_of(i) for i in ids], np.int64)
    if draws.flipped:
        boxes[:, [0, 2]] = sample.image_rgb.shape[1] - boxes[:, [2, 0]] - 1
    to_cells = affine(draws, cells)
    corners = boxes.reshape(-1, 2) * to_cells.diagonal() + to_cells[:, 2]  # (2 N, 2) float64
    # To float32 before anything else: `loops` stores each moved point in a float32 box.
    boxes = np.clip(corners.astype(np.float32), 0, cells - 1).reshape(-1, 4)
    size_wh = boxes[:, 2:] - boxes[:, :2]
    slot = np.flatnonzero((size_wh > 0).all(axis=1))
    return PlacedBoxes(
        slot=slot,
        class_index=classes[slot],
        radius=gaussian_radii(size_wh[slot]),
        center_xy=((boxes[:, :2] + boxes[:, 2:]) / 2)[slot],
        size_wh=size_wh[slot],
    )


@cache
def gaussian(radius: int) -> np.ndarray:
    """Return the Gaussian of a radius; there are fewer than 40 radii at 512 px.

    Its smallest value is above exp(-9), so the original's cut at machine epsilon has no effect.

    Returns:
        (2 * radius + 1, 2 * radius + 1) float32, exactly 1 in the middle.
    """
    sigma = (2 * radius + 1) / 6
    line = np.exp(-(np.arange(-radius, radius + 1, dtype=np.float32) ** 2) / (2 * sigma**2))
    bump = np.outer(line, line)
    bump.flags.writeable = False  # cached
    return bump


def draw_heatmap(placed: PlacedBoxes, cells: int) -> np.ndarray:
    """Draw every box's Gaussian into the map of its class, keeping the larger value.

    Returns:
        (CLASSES, cells, cells) float32.
    """
    heatmap = np.zeros((CLASSES, cells, cells), np.float32)
    centers = placed.center_xy.astype(int).tolist()
    for index, radius, (x, y) in zip(placed.class_index.tolist(), placed.radius.tolist(), centers):
        left, top = max(x - radius, 0), max(y - radius, 0)
        part = heatmap[index, top : y + radius + 1, left : x + radius + 1]  # cut at the far edges
        rows, columns = part.shape
        bump = gaussian(radius)[top - y + radius :, left - x + radius :][:rows, :columns]
        np.maximum(part, bump, out=part)
    return heatmap


def vectorized(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make one detector sample without loops over pixels or points.

    Args:
        sample: a decoded image with its boxes.
        input_px: side of the square output, a multiple of 4.

    Returns:
        The entries of `batches.detector_batch` without the batch axis, all contiguous.

    Raises:
        ValueError: a category id is not one of COCO's.
    """
    import cv2

    draws, cells = draw(sample), input_px // STRIDE
    warped = warp(sample, draws, input_px)
    matrix = colour_matrix(warped, draws)
    warped = warped.astype(np.float32)
    image = np.empty((3, input_px, input_px), np.float32)
    for channel in range(3):
        # One row of the matrix at a time writes planes directly, without a transposed copy; faster
        # (measured) than one cv2.transform, a matrix product or cv2.addWeighted.
        cv2.transform(warped, matrix[channel : channel + 1], dst=image[channel])

    placed = place_boxes(sample, draws, cells)
    center_cell = placed.center_xy.astype(np.int64)
    size_wh = np.zeros((MAX_BOXES, 2), np.float32)
    offset_xy = np.zeros((MAX_BOXES, 2), np.float32)
    cell = np.zeros(MAX_BOXES, np.int64)
    mask = np.zeros(MAX_BOXES, np.uint8)
    size_wh[placed.slot] = placed.size_wh
    offset_xy[placed.slot] = placed.center_xy - center_cell
    cell[placed.slot] = center_cell[:, 1] * cells + center_cell[:, 0]
    mask[placed.slot] = 1
    return {
        "image": image,
        "heatmap": draw_heatmap(placed, cells),
        "size_wh": size_wh,
        "offset_xy": offset_xy,
        "cell": cell,
        "mask": mask,
        "sample_id": np.array(sample.sample_id, np.int64),
    }
