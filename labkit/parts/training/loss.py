"""The detector's loss: vectorized, and in loops as the documents warn against.

    heat map: focal loss of all cells     size, offset: L1 at the boxes' center cells

All losses of `LOSSES` give the same number and gradients.  The loops call thousands of operators,
each of which takes the host a few microseconds.  Reading a number on the host (`.item()`,
`if count == 0`, as in CenterNet) makes it wait for the device: `loops_sync` reads one at every
plane and slot, the other loops one per batch, `vectorized` none.

Importing this module does not import torch.  Source: Zhou et al. 2019, "Objects as Points",
equation 1 and its weights 1, 0.1 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from labkit.batches import CLASSES, MAX_BOXES
from labkit.contracts import Chosen, Part

if TYPE_CHECKING:
    import torch

SIZE_WEIGHT = 0.1  # the offsets' is 1: sizes, in cells too, are tens of times larger


def detector_loss(
    heatmap_logits: torch.Tensor,
    size_wh: torch.Tensor,
    offset_xy: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Compute the loss of the whole batch at once, without waiting for the device.

    Args:
        heatmap_logits: (B, classes, h, w) float32.
        size_wh: (B, 2, h, w) float32, in cells.
        offset_xy: (B, 2, h, w) float32, in cells.
        batch: the targets, as `batches.detector_batch` names them.

    Returns:
        () float32.
    """
    cell, mask = batch["cell"], batch["mask"]
    focal, centers = _focal_sum(heatmap_logits, batch["heatmap"])
    return (
        focal / centers.clamp(min=1)
        + SIZE_WEIGHT * _l1_at_cells(size_wh, batch["size_wh"], cell, mask)
        + _l1_at_cells(offset_xy, batch["offset_xy"], cell, mask)
    )


def loop_loss(
    heatmap_logits: torch.Tensor,
    size_wh: torch.Tensor,
    offset_xy: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
    *,
    wait: Callable[[], None] = lambda: None,
    in_threads: bool = False,
    reads_each: bool = False,
) -> torch.Tensor:
    """Compute `detector_loss` image by image, plane by plane and box by box.

    Args:
        heatmap_logits: (B, classes, h, w) float32.
        size_wh: (B, 2, h, w) float32, in cells.
        offset_xy: (B, 2, h, w) float32, in cells.
        batch: the targets, as `batches.detector_batch` names them.
        wait: called before a number is read; the simulated GPU waits there, a real one does so
            by itself.
        in_threads: a thread for each image; Python runs one of them at a time ([001] 4.1, "use
            threads").
        reads_each: read the number of centers of each plane and the mask of each slot, as
            `if num_pos == 0` in CenterNet's focal loss and `int(radius)` in MMDetection's targets
            do.  Otherwise the masks are read once per batch.

    Returns:
        () float32.
    """

    def read(number: torch.Tensor) -> float:
        wait()
        return number.item()

    mask: Any = batch["mask"]
    if not reads_each:
        wait()
        mask = mask.tolist()
    there: Callable = read if reads_each else bool
    slots = ((slot for slot, box in enumerate(row) if there(box)) for row in mask)
    # Iterating a tensor unbinds it once.  With `size_wh[i]` every gradient would first be zeros
    # for the whole batch.
    targets = (batch[name] for name in ("heatmap", "size_wh", "offset_xy", "cell"))
    images = zip(heatmap_logits, size_wh.flatten(2), offset_xy.flatten(2), *targets)
    each = _pool().map if in_threads else map
    of_image = partial(_image_sums, read=read) if reads_each else _image_sums
    sums: Iterable[Any] = map(sum, zip(*each(of_image, images, slots)))
    focal, centers, size, offset, boxes = sums
    at_boxes = (SIZE_WEIGHT * size + offset) / max(2 * boxes, 1)
    return focal / (centers + (centers == 0)) + at_boxes


@dataclass(frozen=True)
class Loss(Part):
    """A detector's loss: (heat map logits, sizes, offsets, targets) -> 0-dim tensor."""

    loops: bool = False
    """It keeps the host busy, and takes the argument `wait`."""

    def why_not(self, chosen: Chosen) -> str:
        """Refuse a loss that has no boxes, or that a simulated GPU cannot compute; see `Part`."""
        settings = chosen.settings
        if settings.loss == "vectorized" or chosen.step.trains_nothing:
            return ""
        if chosen.preprocessor.batch != "detector":
            raise ValueError(
                f"loss must be vectorized for the preprocessor {settings.preprocessor}, whose "
                f"batches have no boxes, got {settings.loss!r}; choose a detector's preprocessor, "
                "such as on_device"
            )
        if chosen.step.is_simulated and not self.loops:
            known = ("vectorized", *chosen.names("loss", lambda each: each.loops))
            raise ValueError(
                f"loss must be {', '.join(known)} on the simulated GPU, got {settings.loss!r}; "
                "choose device cpu or cuda for one of your own"
            )
        return ""


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "vectorized": detector_loss,
    "loops": Loss(loop_loss, loops=True),
    "loops_sync": Loss(partial(loop_loss, reads_each=True), loops=True),
    "threads": Loss(partial(loop_loss, in_threads=True), loops=True),
}


def host_loss(
    loss_of: Callable[..., torch.Tensor], batch_size: int, seed: int = 0
) -> Callable[..., None]:
    """Make the host's part of a loss, forward and backward, for the simulated GPU.

    Maps of one cell need as many operator calls as whole maps, and almost no computation.

    Args:
        loss_of: a loss of `LOSSES`.
        batch_size: images in a batch.
        seed: of the predictions, which are made once.

    Returns:
        (batch's mask, (B, MAX_BOXES) uint8; more arguments of the loss by name) -> None.
    """
    import torch

    draw = torch.Generator().manual_seed(seed)
    predictions = [
        torch.randn((batch_size, channels, 1, 1), generator=draw).requires_grad_()
        for channels in (CLASSES, 2, 2)
    ]
    targets = {
        "heatmap": torch.zeros(batch_size, CLASSES, 1, 1),
        "size_wh": torch.zeros(batch_size, MAX_BOXES, 2),
        "offset_xy": torch.zeros(batch_size, MAX_BOXES, 2),
        "cell": torch.zeros(batch_size, MAX_BOXES, dtype=torch.int64),
    }

    def work(mask: torch.Tensor, **how: object) -> None:
        loss = loss_of(*predictions, {**targets, "mask": mask}, **how)
        torch.autograd.grad(loss, predictions)

    return work


def mask_of(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return which slots hold a box, also of a batch that the device would finish.

    Returns:
        (B, MAX_BOXES) uint8.
    """
    import torch

    if "mask" in batch:
        return batch["mask"]
    counts = batch["boxes_ragged_counts"]
    return (torch.arange(MAX_BOXES) < counts[:, None]).to(torch.uint8)


def _focal_sum(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Add up the focal loss of any number of cells, and count the centers among them.

    Args:
        logits: any shape, float32; the heat map is their sigmoid.
        target: the same shape, in 0 to 1; exactly 1 at box centers only.

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


def _l1_at_cells(
    prediction: torch.Tensor, target: torch.Tensor, cell: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return the mean absolute difference at the cells of the boxes; 0 without boxes.

    Args:
        prediction: (B, 2, h, w) float32.
        target: (B, K, 2) float32.
        cell: (B, K) int64, index into h * w, row by row.
        mask: (B, K) uint8, 1 where a slot holds a box.
    """
    index = cell[:, None].expand(-1, prediction.shape[1], -1)  # (B, 2, K)
    predicted = prediction.flatten(2).gather(2, index).transpose(1, 2)  # (B, K, 2)
    weight = mask[..., None].to(prediction.dtype).expand_as(target)  # (B, K, 2)
    return ((predicted - target).abs() * weight).sum() / weight.sum().clamp(min=1)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="loss")


def _image_sums(
    image: tuple[torch.Tensor, ...],
    slots: Iterable[int],
    read: Callable[[torch.Tensor], object] = lambda number: number,
) -> tuple:
    """Add up one image's losses.

    Args:
        image: heat map logits, sizes, offsets, their targets and cells, without the batch axis.
        slots: those that hold a box.
        read: applied to the number of centers in a plane.

    Returns:
        focal loss, centers, L1 of sizes, L1 of offsets, boxes.
    """
    heatmap_logits, size_wh, offset_xy, heatmap, true_size_wh, true_offset_xy, cell = image
    focal: Any = 0
    centers: Any = 0
    boxes = 0
    # Without boxes the gradient is zeros, not None: Adam moves weights by their momentum then.
    size, offset = 0 * size_wh.sum(), 0 * offset_xy.sum()
    for plane, target in zip(heatmap_logits, heatmap):
        of_plane, centers_of_plane = _focal_sum(plane, target)
        focal = focal + of_plane
        centers = centers + read(centers_of_plane)
    for slot in slots:
        here = cell[slot : slot + 1]  # (1,): indexing by a number would read it
        size = size + _l1(size_wh, here, true_size_wh[slot])
        offset = offset + _l1(offset_xy, here, true_offset_xy[slot])
        boxes += 1
    return focal, centers, size, offset, boxes


def _l1(prediction: torch.Tensor, cell: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    # prediction (2, h * w), cell (1,), target (2,)
    return (prediction.index_select(1, cell).squeeze(1) - target).abs().sum()
