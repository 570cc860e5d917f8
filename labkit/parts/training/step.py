"""What a training step offers to those who run it and those who watch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """What is done with each batch; `backward` takes what `forward` returned."""

    forward: Callable[[dict], object]
    """Batch of device tensors -> loss, a 0-dim float32 device tensor; None if emulated."""
    backward: Callable[[object], None] | None
    """Gradients, optimizer step, gradients dropped; None where the device has no such phase."""
    loss: Callable[[], float | None]
    """The last loss as a number: waits for the device, so call it outside the timed region."""
    batch: str | None
    """The batch it needs, a name in `contracts.BATCHES`; None: any."""
    logits: Callable[[], object] = lambda: None
    """The last class scores, (B, classes) float32 without their graph, still on the device; None
    where the step has none."""
    state: Callable[[], dict] = dict
    """What a checkpoint holds: state_dict() of model and optimizer, as they are just now."""
    first_loss: Callable[[], float | None] = lambda: None
    """The first loss of all, from untrained weights; likewise."""
