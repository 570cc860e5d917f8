"""Diagnosis of the user's own loader and step: what limits the training, and what would help.

    loader, step ─▶ collect ─▶ Facts ─▶ Bounds ─▶ Trials ─▶ Diagnosis

The loader is copied and iterated over, never changed.  The step is called some hundred times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from labkit.diagnosis import loaders, text
from labkit.diagnosis.bounds import Bounds, bounds_of
from labkit.diagnosis.facts import Facts
from labkit.diagnosis.measure import Loop, collect
from labkit.diagnosis.remedies import (
    SHARED_MEMORY,
    Remedy,
    for_shared_memory,
    in_order,
    propose,
    worth_it,
)  # fmt: skip
from labkit.diagnosis.thresholds import (
    FREE_SHARED_MEMORY_SHARE,
    INPUT_BOUND_SHARE,
    MODERATELY_INPUT_BOUND_SHARE,
)  # fmt: skip
from labkit.diagnosis.verify import Trials, try_remedies
from labkit.files import bar
from labkit.language import Text, shown
from labkit.machine import shared_memory
from labkit.parts.devices import SimulatedGpu

if TYPE_CHECKING:
    import pandas as pd
    import torch

BUDGET_S, LEAST_BUDGET_S = 50.0, 5.0
WORDS = ("not input-bound", "moderately input-bound", "highly input-bound")
ARMS = {
    "resident": "computing alone (batches are kept)",
    "alone": "loading alone",
    "warm": "loading and computing",
    "cold": "loading and computing, files evicted before",
}


def diagnose(
    loader: Iterable,
    step: Callable[[object], object],
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    files: Iterable[Path | str] | None = None,
    device: SimulatedGpu | None = None,
    budget_s: float = BUDGET_S,
    progress: bool = True,
) -> Diagnosis:
    """Find what limits the speed of a training; try what helps, and bound what cannot be tried.

    Args:
        loader: any iterable of batches: dicts, tuples, nested.  A torch DataLoader allows the most
            detailed diagnosis.
        step: called with a batch; may train a model, which is changed by some hundred steps on few
            batches unless it is given as `model`.
        model: what the step trains; its state is restored afterwards.  Where the device is the
            limit, bf16 autocast, channels_last and torch.compile are tried.
        optimizer: its state is restored, too.
        files: what an epoch reads; epochs are measured cold only where they are given.
        device: a simulated GPU that the step uses; CUDA and the CPU are found.
        budget_s: seconds of measuring, at least five; some seconds come on top.
        progress: show a bar.

    Returns:
        Verdict, bottleneck, ceiling and remedies.  Where loader or step raised, what was measured
        until then, and the error.

    Raises:
        ValueError: an argument has a wrong value.
        FileNotFoundError: one of the files does not exist.
    """
    loaders.check_loader(loader)
    check_step(step, device)
    check_budget(budget_s)
    paths = [Path(path).resolve(strict=True) for path in files or ()]
    if others := [path for path in paths if not path.is_file()]:
        raise ValueError(
            f"files must be files, got {others[0]}; give the paths that the dataset reads"
        )
    loop = Loop(loader, step, model=model)
    with loaders.training_state_kept(model, optimizer):
        return diagnose_loop(loop, files=paths, device=device, budget_s=budget_s, progress=progress)


def diagnose_loop(
    loop: Loop,
    *,
    files: Sequence[Path] = (),
    device: SimulatedGpu | None = None,
    budget_s: float,
    progress: bool,
) -> Diagnosis:
    """Diagnose a loop, whose loader is replaced by a copy.

    Args:
        loop: its step may train a model, which is changed.
        files: as of `diagnose`.
        device: likewise.
        budget_s: likewise.
        progress: likewise.
    """
    with ExitStack() as stack:
        say = stack.enter_context(_bar(progress))
        stack.enter_context(loaders.random_state_kept(loop.loader))
        if loaders.is_data_loader(loop.loader):  # no worker outlives the measurement
            spread = loaders.spread_over_epoch(loop.loader)
            loop.loader = stack.enter_context(loaders.copied(loop.loader, **spread))
        facts = collect(loop, files=files, device=device, budget_s=budget_s, say=say)
        bounds = bounds_of(facts)
        trials = Trials(propose(bounds) if bounds else ())
        if bounds and not facts.broken:
            cold = files if bounds.now.fetch_s else ()
            trials = try_remedies(
                loop, bounds, trials.remedies, files=cold, budget_s=budget_s, say=say
            )
    return conclude(facts, bounds, trials)


def check_step(step: object, device: object) -> None:
    """Check that a step can be called, and its device.

    Raises:
        ValueError: one of them has a wrong type.
    """
    if not callable(step):
        raise ValueError(
            f"step must be a function of a batch, got {step!r}; "
            "put the body of your training loop into one"
        )
    if not isinstance(device, SimulatedGpu | None):
        raise ValueError(
            f"device must be a simulated GPU that the step uses, or None, got {device!r}; "
            "leave it out: CUDA and the CPU are found"
        )


def check_budget(budget_s: float, default_s: float = BUDGET_S) -> None:
    """Check that there is time for a diagnosis.

    Args:
        budget_s: as of `diagnose`.
        default_s: which the message names.

    Raises:
        ValueError: there is none.
    """
    if not budget_s >= LEAST_BUDGET_S:
        raise ValueError(
            f"budget_s must be at least {LEAST_BUDGET_S:g}, got {budget_s!r}; "
            f"the default is {default_s:g}"
        )


@contextmanager
def _bar(visible: bool) -> Iterator[Callable[[str, float], None]]:
    """Show a bar; yield a function that sets its text and the share that is done."""
    left = Text("{desc} {percentage:3.0f}% |{bar:20}| {elapsed}, {remaining} left{postfix}")
    form = shown(left)
    title = shown("diagnosis")
    with bar(total=100, desc=title, disable=not visible, bar_format=form) as drawn:

        def say(what: str, share: float) -> None:
            drawn.n = max(round(100 * share), drawn.n)
            drawn.set_postfix_str(shown(what))  # draws it

        yield say
        say("done", 1.0)


# --- conclusions ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The result of a diagnosis; its text fits on one screen."""

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
    facts: Facts
    """What was measured."""
    bounds: Bounds | None = None
    """What follows from it; None where too little was measured."""
    failed: tuple[str, ...] = ()
    """Errors of the user's code in parts that the other measurements did not need."""
    broken: str = ""
    """What ended the measurement early; "" where nothing did."""

    def __repr__(self) -> str:
        return text.screen(self)

    def details(self) -> str:
        """Return what the screen rests on: every arm, every part of a batch, what did not help."""
        return text.details(self)

    def as_json(self) -> dict[str, Any]:
        """Return the conclusions as JSON holds them: numbers, strings, lists and dicts."""
        batch, m = self.facts.batch, self.bounds
        return {
            "verdict": self.verdict,
            "bottleneck": self.bottleneck,
            "broken": self.broken,
            "waiting_share": None if self.ceiling is None else 1 - self.ceiling,
            "waiting_share_interval": m.stalls() if m and self.ceiling is not None else None,
            "samples_per_s": max(batch.samples, 1) * m.steps / m.epoch_s if m else None,
            "unit": batch.unit,
            "device": self.facts.device,
            "remedies": [
                {
                    "name": one.name,
                    "bottleneck": one.bottleneck,
                    "reason": one.reason,
                    "change": one.change,
                    "normalized_time": one.normalized_time,
                    "interval": [one.ci_low, one.ci_high],
                    "is_measured": one.measured is not None,
                    "floor": one.floor,
                }
                for one in self.remedies
            ],
            "arms": {title: {"step_s": step_s} for title, (step_s, *_) in self.arms().items()},
            "parts_of_a_batch": [
                {"name": row.name, "kind": row.kind, "s": row.seconds}
                for row in (m.rows if m else ())
            ],
        }

    def arms(self) -> dict[str, tuple[float, float | None, float]]:
        """Return arm -> step_s, epoch_s and CPU seconds of a step, each the mean of its blocks."""
        arms = {}
        for arm, title in ARMS.items():
            if stretches := self.facts.of(arm):
                epochs_s = [s.epoch_s for s in stretches if s.epoch_s is not None]
                arms[title] = (
                    fmean(s.step_s for s in stretches),
                    fmean(epochs_s) if epochs_s else None,
                    fmean(s.cpu_s for s in stretches),
                )
        return arms

    def table(self) -> pd.DataFrame:
        """Return a row per arm: step_s, epoch_s, and CPU seconds of a step, cpu_s."""
        import pandas as pd

        columns = ["step_s", "epoch_s", "cpu_s"]
        return pd.DataFrame.from_dict(self.arms(), orient="index", columns=columns)


def conclude(facts: Facts, bounds: Bounds | None, trials: Trials) -> Diagnosis:
    """Return the conclusions from what was measured, however much that is.

    Args:
        facts: what was measured.
        bounds: what follows from it.
        trials: the remedies, as far as they were tried.
    """
    diagnosis = Diagnosis(
        facts=facts,
        bounds=bounds,
        failed=facts.failed + trials.failed,
        broken=facts.broken or trials.broken,
    )
    if diagnosis.broken and _lacks_shared_memory(facts, diagnosis.broken):
        remedies = for_shared_memory(facts)
        return replace(diagnosis, bottleneck=SHARED_MEMORY, remedies=remedies)
    if bounds is None or (diagnosis.broken and not facts.probe.stages):
        return diagnosis
    bottleneck, remedies = in_order(bounds, worth_it(trials.remedies))
    return replace(
        diagnosis,
        verdict=_word(bounds),
        bottleneck=bottleneck,
        ceiling=bounds.ceiling,
        remedies=remedies,
        proposed=trials.remedies,
    )


def _lacks_shared_memory(facts: Facts, broken: str) -> bool:
    """Return whether the batches that workers prepare ahead need more than /dev/shm has."""
    usage = shared_memory.usage()
    if not facts.workers:
        return False
    words = ("shared memory", "bus error", "no space left on device", "shm")
    if any(word in broken.lower() for word in words):
        return True
    if usage is None:
        return False
    # A worker without room for a batch writes that to its stderr, loses the batch, and stalls.
    needed_bytes = (facts.workers * facts.ahead + 1) * facts.batch.total_bytes
    return needed_bytes > usage.total or usage.free < FREE_SHARED_MEMORY_SHARE * usage.total


def _word(m: Bounds) -> str:
    """Return how input-bound a training is, as far as the whole interval agrees."""
    limits = (MODERATELY_INPUT_BOUND_SHARE, INPUT_BOUND_SHARE)
    words = [WORDS[sum(share >= limit for limit in limits)] for share in m.stalls()]
    if words[0] == words[-1]:
        return words[0]
    return Text("between {low} and {high}").format(low=words[0], high=words[-1])
