"""A loss's work on the host, for a device that only stands in, and how many calls it makes.

    the batch's boxes ─▶ predictions of one cell ─▶ loss, backward ─▶ the host's time is spent

On a GPU the host only calls operators, and the device computes.  With maps of one cell there is
next to nothing to compute, so what is left of the loss here is that: as many calls as for whole
maps.  Main trap: maps of the real size would charge the host for the device's work, ten times over.
Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from labkit.contracts import CLASSES, MAX_BOXES
from labkit.launches import count_launches, count_operators

if TYPE_CHECKING:
    import torch

TYPICAL_BOXES = 7  # COCO has 7.3 boxes per image on average


def host_loss(
    loss_of: Callable[..., torch.Tensor], batch_size: int, seed: int, device: str = "cpu"
) -> Callable[..., None]:
    """Make what does a loss's work for a batch, forward and backward, on maps of one cell.

    Args:
        loss_of: a loss of `LOSSES`.
        batch_size: images in a batch.
        seed: of the predictions, which are made once.
        device: where the tensors lie.

    Returns:
        (batch's mask, (B, MAX_BOXES) uint8; more arguments of the loss by name) -> None.
    """
    import torch

    draw = torch.Generator().manual_seed(seed)
    predictions = [
        torch.randn((batch_size, channels, 1, 1), generator=draw).to(device).requires_grad_()
        for channels in (CLASSES, 2, 2)
    ]
    targets = {
        "heatmap": torch.zeros(batch_size, CLASSES, 1, 1, device=device),
        "size_wh": torch.zeros(batch_size, MAX_BOXES, 2, device=device),
        "offset_xy": torch.zeros(batch_size, MAX_BOXES, 2, device=device),
        "cell": torch.zeros(batch_size, MAX_BOXES, dtype=torch.int64, device=device),
    }

    def work(mask: torch.Tensor, **how: object) -> None:
        loss = loss_of(*predictions, {**targets, "mask": mask}, **how)
        torch.autograd.grad(loss, predictions)

    return work


def mask_of(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Say which slots hold a box; what the device would finish says how many there are.

    Returns:
        (B, MAX_BOXES) uint8.
    """
    if "mask" in batch:
        return batch["mask"]
    return _first_slots(batch["boxes_ragged_counts"])


def count_calls(
    loss_of: Callable[..., torch.Tensor], batch_size: int, *, on_gpu: bool
) -> tuple[int, int | None]:
    """Count what one step's loss calls, at a typical number of boxes.

    Args:
        loss_of: a loss of `LOSSES` that runs in one thread.
        batch_size: images in a batch.
        on_gpu: whether kernels are to be counted as well.

    Returns:
        Operators, forward and backward; kernels, or None.
    """
    import torch

    where = "cuda" if on_gpu else "cpu"
    work = host_loss(loss_of, batch_size, seed=0, device=where)
    mask = _first_slots(torch.full((batch_size,), TYPICAL_BOXES)).to(where)
    operators = count_operators(lambda: work(mask))
    return operators, count_launches(lambda: work(mask)) if on_gpu else None


def _first_slots(counts: torch.Tensor) -> torch.Tensor:
    import torch

    return (torch.arange(MAX_BOXES) < counts[:, None]).to(torch.uint8)
