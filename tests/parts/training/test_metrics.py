"""Evaluation metrics count the same sample by sample and at once.

Run: python -m pytest tests/parts/training/test_metrics.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.parts.training.callbacks import METRICS, Totals

CLASSES = 9
SAMPLES = 48
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)]


def batches(device="cpu"):
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(SAMPLES, CLASSES, generator=draw)
    labels = torch.randint(CLASSES - 1, (SAMPLES,), generator=draw)  # the last never occurs
    return list(zip(logits.to(device).split(16), labels.to(device).split(16)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    # loops read the scores and the label of every sample; all read the counts at the end.
    ("name", "waits"),
    [("loops", 2 * SAMPLES + 1), ("vectorized", 1)],
)
def test_metrics_are_what_their_names_say(name, waits, device):
    waited = []
    totals = Totals(wait=lambda: waited.append(1))
    for logits, labels in batches(device):
        METRICS[name](logits, labels, totals)
    ranked = np.argsort(-np.concatenate([logits.numpy() for logits, _ in batches()]), axis=1)
    labels = np.concatenate([labels.numpy() for _, labels in batches()])
    right = ranked[:, 0] == labels
    assert totals.result() == {
        "top1": pytest.approx(right.mean()),
        "top5": pytest.approx((ranked[:, :5] == labels[:, None]).any(1).mean()),
        "class_mean": pytest.approx(np.mean([right[labels == c].mean() for c in set(labels)])),
    }
    assert len(waited) == waits
    confusion = np.zeros((CLASSES, CLASSES), np.int64)
    np.add.at(confusion, (labels, ranked[:, 0]), 1)
    np.testing.assert_array_equal(totals.confusion.cpu().numpy(), confusion)


def test_vectorized_reads_no_number():
    # Meta tensors have shapes but no numbers: `.item()` on one raises.
    totals = Totals()
    METRICS["vectorized"](*batches("meta")[0], totals)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        totals.result()
