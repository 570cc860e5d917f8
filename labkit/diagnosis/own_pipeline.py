"""labkit's own pipelines under diagnosis: settings become a loader and a step, remedies settings.

    Settings ─▶ loader, step, files, device ─▶ diagnose ─▶ remedies ─▶ settings changed ─▶ run

On a pipeline of its own the lab can apply any part, so verifying is an experiment like any
other, in fresh processes.  Main trap: the step is the loop of `timing` without its timers; what
a prefetcher hides is not in it, so settings with one are taken as what delivers device batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.analysis.summary import Row
from labkit.contracts import Device, SystemClock
from labkit.diagnosis.remedies import LESS_OFTEN, Remedy
from labkit.parts.training.callbacks import open_callbacks
from labkit.pipeline import Pipeline, build
from labkit.resolve import complete_here, traits
from labkit.runs.calibration import measure_baseline
from labkit.runs.experiment import Experiment, run
from labkit.settings import MODES, Settings

if TYPE_CHECKING:
    from labkit.runs.store import StoredRun

IMAGES = 400  # of an epoch, unless set
CALIBRATED_ON = 96
AS_IS = "as it is"
BLOCKS = 4


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A pipeline as `diagnose` takes it."""

    loader: Iterable
    step: Callable[[object], object]
    files: tuple[Path, ...]
    device: Device | None
    """An emulated one; None where `diagnose` finds it by itself."""


def opened(settings: Settings, stack: ExitStack) -> Opened:
    """Open what settings describe, in this process.

    Args:
        settings: what is unset is filled in as by a quick run.
        stack: closes what was opened.

    Raises:
        ValueError: settings that cannot work.
        Skip: this machine lacks what they need.
    """
    settings = complete_here(settings, MODES["quick"])
    settings = replace(settings, images=settings.images or IMAGES)
    fewer = replace(settings, images=min(settings.images, CALIBRATED_ON))
    found = measure_baseline(fewer) if traits(vars(settings)).emulated else {}
    clock = SystemClock()
    pipeline = build(settings, clock, compute_s_per_image=found.get("compute_s_per_image"))
    callbacks = open_callbacks(settings, pipeline.device, pipeline.step, stack)
    steps = iter(range(1, 1 << 62))

    def step(batch: Mapping) -> None:
        loss = pipeline.forward(batch)
        if pipeline.step.backward is not None:
            pipeline.step.backward(loss)
        if callbacks:
            callbacks.after_step(batch)
        if settings.sync_every and next(steps) % settings.sync_every == 0:
            pipeline.device.synchronize()

    def put_and_step(batch: Mapping) -> None:
        pinned = settings.pin_memory
        on_device = pipeline.device.put(
            batch, pinned=pinned, non_blocking=pinned, side_stream=False
        )
        pipeline.device.wait(on_device)
        step(on_device)

    plain = not pipeline.parts.traits.prefetches
    return Opened(
        loader=pipeline.loader if plain else _Prefetched(pipeline),
        step=put_and_step if plain else step,
        files=pipeline.source.files if settings.cache == "cold" else (),
        device=pipeline.device if pipeline.device.emulated else None,
    )


class _Prefetched:
    """Device batches of a pipeline with a prefetcher, epoch after epoch."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def __iter__(self) -> Iterator:
        return iter(self._pipeline.batches(self._pipeline.loader, self._pipeline.device))

    def __len__(self) -> int:
        return len(self._pipeline.loader)


def applied(settings: Settings, remedy: Remedy) -> Settings | None:
    """Give the settings that apply a remedy; None where no part does, or it is applied already."""
    changes = dict(remedy.knobs)
    changes.pop("limit_threads", None)
    rules = {
        "limit threads": {"cv2_threads": 0},
        "pin memory": {"pin_memory": True},
        "synchronize less often": {"sync_every": 0},
        "save less often": {"checkpoint_every": LESS_OFTEN * settings.checkpoint_every},
        "report less often": {"report_every": LESS_OFTEN * settings.report_every},
        "vectorize host work": {"loss": "vectorized", "metrics": _vectorized(settings.metrics)},
        "faster decode": {"decoder": "simplejpeg"},
        "faster transform": {"preprocessor": _simpler(settings.preprocessor)},
        "smaller batches to send": {"preprocessor": "on_device"},
        "faster medium": {"storage": "tmpfs"},
    }
    changed = replace(settings, **changes, **rules.get(remedy.name, {}))
    return None if changed == settings else changed


def _vectorized(metrics: str) -> str:
    return metrics if metrics == "none" else "vectorized"


def _simpler(preprocessor: str) -> str:
    return "vectorized" if preprocessor.startswith("loops") else preprocessor


def verified(
    settings: Settings, remedies: tuple[Remedy, ...], *, results: Path | str, progress: bool
) -> tuple[tuple[Remedy, ...], StoredRun | None]:
    """Run the remedies that parts can apply, and write what they took beside the predictions.

    Args:
        settings: as they were diagnosed.
        remedies: as proposed.
        results: folder that takes the run; it is called `diagnosis`.
        progress: show it.

    Returns:
        The remedies, those that were run with `measured` and its interval, and the run.
    """
    tried = {remedy.name: applied(settings, remedy) for remedy in remedies}
    variants = {name: changed for name, changed in tried.items() if changed is not None}
    if not variants:
        return remedies, None
    experiment = Experiment(
        "diagnosis",
        question="Do the proposed remedies do what was predicted?",
        variants={AS_IS: settings} | variants,
        baseline=AS_IS,
    )
    done = run(experiment, results=results, blocks=BLOCKS, progress=progress)
    rows = {row.variant: row for row in done.summary.rows}
    return tuple(_with_row(remedy, rows.get(remedy.name)) for remedy in remedies), done


def _with_row(remedy: Remedy, row: Row | None) -> Remedy:
    if row is None or row.normalized_time is None:
        return remedy
    return replace(remedy, measured=row.normalized_time, ci_low=row.ci_low, ci_high=row.ci_high)
