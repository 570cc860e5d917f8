"""The training step: the work done on a batch once it is on the device.

`detector` and the classifiers train; `timed` occupies the simulated GPU; `nothing` does no work,
so that loading can be measured alone.  Importing this module does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from labkit.batches import CLASSES
from labkit.contracts import Chosen, Device, Part, as_part
from labkit.parts.training.exchange import distribute
from labkit.parts.training.loss import LOSSES, host_loss, mask_of
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch

CLASSIFIER_MOMENTUM = 0.9


@dataclass(frozen=True)
class Step:
    """What is done with each batch; `backward` takes what `forward` returned."""

    forward: Callable[[dict], object]
    """Batch of device tensors -> loss, a 0-dim float32 device tensor; None if simulated."""
    backward: Callable[[Any], None] | None = None
    """Gradients, optimizer step, gradients dropped; None where the device has no such phase."""
    loss: Callable[[], float | None] = lambda: None
    """The last loss as a number: waits for the device, so call it outside the timed region."""
    logits: Callable[[], Any] = lambda: None
    """The last class scores, (B, classes) float32 without their graph, still on the device; None
    where the step has none."""
    state: Callable[[], dict] = dict
    """What a checkpoint holds: state_dict() of model and optimizer, not copied."""
    first_loss: Callable[[], float | None] = lambda: None
    """The first loss, from untrained weights, as a number."""


def detector(settings: Settings, device: Device) -> Step:
    """Train CenterNet's res_18 from scratch on `batches.detector_batch`, with Adam.

    Args:
        settings: uses seed, loss, precision, memory_format and compile_model.
        device: where the model is; a real one.

    Source: CenterNet (Zhou et al. 2019): heat maps, box sizes and center offsets.
    """
    import torch

    from labkit.parts.training.model import Detector

    model = _seeded(Detector, settings, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.25e-4)  # as CenterNet begins
    of_maps = LOSSES[settings.loss]

    def loss_of(maps: tuple, batch: dict) -> torch.Tensor:
        return of_maps(*(one.float() for one in maps), batch)

    return _train(settings, device, model, optimizer, loss_of)


def classifier(settings: Settings, device: Device, build: str = "build_classifier") -> Step:
    """Train a classifier from scratch on `batches.classifier_batch`.

    Args:
        settings: uses seed, precision, memory_format and compile_model.
        device: where the model is; a real one.
        build: the function of `model` that makes it: a ResNet-18, or one of 0.4 million parameters,
            so few that a slow link exchanges them in some tenths of a second.

    Source: He et al. 2016, trained by SGD with momentum and cross entropy.
    """
    import torch

    from labkit.parts.training import model as models

    model = _seeded(getattr(models, build), settings, device)
    # The ResNet paper's 0.1 at batch 256, scaled linearly to the documents' batch of 32.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0125, momentum=CLASSIFIER_MOMENTUM)

    def loss_of(logits: torch.Tensor, batch: dict) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.float(), batch["label"])

    return _train(settings, device, model, optimizer, loss_of)


def timed(settings: Settings, device: Device) -> Step:
    """Occupy the simulated GPU for the time that an image takes it, without training.

    A loss in loops is real work of the host.  It runs after the forward pass is queued, beside
    which the host may run it, and before the backward pass, which cannot start earlier.  Several
    ranks' hosts meet at the end of a step, as they do to exchange gradients; their devices go on
    with what they were given.

    Args:
        settings: uses loss, batch_size, seed and ranks.
        device: the simulated one, which has `compute(images)`.

    Returns:
        A step on any batch with `sample_id`, and with boxes if the loss loops over them.  It has
        no backward and no loss; its class scores are random, drawn once.
    """
    import torch

    work = None
    if settings.loss != "vectorized":
        loss_of = partial(LOSSES[settings.loss], wait=device.synchronize)
        work = host_loss(loss_of, settings.batch_size, settings.seed)

    simulated: Any = device  # no other device has `compute`

    def forward(batch: dict) -> None:
        images = len(batch["sample_id"])
        if work is None:
            simulated.compute(images)
        else:
            # A third is the forward pass: the backward pass has two products for each of its own.
            simulated.compute(images, 1 / 3)
            work(mask_of(batch))
            simulated.compute(images, 2 / 3)
        if settings.ranks > 1:
            torch.distributed.barrier()

    return Step(
        forward=forward,
        logits=partial(_random_logits, settings.batch_size, settings.seed),
        state=_classifier_at_rest,
    )


def nothing(settings: Settings, device: Device) -> Step:
    """Do no work on any batch: the epoch takes as long as loading alone."""
    return Step(forward=lambda batch: None)


def repeated(step: Step, times: int) -> Step:
    """Return a step that trains on each batch several times."""
    if times == 1:
        return step

    def forward(batch: dict) -> object:
        for _ in range(times - 1):
            loss = step.forward(batch)
            if step.backward is not None:
                step.backward(loss)
        return step.forward(batch)

    return replace(step, forward=forward)


@dataclass(frozen=True)
class StepPart(Part):
    """What makes a training step: (settings, device) -> `Step`."""

    takes: str = ""
    """Its batch, a key of `batches.BATCHES`, where it really trains; empty: any batch."""
    is_simulated: bool = False
    """It takes the time of a simulated GPU."""
    trains_nothing: bool = False
    runs_in_ranks: bool = False
    """Several ranks can train with it: its gradients are exchanged, or it has none."""

    def why_not(self, chosen: Chosen) -> str:
        """Refuse a step that the device cannot do, or that takes other batches; see `Part`."""
        settings, on_simulated = chosen.settings, chosen.device.is_simulated
        if on_simulated and self.takes:
            raise ValueError(
                f"step must be timed on the simulated GPU, got {settings.step!r}; "
                "choose device cpu or cuda for a real step"
            )
        if self.is_simulated and not on_simulated:
            raise ValueError(
                f"step must be detector or classifier on device {settings.device}, got "
                f"{settings.step!r}"
            )
        if self.takes and chosen.preprocessor.batch != self.takes:
            fitting = chosen.names("preprocessor", lambda each: each.batch == self.takes)
            raise ValueError(
                f"preprocessor must be one of {', '.join(fitting)} for the step {settings.step}, "
                f"got {settings.preprocessor!r}"
            )
        return ""


STEPS: dict[str, Callable[[Settings, Device], Step]] = {
    "detector": StepPart(detector, takes="detector", runs_in_ranks=True),
    "classifier": StepPart(classifier, takes="classifier", runs_in_ranks=True),
    "small_classifier": StepPart(
        partial(classifier, build="build_small_classifier"), takes="classifier", runs_in_ranks=True
    ),
    "timed": StepPart(timed, is_simulated=True, runs_in_ranks=True),
    "nothing": StepPart(nothing, trains_nothing=True, runs_in_ranks=True),
}


def label(settings: Settings) -> dict[str, str]:
    """Return the row's labels of a simulated loss, of a precision, and of a compiled model."""
    labels, step = {}, as_part(StepPart, STEPS.get(settings.step))
    if settings.loss != "vectorized" and step.is_simulated:
        labels["loss"] = "in loops, the host's cost only"
    if settings.precision == "amp":
        dtype = str(_amp_dtype(settings.device)).removeprefix("torch.")
        scaled = ", loss scaled" if dtype == "float16" else ""
        labels["precision"] = f"amp ({dtype}{scaled})"
    elif settings.device == "cuda" and step.takes and _convolves_in_tf32():
        labels["precision"] = "fp32 (convolutions in TF32)"
    if settings.compile_model:
        labels["model"] = "compiled by torch.compile, before the epochs"
    return labels


def _train(
    settings: Settings,
    device: Device,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[..., torch.Tensor],
) -> Step:
    """Make a step of a model, an optimizer and a loss of (the model's outputs, batch)."""
    import torch

    model = distribute(model, settings)
    compute = _compiled(model) if settings.compile_model else model
    first = last = last_logits = None
    kind, layout = device.torch_device.type, _layout(settings)
    in_precision: Callable[[], AbstractContextManager] = nullcontext
    scaler = None
    if settings.precision == "amp":
        dtype = _amp_dtype(kind)
        in_precision = partial(torch.autocast, kind, dtype=dtype)
        if dtype == torch.float16:
            # Unscaled gradients would vanish; finding out whether one overflowed waits each step.
            scaler = torch.amp.GradScaler(kind)

    def forward(batch: dict) -> torch.Tensor:
        nonlocal first, last, last_logits
        image = batch["image"].contiguous(memory_format=layout)
        with in_precision():
            outputs = compute(image)
        loss = loss_of(outputs, batch)  # in float32, in any precision
        last = loss.detach()  # the number without the graph, still on the device
        first = last if first is None else first
        if isinstance(outputs, torch.Tensor):  # a detector's maps are too large to keep
            last_logits = outputs.detach()
        return loss

    def backward(loss: torch.Tensor) -> None:
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return Step(
        forward=forward,
        backward=backward,
        loss=lambda: None if last is None else last.item(),
        first_loss=lambda: None if first is None else first.item(),
        logits=lambda: None if last_logits is None else last_logits.float(),
        state=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    )


def _seeded(
    build: Callable[[], torch.nn.Module], settings: Settings, device: Device
) -> torch.nn.Module:
    """Build a model on the CPU, so that every device and variant starts from the same weights."""
    import torch

    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed CUDA's generators, which are not forked here.
        torch.default_generator.manual_seed(settings.seed)
        model: Any = build()  # torch types `to` without memory_format
    return model.to(device.torch_device, memory_format=_layout(settings))


def _compiled(model: torch.nn.Module) -> Callable[..., Any]:
    """Return a model that its first step compiles."""
    import torch

    # Other processes that compile would start beside the epochs, and take a core from the workers.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    return torch.compile(model)


def _layout(settings: Settings) -> torch.memory_format:
    import torch

    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    return layouts[settings.memory_format]


def _amp_dtype(device_type: str) -> torch.dtype:
    """Return bfloat16, or float16 for GPUs that do not compute in it: that needs loss scaling."""
    import torch

    if device_type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


def _convolves_in_tf32() -> bool:
    """Whether cuDNN rounds float32 inputs of convolutions, torch's default from Ampere on."""
    import torch

    # As torch.cuda.is_tf32_supported, which torch 2.6 does not have.
    has_tf32 = torch.cuda.is_bf16_supported(including_emulation=False)
    cudnn: Any = torch.backends.cudnn
    # Since torch 2.9; once it was set, reading allow_tf32 may raise.
    if hasattr(cudnn, "conv"):
        return has_tf32 and cudnn.conv.fp32_precision == "tf32"
    return has_tf32 and cudnn.allow_tf32


@cache
def _classifier_at_rest() -> dict:
    """Make a ResNet-18's weights and momentum on the host, as large as a real one's.

    No optimizer makes them: its first one takes torch four seconds in every trial.
    """
    import torch

    from labkit.parts.training.model import build_classifier

    model = build_classifier()
    weights = dict(enumerate(model.parameters()))
    momentum = {i: {"momentum_buffer": torch.zeros_like(each)} for i, each in weights.items()}
    group = {"momentum": CLASSIFIER_MOMENTUM, "params": list(weights)}
    return {"model": model.state_dict(), "optimizer": {"state": momentum, "param_groups": [group]}}


@cache
def _random_logits(batch_size: int, seed: int) -> torch.Tensor:
    import torch

    draw = torch.Generator().manual_seed(seed)
    return torch.randn((batch_size, CLASSES), generator=draw)
