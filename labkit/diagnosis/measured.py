"""What a diagnosis measured, before anything is concluded from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from labkit.diagnosis.model import Parts, Work, simulate


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of preparing a batch."""

    name: str
    """As a person knows it: a function's name."""
    kind: str
    """read, decode, transform or collate."""
    cpu_s: float
    """Per batch, on a core of its own."""
    wait_s: float
    """Per batch, without needing a core."""


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """What a person's DataLoader is set to."""

    num_workers: int
    prefetch_factor: int
    persistent_workers: bool
    pin_memory: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A pipeline's parts, and what else remedies are judged by; None is not measured."""

    parts: Parts
    stages: tuple[Stage, ...] = ()
    warm_s: float | None = None
    """An epoch from memory, or of whatever state the files were found in."""
    cold_s: float | None = None
    """An epoch after its files were evicted, where that takes longer beyond doubt."""
    knobs: Knobs | None = None
    """None: not torch's DataLoader, so nothing can be turned at it."""
    batch_bytes: int = 0
    float_share: float = 0.0
    """Of a batch's bytes, those of float32 and float64."""
    pinned_s: float | None = None
    """A copy of a batch to the device from pinned memory."""
    limited_s: float | None = None
    """The loader alone per step, each worker with one thread; beside `alone_s`."""
    alone_s: float | None = None
    """The loader alone per step, as it is."""
    worker_threads: float = 1.0
    """That each worker keeps busy, or that OpenCV would start in it."""
    host_kinds_s: Mapping[str, float] = field(default_factory=dict)
    """Kind of the step's work on the host -> seconds in a step; see `step_work`."""
    has_device: bool = False

    def predict(self, **changes: object) -> float:
        """Predict the normalized time of an epoch with some parts changed.

        What an epoch from the medium takes longer than one from memory, it still does.
        """
        ratio = simulate(replace(self.parts, **changes)).epoch_s / simulate(self.parts).epoch_s
        if self.cold_s is None or self.warm_s is None:
            return ratio
        return (ratio * self.warm_s + self.cold_s - self.warm_s) / self.cold_s

    def works_without(self, keep: float, *stages: Stage, waits_only: bool = False) -> tuple:
        """Give what batches would take with less of some stages: `keep` of each is left."""
        cpu = 1 - _share(self.stages, stages, "cpu_s") * (1 - keep)
        wait = 1 - _share(self.stages, stages, "wait_s") * (1 - keep)
        return tuple(
            Work(
                wait_s=work.wait_s * wait,
                cpu_s=work.cpu_s * (1.0 if waits_only else cpu),
                threads=work.threads,
            )
            for work in self.parts.works
        )


def _share(every: tuple[Stage, ...], some: tuple[Stage, ...], what: str) -> float:
    total = sum(getattr(stage, what) for stage in every)
    return sum(getattr(stage, what) for stage in some) / total if total else 0.0
