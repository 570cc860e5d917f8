"""Tuning of the user's own loader: `lab.tune(loader, step)` and `labkit diagnose --tune`.

The loader is copied with other arguments and iterated over, never changed.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.contracts import Skip
from labkit.diagnosis import loaders
from labkit.diagnosis.arms import (
    Loop,
    Stopped,
    in_one_line,
    stall_limit,
)  # fmt: skip
from labkit.diagnosis.batches import bytes_by_dtype
from labkit.diagnosis.diagnose import check_budget, check_step, progress_bar
from labkit.diagnosis.facts import DEFAULT_PREFETCH_FACTOR
from labkit.diagnosis.gpu import Cuda
from labkit.diagnosis.loader_search import Arguments, Trials, Tuned, search
from labkit.diagnosis.measure import are_duplicated, cores_of_rank, local_ranks, look
from labkit.diagnosis.thresholds import (
    FEWEST_STRETCH_STEPS,
    FIRST_TO_STALL_RATIO,
    LONGEST_STRETCH_S,
    SHORTEST_STRETCH_S,
    TUNING_BUDGET_S,
)  # fmt: skip
from labkit.language import Text
from labkit.machine import hardware, shared_memory
from labkit.parts.devices import SimulatedGpu
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader


def tune(
    loader: DataLoader | Settings,
    step: Callable[[object], object] | None = None,
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    device: SimulatedGpu | None = None,
    budget_s: float | None = None,
    results: Path | str = "results",
    progress: bool = True,
) -> Tuned:
    """Find the arguments of a DataLoader with which a training is fastest.

    Workers (up to the cores that this process may use), prefetch_factor, pin_memory,
    persistent_workers, in_order and the threads of a worker are tried on copies of the loader, in
    interleaved blocks.  The result says how many times as fast the best are, with a 95 % interval,
    and what is not worth changing.

    Args:
        loader: the training's own DataLoader; or settings, whose pipeline is tuned.
        step: called with a batch; may train a model, which is changed by some hundred steps unless
            it is given as `model`.  None for settings.
        model: what the step trains; its state is restored afterwards.
        optimizer: its state is restored, too.
        device: a simulated GPU that the step uses; CUDA and the CPU are found.
        budget_s: seconds of measuring, at least five; unset: 60 for a loader, 105 for settings.
            Some seconds come on top.
        results: for settings: the folder that keeps the simulated GPU's speed.
        progress: show a bar.

    Raises:
        ValueError: an argument has a wrong value, or the loader cannot be copied.
        RuntimeError: loader or step failed, or the budget is too short for this loop.
    """
    # Every trial of settings has a process of its own.
    default_s = 105.0 if isinstance(loader, Settings) else TUNING_BUDGET_S
    budget_s = default_s if budget_s is None else budget_s
    check_budget(budget_s, default_s)
    if isinstance(loader, Settings):
        if step is not None:
            raise ValueError(f"step must be left out for settings, got {loaders.brief(step)}")
        from labkit.diagnosis.tune_settings import SettingsTrials

        trials = SettingsTrials(loader, results=results, progress=progress)
        with _as_runtime_error(), _bar(progress, budget_s) as say:
            return search(trials, budget_s=budget_s, say=say)
    check_tunable(loader)
    check_step(step, device)
    loop = Loop(loader, _checked(step), model=model)
    with _as_runtime_error(), loaders.training_state_kept(model, optimizer):
        return tune_loop(loop, device=device, budget_s=budget_s, progress=progress)


@contextmanager
def _as_runtime_error() -> Iterator[None]:
    try:
        yield
    except Stopped as stopped:
        raise RuntimeError(str(stopped)) from stopped.__cause__


def _checked(step: Callable[[object], object]) -> Callable[[object], object]:
    """Return a step whose errors say that they are the step's."""

    def checked(batch: object) -> object:
        try:
            return step(batch)
        except Exception as error:  # the user's own code may raise anything
            failed = Text(
                "step must work on the loader's batches, got {error}; try step(next(iter(loader)))"
            )
            raise Stopped(failed.format(error=in_one_line(error))) from error

    return checked


def check_tunable(loader: Any) -> None:
    """Check that a loader can be copied with other arguments and read again and again.

    Raises:
        ValueError: it cannot.
    """
    if not loaders.is_data_loader(loader):
        raise ValueError(
            f"loader must be torch's DataLoader or a subclass of it, got {loaders.brief(loader)}; "
            "lab.diagnose takes any iterable of batches"
        )
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset):
        first = iter(loader.dataset)
        if first is loader.dataset or iter(loader.dataset) is first:  # type: ignore[comparison-overlap]
            raise ValueError(
                "loader must have a data set that can be read again, got "
                f"{type(loader.dataset).__name__}, whose iter() returns the same iterator every "
                "time; have its __iter__ return a new one"
            )
    try:
        with loaders.copied(loader):
            pass
    except Exception as error:  # the user's own class may raise anything
        raise ValueError(
            f"loader must be one that can be copied, got {in_one_line(error)}; "
            "give one that copy.copy() copies"
        ) from error


def tune_live(loop: Loop, *, budget_s: float, progress: bool) -> Tuned:
    """Tune the loader of a training that runs; what goes wrong stands in `Tuned.broken`."""
    try:
        try:
            check_tunable(loop.loader)
        except ValueError as error:
            return Tuned(broken=str(error))
        return tune_loop(loop, budget_s=budget_s, progress=progress)
    except Exception as error:  # the user's own code may raise anything
        return Tuned(broken=in_one_line(error))


def tune_loop(
    loop: Loop, *, device: SimulatedGpu | None = None, budget_s: float, progress: bool
) -> Tuned:
    """Tune the loader of a loop, which is replaced by a copy.

    Args:
        loop: its step may train a model, which is changed.
        device: as of `tune`.
        budget_s: likewise.
        progress: likewise.

    Raises:
        Stopped: loader or step failed, or the budget is too short.
    """
    with ExitStack() as stack:
        say = stack.enter_context(_bar(progress, budget_s))
        stack.enter_context(loaders.random_state_kept(loop.loader))
        loop.loader = stack.enter_context(loaders.copied(loop.loader))
        say("first steps")
        try:
            trials = LoaderTrials(loop, device=device, budget_s=budget_s)
            if not trials.has_whole_epochs:
                spread = loaders.spread_over_epoch(loop.loader)
                loop.loader = stack.enter_context(loaders.copied(loop.loader, **spread))
        except Stopped:
            raise
        except Exception as error:  # the user's own code may raise anything
            failed = Text("loader must yield batches, got {error}")
            raise Stopped(failed.format(error=in_one_line(error))) from error
        return search(trials, budget_s=budget_s, say=say)


@contextmanager
def _bar(is_shown: bool, budget_s: float) -> Iterator[Callable[[str], None]]:
    """Show a bar over the budget; yield a function that sets its text."""
    begun_s = time.monotonic()
    form = "{desc} {percentage:3.0f}% |{bar:20}| {elapsed}{postfix}"
    with progress_bar("tuning", form, visible=is_shown) as say:
        yield lambda what: say(what, min((time.monotonic() - begun_s) / budget_s, 1.0))


class LoaderTrials(Trials):
    """What can be tried of a user's loader; see `loader_search.Trials`.

    Args:
        loop: its loader is copied for each trial.
        device: a simulated GPU that the step uses.
        budget_s: of the search.

    Raises:
        Exception: whatever loader or step raise in their first steps.
    """

    def __init__(self, loop: Loop, *, device: SimulatedGpu | None, budget_s: float) -> None:
        loader = loop.loader
        self._loop = loop
        self._own_init = getattr(loader, "_copy_of", loader).worker_init_fn
        self._step_s = look(loop, device)
        self._batch_bytes = sum(bytes_by_dtype(loop.resident[0]).values())
        self._worker_bytes, startup_s, self._why_no_workers = _try_worker(loop)
        # The budget has time for about 60 trials.
        self._stretch_s = min(max(budget_s / 60, SHORTEST_STRETCH_S), LONGEST_STRETCH_S)
        epoch_s = (loaders.count_batches(loader) or math.inf) * self._step_s
        self.has_whole_epochs = epoch_s <= 3 * self._stretch_s
        """Whether epochs are so short that a trial is a whole one."""
        least_s = max(self._stretch_s, min(FEWEST_STRETCH_STEPS * self._step_s, LONGEST_STRETCH_S))
        self.trial_s = (epoch_s if self.has_whole_epochs else least_s) + startup_s
        self._is_duplicated = are_duplicated(loop)
        self._ranks = local_ranks()  # each of them gets as many workers
        self.most_workers = cores_of_rank()
        self.now = Arguments(0, pin_memory=loader.pin_memory)
        if loader.num_workers:
            self.now = Arguments(
                num_workers=loader.num_workers,
                one_thread=isinstance(self._own_init, loaders.OneThread),
                in_order=loader.in_order,
                prefetch_factor=loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR,
                persistent_workers=loader.persistent_workers,
                pin_memory=loader.pin_memory,
            )
        changeable = {"num_workers", "prefetch_factor", "persistent_workers", "in_order"}
        if isinstance(loop.device, Cuda):
            changeable.add("pin_memory")
        # Unless something of the user's changes that, torch computes in one thread in a worker.
        if loop.has_opencv or self._own_init is not None:
            changeable.add("one_thread")
        self.changeable = frozenset(changeable)

    def why_not(self, arguments: Arguments) -> str:
        """Return the reason why arguments cannot be tried here; "" where they can."""
        workers = arguments.num_workers
        if arguments == self.now or not workers:
            return ""
        if self._why_no_workers:
            return self._why_no_workers
        if self._is_duplicated and workers > 1:
            return Text("each worker would yield all samples of this IterableDataset")
        try:
            shared_memory.check_room(
                self._batch_bytes,
                workers=workers,
                prefetch_factor=arguments.prefetch_factor,
                ranks=self._ranks,
            )
        except Skip as full:
            return str(full)
        needed_bytes = (
            self._ranks
            * workers
            * (self._worker_bytes + arguments.prefetch_factor * self._batch_bytes)
        )
        free_bytes = hardware.free_memory_bytes()
        if needed_bytes > free_bytes:
            too_large = Text("{workers} would take {needed} of memory, of which {free} is free")
            if self._ranks > 1:
                too_large = Text(
                    "{workers} in each of {ranks} processes would take {needed} of memory, of "
                    "which {free} is free"
                )
            return too_large.format(
                workers=units.count(workers, "worker"),
                ranks=self._ranks,
                needed=units.count_bytes(needed_bytes),
                free=units.count_bytes(free_bytes),
            )
        return ""

    @contextmanager
    def opened(self, candidates: Sequence[Arguments]) -> Iterator[Callable[[Arguments], float]]:
        """Open a context with a function that measures the seconds of an epoch."""
        yield self._epoch_s

    def _epoch_s(self, arguments: Arguments) -> float:
        changes = self._attributes(arguments)
        # A queue that is filling hides what its length changes.
        filled_s = 2 * arguments.num_workers * arguments.prefetch_factor * self._step_s
        seconds = max(self._stretch_s, min(filled_s, 2 * self._stretch_s))
        if self.has_whole_epochs:
            seconds = math.inf
        end_opencv_threads()
        with loaders.copied(self._loop.loader, **changes) as twin:
            if twin.num_workers and twin.persistent_workers:
                with stall_limit() as wait_for:
                    wait_for("loader to yield a batch", FIRST_TO_STALL_RATIO)
                    next(iter(twin))  # starts them, as before the second epoch
            stretch = self._loop.run("warm", twin, seconds, once=self.has_whole_epochs)
        return stretch.epoch_s or stretch.step_s

    def _attributes(self, arguments: Arguments) -> dict[str, Any]:
        attributes = arguments._asdict()
        del attributes["one_thread"]
        if arguments.one_thread != self.now.one_thread:
            attributes["worker_init_fn"] = self._one_thread()
        return attributes

    def _one_thread(self) -> loaders.OneThread:
        return loaders.OneThread(self._own_init, self._loop.has_opencv)

    def as_given(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return changes as the arguments that a user writes."""
        given = dict(changes)
        if given.pop("one_thread", False):
            given["worker_init_fn"] = self._one_thread()
        return given


def end_opencv_threads() -> None:
    """End the threads that OpenCV has started here; it starts them again when it needs them.

    A process that is forked while they exist takes them for its own, and computes without any.
    """
    if (cv2 := sys.modules.get("cv2")) is not None:
        threads = cv2.getNumThreads()
        cv2.setNumThreads(1)
        cv2.setNumThreads(threads)


def _try_worker(loop: Loop) -> tuple[int, float, str]:
    """Return the bytes of its own that one worker takes, its start-up, and why there can be none.

    The bytes are 0 where they are not known.
    """
    import psutil

    own_bytes, begun_s = 0, time.monotonic()
    try:
        with loaders.copied(loop.loader, num_workers=1) as twin, stall_limit() as wait_for:
            wait_for("a worker to yield a batch", FIRST_TO_STALL_RATIO)
            batches = iter(twin)
            next(batches)
            startup_s = time.monotonic() - begun_s
            for iterator in list(getattr(twin, "_iterators", ())):
                for worker in getattr(iterator, "_workers", ()):
                    with suppress(psutil.Error):
                        own_bytes += psutil.Process(worker.pid).memory_full_info().uss
            del batches
    except Exception as error:  # what cannot be pickled, or does not work in another process
        failed = Text("a worker cannot load: {error}")
        return 0, 0.0, failed.format(error=in_one_line(error))
    return own_bytes, startup_s, ""
