"""The detector's loss written as loops, the way that documents warn of: same number, same gradient.

    for each image ─ for each class ─ focal loss of one plane
                   └ for each box ─── L1 of its size and offset

Hundreds of planes and boxes take thousands of operator calls, a few microseconds each, in which
the device has next to nothing to do.  Main trap: a look at a number (`.item()`, `.tolist()`, `if`)
waits until the device has done all it was given; `looking_loop_loss` looks at every plane and slot,
the others once per batch, as targets in slots cannot be looped over otherwise.
Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING

from labkit.parts.training.losses import OFFSET_WEIGHT, SIZE_WEIGHT, focal_sum

if TYPE_CHECKING:
    import torch


def _nothing() -> None:
    """A device that is there makes the host wait by itself."""


def loop_loss(
    heatmap_logits: torch.Tensor,
    size_wh: torch.Tensor,
    offset_xy: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
    *,
    wait: Callable[[], None] = _nothing,
) -> torch.Tensor:
    """Compute `losses.detector_loss` image by image, plane by plane and box by box.

    Args:
        heatmap_logits: (B, classes, h, w) float32.
        size_wh: (B, 2, h, w) float32, in cells.
        offset_xy: (B, 2, h, w) float32, in cells.
        batch: the targets, as `contracts.detector_batch` names them.
        wait: called before each look at a number, for a device that only stands in.

    Returns:
        () float32.
    """
    images = _images(heatmap_logits, size_wh, offset_xy, batch)
    return _total(map(_image_sums, images, _slots(batch, wait)))


def threaded_loop_loss(
    heatmap_logits: torch.Tensor,
    size_wh: torch.Tensor,
    offset_xy: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
    *,
    wait: Callable[[], None] = _nothing,
) -> torch.Tensor:
    """Compute `loop_loss` with a thread for each image; Python runs one of them at a time.

    Arguments and result as in `loop_loss`.  Source: [001] 4.1, "use threads".
    """
    images = _images(heatmap_logits, size_wh, offset_xy, batch)
    return _total(_pool().map(_image_sums, images, _slots(batch, wait)))


def looking_loop_loss(
    heatmap_logits: torch.Tensor,
    size_wh: torch.Tensor,
    offset_xy: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
    *,
    wait: Callable[[], None] = _nothing,
) -> torch.Tensor:
    """Compute `loop_loss`, looking at the number of centers of a plane and at the mask of a slot.

    Arguments and result as in `loop_loss`.  Source: `if num_pos == 0` in CenterNet's focal loss,
    `int(radius)` per box in MMDetection's targets.
    """

    def look(number: torch.Tensor) -> int:
        wait()
        return number.item()

    images = _images(heatmap_logits, size_wh, offset_xy, batch)
    slots = ((slot for slot, there in enumerate(mask) if look(there)) for mask in batch["mask"])
    return _total(map(partial(_image_sums, look=look), images, slots))


# On these the host spends time of its own, and they take `wait`.
LOOPS = {"loops": loop_loss, "loops_sync": looking_loop_loss, "threads": threaded_loop_loss}


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="loss")


def _images(
    heatmap_logits: torch.Tensor,
    size_wh: torch.Tensor,
    offset_xy: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
) -> Iterable[tuple[torch.Tensor, ...]]:
    """Give each image's predictions and targets."""
    # Iterating a tensor takes it apart once.  With `size_wh[i]` every gradient would first be
    # zeros for the whole batch.
    targets = (batch[name] for name in ("heatmap", "size_wh", "offset_xy", "cell"))
    return zip(heatmap_logits, size_wh.flatten(2), offset_xy.flatten(2), *targets)


def _slots(batch: Mapping[str, torch.Tensor], wait: Callable[[], None]) -> list[list[int]]:
    """Look once at which slots of each image hold a box."""
    wait()
    return [[slot for slot, there in enumerate(mask) if there] for mask in batch["mask"].tolist()]


def _image_sums(
    image: tuple[torch.Tensor, ...],
    slots: Iterable[int],
    look: Callable[[torch.Tensor], object] = lambda number: number,
) -> tuple:
    """Add up one image's losses.

    Args:
        image: from `_images`, without the batch axis.
        slots: those that hold a box.
        look: what is done with the number of centers in a plane.

    Returns:
        focal loss, centers, L1 of sizes, L1 of offsets, boxes.
    """
    heatmap_logits, size_wh, offset_xy, heatmap, true_size_wh, true_offset_xy, cell = image
    focal = centers = boxes = 0
    # Without boxes the gradient is zeros, not none: Adam goes on by its momentum.
    size, offset = 0 * size_wh.sum(), 0 * offset_xy.sum()
    for plane, target in zip(heatmap_logits, heatmap):
        of_plane, found = focal_sum(plane, target)
        focal = focal + of_plane
        centers = centers + look(found)
    for slot in slots:
        here = cell[slot : slot + 1]  # (1,): as a number, it would have to be looked at
        size = size + _l1(size_wh, here, true_size_wh[slot])
        offset = offset + _l1(offset_xy, here, true_offset_xy[slot])
        boxes += 1
    return focal, centers, size, offset, boxes


def _l1(prediction: torch.Tensor, cell: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    # prediction (2, h * w), cell (1,), target (2,)
    return (prediction.index_select(1, cell).squeeze(1) - target).abs().sum()


def _total(images: Iterable[tuple]) -> torch.Tensor:
    """Put the images' sums together: per center and per box, or per batch where there is none."""
    focal, centers, size, offset, boxes = map(sum, zip(*images))
    at_boxes = (SIZE_WEIGHT * size + OFFSET_WEIGHT * offset) / max(2 * boxes, 1)
    return focal / (centers + (centers == 0)) + at_boxes
