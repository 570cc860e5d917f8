"""Remedies: a table of changes, and the bottleneck that follows from what they gain.

Each line says where a change applies, what it leaves of the measured demands (its bound), and,
where the lab can apply it to a copy, the arguments with which it is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from labkit import units
from labkit.analysis.thresholds import DELTA
from labkit.diagnosis.advice import UNCOMPRESSED, advice_for, advice_in_step
from labkit.diagnosis.bounds import (
    BYTES,
    EACH_OTHER,
    JITTER,
    OVERHEAD,
    PINNING,
    SAMPLER,
    SHARED_STORAGE,
    UNEXPLAINED,
    Bounds,
)  # fmt: skip
from labkit.diagnosis.facts import COLLATE, DEFAULT_PREFETCH_FACTOR, Facts, Stage
from labkit.diagnosis.loaders import OneThread, line_of
from labkit.diagnosis.thresholds import (
    DEVICE_BOUND_CEILING,
    EASY_GAIN_SHARE,
    EASY_TO_BEST_GAIN_SHARE,
    EQUAL_GAIN_DIFFERENCE,
    FREE_SHARED_MEMORY_SHARE,
    HINDERED_SHARE,
    INPUT_BOUND_SHARE,
    LAUNCH_BOUND_DEVICE_SHARE,
    LAUNCHING_SHARE,
    LEAST_EXPLAINED_SHARE,
    LOADER_BOUND_CEILING,
    MANY_OBJECTS_PER_BATCH,
    MANY_TENSORS_PER_BATCH,
    MODERATELY_INPUT_BOUND_SHARE,
    MOST_AHEAD_BYTES,
    MOST_REMEDIES,
    MOST_WAITING_WORKERS,
    MOSTLY_WAITING_SHARE,
    NEGLIGIBLE_OVERHEAD_SHARE,
    PER_BATCH_OVERHEAD_SHARE,
    SMALL_BATCH_BYTES,
)  # fmt: skip
from labkit.language import Text
from labkit.machine import shared_memory

COMPUTE, DUPLICATED, SHARED_MEMORY = "compute", "duplicated work", "shared memory"
VERDICTS = ("not input-bound", "moderately input-bound", "highly input-bound")


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change, and what it gains."""

    name: str
    subject: str = ""
    """What is changed, where there may be several: a function, a number of workers, a dtype."""
    bottleneck: str
    """Bottleneck that the change removes."""
    expected: float | None = None
    """Predicted normalized time of an epoch: the time with it ÷ the time without; None where only a
    trial can tell, or the training does not run without it."""
    floor: float | None = None
    """Normalized time below which no epoch with the change can be; None where `expected` is."""
    reason: str
    change: str
    """Code to write."""
    easy: bool = True
    """Whether the change is one line, without rewriting code."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments with which the change is tried; empty if it cannot be tried."""
    measured: float | None = None
    """Bounds normalized time of an epoch; None if the change was not tried."""
    ci_low: float | None = None
    """Lower end of the 95 % interval of the measurement, or of the expected time."""
    ci_high: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Return name and subject: no two remedies of a diagnosis share both."""
        return self.name, self.subject

    @property
    def normalized_time(self) -> float | None:
        """Return what was measured, or is expected."""
        return self.expected if self.measured is None else self.measured

    @property
    def speed_up(self) -> float:
        """Return how many times as fast an epoch is with the change, as measured or expected."""
        return 1 / max(self.normalized_time, 1e-3)


class Line(NamedTuple):
    """A line of the table; the functions take what was measured, and one of its subjects."""

    name: str
    bottleneck: str
    subjects: Callable[[Bounds], Sequence | bool]
    """Return the stages or numbers of workers to which the line applies, or whether it does."""
    leaves: Callable[[Bounds, Any], Mapping[str, Any] | None]
    """Return the demands with the change; None if only a trial can show them."""
    reason: Callable[[Bounds, Any], str]
    change: Callable[[Bounds, Any], str] | str
    arguments: Callable[[Bounds, Any], Mapping[str, Any]] | None = None
    """DataLoader arguments, or a change of the model, with which it is tried."""
    easy: bool = True


# --- where they apply, and why ----------------------------------------------------------------


def _always(_: Bounds) -> bool:  # a change that leaves the demands as they are is not proposed
    return True


def _more_ahead(m: Bounds) -> Sequence[int]:
    """Return how many batches per worker last until the slowest one is made."""
    ahead = math.ceil(m.slowest_s / m.pace_s / m.now.workers) if m.now.workers else 0
    fits = ahead * m.now.workers * m.facts.batch.total_bytes < MOST_AHEAD_BYTES
    return (ahead,) if ahead > m.facts.ahead and fits else ()


def _waits(m: Bounds) -> float:
    """Return the share of making a batch that needs no core."""
    return sum(s.wait_s for s in m.stages) / (sum(s.wall_s for s in m.stages) or 1.0)


def _more_workers(m: Bounds) -> Sequence[int]:
    counts = {m.now.cores // 2, m.now.cores}
    counts |= {4 * m.now.cores, MOST_WAITING_WORKERS} if _waits(m) > MOSTLY_WAITING_SHARE else set()
    most = max(m.now.cores, MOST_WAITING_WORKERS)
    allowed = MOST_AHEAD_BYTES / (m.facts.ahead * max(m.facts.batch.total_bytes, 1))
    return [
        n for n in sorted(counts)
        if not m.facts.duplicated and m.now.workers < n <= min(most, allowed)
    ]  # fmt: skip


def _why_workers(m: Bounds, count: int) -> str:
    if not m.now.workers:
        itself = Text("the main process makes the batches itself, {seconds} each")
        return itself.format(seconds=units.seconds(m.alone_s))
    if _waits(m) > MOSTLY_WAITING_SHARE:
        waiting = Text("{share} of making a batch is waiting, which needs no core")
        return waiting.format(share=units.whole_percent(_waits(m)))
    few = Text("{workers} of {cores} cores make batches")
    return few.format(workers=m.now.workers, cores=m.now.cores)


def _fewer_workers(m: Bounds) -> Sequence[int]:
    if m.now.workers < 2 or m.now.hindered_s < HINDERED_SHARE * m.alone_s:
        return ()
    return (min(m.now.cores, m.now.workers - 1),)


def _overhead_s(m: Bounds) -> float:
    """Return a batch's seconds that do not depend on its size."""
    return m.share_of(OVERHEAD) * m.alone_s


def _small_batches(m: Bounds) -> bool:
    return m.facts.batch.samples > 0 and m.share_of(OVERHEAD) > PER_BATCH_OVERHEAD_SHARE


def _in_large_batches(m: Bounds, _: object) -> dict[str, Any] | None:
    """Return what is left where nothing is done for each batch: samples, and the device's work."""
    if m.facts.has_queue and not m.now.device_s:  # what the device works is not known
        return None
    fetched = [stage for stage in m.stages if stage.kind != COLLATE]
    changes = {
        "cpu_s": m.facts.probe.fastest * sum(stage.cpu_s for stage in fetched),
        "wall_s": m.facts.probe.fastest * sum(stage.wall_s for stage in fetched),
        "take_s": 0.0,
        "hindered_s": 0.0,
    }
    if not m.facts.has_queue:  # the step computes here
        return changes
    # A small copy is all overhead.
    computing_s = m.now.device_s - (0.0 if m.copy.is_beside else m.copy.s)
    step = {"step_s": computing_s, "device_s": computing_s, "host_s": 0.0, "host_cpu_s": 0.0}
    return changes | step


def _enough_samples(m: Bounds) -> str:
    rest_s = max(m.epoch_s / m.steps - _overhead_s(m), 1e-9) / m.facts.batch.samples
    power = math.ceil(math.log2(max(_overhead_s(m) / NEGLIGIBLE_OVERHEAD_SHARE / rest_s, 1)))
    return f"{2**power:,}"


def _of(m: Bounds, kind: str) -> Sequence[Stage]:
    return [stage for stage in m.stages if stage.kind == kind]


def _is_waiting(stage: Stage) -> bool:
    return stage.wait_s >= stage.cpu_s


def _computing(m: Bounds) -> Sequence[Stage]:
    return [stage for stage in _of(m, "transform") if not _is_waiting(stage)]


def _waiting_reads(m: Bounds) -> Sequence[Stage]:
    """Return what mostly waits for files: reads, and decoders that read, such as cv2.imread."""
    return [stage for stage in m.stages if stage.kind in ("read", "decode") and _is_waiting(stage)]


def _without_waiting(m: Bounds, stages: Sequence[Stage]) -> dict[str, float]:
    """Return the demands without waiting for files; what decoders compute is left."""
    waits = [replace(s, wall_s=s.wait_s, cpu_s=0.0) if s.kind == "decode" else s for s in stages]
    return m.without(waits)


def _computing_decodes(m: Bounds) -> Sequence[Stage]:
    return [stage for stage in _of(m, "decode") if not _is_waiting(stage)]


def _computing_reads(m: Bounds) -> Sequence[Sequence[Stage]]:
    """Return the reads that compute, such as decompressing, which no medium makes faster."""
    return [[stage] for stage in _of(m, "read") if not _is_waiting(stage)]


def _is_launch_bound(m: Bounds) -> bool:
    """Return whether the host's launching of work leaves the device idle."""
    is_idle = 0 < m.now.device_s < LAUNCH_BOUND_DEVICE_SHARE * m.now.step_s
    return is_idle and m.kind_s("launch") > LAUNCHING_SHARE * m.now.step_s


def _with_its_reads(m: Bounds, transform: Stage) -> Sequence[Stage]:
    """Return a transform and what it reads, unless that is most of it: then it is storage."""
    reads = [stage for stage in m.stages if stage.reader == transform.name]
    return [transform, *reads] if sum(s.wall_s for s in reads) < transform.wall_s else [transform]


def _took(m: Bounds, stages: Sequence[Stage]) -> str:
    took, made = units.seconds(sum(s.wall_s for s in stages)), units.seconds(m.made_s)
    takes = Text("{name} takes {took} of the {made} that a batch takes")
    if m.now.workers:
        takes = Text("{name} takes {took} of the {made} in which a worker makes a batch")
    return takes.format(name=stages[0].name, took=took, made=made)


def _fastest_decoder(m: Bounds, stages: Sequence[Stage]) -> str:
    slowest = max(stages, key=lambda stage: stage.wall_s)
    is_image = advice_for(slowest.name) != UNCOMPRESSED
    if not m.facts.decoders_s or not m.facts.batch.samples or not is_image:
        return ""
    best = min(m.facts.decoders_s, key=m.facts.decoders_s.get)
    own_s = sum(stage.wall_s for stage in stages) / m.facts.batch.samples
    faster = Text("; an image takes {own}, labkit's {decoder} {seconds} here")
    fastest_s = m.facts.decoders_s[best]
    return faster.format(own=units.seconds(own_s), decoder=best, seconds=units.seconds(fastest_s))


FEWER = {"float64": ("float32", 0.5), "float32": ("uint8", 0.25)}


def _wide(m: Bounds) -> Sequence[str]:
    """Return the dtype that takes most of a batch, where a smaller one would do."""
    if m.facts.batch.total_bytes < SMALL_BATCH_BYTES:
        return ()
    dtype = m.facts.batch.main_dtype
    # Pixels only, and only where something else than the host can make floats of them.
    pixels = dtype == "float64" or (m.facts.batch.unit == "images" and m.facts.has_queue)
    return (dtype,) if dtype in FEWER and pixels else ()


def _fewer_bytes(m: Bounds, dtype: str) -> dict[str, Any]:
    """Return the demands with fewer bytes: all that touches them gets shorter."""
    batch = m.facts.batch
    kept = 1 - (1 - FEWER[dtype][1]) * batch.bytes_by_dtype[dtype] / batch.total_bytes
    # Of collate, only what copies: what takes much longer does something else.
    copies_s = min(sum(s.wall_s for s in _of(m, COLLATE)), 2 * m.facts.copy_bytes_s)
    sent_s = copies_s + (m.facts.probe.pickle_s if m.now.workers else 0.0)
    sent = Stage(name="sending", kind=COLLATE, wall_s=sent_s, cpu_s=sent_s)
    copied_s = (1 - kept) * m.copy.s
    device_s = m.now.device_s - (0.0 if m.copy.is_beside else copied_s)
    return {
        **m.without([*_computing(m), *_of(m, "read"), sent], kept),
        "take_s": m.now.take_s * kept,
        "pinning_s": m.now.pinning_s * kept,
        "step_s": max(m.now.step_s - copied_s, device_s),
        "host_s": m.now.host_s - (copied_s if m.copy.blocks else 0.0),
        "device_s": device_s,
    }


def _why_fewer(m: Bounds, _: str) -> str:
    total = units.count_bytes(m.facts.batch.total_bytes)
    return Text("a batch is {total}, a sample {size}").format(total=total, size=bytes_in_words(m))


def _write_fewer(_: object, dtype: str) -> str:
    if dtype == "float64":
        return "float32 in the dataset: array.astype(np.float32)"
    return "keep pixels uint8 in the dataset; on the device: x.float().div_(255)"


def bytes_in_words(m: Bounds) -> str:
    """Return dtype and size of a sample, and what a smaller dtype would take: "float64, 6.3 MB"."""
    if not m.facts.batch.total_bytes or not m.facts.batch.samples:
        return ""
    dtype = m.facts.batch.main_dtype
    words = Text("{dtype}, {size}").format(
        dtype=dtype, size=units.count_bytes(m.facts.batch.total_bytes / m.facts.batch.samples)
    )
    if _wide(m):
        other, share = FEWER[dtype]
        is_half = Text("; {dtype} would be half")
        words += (is_half if share == 0.5 else Text("; {dtype} would be a quarter")).format(
            dtype=other
        )
    return words


def _less(m: Bounds, less_s: float, *names: str) -> dict[str, Any]:
    return {name: max(getattr(m.now, name) - less_s, 0.0) for name in names}


def _ordered(m: Bounds, _: object) -> dict[str, Any]:
    if not m.now.workers:
        return _less(m, m.facts.probe.sampler_s, "wall_s", "cpu_s")
    left = _less(m, m.facts.probe.sampler_s, "take_s")
    # Before its first batch, an epoch draws all that workers prepare ahead.
    drawn_s = m.facts.ahead * m.now.workers * m.facts.probe.sampler_s
    left |= _less(m, drawn_s / m.steps, "startup_s")
    if m.share_of(SAMPLER):  # workers that wait for the main process wait for its drawing
        left["hindered_s"] = m.now.hindered_s * left["take_s"] / m.now.take_s
    return left


def _shorter_step(m: Bounds, less_s: float) -> dict[str, Any]:
    step_s = max(m.now.step_s - less_s, m.now.device_s)
    return {"step_s": step_s, **_less(m, less_s, "host_s", "host_cpu_s")}


def _pinned(m: Bounds, _: object) -> dict[str, Any]:
    """Return what is left where the device still copies, and the host no longer waits for that."""
    device_s = m.now.device_s - m.copy.s + m.facts.copies.pinned_s
    step_s = max(m.now.step_s - m.copy.s, device_s)
    return {"step_s": step_s, "host_s": m.now.host_s - m.copy.s, "device_s": device_s}


def _why_pinned(m: Bounds, _: object) -> str:
    copies = Text(
        "a copy of {size} takes {seconds}, in which the host waits; from pinned memory {pinned}"
    )
    return copies.format(
        size=units.count_bytes(m.facts.batch.total_bytes),
        seconds=units.seconds(m.copy.s),
        pinned=units.seconds(m.facts.copies.pinned_s),
    )


def _why_pinning(m: Bounds, _: object) -> str:
    pins = Text(
        "a single thread copies every batch of {size} into pinned memory; that takes it {pinning} "
        "of the {alone} in which the loader delivers a batch"
    )
    return pins.format(
        size=units.count_bytes(m.facts.batch.total_bytes),
        pinning=units.seconds(m.now.pinning_s),
        alone=units.seconds(m.alone_s),
    )


def _why_shared_storage(m: Bounds, _: object) -> str:
    assert m.fetched_per_s is not None  # the row that the line applies to depends on it
    one, together = (f"{units.count_bytes(rate)}/s" for rate in m.fetched_per_s)
    reads = Text("{workers} workers together read {together} from storage, and one alone {one}")
    return reads.format(workers=m.now.workers, together=together, one=one)


def _unsynchronized(m: Bounds, _: object) -> dict[str, Any]:
    host_s = max(m.now.step_s - m.syncs_s, 0.0)
    return {"step_s": max(host_s, m.now.device_s), "host_s": host_s}


def _on_host_s(m: Bounds) -> float:
    return m.kind_s("host work") + m.kind_s("compute")


def _of_step(what: str, kind: str) -> Callable[[Bounds, object], str]:
    def reason(m: Bounds, _: object) -> str:
        function = m.facts.host_kinds[kind].function
        takes = Text("{what} takes {seconds} of the {step} of a step")
        if function:
            takes = Text("{what} takes {seconds} of the {step} of a step, most in {function}")
        seconds, step = units.seconds(m.kind_s(kind)), units.seconds(m.now.step_s)
        return takes.format(what=what, seconds=seconds, step=step, function=function)

    return reason


def _instead_of(stage: Stage) -> str:
    """Return a function's name, and what to write instead where that is known."""
    waits = _is_waiting(stage)
    # "cv2.resize in train.augment" reads, too, but advice about resizing does not help reading.
    reader = "" if " in " in stage.reader else stage.reader
    advice = advice_for(reader, waits=waits) or advice_for(stage.name, waits=waits)
    return Text(": ").join(filter(None, (stage.name, advice)))


def _faster_decoder(_: Bounds, stages: Sequence[Stage]) -> str:
    slowest = max(stages, key=lambda stage: stage.wall_s)
    if advice_for(slowest.name):
        return _instead_of(slowest)
    return "a faster decoder (lab.DECODERS), or images stored at the size that is trained on"


def _faster_reads(_: Bounds, stages: Sequence[Stage]) -> str:
    slowest = max(stages, key=lambda stage: stage.wall_s)
    instead = _instead_of(slowest)
    if instead != slowest.name:
        return instead
    return "copy the files to an SSD or tmpfs, or pack them into one file that is read in order"


def _faster_collate(m: Bounds, _: object) -> str:
    if m.facts.batch.tensors > MANY_TENSORS_PER_BATCH:
        return (
            "an array or a tensor for each sample: of a list, default_collate makes a tensor for "
            "each number"
        )
    return "torch.stack of ready tensors, and nothing else in collate_fn"


def _less_host_work(kind: str, change: str) -> Callable[[Bounds, object], str]:
    """Return a line's change: what is known of the function that takes most of it, or `change`."""

    def instead(m: Bounds, _: object) -> str:
        return advice_in_step(m.facts.host_kinds[kind].function) or change

    return instead


def only_tried(m: Bounds, subject: object) -> None:
    """Return no bound: the ceiling is all that is known without a trial."""


# The easiest change first.
REMEDIES = (
    Line("persistent workers", "start-up",
         lambda m: m.now.workers > 0 and "persistent_workers" not in m.facts.arguments,
         # Persistent workers only get a new order at the start of an epoch: 0.01 s.
         lambda m, _: {"startup_s": min(m.now.startup_s, 0.01 / m.steps)},
         lambda m, _: Text("starting workers takes {seconds} of every epoch of {steps}").format(
             seconds=units.seconds(m.now.startup_s * m.steps), steps=units.count(m.steps, "step")
         ),
         "", lambda m, _: {"persistent_workers": True}),
    Line("more prefetching", JITTER,
         _more_ahead,
         # Where the loader alone keeps up with the step, only a trial can tell.
         lambda m, _: {"hindered_s": 0.0} if m.alone_s > m.now.step_s else None,
         lambda m, _: Text(
             "the slowest batch takes {slowest}; the batches prepared ahead are used up after "
             "{ahead}"
         ).format(
             slowest=units.seconds(m.slowest_s),
             ahead=units.seconds(m.facts.ahead * m.now.workers * m.pace_s),
         ),
         "", lambda m, n: {"prefetch_factor": n}),
    Line("limit threads", "threads",
         lambda m: m.now.workers * m.facts.probe.threads > m.now.cores,
         only_tried,
         lambda m, _: Text("{workers} workers × {threads:.2g} threads share {cores} cores").format(
             workers=m.now.workers, threads=m.facts.probe.threads, cores=m.now.cores
         ),
         "", lambda m, _: {
             "worker_init_fn": OneThread(
                 m.facts.arguments.get("worker_init_fn"), m.facts.has_opencv
             )
         }),
    Line("no workers", OVERHEAD,
         lambda m: m.now.workers > 0 and _small_batches(m),
         only_tried,
         lambda m, _: Text("handing over a batch takes {handing}, making one {making}").format(
             handing=units.seconds(_overhead_s(m)),
             making=units.seconds(sum(s.wall_s for s in m.stages)),
         ),
         "", lambda m, _: {"num_workers": 0}),
    Line("more workers", "workers", _more_workers,
         # Where storage is saturated, only a trial can tell.
         lambda m, n: None if m.share_of(SHARED_STORAGE) else {"workers": n},
         _why_workers, "", lambda m, n: {"num_workers": n}),
    Line("fewer workers", "workers", _fewer_workers, only_tried,
         lambda m, n: Text(
             "{workers} workers make a batch in {together}, which one of them makes in {one} by "
             "itself"
         ).format(
             workers=m.now.workers, together=units.seconds(m.alone_s),
             one=units.seconds(m.now.wall_s),
         ),
         "", lambda m, n: {"num_workers": n}),
    Line("no pinning", PINNING,
         lambda m: m.share_of(PINNING) > 0, only_tried, _why_pinning,
         "", lambda m, _: {"pin_memory": False}),
    Line("pin less", PINNING,
         lambda m: m.share_of(PINNING) > 0,
         lambda m, _: {"pinning_s": 0.0}, _why_pinning,
         "batches of few, large tensors in a small dtype such as uint8", easy=False),
    Line("pin memory", "transfer",
         lambda m: m.copy.blocks,
         _pinned, _why_pinned,
         "pin_memory=True in the DataLoader, and batch.to(device, non_blocking=True)"),
    # Without a change of the step, which waits for the copies then as before.
    Line("pin memory alone", "transfer",
         lambda m: m.copy.blocks and m.facts.resident_on_device is not None,
         _pinned, _why_pinned, "", lambda m, _: {"pin_memory": True}),
    Line("synchronize less often", "synchronization",
         _always, _unsynchronized,
         lambda m, _: Text(
             "in every step the host waits {seconds} until the device is done "
             "(.item(), .cpu(), print)"
         ).format(seconds=units.seconds(m.syncs_s)),
         "keep the loss on the device (loss.detach()), and read it every 50 steps"),
    *(
        Line(name, kind, _always,
             lambda m, _, kind=kind: _shorter_step(m, m.kind_s(kind)),  # type: ignore[misc]
             _of_step(what, kind), _less_host_work(kind, change))
        for name, what, kind, change in (
            ("save less often", "saving", "checkpoint",
             "save every 10th time, or in a thread from a copy"),
            ("report less often", "reporting", "reports",
             "report every 10th time, or from a thread; in tqdm: set_postfix(…, refresh=False)"),
        )
    ),
    # What is called in a loop counts as the library's, so both go with either.
    Line("vectorize host work", "host work",
         lambda m: m.kind_s("host work") > m.kind_s("compute"),
         lambda m, _: _shorter_step(m, _on_host_s(m)),
         reason=_of_step("work on the host", "host work"),
         change=_less_host_work(
             "host work",
             "operations on whole tensors, in the loader's workers, or only every 50 steps",
         )),
    Line("transform in workers", "main thread",
         lambda m: m.kind_s("compute") > m.kind_s("host work"),
         lambda m, _: _shorter_step(m, _on_host_s(m))
         | {"cpu_s": m.now.cpu_s + m.kind_s("compute")},
         reason=_of_step("computing on the host", "compute"),
         change=_less_host_work(
             "compute",
             "do it in the data set, where workers run it beside the step, or on the device",
         )),
    *(
        Line(name, COMPUTE,
             lambda m: m.facts.has_model and m.ceiling > DEVICE_BOUND_CEILING
             and not _is_launch_bound(m),
             only_tried, lambda m, _: "the device is the limit", change,
             lambda m, _, key=key: {"model": key})  # type: ignore[misc]
        for key, name, change in (
            ("bf16", "bf16 autocast", "with torch.autocast(device.type, torch.bfloat16): …"),
            ("channels_last", "channels last", "model.to(memory_format=torch.channels_last)"),
            ("compile", "torch.compile", "model.compile()"),
        )
    ),
    Line("fewer launches", "launching",
         lambda m: _is_launch_bound(m),
         lambda m, _: {"step_s": m.now.device_s,
                       **_less(m, m.kind_s("launch"), "host_s", "host_cpu_s")},
         lambda m, _: Text(
             "launching takes {launch} of the {step} of a step, in which the device computes for "
             "{device}"
         ).format(
             launch=units.seconds(m.kind_s("launch")), step=units.seconds(m.now.step_s),
             device=units.seconds(m.now.device_s),
         ),
         _less_host_work(
             "launch",
             "model.compile(mode='reduce-overhead'), a fused optimizer (fused=True), or larger "
             "batches",
         ),
         easy=False),
    Line("split between workers", DUPLICATED,
         lambda m: m.facts.duplicated and m.now.workers > 1,
         lambda m, _: {"shorter": 1 / m.now.workers},
         lambda m, _: Text(
             "each of {workers} workers delivers the same samples: an epoch is {workers} times as "
             "long as its data"
         ).format(workers=m.now.workers),
         "in __iter__: worker = get_worker_info(); "
         "itertools.islice(samples, worker.id, None, worker.num_workers)"),
    Line("share no lock", EACH_OTHER,
         lambda m: m.share_of(EACH_OTHER) + m.share_of(JITTER) > 0,
         lambda m, _: {"hindered_s": 0.0},
         lambda m, _: Text(
             "{workers} workers make a batch in {together}, one alone would in {one}, and cores "
             "are idle"
         ).format(
             workers=m.now.workers, together=units.seconds(m.alone_s),
             one=units.seconds(m.now.wall_s),
         ),
         "a handle or connection of its own for each worker (worker_init_fn), no lock around "
         "what waits", easy=False),
    Line("larger batches", OVERHEAD, _small_batches,
         _in_large_batches,
         lambda m, _: Text(
             "{seconds} a batch do not depend on its {samples}; from {enough} on they are below "
             "{share}"
         ).format(
             seconds=units.seconds(_overhead_s(m)),
             samples=units.count(m.facts.batch.samples, m.facts.batch.unit[:-1]),
             enough=_enough_samples(m), share=units.whole_percent(NEGLIGIBLE_OVERHEAD_SHARE),
         ),
         lambda m, _: f"batch_size={_enough_samples(m)}", easy=False),
    # Where the loader is fast enough, bytes matter for the copy to the device alone.
    Line("fewer bytes", "transfer", lambda m: _wide(m) if m.ceiling > LOADER_BOUND_CEILING else (),
         _fewer_bytes, _why_fewer, _write_fewer, easy=False),
    Line("fewer bytes", BYTES, lambda m: _wide(m) if m.ceiling <= LOADER_BOUND_CEILING else (),
         _fewer_bytes, _why_fewer, _write_fewer, easy=False),
    Line("cheaper serialization", "serialization",
         lambda m: m.now.workers > 0 and m.facts.batch.objects > MANY_OBJECTS_PER_BATCH,
         lambda m, _: {"take_s": 0.0, "cpu_s": sum(s.cpu_s for s in m.stages),
                       "wall_s": sum(s.wall_s for s in m.stages), "hindered_s": 0.0},
         lambda m, _: Text(
             "a batch holds {objects:,} Python objects, which take {seconds} to send"
         ).format(objects=m.facts.batch.objects, seconds=units.seconds(m.facts.probe.pickle_s)),
         "return tensors (they go through shared memory), not lists, dicts or objects",
         easy=False),
    Line("faster decode", "decode", lambda m: [_computing_decodes(m)],
         lambda m, some: m.without(some),
         lambda m, some: _took(m, some) + _fastest_decoder(m, some), _faster_decoder, easy=False),
    Line("faster transform", "transform", lambda m: [_with_its_reads(m, s) for s in _computing(m)],
         lambda m, some: m.without(some), _took,
         lambda m, some: _instead_of(some[0])
         + ("" if m.facts.is_data_loader else Text("; in the data set, where workers run it")),
         easy=False),
    Line("faster collate", "collate",
         lambda m: [[s for s in _of(m, COLLATE) if s.wall_s > 2 * m.facts.copy_bytes_s]],
         lambda m, some: m.without(some), _took,
         _faster_collate, easy=False),
    Line("faster sampler", SAMPLER, _always, _ordered,
         lambda m, _: Text("drawing a batch's samples takes the main process {seconds}").format(
             seconds=units.seconds(m.facts.probe.sampler_s)
         ),
         "draw the order once per epoch, as an array", easy=False),
    Line("wait less", "waiting",
         lambda m: [[s for s in _of(m, "transform") if _is_waiting(s)]],
         lambda m, some: m.without(some), _took,
         lambda m, some: _instead_of(some[0]), easy=False),
    Line("faster medium", "storage",
         _always, lambda m, _: {"fetch_s": 0.0},
         lambda m, _: Text("an epoch from the medium takes {cold}, from memory {warm}").format(
             cold=units.seconds(m.epoch_s),
             warm=units.seconds(m.epoch_s - m.now.fetch_s * m.steps),
         ),
         "copy the files to an SSD or tmpfs, or pack them into one file", easy=False),
    Line("cheaper reads", "reading", _computing_reads,
         lambda m, some: m.without(some), _took,
         lambda m, some: _instead_of(some[0])
         + Text("; it computes, so a faster disk does not help"),
         easy=False),
    Line("faster shared storage", SHARED_STORAGE,
         lambda m: [_waiting_reads(m)] if m.share_of(SHARED_STORAGE) else [],
         lambda m, some: _without_waiting(m, some) | {"hindered_s": 0.0},
         _why_shared_storage,
         "copy the files to a local disk first, or store less to read: smaller images, or many "
         "in one file; more workers read no faster", easy=False),
    Line("faster reads", "storage",
         lambda m: [] if m.share_of(SHARED_STORAGE) else [_waiting_reads(m)],
         _without_waiting, _took, _faster_reads,
         easy=False),
)  # fmt: skip


def _text_of(subject: object) -> str:
    """Return the text by which a subject of a line is told from others; "" for the only one."""
    if isinstance(subject, list):
        return subject[0].name if subject else ""
    return "" if subject is True else str(subject)


def propose(m: Bounds) -> tuple[Remedy, ...]:
    """Return all that may make a practical difference, in the order of the table.

    Their times are predictions until they are tried.
    """
    remedies = []
    for line in REMEDIES:
        subjects = line.subjects(m)
        for subject in subjects if isinstance(subjects, Sequence) else (True,) * subjects:
            left = line.leaves(m, subject)
            expected = None if left is None else m.expected(**left)
            ci_low, ci_high = None, None
            if left is not None and "shorter" not in left:  # a number of steps has no error
                ci_low, ci_high = m.interval_of(expected)
            arguments = line.arguments(m, subject) if line.arguments else {}
            # Arguments to change belong to a DataLoader.
            helps = (expected or m.ceiling) <= 1 - DELTA and (
                m.facts.is_data_loader or not arguments
            )
            if not helps and "model" not in arguments:
                continue
            change = line.change(m, subject) if callable(line.change) else line.change
            remedies.append(
                Remedy(
                    name=line.name,
                    subject=_text_of(subject),
                    bottleneck=line.bottleneck,
                    expected=expected,
                    floor=None if left is None else m.floor(**left),
                    reason=line.reason(m, subject),
                    change=change or line_of({**m.facts.arguments, **arguments}),
                    easy=line.easy,
                    arguments=arguments,
                    ci_low=ci_low,
                    ci_high=ci_high,
                )
            )
    return tuple(remedies)


def for_shared_memory(facts: Facts) -> tuple[Remedy, ...]:
    """Return what makes the batches that workers prepare ahead fit into shared memory."""
    arguments, dtype, remedies = facts.arguments, facts.batch.main_dtype, []
    ahead = Text("workers prepare {n} batches ahead").format(n=facts.workers * facts.ahead)
    if facts.batch.total_bytes:
        ahead = Text("workers prepare {n} batches of {size} ahead").format(
            n=facts.workers * facts.ahead, size=units.count_bytes(facts.batch.total_bytes)
        )
    remedy = partial(Remedy, bottleneck=SHARED_MEMORY, reason=ahead)
    if facts.ahead > DEFAULT_PREFETCH_FACTOR:
        fewer = {"prefetch_factor": DEFAULT_PREFETCH_FACTOR}
        remedies.append(remedy(name="less prefetching", change=line_of({**arguments, **fewer})))
    if dtype in FEWER:
        remedies.append(remedy(name="fewer bytes", change=_write_fewer(None, dtype)))
    if facts.workers > 1:
        one_worker = line_of({**arguments, "num_workers": 1})
        remedies.append(remedy(name="fewer workers", change=one_worker))
    return tuple(remedies)


def worth_it(proposed: Sequence[Remedy]) -> list[Remedy]:
    """Return what gains something; of one change with several numbers, the smallest that is best.

    Where a change was tried, only what was measured counts.
    """
    tried = {remedy.name for remedy in proposed if remedy.measured is not None}
    kept: dict[tuple[str, str], Remedy] = {}
    for remedy in proposed:
        is_predicted = remedy.measured is None
        if is_predicted and (remedy.expected is None or remedy.name in tried):
            continue
        is_in_vain = not is_predicted and (remedy.ci_high or 0.0) >= 1
        if remedy.normalized_time > 1 - DELTA or is_in_vain:
            continue
        key = (remedy.name, "") if remedy.arguments else remedy.key
        best = kept.get(key)
        if best is None or remedy.normalized_time < best.normalized_time - EQUAL_GAIN_DIFFERENCE:
            kept[key] = remedy
    return list(kept.values())


def in_order(m: Bounds, gains: Sequence[Remedy]) -> tuple[str, tuple[Remedy, ...]]:
    """Return the bottleneck and at most five remedies: its best, what was tried, the others."""
    first = _first(m, gains) if gains else None
    rest = sorted(
        (remedy for remedy in gains if remedy is not first),
        key=lambda remedy: (remedy.measured is None, remedy.normalized_time),
    )
    if first is None:
        is_hidden = not gains and min(m.loading_cost_share_interval) < MODERATELY_INPUT_BOUND_SHARE
        return COMPUTE if is_hidden else UNEXPLAINED, tuple(rest[:MOST_REMEDIES])
    # What saves hardly any of what loading costs does not explain it.
    explains = 1 - _best(gains).normalized_time >= LEAST_EXPLAINED_SHARE * m.loading_cost_share
    bottleneck = first.bottleneck if explains else UNEXPLAINED
    return bottleneck, (first, *rest[: MOST_REMEDIES - 1])


def _first(m: Bounds, gains: Sequence[Remedy]) -> Remedy | None:
    """Return what to do first; None where too much of the time is not explained."""
    for remedy in gains:
        if remedy.bottleneck == DUPLICATED:
            return remedy
    unknown = m.is_unexplained
    # Bounds of a loader whose time is not explained name a known part of it.
    easy = [
        one for one in gains if one.easy and not (unknown and one.arguments and not one.measured)
    ]
    most = 1 - _best(gains).normalized_time
    most_easy = 1 - _best(easy).normalized_time if easy else 0.0
    if most_easy >= EASY_TO_BEST_GAIN_SHARE * most:
        enough = (one for one in easy if 1 - one.normalized_time >= EASY_GAIN_SHARE * most_easy)
        bottleneck = next(enough).bottleneck
        return _best([remedy for remedy in easy if remedy.bottleneck == bottleneck])
    if unknown:
        return None
    # What they wait for is the other workers, whatever function does the waiting.
    shared = (EACH_OTHER, SHARED_STORAGE)
    return next((one for one in gains if one.bottleneck in shared), None) or _best(gains)


def _best(some: Sequence[Remedy]) -> Remedy:
    return min(some, key=lambda remedy: remedy.normalized_time)


# --- what follows -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What limits a training, and what helps."""

    verdict: str = "not measured"
    """How much data loading costs: not, moderately or highly input-bound."""
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

    @property
    def broken(self) -> str:
        """Return what ended the measurement early; "" where nothing did."""
        return self.facts.broken


def conclude(facts: Facts, bounds: Bounds | None, proposed: tuple[Remedy, ...]) -> Findings:
    """Return the findings from what was measured, however much that is.

    Args:
        facts: what was measured.
        bounds: what follows from it.
        proposed: the remedies, as far as they were tried.
    """
    findings = Findings(facts=facts, bounds=bounds)
    if facts.broken and _lacks_shared_memory(facts):
        return replace(findings, bottleneck=SHARED_MEMORY, remedies=for_shared_memory(facts))
    if bounds is None or (facts.broken and not facts.probe.stages):
        return findings
    bottleneck, remedies = in_order(bounds, worth_it(proposed))
    return replace(
        findings,
        verdict=_verdict(bounds),
        bottleneck=bottleneck,
        ceiling=bounds.ceiling,
        remedies=remedies,
        proposed=proposed,
    )


def _lacks_shared_memory(facts: Facts) -> bool:
    """Return whether the batches that workers prepare ahead need more than /dev/shm has."""
    usage = shared_memory.usage()
    if not facts.workers:
        return False
    words = ("shared memory", "bus error", "no space left on device", "shm")
    if any(word in facts.broken.lower() for word in words):
        return True
    if usage is None:
        return False
    # A worker without room for a batch writes that to its stderr, loses the batch, and stalls.
    needed_bytes = (facts.workers * facts.ahead + 1) * facts.batch.total_bytes
    return needed_bytes > usage.total or usage.free < FREE_SHARED_MEMORY_SHARE * usage.total


def _verdict(m: Bounds) -> str:
    """Return how input-bound a training is, as far as the whole interval agrees."""
    limits = (MODERATELY_INPUT_BOUND_SHARE, INPUT_BOUND_SHARE)
    low, high = (
        VERDICTS[sum(share >= limit for limit in limits)] for share in m.loading_cost_share_interval
    )
    return low if low == high else Text("between {low} and {high}").format(low=low, high=high)
