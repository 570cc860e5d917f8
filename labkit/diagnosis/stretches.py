"""Times of stretches of a training's steps, by which `compare` compares two runs."""

from __future__ import annotations


class Stretches:
    """Steps and seconds of successive stretches of a training.

    A stretch begins as a single step.  Whenever there are 128 of them, neighbours are joined in
    pairs, so that a long run has few.
    """

    def __init__(self) -> None:
        self._steps, self._s = 0, 0.0
        self._ends: list[tuple[int, float]] = [(0, 0.0)]  # steps and seconds until there
        self._least_steps = 1

    def add(self, steps: int, s: float) -> None:
        """Add the steps that ended last.

        Args:
            steps: how many.
            s: their seconds, waiting included.
        """
        self._steps, self._s = self._steps + steps, self._s + s
        if self._steps - self._ends[-1][0] < self._least_steps:
            return
        self._ends.append((self._steps, self._s))
        if len(self._ends) > 128:  # `analysis.two_runs` joins them to 16
            self._ends, self._least_steps = self._ends[::2], 2 * self._least_steps

    def pairs(self) -> tuple[tuple[int, float], ...]:
        """Return steps and seconds of each stretch; the last one, which goes on, is left out."""
        return tuple(
            (steps - before, float(f"{s - before_s:.6g}"))
            for (before, before_s), (steps, s) in zip(self._ends, self._ends[1:])
        )
