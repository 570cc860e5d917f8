"""Diagnosis of a person's own loader and step: one screen that says what to do, and why.

    loader, step ─▶ collect ─▶ conclude ─▶ (verify) ─▶ Diagnosis

Main trap: the loader is somebody's.  It is iterated over and copied, never changed; the step is
called some hundred times, and its model learns from few batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from labkit import files
from labkit.diagnosis import arms
from labkit.diagnosis.collect import collect
from labkit.diagnosis.conclusion import Diagnosis, conclude
from labkit.parts.devices import EmulatedDevice
from labkit.settings import Settings

BUDGET_S = 50.0
LEAST_BUDGET_S = 5.0


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

            result = replace(result, remedies=verified(result, budget_s, say))
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


class _Bar:
    """A bar that goes from 0 to 1 with what is measured beside it."""

    def __init__(self, shown: bool) -> None:
        self._bar = files.bar(
            total=100,
            desc="diagnosis",
            disable=not shown,
            bar_format="{desc} {percentage:3.0f}% |{bar:20}| {elapsed}, {remaining} left{postfix}",
        )

    def __enter__(self) -> Callable[[str, float], None]:
        return self._say

    def __exit__(self, *_: object) -> None:
        self._say("done", 1.0)
        self._bar.close()

    def _say(self, what: str, share: float) -> None:
        self._bar.n = max(round(100 * share), self._bar.n)
        self._bar.set_postfix_str(what)  # draws it
