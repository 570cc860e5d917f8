"""Evaluation metrics of a classifier, batch by batch: accuracy and confusion matrix.

    logits, labels ─▶ top-1, top-5, confusion matrix, added up ─▶ `Totals.result`

`loops` reads every sample on the host, as `.item()` per image does; `vectorized` counts on the
device and reads once, at the end.  It does not use `torch.bincount`, which on CUDA reads the
largest number and so waits for the device.  Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TOP = 5


@dataclass(kw_only=True)
class Totals:
    """Counts so far."""

    wait: Callable[[], None] = lambda: None
    """Called before a number is read; the emulated device waits there."""
    confusion: torch.Tensor | None = None
    """(classes, classes) int64, true class by predicted class; None: nothing counted."""
    in_top: int | torch.Tensor = 0
    """Samples whose class was among the `TOP` most likely ones."""

    def result(self) -> dict[str, float]:
        """Read the counts.

        Returns:
            top1, top5: shares of all samples; class_mean: accuracy per class, averaged over the
            classes that occurred.  Empty where nothing was counted.
        """
        if self.confusion is None:
            return {}
        import torch

        self.wait()
        # Together, so that there is one transfer.
        in_top = torch.as_tensor(self.in_top, device=self.confusion.device)
        counted = torch.cat([self.confusion.flatten(), in_top[None]]).cpu()
        confusion, in_top = counted[:-1].view(self.confusion.shape).double(), counted[-1].item()
        right, of_class = confusion.diagonal(), confusion.sum(1)
        seen = of_class > 0
        return {
            "top1": (right.sum() / of_class.sum()).item(),
            "top5": in_top / of_class.sum().item(),
            "class_mean": (right[seen] / of_class[seen]).mean().item(),
        }


def count_in_loops(logits: torch.Tensor, labels: torch.Tensor, totals: Totals) -> None:
    """Count sample by sample on the host.

    Args:
        logits: (B, classes) float32, at least `TOP` classes.
        labels: (B,) int64, on the same device.
        totals: gets the batch's counts.
    """
    import torch

    if totals.confusion is None:
        totals.confusion = torch.zeros(logits.shape[1], logits.shape[1], dtype=torch.int64)
    for scores, label in zip(logits, labels):
        totals.wait()
        likeliest = scores.topk(TOP).indices.tolist()
        totals.wait()
        true = label.item()
        totals.confusion[true, likeliest[0]] += 1
        totals.in_top += true in likeliest


def count_at_once(logits: torch.Tensor, labels: torch.Tensor, totals: Totals) -> None:
    """Count the whole batch on its device, without reading a number.

    Args:
        logits: (B, classes) float32, at least `TOP` classes.
        labels: (B,) int64, on the same device.
        totals: gets the batch's counts.
    """
    import torch

    classes = logits.shape[1]
    if totals.confusion is None:
        totals.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=logits.device)
    likeliest = logits.topk(TOP).indices  # (B, TOP), likeliest first
    cell = labels * classes + likeliest[:, 0]
    totals.confusion.view(-1).index_add_(0, cell, torch.ones_like(cell))
    totals.in_top = totals.in_top + (likeliest == labels[:, None]).sum()


# (logits, labels, totals) -> None
METRICS: dict[str, Callable[[torch.Tensor, torch.Tensor, Totals], None] | None] = {
    "none": None,
    "loops": count_in_loops,
    "vectorized": count_at_once,
}
