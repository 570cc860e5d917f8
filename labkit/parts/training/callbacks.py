"""Callbacks: what a training loop does between its steps, while the device may be idle; metrics.

    step n ─▶ every N steps: metrics ─ report ─ checkpoint ─ progress bar ─▶ step n + 1
                                                  last of the epoch ─▶ finish ─▶ end

Steps are counted through all epochs of a trial, so that every 100th also occurs where epochs are
shorter.  An epoch waits for what was started in the background during it.  The simulated GPU has
no weights and no loss: its checkpoints hold a ResNet-18's weights in host memory, and reports show
a dash for the loss.

Of the metrics, `loops` reads every sample on the host, as `.item()` per image does; `vectorized`
counts on the device and reads once, at the end.  It does not use `torch.bincount`, which on CUDA
reads the largest number and so waits for the device.  Importing this module does not import torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.contracts import Chosen, Device, Part
from labkit.parts.training.checkpoint import CHECKPOINT_WRITERS, checkpoint_folder
from labkit.parts.training.reporting import PROGRESS, Reports
from labkit.parts.training.step import Step
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Callback:
    """A function that is called every so many steps."""

    every: int
    call: Callable[[int, Mapping], None]
    """Takes the number, from 1, and the batch of the step that was launched last."""
    finish: Callable[[], object] = lambda: None
    """Waits, at the end of an epoch, for what still runs in the background."""


class Callbacks:
    """Everything that is called between the steps of one trial.

    Args:
        callbacks: in the order in which they are called.
        is_simulated: the device is simulated; only the host's part is real.
    """

    def __init__(self, *callbacks: Callback, is_simulated: bool = False) -> None:
        self._callbacks, self._is_simulated = callbacks, is_simulated
        self._step = 0

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def after_step(self, batch: Mapping) -> None:
        """Count a step and call what is due.

        Raises:
            OSError: a checkpoint or a report was not written.
        """
        self._step += 1
        for callback in self._callbacks:
            if self._step % callback.every == 0:
                callback.call(self._step, batch)

    def finish(self) -> None:
        """Wait for what still runs in the background."""
        for callback in self._callbacks:
            callback.finish()

    def label(self) -> dict[str, str]:
        """Return the row's label: what is simulated."""
        if not (self._is_simulated and self):
            return {}
        return {"training loop": "host's part real, device's part simulated"}


NONE = Callbacks()


def open_callbacks(settings: Settings, device: Device, step: Step, stack: ExitStack) -> Callbacks:
    """Open the callbacks that the settings ask for; none by default.

    Args:
        settings: complete and checked.
        device: runs the steps.
        step: provides loss, class scores and the state to save.
        stack: closes everything that is opened here.

    Raises:
        Skip: this machine lacks what they need, such as the folder for checkpoints.
    """
    # Reading a result waits for a real device; the simulated one needs a call.
    wait = device.synchronize if device.is_simulated else (lambda: None)

    def loss() -> float | None:
        wait()
        return step.loss()

    opened = []
    if settings.metrics != "none":
        opened.append(_evaluation(settings, step, wait))
    if settings.report_every:
        opened.append(_reports(settings, loss, stack))
    if settings.checkpoint_every:
        opened.append(_checkpoints(settings, step, wait, stack))
    if settings.progress_bar != "none":
        bar = PROGRESS[settings.progress_bar]()
        stack.callback(bar.close)

        def update(number: int, batch: Mapping) -> None:
            bar.update(loss() if bar.shows_loss else None)

        opened.append(Callback(every=1, call=update))
    return Callbacks(*opened, is_simulated=device.is_simulated)


def _evaluation(settings: Settings, step: Step, wait: Callable[[], None]) -> Callback:
    totals = Totals(wait=wait)

    def evaluate(number: int, batch: Mapping) -> None:
        METRICS[settings.metrics](step.logits(), batch["label"], totals)

    return Callback(every=settings.metrics_every, call=evaluate, finish=totals.accuracy)


def _reports(settings: Settings, loss: Callable[[], float | None], stack: ExitStack) -> Callback:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-reports-"))
    reports = Reports(settings.report_to, Path(folder))
    stack.callback(reports.close)

    def report(number: int, batch: Mapping) -> None:
        value = loss() if reports.shows_loss else None
        reports.write(f"step {number} loss {'-' if value is None else f'{value:.4f}'}")

    return Callback(every=settings.report_every, call=report, finish=reports.finish)


def _checkpoints(
    settings: Settings, step: Step, wait: Callable[[], None], stack: ExitStack
) -> Callback:
    path = checkpoint_folder(settings.checkpoint_to) / ".labkit-checkpoint.pth"
    stack.callback(path.unlink, missing_ok=True)
    writer = CHECKPOINT_WRITERS[settings.checkpoint_writer](path)
    stack.callback(writer.close)

    def save(number: int, batch: Mapping) -> None:
        wait()
        writer.save({"step": number, **step.state()})

    # The first save allocates memory that later ones use again; it takes ten times as long.
    writer.save({"step": 0, **step.state()})
    writer.finish()
    return Callback(every=settings.checkpoint_every, call=save, finish=writer.finish)


# --- metrics --------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Totals:
    """Counts so far."""

    wait: Callable[[], None] = lambda: None
    """Called before a number is read; the simulated GPU waits there."""
    confusion: torch.Tensor | None = None
    """(classes, classes) int64, true class by predicted class; None: nothing counted."""

    def accuracy(self) -> float | None:
        """Read the counts, and return the share of samples that were classified correctly."""
        if self.confusion is None:
            return None
        self.wait()
        confusion = self.confusion.cpu()
        return (confusion.trace() / confusion.sum()).item()


def count_in_loops(logits: torch.Tensor, labels: torch.Tensor, totals: Totals) -> None:
    """Count sample by sample on the host.

    Args:
        logits: (B, classes) float32.
        labels: (B,) int64, on the same device.
        totals: gets the batch's counts.
    """
    import torch

    if totals.confusion is None:
        totals.confusion = torch.zeros(logits.shape[1], logits.shape[1], dtype=torch.int64)
    for scores, label in zip(logits, labels):
        totals.wait()
        predicted = scores.argmax().item()
        totals.wait()
        totals.confusion[label.item(), predicted] += 1


def count_at_once(logits: torch.Tensor, labels: torch.Tensor, totals: Totals) -> None:
    """Count the whole batch on its device, without reading a number.

    Args:
        logits: (B, classes) float32.
        labels: (B,) int64, on the same device.
        totals: gets the batch's counts.
    """
    import torch

    classes = logits.shape[1]
    if totals.confusion is None:
        totals.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=logits.device)
    cell = labels * classes + logits.argmax(1)
    totals.confusion.view(-1).index_add_(0, cell, torch.ones_like(cell))


class Metrics(Part):
    """How accuracy and confusion matrix are kept: (logits, labels, totals) -> None."""

    def why_not(self, chosen: Chosen) -> str:
        """Refuse to count without labels; see `Part.why_not`."""
        settings = chosen.settings
        if settings.metrics == "none" or chosen.preprocessor.batch == "classifier":
            return ""
        fitting = chosen.names("preprocessor", lambda each: each.batch == "classifier")
        raise ValueError(
            f"metrics must be none for the preprocessor {settings.preprocessor}, whose batches "
            f"have no labels, got {settings.metrics!r}; choose preprocessor {' or '.join(fitting)}"
        )


METRICS: dict[str, Callable[[torch.Tensor, torch.Tensor, Totals], None] | None] = {
    "none": None,
    "loops": count_in_loops,
    "vectorized": count_at_once,
}
