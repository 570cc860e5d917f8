"""The detector's losses, for a whole batch at once and without waiting for the device.

    heat map: focal loss over all cells     size, offset: L1 at the boxes' center cells

Main trap: an image may have no boxes.  `if count == 0` on a device tensor makes
the host wait in every step (CenterNet's does); `clamp(min=1)` gives the same
number and waits for nothing.  Source: Zhou et al. 2019, "Objects as Points",
equation 1 and its weights 1, 0.1 and 1.
Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SIZE_WEIGHT = 0.1  # sizes are in cells, tens of times larger than offsets
OFFSET_WEIGHT = 1.0


def detector_loss(
    heatmap_logits: torch.Tensor,
    size_wh: torch.Tensor,
    offset_xy: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Add up the detector's three losses.

    Args:
        heatmap_logits: (B, classes, h, w) float32.
        size_wh: (B, 2, h, w) float32, in cells.
        offset_xy: (B, 2, h, w) float32, in cells.
        batch: the targets, as `contracts.detector_batch` names them.

    Returns:
        () float32.
    """
    cell, mask = batch["cell"], batch["mask"]
    return (
        focal_loss(heatmap_logits, batch["heatmap"])
        + SIZE_WEIGHT * l1_at_cells(size_wh, batch["size_wh"], cell, mask)
        + OFFSET_WEIGHT * l1_at_cells(offset_xy, batch["offset_xy"], cell, mask)
    )


def focal_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Compare heat maps, caring little for cells that are nearly right or near a center.

    Args:
        logits: (B, classes, h, w) float32; the heat map is their sigmoid.
        target: (B, classes, h, w) float32 in 0 to 1; exactly 1 at box centers only.

    Returns:
        () float32, the sum over all cells per center (per batch, where there is none).
    """
    loss, centers = focal_sum(logits, target)
    return loss / centers.clamp(min=1)


def focal_sum(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Add up the focal loss of any number of cells, and count the centers among them.

    Args:
        logits: any shape, float32.
        target: the same shape.

    Returns:
        () float32; () int64.

    Source: CornerNet (Law and Deng 2018), equation 1, alpha 2 and beta 4; log-sigmoids in
    place of logs of a clamped sigmoid, so that far-off cells keep their gradient.
    """
    import torch
    from torch.nn.functional import logsigmoid

    heat = logits.sigmoid()
    is_center = target == 1
    at_centers = logsigmoid(logits) * (1 - heat) ** 2
    elsewhere = logsigmoid(-logits) * heat**2 * (1 - target) ** 4
    return -torch.where(is_center, at_centers, elsewhere).sum(), is_center.sum()


def l1_at_cells(
    prediction: torch.Tensor, target: torch.Tensor, cell: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean absolute difference at the cells of the boxes.

    Args:
        prediction: (B, 2, h, w) float32.
        target: (B, K, 2) float32.
        cell: (B, K) int64, index into h * w, row by row.
        mask: (B, K) uint8, 1 where a slot holds a box.

    Returns:
        () float32; 0 where the batch has no box.
    """
    index = cell[:, None].expand(-1, prediction.shape[1], -1)  # (B, 2, K)
    predicted = prediction.flatten(2).gather(2, index).transpose(1, 2)  # (B, K, 2)
    weight = mask[..., None].to(prediction.dtype).expand_as(target)  # (B, K, 2)
    return ((predicted - target).abs() * weight).sum() / weight.sum().clamp(min=1)
