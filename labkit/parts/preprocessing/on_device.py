"""The detector sample, finished on the device: the loader worker sends only pixels and box rows.

    worker: warp, colour matrix, box rows -> transfer (uint8) -> device: colours, heat maps

The finished batch equals that of `loops`, but only a tenth of the bytes is copied between
processes, pinned and transferred; the device makes the rest by broadcasting over all boxes of the
batch. No operation may make the host wait for the device: no boolean masks, no `.item()`; the
number of boxes is known from shapes.
Source: the same author's CenterNet2 draws heat maps on the device; document [004] 2.5.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from labkit.batches import CLASSES, MAX_BOXES, STRIDE
from labkit.contracts import Sample
from labkit.parts.preprocessing.draws import draw
from labkit.parts.preprocessing.vectorized import (
    colour_matrix,
    gaussian_radii,
    place_boxes,
    warp,
)

if TYPE_CHECKING:
    import torch


def on_device_sample(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make a detector sample that the device finishes.

    Args:
        sample: a decoded image with its boxes.
        input_px: side of the square output, a multiple of 4.

    Returns:
        pixels: (input_px, input_px, 3) uint8 RGB, the crop.
        colours: (3, 4) float32, see `colour_matrix`.
        boxes_ragged: (n, 7) float32 rows of slot, class index, radius, centre x, y, size
            w, h; whole numbers this small are exact in float32.
        sample_id: int64.

    Raises:
        ValueError: a category id is not one of COCO's.
    """
    draws = draw(sample)
    pixels = warp(sample, draws, input_px)
    placed = place_boxes(sample, draws, input_px // STRIDE)
    whole = np.stack([placed.slot, placed.class_index, placed.radius], axis=1)
    return {
        "pixels": pixels,
        "colours": colour_matrix(pixels, draws),
        "boxes_ragged": np.hstack([whole.astype(np.float32), placed.center_xy, placed.size_wh]),
        "sample_id": np.array(sample.sample_id, np.int64),
    }


def finish_on_device(batch: dict[str, torch.Tensor], input_px: int) -> dict[str, torch.Tensor]:
    """Finish a batch of `on_device_sample` where its tensors lie.

    Args:
        batch: the collated arrays as tensors of one device: pixels (B, S, S, 3), colours
            (B, 3, 4), boxes_ragged (n, 7) of all images, boxes_ragged_counts (B,) int64,
            sample_id (B,).
        input_px: S, side of the input.

    Returns:
        The entries of `batches.detector_batch`, on the same device.
    """
    import torch

    boxes, counts = batch["boxes_ragged"], batch["boxes_ragged_counts"]
    images, device = len(counts), boxes.device
    cells = input_px // STRIDE
    # [2, 0, 1] boxes -> [0, 0, 2]; without output_size the host waits for the sum.
    image_of_box = torch.repeat_interleave(counts, output_size=len(boxes))
    slot, class_index, radius = boxes[:, :3].long().unbind(1)
    center_xy, size_wh = boxes[:, 3:5], boxes[:, 5:7]
    center_cell = center_xy.long()

    row = image_of_box * MAX_BOXES + slot
    slots = torch.zeros(images * MAX_BOXES, 4, device=device)
    slots.index_copy_(0, row, torch.cat([size_wh, center_xy - center_cell], dim=1))
    slots = slots.view(images, MAX_BOXES, 4)
    cell = torch.zeros(images * MAX_BOXES, dtype=torch.int64, device=device)
    cell.index_copy_(0, row, center_cell[:, 1] * cells + center_cell[:, 0])
    mask = torch.zeros(images * MAX_BOXES, dtype=torch.uint8, device=device)
    mask.index_fill_(0, row, 1)
    return {
        "image": _apply_colours(batch["pixels"], batch["colours"]),
        "heatmap": _draw_heatmaps(
            image_of_box * CLASSES + class_index, center_cell, radius, images, cells
        ),
        "size_wh": slots[..., :2].contiguous(),
        "offset_xy": slots[..., 2:].contiguous(),
        "cell": cell.view(images, MAX_BOXES),
        "mask": mask.view(images, MAX_BOXES),
        "sample_id": batch["sample_id"],
    }


@cache
def largest_radius(cells: int) -> int:
    """Return the largest radius of a Gaussian, that of a box as large as the heat map."""
    return int(gaussian_radii(np.array([[cells - 1, cells - 1]]))[0])


def _apply_colours(pixels_nhwc: torch.Tensor, colours: torch.Tensor) -> torch.Tensor:
    # Sums instead of a matrix product: on CUDA that may be TF32, with errors of 1e-3.
    red, green, blue = pixels_nhwc[:, None].unbind(-1)  # each (B, 1, S, S) uint8
    of_red, of_green, of_blue, bias = colours[:, :, None, None].unbind(-1)  # each (B, 3, 1, 1)
    image = red * of_red + bias  # (B, 3, S, S) float32
    image.addcmul_(green.float(), of_green)
    return image.addcmul_(blue.float(), of_blue)


def _draw_heatmaps(
    plane: torch.Tensor, center_cell: torch.Tensor, radius: torch.Tensor, images: int, cells: int
) -> torch.Tensor:
    # plane (n,) counts class maps over the whole batch; center_cell (n, 2) x, y; radius (n,).
    import torch

    reach = largest_radius(cells)
    step = torch.arange(-reach, reach + 1, device=radius.device)  # (R,)
    at = center_cell[:, :, None] + step  # (n, 2, R), may leave the map
    sigma = ((2 * radius + 1) / 6)[:, None]
    line = torch.exp(-(step**2) / (2 * sigma**2)) * (step.abs() <= radius[:, None])  # (n, R)
    line_xy = line[:, None] * ((at >= 0) & (at < cells))  # (n, 2, R)
    values = line_xy[:, 1, :, None] * line_xy[:, 0, None, :]  # (n, R, R), 0 outside circle and map
    # Cells outside the map are moved to its edge with value 0, which changes no maximum.
    at = at.clamp(0, cells - 1)
    index = (plane[:, None, None] * cells + at[:, 1, :, None]) * cells + at[:, 0, None, :]
    heatmap = torch.zeros(images * CLASSES * cells * cells, device=radius.device)
    heatmap.scatter_reduce_(0, index.flatten(), values.flatten(), "amax")
    return heatmap.view(images, CLASSES, cells, cells)
