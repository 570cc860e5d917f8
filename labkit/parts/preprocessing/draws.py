"""Random draws of a detector sample, its crop, and the detector's constants.

    (seed, epoch, sample id) -> Draws -> crop, flip, colours -> every preprocessor

All preprocessors share these draws, so they deliver equal work. CenterNet's colour constants are in
OpenCV's channel order (BGR); here they are in RGB, the rows of the eigenvectors included.
Source: xingyizhou/CenterNet, commit 4c50fd3, sample/ctdet.py, utils/image.py and dataset/coco.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.contracts import Sample

# Of pixels scaled to 0..1.
MEAN_RGB = np.array([0.47026115, 0.44719302, 0.40789654], np.float32)
STD_RGB = np.array([0.27809835, 0.27408164, 0.28863828], np.float32)
# Of the colours' covariance: a column per eigenvector, a row per channel.
EIGENVALUES = np.array([0.2141788, 0.01817699, 0.00341571], np.float32)
EIGENVECTORS_RGB = np.array(
    [
        [-0.56089297, 0.71832671, 0.41158938],
        [-0.5832747, 0.00994535, -0.81221408],
        [-0.58752847, -0.69563484, 0.41340352],
    ],
    np.float32,
)
# COCO's category ids are 1 to 90 with gaps; a class is the place among those that are used.
CLASS_OF = {
    category_id: index
    for index, category_id in enumerate(
        sorted({*range(1, 91)} - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
    )
}


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The random draws of one sample in one epoch."""

    center_xy: tuple[float, float]
    """Centre of the square crop, in pixels of the image after flipping."""
    side_px: float
    """Side of the square crop in image pixels; what lies outside the image is black."""
    flipped: bool
    colours: tuple[tuple[str, float], ...]
    """The three colour operations with their factors, in the order they are applied."""
    lighting_rgb: np.ndarray
    """(3,) float64, added to red, green and blue."""


def draw(sample: Sample) -> Draws:
    """Draw crop, flip and colours of a sample.

    They depend only on (seed, epoch, sample id) and on the image's size.
    """
    rng = np.random.default_rng((sample.seed, sample.epoch, sample.sample_id))
    height, width = sample.image_rgb.shape[:2]
    side_px = max(height, width) * (0.6 + 0.1 * rng.integers(8))  # 0.6, 0.7, ... 1.3
    border_x, border_y = _border(width), _border(height)
    x = float(rng.integers(border_x, width - border_x))
    y = float(rng.integers(border_y, height - border_y))
    flipped = bool(rng.random() < 0.5)
    operations = np.array(["brightness", "contrast", "saturation"])[rng.permutation(3)]
    factors = rng.uniform(0.6, 1.4, 3)
    lighting = EIGENVALUES * rng.normal(scale=0.1, size=3)  # as AlexNet's
    return Draws(
        center_xy=(width - x - 1 if flipped else x, y),
        side_px=float(side_px),
        flipped=flipped,
        colours=tuple(zip(operations.tolist(), factors.tolist())),
        lighting_rgb=EIGENVECTORS_RGB @ lighting,
    )


def affine(draws: Draws, size_px: int) -> np.ndarray:
    """Return the affine transform from pixels of the (flipped) image to a square of `size_px`.

    It maps the crop to the whole square.

    Returns:
        (2, 3) float64, for points as columns (x, y, 1).
    """
    zoom = size_px / draws.side_px
    x, y = draws.center_xy
    return np.array(
        [[zoom, 0.0, size_px / 2 - zoom * x], [0.0, zoom, size_px / 2 - zoom * y]], np.float64
    )


def class_of(category_id: int) -> int:
    """Look up the class index of a COCO category.

    Raises:
        ValueError: the category has no class.
    """
    if category_id not in CLASS_OF:
        raise ValueError(
            f"category_ids must be COCO's object categories (1 to 90 with gaps), got "
            f"{category_id}; renumber the categories in annotations.json"
        )
    return CLASS_OF[category_id]


def _border(size_px: int) -> int:
    """Return how far the crop's centre stays from an image's edge: 640 -> 128, 200 -> 64.

    It is halved until both borders fit and leave a pixel between them.
    """
    border = 128
    while size_px - border <= border:
        border //= 2
    return border
