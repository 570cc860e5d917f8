"""Training for real: a model's weights, in what it computes, and the order of its numbers.

    batch ─▶ layout ─▶ model, in 32 or mixed with 16 bits ─▶ loss in float32 ─▶ gradients, optimizer

Main trap: float16's gradients vanish unless the loss is scaled, and a scaled step waits for the
device to find out whether one overflowed; bfloat16 has float32's range and needs neither.
Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from labkit.parts.training.step import Step
from labkit.settings import Settings


def train(
    settings: Settings,
    device: object,
    model: object,
    optimizer: object,
    loss_of: Callable[[object, dict], object],
    batch: str,
) -> Step:
    """Make a step of a model, an optimizer and a loss.

    Args:
        settings: precision and memory_format count.
        device: a part of `DEVICES` with a `torch_device`, where the model lies.
        model: from `seeded`.
        optimizer: of the model's parameters.
        loss_of: (what the model returned, batch) -> loss, a 0-dim float32 tensor.
        batch: what the step needs, a name in `contracts.BATCHES`.
    """
    import torch

    first = last = last_logits = None
    kind, layout = device.torch_device.type, _layout(settings)
    in_precision, scaler = nullcontext, None
    if settings.precision == "amp":
        dtype = _amp_dtype(kind)
        in_precision = partial(torch.autocast, kind, dtype=dtype)
        if dtype == torch.float16:  # its gradients would vanish; finding that out waits each step
            scaler = torch.amp.GradScaler(kind)

    def forward(batch: dict) -> object:
        nonlocal first, last, last_logits
        image = batch["image"].contiguous(memory_format=layout)
        with in_precision():
            outputs = model(image)
        loss = loss_of(outputs, batch)  # in float32, in any precision
        last = loss.detach()  # the number without the graph, still on the device
        first = last if first is None else first
        if isinstance(outputs, torch.Tensor):  # a detector's maps are too large to be kept
            last_logits = outputs.detach()
        return loss

    def backward(loss: object) -> None:
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
        batch=batch,
        first_loss=lambda: None if first is None else first.item(),
        logits=lambda: None if last_logits is None else last_logits.float(),
        state=partial(state_of, model, optimizer),
    )


def state_of(model: object, optimizer: object) -> dict:
    """Give what a checkpoint holds, not copied."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def seeded(build: Callable[[], object], settings: Settings, device: object) -> object:
    """Build a model on the CPU, so that every device and variant starts from the same weights.

    Args:
        build: makes the model, drawing its weights.
        settings: seed and memory_format count.
        device: a part of `DEVICES` with a `torch_device`, to which it is then moved.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed CUDA's generators, which are not forked here.
        torch.default_generator.manual_seed(settings.seed)
        model = build()
    return model.to(device.torch_device, memory_format=_layout(settings))


def _layout(settings: Settings) -> object:
    import torch

    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    return layouts[settings.memory_format]


def _amp_dtype(device_type: str) -> object:
    """bfloat16, or float16 on GPUs that do not compute in it: that needs its loss scaled."""
    import torch

    if device_type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


def say_dtype(device_type: str) -> str:
    """Name what mixed precision mixes in on a device: "bfloat16" or "float16, loss scaled"."""
    name = str(_amp_dtype(device_type)).removeprefix("torch.")
    return f"{name}, loss scaled" if name == "float16" else name
