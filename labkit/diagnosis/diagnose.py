"""Diagnosis of a person's own loader and step: one screen that says what to do, and why.

    collect ─▶ stall shares, verdict word ─▶ remedies by predicted gain ─▶ (verify) ─▶ Diagnosis

Main trap: "nothing to gain" is an answer.  A loader that could be made free for a gain of two
percent is left alone, however its settings look.

Source: EVIDENCE 1, "Stalls", for shares and words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from labkit import progress as bars
from labkit import units
from labkit.diagnosis import arms, knobs
from labkit.diagnosis.assemble import measured_of
from labkit.diagnosis.collect import Collected, collect, length
from labkit.diagnosis.measured import Measured
from labkit.diagnosis.model import simulate
from labkit.diagnosis.remedies import Remedy, bottleneck_of, propose
from labkit.diagnosis.timeline import Timeline, record_timeline
from labkit.lines import Lines
from labkit.parts.devices import EmulatedDevice
from labkit.settings import Settings
from labkit.statistics import ALPHA, paired_interval

if TYPE_CHECKING:
    import pandas as pd

BUDGET_S = 50.0
LEAST_BUDGET_S = 5.0
# EVIDENCE 1: below, between and above these shares of the time.
MODERATELY, HIGHLY = 0.05, 0.20
WORDS = ("not input-bound", "moderately input-bound", "highly input-bound")
# A simulation further off than this is said to be.
FITS = 0.15
NOTHING_TO_GAIN = "compute"


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of an epoch's time, of every block; the interval is at 95 %."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None:
            return units.percent(self.mean)
        return f"{units.percent(self.mean)} [{units.percent(self.low)}, {units.percent(self.high)}]"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found; shows itself as sentences."""

    verdict: str
    """How much the training waits for its input, in EVIDENCE's words."""
    bottleneck: str
    """What to remove first; "compute" where nothing is to be gained, "" where it broke off."""
    share: float | None
    """Of an epoch, what removing it is predicted to save."""
    ceiling: float | None
    """Normalized time of an epoch with a loader that takes no time."""
    remedies: tuple[Remedy, ...]
    stalls: dict[str, Share]
    """preparation, fetch -> share of an epoch."""
    notes: tuple[str, ...]
    broken: str
    """What ended the measuring before its time; "" where nothing did."""
    measured: Measured | None
    collected: Collected

    def sentences(self) -> Lines:
        """Say it all on one screen."""
        from labkit.diagnosis.words import sentences

        return Lines(sentences(self))

    def __repr__(self) -> str:
        return str(self.sentences())

    def _repr_html_(self) -> str:
        return self.sentences()._repr_html_()

    def table(self) -> pd.DataFrame:
        """Give what each arm took."""
        import pandas as pd

        from labkit.diagnosis.words import rows

        return pd.DataFrame(rows(self))

    @cached_property
    def timeline(self) -> Timeline:
        """Device, cores, disk and host over some more seconds of the loop, run when first asked."""
        loop = self.collected.loop
        if loop is None or loop.is_one_shot:  # nothing is left to run
            return Timeline(duration_s=0.0)
        with knobs.random_state_kept(loop.loader):
            return record_timeline(loop.loader, loop.run, device=loop.device.emulated)

    def stages(self) -> pd.DataFrame:
        """Give what making and sending a batch takes, stage by stage, inside a worker."""
        import pandas as pd

        from labkit.diagnosis.words import stage_rows

        return pd.DataFrame(stage_rows(self))


def diagnose(
    loader: Iterable | Settings,
    step: Callable[[object], object] | None = None,
    *,
    files: Iterable[Path | str] | None = None,
    device: EmulatedDevice | None = None,
    transfer: Callable[[object], object] | None = None,
    budget_s: float = BUDGET_S,
    verify: bool = False,
    results: Path | str = "results",
    progress: bool = True,
) -> Diagnosis:
    """Find out what holds a training back, and what would help.

    Args:
        loader: any iterable of batches: dicts, tuples, nested; torch's DataLoader tells the most.
            Or settings of a pipeline of the lab's own, which has its step, files and device.
        step: called with a batch; may train a model, which should be one to throw away: it is
            changed by some hundred steps on few batches.
        files: what an epoch reads; with them, and only then, epochs are also measured cold.
        device: an emulated device that the step uses; CUDA and the CPU are found by themselves.
        transfer: how a batch comes to the device, if that is a function of its own: step is
            then called with what it returns.
        budget_s: measure for so many seconds, at least five; some seconds come on top.
        verify: also try the remedies that the lab can apply itself, and show predicted beside
            measured; takes up to half a minute for each.
        results: folder for the run that verifies settings.
        progress: show a bar.

    Returns:
        Verdict, bottleneck, ceiling and remedies; also where loader or step raised: what was
        measured until then, and what ended it.

    Raises:
        ValueError: arguments that cannot work.
    """
    if isinstance(loader, Settings):
        return _of_settings(loader, budget_s, verify=verify, results=results, progress=progress)
    arms.iter_is_itself(loader)
    paths = _checked(step, device, transfer, files, budget_s)
    with _Bar(progress) as say:
        how = {"device": device, "transfer": transfer, "budget_s": budget_s, "say": say}
        result = conclude(collect(loader, step, files=paths, **how))
        if verify and result.remedies:
            from labkit.diagnosis.verify import verified

            result = replace(result, remedies=verified(result, say))
    return result


def _of_settings(
    settings: Settings, budget_s: float, *, verify: bool, results: Path | str, progress: bool
) -> Diagnosis:
    """Diagnose a pipeline of the lab's own; verify by an experiment in fresh processes."""
    from labkit.diagnosis import own_pipeline

    with ExitStack() as stack, _Bar(progress) as say:
        own = own_pipeline.opened(settings, stack)
        found = collect(
            own.loader, own.step, files=own.files, device=own.device, budget_s=budget_s, say=say
        )
        result = conclude(found)
    if not verify or not result.remedies:
        return result
    remedies, _ = own_pipeline.verified(
        settings, result.remedies, results=results, progress=progress
    )
    return replace(result, remedies=remedies)


def _checked(
    step: object,
    device: object,
    transfer: object,
    files: Iterable[Path | str] | None,
    budget_s: float,
) -> list[Path]:
    if not callable(step):
        raise ValueError(
            f"step must be a function of a batch, got {step!r}; "
            "put the body of your training loop into one"
        )
    if device is not None and not isinstance(device, EmulatedDevice):
        raise ValueError(
            f"device must be an emulated device that the step uses, or None, got {device!r}; "
            "leave it out: CUDA and the CPU are found by themselves"
        )
    if transfer is not None and not callable(transfer):
        raise ValueError(f"transfer must be a function of a batch or None, got {transfer!r}")
    if not budget_s >= LEAST_BUDGET_S:
        raise ValueError(
            f"budget_s must be at least {LEAST_BUDGET_S:g}, got {budget_s!r}; "
            f"the usual is {BUDGET_S:g}"
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


def conclude(found: Collected) -> Diagnosis:
    """Draw the conclusions from what was measured, however much that is."""
    notes = list(found.notes)
    whole = all(found.of(arm) for arm in ("warm", "alone", "resident"))
    if not whole:
        return Diagnosis(
            verdict="not measured",
            bottleneck=_broken_by(found.broken),
            share=None,
            ceiling=None,
            remedies=(),
            stalls=_stalls(found),
            notes=tuple(notes),
            broken=found.broken,
            measured=None,
            collected=found,
        )
    measured = measured_of(found)
    stalls = _stalls(found)
    remedies = propose(measured)
    said_s = simulate(measured.parts).epoch_s
    if len(found.loop.shapes) > 1:
        notes.append(
            f"batches came in {len(found.loop.shapes)} forms, as "
            + " and ".join(", ".join(form) for form in list(found.loop.shapes)[:2])
        )
    if abs(said_s / measured.warm_s - 1) > FITS:
        notes.append(
            f"the simulation takes {units.seconds(said_s)} for an epoch that took "
            f"{units.seconds(measured.warm_s)}: predictions may be off by as much"
        )
    bottleneck = bottleneck_of(remedies) if remedies else NOTHING_TO_GAIN
    return Diagnosis(
        verdict=_word(stalls["input"]),
        bottleneck=_broken_by(found.broken) or bottleneck,
        share=_saved(remedies, bottleneck),
        ceiling=_ceiling(found, measured),
        remedies=remedies,
        stalls=stalls,
        notes=tuple(notes),
        broken=found.broken,
        measured=measured,
        collected=found,
    )


def _saved(remedies: Sequence[Remedy], bottleneck: str) -> float:
    """Say what removing the bottleneck is predicted to save of an epoch."""
    return max((1 - r.predicted for r in remedies if r.bottleneck == bottleneck), default=0.0)


def _broken_by(broken: str) -> str:
    """Tell from an error what the bottleneck is, where it is one."""
    words = ("shared memory", "bus error", "no space left on device", "shm")
    return "shared memory" if any(word in broken.lower() for word in words) else ""


def _ceiling(found: Collected, measured: Measured) -> float:
    """Compare an epoch on kept batches with one as it is."""
    step_s = fmean(stretch.step_s for stretch in found.of("resident"))
    now_s = measured.cold_s or measured.warm_s
    return min(step_s * measured.parts.steps / now_s, 1.0)


def _stalls(found: Collected) -> dict[str, Share]:
    """Compare arms block by block: what preparing and fetching add to an epoch."""
    warm, resident, cold = found.of("warm"), found.of("resident"), found.of("cold")
    steps = length(found.loop.loader) if found.loop else None
    steps = steps or 1
    preparation, fetch, both = [], [], []
    for number in range(min(len(warm), len(resident))):
        t1 = resident[number].step_s * steps
        t3 = warm[number].of_epoch(steps)
        t2 = cold[number].of_epoch(steps) if number < len(cold) else t3
        preparation.append((t3 - t1) / t2)
        fetch.append((t2 - t3) / t2)
        both.append((t2 - t1) / t2)
    if not both:
        return {}
    found_shares = {"input": _interval(both), "preparation": _interval(preparation)}
    return found_shares | ({"fetch": _interval(fetch)} if cold else {})


def _interval(values: Sequence[float]) -> Share:
    low, high = paired_interval(values, ALPHA) if len(values) > 1 else (None, None)
    return Share(mean=fmean(values), low=low, high=high)


def _word(share: Share) -> str:
    """Say how input-bound it is, if the whole interval says so."""
    bands = [sum(value >= limit for limit in (MODERATELY, HIGHLY)) for value in _ends(share)]
    if len(set(bands)) == 1:
        return WORDS[bands[0]]
    return f"between {WORDS[min(bands)]} and {WORDS[max(bands)]}"


def _ends(share: Share) -> tuple[float, float]:
    return (share.mean, share.mean) if share.low is None else (share.low, share.high)


class _Bar:
    """A bar that goes from 0 to 1 with what is measured beside it."""

    def __init__(self, shown: bool) -> None:
        self._bar = bars.bar(
            total=100,
            desc="diagnosis",
            disable=not shown,
            bar_format="{desc} {percentage:3.0f}% |{bar:20}| {elapsed}, {remaining} left{postfix}",
        )

    def __enter__(self) -> Callable[[str, float], None]:
        return self._say

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def _say(self, what: str, share: float) -> None:
        self._bar.n = max(round(100 * share), self._bar.n)
        self._bar.set_postfix_str(what)  # draws it
