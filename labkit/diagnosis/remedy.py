"""Remedy: one change to a training, and what it is expected to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change, and what it is expected to do."""

    name: str
    bottleneck: str
    """What it removes."""
    predicted: float
    """Normalized time of an epoch: the time with it ÷ the time without."""
    reason: str
    change: str
    """What to write, exactly."""
    knobs: Mapping[str, object] = field(default_factory=dict)
    """What the lab can turn itself to try it; empty: it cannot."""
    at_most: bool = False
    """Whether the prediction is a bound: as if the thing took no time at all."""
    measured: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
