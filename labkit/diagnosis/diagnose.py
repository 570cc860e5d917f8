"""Diagnosis of the user's own loader and step: what limits the training, and what would help.

    loader, step ─▶ collect ─▶ bounds ─▶ trials ─▶ Diagnosis

The loader is copied and iterated over, never changed.  The step is called some hundred times.
"""

from __future__ import annotations

import glob  # a whole pattern, absolute ones too, which Path.glob refuses
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.statistics import paired_interval
from labkit.contracts import SystemClock
from labkit.diagnosis import loaders, text
from labkit.diagnosis.measure import Collected, Loop, collect, in_one_line
from labkit.diagnosis.predict import Measured, measured_of
from labkit.diagnosis.remedies import (
    SHARED_MEMORY,
    Remedy,
    bottleneck_of,
    for_shared_memory,
    in_order,
    propose,
    worth_it,
)  # fmt: skip
from labkit.diagnosis.timeline import Timeline, record_timeline
from labkit.diagnosis.verify import try_remedies
from labkit.files import bar
from labkit.machine import shared_memory
from labkit.parts.devices import EmulatedDevice
from labkit.parts.training.callbacks import open_callbacks
from labkit.pipeline import build
from labkit.runs.device_speed import complete_with_device
from labkit.runs.staging import staged
from labkit.settings import Settings

if TYPE_CHECKING:
    import pandas as pd
    import torch

BUDGET_S, LEAST_BUDGET_S = 50.0, 5.0
IMAGES = 400  # of an epoch of settings, unless set
# EVIDENCE 1: below, between and above these shares of the time.
MODERATELY, HIGHLY = 0.05, 0.20
WORDS = ("not input-bound", "moderately input-bound", "highly input-bound")
FULL_SHARE = 0.1  # of /dev/shm is free: too little for a batch
ARMS = {
    "resident": "computing alone (batches are kept)",
    "alone": "loading alone",
    "warm": "loading and computing",
    "cold": "loading and computing, files evicted before",
}


def diagnose(
    loader: Iterable | Settings,
    step: Callable[[object], object] | None = None,
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    files: Iterable[Path | str] | None = None,
    device: EmulatedDevice | None = None,
    budget_s: float = BUDGET_S,
    results: Path | str = "results",
    progress: bool = True,
) -> Diagnosis:
    """Find what limits the speed of a training; try what helps, and bound what cannot be tried.

    Args:
        loader: any iterable of batches: dicts, tuples, nested; most is found of torch's DataLoader.
            Or settings of one of labkit's own pipelines, which has its step, files and device.
        step: called with a batch; may train a model, which is changed by some hundred steps on few
            batches unless it is given as `model`.
        model: what the step trains; its state is restored afterwards.  Where the device is the
            limit, bf16 autocast, channels_last and torch.compile are tried.
        optimizer: its state is restored, too.
        files: what an epoch reads; epochs are measured cold only where they are given.
        device: an emulated device that the step uses; CUDA and the CPU are found.
        budget_s: seconds of measuring, at least five; some seconds come on top.
        results: folder that holds the measured speed of an emulated device, of settings.
        progress: show a bar.

    Returns:
        Verdict, bottleneck, ceiling and remedies.  Where loader or step raised, what was measured
        until then, and the error.

    Raises:
        ValueError: an argument has a wrong value.
    """
    with ExitStack() as stack:
        if isinstance(loader, Settings):
            whole = complete_with_device(loader, results, progress=progress)
            loader, step, files, device = _open_pipeline(whole, stack)
        paths = _checked(loader, step, device, files, budget_s)
        say = stack.enter_context(_bar(progress))
        stack.enter_context(loaders.random_state_kept(loader))
        stack.enter_context(loaders.training_state_kept(model, optimizer))
        if loaders.is_data_loader(loader):  # a copy, so that no worker outlives the measurement
            loader = stack.enter_context(loaders.copied(loader))
        loop = Loop(loader, step, model=model)
        found = collect(loop, files=paths, device=device, budget_s=budget_s, say=say)
        result = conclude(found)
        if result.proposed and not found.broken:
            cold = paths if result.measured.now.fetch_s else ()
            result = conclude(found, try_remedies(found, result.proposed, cold, budget_s, say))
    return result


def _checked(
    loader: object,
    step: object,
    device: object,
    files: Iterable[Path | str] | None,
    budget_s: float,
) -> list[Path]:
    loaders.check_loader(loader)
    if not callable(step):
        raise ValueError(
            f"step must be a function of a batch, got {step!r}; "
            "put the body of your training loop into one"
        )
    if device is not None and not isinstance(device, EmulatedDevice):
        raise ValueError(
            f"device must be an emulated device that the step uses, or None, got {device!r}; "
            "leave it out: CUDA and the CPU are found"
        )
    if not budget_s >= LEAST_BUDGET_S:
        raise ValueError(
            f"budget_s must be at least {LEAST_BUDGET_S:g}, got {budget_s!r}; "
            f"the default is {BUDGET_S:g}"
        )
    paths = [Path(path) for path in files or ()]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise ValueError(
            f"files must be files that can be read, got {missing[0]}"
            + (f" and {len(missing) - 1} others" if len(missing) > 1 else "")
            + "; give the paths that the dataset reads"
        )
    return paths


@contextmanager
def _bar(shown: bool) -> Iterator[Callable[[str, float], None]]:
    """Show a bar; yield a function that sets its text and the share that is done."""
    form = "{desc} {percentage:3.0f}% |{bar:20}| {elapsed}, {remaining} left{postfix}"
    with bar(total=100, desc="diagnosis", disable=not shown, bar_format=form) as drawn:

        def say(what: str, share: float) -> None:
            drawn.n = max(round(100 * share), drawn.n)
            drawn.set_postfix_str(what)  # draws it

        yield say
        say("done", 1.0)


class _Prefetched:
    """Device batches of a pipeline with a prefetcher, epoch after epoch."""

    def __init__(self, batches: Callable[[], Iterator], length: int) -> None:
        self._batches, self._length = batches, length

    def __iter__(self) -> Iterator:
        return self._batches()

    def __len__(self) -> int:
        return self._length


def _open_pipeline(settings: Settings, stack: ExitStack) -> tuple:
    """Return loader, step, files and emulated device of settings, opened in this process.

    The step is the loop of `runs.timing` without its timers.  A prefetcher's work is not in it: it
    delivers device batches and counts as the loader.
    """
    settings = replace(settings, images=settings.images or IMAGES)
    stack.enter_context(staged(settings, say=lambda line: None))
    pipeline = build(settings, SystemClock())
    device = pipeline.device
    callbacks = open_callbacks(settings, device, pipeline.step, stack)
    steps = iter(range(1, sys.maxsize))

    def step(batch: Mapping) -> None:
        loss = pipeline.forward(batch)
        if pipeline.step.backward is not None:
            pipeline.step.backward(loss)
        if callbacks:
            callbacks.after_step(batch)
        if settings.sync_every and next(steps) % settings.sync_every == 0:
            device.synchronize()

    def put_and_step(batch: Mapping) -> None:
        pinned = settings.pin_memory
        on_device = device.put(batch, pinned=pinned, non_blocking=pinned, side_stream=False)
        device.wait(on_device)
        step(on_device)

    loader = pipeline.loader
    files = pipeline.source.files if settings.cache == "cold" else ()
    emulated = device if device.emulated else None
    if not pipeline.parts.traits.prefetches:
        return loader, put_and_step, files, emulated
    prefetched = _Prefetched(lambda: iter(pipeline.batches(loader, device)), len(loader))
    return prefetched, step, files, emulated


# --- conclusions ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Share:
    """Mean share of an epoch's time over blocks, with its 95 % interval."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None:
            return units.percent(self.mean)
        return f"{units.percent(self.mean)} [{units.percent(self.low)}, {units.percent(self.high)}]"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found; shows itself on one screen."""

    verdict: str = "not measured"
    """How much the training waits for its input: not, moderately or highly input-bound."""
    bottleneck: str = ""
    """What to remove first; "compute" where loading is not the bottleneck, "" where unknown."""
    ceiling: float | None = None
    """Normalized time of an epoch with a loader that takes no time."""
    remedies: tuple[Remedy, ...] = ()
    """At most five that gain something; the best of the bottleneck first."""
    proposed: tuple[Remedy, ...] = ()
    """All that might have gained something, those that were tried in vain as well."""
    stalls: Mapping[str, Share]
    """input, and its parts preparation and fetch -> share of an epoch."""
    notes: tuple[str, ...]
    broken: str
    """What ended the measurement early; "" where nothing did."""
    measured: Measured | None = None
    collected: Collected

    def __repr__(self) -> str:
        return "\n".join(text.screen(self))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    def details(self) -> str:
        """Return what the screen rests on: every arm, every part of a batch, what did not help."""
        return "\n".join(text.details(self))

    def table(self) -> pd.DataFrame:
        """Return a row per arm: step_s, epoch_s, and CPU seconds of a step, cpu_s."""
        import pandas as pd

        length, rows = loaders.count_batches(self.collected.loop.loader), {}
        for arm, title in ARMS.items():
            if stretches := self.collected.of(arm):
                epochs_s = [stretch.of_epoch(length) for stretch in stretches]
                rows[title] = (
                    fmean(s.step_s for s in stretches),
                    None if length is None or arm == "resident" else fmean(epochs_s),
                    fmean(s.cpu_s for s in stretches),
                )
        return pd.DataFrame.from_dict(rows, orient="index", columns=["step_s", "epoch_s", "cpu_s"])

    def stages(self) -> pd.DataFrame:
        """Return a row per part of a batch's time: name, kind, seconds, share."""
        import pandas as pd

        rows = self.measured.rows if self.measured else ()
        return pd.DataFrame([vars(r) for r in rows], columns=["name", "kind", "seconds", "share"])

    @cached_property
    def timeline(self) -> Timeline:
        """Device, cores, disk and host over some more seconds of the loop, run when first read."""
        loop = self.collected.loop
        if loop.is_one_shot:  # nothing is left to run
            return Timeline(duration_s=0.0)
        with ExitStack() as stack:
            stack.enter_context(loaders.random_state_kept(loop.loader))
            loader = loop.loader
            if loaders.is_data_loader(loader):
                loader = stack.enter_context(loaders.copied(loader))
            return record_timeline(loader, loop.step, device=loop.device.emulated)


def conclude(found: Collected, proposed: tuple[Remedy, ...] | None = None) -> Diagnosis:
    """Return the conclusions from what was measured, however much that is.

    Args:
        found: what was measured.
        proposed: remedies, as far as they were tried; bounds of all unless given.
    """
    stages = found.stages
    notes = (*found.notes, *(stages.notes if stages else ()))
    if stages and stages.error:
        notes += (f"looking into a worker ended early: {in_one_line(stages.error)}",)
    broken_by, stalls = _broken_by(found), _stalls(found)
    told = {"stalls": stalls, "notes": notes, "broken": found.broken, "collected": found}
    if broken_by:
        loop = found.loop
        batch = loop.resident[0] if loop.resident else None
        remedies = for_shared_memory(loop.loader, batch)
        return Diagnosis(bottleneck=broken_by, remedies=remedies, **told)
    if not all(found.of(arm) for arm in ("warm", "alone", "resident")):
        return Diagnosis(**told)
    measured = measured_of(found)
    proposed = propose(measured) if proposed is None else proposed
    gains = worth_it(proposed)
    bottleneck = bottleneck_of(measured, gains)
    return Diagnosis(
        verdict=_word(stalls["input"]),
        bottleneck=bottleneck,
        ceiling=measured.ceiling,
        remedies=in_order(gains, bottleneck),
        proposed=proposed,
        measured=measured,
        **told,
    )


def _broken_by(found: Collected) -> str:
    """Return "shared memory" where its lack ended the measurement, else ""."""
    if not found.broken or not getattr(found.loop.loader, "num_workers", 0):
        return ""
    words = ("shared memory", "bus error", "no space left on device", "shm")
    # A worker without room for a batch writes that to its stderr, loses the batch, and stalls.
    if any(word in found.broken.lower() for word in words) or _lacks_shared_memory(found.loop):
        return SHARED_MEMORY
    return ""


def _lacks_shared_memory(loop: Loop) -> bool:
    """Return whether the batches that workers prepare ahead need more than /dev/shm has."""
    loader, usage = loop.loader, shared_memory.usage()
    if usage is None:
        return False
    ahead = loader.num_workers * (loader.prefetch_factor or loaders.DEFAULT_PREFETCH_FACTOR)
    return (ahead + 1) * loop.batch_bytes > usage.total or usage.free < FULL_SHARE * usage.total


def _stalls(found: Collected) -> dict[str, Share]:
    """Return what preparing and fetching add to an epoch, comparing arms block by block."""
    warm, resident, cold = found.of("warm"), found.of("resident"), found.of("cold")
    length = loaders.count_batches(found.loop.loader)
    steps = length or 1
    shares: dict[str, list[float]] = {"input": [], "preparation": [], "fetch": []}
    for number in range(min(len(warm), len(resident))):
        resident_s = resident[number].step_s * steps
        warm_s = warm[number].of_epoch(length)
        cold_s = cold[number].of_epoch(length) if number < len(cold) else warm_s
        shares["input"].append((cold_s - resident_s) / cold_s)
        shares["preparation"].append((warm_s - resident_s) / cold_s)
        shares["fetch"].append((cold_s - warm_s) / cold_s)
    if not cold:
        del shares["fetch"]
    return {name: _interval(values) for name, values in shares.items() if values}


def _interval(values: Sequence[float]) -> Share:
    low, high = paired_interval(values) if len(values) > 1 else (None, None)
    return Share(mean=fmean(values), low=low, high=high)


def _word(share: Share) -> str:
    """Return how input-bound a training is, as far as the whole interval agrees."""
    ends = (share.mean,) if share.low is None else (share.low, share.high)
    low, *_, high = sorted(sum(end >= limit for limit in (MODERATELY, HIGHLY)) for end in ends * 2)
    return WORDS[low] if low == high else f"between {WORDS[low]} and {WORDS[high]}"


# --- loader and step named in a shell ---------------------------------------------------------

ARGUMENTS = ("loader", "step", "files", "device", "model", "optimizer")


def load_target(name: str) -> dict[str, object]:
    """Call a function that the user named, and return the arguments of `diagnose`.

    Args:
        name: module:function; the module may be in the working directory.

    Raises:
        ValueError: there is no such function, or it returns something else.
    """
    # A shell's command does not look where it is called, unlike python -m.
    if "" not in sys.path:
        sys.path.insert(0, "")
    function, why = None, ""
    try:
        function = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        why = f" ({error})"
    if not callable(function):
        raise ValueError(
            f"target must be module:function, got {name!r}{why}; "
            "such as train:parts, in the folder that holds train.py"
        )
    returned = function()
    if isinstance(returned, tuple) and len(returned) == 2:
        returned = dict(zip(ARGUMENTS, returned))
    if not isinstance(returned, Mapping) or not set(ARGUMENTS[:2]) <= set(returned) <= set(
        ARGUMENTS
    ):
        raise ValueError(
            f"{name} must return (loader, step), or a dict of {', '.join(ARGUMENTS)}, of which "
            f"those after step may be missing, got {loaders.brief(returned)}"
        )
    return dict(returned)


def find_files(pattern: str) -> list[Path]:
    """Return the files that match a pattern, in order; ** matches folders.

    Raises:
        ValueError: there are none.
    """
    # Path.glob refuses absolute patterns.
    names = glob.glob(pattern, recursive=True)  # noqa: PTH207
    found = [path for path in map(Path, sorted(names)) if path.is_file()]
    if not found:
        raise ValueError(f"files must match at least one file, got {pattern!r}")
    return found
