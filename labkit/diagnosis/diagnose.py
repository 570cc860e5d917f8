"""Diagnosis of the user's own loader and step: what limits the training, and what would help.

    loader, step ─▶ Facts ─▶ Bounds ─▶ remedies, as far as they were tried ─▶ Diagnosis

The loader is copied and iterated over, never changed.  The step is called some hundred times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.diagnosis import loaders
from labkit.diagnosis.arms import Budget, Loop, in_one_line
from labkit.diagnosis.bounds import bounds_of
from labkit.diagnosis.facts import Facts
from labkit.diagnosis.measure import collect
from labkit.diagnosis.rules import Findings, conclude, propose
from labkit.diagnosis.say import arms, as_json, details, screen
from labkit.diagnosis.thresholds import BUDGET_S, LEAST_BUDGET_S
from labkit.diagnosis.verify import try_remedies
from labkit.files import bar
from labkit.language import Text, shown
from labkit.parts.devices import SimulatedGpu

if TYPE_CHECKING:
    import pandas as pd
    import torch


class Diagnosis(Findings):
    """The result of a diagnosis; its text fits on one screen."""

    def __repr__(self) -> str:
        return screen(self)

    def details(self) -> str:
        """Return what the screen rests on: every arm, every part of a batch, what did not help."""
        return details(self)

    def as_json(self) -> dict[str, Any]:
        """Return the conclusions as JSON holds them: numbers, strings, lists and dicts."""
        return as_json(self)

    def table(self) -> pd.DataFrame:
        """Return a row per arm: step_s, epoch_s, and CPU seconds of a step, cpu_s."""
        import pandas as pd

        columns = ["step_s", "epoch_s", "cpu_s"]
        return pd.DataFrame.from_dict(arms(self.facts), orient="index", columns=columns)


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
        budget_s: seconds of measuring, at least five; what runs when they are over is finished, and
            what there was no time for is named.
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
    over_s = time.monotonic() + budget_s
    with ExitStack() as stack:
        form = Text("{desc} {percentage:3.0f}% |{bar:20}| {elapsed}, {remaining} left{postfix}")
        say = stack.enter_context(progress_bar("diagnosis", form, visible=progress))
        stack.enter_context(loaders.random_state_kept(loop.loader))
        if loaders.is_data_loader(loop.loader):  # no worker outlives the measurement
            spread = loaders.spread_over_epoch(loop.loader)
            try:
                loop.loader = stack.enter_context(loaders.copied(loop.loader, **spread))
            except Exception as error:  # the user's own class may raise anything
                why = Text("the loader cannot be copied: {why}").format(why=in_one_line(error))
                return Diagnosis(facts=Facts(broken=why))
        budget = Budget(budget_s, over_s, say)
        facts = collect(loop, budget, files=files, device=device)
        bounds = bounds_of(facts)
        remedies = propose(bounds) if bounds else ()
        if bounds and not facts.broken:
            cold = files if bounds.now.fetch_s else ()
            remedies, facts = try_remedies(loop, bounds, remedies, budget, cold)
    return Diagnosis(**vars(conclude(facts, bounds, remedies)))


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
def progress_bar(title: str, form: str, *, visible: bool) -> Iterator[Callable[[str, float], None]]:
    """Show a bar; yield a function that sets its text and the share that is done.

    Args:
        title: before it.
        form: tqdm's `bar_format`.
        visible: False shows nothing.
    """
    form = shown(form)
    with bar(total=100, desc=shown(title), disable=not visible, bar_format=form) as drawn:

        def say(what: str, share: float) -> None:
            drawn.n = max(round(100 * share), drawn.n)
            drawn.set_postfix_str(shown(what))  # draws it

        yield say
        say("done", 1.0)
