"""The training step and what the training loop does beside it.

    batch on the device -> forward -> loss -> backward and optimizer step

Importing this package does not import torch.
"""

from __future__ import annotations

from labkit.parts.training.loss import LOSSES, Loss
from labkit.parts.training.step import STEPS, Step, StepPart, label, repeated

__all__ = ["LOSSES", "STEPS", "Loss", "Step", "StepPart", "label", "repeated"]
