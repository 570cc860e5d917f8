"""The training step: the work done on a batch once it is on the device.

    batch on the device -> forward -> loss -> backward and optimizer step

`detector` and `classifier` are real, `timed` occupies the emulated device for
its profile's seconds per image, `nothing` leaves loading alone.  Main trap: a
loss that is looked at on the host (`if count == 0`, `.item()`) makes the host
wait for the device in every step, which hides what the loader does; only
`Step.loss` looks, untimed.
Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labkit.settings import Settings

# CenterNet trains with Adam at 1.25e-4 from its first epoch on.
DETECTOR_LEARNING_RATE = 1.25e-4
# The ResNet paper's 0.1 at batch 256, scaled linearly to the documents' batch of 32.
CLASSIFIER_LEARNING_RATE = 0.0125
CLASSIFIER_MOMENTUM = 0.9


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


def detector(settings: Settings, device: object) -> Step:
    """Train CenterNet's res_18 from scratch: heat maps, box sizes and center offsets.

    Args:
        settings: `seed` decides the weights.
        device: a part of `DEVICES` with a `torch_device`.

    Returns:
        A step on `contracts.detector_batch`.

    Raises:
        ValueError: the device is emulated.

    Source: CenterNet (Zhou et al. 2019), trained by Adam.
    """
    _check_real("detector", device)
    import torch

    from labkit.parts.training.losses import detector_loss
    from labkit.parts.training.models import Detector

    model = _seeded(Detector, settings, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=DETECTOR_LEARNING_RATE)
    return _train(optimizer, lambda batch: detector_loss(*model(batch["image"]), batch), "detector")


def classifier(settings: Settings, device: object) -> Step:
    """Train a ResNet-18 classifier from scratch, the light arm.

    Args:
        settings: `seed` decides the weights.
        device: a part of `DEVICES` with a `torch_device`.

    Returns:
        A step on `contracts.classifier_batch`.

    Raises:
        ValueError: the device is emulated.

    Source: He et al. 2016, trained by SGD with momentum and cross entropy.
    """
    _check_real("classifier", device)
    import torch

    from labkit.parts.training.models import build_classifier

    model = _seeded(build_classifier, settings, device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=CLASSIFIER_LEARNING_RATE, momentum=CLASSIFIER_MOMENTUM
    )
    cross_entropy = torch.nn.functional.cross_entropy
    return _train(
        optimizer, lambda batch: cross_entropy(model(batch["image"]), batch["label"]), "classifier"
    )


def timed(settings: Settings, device: object) -> Step:
    """Occupy the emulated device for as long as its profile says; nothing is learnt.

    Args:
        settings: not used; every step is called alike.
        device: a part of `DEVICES` with `compute(images)`.

    Returns:
        A step on any batch with `sample_id`, without backward and loss.

    Raises:
        ValueError: the device is a real one.
    """
    if not _is_emulated(device):
        raise ValueError(
            f"step must be detector or classifier on {device.torch_device}, got 'timed'; "
            'set step="detector", or device="emulated"'
        )
    return Step(
        forward=lambda batch: device.compute(len(batch["sample_id"])),
        backward=None,
        loss=lambda: None,
        batch=None,
    )


def nothing(settings: Settings, device: object) -> Step:
    """Do no work at all: the epoch is then as long as loading alone takes.

    Args:
        settings: not used; every step is called alike.
        device: not used.

    Returns:
        A step on any batch.
    """
    return Step(forward=lambda batch: None, backward=None, loss=lambda: None, batch=None)


STEPS: dict[str, Callable[[Settings, object], Step]] = {
    "detector": detector,
    "classifier": classifier,
    "timed": timed,
    "nothing": nothing,
}


def _is_emulated(device: object) -> bool:
    return hasattr(device, "compute")


def _check_real(name: str, device: object) -> None:
    if _is_emulated(device):
        raise ValueError(
            f"step must be timed on the emulated device, got {name!r}; "
            'set step="timed", or device="cuda" or "cpu"'
        )


def _seeded(build: Callable[[], object], settings: Settings, device: object) -> object:
    """Build a model on the CPU, so that every device and variant starts from the same weights."""
    import torch

    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed CUDA's generators, which are not forked here.
        torch.default_generator.manual_seed(settings.seed)
        model = build()
    return model.to(device.torch_device)


def _train(optimizer: object, loss_of: Callable[[dict], object], batch: str) -> Step:
    last = None

    def forward(batch: dict) -> object:
        nonlocal last
        loss = loss_of(batch)
        last = loss.detach()  # the number without the graph, still on the device
        return loss

    def backward(loss: object) -> None:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Step(
        forward=forward,
        backward=backward,
        loss=lambda: None if last is None else last.item(),
        batch=batch,
    )
