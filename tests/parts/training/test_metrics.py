"""Evaluation metrics count the same sample by sample and at once.

Run: python -m pytest tests/parts/training/test_metrics.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.parts.training.metrics import METRICS, Totals

CLASSES = 9
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)]


def batches(count=3, size=16):
    draw = torch.Generator().manual_seed(0)
    # The last class never occurs.
    return [
        (
            torch.randn(size, CLASSES, generator=draw),
            torch.randint(CLASSES - 1, (size,), generator=draw),
        )
        for _ in range(count)
    ]


def counted(name, device="cpu", **how):
    totals = Totals(**how)
    for logits, labels in batches():
        METRICS[name](logits.to(device), labels.to(device), totals)
    return totals


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["loops", "vectorized"])
def test_metrics_are_what_their_names_say(name, device):
    logits = np.concatenate([logits.numpy() for logits, _ in batches()])
    labels = np.concatenate([labels.numpy() for _, labels in batches()])
    ranked = np.argsort(-logits, axis=1)
    right = ranked[:, 0] == labels
    totals = counted(name, device)
    assert totals.result() == {
        "top1": pytest.approx(right.mean()),
        "top5": pytest.approx((ranked[:, :5] == labels[:, None]).any(1).mean()),
        "class_mean": pytest.approx(np.mean([right[labels == c].mean() for c in set(labels)])),
    }
    confusion = np.zeros((CLASSES, CLASSES), np.int64)
    np.add.at(confusion, (labels, ranked[:, 0]), 1)
    assert totals.confusion.dtype == torch.int64
    np.testing.assert_array_equal(totals.confusion.cpu().numpy(), confusion)


def test_nothing_counted_has_no_result():
    assert counted("none").result() == Totals().result() == {}


def test_loops_look_at_every_sample_and_the_others_only_at_the_end():
    waits = {}
    for name in METRICS:
        seen = waits[name] = []
        totals = counted(name, wait=lambda seen=seen: seen.append(1))
        before = len(seen)
        totals.result()
        waits[name] = (before, len(seen) - before)
    assert waits == {"none": (0, 0), "loops": (2 * 48, 1), "vectorized": (0, 1)}


def test_at_once_never_looks_at_a_number():
    # Meta tensors have shapes but no numbers: `.item()` on one raises.
    (logits, labels), *_ = batches()
    totals = Totals()
    METRICS["vectorized"](logits.to("meta"), labels.to("meta"), totals)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        totals.result()
