"""The training step: the work done on a batch once it is on the device.

    batch on the device -> forward -> loss -> backward and optimizer step

`detector` and `classifier` are real, `timed` occupies the emulated device for
its profile's seconds per image, `nothing` leaves loading alone.  Main trap: a
loss that is looked at on the host (`if count == 0`, `.item()`) makes the host
wait for the device in every step, which hides what the loader does; of the losses
in `LOSSES` only the loops look, and `Step.loss` does so untimed.
Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from labkit.contracts import CLASSES
from labkit.parts.training.host_loss import TYPICAL_BOXES, count_calls, host_loss, mask_of
from labkit.parts.training.loss_loops import LOOPS
from labkit.parts.training.losses import detector_loss
from labkit.parts.training.real_step import say_dtype, seeded, train
from labkit.parts.training.step import Step
from labkit.settings import Settings, pick

# CenterNet trains with Adam at 1.25e-4 from its first epoch on.
DETECTOR_LEARNING_RATE = 1.25e-4
# The ResNet paper's 0.1 at batch 256, scaled linearly to the documents' batch of 32.
CLASSIFIER_LEARNING_RATE = 0.0125
CLASSIFIER_MOMENTUM = 0.9
VECTORIZED = "vectorized"
# (heat map logits, sizes, offsets, targets) -> loss; all give the same number and gradients.
LOSSES: dict[str, Callable] = {VECTORIZED: detector_loss, **LOOPS}
# A forward pass is about a third of a training step: the backward pass has two products for each.
FORWARD_SHARE = 1 / 3


def detector(settings: Settings, device: object) -> Step:
    """Train CenterNet's res_18 from scratch: heat maps, box sizes and center offsets.

    Args:
        settings: `seed` decides the weights; loss, precision and memory_format count.
        device: a part of `DEVICES` with a `torch_device`.

    Returns:
        A step on `contracts.detector_batch`.

    Raises:
        ValueError: the device is emulated.

    Source: CenterNet (Zhou et al. 2019), trained by Adam.
    """
    _check_real("detector", device)
    import torch

    from labkit.parts.training.models import Detector

    model = seeded(Detector, settings, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=DETECTOR_LEARNING_RATE)
    of_maps = pick(LOSSES, settings.loss, "loss")

    def loss_of(maps: tuple, batch: dict) -> object:
        return of_maps(*(one.float() for one in maps), batch)

    return train(settings, device, model, optimizer, loss_of, "detector")


def classifier(settings: Settings, device: object) -> Step:
    """Train a ResNet-18 classifier from scratch, the light arm.

    Args:
        settings: `seed` decides the weights; precision and memory_format count.
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

    model = seeded(build_classifier, settings, device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=CLASSIFIER_LEARNING_RATE, momentum=CLASSIFIER_MOMENTUM
    )

    def loss_of(logits: object, batch: dict) -> object:
        return torch.nn.functional.cross_entropy(logits.float(), batch["label"])

    return train(settings, device, model, optimizer, loss_of, "classifier")


def timed(settings: Settings, device: object) -> Step:
    """Occupy the emulated device for as long as its profile says; nothing is learnt.

    A loss in loops is host work, and real: it stands between the forward pass, beside which the
    host may run it, and the backward pass, which cannot be queued before.

    Args:
        settings: loss, batch_size and seed count.
        device: a part of `DEVICES` with `compute(images)`.

    Returns:
        A step on any batch with `sample_id`, and with boxes where the loss loops over them; its
        class scores are drawn once, and it has no backward and no loss.

    Raises:
        ValueError: the device is a real one.
    """
    if not _is_emulated(device):
        raise ValueError(
            f"step must be detector or classifier on {device.torch_device}, got 'timed'; "
            'set step="detector", or device="emulated"'
        )
    forward = partial(_compute, device)
    if settings.loss != VECTORIZED:
        loss_of = partial(pick(LOOPS, settings.loss, "loss"), wait=device.synchronize)
        work = host_loss(loss_of, settings.batch_size, settings.seed)

        def forward(batch: dict) -> None:
            _compute(device, batch, FORWARD_SHARE)
            work(mask_of(batch))
            _compute(device, batch, 1 - FORWARD_SHARE)

    return Step(
        forward=forward,
        backward=None,
        loss=lambda: None,
        batch=None,
        logits=partial(_drawn_logits, settings.batch_size, settings.seed),
        state=_classifier_at_rest,
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


def label(settings: Settings, accelerator: str) -> dict[str, str]:
    """Label a row whose training is not the plain one.

    Args:
        settings: complete.
        accelerator: the device's label.

    Returns:
        loss: what it calls in a step, counted now; precision: in what it computes.  Nothing for
        what is as ever.
    """
    labels = {}
    if settings.loss in LOOPS and settings.step != "nothing":
        labels["loss"] = _say_calls(settings, accelerator)
    if settings.precision == "amp":
        labels["precision"] = f"amp ({say_dtype(settings.device)})"
    return labels


def _say_calls(settings: Settings, accelerator: str) -> str:
    on_gpu = accelerator.startswith("cuda")
    # Threads call what the loops call, but a count sees one thread.
    counted = "loops" if settings.loss == "threads" else settings.loss
    calls, kernels = count_calls(LOSSES[counted], settings.batch_size, on_gpu=on_gpu)
    fewest, fewest_kernels = count_calls(LOSSES[VECTORIZED], settings.batch_size, on_gpu=on_gpu)
    words = f"{calls:,} operator calls a step at {TYPICAL_BOXES} boxes an image"
    words += f" ({VECTORIZED}: {fewest:,})"
    if on_gpu:
        words += f", {kernels:,} kernels ({fewest_kernels:,})"
    if accelerator.startswith("emulated"):
        words += ", the host's cost only"
    return words


def _is_emulated(device: object) -> bool:
    return hasattr(device, "compute")


def _check_real(name: str, device: object) -> None:
    if _is_emulated(device):
        raise ValueError(
            f"step must be timed on the emulated device, got {name!r}; "
            'set step="timed", or device="cuda" or "cpu"'
        )


def _compute(device: object, batch: dict, share: float = 1) -> None:
    device.compute(share * len(batch["sample_id"]))


@cache
def _classifier_at_rest() -> dict:
    """Make a ResNet-18's weights and momentum on the host, as large as a real one's.

    No optimizer makes them: its first one takes torch four seconds in every trial.
    """
    import torch

    from labkit.parts.training.models import build_classifier

    model = build_classifier()
    weights = dict(enumerate(model.parameters()))
    momentum = {i: {"momentum_buffer": torch.zeros_like(each)} for i, each in weights.items()}
    group = {"momentum": CLASSIFIER_MOMENTUM, "params": list(weights)}
    return {"model": model.state_dict(), "optimizer": {"state": momentum, "param_groups": [group]}}


@cache
def _drawn_logits(batch_size: int, seed: int) -> object:
    import torch

    draw = torch.Generator().manual_seed(seed)
    return torch.randn((batch_size, CLASSES), generator=draw)
