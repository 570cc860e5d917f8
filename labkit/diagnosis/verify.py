"""Trials: remedies that labkit can apply itself, measured in interleaved blocks.

Every block times the loop as it is twice (A1, A2) and with each remedy once, in random order.

Source: EVIDENCE 1, "Design" and "Estimator".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from labkit.analysis.compare import Comparison
from labkit.analysis.statistics import log_ratio
from labkit.contracts import Skip
from labkit.diagnosis import loaders
from labkit.diagnosis.arms import (
    Budget,
    Loop,
    count_arms,
    in_blocks,
    in_one_line,
    stall_limit,
    stretch_s,
)  # fmt: skip
from labkit.diagnosis.batches import whole
from labkit.diagnosis.bounds import Bounds
from labkit.diagnosis.facts import Facts
from labkit.diagnosis.measure import why_not_evicted
from labkit.diagnosis.rules import Remedy
from labkit.diagnosis.thresholds import (
    FEWEST_BLOCKS,
    FEWEST_COMPARED_BLOCKS,
    FIRST_TO_STALL_RATIO,
    MOST_TRIED,
    TRIALS_SHARE,
)  # fmt: skip
from labkit.language import Text

Key = tuple[str, str]  # of a remedy
NOT_TRIED = Text("{what} could not be tried: {why}")
AS_IS: tuple[Key, Key] = ("as it is", "1"), ("as it is", "2")


def try_remedies(
    loop: Loop,
    m: Bounds,
    proposed: tuple[Remedy, ...],
    budget: Budget,
    files: Sequence[Path],
) -> tuple[tuple[Remedy, ...], Facts]:
    """Time epochs with remedies applied to copies of the user's DataLoader, or to the model.

    No trial begins after the budget, to which what applying a change takes is added.

    Args:
        loop: whose loader and step are tried.
        m: what was measured of it.
        proposed: the most promising of them are tried, as many as there is time for: up to five.
        budget: of the diagnosis, of which trials take a share.
        files: evicted before every trial; empty where trials are as warm as the files are.

    Returns:
        All that were proposed, of which those that were tried have `measured` and its 95 %
        interval; and the facts with what failed or was left out.
    """
    failed: list[str] = []

    def facts(too_few: Iterable[Remedy] = (), broken: str = "") -> Facts:
        names = Text(", ").join(dict.fromkeys(remedy.name for remedy in too_few))
        left_out = [Text("trials of {changes}").format(changes=names)] if names else []
        return replace(
            m.facts,
            failed=(*m.facts.failed, *failed),
            left_out=(*m.facts.left_out, *left_out),
            broken=broken,
        )

    seconds = min(TRIALS_SHARE * budget.s, budget.left_s)
    # What removes something that was measured is more promising than what can only be tried.
    promising = (remedy for remedy in proposed if remedy.arguments)
    tried = sorted(promising, key=lambda one: (one.expected is None, one.expected or m.ceiling))
    if not tried:
        return proposed, m.facts
    worthwhile = tried[:MOST_TRIED]
    usual, most = (
        count_arms(seconds / blocks, loop, m.epoch_s / m.steps) - len(AS_IS)
        for blocks in (FEWEST_BLOCKS, FEWEST_COMPARED_BLOCKS)
    )
    tried = worthwhile[: max(min(max(usual, 2), most), 0)]
    if not tried:
        return proposed, facts(worthwhile)
    timed_s = stretch_s(seconds, len(tried) + len(AS_IS))
    with ExitStack() as stack:
        # Loader, what opens a context in which it is timed, and for how long.
        arms: dict[Key, tuple[Iterable, Callable, float]] = dict.fromkeys(
            AS_IS, (loop.loader, nullcontext, timed_s)
        )
        changes = {remedy.key: remedy.change for remedy in tried}
        begun_s = time.monotonic()
        for remedy in tried:
            try:
                with stall_limit() as wait_for:
                    wait_for("a first step with it", FIRST_TO_STALL_RATIO)
                    applied = _applied(loop, remedy, stack)
                arms[remedy.key] = (*applied, max(timed_s, _filling_s(m, loop, remedy)))
            except Exception as error:  # the user's own code may raise anything
                failed.append(NOT_TRIED.format(what=remedy.name, why=in_one_line(error)))
        # Compiling a model or starting workers, once, must not take the time of all trials.
        budget.over_s += time.monotonic() - begun_s
        epochs_s: dict[Key, list[float]] = {arm: [] for arm in arms}

        def say(what: str, share: float) -> None:
            budget.say(what, 1 - TRIALS_SHARE * (1 - share))

        for arm in in_blocks(arms, budget.over_s, say):
            if budget.left_s < 0:  # of the first block
                break
            try:
                if files and (reason := why_not_evicted(files)):
                    raise Skip(reason)
                loader, changed, lasts_s = arms[arm]
                with changed():
                    stretch = loop.run("warm", loader, lasts_s, once=bool(files))
                epochs_s[arm].append(stretch.epoch_s or stretch.step_s)
            except Exception as error:
                if arm in AS_IS:
                    return proposed, facts(broken=in_one_line(error))
                failed.append(NOT_TRIED.format(what=changes[arm], why=in_one_line(error)))
                del arms[arm], epochs_s[arm]
    base_s = list(zip(*(epochs_s[arm] for arm in AS_IS)))
    too_few = [
        remedy
        for remedy in worthwhile
        if (remedy not in tried or remedy.key in arms)  # what failed is named already
        and len(list(zip(base_s, epochs_s.get(remedy.key, ())))) < FEWEST_COMPARED_BLOCKS
    ]
    if len(base_s) < FEWEST_COMPARED_BLOCKS:
        return proposed, facts(too_few)
    timed = (_with_times(each, epochs_s.get(each.key, ()), base_s) for each in proposed)
    return tuple(timed), facts(too_few)


def _filling_s(m: Bounds, loop: Loop, remedy: Remedy) -> float:
    """Return how long to try a change of prefetching; 0 for other changes."""
    ahead = int(remedy.arguments.get("prefetch_factor", 0)) * m.now.workers
    # The queue fills in four times the seconds in which the training uses up the batches ahead.
    return min(4 * ahead * m.epoch_s / m.steps, loop.longest_s)


def _with_times(
    remedy: Remedy, took_s: Sequence[float], base_s: Sequence[tuple[float, ...]]
) -> Remedy:
    if len(took_s) < FEWEST_COMPARED_BLOCKS:
        return remedy
    log_ratios = tuple(log_ratio(time_s, base) for time_s, base in zip(took_s, base_s))
    compared = Comparison(log_ratios=log_ratios)
    low, high = compared.interval
    return replace(remedy, measured=compared.ratio, ci_low=low, ci_high=high)


def _applied(loop: Loop, remedy: Remedy, stack: ExitStack) -> tuple[Iterable, Callable]:
    """Return a loader, and what opens a context, with a remedy applied."""
    changes = dict(remedy.arguments)
    if change := changes.pop("model", ""):
        changed = MODEL_CHANGES[change](loop)
        with changed():  # compiles, before anything is timed
            loop.step(whole(loop.resident[0]))
        return loop.loader, changed
    twin = stack.enter_context(loaders.copied(loop.loader, **changes))
    if twin.num_workers and twin.persistent_workers:
        next(iter(twin))  # starts them, once for all epochs
    return twin, nullcontext


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _bf16(loop: Loop) -> Callable:
    import torch

    kind = next(loop.model.parameters()).device.type
    autocast = torch.autocast(kind, torch.bfloat16)
    return partial(_replaced, loop, "step", autocast(loop.step))


def _channels_last(loop: Loop) -> Callable:
    import torch

    model: Any = loop.model  # torch types `to` without memory_format
    weights = [p for p in model.parameters() if p.ndim >= 4]
    if any(p.ndim > 4 or not p.is_contiguous() for p in weights):
        raise ValueError("the model is channels_last already, or has 3-D convolutions")

    @contextmanager
    def changed() -> Iterator[None]:
        model.to(memory_format=torch.channels_last)
        try:
            yield
        finally:
            model.to(memory_format=torch.contiguous_format)

    return changed


def _compiled(loop: Loop) -> Callable:
    import torch

    # As model.compile() does, which would have to be undone.
    compiled = torch.compile(loop.model._call_impl)
    return partial(_replaced, loop.model, "_compiled_call_impl", compiled)


MODEL_CHANGES = {"bf16": _bf16, "channels_last": _channels_last, "compile": _compiled}
