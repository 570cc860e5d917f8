"""What a diagnosis measured, before anything is concluded from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from labkit.diagnosis.model import Parts, Work, simulate

# Of an epoch: less waiting is none, and its measure would be noise.
LEAST_WAIT = 0.03
MOST_OFF = 2.0


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
        ratio = self._ratio(simulate(replace(self.parts, **changes)).epoch_s)
        if self.cold_s is None or self.warm_s is None:
            return ratio
        return (ratio * self.warm_s + self.cold_s - self.warm_s) / self.cold_s

    def _ratio(self, changed_s: float) -> float:
        """Compare a simulated epoch with the one that was measured.

        Where the simulation waits less for batches than was measured, or more, what is left of
        that waiting is as much less or more: the workers were in each other's way.
        """
        now_s = simulate(self.parts).epoch_s
        nothing = Work(wait_s=0.0, cpu_s=0.0)
        free = {"works": (nothing,), "send_s": 0.0, "take_s": 0.0, "startup_s": 0.0}
        computing_s = simulate(replace(self.parts, **free)).epoch_s
        waited_s = now_s - computing_s
        if self.warm_s is None or waited_s < LEAST_WAIT * now_s or changed_s < computing_s:
            return changed_s / now_s
        more = min(max((self.warm_s - computing_s) / waited_s, 1 / MOST_OFF), MOST_OFF)
        return (computing_s + more * (changed_s - computing_s)) / (computing_s + more * waited_s)

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
