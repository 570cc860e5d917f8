"""Callbacks: what a training loop does beside its steps, while the device may stand idle.

    step n ─▶ every N steps: metrics ─ report ─ checkpoint ─ progress bar ─▶ step n + 1
                                                       the epoch's last ─▶ finish ─▶ end

Steps are counted through all epochs of a trial, so that every 100th comes also where epochs are
shorter.  What is written in the background belongs to the epoch it was begun in, so the epoch
waits for it.  Main trap: a step only *starts* work on the device.  Whoever needs its result, a
checkpoint, a loss, a metric, makes the host wait; on the emulated device too, which otherwise
has no weights and no loss: what is saved there is a model of the host, and losses are dashes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from labkit.contracts import Clock, Device
from labkit.parts.devices import EmulatedDevice
from labkit.parts.training import Step
from labkit.parts.training.background import in_background
from labkit.parts.training.checkpoint_folder import folder_of
from labkit.parts.training.checkpoints import SAVERS, CheckpointFailed, Saver
from labkit.parts.training.metrics import METRICS, Totals
from labkit.parts.training.progress_bar import PROGRESS
from labkit.parts.training.sinks import ReportFailed, open_sink
from labkit.settings import Settings

CHECKPOINT = ".labkit-checkpoint.pth"
HOST_ONLY = "host's part real, device's part emulated"
NOT_WRITTEN = (CheckpointFailed, ReportFailed)


@dataclass(frozen=True, kw_only=True)
class Callback:
    """One thing that is done every so many steps."""

    name: str
    every: int
    call: Callable[[int, Mapping], None]
    """Takes the number, from 1, and the batch of the step that has just been launched."""
    finish: Callable[[], object] | None = None
    """Waits, at the end of an epoch, for what is still going on in the background."""


class Callbacks:
    """What is done beside the steps of one trial.

    Args:
        callbacks: in the order in which they are called.
        go_on: whether training goes on without what cannot be written.
        emulated: whether the device is: then only what the host does and waits for is real.
    """

    def __init__(self, *callbacks: Callback, go_on: bool = False, emulated: bool = False) -> None:
        self._callbacks, self._go_on, self._emulated = callbacks, go_on, emulated
        self._step = 0
        self._done: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._why: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def after_step(self, batch: Mapping) -> None:
        """Count a step, and do what is due after it.

        Raises:
            CheckpointFailed, ReportFailed: something was not written, and training shall stop.
        """
        self._step += 1
        for callback in self._callbacks:
            if self._step % callback.every == 0:
                self._done[callback.name] += 1
                self._call(callback.name, partial(callback.call, self._step, batch))

    def finish(self) -> None:
        """Wait until nothing of it is going on any more."""
        for callback in self._callbacks:
            if callback.finish is not None:
                self._call(callback.name, callback.finish)

    def label(self) -> dict[str, str]:
        """Say what is real of it, and what was not written, for the row's labels."""
        said = [HOST_ONLY] if self._emulated and self else []
        said += [
            f"{count} of {self._done[name]} {name}s not written: {self._why[name]}"
            for name, count in self._lost.items()
        ]
        return {"training loop": "; ".join(said)} if said else {}

    def _call(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except NOT_WRITTEN as error:
            if not self._go_on:
                raise
            self._lost[name] += 1
            self._why.setdefault(name, str(error))


NONE = Callbacks()


def open_callbacks(
    settings: Settings, device: Device, step: Step, clock: Clock, stack: ExitStack
) -> Callbacks:
    """Open what the settings ask for beside the steps; nothing by default.

    Args:
        settings: complete and checked.
        device: what the steps run on; whoever needs their result waits for it.
        step: the training step; knows its loss, its class scores and what there is to save.
        clock: what savers take their times by.
        stack: closes everything that was opened, whatever happens.

    Raises:
        Skip: this machine lacks what they need, such as the folder for checkpoints.
    """
    # A real device makes the host wait where a result is read; the emulated one has to be told.
    emulated = isinstance(device, EmulatedDevice)
    wait = device.synchronize if emulated else _nothing

    def loss() -> float | None:
        wait()
        return step.loss()

    made = []
    if settings.metrics != "none":
        made.append(_evaluation(settings, step, wait))
    if settings.report_every:
        made.append(_reports(settings, loss, stack))
    if settings.checkpoint_every:
        path = folder_of(settings.checkpoint_to) / CHECKPOINT
        stack.callback(path.unlink, missing_ok=True)
        saver = SAVERS[settings.saver](path, clock=clock)
        stack.callback(saver.close)
        made.append(_checkpoints(settings, step, wait, saver))
    if settings.progress_bar != "none":
        bar = PROGRESS[settings.progress_bar](None)
        stack.callback(bar.close)

        def update(number: int, batch: Mapping) -> None:
            bar.update(loss() if settings.progress_loss else None)

        made.append(Callback(name="progress bar", every=1, call=update))
    return Callbacks(*made, go_on=settings.if_not_written == "go on", emulated=emulated)


def _evaluation(settings: Settings, step: Step, wait: Callable[[], None]) -> Callback:
    totals = Totals(wait=wait)

    def evaluate(number: int, batch: Mapping) -> None:
        METRICS[settings.metrics](step.logits(), batch["label"], totals)

    return Callback(
        name="evaluation", every=settings.metrics_every, call=evaluate, finish=totals.result
    )


def _reports(settings: Settings, loss: Callable[[], float | None], stack: ExitStack) -> Callback:
    folder = Path(tempfile.mkdtemp(prefix="labkit-reports-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    sink = open_sink(settings.report_to, folder)
    if settings.report_in_background:
        sink = in_background(sink)
    stack.callback(sink.close)

    def report(number: int, batch: Mapping) -> None:
        value = loss() if settings.report_loss else None
        sink.write(f"step {number} loss {'-' if value is None else f'{value:.4f}'}")

    return Callback(
        name="report",
        every=settings.report_every,
        call=report,
        finish=sink.finish if settings.report_in_background else None,
    )


def _checkpoints(
    settings: Settings, step: Step, wait: Callable[[], None], saver: Saver
) -> Callback:
    def save(number: int, batch: Mapping) -> None:
        wait()
        try:
            saver.finish()  # that the one before failed must not keep this one from being saved
        finally:
            saver.save({"step": number, **step.state()})

    # The first save takes the memory that all others use again: ten times as long as they.
    try:
        saver.save({"step": 0, **step.state()})
        saver.finish()
    except CheckpointFailed:
        if settings.if_not_written == "stop":
            raise
    return Callback(
        name="checkpoint", every=settings.checkpoint_every, call=save, finish=saver.finish
    )


def _nothing() -> None:
    """A real device: reading a result waits for it."""
