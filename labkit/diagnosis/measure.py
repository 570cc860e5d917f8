"""All that a diagnosis measures: the arms in blocks, one worker, the step, and its copies.

loop ─▶ arms, probe, gpu ─▶ Facts
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from labkit import units
from labkit.contracts import Skip
from labkit.diagnosis import loaders
from labkit.diagnosis.arms import (
    Budget,
    Loop,
    Stopped,
    in_blocks,
    in_one_line,
    stall_limit,
    stretch_s,
    with_one_thread,
    without_stalls,
)
from labkit.diagnosis.batches import arrays, batch_facts, copy_batch, move_batch, whole
from labkit.diagnosis.facts import Copies, Facts
from labkit.diagnosis.gpu import Cuda, Host, OtherGpu, find_device, kinds_of
from labkit.diagnosis.probe import probe_stages
from labkit.diagnosis.thresholds import (
    ARMS_SHARE,
    FEWEST_BLOCKS,
    FIRST_STEPS,
    FIRST_STEPS_S,
    FIRST_STEPS_SHARE,
    MOST_FILES_SHARE,
    PROFILE_SHARE,
    STAGES_SHARE,
    STALL_S,
    TRIALS_SHARE,
)  # fmt: skip
from labkit.language import Text
from labkit.machine import hardware
from labkit.machine.cores import core_limits
from labkit.parts.decoding import DECODERS
from labkit.parts.devices import SimulatedGpu
from labkit.parts.storage import cache_state

FROM_BEGINNING = Text(
    "the first {n} batches stand for the whole epoch, as later ones cannot be read without them"
)
NOT_COLD = Text("cold was not measured: {why}")
NO_TIME = "the budget was over before loading and computing were measured; raise budget_s"


class _Record:
    """What was measured until now."""

    def __init__(self) -> None:
        self.facts = Facts()

    def set(self, **changes: Any) -> None:
        """Set some of the facts."""
        self.facts = replace(self.facts, **changes)

    def note(self, text: str) -> None:
        """Add a note."""
        self.set(notes=(*self.facts.notes, text))

    def leave_out(self, what: str) -> None:
        """Note what there was no time for."""
        self.set(left_out=(*self.facts.left_out, what))


def collect(
    loop: Loop,
    budget: Budget,
    *,
    files: Sequence[Path] = (),
    device: SimulatedGpu | None = None,
) -> Facts:
    """Measure everything that the conclusions need.

    Nothing begins after the budget.

    Args:
        loop: its model is changed by the steps.
        budget: for all of it, with the trials.
        files: what an epoch reads; without them there is no cold arm.
        device: a simulated one that the step uses.

    Returns:
        What was measured, also where the loader or the step raised: see `broken`.
    """
    record = _Record()
    try:
        try:
            _measure(record, loop, replace(budget), files, device)
        except Exception as error:  # the user's own code may raise anything
            record.set(broken=in_one_line(error))
    except RuntimeError as late:  # of torch, whose signal of a dead worker came in the line above
        record.set(broken=in_one_line(late))
    if record.facts.broken and not loop.resident and record.facts.workers:
        copied = loaders.copied(loop.loader, num_workers=0)
        with suppress(Exception), copied as twin, stall_limit() as wait_for:
            # Its bytes tell whether memory is short.
            wait_for("loader to yield a batch")
            loop.keep(next(iter(twin)))
    if loop.resident:
        record.set(batch=batch_facts(loop.resident[0], getattr(loop.loader, "batch_size", None)))
    return replace(record.facts, device=loop.device.label, has_queue=loop.device.has_queue)


def _measure(
    record: _Record, loop: Loop, budget: Budget, files: Sequence[Path], device: SimulatedGpu | None
) -> None:
    is_data_loader = loaders.is_data_loader(loop.loader)
    record.set(
        arguments=loaders.arguments_of(loop.loader) if is_data_loader else {},
        length=loaders.count_batches(loop.loader),
        limits=core_limits(local_ranks()),
        has_model=loop.model is not None,
        has_opencv=loop.has_opencv,
    )
    budget.say("first steps", 0.0)
    record.set(first_s=look(loop, device, min(FIRST_STEPS_SHARE * budget.s, FIRST_STEPS_S)))
    record.set(duplicated=are_duplicated(loop))
    arms = ["warm", "alone", "resident"] + (["cold"] if files else [])
    if not files:
        record.note(NOT_COLD.format(why=loop.why_not_cold))
    seconds = stretch_s(ARMS_SHARE * budget.s, len(arms))
    loop.longest_s = min(ARMS_SHARE * budget.s / FEWEST_BLOCKS / len(arms), loop.longest_s)
    too_large = _too_large(files)
    if too_large:
        record.note(Text("warm is as found: {why}").format(why=too_large))
    fits, warmed = bool(files) and not too_large, False
    ends_s = min(time.monotonic() + ARMS_SHARE * budget.s, budget.over_s)
    for arm in in_blocks(arms, ends_s, lambda text, share: budget.say(text, ARMS_SHARE * share)):
        if budget.left_s < 0:  # of the first block, which is not complete
            break
        if arm == "cold":
            if reason := why_not_evicted(files):
                record.note(NOT_COLD.format(why=reason))
                arms.remove("cold")
                continue
            warmed = False
        elif arm in ("warm", "alone") and fits and not warmed:
            begun_s = time.monotonic()
            cache_state.make_warm(files)
            # A slow disk must not take the time of the rest.
            budget.over_s += time.monotonic() - begun_s
            warmed = True
        if arm == "resident":
            stretch = loop.compute(seconds)
        else:
            stretch = loop.run(arm, loop.loader, seconds, once=arm == "cold")
        record.set(stretches=(*record.facts.stretches, stretch))
    measured = min(len(record.facts.of(arm)) for arm in arms if arm != "cold")
    if not measured:
        raise Stopped(NO_TIME)
    if measured < FEWEST_BLOCKS:
        blocks = Text("{n} of {blocks} blocks of measurements")
        record.leave_out(blocks.format(n=FEWEST_BLOCKS - measured, blocks=FEWEST_BLOCKS))
    if "cold" in arms and not record.facts.of("cold"):
        record.leave_out("epochs from the disk")
    if first := _first_batches(loop.loader, record.facts):
        record.set(failed=(FROM_BEGINNING.format(n=first),))
    if not is_data_loader:
        record.note(loaders.NO_DATALOADER)
    budget.say("inside the workers", ARMS_SHARE)
    if budget.left_s > 0:
        _look_into_worker(record, loop, budget, files)
    else:
        record.leave_out("the look into a worker")
    budget.say("profile of the step", 1 - TRIALS_SHARE - PROFILE_SHARE)
    _look_into_step(record, loop, budget)


def _look_into_worker(record: _Record, loop: Loop, budget: Budget, files: Sequence[Path]) -> None:
    """Measure what one worker takes for a batch, stage by stage, and what passing it on takes."""
    seconds = min(STAGES_SHARE * budget.s, budget.left_s)
    with stall_limit() as wait_for:
        wait_for("loader to yield a batch", 1 + seconds / STAGES_SHARE / STALL_S)
        probe = probe_stages(loop.loader, seconds=seconds)
    record.set(probe=probe)
    if probe.error:
        early = Text("looking into a worker ended early: {why}")
        record.set(failed=(*record.facts.failed, early.format(why=in_one_line(probe.error))))
    if budget.left_s < 0:
        record.leave_out("decoders and an empty batch")
        return
    if any(stage.kind == "decode" for stage in probe.stages):
        record.set(decoders_s=_decoders_s(files))
    if loaders.is_data_loader(loop.loader):
        record.set(empty_s=_empty_batch_s(loop.loader.num_workers))


def local_ranks() -> int:
    """Return how many processes train on this machine."""
    return max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)


def _first_batches(loader: Iterable, facts: Facts) -> int:
    """Return how many batches were read again and again, from the beginning of an epoch.

    0 where a whole one was read, batches are from all of it, or a generator is read on.
    """
    from torch.utils.data import IterableDataset

    is_from_beginning = isinstance(getattr(loader, "dataset", None), IterableDataset)
    if not loaders.is_data_loader(loader):
        is_from_beginning = not isinstance(loader, Iterator)
    warm = facts.of("warm")
    if not is_from_beginning or any(stretch.epochs for stretch in warm):
        return 0
    # Those before the steady state do not count as steps.
    return max(stretch.steps for stretch in warm) + max(facts.workers, 1)


def cores_of_rank() -> int:
    """Return how many cores this process may use: ranks on this machine share them."""
    return core_limits(local_ranks()).cores


def look(loop: Loop, device: SimulatedGpu | None, most_s: float = FIRST_STEPS_S) -> float:
    """Run some steps, find out what they compute on, keep batches; return mean seconds.

    Args:
        loop: whose loader and step run.
        device: a simulated one that the step uses.
        most_s: for them, without the first one.
    """
    at_s = [time.perf_counter()]
    with stall_limit() as wait_for:
        for batch in without_stalls(loop.as_trained(loop.loader), wait_for):
            loop.keep(batch)
            # Times as long as usual: the first steps may compile.
            wait_for("step to return", 20 if loop.waits_for_step else 0)
            loop.step(batch)
            if len(at_s) == 1:
                loop.device = find_device(device)
            at_s.append(time.perf_counter())
            if len(at_s) > FIRST_STEPS or (len(at_s) > 2 and at_s[-1] - at_s[1] > most_s):
                break
    if len(at_s) == 1:
        raise Stopped("loader must yield at least one batch, got an empty one; look at its length")
    loop.device.synchronize()
    begun_s, *later_s = at_s[1:] if len(at_s) > 2 else at_s  # the first step is slow
    return (time.perf_counter() - begun_s) / len(later_s)


def are_duplicated(loop: Loop) -> bool:
    """Return whether two workers of an iterable data set would yield the same.

    Batches that are equal in a worker, too, do not tell.
    """
    import numpy as np
    from torch.utils.data import IterableDataset

    if not isinstance(getattr(loop.loader, "dataset", None), IterableDataset):
        return False
    try:
        with loaders.copied(loop.loader, num_workers=2) as twin, stall_limit() as wait_for:
            wait_for("two workers")
            first, of_other, second = (
                [np.asarray(array).tobytes() for array in arrays(batch)]
                for batch in islice(twin, 3)
            )
    except Exception:  # fewer batches, or what goes wrong in two workers only
        return False
    return first == of_other != second


def why_not_evicted(files: Sequence[Path]) -> str:
    """Evict files from memory and check that they are; return why they are not, or ""."""
    try:
        cache_state.prepare(files, "cold")
    except Skip as skip:
        return str(skip)
    return ""


def _too_large(files: Sequence[Path]) -> str:
    """Return why files cannot be read into memory; "" if they can."""
    total_bytes = sum(path.stat().st_size for path in files)
    if total_bytes > MOST_FILES_SHARE * hardware.memory_bytes():
        too_large = Text("{size} of files do not fit into memory")
        return too_large.format(size=units.count_bytes(total_bytes))
    return ""


def _decoders_s(files: Sequence[Path]) -> dict[str, float]:
    """Return the seconds that each of labkit's decoders takes for one of some JPEG files."""
    paths = [path for path in files if path.suffix.lower() in (".jpg", ".jpeg")][:8]
    jpegs = [path.read_bytes() for path in paths]
    took_s = {}
    for name, decode in DECODERS.items() if jpegs else ():
        with suppress(Skip, ImportError, ValueError):  # not installed, or refuses a file
            decode(jpegs[0])
            begun_s = time.perf_counter()
            for jpeg in jpegs:
                decode(jpeg)
            took_s[name] = (time.perf_counter() - begun_s) / len(jpegs)
    return took_s


def _empty_batch_s(workers: int) -> float:
    """Return the seconds of a batch that takes no work, through a DataLoader of torch's own."""
    import torch
    from torch.utils.data import DataLoader

    skipped, counted = 4 * workers + 1, 200
    samples: Any = [torch.zeros(1)] * (skipped + counted)
    timeout_s = STALL_S if workers else 0
    tiny: DataLoader = DataLoader(samples, num_workers=workers, timeout=timeout_s)
    at_s = [time.perf_counter() for _ in tiny][skipped:]
    # The fastest stretch: what another program delayed is no part of it.
    quarter = counted // 4
    return min(later - first for first, later in zip(at_s, at_s[quarter:])) / quarter


def _look_into_step(record: _Record, loop: Loop, budget: Budget) -> None:
    """Profile the step on kept batches, and time copies by themselves."""
    device, batch, seconds = loop.device, loop.resident[0], PROFILE_SHARE * budget.s
    if budget.left_s < 0:
        record.leave_out("the profile of the step")
        return
    try:
        on_gpu = isinstance(device, Cuda | OtherGpu)  # on a simulated one, torch's run on the host
        kinds = kinds_of(lambda: loop.compute(seconds), on_gpu=on_gpu)
        if not device.has_queue:  # there libraries compute the step
            kinds.pop("compute", None)
        record.set(host_kinds=kinds)
    except ImportError as missing:
        not_seen = Text("what the host does in a step was not looked at: {missing}")
        record.note(not_seen.format(missing=missing))
    with with_one_thread():
        record.set(copy_bytes_s=_median_s(device, partial(copy_batch, batch)))
    copies = [device.copying(batch, pinned=pinned) for pinned in (False, True)]
    how = device.how_copied(batch)
    if how is not None and all(copies):
        pageable_s, pinned_s = (_median_s(device, copy) for copy in copies)
        are_pinned, are_beside = how
        record.set(copies=Copies(pageable_s=pageable_s, pinned_s=pinned_s,
                                 are_pinned=are_pinned, are_beside=are_beside))  # fmt: skip
    if isinstance(device, Cuda):
        if budget.left_s < 0:
            record.leave_out("the profile of the device")
            return
        try:
            batches = [move_batch(each, device.torch_device) for each in loop.resident]
            loop.step(whole(batches[0]))
        except Exception as error:  # such as batch.numpy(), or no memory for them
            message = in_one_line(error)
            no_step = Text("copying was not timed: no step with batches on the device: {message}")
            record.note(no_step.format(message=message))
            record.set(copies=Copies())
            batches = loop.resident
        # Waiting spins, so only CUDA's profile tells it from work.  One step more is skipped.
        readings = device.profile(lambda: 1 + loop.compute(0.0, batches).steps)
        # With an empty queue: the host also waits, inside a launch, where that is full.
        called_s = _median_s(device, lambda: loop.step(whole(batches[0])), host_only=True)
        stretch = replace(
            loop.compute(seconds, batches),
            readings=readings,
            busy_s=max(called_s - readings.waited_s, 0.0),
        )
        record.set(resident_on_device=stretch)


def _median_s(device: Host, run: Callable[[], object], *, host_only: bool = False) -> float:
    """Return the median seconds of what the host does, and the device after it."""
    took_s = []
    for _ in range(5):
        device.synchronize()
        start_s = time.perf_counter()
        run()
        if not host_only:
            device.synchronize()
        took_s.append(time.perf_counter() - start_s)
    return statistics.median(took_s)
