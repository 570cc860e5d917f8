"""Progress bars: what a training loop draws in every step, on a terminal of its own.

    step ─▶ update(loss) ─▶ tqdm ─(0.1 s since it last drew?)─▶ pseudo-terminal

`tqdm` draws ten times a second, as it does unless told otherwise.  Main trap: with a loss it draws
in every step all the same, since `set_postfix` draws at once; and a loss is a number on the host,
`.item()`, which waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from labkit.parts.training.terminal import Terminal


class Progress(Protocol):
    """Shows how far the training is."""

    def update(self, loss: float | None) -> None:
        """Count one step, and show its loss if there is one."""

    def close(self) -> None:
        """End whatever was started; more than once does no harm."""


class NoProgress:
    """Shows nothing."""

    def update(self, loss: float | None) -> None:
        """Count nothing."""

    def close(self) -> None:
        """Nothing to end."""


class TqdmBar:
    """tqdm, on a terminal of its own.

    Args:
        steps: how many there will be; None: unknown.
        every_step: draw in every step, with or without a loss.

    Raises:
        Skip: this platform has no pseudo-terminals.
    """

    def __init__(self, steps: int | None, *, every_step: bool = False) -> None:
        from tqdm import tqdm

        class Bar(tqdm):
            monitor_interval = 0  # its thread looks in every 10 s, and would outlive the bar

        self.terminal = Terminal()
        often = {"mininterval": 0, "miniters": 1} if every_step else {}
        try:
            self._bar = Bar(total=steps, file=self.terminal.file, **often)
        except BaseException:
            self.terminal.close()
            raise

    def update(self, loss: float | None) -> None:
        """Count one step as training scripts do: the loss first, then the step."""
        if loss is not None:
            self._bar.set_postfix(loss=loss)
        self._bar.update()

    def close(self) -> None:
        """Draw the bar once more and end the terminal."""
        self._bar.close()
        self.terminal.close()


PROGRESS: dict[str, Callable[[int | None], Progress]] = {
    "none": lambda steps: NoProgress(),
    "tqdm": TqdmBar,
    "tqdm_every_step": lambda steps: TqdmBar(steps, every_step=True),
}
