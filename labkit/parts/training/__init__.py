"""The training step and what the training loop does beside it.

    batch on the device -> forward -> loss -> backward and optimizer step

Importing this package does not import torch.
"""

from __future__ import annotations

from labkit.parts.training.loss import LOOPS, LOSSES, VECTORIZED
from labkit.parts.training.step import STEPS, TAKES, Step, label, repeated

__all__ = ["LOOPS", "LOSSES", "STEPS", "TAKES", "VECTORIZED", "Step", "label", "repeated"]
