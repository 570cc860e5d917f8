"""Batches of random images and boxes, for everything that trains."""

from __future__ import annotations

import torch

from labkit import batches

INPUT_PX = 64
BATCH_SIZE = 2


def make_batch(boxes_per_image=(3, 0), seed=0) -> dict[str, torch.Tensor]:
    """Random images; each box is a peak of 1 in its heat map with slopes around it."""
    draw = torch.Generator().manual_seed(seed)
    specs = batches.detector_batch(BATCH_SIZE, INPUT_PX)
    batch = {
        name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
        for name, spec in specs.items()
    }
    batch["image"] = torch.randn(specs["image"].shape, generator=draw)
    batch["heatmap"] = 0.9 * torch.rand(specs["heatmap"].shape, generator=draw)
    cells = (INPUT_PX // batches.STRIDE) ** 2
    for i, boxes in enumerate(boxes_per_image):
        for slot in range(boxes):
            cell = int(torch.randint(cells, (), generator=draw))
            category = int(torch.randint(batches.CLASSES, (), generator=draw))
            batch["heatmap"][i, category].view(-1)[cell] = 1
            batch["cell"][i, slot] = cell
            batch["mask"][i, slot] = 1
            batch["size_wh"][i, slot] = 10 * torch.rand(2, generator=draw)
            batch["offset_xy"][i, slot] = torch.rand(2, generator=draw)
    batch["label"] = torch.arange(BATCH_SIZE)
    return batch


def random_prediction(seed=1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    cells = INPUT_PX // batches.STRIDE
    return tuple(
        torch.randn((BATCH_SIZE, channels, cells, cells), generator=draw)
        for channels in (batches.CLASSES, 2, 2)
    )
