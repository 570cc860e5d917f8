"""Images as YUV 4:2:0 planes: half the bytes of RGB, and only the part that is taken is converted.

    RGB pixels ─ to_yuv420 ─▶ planes in one block of bytes ─ Yuv420Image[rows, columns] ─▶ RGB of it

The layout is NV12 (BT.601, limited range), which OpenCV converts in one call: a byte of brightness
for each pixel, then two of color for each 2 × 2 pixels.  Conversion rounds brightness to 219 steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Yuv420Image:
    """An image whose parts become RGB when they are taken, as those of an array of pixels.

    Args:
        planes: uint8, all bytes of both planes: of an image with odd sides, as if it had a row or
            column more.
        height: in pixels.
        width: likewise.

    Raises:
        ValueError: the planes have another number of bytes.
    """

    def __init__(self, planes: np.ndarray, height: int, width: int) -> None:
        self.planes, self.shape = planes, (height, width, 3)
        rows, columns = height + height % 2, width + width % 2
        pixels = rows * columns
        if planes.size != pixels * 3 // 2:
            raise ValueError(
                f"planes must have {pixels * 3 // 2} bytes for {width} x {height} pixels, got "
                f"{planes.size}"
            )
        self._luma = planes[:pixels].reshape(rows, columns)
        self._chroma = planes[pixels:].reshape(rows // 2, columns // 2, 2)

    def __reduce__(self) -> tuple[Any, ...]:
        return Yuv420Image, (self.planes, *self.shape[:2])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: tuple[slice, slice]) -> np.ndarray:
        """Convert a part of the image.

        Args:
            part: rows and columns, without steps.

        Returns:
            (rows, columns, 3) uint8 RGB; a view, so it need not be C-contiguous.
        """
        import cv2

        top, bottom, _ = part[0].indices(self.shape[0])
        left, right, _ = part[1].indices(self.shape[1])
        # Outwards to whole 2 × 2 pixels, which share a color.
        first_row, first_column = top // 2, left // 2
        end_row, end_column = (bottom + 1) // 2, (right + 1) // 2
        rgb = cv2.cvtColorTwoPlane(
            self._luma[2 * first_row : 2 * end_row, 2 * first_column : 2 * end_column],
            self._chroma[first_row:end_row, first_column:end_column],
            cv2.COLOR_YUV2RGB_NV12,
        )
        top, left = top - 2 * first_row, left - 2 * first_column
        return rgb[top : bottom - 2 * first_row, left : right - 2 * first_column]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Convert all of it: (H, W, 3) uint8 RGB, C-contiguous."""
        if not len(self):
            return np.zeros(self.shape, dtype or np.uint8)
        return np.asarray(np.ascontiguousarray(self[:, :]), dtype)


def to_yuv420(image_rgb: np.ndarray) -> Yuv420Image:
    """Convert pixels to planes.

    Args:
        image_rgb: (H, W, 3) uint8 RGB; empty, it stays empty.
    """
    height, width = image_rgb.shape[:2]
    if not image_rgb.size:
        return Yuv420Image(np.zeros(0, np.uint8), height, width)
    import cv2

    even = cv2.copyMakeBorder(image_rgb, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
    rows, columns = even.shape[:2]
    pixels = rows * columns
    luma = cv2.cvtColor(even, cv2.COLOR_RGB2YUV_I420).reshape(-1)[:pixels]
    # OpenCV takes the color of one pixel in four; that of their average has no stripes of wrong
    # colors.  So the four are made alike, whichever it takes.
    averaged = cv2.resize(even, (columns // 2, rows // 2), interpolation=cv2.INTER_AREA)
    alike = averaged.repeat(2, axis=0).repeat(2, axis=1)
    chroma = cv2.cvtColor(alike, cv2.COLOR_RGB2YUV_I420).reshape(-1)[pixels:].reshape(2, -1)
    return Yuv420Image(np.concatenate([luma, chroma.T.reshape(-1)]), height, width)
